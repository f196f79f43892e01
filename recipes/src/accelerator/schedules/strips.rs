//! Strips: the group runs from top to bottom, some rows of its results at a time, in one or several tiles of columns.
//!
//! *Rows kept*: a strip finds the rows that it shares with the strip before on chip; nothing is computed or loaded twice but the columns
//! that neighbouring tiles share. A tensor keeps the rows that *new* rows of its readers need, `kernel − stride` of a plain chain, and
//! more where a shortcut waits for the main path. One row at a time with all weights resident is the line buffer of Alwani et al.
//!
//! *Overlapped*: each strip loads and computes all that it needs.
//!
//! Weights that do not fit beside the rows are loaded again for each strip and tile, some output channels at a time.

use super::super::layers::Shape;
use super::super::shapes::Span;
use super::super::steps::Steps;
use super::Price;
use serde::Serialize;

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

/// What one step does in one strip of one tile.
pub struct Turn<'a> {
    pub step: usize,
    /// Tensors, rows and columns that are loaded before.
    pub loads: &'a [(usize, Span, Span)],
    /// The rows and columns of the output that are made.
    pub rows: Span,
    pub columns: Span,
    /// The rows and columns of the output that are stored.
    pub stored: Option<(Span, Span)>,
    /// Whether the output is given up as soon as it is stored: channel by channel.
    pub passes: bool,
    /// The tensor whose elements the output takes the place of.
    pub in_place: Option<usize>,
    /// Tensors and the row below which nothing of them is needed any more.
    pub frees: &'a [(usize, usize)],
}

/// A tensor of the group while a tile runs.
#[derive(Clone, Default)]
struct State {
    tensor: usize,
    shape: Option<Shape>,
    /// Steps of the group that read it.
    readers: Vec<usize>,
    given: bool,
    leaving: bool,
    /// The columns of this tile, and those of them that this tile stores.
    columns: Span,
    own: Span,
    /// The row behind the last that is ever made.
    last: usize,
    /// This strip's rows: the first, and the one behind the last.
    begin: usize,
    end: usize,
    /// Rows on chip: from `low` to `made`.
    low: usize,
    made: usize,
}

impl State {
    fn live(&self) -> u64 {
        self.made.saturating_sub(self.low) as u64 * self.row()
    }

    /// Elements of a row of this tile.
    fn row(&self) -> u64 {
        self.columns.len() as u64 * self.shape.map_or(0, |s| s.channels as u64)
    }

    fn rows(&self) -> usize {
        self.shape.map_or(0, |s| s.rows)
    }
}

/// A group, ready to be walked.
pub struct Walk<'a> {
    steps: &'a Steps,
    group: Span,
    states: Vec<State>,
    /// By step of the group: numbers of its inputs, sides and output among the states.
    reads: Vec<(Vec<usize>, Vec<usize>)>,
    outputs: Vec<usize>,
}

