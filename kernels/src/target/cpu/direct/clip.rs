//! Windows that leave the container of a factor: a product leaves out the steps of the depth that lie outside, where the factor is zero.
//!
//! A register block that reads nothing outside runs the plain micro-kernel. Along a dim in which the rows of a block move, the blocks at a
//! border have micro-kernels of their own, whose text lacks what lies outside. Along another dim all rows of a block leave alike: its
//! window begins later or ends earlier, and the micro-kernel is given how many steps are left.

use super::block_rows::{BlockRows, runs};
use super::clipped_dim::ClippedDim;
use super::micro::Clip;
use super::product_axis::ProductAxis;
use crate::emit::scalar::integer;
use crate::loopnest::{Element, LoopGroup, slope};
use crate::register_block::equal_blocks;
use crate::target::cpu::dialect::CPrinter;
use sdfg::Expr;
use std::collections::{BTreeMap, BTreeSet};

/// Steps of a window along a dim that micro-kernels at a border write out at most.
const MOST_STEPS: i64 = 7;

/// Register blocks along an axis whose windows leave a dim.
#[derive(Clone, Debug, PartialEq)]
pub struct ClippedBlocks {
    /// Positions of the windows of blocks that leave, in order.
    pub edges: Vec<i64>,
    /// Blocks that occur: rows, and the number of an edge from 1 on, or 0 of those that stay inside.
    pub blocks: Vec<(i64, usize)>,
}

impl CPrinter<'_> {
    /// The dims that the windows of a product leave, if the product can leave out what lies outside: a fill of zero, one index that moves
    /// the window and one that walks it, short windows.
    pub fn clipped(&self, element: &Element, group: &LoopGroup) -> Option<Vec<ClippedDim>> {
        let result = &group.statements.first()?.write;
        element.fill.filter(|bits| f64::from_bits(*bits) == 0.0)?;
        let shape = self.tensor(&element.data).ok()?.shape.clone();
        let mut dims = Vec::new();
        for (subscript, size) in element.subscripts.iter().zip(&shape) {
            let (low, high) = self.hull(element, subscript).ok()?;
            if low >= 0 && high < *size {
                continue;
            }
            let e = self.untiled(subscript);
            let (mut place, mut window) = (None, None);
            for index in e.symbols() {
                let Some(count) = self.whole_count(&index) else { continue };
                let step = slope(&e, &index)?.eval(&self.symbols()).ok()?;
                if step == 0 || self.nest.border(&index).is_some() || self.nest.first_made(&index).is_some() {
                    return None;
                }
                // What the group sums walks the window; all else is where the window is.
                let of_result = result.subscripts.iter().any(|s| self.untiled(s).symbols().contains(&index));
                let of_group = group.loops.iter().find(|l| l.index == index);
                let one = match of_group.filter(|_| !of_result) {
                    Some(summed) => summed.count == count && window.replace((index, step, count)).is_none(),
                    None => place.replace((index, step)).is_none(),
                };
                if !one {
                    return None;
                }
            }
            let zero: BTreeMap<String, Expr> =
                e.symbols().into_iter().filter(|i| self.whole_count(i).is_some()).map(|i| (i, Expr::Int(0))).collect();
            let first = e.substitute(&zero).eval(&self.symbols()).ok()?;
            let window = window.filter(|(.., count)| (2..=MOST_STEPS).contains(count))?;
            dims.push(ClippedDim { subscript: subscript.clone(), size: *size, first, place, window });
        }
        // One index moves or walks one window.
        let mut seen = BTreeSet::new();
        let mut is_new = |d: &ClippedDim| seen.insert(d.window.0.clone()) && d.place.iter().all(|(i, _)| seen.insert(i.clone()));
        dims.iter().all(&mut is_new).then_some(dims)
    }

    /// The blocks of at most `size` rows of an axis along which windows leave a dim.
    pub fn clipped_blocks(&self, dim: &ClippedDim, axis: &ProductAxis, size: i64) -> ClippedBlocks {
        let step = dim.place.as_ref().map_or(0, |(_, step)| *step);
        let tile = self.nest.tiles.iter().find(|t| axis.indices.contains(&t.index));
        let (of_tile, count) = tile.map_or((axis.most, axis.most), |t| (t.size, t.count));
        let (mut edges, mut found) = (Vec::new(), Vec::new());
        for start in (0..count).step_by(of_tile.max(1) as usize) {
            let iterations = of_tile.min(count - start);
            let mut next = 0;
            for rows in equal_blocks(iterations, size).into_iter().flat_map(|(rows, times)| (0..times).map(move |_| rows)) {
                let position = dim.first + step * (start + next);
                next += rows;
                let leaves = (0..rows).flat_map(|row| dim.inside(position, row)).any(|inside| !inside);
                if leaves && !edges.contains(&position) {
                    edges.push(position);
                }
                found.push((rows, position, leaves));
            }
        }
        edges.sort_unstable();
        let edge = |position: i64| edges.iter().position(|e| *e == position).map_or(0, |n| n + 1);
        let mut blocks: Vec<(i64, usize)> = found.into_iter().map(|(rows, at, leaves)| (rows, if leaves { edge(at) } else { 0 })).collect();
        blocks.sort_unstable_by_key(|(rows, edge)| (std::cmp::Reverse(*rows), *edge));
        blocks.dedup();
        ClippedBlocks { edges, blocks }
    }

    /// C of the position of a window: the subscript at the first iterations of the loops, and what loops around the micro-kernel add.
    pub fn window_position(&mut self, dim: &ClippedDim, first: &BTreeMap<String, Expr>, moved: &[String]) -> String {
        let at = dim.subscript.substitute(first);
        [format!("({})", integer(&at, self))].into_iter().chain(moved.iter().cloned()).collect::<Vec<_>>().join(" + ")
    }
}

/// How a loop over a window is clipped at an edge: written out along an axis of the block.
pub fn written_out(dim: &ClippedDim, blocks: &ClippedBlocks, edge: usize, rows: BlockRows, axis: usize) -> Clip {
    let Some(position) = edge.checked_sub(1).and_then(|n| blocks.edges.get(n)) else { return Clip::None };
    let at = |(_, a, b): (i64, i64, i64)| dim.inside(*position, [a, b][axis]);
    Clip::Rows(rows.each().into_iter().map(at).collect())
}

/// How a loop over a window is clipped for a run of places that begins at `first` along the first two axes of `rows`; `None` where nothing
/// lies outside.
pub fn clip_of_run(dim: &ClippedDim, rows: &[ProductAxis], first: [i64; 2], run: BlockRows) -> Option<Clip> {
    let axis = rows.iter().take(2).position(|axis| dim.is_placed_by(&axis.indices))?;
    let inside: Vec<Vec<bool>> = run.each().into_iter().map(|(_, a, b)| dim.inside(dim.first, first[axis] + [a, b][axis])).collect();
    inside.iter().flatten().any(|inside| !inside).then_some(Clip::Rows(inside))
}

/// How many micro-kernels the runs of at most `most` places have.
pub fn kinds_of_runs(dims: &[ClippedDim], rows: &[ProductAxis], most: i64) -> usize {
    let mut kinds = Vec::new();
    for (first, run) in runs([0, 1].map(|n| rows.get(n).map_or(1, |a| a.most)), most) {
        let kind = (run.each(), dims.iter().map(|dim| clip_of_run(dim, rows, first, run)).collect::<Vec<_>>());
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.len()
}
