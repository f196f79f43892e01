//! Deep Fusion's own method (3.3, Fig. 6): layer after layer joins the group; if the group does not fit, its tile shrinks; if the smallest
//! tile does not fit, the group ends before the layer.
//!
//! The paper leaves open in which order layers come, how a tile shrinks, how small it may be, and where weights lie. Here layers come in
//! depth-first order, the longer of a tile's two sides is halved down to 8, all weights stay on chip while there are several tiles, and
//! those of one layer at a time while there is one. Whether traffic falls is not asked. A layer that fits in no tile runs alone under the
//! best of the planner's own schedules, which favours this method.

use super::layers::{LayerGraph, Reach, SlidingWindow};
use super::memory::{GroupBuffer, Pixels, deep_pair, packed};
use super::partition::best_of;
use super::schedules::Price;
use super::shapes::Span;
use super::steps::FusedSteps;
use serde::Serialize;

/// How layers of a group share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reuse {
    /// Every tensor has its own place.
    None,
    /// Tensors that are not alive together share places.
    Intuitive,
    /// An output also overwrites what its input no longer needs.
    Deep,
}

impl Reuse {
    pub fn name(self) -> &'static str {
        match self {
            Reuse::None => "none",
            Reuse::Intuitive => "intuitive",
            Reuse::Deep => "deep",
        }
    }
}

pub const REUSES: [Reuse; 3] = [Reuse::None, Reuse::Intuitive, Reuse::Deep];

/// The smallest side of a tile.
const SMALLEST: usize = 8;

/// A group of layers and its tile, in rows and columns of the last layer's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TiledGroup {
    pub layers: Span,
    pub tile: (usize, usize),
    pub price: Price,
}

/// The groups of a network under a form of reuse, for a memory of `bytes`; `None` if some layer runs under no schedule.
pub fn greedy(graph: &LayerGraph, reuse: Reuse, bytes: u64) -> Option<Vec<TiledGroup>> {
    let steps = FusedSteps::apart(graph);
    let mut groups = Vec::new();
    let mut begin = 0;
    while begin < steps.steps.len() {
        let mut fused: Option<TiledGroup> = None;
        let mut end = begin + 1;
        while end <= steps.steps.len() {
            let layers = Span::new(begin, end);
            let Some(tile) = shrunk(&steps, layers, reuse, bytes) else { break };
            fused = Some(TiledGroup { layers, tile, price: price(&steps, layers, tile) });
            end += 1;
        }
        let group = match fused {
            Some(fused) => fused,
            None => {
                let layers = Span::new(begin, begin + 1);
                let (mut price, _) = best_of(&steps, layers, bytes / steps.element_bytes)?;
                // The paper knows nothing of rows that a stride leaves out.
                price.moved = price.moved.max(steps.whole(begin));
                let shape = steps.tensors[steps.steps[begin].output].shape;
                TiledGroup { layers, tile: (shape.rows, shape.columns), price }
            }
        };
        begin = group.layers.end;
        groups.push(group);
    }
    Some(groups)
}

/// The first tile that fits as the longer side is halved.
fn shrunk(steps: &FusedSteps, layers: Span, reuse: Reuse, bytes: u64) -> Option<(usize, usize)> {
    let shape = steps.tensors[steps.steps[layers.end - 1].output].shape;
    let (mut rows, mut columns) = (shape.rows, shape.columns);
    loop {
        if fits(steps, layers, (rows, columns), reuse, bytes) {
            return Some((rows, columns));
        }
        let side = if rows >= columns { &mut rows } else { &mut columns };
        if *side <= SMALLEST {
            return None;
        }
        *side = side.div_ceil(2).max(SMALLEST);
    }
}

/// Along one dimension: by tensor, the ranges of all tiles.
fn ranges(steps: &FusedSteps, layers: Span, tiles: usize, rows: bool) -> Vec<Vec<Span>> {
    let (_, leaving) = steps.boundary(layers);
    let size = |t: usize| if rows { steps.tensors[t].shape.rows } else { steps.tensors[t].shape.columns };
    let mut found = vec![Vec::with_capacity(tiles); steps.tensors.len()];
    for tile in 0..tiles {
        let mut of = vec![Span::default(); steps.tensors.len()];
        for tensor in &leaving {
            of[*tensor] = Span::new(size(*tensor) * tile / tiles, size(*tensor) * (tile + 1) / tiles);
        }
        for step in steps.steps[layers.begin..layers.end].iter().rev() {
            let reach = if rows { step.window.rows } else { step.window.columns };
            let made = of[step.output];
            let through = step.inputs.iter().map(|t| (t, reach)).chain(step.sides.iter().map(|t| (t, Reach::POINT)));
            for (tensor, reach) in through {
                of[*tensor] = of[*tensor].hull(reach.deduce(made, size(*tensor)));
            }
        }
        found.iter_mut().zip(of).for_each(|(all, one)| all.push(one));
    }
    found
}

fn tiles(steps: &FusedSteps, layers: Span, tile: (usize, usize)) -> (usize, usize) {
    let shape = steps.tensors[steps.steps[layers.end - 1].output].shape;
    (shape.rows.div_ceil(tile.0), shape.columns.div_ceil(tile.1))
}

