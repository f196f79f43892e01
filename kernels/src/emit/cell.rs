//! The C of one point of the outer range: groups of loops, and what they read, reduce and write.

use super::scalar::{Names, combined, constant, integer, reduction, value};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::{Element, Group, LoopNest, Space, Statement, Tag, Tensor};
use crate::maps::slope;
use indexmap::{IndexMap, IndexSet};
use sdfg::config::KernelConfig;
use sdfg::{Combine, Dtype, Expr, Layout};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A run-time dropout mask of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Mask {
    pub stream: String,
    pub rate: f64,
}

/// Everything gathered while printing.
pub struct Printer<'a> {
    pub spec: &'a KernelSpec,
    pub nest: &'a LoopNest,
    pub config: &'a KernelConfig,
    pub double: bool,
    pub text: String,
    /// Integers that the kernel takes, with their values at the sizes of the spec.
    pub integers: IndexMap<String, i64>,
    /// C identifiers of tensors and of buffers in scratch memory.
    pub identifiers: IndexMap<String, String>,
    pub masks: Vec<Mask>,
    /// Scratch buffers: identifier → (element type, bytes).
    pub scratch: IndexMap<String, (&'static str, usize)>,
    /// Pointers used, by identifier: heap and scratch.
    pub pointers: IndexSet<String>,
    /// Values at hand in the current group.
    known: IndexMap<Element, String>,
    connectors: BTreeMap<String, String>,
    fresh: usize,
    /// Mask rows of the current group: mask, element, C text of the lane.
    rows: Vec<(usize, Expr, String)>,
}

/// Extent by which mask rows may exceed what was asked for.
const MASK_SLACK: i64 = 80;

pub fn c_type(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::F64 => "double",
        Dtype::F32 => "float",
        Dtype::Bf16 => "uint16_t",
        Dtype::F16 => "_Float16",
        Dtype::I64 => "int64_t",
        Dtype::I32 => "int32_t",
        Dtype::I16 => "int16_t",
        Dtype::U8 => "uint8_t",
        Dtype::Bit => return None,
    })
}

