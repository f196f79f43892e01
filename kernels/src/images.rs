//! Programs that convolve images, and the layouts in which these and their weights are held.
//!
//! Images are held with channels before the dims of space (NCHW), after them (NHWC), or in blocks of a vector (nChw16c); weights with
//! neighbours along either kind of channels. Other orders of so many dims never pay, and would make a space some hundred times as large.

use crate::kernel::KernelSpec;
use crate::processor::PanelBlock;
use crate::split_blocked_dims;
use sdfg::layout::Piece;
use sdfg::{Dtype, Layout};

/// Lanes of a vector of f32.
pub fn lanes() -> i64 {
    PanelBlock::native().vector as i64 / 4
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
