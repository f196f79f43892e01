//! The arrays of DaCe's in which containers lie: those of a program, those of the bodies of its loops, and slices of the former that
//! the latter read and write.

use super::DaceError;
use super::code;
use super::names::{self, Identifiers};
use sdfg::{Container, Dtype, Expr, Fill, Loop, Role, Sdfg};
use serde_json::{Map as Object, Value, json};
use std::collections::BTreeMap;

/// A program, or the body of a loop within the program before it.
pub struct Frame {
    pub program: Sdfg,
    /// The loop whose body it is, and the symbol of its time.
    pub repeat: Option<(Loop, String)>,
    /// Containers of expansions of its operators.
    pub added: BTreeMap<String, Container>,
    number: usize,
}

/// Where a container lies in DaCe's arrays.
#[derive(Clone)]
pub struct ArrayPlace {
    pub array: String,
    /// Axes of the array that the container does not have, and the places along them, in the order in which they are inserted.
    pub at: Vec<(usize, String)>,
    /// The value of what lies outside of the array along these axes.
    pub fill: Option<f64>,
    /// What is added to each subscript: where a view begins.
    pub offsets: Vec<String>,
    /// The sizes of the array, and those of the container.
    pub shape: Vec<String>,
    pub inner: Vec<String>,
}

pub struct Frames {
    pub stack: Vec<Frame>,
    pub names: Identifiers,
    pub arrays: Object<String, Value>,
    pub symbols: Object<String, Value>,
    made: usize,
}

impl Frames {
    pub fn new(program: &Sdfg) -> Self {
        let symbols = program.sizes.keys().map(|s| (names::size(s), json!("int64"))).collect();
        let mut frames = Frames { stack: vec![], names: Identifiers::default(), arrays: Object::new(), symbols, made: 0 };
        // Names of the interface are taken first.
        for container in program.containers.values().filter(|c| c.role != Role::Transient) {
            frames.names.of(&container.name);
        }
        frames.push(program.clone(), None);
        frames
    }

    /// Enters the body of a loop, or a program.
    pub fn push(&mut self, program: Sdfg, repeat: Option<Loop>) {
        let number = self.made;
        self.made += 1;
        let repeat = repeat.map(|repeat| {
            let symbol = format!("time_{number}");
            self.symbols.insert(symbol.clone(), json!("int64"));
            (repeat, symbol)
        });
        self.stack.push(Frame { program, repeat, added: BTreeMap::new(), number });
    }

    pub fn top(&self) -> &Frame {
        &self.stack[self.stack.len() - 1]
    }

    /// What a symbol is called: a size, the time of a loop, or the parameter of a map.
    pub fn symbol(&self, name: &str) -> String {
        for frame in self.stack.iter().rev() {
            if let Some((repeat, symbol)) = &frame.repeat
                && repeat.index == name
            {
                return symbol.clone();
            }
        }
        match self.stack[0].program.sizes.contains_key(name) || self.top().program.sizes.contains_key(name) {
            true => names::size(name),
            false => names::index(name),
        }
    }

    /// # Errors
    /// Elements of containers.
    pub fn integer(&self, e: &Expr) -> Result<String, DaceError> {
        code::integer(e, &|name| self.symbol(name), &|_| None)
    }

    /// Where a container of the innermost frame lies.
    ///
    /// # Errors
    /// Containers that are not declared, types that DaCe lacks.
    pub fn place(&mut self, data: &str) -> Result<ArrayPlace, DaceError> {
        self.place_in(self.stack.len() - 1, data)
    }

    fn place_in(&mut self, depth: usize, data: &str) -> Result<ArrayPlace, DaceError> {
        let frame = &self.stack[depth];
        let unknown = || DaceError::Unsupported { name: data.to_string(), what: "it is not declared".into() };
        let container = frame.program.containers.get(data).or_else(|| frame.added.get(data)).cloned().ok_or_else(unknown)?;
        let inner = container.dims.iter().map(|dim| self.integer(&frame.program.size_of(dim))).collect::<Result<Vec<_>, _>>()?;
        if let Some(view) = &container.view {
            let mut place = self.place_in(depth, &view.of)?;
            let offsets = view.offsets.iter().map(|o| self.integer(o)).collect::<Result<Vec<_>, _>>()?;
            place.offsets = match place.offsets.is_empty() {
                true => offsets,
                false => place.offsets.iter().zip(offsets).map(|(a, b)| format!("({a} + {b})")).collect(),
            };
            return Ok(ArrayPlace { inner, ..place });
        }
        let frame = &self.stack[depth];
        if let Some((repeat, symbol)) = &frame.repeat
            && depth > 0
            && !frame.added.contains_key(data)
        {
            let (slice, symbol, index) = (repeat.slices.get(data).cloned(), symbol.clone(), repeat.index.clone());
            match slice {
                // What the last time has left is copied before the body runs.
                Some(slice) if slice.is_state() => {}
                Some(slice) => {
                    let mut place = self.place_in(depth - 1, &slice.data)?;
                    if let Some((axis, at)) = &slice.at {
                        let named = |name: &str| if name == index { symbol.clone() } else { names::size(name) };
                        // The axes of inner loops are inserted before those of outer ones.
                        place.at.insert(0, (*axis, code::integer(at, &named, &|_| None)?));
                    }
                    place.fill = place.fill.or(slice.fill.map(|Fill(fill)| fill));
                    return Ok(ArrayPlace { inner, ..place });
                }
                None if container.role != Role::Transient => return self.place_in(depth - 1, data),
                None => {}
            }
        }
        self.array(depth, &container, inner)
    }

    /// The array of a container that has one of its own.
    fn array(&mut self, depth: usize, container: &Container, shape: Vec<String>) -> Result<ArrayPlace, DaceError> {
        let number = self.stack[depth].number;
        let key = if depth == 0 { container.name.clone() } else { format!("{}@{number}", container.name) };
        let is_given = depth == 0 && container.role != Role::Transient;
        let array = match depth {
            0 => self.names.of(&container.name),
            _ => {
                let known = self.names.all().find(|(_, name)| **name == key).map(|(made, _)| made.clone());
                match known {
                    Some(known) => known,
                    None => self.names.named(&key, &container.name),
                }
            }
        };
        if !self.arrays.contains_key(&array) {
            let dtype = match container.dtype {
                Dtype::F64 => "float64",
                Dtype::F32 => "float32",
                Dtype::F16 => "float16",
                Dtype::I64 => "int64",
                Dtype::I32 => "int32",
                Dtype::I16 => "int16",
                Dtype::U8 => "uint8",
                Dtype::Bf16 | Dtype::Bit => return Err(DaceError::Dtype { name: container.name.clone(), dtype: container.dtype }),
            };
            let sizes = if shape.is_empty() { vec!["1".to_string()] } else { shape.clone() };
            let mut strides = vec!["1".to_string()];
            for size in sizes[1..].iter().rev() {
                let last = strides[0].clone();
                strides.insert(0, if last == "1" { size.clone() } else { format!("{size}*{last}") });
            }
            let total = sizes.join("*");
            let offset = vec!["0"; sizes.len()];
            self.arrays.insert(
                array.clone(),
                json!({"type": "Array", "attributes": {
                    "dtype": dtype, "shape": sizes, "strides": strides, "total_size": total, "offset": offset,
                    "transient": !is_given, "storage": "Default", "lifetime": "Scope",
                }}),
            );
        }
        Ok(ArrayPlace { array, at: vec![], fill: None, offsets: vec![], inner: shape.clone(), shape })
    }
}
