//! The walk of a group through its strips and tiles: which rows and columns of every tensor each step loads, makes, stores and gives up.

use super::super::super::layers::{ImageShape, Reach, SlidingWindow};
use super::super::super::shapes::Span;
use super::super::super::steps::{ChannelDependence, FusedStep, FusedSteps};

/// What one step does in one strip of one tile.
pub struct Turn<'a> {
    pub step: usize,
    /// Whether nothing on chip is used any more: a tile begins, or a strip that finds no rows of the strip before. Steps that have nothing
    /// to make in a strip free nothing, so rows that only they read may still be there.
    pub afresh: bool,
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
    shape: Option<ImageShape>,
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
    pub(super) steps: &'a FusedSteps,
    pub(super) group: Span,
    states: Vec<State>,
    /// By step of the group: numbers of its inputs, sides and output among the states.
    reads: Vec<(Vec<usize>, Vec<usize>)>,
    pub(super) outputs: Vec<usize>,
    /// No step has run since what was on chip was given up.
    afresh: bool,
}

impl<'a> Walk<'a> {
    pub fn new(steps: &'a FusedSteps, group: Span) -> Walk<'a> {
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
        let step = |s: &FusedStep| (s.inputs.iter().map(number).collect(), s.sides.iter().map(number).collect());
        Walk {
            steps,
            group,
            reads: steps.steps[group.begin..group.end].iter().map(step).collect(),
            outputs: steps.steps[group.begin..group.end].iter().map(|s| number(&s.output)).collect(),
            states: tensors.iter().map(state).collect(),
            afresh: true,
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
    pub(super) fn begin_tile(&mut self, tile: usize, tiles: usize) {
        self.afresh = true;
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
    pub(super) fn begin_strip(&mut self, strip: usize, strips: usize, kept: bool) {
        self.afresh |= !kept;
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
            for (read, reach) in inputs.iter().map(|i| (i, window.rows)).chain(sides.iter().map(|s| (s, Reach::POINT))) {
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
            let reach = if of.inputs.contains(&state.tensor) { of.window.rows } else { Reach::POINT };
            reach.first_needed(next, output.last, usize::MAX)
        };
        state.readers.iter().map(reader).min().unwrap_or(usize::MAX)
    }

    pub(super) fn step(&mut self, step: usize, (strip, strips): (usize, usize), kept: bool, turn: &mut dyn FnMut(&Turn<'_>)) {
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
        let point = of.work == ChannelDependence::Channelwise && of.window == SlidingWindow::POINT;
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
        let made = &mut self.states[output];
        if passes {
            made.low = rows.end;
        } else if made.low > rows.begin {
            // Strides of its readers pass over its first rows.
            frees.push((made.tensor, made.low.min(rows.end)));
        }
        for read in reads {
            let needed = self.needed(&self.states[read], step, kept);
            let state = &mut self.states[read];
            if needed > state.low {
                state.low = needed.min(state.rows());
                frees.push((state.tensor, state.low));
            }
        }
        let afresh = std::mem::take(&mut self.afresh);
        turn(&Turn { step, afresh, loads: &loads, rows, columns, stored, passes, in_place, frees: &frees });
    }

    /// Elements on chip.
    pub(super) fn live(&self) -> u64 {
        self.states.iter().map(State::live).sum()
    }
}
