//! Programs that convolve images, and the layouts in which these and their weights are held.
//!
//! Images are held with channels before the dims of space (NCHW), after them (NHWC), or in blocks of a vector (nChw16c); weights with
//! neighbours along either kind of channels. Other orders of so many dims never pay, and would make a space some hundred times as large.

use crate::kernel::KernelSpec;
use crate::processor::Block;
use crate::split_blocked_dims;
use sdfg::layout::Piece;
use sdfg::{Combine, Dtype, Expr, Layout, Memlet, Node, Op, Range, Sdfg, State, Storage};

/// Lanes of a vector of f32.
pub fn lanes() -> i64 {
    Block::native().vector as i64 / 4
}

/// Whether a program walks windows, or multiplies images by matrices, as convolutions by windows of one element do. What is read at another
/// time (`h[s-1]`), with a value outside, is no window, and neither is a row by its number (`e[ids[b,s],i]`). Only tensors in memory count as
/// images and matrices: a composed kernel holds a tile of attention's weights `a[h,b,j,k]` on chip with the two dims `j` and `k`, which is
/// no matrix that multiplies an image.
pub fn convolves(program: &Sdfg) -> bool {
    program.states().any(|(_, state)| state.nodes().any(|(id, vertex)| node_convolves(program, state, id, &vertex.node)))
}

fn node_convolves(program: &Sdfg, state: &State, id: sdfg::NodeId, node: &Node) -> bool {
    let several = |e: &Expr| !e.reads_elements() && e.symbols().iter().filter(|s| !program.sizes.contains_key(*s)).count() > 1;
    let is_image = |ranks: &[usize], out: usize| out >= 4 && ranks.contains(&2) && ranks.iter().any(|n| *n >= 4);
    match node {
        Node::Library(library) => {
            let ranks: Vec<usize> = library.inputs.iter().map(|port| port.subscripts.len()).collect();
            let out = library.outputs.first().map_or(0, |port| port.subscripts.len());
            let windows = library.inputs.iter().any(|port| port.subscripts.iter().any(several));
            windows || (matches!(library.op, Op::Contraction { .. }) && is_image(&ranks, out))
        }
        Node::Tasklet(_) => {
            let reads: Vec<_> = state.edges_in(id).into_iter().map(|(_, _, edge)| &edge.memlet).collect();
            let at = |range: &Range| matches!(range, Range::At(e) if several(e));
            let windows = reads.iter().any(|memlet| memlet.subset.len() > 2 && memlet.subset.iter().any(at));
            let ranks: Vec<usize> = reads.iter().map(|memlet| memlet.subset.len()).collect();
            let sums = || state.edges_out(id).iter().any(|(_, _, edge)| edge.memlet.wcr == Some(Combine::Sum));
            let on_heap = |memlet: &Memlet| program.containers.get(&memlet.data).is_some_and(|c| c.storage == Storage::Heap);
            windows || (reads.len() == 2 && is_image(&ranks, 4) && sums() && reads.iter().all(|memlet| on_heap(memlet)))
        }
        Node::Nested(nested) => convolves(&nested.program),
        _ => false,
    }
}

/// The layouts of a container of a program that convolves: plain ones with one of the first two dims innermost, and blocks of one of them.
/// Of fewer than three dims all orders.
pub fn layouts(spec: &KernelSpec, data: &str) -> Vec<Layout> {
    let Some(container) = spec.containers.get(data) else { return vec![] };
    let dims = &container.dims;
    if dims.len() < 3 {
        return Layout::permutations(dims);
    }
    let mut found = vec![Layout::of(dims)];
    let all: &[usize] = if dims.len() > 4 { &[1, 2, 0] } else { &[1, 0] };
    for own in all.iter().copied() {
        let mut last = dims.clone();
        let dim = last.remove(own);
        last.push(dim.clone());
        found.push(Layout::of(&last));
        let block = lanes();
        // Groups of channels are no blocks of them.
        let divides = || spec.size(&dim).is_ok_and(|n| n as i64 % block == 0) && split_blocked_dims::splits(spec, &dim, block as u32);
        if container.dtype == Dtype::F32 && divides() {
            let mut blocked = Layout::of(dims);
            blocked.pieces.push(Piece { dim, block: Some(block as u32) });
            found.push(blocked);
        }
    }
    found
}
