//! Strips: the group runs from top to bottom, some rows of its results at a time, in one or several tiles of columns.
//!
//! *Rows kept*: a strip finds the rows that it shares with the strip before on chip; nothing is computed or loaded twice but the columns
//! that neighbouring tiles share. A tensor keeps the rows that *new* rows of its readers need, `kernel − stride` of a plain chain, and
//! more where a shortcut waits for the main path. One row at a time with all weights resident is the line buffer of Alwani et al.
//!
//! *Overlapped*: each strip loads and computes all that it needs.
//!
//! Weights that do not fit beside the rows are loaded again for each strip and tile, some output channels at a time.

mod walk;

use super::super::shapes::Span;
use super::super::steps::FusedSteps;
use super::Price;
use serde::Serialize;
pub use walk::{Turn, Walk};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Strips {
    /// Strips from top to bottom.
    pub strips: usize,
    /// Tiles from left to right.
    pub tiles: usize,
    /// Whether strips find rows of the strip before on chip.
    pub kept: bool,
    /// By step of the group: output channels whose weights stay on chip.
    pub resident: Vec<usize>,
}

/// Elements of the rows that a group keeps on chip from strip to strip, with one row of results in each.
pub fn kept_rows(steps: &FusedSteps, group: Span) -> u64 {
    let mut walk = Walk::new(steps, group);
    let strips = walk.rows();
    walk.begin_tile(0, 1);
    let mut most = 0;
    for strip in 0..strips {
        walk.begin_strip(strip, strips, true);
        for step in 0..walk.outputs.len() {
            walk.step(step, (strip, strips), true, &mut |_| {});
        }
        most = most.max(walk.live());
    }
    most
}

/// What a group needs and moves besides weights.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    pub peak: u64,
    pub moved: u64,
    pub flop: u64,
    /// By step: how often it runs.
    pub runs: Vec<u64>,
}

/// Rows and traffic of a group in strips and tiles; `None` as soon as more than `capacity` elements are needed.
fn rows(walk: &mut Walk<'_>, shape: (usize, usize, bool), capacity: u64) -> Option<Rows> {
    let (strips, tiles, kept) = shape;
    let (steps, group) = (walk.steps, walk.group);
    let mut found = Rows { runs: vec![0; group.len()], ..Rows::default() };
    // The walk owns its state, so that the count of live elements follows the turns here.
    let size =
        |tensor: usize, rows: Span, columns: Span| rows.len() as u64 * columns.len() as u64 * steps.tensors[tensor].shape.channels as u64;
    for tile in 0..tiles {
        walk.begin_tile(tile, tiles);
        for strip in 0..strips {
            walk.begin_strip(strip, strips, kept);
            for step in 0..walk.outputs.len() {
                let before = walk.live();
                let mut peak = 0;
                let of = &steps.steps[group.begin + step];
                walk.step(step, (strip, strips), kept, &mut |turn| {
                    let loaded: u64 = turn.loads.iter().map(|(t, rows, columns)| size(*t, *rows, *columns)).sum();
                    let plane = turn.rows.len() as u64 * turn.columns.len() as u64;
                    let made = match (turn.passes, turn.in_place) {
                        (true, _) => plane,
                        (false, Some(_)) => 0,
                        (false, None) => size(of.output, turn.rows, turn.columns),
                    };
                    peak = before + loaded + made;
                    found.moved += loaded + turn.stored.map_or(0, |(rows, columns)| size(of.output, rows, columns));
                    found.flop += of.flop / steps.tensors[of.output].shape.plane().max(1) * plane;
                    found.runs[step] += 1;
                });
                found.peak = found.peak.max(peak);
                if found.peak > capacity {
                    return None;
                }
            }
        }
    }
    Some(found)
}

/// Output channels of each step whose weights stay on chip when `room` elements are left for weights, and the elements of weights that
/// move; `None` if not even one channel of some step fits.
pub fn weights(steps: &FusedSteps, group: Span, runs: &[u64], room: u64) -> Option<(Vec<usize>, u64)> {
    let of = &steps.steps[group.begin..group.end];
    let channels = |at: usize| steps.tensors[of[at].output].shape.channels;
    let all: u64 = of.iter().map(|s| s.weights()).sum();
    if all <= room {
        return Some(((0..of.len()).map(channels).collect(), all));
    }
    let each = |at: usize| of[at].weights().div_ceil(channels(at) as u64);
    let buffer = (0..of.len()).map(each).max().unwrap_or(0);
    let mut left = room.checked_sub(buffer)?;
    let mut resident = vec![0; of.len()];
    let mut order: Vec<usize> = (0..of.len()).filter(|at| of[*at].weights() > 0).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(runs[*at]), std::cmp::Reverse(each(*at)), *at));
    let mut moved = 0;
    for at in order {
        if runs[at] > 1 {
            resident[at] = ((left / each(at)) as usize).min(channels(at));
        }
        let held = if resident[at] == channels(at) { of[at].weights() } else { resident[at] as u64 * each(at) };
        left -= held.min(left);
        moved += held + runs[at] * (of[at].weights() - held.min(of[at].weights()));
    }
    Some((resident, moved))
}

/// The cheapest strips for a group; `None` if none fits or none moves less than `limit` elements.
pub fn best(steps: &FusedSteps, group: Span, capacity: u64, limit: u64) -> Option<(Price, Strips)> {
    let floor = steps.floor(group);
    // Weights beyond the memory are loaded in each strip and tile.
    let weights_again = steps.steps[group.begin..group.end].iter().map(|s| s.weights()).sum::<u64>().saturating_sub(capacity);
    let beaten = |times: usize, best: &Option<(Price, Strips)>| {
        floor + (times as u64 - 1) * weights_again >= best.as_ref().map_or(limit, |(price, _)| price.moved.min(limit))
    };
    if beaten(1, &None) {
        return None;
    }
    let mut walk = Walk::new(steps, group);
    let (rows_in_all, columns) = (walk.rows(), walk.columns());
    let mut best: Option<(Price, Strips)> = None;
    for tiles in [1, 2, 4].into_iter().filter(|t| *t == 1 || columns / t >= 7) {
        for kept in [true, false] {
            let mut before = 0;
            for each in [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 19, 28, 38, 56, 112, 224] {
                let strips = rows_in_all.div_ceil(each);
                if strips == before || (!kept && (strips == 1 || !matches!(each, 4 | 8 | 14 | 28))) {
                    continue;
                }
                before = strips;
                if beaten(strips * tiles, &best) {
                    continue;
                }
                // More rows need more memory.
                let Some(found) = rows(&mut walk, (strips, tiles, kept), capacity) else { break };
                let Some((resident, weights)) = weights(steps, group, &found.runs, capacity - found.peak) else { break };
                let price = Price { moved: found.moved + weights, flop: found.flop };
                if price.moved < limit && best.as_ref().is_none_or(|(least, _)| price < *least) {
                    best = Some((price, Strips { strips, tiles, kept, resident }));
                }
                if price.moved == floor || strips == 1 {
                    break;
                }
            }
        }
        if best.as_ref().is_some_and(|(price, _)| price.moved == floor) {
            break;
        }
    }
    best
}