fn mangled(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

impl<'a> Printer<'a> {
    pub fn new(spec: &'a KernelSpec, nest: &'a LoopNest, config: &'a KernelConfig, double: bool) -> Self {
        let mut identifiers: IndexMap<String, String> = IndexMap::new();
        for data in nest.tensors.keys() {
            let mut name = format!("t_{}", mangled(data));
            while identifiers.values().any(|n| *n == name) {
                name.push('_');
            }
            identifiers.insert(data.clone(), name);
        }
        Printer {
            spec,
            nest,
            config,
            double,
            text: String::new(),
            integers: IndexMap::new(),
            identifiers,
            masks: vec![],
            scratch: IndexMap::new(),
            pointers: IndexSet::new(),
            known: IndexMap::new(),
            connectors: BTreeMap::new(),
            fresh: 0,
            rows: vec![],
        }
    }

    pub fn line(&mut self, depth: usize, text: impl AsRef<str>) {
        let _ = writeln!(self.text, "{}{}", "    ".repeat(depth), text.as_ref());
    }

    fn fresh(&mut self, prefix: &str) -> String {
        self.fresh += 1;
        format!("{prefix}{}", self.fresh)
    }

    pub fn given(&mut self, name: String, value: i64) -> String {
        self.integers.insert(name.clone(), value);
        name
    }

    pub fn index(&self, name: &str) -> String {
        format!("i_{}", mangled(name))
    }

    pub fn count(&mut self, index: &str, count: i64) -> String {
        self.given(format!("n_{}", mangled(index)), count)
    }

    fn unsupported(&self, what: String) -> KernelError {
        KernelError::Unsupported { kernel: self.spec.name.clone(), what }
    }

    fn tensor(&self, data: &str) -> Result<&'a Tensor, KernelError> {
        self.nest.tensors.get(data).ok_or_else(|| KernelError::UnknownContainer { kernel: self.spec.name.clone(), data: data.to_string() })
    }

    fn identifier(&self, data: &str) -> String {
        self.identifiers.get(data).cloned().unwrap_or_else(|| mangled(data))
    }

    /// Whether a local container is one scalar, or one value for each lane.
    fn is_value(&self, tensor: &Tensor) -> bool {
        tensor.space == Space::Local && tensor.shape.is_empty()
    }

    /// Layout and shape of the storage behind a heap container.
    fn storage(&self, root: &str) -> Result<(Layout, Vec<String>, Vec<usize>), KernelError> {
        let container = self
            .spec
            .containers
            .get(root)
            .ok_or_else(|| KernelError::UnknownContainer { kernel: self.spec.name.clone(), data: root.to_string() })?;
        let layout = self.config.layouts.get(root).cloned().unwrap_or_else(|| Layout::natural(container));
        Ok((layout, container.dims.clone(), self.spec.shape(root)?))
    }

    /// Strides of a container's dims in elements, the dim with a literal stride of 1, and the first element.
    pub fn strides(&self, data: &str) -> Result<(Vec<i64>, Option<usize>, i64), KernelError> {
        let tensor = self.tensor(data)?;
        match &tensor.space {
            Space::Heap { root, .. } => {
                let (layout, dims, _) = self.storage(root)?;
                let (strides, first) = self.heap_strides(data, root)?;
                let unit = layout.innermost().and_then(|inner| dims.iter().position(|d| d == inner));
                Ok((strides, unit, first))
            }
            Space::Local | Space::Private { .. } => {
                let vector = self.vector_dim(data);
                let mut strides = vec![0; tensor.shape.len()];
                let mut next = if self.nest.per_lane(tensor) { self.nest.lanes } else { 1 };
                let unit = (next == 1).then_some(vector).flatten();
                for n in vector.into_iter().chain((0..tensor.shape.len()).rev().filter(|n| Some(*n) != vector)) {
                    strides[n] = next;
                    next *= tensor.shape[n];
                }
                Ok((strides, unit, 0))
            }
        }
    }

    /// Strides and first element of a container under the layout of the storage behind it.
    pub fn heap_strides(&self, data: &str, root: &str) -> Result<(Vec<i64>, i64), KernelError> {
        let (layout, dims, shape) = self.storage(root)?;
        let strides = layout.strides(&dims, &shape).ok_or_else(|| KernelError::Layout {
            kernel: self.spec.name.clone(),
            data: root.to_string(),
            layout: layout.to_string(),
            dims: dims.clone(),
        })?;
        let strides: Vec<i64> = strides.into_iter().map(|s| s as i64).collect();
        let first = self.offset(data, root, &strides)?;
        Ok((strides, first))
    }

    /// First element of a view within the storage.
    fn offset(&self, data: &str, root: &str, strides: &[i64]) -> Result<i64, KernelError> {
        let (mut at, mut total) = (data, 0);
        while at != root {
            let wrong = || KernelError::View { kernel: self.spec.name.clone(), data: data.to_string(), of: root.to_string() };
            let view = self.spec.containers.get(at).and_then(|c| c.view.as_ref()).ok_or_else(wrong)?;
            if view.offsets.len() != strides.len() {
                return Err(wrong());
            }
            for (offset, stride) in view.offsets.iter().zip(strides) {
                let offset =
                    offset.eval(&self.spec.sizes).map_err(|source| KernelError::Size { kernel: self.spec.name.clone(), source })?;
                total += offset * stride;
            }
            at = &view.of;
        }
        Ok(total)
    }

    /// The dim of a container that the vector index runs along where it is written.
    fn vector_dim(&self, data: &str) -> Option<usize> {
        let vector = Expr::sym(self.nest.vector.as_deref()?);
        let writer = self.nest.groups.iter().flat_map(|g| &g.statements).find(|s| s.write.data == data)?;
        writer.write.subscripts.iter().position(|s| *s == vector)
    }

    /// C text of the position of an element.
    fn position(&mut self, element: &Element) -> Result<String, KernelError> {
        let tensor = self.tensor(&element.data)?;
        let (strides, unit, first) = self.strides(&element.data)?;
        let name = self.identifier(&element.data);
        let vector = self.nest.vector.clone();
        let mut terms = Vec::new();
        if let Space::Heap { root, .. } = &tensor.space
            && root != &element.data
        {
            terms.push(self.given(format!("first_{name}"), first));
        }
        for (n, subscript) in element.subscripts.iter().enumerate() {
            if *subscript == Expr::Int(0) {
                continue;
            }
            let along = vector.as_ref().is_some_and(|v| subscript.symbols().contains(v));
            let text = integer(subscript, self);
            if unit == Some(n) && along {
                terms.push(text);
            } else {
                let stride = self.given(format!("s_{name}_{n}"), strides[n]);
                terms.push(format!("{text} * {stride}"));
            }
        }
        if self.nest.per_lane(tensor) {
            terms.push("lane".into());
        }
        Ok(if terms.is_empty() { "0".into() } else { terms.join(" + ") })
    }

    fn place(&mut self, element: &Element) -> Result<String, KernelError> {
        let tensor = self.tensor(&element.data)?;
        let name = self.identifier(&element.data);
        if self.is_value(tensor) {
            return Ok(if self.nest.per_lane(tensor) { format!("{name}[lane]") } else { name });
        }
        if !matches!(tensor.space, Space::Heap { .. }) {
            let elements: i64 = tensor.shape.iter().product::<i64>() * if self.nest.per_lane(tensor) { self.nest.lanes } else { 1 };
            self.scratch.insert(name.clone(), ("real", elements as usize * if self.double { 8 } else { 4 }));
        }
        self.pointers.insert(element.data.clone());
        Ok(format!("{name}[{}]", self.position(element)?))
    }

    fn load(&mut self, element: &Element) -> Result<String, KernelError> {
        let tensor = self.tensor(&element.data)?;
        let place = self.place(element)?;
        let text = match tensor.space {
            Space::Heap { .. } if tensor.dtype == Dtype::Bf16 => format!("load_bf16({place})"),
            Space::Heap { .. } => format!("(real){place}"),
            _ => place,
        };
        let Some(fill) = element.fill else { return Ok(text) };
        let mut inside = Vec::new();
        for (subscript, size) in element.subscripts.iter().zip(&tensor.shape) {
            if subscript.as_sym().is_none() {
                let at = integer(subscript, self);
                let size = self.given(format!("d_{}_{}", self.identifier(&element.data), inside.len()), *size);
                inside.push(format!("{at} >= 0 && {at} < {size}"));
            }
        }
        let fill = constant(f64::from_bits(fill), self.double);
        Ok(if inside.is_empty() { text } else { format!("({} ? {text} : {fill})", inside.join(" && ")) })
    }

    fn store(&mut self, element: &Element, text: &str) -> Result<String, KernelError> {
        let tensor = self.tensor(&element.data)?;
        let place = self.place(element)?;
        Ok(match (&tensor.space, c_type(tensor.dtype)) {
            (Space::Heap { .. }, Some("uint16_t")) => format!("{place} = store_bf16({text});"),
            (Space::Heap { .. }, Some(kind)) => format!("{place} = ({kind}){text};"),
            _ => format!("{place} = {text};"),
        })
    }

    /// Number of loops of a group that must be open before the subscripts have a value.
    fn level(&self, group: &Group, element: &Element) -> usize {
        let per_lane = self.tensor(&element.data).is_ok_and(|t| self.nest.per_lane(t));
        let uses = |index: &str| element.subscripts.iter().any(|s| s.symbols().contains(index));
        let deepest = group.loops.iter().rposition(|l| uses(&l.index)).map_or(0, |n| n + 1);
        if per_lane { group.loops.len() } else { deepest }
    }

    pub fn group(&mut self, group: &Group, depth: usize) -> Result<(), KernelError> {
        self.known.clear();
        self.rows.clear();
        let maps: IndexSet<&str> = group.statements.iter().map(|s| s.name.as_str()).collect();
        self.line(depth, format!("/* {} */", maps.into_iter().collect::<Vec<_>>().join(", ").replace("*/", "")));
        let mut reductions = Vec::new();
        for statement in &group.statements {
            let Some(combine) = statement.combine else { continue };
            let level = self.level(group, &statement.write);
            let private = matches!(self.tensor(&statement.write.data)?.space, Space::Private { .. });
            let names = |index: &str| statement.write.subscripts.iter().any(|s| s.symbols().contains(index)) || group.is_lane(index);
            let again = private || level == group.loops.len() || group.loops[..level].iter().any(|l| !names(&l.index));
            let variable = (level < group.loops.len()).then(|| self.fresh("sum"));
            if !private && again {
                self.initialise(group, statement, combine, depth)?;
            }
            let tensor = self.tensor(&statement.write.data)?;
            if self.is_value(tensor) && !again {
                let name = self.identifier(&statement.write.data);
                self.line(depth, format!("real {name};"));
            }
            reductions.push(Reduction { statement, combine, level, again, variable });
        }
        for statement in group.statements.iter().filter(|s| s.combine.is_none()) {
            let tensor = self.tensor(&statement.write.data)?;
            if self.is_value(tensor) && tensor.stored {
                self.declare_value(&statement.write.data, depth)?;
            }
        }
        self.open(group, &reductions, 0, depth)
    }

    fn declare_value(&mut self, data: &str, depth: usize) -> Result<(), KernelError> {
        let tensor = self.tensor(data)?;
        let name = self.identifier(data);
        let lanes = if self.nest.per_lane(tensor) { "[LANES]" } else { "" };
        self.line(depth, format!("real {name}{lanes};"));
        Ok(())
    }

    /// Sets what is about to be reduced to the identity.
    fn initialise(&mut self, group: &Group, statement: &Statement, combine: Combine, depth: usize) -> Result<(), KernelError> {
        let tensor = self.tensor(&statement.write.data)?;
        if self.is_value(tensor) {
            self.declare_value(&statement.write.data, depth)?;
        }
        let uses = |index: &str| statement.write.subscripts.iter().any(|s| s.symbols().contains(index));
        let lane = self.nest.per_lane(tensor);
        let loops = group
            .loops
            .iter()
            .filter(|l| uses(&l.index) || (lane && group.is_lane(&l.index) && self.is_block(&l.index)))
            .cloned()
            .collect();
        let identity = constant(combine.identity().first().copied().unwrap_or(0.0), self.double);
        let nest = Group { loops, statements: vec![] };
        for (n, _) in nest.loops.iter().enumerate() {
            self.open_loop(&nest, n, &[], depth + n);
        }
        let text = self.store(&statement.write, &identity)?;
        self.line(depth + nest.loops.len(), text);
        for n in (0..nest.loops.len()).rev() {
            self.line(depth + n, "}");
        }
        Ok(())
    }

    fn is_block(&self, index: &str) -> bool {
        self.nest.block().is_some_and(|b| b.index == index)
    }

    fn open_loop(&mut self, group: &Group, n: usize, reductions: &[&Reduction], depth: usize) {
        let each = &group.loops[n];
        if n + 1 == group.loops.len() {
            let clauses: String =
                reductions.iter().filter_map(|r| Some(format!(" reduction({}:{})", reduction(r.combine), r.variable.as_ref()?))).collect();
            self.line(depth, format!("#pragma omp simd{clauses}"));
        }
        let index = self.index(&each.index);
        if self.is_block(&each.index) {
            self.line(depth, "for (int64_t lane = 0; lane < lanes; ++lane) {");
            self.line(depth + 1, format!("const int64_t {index} = first_lane + lane;"));
        } else {
            let count = self.count(&each.index, each.count);
            let map = if each.map.is_empty() { String::new() } else { format!(" /* {} */", each.map.replace("*/", "")) };
            self.line(depth, format!("for (int64_t {index} = 0; {index} < {count}; ++{index}) {{{map}"));
        }
    }

    fn open(&mut self, group: &Group, reductions: &[Reduction], level: usize, depth: usize) -> Result<(), KernelError> {
        self.loads(group, level, depth)?;
        if level + 1 == group.loops.len() {
            self.mask_rows(group, depth)?;
        }
        for r in reductions.iter().filter(|r| r.level == level) {
            if let Some(variable) = &r.variable {
                let identity = constant(r.combine.identity().first().copied().unwrap_or(0.0), self.double);
                self.line(depth, format!("real {variable} = {identity};"));
            }
        }
        if level == group.loops.len() {
            for statement in &group.statements {
                self.statement(statement, reductions, depth)?;
            }
        } else {
            let inside: Vec<&Reduction> = reductions.iter().collect();
            self.open_loop(group, level, &inside, depth);
            self.open(group, reductions, level + 1, depth + 1)?;
            self.line(depth, "}");
        }
        for r in reductions.iter().filter(|r| r.level == level) {
            if let Some(variable) = &r.variable {
                let text = if r.again {
                    let place = self.place(&r.statement.write)?;
                    let whole = combined(r.combine, &place, variable);
                    self.store(&r.statement.write, &format!("({whole})"))?
                } else {
                    self.store(&r.statement.write, variable)?
                };
                self.line(depth, text);
            }
        }
        Ok(())
    }

    /// Reads of elements that have their address at this level, unless a statement of the group makes the value.
    fn loads(&mut self, group: &Group, level: usize, depth: usize) -> Result<(), KernelError> {
        for statement in &group.statements {
            for (_, element) in &statement.reads {
                let made = group
                    .statements
                    .iter()
                    .any(|s| s.combine.is_none() && s.write.data == element.data && s.write.subscripts == element.subscripts);
                if made || self.level(group, element) != level || self.known.contains_key(element) {
                    continue;
                }
                let name = self.fresh("x");
                let text = self.load(element)?;
                self.line(depth, format!("const real {name} = {text};"));
                self.known.insert(element.clone(), name);
            }
        }
        Ok(())
    }

    /// Rows of dropout lanes for masks whose elements follow each other along the innermost loop.
    fn mask_rows(&mut self, group: &Group, depth: usize) -> Result<(), KernelError> {
        let Some(last) = group.loops.last().filter(|l| l.tag == Tag::Vector) else { return Ok(()) };
        let mut found = Vec::new();
        for statement in &group.statements {
            statement.code.walk(&mut |s| {
                if let sdfg::Scalar::Keep { stream, element, rate } = s
                    && slope(element, &last.index) == Some(Expr::Int(1))
                {
                    found.push((stream.clone(), element.clone(), *rate));
                }
            });
        }
        for (stream, element, rate) in found {
            let mask = self.mask(&stream, rate);
            if self.rows.iter().any(|(m, e, _)| *m == mask && *e == element) {
                continue;
            }
            let (blocked, zero) = (self.is_block(&last.index), Expr::Int(0));
            let start = if blocked { Expr::sym("\u{0}first") } else { zero };
            let first = element.substitute(&BTreeMap::from([(last.index.clone(), start)]));
            let (first, count) = if blocked {
                (integer(&first, self), "lanes".to_string())
            } else {
                (integer(&first, self), self.count(&last.index, last.count))
            };
            let room = format!("room{}", self.rows.len());
            let lanes = if blocked { self.nest.lanes } else { last.count };
            let bytes = 2 * (lanes + MASK_SLACK) as usize;
            let held = self.scratch.get(&room).map_or(0, |(_, b)| *b);
            self.scratch.insert(room.clone(), ("uint16_t", bytes.max(held)));
            let name = self.fresh("mask");
            self.line(depth, format!("const uint16_t *const {name} = philox_lanes(&keep[{mask}], {first}, {count}, {room});"));
            let at = if blocked { "lane".to_string() } else { self.index(&last.index) };
            self.rows.push((mask, element, format!("{name}[{at}]")));
        }
        Ok(())
    }

    pub fn mask(&mut self, stream: &str, rate: f64) -> usize {
        let mask = Mask { stream: stream.to_string(), rate };
        match self.masks.iter().position(|m| *m == mask) {
            Some(n) => n,
            None => {
                self.masks.push(mask);
                self.masks.len() - 1
            }
        }
    }

    fn statement(&mut self, statement: &Statement, reductions: &[Reduction], depth: usize) -> Result<(), KernelError> {
        self.connectors.clear();
        for (connector, element) in &statement.reads {
            let name = self.known.get(element).cloned();
            let name =
                name.ok_or_else(|| self.unsupported(format!("`{}` reads `{}` before it is written", statement.name, element.data)))?;
            self.connectors.insert(connector.clone(), name);
        }
        let text = value(&statement.code, self);
        let Some(r) = reductions.iter().find(|r| std::ptr::eq(r.statement, statement)) else {
            let name = self.fresh("v");
            self.line(depth, format!("const real {name} = {text};"));
            if self.tensor(&statement.write.data)?.stored {
                let store = self.store(&statement.write, &name)?;
                self.line(depth, store);
            }
            self.known.insert(statement.write.clone(), name);
            return Ok(());
        };
        let name = self.fresh("v");
        self.line(depth, format!("const real {name} = {text};"));
        let line = match &r.variable {
            Some(variable) => format!("{variable} = {};", combined(r.combine, variable, &name)),
            None => {
                let place = self.place(&statement.write)?;
                let whole = combined(r.combine, &place, &name);
                self.store(&statement.write, &format!("({whole})"))?
            }
        };
        self.line(depth, line);
        Ok(())
    }
}

