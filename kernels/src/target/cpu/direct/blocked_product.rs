//! A direct product divided into register blocks: which rows and vectors a micro-kernel has, what it sums, and what it asks for meanwhile.

use super::block_rows::{BlockRows, runs};
use super::clip::{ClippedBlocks, clip_of_run, kinds_of_runs, written_out};
use super::clipped_dim::ClippedDim;
use super::copies::PackedFactor;
use super::epilogue::{DirectEpilogue, Touched};
use super::micro::{Brought, Clip, DepthLoop, EpilogueStrides, MicroKernel, steps_of_round};
use super::next_rows::NextRows;
use super::product_axis::{ProductAxis, joined};
use super::roles::Roles;
use super::{DirectOperand, FAR, NEAR};
use crate::error::KernelError;
use crate::loopnest::Element;
use crate::register_block::{self, RegisterBlock};
use crate::target::cpu::dialect::CPrinter;
use sdfg::Scalar;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Bytes of a tensor that is in no second cache when a step comes to it: what other kernels touch has passed since.
const DISTANT: i64 = 256 << 10;
/// Most micro-kernels of runs of places: more of them take too long to compile.
const MOST_KINDS: usize = 16;
/// Most places of a picture that is divided into runs: where each begins is in the text.
const MOST_PLACES: i64 = 1024;

/// What a direct product multiplies and writes.
pub struct DirectProduct {
    pub operands: [DirectOperand; 2],
    /// The factor of vectors, where it is packed.
    pub packed: Option<PackedFactor>,
    /// The product's sums, and what the epilogue touches.
    pub results: Vec<Element>,
    /// Number of the tensor that is written, after the two factors.
    pub main: usize,
    pub scale: Scalar,
    pub epilogue: Option<DirectEpilogue>,
    /// Lanes of a vector.
    pub lanes: i64,
}

/// A run of places: where it begins along the first two axes of rows, and which micro-kernel it has.
pub struct PlacedRun {
    pub first: [i64; 2],
    pub rows: BlockRows,
    pub kind: usize,
}

/// A direct product in register blocks.
pub struct BlockedProduct {
    pub product: DirectProduct,
    /// Numbers of the factor of vectors and of the other one.
    pub v: usize,
    pub s: usize,
    pub lane: ProductAxis,
    both: bool,
    /// The axis that gives several vectors, where that of the lanes is one.
    pub beside: Option<ProductAxis>,
    pub across: Vec<ProductAxis>,
    pub rows: Vec<ProductAxis>,
    pub loops: Vec<ProductAxis>,
    /// Summed axes, and the same with those apart that are written out at the sides of an image.
    depth: Vec<ProductAxis>,
    pub edged: Vec<ProductAxis>,
    /// Vectors of a tile.
    pub vectors: i64,
    pub block: RegisterBlock,
    /// Dims that windows leave, with their blocks along an axis of rows, of a product in rectangles.
    pub clipped: Vec<(ClippedDim, Option<(usize, ClippedBlocks)>)>,
    pub runs: Vec<PlacedRun>,
    /// Whether vectors of the two factors may be read whole.
    whole: [bool; 2],
    /// Indices that move windows.
    windows: BTreeSet<String>,
    /// How many calls share what is asked for of the factor of vectors, if it comes from afar, and whether the other factor does.
    pub brings: Option<i64>,
    comes_from_afar: bool,
    brings_results: bool,
}

