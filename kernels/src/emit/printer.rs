//! The state of the printer of one point of the outer range.

use crate::emit::dialect::TargetDialect;
use crate::emit::scalar::{NamePrinter, Reciprocal, integer};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::{Element, LoopNest, NestTensor, Tile};
use crate::runtime::dropout::Mask;
use indexmap::{IndexMap, IndexSet};
use sdfg::config::KernelConfig;
use sdfg::{Bindings, Combine, Dtype, Expr, Scalar};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Stands for the first iteration of a block.
pub const FIRST: &str = "\u{0}first";

/// Lanes of one mask along the innermost loop of a group.
#[derive(Clone, Debug)]
pub struct MaskRow {
    pub mask: usize,
    pub element: Expr,
    /// C text of the lane.
    pub lane: String,
    /// Whether it is a word whose upper half is the lane, with arbitrary bits in the lower half.
    pub upper: bool,
}

/// A result whose row may be written with non-temporal stores.
#[derive(Clone, Debug)]
pub struct StreamRow {
    pub element: Element,
    /// C text of the place of one element within the piece.
    pub place: String,
    pub room: String,
    pub to: String,
    /// C text of the pointer to the piece; of a CUDA kernel the step of a result that is transposed, empty for others.
    pub out: String,
    pub kind: &'static str,
    /// Of a CUDA kernel, whether the piece begins where a vector may.
    pub even: bool,
}

/// An operand that is packed once, before the first point.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// The container that it is a part of.
    pub data: String,
    pub elements: i64,
    pub steps: i64,
    /// C that packs step `at`.
    pub code: String,
}

/// Everything gathered while printing.
pub struct Printer<'a, D> {
    /// The target's language, and its state.
    pub dialect: D,
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
    /// Variables that hold elements in the current group.
    pub known: IndexMap<Element, String>,
    /// Of these, the ones that were loaded before the innermost loop: all its lanes have the same value.
    pub uniform: BTreeSet<String>,
    /// The index of the innermost loop of the current group.
    pub innermost: Option<String>,
    pub connectors: BTreeMap<String, String>,
    /// Reciprocals computed before the loops of the current group, by the divisor.
    pub divisors: IndexMap<Element, Reciprocal>,
    /// Variables that hold reciprocals, by the C name of the divisor.
    pub reciprocals: BTreeMap<String, Reciprocal>,
    fresh: usize,
    /// Of the current group.
    pub rows: Vec<MaskRow>,
    pub streamed: Vec<StreamRow>,
    /// Number of variables that outlive a point: tags that say which mask row or which packed operand a buffer holds.
    pub held: usize,
    /// Operands of products that are packed once for all points.
    pub prepared: Vec<Prepared>,
    /// Functions that the kernel calls, by name.
    pub functions: IndexMap<String, String>,
    /// Prefetched elements: a pack of neighbours, or the one value of a row.
    pub ahead: IndexMap<Element, String>,
    /// Whether this pass over a group stores reductions alone, because a later pass over the same group stores the rest.
    pub silent: bool,
    /// What loops became, group by group.
    pub loops: Vec<PrintedLoops>,
}

/// What the loops of a group became in the text: schedule templates tell it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrintedLoops {
    /// The containers that the statements write.
    pub writes: Vec<String>,
    /// Indices that lanes of vectors walk, several as one from inner to outer.
    pub lanes: Vec<String>,
    /// Indices that a product sums over as one, from inner to outer, and how many of their steps are packed at once.
    pub packed: Option<(Vec<String>, i64)>,
}

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

/// The number of iterations of an index.
fn count_name(index: &str) -> String {
    format!("n_{}", mangled(index))
}