impl Group {
    fn is_lane(&self, index: &str) -> bool {
        self.loops.last().is_some_and(|l| l.index == index && l.tag == Tag::Vector)
    }
}

struct Reduction<'a> {
    statement: &'a Statement,
    combine: Combine,
    /// Loops around the target.
    level: usize,
    /// Whether the target is reached more than once.
    again: bool,
    /// Scalar that holds the reduction over the loops inside the target's.
    variable: Option<String>,
}

impl Names for Printer<'_> {
    fn symbol(&mut self, name: &str) -> String {
        if name == "\u{0}first" {
            return "first_lane".into();
        }
        let nest = self.nest;
        if nest.outer.iter().chain(nest.groups.iter().flat_map(|g| &g.loops)).any(|l| l.index == name) {
            return self.index(name);
        }
        let value = self.spec.sizes.get(name).or_else(|| self.spec.dims.get(name)).copied().unwrap_or(0);
        self.given(format!("size_{}", mangled(name)), value)
    }

    fn input(&mut self, connector: &str) -> String {
        self.connectors.get(connector).cloned().unwrap_or_else(|| "0".into())
    }

    fn keep(&mut self, stream: &str, element: &Expr, rate: f64) -> String {
        let mask = self.mask(stream, rate);
        let row = self.rows.iter().find(|(m, e, _)| *m == mask && e == element).map(|(_, _, lane)| lane.clone());
        let lane = row.unwrap_or_else(|| format!("philox_lane(&keep[{mask}], {})", integer(element, self)));
        format!("({lane} < threshold{mask} ? (real)0 : factor{mask})")
    }

    fn is_double(&self) -> bool {
        self.double
    }
}