impl CPrinter<'_> {
    /// Divides a product into register blocks.
    ///
    /// # Errors
    /// Axes that are summed in tiles of different sizes; tensors that the nest does not have.
    pub(super) fn in_blocks(&self, product: DirectProduct, roles: Roles) -> Result<BlockedProduct, KernelError> {
        let Roles { lane, both, mut across, rows, loops, depth: summed, vectors: v } = roles;
        let Some(plan) = self.nest.gemm else { return Err(self.unsupported("it has no products".into())) };
        let (s, lanes, main, operands) = (1 - v, product.lanes, product.main, &product.operands);
        let clipped_dims = &operands[s].clipped;
        // Vectors along the lanes' axis, or, where that is one vector, along another one.
        across.sort_by_key(|a| (a.is_ragged(), Reverse(a.most)));
        let beside = if lane.most > lanes || across.is_empty() { None } else { Some(across.remove(0)) };
        let vectors = beside.as_ref().map_or((lane.most + lanes - 1) / lanes, |axis| axis.most);
        let (mut rows, loops) = (joined(rows, main), joined(loops, main));
        // Of axes of one length the one along which images are in one piece.
        rows.sort_by_key(|a| (a.is_ragged(), Reverse(a.most), a.stride(s).abs()));
        let picture = [0, 1].map(|n| rows.get(n).map_or(1, |a| a.most));
        let may_run = !both && picture[0] * picture[1] <= MOST_PLACES && self.may_have_runs(&rows, clipped_dims);
        let mut block = register_block::choose(plan.block, picture, vectors, may_run);
        if block.is_run && kinds_of_runs(clipped_dims, &rows, block.rows[0]) > MOST_KINDS {
            block = register_block::choose(plan.block, picture, vectors, false);
        }
        let clipped: Vec<(ClippedDim, Option<(usize, ClippedBlocks)>)> = clipped_dims
            .iter()
            .filter(|_| !block.is_run)
            .map(|dim| {
                let axis = (0..2).find(|n| block.rows[*n] > 1 && rows.get(*n).is_some_and(|a| dim.is_placed_by(&a.indices)));
                (dim.clone(), axis.map(|n| (n, self.clipped_blocks(dim, &rows[n], block.rows[n]))))
            })
            .collect();
        // Where nothing is left out, windows that are written out at the edges are loops like others.
        let by = if product.packed.is_none() && lane.stride(v) == 1 { v } else { s };
        let edged = joined(summed.clone(), by);
        let in_blocks = |axis: &ProductAxis| {
            let of_run = block.is_run && clipped_dims.iter().any(|dim| dim.moves_with(&axis.indices));
            of_run || clipped.iter().any(|(dim, blocks)| blocks.is_some() && dim.moves_with(&axis.indices))
        };
        let plain = |axis: ProductAxis| ProductAxis { is_alone: axis.is_alone && !in_blocks(&axis), ..axis };
        let depth = joined(summed.into_iter().map(plain).collect(), by);
        if let Some(ragged) = depth.iter().find(|d| d.is_ragged()) {
            return Err(self.unsupported(format!("`{}` is summed in tiles of different sizes", ragged.indices[0])));
        }
        let partial = lane.most % lanes != 0 || lane.last % lanes != 0;
        let copied = |t: usize| operands[t].is_copied() || (t == v && product.packed.is_some());
        let whole = [v, s].map(|t| !partial || copied(t) || self.has_room(&operands[t].element));
        // Indices that share a subscript with those of the rows move windows.
        let of_rows: BTreeSet<&String> = rows.iter().flat_map(|row| &row.indices).collect();
        let subscripts = operands[s].element.subscripts.iter().map(|e| self.untiled(e).symbols());
        let windows = subscripts.filter(|symbols| symbols.iter().any(|i| of_rows.contains(i))).flatten().collect();
        let is_distant = |element: &Element| Ok::<_, KernelError>(self.tensor(&element.data)?.shape.iter().product::<i64>() * 4 > DISTANT);
        let is_given = |element: &Element| self.is_given(&element.data);
        let vectors_are_distant = is_distant(&operands[v].element)?;
        let in_memory = product.packed.is_some() || (!operands[v].is_copied() && is_given(&operands[v].element));
        let comes_from_afar = !operands[s].is_copied() && is_given(&operands[s].element) && is_distant(&operands[s].element)?;
        let mut brings_results = false;
        for (n, element) in product.results.iter().enumerate().filter(|(n, _)| *n > 0 || product.epilogue.is_none()) {
            brings_results |= rows.iter().any(|row| row.stride(n + 2) != 0) && is_given(element) && is_distant(element)?;
        }
        let mut blocked = BlockedProduct {
            product,
            v,
            s,
            lane,
            both,
            beside,
            across,
            rows,
            loops,
            depth,
            edged,
            vectors,
            block,
            clipped,
            runs: Vec::new(),
            whole,
            windows,
            brings: None,
            comes_from_afar,
            brings_results,
        };
        if block.is_run {
            blocked.place_runs(picture);
        }
        if in_memory && !both && blocked.panel() > NEAR && vectors_are_distant {
            blocked.brings = Some(blocked.calls().min(steps_of_round(&blocked.steps())));
        }
        Ok(blocked)
    }

    /// Whether a product may be divided into runs of places: which of them lie at the sides of an image must be known, and so where all
    /// are.
    fn may_have_runs(&self, rows: &[ProductAxis], clipped: &[ClippedDim]) -> bool {
        let is_whole = |axis: &ProductAxis| {
            let is_clipped = clipped.iter().any(|dim| dim.is_placed_by(&axis.indices));
            !axis.is_ragged() && (!is_clipped || axis.indices.iter().all(|i| self.whole_count(i) == Some(axis.most)))
        };
        let is_placed = |dim: &ClippedDim| rows.iter().take(2).any(|axis| dim.is_placed_by(&axis.indices));
        rows.len() > 1 && rows[..2].iter().all(is_whole) && clipped.iter().all(is_placed)
    }
}