pub fn mangled(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

impl<'a, D: TargetDialect> Printer<'a, D> {
    pub fn new(spec: &'a KernelSpec, nest: &'a LoopNest, config: &'a KernelConfig, double: bool, dialect: D) -> Self {
        let mut identifiers: IndexMap<String, String> = IndexMap::new();
        for data in nest.tensors.keys() {
            let mut name = format!("t_{}", mangled(data));
            while identifiers.values().any(|n| *n == name) {
                name.push('_');
            }
            identifiers.insert(data.clone(), name);
        }
        Printer {
            dialect,
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
            uniform: BTreeSet::new(),
            innermost: None,
            connectors: BTreeMap::new(),
            divisors: IndexMap::new(),
            reciprocals: BTreeMap::new(),
            fresh: 0,
            rows: vec![],
            streamed: vec![],
            held: 0,
            prepared: vec![],
            functions: IndexMap::new(),
            ahead: IndexMap::new(),
            silent: false,
            loops: vec![],
        }
    }

    pub fn line(&mut self, depth: usize, text: impl AsRef<str>) {
        let _ = writeln!(self.text, "{}{}", "    ".repeat(depth), text.as_ref());
    }

    pub fn fresh(&mut self, prefix: &str) -> String {
        self.fresh += 1;
        format!("{prefix}{}", self.fresh)
    }

    pub fn given(&mut self, name: String, value: i64) -> String {
        self.integers.insert(name.clone(), value);
        name
    }

    /// All identifiers that are made of names of the kernel: of tensors and their buffers, indices, and integers that the kernel takes.
    pub fn given_names(&self) -> BTreeSet<String> {
        let loops = self.nest.outer.iter().chain(self.nest.groups.iter().flat_map(|g| &g.loops)).map(|l| &l.index);
        let indices: BTreeSet<&String> = loops.chain(self.nest.tiles.iter().map(|t| &t.index)).collect();
        let of_indices = indices.into_iter().flat_map(|i| [self.index(i), count_name(i)]);
        let given = self.identifiers.values().chain(self.scratch.keys()).chain(self.integers.keys()).cloned();
        of_indices.chain(given).collect()
    }

    pub fn index(&self, name: &str) -> String {
        format!("i_{}", mangled(name))
    }

    /// C text of the number of iterations of an index. For an index with a smaller last tile it is a variable, set at each tile.
    pub fn count(&mut self, index: &str, count: i64) -> String {
        let name = count_name(index);
        match self.nest.tiles.iter().any(|t| t.index == index && t.is_ragged()) {
            true => name,
            false => self.given(name, count),
        }
    }

    /// Values of all symbols: sizes, dims and sizes of tiles.
    pub fn symbols(&self) -> Bindings {
        let tiles = self.nest.tiles.iter().map(|t| (Tile::symbol(&t.index), t.size));
        self.spec.dims.iter().chain(&self.spec.sizes).map(|(name, value)| (name.clone(), *value)).chain(tiles).collect()
    }

    pub fn is_block(&self, index: &str) -> bool {
        self.nest.block().is_some_and(|b| b.index == index)
    }

    pub fn unsupported(&self, what: String) -> KernelError {
        KernelError::Unsupported { kernel: self.spec.name.clone(), what }
    }

    pub fn tensor(&self, data: &str) -> Result<&'a NestTensor, KernelError> {
        self.nest.tensors.get(data).ok_or_else(|| KernelError::UnknownContainer { kernel: self.spec.name.clone(), data: data.to_string() })
    }

    pub fn identifier(&self, data: &str) -> String {
        self.identifiers.get(data).cloned().unwrap_or_else(|| mangled(data))
    }

    /// `left ⊕ right` of a combine over single values.
    pub fn combined(&self, combine: Combine, left: &str, right: &str) -> String {
        D::combined(combine, left, right)
    }
}

impl<D: TargetDialect> NamePrinter for Printer<'_, D> {
    fn symbol(&mut self, name: &str) -> String {
        if name == FIRST {
            return "first_lane".into();
        }
        let nest = self.nest;
        if nest.outer.iter().chain(nest.groups.iter().flat_map(|g| &g.loops)).any(|l| l.index == name) {
            return self.index(name);
        }
        if let Some(tile) = nest.tiles.iter().find(|t| Tile::symbol(&t.index) == name) {
            return self.given(format!("tile_{}", mangled(&tile.index)), tile.size);
        }
        let value = self.spec.sizes.get(name).or_else(|| self.spec.dims.get(name)).copied().unwrap_or(0);
        self.given(format!("size_{}", mangled(name)), value)
    }

    fn element(&mut self, data: &str, subscripts: &[Expr]) -> String {
        let element = Element { data: data.to_string(), subscripts: subscripts.to_vec(), fill: None };
        let is_floating = self.tensor(data).is_ok_and(|t| t.dtype.is_floating());
        match D::place(self, &element) {
            Ok(place) if is_floating => format!("({place} >= 0 && {place} < 9e15 ? (int64_t)({place}) : -1)"),
            Ok(place) => format!("(int64_t)({place})"),
            Err(_) => "(-1)".into(),
        }
    }

    fn input(&mut self, connector: &str) -> String {
        self.connectors.get(connector).cloned().unwrap_or_else(|| "0".into())
    }

    fn reciprocal(&mut self, connector: &str) -> Option<Reciprocal> {
        self.reciprocals.get(self.connectors.get(connector)?).cloned()
    }

    fn keep(&mut self, stream: &str, element: &Expr, rate: f64) -> String {
        let mask = self.mask(stream, rate);
        let row = self.rows.iter().find(|r| r.mask == mask && r.element == *element).map(|r| (r.lane.clone(), r.upper));
        let (lane, upper) = row.unwrap_or_else(|| {
            let keep = D::mask(mask);
            (format!("lane_of({keep}, {})", integer(element, self)), false)
        });
        let threshold = if upper { "upper" } else { "threshold" };
        format!("({lane} < {threshold}{mask} ? (real)0 : factor{mask})")
    }

    fn kept(&mut self, stream: &str, rate: f64) -> String {
        format!("factor{}", self.mask(stream, rate))
    }

    fn is_double(&self) -> bool {
        self.double
    }

    fn blends(&self, condition: &Scalar) -> bool {
        let mut uniform = D::BLENDS;
        condition.walk(&mut |s| {
            uniform &= match s {
                Scalar::Input(connector) => self.connectors.get(connector).is_some_and(|name| self.uniform.contains(name)),
                Scalar::Index(e) => !self.innermost.as_ref().is_some_and(|index| e.symbols().contains(index)) && !Expr::reads_elements(e),
                Scalar::Keep { .. } => false,
                _ => true,
            };
        });
        uniform
    }

    fn extreme(&self, sign: char, a: &str, b: &str, number: bool) -> String {
        D::extreme(sign, a, b, number)
    }
}
