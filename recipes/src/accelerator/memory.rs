//! Reuse of on-chip memory within a group (Deep Fusion, 3.2): by lifetimes, and of an input while its output is made.

use super::layers::{Reach, SlidingWindow};
use super::shapes::Span;
use sdfg::lifetime::{self, LiveInterval};

/// Rows, columns and channels of a tensor or of a tile of it, as they lie in memory: all channels of a pixel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pixels {
    pub rows: usize,
    pub columns: usize,
    pub channels: usize,
}

impl Pixels {
    pub fn elements(self) -> u64 {
        (self.rows * self.columns * self.channels) as u64
    }
}

/// *Deep reuse*: how many elements the input must lie above the output so that no output overwrites an input that its own point or a later
/// one reads. Points run from the first row to the last, all channels of a point at once; all inputs of a point are read before it is
/// written.
///
/// It is the most, over all points, by which the elements written before the point exceed the place of the first input that this point or
/// a later one reads. Both are linear in the column between the borders, so three points of each row decide.
pub fn deep_offset(input: Pixels, output: Pixels, window: SlidingWindow) -> u64 {
    let place = |row: usize, column: usize| {
        let first = |reach: Reach, at: usize, size: usize| (at * reach.stride).saturating_sub(reach.pad).min(size.saturating_sub(1));
        (first(window.rows, row, input.rows) * input.columns + first(window.columns, column, input.columns)) * input.channels
    };
    let (mut most, mut later) = (0, usize::MAX);
    let inside = window.columns.pad.div_ceil(window.columns.stride.max(1));
    for row in (0..output.rows).rev() {
        // From the last column to the first; a later point may read an earlier input where padding is cut off.
        let mut columns = vec![output.columns.saturating_sub(1), inside.min(output.columns.saturating_sub(1)), 0];
        columns.dedup();
        for column in columns {
            later = later.min(place(row, column));
            let written = (row * output.columns + column) * output.channels;
            most = most.max(written.saturating_sub(later));
        }
    }
    most as u64
}

/// Elements that an input and its output need together under deep reuse.
pub fn deep_pair(input: Pixels, output: Pixels, window: SlidingWindow) -> u64 {
    (deep_offset(input, output, window) + input.elements()).max(output.elements())
}

/// A buffer of a group with the steps that it lives through, the first and the one behind the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupBuffer {
    pub elements: u64,
    pub life: Span,
}

/// The most elements that are alive at once.
pub fn most_alive(buffers: &[GroupBuffer]) -> u64 {
    let alive = |step: usize| buffers.iter().filter(|b| b.life.begin <= step && step < b.life.end).map(|b| b.elements).sum();
    buffers.iter().map(|b| alive(b.life.begin)).max().unwrap_or(0)
}

/// *Intuitive reuse*: whether a place for every buffer is found in a memory of `bytes` when buffers share places that are not alive
/// together.
pub fn packed(buffers: &[GroupBuffer], element_bytes: u64, bytes: u64) -> bool {
    if buffers.iter().map(|b| b.elements).sum::<u64>() * element_bytes <= bytes {
        return true;
    }
    if most_alive(buffers) * element_bytes > bytes {
        return false;
    }
    let interval = |(n, b): (usize, &GroupBuffer)| LiveInterval {
        data: format!("{n:04}"),
        bytes: b.elements * element_bytes,
        first: b.life.begin,
        last: b.life.end.saturating_sub(1),
    };
    let intervals: Vec<LiveInterval> = buffers.iter().enumerate().map(interval).collect();
    lifetime::plan(&intervals, &[]).peak_bytes <= bytes
}