impl BlockedProduct {
    /// The runs that a picture is divided into. Those alike in their rows and in what lies outside have a micro-kernel in common.
    fn place_runs(&mut self, picture: [i64; 2]) {
        let mut kinds: Vec<(Vec<_>, Vec<DepthLoop>)> = Vec::new();
        for (first, rows) in runs(picture, self.block.rows[0]) {
            let own = (rows.each(), self.depth_of_run(first, rows));
            let kind = kinds.iter().position(|kind| *kind == own).unwrap_or_else(|| {
                kinds.push(own);
                kinds.len() - 1
            });
            self.runs.push(PlacedRun { first, rows, kind });
        }
    }

    /// Elements between vectors in a tensor: a factor, the result, or what the epilogue touches.
    pub fn apart(&self, t: usize) -> i64 {
        match (&self.beside, &self.product.packed) {
            (Some(axis), _) => axis.stride(t),
            (None, Some(packed)) if t == self.v => packed.apart,
            (None, _) => self.product.lanes * self.lane.stride(t),
        }
    }

    /// Elements between rows of a block along its two axes.
    fn between_rows(&self, t: usize) -> [i64; 2] {
        [0, 1].map(|n| self.rows.get(n).map_or(0, |a| a.stride(t)))
    }

    fn loop_of(&self, axis: &ProductAxis, clip: Clip) -> DepthLoop {
        DepthLoop { count: axis.most, strides: [axis.stride(self.v), axis.stride(self.s)], clip }
    }

    /// The number of the clipped dim whose windows an axis walks, where all rows of a block leave it alike.
    pub fn counted(&self, axis: &ProductAxis) -> Option<usize> {
        self.clipped.iter().position(|(dim, blocks)| blocks.is_none() && dim.is_walked_by(&axis.indices))
    }

    fn unclipped(&self, axis: &ProductAxis) -> Clip {
        if self.counted(axis).is_some() { Clip::Counted } else { Clip::None }
    }

    /// The depth of blocks of which no row leaves an image by itself.
    pub fn steps(&self) -> Vec<DepthLoop> {
        self.depth.iter().map(|d| self.loop_of(d, self.unclipped(d))).collect()
    }

    /// The depth of blocks at these edges along their axes.
    fn depth_at(&self, edges: [usize; 2], height: [i64; 2]) -> Vec<DepthLoop> {
        if edges == [0, 0] {
            return self.steps();
        }
        let clip = |d: &ProductAxis| match self.clipped.iter().find(|(dim, _)| dim.is_walked_by(&d.indices)) {
            Some((dim, Some((axis, blocks)))) => written_out(dim, blocks, edges[*axis], BlockRows::Rectangle(height), *axis),
            _ => self.unclipped(d),
        };
        self.edged.iter().map(|d| self.loop_of(d, clip(d))).collect()
    }