impl<'a> Walk<'a> {
    pub fn new(steps: &'a Steps, group: Span) -> Walk<'a> {
        let (given, leaving) = steps.boundary(group);
        let own = steps.steps[group.begin..group.end].iter().map(|s| s.output);
        let tensors: Vec<usize> = given.iter().copied().chain(own).collect();
        let number = |tensor: &usize| tensors.iter().position(|t| t == tensor).unwrap_or(0);
        let state = |tensor: &usize| State {
            tensor: *tensor,
            shape: Some(steps.tensors[*tensor].shape),
            readers: steps.tensors[*tensor].readers.iter().copied().filter(|r| group.begin <= *r && *r < group.end).collect(),
            given: given.contains(tensor),
            leaving: leaving.contains(tensor),
            ..State::default()
        };
        let step = |s: &super::super::steps::Step| (s.inputs.iter().map(number).collect(), s.sides.iter().map(number).collect());
        Walk {
            steps,
            group,
            reads: steps.steps[group.begin..group.end].iter().map(step).collect(),
            outputs: steps.steps[group.begin..group.end].iter().map(|s| number(&s.output)).collect(),
            states: tensors.iter().map(state).collect(),
        }
    }

    /// The most rows among the results of the group.
    pub fn rows(&self) -> usize {
        self.states.iter().filter(|s| s.leaving).map(State::rows).max().unwrap_or(1)
    }

    pub fn columns(&self) -> usize {
        self.states.iter().filter(|s| s.leaving).filter_map(|s| s.shape).map(|s| s.columns).max().unwrap_or(1)
    }

    /// Calls `turn` for all that happens in the tiles and strips, in order.
    pub fn run(&mut self, strips: usize, tiles: usize, kept: bool, turn: &mut dyn FnMut(&Turn<'_>)) {
        for tile in 0..tiles {
            self.begin_tile(tile, tiles);
            for strip in 0..strips {
                self.begin_strip(strip, strips, kept);
                for step in 0..self.outputs.len() {
                    self.step(step, (strip, strips), kept, turn);
                }
            }
        }
    }

    /// The columns of every tensor in this tile, from the results to the inputs, and the last row that each needs.
    fn begin_tile(&mut self, tile: usize, tiles: usize) {
        for state in &mut self.states {
            let Some(shape) = state.shape else { continue };
            state.own = Span::new(shape.columns * tile / tiles, shape.columns * (tile + 1) / tiles);
            state.columns = if state.leaving { state.own } else { Span::default() };
            state.last = if state.leaving { shape.rows } else { 0 };
            (state.low, state.made) = (0, 0);
        }
        for step in (0..self.outputs.len()).rev() {
            let window = self.steps.steps[self.group.begin + step].window;
            let (columns, last) = (self.states[self.outputs[step]].columns, self.states[self.outputs[step]].last);
            let (inputs, sides) = &self.reads[step];
            for input in inputs {
                let state = &mut self.states[*input];
                let Some(shape) = state.shape else { continue };
                state.columns = state.columns.hull(window.columns.deduce(columns, shape.columns));
                state.last = state.last.max(window.rows.deduce(Span::new(0, last), shape.rows).end);
            }
            for side in sides {
                self.states[*side].columns = self.states[*side].columns.hull(columns);
                self.states[*side].last = self.states[*side].last.max(last);
            }
        }
    }

    /// The rows of every tensor in this strip.
    fn begin_strip(&mut self, strip: usize, strips: usize, kept: bool) {
        for state in &mut self.states {
            let rows = if state.leaving { state.rows() } else { 0 };
            (state.begin, state.end) = (rows * strip / strips, rows * (strip + 1) / strips);
            if !kept {
                (state.low, state.made) = (usize::MAX, 0);
            }
        }
        for step in (0..self.outputs.len()).rev() {
            let window = self.steps.steps[self.group.begin + step].window;
            let output = &self.states[self.outputs[step]];
            let made = if kept { output.made.min(output.end) } else { output.begin };
            let rows = Span::new(made, output.end);
            let (inputs, sides) = &self.reads[step];
            for (read, reach) in
                inputs.iter().map(|i| (i, window.rows)).chain(sides.iter().map(|s| (s, super::super::layers::Reach::POINT)))
            {
                let state = &mut self.states[*read];
                let needed = reach.deduce(rows, state.rows());
                let all = Span::new(state.begin, state.end).hull(needed);
                (state.begin, state.end) = (all.begin, all.end);
            }
        }
        for state in &mut self.states {
            if kept {
                state.end = state.end.max(state.made);
            } else {
                (state.low, state.made) = (state.begin, state.begin);
            }
        }
    }

    /// The first row of a tensor that is still needed once `step` has run in this strip.
    fn needed(&self, state: &State, step: usize, kept: bool) -> usize {
        let reader = |reader: &usize| {
            let at = reader - self.group.begin;
            let output = &self.states[self.outputs[at]];
            let next = match (at <= step, kept) {
                (true, true) => output.end,
                (true, false) => return usize::MAX,
                (false, _) => output.made,
            };
            let of = &self.steps.steps[*reader];
            let reach = if of.inputs.contains(&state.tensor) { of.window.rows } else { super::super::layers::Reach::POINT };
            reach.first_needed(next, output.last, usize::MAX)
        };
        state.readers.iter().map(reader).min().unwrap_or(usize::MAX)
    }

    fn step(&mut self, step: usize, (strip, strips): (usize, usize), kept: bool, turn: &mut dyn FnMut(&Turn<'_>)) {
        let output = self.outputs[step];
        let rows = Span::new(self.states[output].made, self.states[output].end);
        if rows.is_empty() {
            return;
        }
        let reads: Vec<usize> = self.reads[step].0.iter().chain(&self.reads[step].1).copied().collect();
        let mut loads = Vec::new();
        for read in &reads {
            let state = &mut self.states[*read];
            if state.given && state.made < state.end {
                let from = state.made.max(state.low);
                if from < state.end {
                    loads.push((state.tensor, Span::new(from, state.end), state.columns));
                }
                state.made = state.end;
            }
        }
        let state = &self.states[output];
        let passes = state.leaving && state.readers.is_empty();
        let of = &self.steps.steps[self.group.begin + step];
        let point = of.work == super::super::steps::Work::Channelwise && of.window == super::super::layers::Window::POINT;
        let candidates = self.reads[step].1.iter().chain(self.reads[step].0.iter().filter(|_| point));
        let takes = |read: &&usize| {
            let from = &self.states[**read];
            let free = self.needed(from, step, kept) >= rows.end && from.low <= rows.begin && from.made >= rows.end;
            !passes && free && from.columns == state.columns && from.shape == state.shape
        };
        let in_place = candidates.into_iter().find(takes).map(|read| self.states[*read].tensor);
        let share = |rows: Span| Span::new(state.rows() * strip / strips, state.rows() * (strip + 1) / strips).meet(rows);
        let stored = state
            .leaving
            .then(|| (if kept { rows } else { share(rows) }, state.own))
            .filter(|(rows, own)| !rows.is_empty() && !own.is_empty());
        let columns = state.columns;
        let mut frees = Vec::new();
        self.states[output].made = rows.end;
        if passes {
            self.states[output].low = rows.end;
        }
        for read in reads {
            let needed = self.needed(&self.states[read], step, kept);
            let state = &mut self.states[read];
            if needed > state.low {
                state.low = needed.min(state.rows());
                frees.push((state.tensor, state.low));
            }
        }
        turn(&Turn { step, loads: &loads, rows, columns, stored, passes, in_place, frees: &frees });
    }

    /// Elements on chip.
    fn live(&self) -> u64 {
        self.states.iter().map(State::live).sum()
    }
}

/// Elements of the rows that a group keeps on chip from strip to strip, with one row of results in each.
pub fn kept_rows(steps: &Steps, group: Span) -> u64 {
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
pub fn weights(steps: &Steps, group: Span, runs: &[u64], room: u64) -> Option<(Vec<usize>, u64)> {
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
pub fn best(steps: &Steps, group: Span, capacity: u64, limit: u64) -> Option<(Price, Strips)> {
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
