//! The loop-nest form: what a scope becomes once order, vector dim and places of intermediates are chosen.
//!
//! A nest runs its outer loops as one flattened range that the cores share; for each point of it, the groups run one after
//! another. All loops start at 0 and step by 1: other bounds have been folded into the subscripts.

pub mod matmul_pattern;
pub mod partition;
pub mod streaming;
mod strip;

use crate::processor::PanelBlock;
use indexmap::IndexMap;
use sdfg::{Combine, Dtype, Expr, Scalar};
pub use strip::{KeptRows, Strip};

/// How the iterations of a loop are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Part of the range that the cores share.
    Core,
    /// Like `Core`, but in blocks; the vector loop inside runs within one block.
    Block,
    /// Innermost, in vector registers.
    Vector,
    Sequential,
    /// The steps of a [`Strip`], which one worker walks in order: each finds rows that the one before has kept.
    Step,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForLoop {
    pub index: String,
    pub tag: Tag,
    /// Iterations at the sizes of the spec.
    pub count: i64,
    /// Name of the map that it comes from.
    pub map: String,
}

/// How rows of a tile lie in memory that has banks, each of which serves one access at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BankedRows {
    /// Banks, of one element each.
    pub banks: i64,
    /// Elements between rows that would otherwise begin in the same bank.
    pub gap: i64,
}

impl BankedRows {
    /// Elements from one row to the next.
    pub fn row(self, elements: i64) -> i64 {
        if elements % self.banks == 0 { elements + self.gap } else { elements }
    }
}

/// Where the elements of a container are while the nest runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemorySpace {
    /// Argument number, and the container that has the storage.
    Heap { argument: usize, root: String },
    /// Memory of one worker, used anew at each point of the outer range.
    Local,
    /// Memory of one worker that lasts through the sequential outer loops of a point: sums that only become whole there.
    Kept,
    /// One copy for each worker, combined at the end into the heap container.
    Private { combine: Combine },
}

/// A container as the nest sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct NestTensor {
    pub space: MemorySpace,
    pub dtype: Dtype,
    /// Extents at the sizes of the spec.
    pub shape: Vec<i64>,
    /// Whether it must be held in memory: something else than the statements of one group reads it.
    pub stored: bool,
}

/// One element of a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    pub data: String,
    pub subscripts: Vec<Expr>,
    /// Bits of the value outside the container.
    pub fill: Option<u64>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct NestStatement {
    pub name: String,
    pub code: Scalar,
    pub reads: Vec<(String, Element)>,
    pub write: Element,
    pub combine: Option<Combine>,
}

/// Loops from outer to inner around statements that run together.
#[derive(Clone, Debug, PartialEq)]
pub struct LoopGroup {
    pub loops: Vec<ForLoop>,
    pub statements: Vec<NestStatement>,
    /// Whether it is one sum of products, run as matrix products of the whole group.
    pub is_gemm: bool,
    /// Whether it waits for the last iteration of the sequential outer loops: what they add up is whole then.
    pub last: bool,
}

/// An outer index that is walked tile by tile: a loop over tiles outside, a loop within the tile in every group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    pub index: String,
    /// Name of the loop over tiles.
    pub outer: String,
    /// Iterations of a whole tile, and of the index.
    pub size: i64,
    pub count: i64,
}

impl Tile {
    /// The symbol of its size.
    pub fn symbol(index: &str) -> String {
        format!("{index}.size")
    }

    /// Whether the last tile is smaller than the others.
    pub fn is_ragged(&self) -> bool {
        self.count % self.size != 0
    }
}

/// A dim of a window that may leave the picture: there the window holds the fill.
#[derive(Clone, Debug, PartialEq)]
pub struct Border {
    pub data: String,
    pub dim: usize,
    /// The index that walks the window.
    pub index: String,
    /// Where the window begins, and the elements of the picture.
    pub start: Expr,
    pub size: i64,
    /// Bits of the fill.
    pub fill: u64,
}

impl Border {
    /// Elements of a window of `extent` before the picture, and how many lie inside.
    pub fn inside(&self, extent: i64) -> (Expr, Expr) {
        let before = (Expr::Int(0) - self.start.clone()).max(Expr::Int(0)).min(Expr::Int(extent));
        let end = (Expr::Int(self.size) - self.start.clone()).min(Expr::Int(extent)).max(Expr::Int(0));
        (before.clone(), (end - before).max(Expr::Int(0)))
    }
}

/// How matrix products are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemmPlan {
    pub block: PanelBlock,
    /// Most steps of the depth that are packed at once.
    pub depth: i64,
    /// Whether any of their factors is bf16.
    pub narrow: bool,
    /// Whether factors that are both bf16 are multiplied as pairs, where the processor does that in one instruction. Else they are
    /// widened as they are packed.
    pub pairs: bool,
    /// Columns are the side along which results are not neighbours: the other factor is then read where it lies, its rows as long
    /// as the depth, and only results are turned.
    pub across: bool,
    /// Whether factors in memory are read where they lie, without packing panels: what products over windows always do on cores.
    pub direct: bool,
    /// Whether factors in a tile's memory are read where they lie, too.
    pub layers: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LoopNest {
    pub name: String,
    /// From outer to inner; at most one is a `Block`. Those that are `Sequential` or a `Step` come last: they run within one point.
    pub outer: Vec<ForLoop>,
    /// Outer indices that are walked in tiles.
    pub tiles: Vec<Tile>,
    /// How matrix products are run, if there are any.
    pub gemm: Option<GemmPlan>,
    /// The indices along which vectors run: in each group the first of them that it has.
    pub vectors: Vec<String>,
    /// Iterations of a block.
    pub lanes: i64,
    pub groups: Vec<LoopGroup>,
    pub tensors: IndexMap<String, NestTensor>,
    /// Locals that have the memory of another one: that one.
    pub reuses: IndexMap<String, String>,
    /// Windows whose parts outside the picture are filled once they are made; products compute what lies inside.
    pub borders: Vec<Border>,
    /// Steps that keep rows of intermediate results for one another.
    pub strip: Option<Strip>,
    /// Lines about where the kernel comes from.
    pub about: Vec<String>,
}

