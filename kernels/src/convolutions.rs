//! Which programs convolve images.

use sdfg::{Combine, Expr, Memlet, Node, Op, Range, Sdfg, State, Storage};

/// Whether a program walks windows, or multiplies images by matrices, as convolutions by windows of one element do. What is read at another
/// time (`h[s-1]`), with a value outside, is no window, and neither is a row by its number (`e[ids[b,s],i]`). Only tensors in memory count
/// as images and matrices: a composed kernel holds a tile of attention's weights `a[h,b,j,k]` on chip with the two dims `j` and `k`, which
/// is no matrix that multiplies an image.
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