fn fits(steps: &FusedSteps, layers: Span, tile: (usize, usize), reuse: Reuse, bytes: u64) -> bool {
    let (down, across) = tiles(steps, layers, tile);
    let (rows, columns) = (ranges(steps, layers, down, true), ranges(steps, layers, across, false));
    let longest = |of: &[Span]| of.iter().map(|s| s.len()).max().unwrap_or(0);
    let pixels = |t: usize| Pixels { rows: longest(&rows[t]), columns: longest(&columns[t]), channels: steps.tensors[t].shape.channels };
    let (given, _) = steps.boundary(layers);
    let mut buffers = Vec::new();
    let lasts = |t: usize| {
        let inside = steps.tensors[t].readers.iter().filter(|r| layers.begin <= **r && **r < layers.end);
        inside.max().map_or(0, |r| r + 1)
    };
    for t in &given {
        let first = steps.tensors[*t].readers.iter().filter(|r| layers.begin <= **r).min().copied().unwrap_or(layers.begin);
        buffers.push((*t, GroupBuffer { elements: pixels(*t).elements(), life: Span::new(first, lasts(*t)) }));
    }
    for step in layers.begin..layers.end {
        let t = steps.steps[step].output;
        // A tile of a result is stored when it is complete.
        let end = lasts(t).max(step + 1);
        buffers.push((t, GroupBuffer { elements: pixels(t).elements(), life: Span::new(step, end) }));
    }
    let one = down * across == 1;
    let weights = (layers.begin..layers.end)
        .map(|step| GroupBuffer { elements: steps.steps[step].weights(), life: if one { Span::new(step, step + 1) } else { layers } });
    let weights: Vec<GroupBuffer> = weights.collect();
    let all: Vec<GroupBuffer> = buffers.iter().map(|(_, b)| *b).chain(weights.iter().copied()).collect();
    match reuse {
        Reuse::None => {
            let data: u64 = buffers.iter().map(|(_, b)| b.elements).sum();
            let held = weights.iter().map(|b| b.elements);
            (data + if one { held.max().unwrap_or(0) } else { held.sum() }) * steps.element_bytes <= bytes
        }
        Reuse::Intuitive => packed(&all, steps.element_bytes, bytes),
        Reuse::Deep => {
            let places: Vec<GroupBuffer> = shared(steps, layers, &buffers, &pixels).into_iter().chain(weights).collect();
            packed(&places, steps.element_bytes, bytes) || packed(&all, steps.element_bytes, bytes)
        }
    }
}

/// A place that grows by more than this share through an output that overwrites its input is not shared: it would be large for as long as
/// the smaller of both lives.
const GROWTH: f64 = 0.25;

/// Tensors of a group with those that are made in the place of another one as one buffer each.
///
/// A chain of tensors lies at the lower and at the upper end of its place in turns, and every other layer runs from its last point to its
/// first. So the place needs the most that any layer of the chain needs for its input and output.
fn shared(steps: &FusedSteps, layers: Span, buffers: &[(usize, GroupBuffer)], pixels: &dyn Fn(usize) -> Pixels) -> Vec<GroupBuffer> {
    let mut places: Vec<(usize, GroupBuffer)> = buffers.to_vec();
    for at in layers.begin..layers.end {
        let step = &steps.steps[at];
        let Some(new) = places.iter().position(|(t, _)| *t == step.output) else { continue };
        let output = pixels(step.output);
        let joined = |t: &usize| {
            let (old, (_, place)) = places.iter().enumerate().find(|(_, (last, b))| last == t && b.life.end == at + 1)?;
            let point = step.sides.contains(t);
            if !point && step.inputs.len() > 1 {
                return None;
            }
            let pair = deep_pair(pixels(*t), output, if point { SlidingWindow::POINT } else { step.window });
            let grown = pair.max(place.elements);
            let apart = place.elements.max(output.elements());
            (grown as f64 <= (1.0 + GROWTH) * apart as f64).then_some((grown, old))
        };
        if let Some((elements, old)) = step.inputs.iter().chain(&step.sides).filter_map(joined).min() {
            let life = places[old].1.life.hull(places[new].1.life);
            places[new].1 = GroupBuffer { elements, life };
            places.remove(old);
        }
    }
    places.into_iter().map(|(_, b)| b).collect()
}

/// Elements that a group moves in overlapping tiles, weights once.
fn price(steps: &FusedSteps, layers: Span, tile: (usize, usize)) -> Price {
    let (down, across) = tiles(steps, layers, tile);
    let (rows, columns) = (ranges(steps, layers, down, true), ranges(steps, layers, across, false));
    let all = |of: &[Span]| of.iter().map(|s| s.len() as u64).sum::<u64>();
    let (given, leaving) = steps.boundary(layers);
    let read = |t: &usize| all(&rows[*t]) * all(&columns[*t]) * steps.tensors[*t].shape.channels as u64;
    let of = &steps.steps[layers.begin..layers.end];
    let moved = given.iter().map(read).sum::<u64>()
        + leaving.iter().map(|t| steps.tensors[*t].shape.elements()).sum::<u64>()
        + of.iter().map(|s| s.weights()).sum::<u64>();
    let flop = of.iter().map(|s| s.flop / steps.tensors[s.output].shape.plane().max(1) * all(&rows[s.output]) * all(&columns[s.output]));
    Price { moved, flop: flop.sum() }
}
