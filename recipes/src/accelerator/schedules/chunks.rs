//! Chunks: one dense step whose input and output are both too large, in parts of its output channels and rows.
//!
//! Output-stationary: for some rows and some output channels, sums stay on chip while input and weights stream past, a few input channels
//! at a time. The input is loaded once for each part of the channels, the weights once for each strip of rows. With all rows in one strip
//! weights move once (weight-stationary); with all channels in one part the input does. A pool behind the step runs on the sums before
//! they leave, if no window of it crosses strips.

use super::super::shapes::Span;
use super::super::steps::{ChannelDependence, FusedSteps};
use super::Price;
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chunks {
    /// Output channels at a time.
    pub channels: usize,
    /// Strips of rows.
    pub strips: usize,
}

/// What a part of the step needs, which planner and generator of moves share.
pub struct ChunkedGroup<'a> {
    pub steps: &'a FusedSteps,
    pub group: Span,
}

impl ChunkedGroup<'_> {
    /// The group has a form that chunks can run: a dense step whose only reader may be a pool.
    pub fn fits(&self) -> bool {
        let of = &self.steps.steps[self.group.begin];
        let weights = of.filter / self.steps.tensors[of.output].shape.channels.max(1) as u64;
        let whole = weights.is_multiple_of(self.input_channels() as u64);
        if of.work != ChannelDependence::Dense || !whole || self.group.len() > 2 {
            return false;
        }
        if self.group.len() == 1 {
            return true;
        }
        let (pool, made) = (&self.steps.steps[self.group.begin + 1], &self.steps.tensors[of.output]);
        let plain =
            pool.work == ChannelDependence::Channelwise && pool.inputs == [of.output] && pool.sides.is_empty() && pool.weights() == 0;
        plain && made.readers == [self.group.begin + 1] && !made.result
    }

    pub fn input_channels(&self) -> usize {
        self.steps.steps[self.group.begin].inputs.iter().map(|t| self.steps.tensors[*t].shape.channels).sum()
    }

    /// By strip: rows of the input, of the dense step's output, and of the group's output. `None` if a pool's window crosses strips.
    pub fn rows(&self, strips: usize) -> Option<Vec<[Span; 3]>> {
        let dense = &self.steps.steps[self.group.begin];
        let last = &self.steps.steps[self.group.end - 1];
        let (input, made, result) =
            (self.steps.tensors[dense.inputs[0]].shape, self.steps.tensors[dense.output].shape, self.steps.tensors[last.output].shape);
        let mut found: Vec<[Span; 3]> = Vec::new();
        for strip in 0..strips {
            let out = Span::new(result.rows * strip / strips, result.rows * (strip + 1) / strips);
            let own = if self.group.len() == 1 { out } else { last.window.rows.deduce(out, made.rows) };
            if found.last().is_some_and(|[_, before, _]| before.end > own.begin) {
                return None;
            }
            found.push([dense.window.rows.deduce(own, input.rows), own, out]);
        }
        Some(found)
    }

    /// Elements on chip beside the sums, at most: an input channel with its weights, then a channel of what is added, of the pool's
    /// result and of the weights of each output channel.
    pub fn buffers(&self, rows: &[Span; 3], channels: usize) -> u64 {
        let dense = &self.steps.steps[self.group.begin];
        let (input, made) = (self.steps.tensors[dense.inputs[0]].shape, self.steps.tensors[dense.output].shape);
        let result = self.steps.tensors[self.steps.steps[self.group.end - 1].output].shape;
        let filter = dense.filter / made.channels as u64 / self.input_channels() as u64;
        let stream = (rows[0].len() * input.columns) as u64 + channels as u64 * filter;
        let sides = dense.sides.len().min(1) as u64 * (rows[1].len() * made.columns) as u64;
        let pooled = if self.group.len() == 1 { 0 } else { (rows[2].len() * result.columns) as u64 };
        stream.max(sides + pooled + dense.rest.div_ceil(made.channels as u64))
    }
}

/// Output channels at a time, and the elements that a group moves so.
pub fn price(part: &ChunkedGroup<'_>, strips: usize, capacity: u64) -> Option<(Price, Chunks)> {
    let dense = &part.steps.steps[part.group.begin];
    let (input, made) = (part.steps.tensors[dense.inputs[0]].shape, part.steps.tensors[dense.output].shape);
    let rows = part.rows(strips)?;
    let widest = rows.iter().max_by_key(|[i, o, _]| (o.len(), i.len()))?;
    let plane = (widest[1].len() * made.columns) as u64;
    let mut channels = made.channels.min((capacity / plane.max(1)) as usize);
    let fits = |channels: usize| rows.iter().all(|r| (r[1].len() * made.columns * channels) as u64 + part.buffers(r, channels) <= capacity);
    while channels > 0 && !fits(channels) {
        channels -= 1;
    }
    if channels == 0 {
        return None;
    }
    // Parts of equal size leave more room for what streams.
    let parts = made.channels.div_ceil(channels);
    let channels = made.channels.div_ceil(parts);
    let read: u64 = rows.iter().map(|[i, _, _]| (i.len() * input.columns * part.input_channels()) as u64).sum();
    let (given, leaving) = part.steps.boundary(part.group);
    let added: u64 = rows.iter().map(|[_, own, _]| (own.len() * made.columns * made.channels) as u64).sum();
    let sides = dense.sides.len() as u64 * added;
    debug_assert!(given.len() >= dense.inputs.len());
    let stored: u64 = leaving.iter().map(|t| part.steps.tensors[*t].shape.elements()).sum();
    let moved = parts as u64 * read + strips as u64 * dense.weights() + sides + stored;
    let flop = part.steps.steps[part.group.begin..part.group.end].iter().map(|s| s.flop).sum();
    Some((Price { moved, flop }, Chunks { channels, strips }))
}

/// The cheapest chunks of a group; `None` if it is no dense step with at most a pool behind it, or nothing fits.
pub fn best(steps: &FusedSteps, group: Span, capacity: u64) -> Option<(Price, Chunks)> {
    let part = ChunkedGroup { steps, group };
    if !part.fits() {
        return None;
    }
    let result = steps.tensors[steps.steps[group.end - 1].output].shape;
    (1..=result.rows.min(16)).filter_map(|strips| price(&part, strips, capacity)).min_by_key(|(price, c)| (*price, c.strips))
}