    /// The depth of a run that begins at these places.
    fn depth_of_run(&self, first: [i64; 2], run: BlockRows) -> Vec<DepthLoop> {
        let dims = self.product.operands[self.s].clipped.iter();
        let clips: Vec<(&ClippedDim, Clip)> = dims.filter_map(|dim| Some((dim, clip_of_run(dim, &self.rows, first, run)?))).collect();
        if clips.is_empty() {
            return self.steps();
        }
        let walked_by = |d: &ProductAxis| clips.iter().find(|(dim, _)| dim.is_walked_by(&d.indices));
        self.edged.iter().map(|d| self.loop_of(d, walked_by(d).map_or(Clip::None, |(_, clip)| clip.clone()))).collect()
    }

    /// Bytes of the vectors that a micro-kernel reads.
    fn panel(&self) -> i64 {
        self.depth.iter().map(|d| d.most).product::<i64>() * self.product.lanes * 4 * self.block.vectors
    }

    /// Whether the vectors of a tile are walked around its rows, or within them.
    pub fn vectors_are_outside(&self) -> bool {
        let panel = self.panel();
        panel <= NEAR || panel * (self.vectors + self.block.vectors - 1) / self.block.vectors > FAR
    }

    /// The blocks of rows that one panel of vectors meets: they ask for the next panel together, each for vectors of other steps.
    fn calls(&self) -> i64 {
        let of_axis = |n: usize| self.rows.get(n).map_or(1, |a| (a.most + self.block.rows[n] - 1) / self.block.rows[n]);
        let of_picture = if self.block.is_run { self.runs.len() as i64 } else { of_axis(0) * of_axis(1) };
        of_picture * self.rows.iter().skip(2).map(|a| a.most).product::<i64>()
    }

    /// The micro-kernel of a rectangle of `height` rows at these edges, and of so many vectors.
    pub fn of_rectangle(&self, height: [i64; 2], edges: [usize; 2], vectors: i64) -> MicroKernel {
        self.micro_kernel(BlockRows::Rectangle(height), self.depth_at(edges, height), height, vectors)
    }

    /// The micro-kernel of a run, and of so many vectors.
    pub fn of_run(&self, run: &PlacedRun, vectors: i64) -> MicroKernel {
        self.micro_kernel(run.rows, self.depth_of_run(run.first, run.rows), [run.rows.count(), 1], vectors)
    }

    fn micro_kernel(&self, rows: BlockRows, depth: Vec<DepthLoop>, height: [i64; 2], vectors: i64) -> MicroKernel {
        let (v, s) = (self.v, self.s);
        let is_window = |axis: &ProductAxis| axis.indices.iter().any(|i| self.windows.contains(i));
        let next = match self.comes_from_afar {
            true => NextRows::of(s, height, &self.rows, &self.edged, is_window),
            false => NextRows::default(),
        };
        let place = |(n, touched): (usize, &Touched)| EpilogueStrides {
            rows: self.between_rows(n + 3),
            vector: self.apart(n + 3),
            lane: self.lane.stride(n + 3),
            is_written: touched.is_written,
        };
        let epilogue = self.product.epilogue.as_ref();
        MicroKernel {
            lanes: self.product.lanes,
            vectors,
            rows,
            depth,
            vector: [self.apart(v), self.lane.stride(v)],
            row: self.between_rows(s),
            whole: self.whole,
            other: self.both.then(|| [self.apart(s), self.lane.stride(s)]),
            out_rows: self.between_rows(2),
            out: [self.apart(2), self.lane.stride(2)],
            last_is_partial: self.beside.is_none(),
            epilogue: epilogue.map(|e| (e.text.clone(), e.touched.iter().enumerate().map(place).collect())),
            brings: self.brings.map(|every| Brought { vectors, every }),
            next,
            brings_results: self.brings_results,
        }
    }
}