impl LoopNest {
    /// Whether a group of products reads its factors where they lie.
    pub fn is_direct(&self, group: &LoopGroup) -> bool {
        let reads = || group.statements.iter().flat_map(|s| &s.reads).map(|(_, e)| e);
        let heap = |e: &Element| matches!(self.tensors.get(&e.data).map(|t| &t.space), Some(MemorySpace::Heap { .. }));
        let near = |e: &Element| {
            self.gemm.is_some_and(|plan| plan.layers) && self.tensors.get(&e.data).is_some_and(|t| t.space == MemorySpace::Local)
        };
        let whole = |e: &Element| self.tensors.get(&e.data).is_some_and(|t| matches!(t.dtype, Dtype::F32 | Dtype::F64));
        self.gemm.is_some_and(|plan| plan.direct) && group.is_gemm && reads().all(|e| (heap(e) || near(e) || e.fill.is_none()) && whole(e))
    }

    /// The border of an index in a group of products: those of one index are at the same places.
    pub fn border(&self, index: &str) -> Option<&Border> {
        self.borders.iter().find(|b| b.index == index)
    }

    /// The first row that a step makes along an index, if earlier steps have made some.
    pub fn first_made(&self, index: &str) -> Option<Expr> {
        self.strip.as_ref()?.first_made(index)
    }

    /// The first iteration of a loop that is made, and how many are, of a window that leaves the picture or whose first rows an earlier
    /// step has kept. `None` where all of them are.
    pub fn made(&self, index: &str, count: i64) -> Option<(Expr, Expr)> {
        let inside = self.border(index).map(|border| border.inside(count));
        let Some(first) = self.first_made(index) else { return inside };
        let Some((before, inside)) = inside else { return Some((first.clone(), Expr::Int(count) - first)) };
        let from = before.clone().max(first);
        Some((from.clone(), (before + inside - from).max(Expr::Int(0))))
    }

    /// Whether rows of a local container stay from one step to the next: some layers are read again only where they are made.
    pub fn keeps_rows(&self, data: &str) -> bool {
        self.strip.as_ref().is_some_and(|strip| strip.rows.iter().any(|rows| rows.data == data && rows.first < rows.count))
    }

    /// Whether a loop does nothing but divide another one: no subscript has its index.
    pub fn divides_steps(&self, index: &str) -> bool {
        self.strip.as_ref().is_some_and(|strip| strip.strips == index)
    }

    /// The blocked outer index, if vectors run along an outer index.
    pub fn block(&self) -> Option<&ForLoop> {
        self.outer.iter().find(|l| l.tag == Tag::Block)
    }

    /// The outer loops whose points the cores share.
    pub fn shared(&self) -> impl DoubleEndedIterator<Item = &ForLoop> + Clone {
        self.outer.iter().filter(|l| !matches!(l.tag, Tag::Sequential | Tag::Step))
    }

    /// The outer loops that run within one point.
    pub fn sequential(&self) -> impl DoubleEndedIterator<Item = &ForLoop> + Clone {
        self.outer.iter().filter(|l| l.tag == Tag::Sequential)
    }

    /// The dim of a container that the vector index runs along where it is written.
    pub fn vector_dim(&self, data: &str) -> Option<usize> {
        let writer = self.groups.iter().flat_map(|g| &g.statements).find(|s| s.write.data == data)?;
        self.vectors.iter().find_map(|v| writer.write.subscripts.iter().position(|s| s.as_sym() == Some(v)))
    }

    /// Points of the flattened outer range.
    pub fn points(&self) -> i64 {
        self.shared().map(|l| self.steps(l)).product()
    }

    /// Iterations of an outer loop: blocks count as one.
    pub fn steps(&self, outer: &ForLoop) -> i64 {
        if outer.tag == Tag::Block { (outer.count + self.lanes - 1) / self.lanes } else { outer.count }
    }

    /// Whether a container is held for each lane of a block.
    pub fn per_lane(&self, tensor: &NestTensor) -> bool {
        tensor.space == MemorySpace::Local && self.block().is_some()
    }
}

/// The factor of `index` in an expression that is linear in it.
pub fn slope(e: &Expr, index: &str) -> Option<Expr> {
    match e {
        _ if !e.symbols().contains(index) => Some(Expr::Int(0)),
        Expr::Sym(_) => Some(Expr::Int(1)),
        Expr::Add(a, b) => Some(slope(a, index)? + slope(b, index)?),
        Expr::Sub(a, b) => Some(slope(a, index)? - slope(b, index)?),
        Expr::Mul(a, b) if !a.symbols().contains(index) => Some(a.as_ref().clone() * slope(b, index)?),
        Expr::Mul(a, b) if !b.symbols().contains(index) => Some(slope(a, index)? * b.as_ref().clone()),
        _ => None,
    }
}

impl LoopGroup {
    /// Whether an index walks the lanes of vectors.
    pub(crate) fn is_lane(&self, index: &str) -> bool {
        self.loops.last().is_some_and(|l| l.index == index && l.tag == Tag::Vector)
    }
}
