//! Maps: step after step on whole maps, weights streamed once, and what does not fit parked outside for as long as it must.
//!
//! A step holds either all of its inputs and makes its output channel by channel, or all sums of its output while its inputs pass channel
//! by channel. So a step needs the smaller side whole, and of everything else as many channels as there is room for. Between two of its
//! uses a tensor keeps some of its channels on chip; the others are stored once and loaded for the next use. Which tensors give up
//! channels is decided step by step: first those that are moved anyway, then those whose next use is furthest away.

use super::super::shapes::Span;
use super::super::steps::{ChannelDependence, FusedSteps};
use super::Price;
use serde::Serialize;

/// How a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepDataflow {
    /// All inputs on chip, the output channel by channel.
    InputsWhole,
    /// All sums on chip, the inputs channel by channel.
    OutputWhole,
    /// Inputs and output channel by channel.
    Channels,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Maps {
    /// By step of the group.
    pub modes: Vec<StepDataflow>,
    /// The times between two uses of a tensor.
    pub gaps: Vec<Gap>,
}

/// The time between two uses of a tensor, and how many of its channels, from the first, stay on chip.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gap {
    pub tensor: usize,
    /// The step that makes or uses it before, and the next that uses it; numbers in the network.
    pub from: usize,
    pub to: usize,
    pub kept: usize,
}

/// What one channel costs when it is not kept, and the memory of steps, for one group.
struct Pager<'a> {
    steps: &'a FusedSteps,
    group: Span,
    capacity: u64,
    modes: Vec<StepDataflow>,
    gaps: Vec<Gap>,
    /// By step: gaps that pass by.
    passing: Vec<Vec<usize>>,
    /// By step: what its memory is made of.
    needs: Vec<Need>,
    /// By gap: the tensor is stored anyway, because it leaves or was given.
    stored: Vec<bool>,
    /// By gap: other gaps of the same tensor.
    same: Vec<Vec<usize>>,
}

/// A tensor at a step: its place among the channels of all inputs, its channels, its gaps before and after, elements of a channel.
struct Use {
    first: usize,
    channels: usize,
    before: Option<usize>,
    after: Option<usize>,
    plane: u64,
}

/// What the memory of a step is made of.
struct Need {
    inputs: Vec<Use>,
    sides: Vec<Use>,
    output: Use,
    /// Elements of all inputs, and of the output.
    whole: (u64, u64),
    buffers: u64,
}

/// Channels on chip of a tensor whose channels are used one after the other, when `done` of them were: those kept before that are still
/// to come, and those that are kept afterwards.
fn part_way(done: usize, before: usize, after: usize) -> u64 {
    (before.saturating_sub(done) + done.min(after)) as u64
}

impl<'a> Pager<'a> {
    fn new(steps: &'a FusedSteps, group: Span, capacity: u64) -> Option<Pager<'a>> {
        let modes = (group.begin..group.end).map(|step| mode(steps, step, capacity)).collect::<Option<Vec<StepDataflow>>>()?;
        let (_, leaving) = steps.boundary(group);
        let mut gaps = Vec::new();
        let mut stored = Vec::new();
        let mut tensors: Vec<usize> = Vec::new();
        for step in &steps.steps[group.begin..group.end] {
            for tensor in step.inputs.iter().chain(&step.sides).chain([&step.output]) {
                if !tensors.contains(tensor) {
                    tensors.push(*tensor);
                }
            }
        }
        for tensor in tensors {
            let of = &steps.tensors[tensor];
            let inside = |step: &usize| group.begin <= *step && *step < group.end;
            let mut uses: Vec<usize> = of.producer.into_iter().chain(of.readers.iter().copied()).filter(inside).collect();
            uses.dedup();
            for pair in uses.windows(2) {
                gaps.push(Gap { tensor, from: pair[0], to: pair[1], kept: of.shape.channels });
                stored.push(leaving.contains(&tensor) || !of.producer.as_ref().is_some_and(inside));
            }
        }
        let passes = |g: &Gap, s: usize| g.from < s && s < g.to;
        let passing = (group.begin..group.end).map(|s| (0..gaps.len()).filter(|g| passes(&gaps[*g], s)).collect()).collect();
        let same = (0..gaps.len()).map(|g| (0..gaps.len()).filter(|o| *o != g && gaps[*o].tensor == gaps[g].tensor).collect()).collect();
        let needs = (group.begin..group.end).map(|s| Need::of(steps, s, &gaps, modes[s - group.begin])).collect();
        Some(Pager { steps, group, capacity, modes, gaps, passing, needs, stored, same })
    }

    fn plane(&self, tensor: usize) -> u64 {
        self.steps.tensors[tensor].shape.plane()
    }

    fn channels(&self, tensor: usize) -> usize {
        self.steps.tensors[tensor].shape.channels
    }

    fn kept(&self, gap: Option<usize>) -> usize {
        gap.map_or(0, |g| self.gaps[g].kept)
    }

    /// Elements of a use on chip when `done` channels have passed.
    fn part_way(&self, of: &Use, done: usize) -> u64 {
        part_way(done.saturating_sub(of.first).min(of.channels), self.kept(of.before), self.kept(of.after)) * of.plane
    }

    /// The most over all numbers of channels that have passed: between the ends of what is kept it changes evenly.
    fn most(&self, uses: &[&[Use]]) -> u64 {
        let all = || uses.iter().flat_map(|u| u.iter());
        let at = |done: usize| all().map(|u| self.part_way(u, done)).sum::<u64>();
        let ends = |u: &Use| [u.first + self.kept(u.before), u.first + self.kept(u.after), u.first + u.channels];
        all().flat_map(ends).map(at).max().unwrap_or(0).max(at(0))
    }

    /// Elements on chip while a step runs, at most.
    fn memory(&self, step: usize) -> u64 {
        let at = step - self.group.begin;
        let need = &self.needs[at];
        let by: u64 = self.passing[at].iter().map(|g| self.gaps[*g].kept as u64 * self.plane(self.gaps[*g].tensor)).sum();
        let output = std::slice::from_ref(&need.output);
        let most = match self.modes[at] {
            StepDataflow::Channels => self.most(&[&need.inputs, &need.sides, output]),
            StepDataflow::InputsWhole => need.whole.0 + self.most(&[&need.sides, output]),
            StepDataflow::OutputWhole => {
                let waiting: u64 = need.sides.iter().map(|u| self.kept(u.before) as u64 * u.plane).sum();
                let after: u64 = need.inputs.iter().map(|u| self.kept(u.after) as u64 * u.plane).sum();
                need.whole.1 + (waiting + self.most(&[&need.inputs])).max(after + self.most(&[&need.sides]))
            }
        };
        by + most + need.buffers
    }

    /// What a channel less of a gap costs per element: its load, and its store unless it is stored anyway.
    fn cost(&self, gap: usize) -> u64 {
        let kept = self.gaps[gap].kept;
        let stored = self.stored[gap] || self.same[gap].iter().any(|o| self.gaps[*o].kept < kept);
        if stored { 1 } else { 2 }
    }

    /// Gives up channels until every step fits; `false` if some step cannot.
    fn fit(&mut self, by_relief: bool) -> bool {
        for step in self.group.begin..self.group.end {
            let at = step - self.group.begin;
            let mut need = self.memory(step);
            while need > self.capacity {
                let touching: Vec<usize> = self.passing[at].iter().copied().chain(self.needs[at].gaps()).collect();
                let mut best: Option<((u64, std::cmp::Reverse<usize>), usize)> = None;
                for gap in touching {
                    if self.gaps[gap].kept == 0 || !self.relieves(gap, step, need) {
                        continue;
                    }
                    let over = || {
                        let later = (step + 1..self.gaps[gap].to).filter(|s| self.memory(*s) > self.capacity).count() as u64;
                        120 * self.cost(gap) / (1 + later)
                    };
                    let key = (if by_relief { over() } else { self.cost(gap) }, std::cmp::Reverse(self.gaps[gap].to));
                    if best.is_none_or(|(least, _)| key < least) {
                        best = Some((key, gap));
                    }
                }
                let Some((_, gap)) = best else { return false };
                let plane = self.plane(self.gaps[gap].tensor);
                let mut give = ((need - self.capacity).div_ceil(plane) as usize).clamp(1, self.gaps[gap].kept);
                // Below what another gap keeps, a channel may cost more: the choice is made again there.
                if let Some(next) = self.same[gap].iter().map(|o| self.gaps[*o].kept).filter(|k| *k < self.gaps[gap].kept).max() {
                    give = give.min(self.gaps[gap].kept - next);
                }
                self.gaps[gap].kept -= give;
                need = self.memory(step);
            }
        }
        true
    }

    /// Whether a step needs less if a gap keeps less.
    fn relieves(&mut self, gap: usize, step: usize, need: u64) -> bool {
        let kept = self.gaps[gap].kept;
        let plane = self.plane(self.gaps[gap].tensor);
        let give = ((need - self.capacity).div_ceil(plane) as usize).clamp(1, kept);
        self.gaps[gap].kept = kept - give;
        let relieved = self.memory(step) < need;
        self.gaps[gap].kept = kept;
        relieved
    }

    /// Keeps more where there is room left.
    fn refill(&mut self) {
        let mut order: Vec<usize> = (0..self.gaps.len()).collect();
        order.sort_by_key(|g| (std::cmp::Reverse(self.cost(*g)), self.gaps[*g].to - self.gaps[*g].from, *g));
        for gap in order {
            let Gap { tensor, from, to, kept } = self.gaps[gap].clone();
            let (mut low, mut high) = (kept, self.channels(tensor));
            while low < high {
                let middle = (low + high).div_ceil(2);
                self.gaps[gap].kept = middle;
                if (from..=to).all(|s| self.memory(s) <= self.capacity) { low = middle } else { high = middle - 1 }
            }
            self.gaps[gap].kept = low;
        }
    }

    fn price(&self) -> Price {
        let (given, leaving) = self.steps.boundary(self.group);
        let of = &self.steps.steps[self.group.begin..self.group.end];
        let elements = |t: &usize| self.steps.tensors[*t].shape.elements();
        let mut moved: u64 = of.iter().map(|s| s.weights()).sum::<u64>() + given.iter().chain(&leaving).map(elements).sum::<u64>();
        for gap in &self.gaps {
            moved += (self.channels(gap.tensor) - gap.kept) as u64 * self.plane(gap.tensor);
        }
        for step in of.iter().filter(|s| !leaving.contains(&s.output)) {
            moved += (self.channels(step.output) - stored_from(&self.gaps, step.output, self.channels(step.output))) as u64
                * self.plane(step.output);
        }
        Price { moved, flop: of.iter().map(|s| s.flop).sum() }
    }
}

impl Need {
    fn of(steps: &FusedSteps, step: usize, gaps: &[Gap], mode: StepDataflow) -> Need {
        let of = &steps.steps[step];
        let mut first = 0;
        let mut of_tensor = |tensor: usize, advances: bool| {
            let shape = steps.tensors[tensor].shape;
            let gap = |test: &dyn Fn(&Gap) -> bool| gaps.iter().position(|g| g.tensor == tensor && test(g));
            let (before, after) = (gap(&|g| g.to == step), gap(&|g| g.from == step));
            let found = Use { first: if advances { first } else { 0 }, channels: shape.channels, before, after, plane: shape.plane() };
            first += if advances { shape.channels } else { 0 };
            found
        };
        let inputs = of.inputs.iter().map(|t| of_tensor(*t, true)).collect();
        let sides = of.sides.iter().map(|t| of_tensor(*t, false)).collect();
        let elements = |t: &usize| steps.tensors[*t].shape.elements();
        let whole = (of.inputs.iter().map(elements).sum(), elements(&of.output));
        Need { inputs, sides, output: of_tensor(of.output, false), whole, buffers: buffers(steps, step, mode) }
    }

    /// The gaps that begin or end at the step.
    fn gaps(&self) -> Vec<usize> {
        let uses = self.inputs.iter().chain(&self.sides).chain([&self.output]);
        uses.flat_map(|u| [u.before, u.after]).flatten().collect()
    }
}

/// The smaller side whole; `None` if neither fits beside one channel of the other.
fn mode(steps: &FusedSteps, step: usize, capacity: u64) -> Option<StepDataflow> {
    let of = &steps.steps[step];
    if of.work == ChannelDependence::Channelwise {
        return Some(StepDataflow::Channels);
    }
    let inputs: u64 = of.inputs.iter().map(|t| steps.tensors[*t].shape.elements()).sum();
    let output = steps.tensors[of.output].shape.elements();
    let splits = of.work == ChannelDependence::Dense && input_channel_weights(steps, step).is_some();
    let (mode, least) = if splits && output < inputs { (StepDataflow::OutputWhole, output) } else { (StepDataflow::InputsWhole, inputs) };
    (least + buffers(steps, step, mode) <= capacity).then_some(mode)
}

/// The first channel of a tensor that is stored because some gap does not keep it.
pub fn stored_from(gaps: &[Gap], tensor: usize, channels: usize) -> usize {
    gaps.iter().filter(|g| g.tensor == tensor).map(|g| g.kept).min().unwrap_or(channels)
}

/// Elements of the anchor's weights for one input channel and all output channels, if that is a whole number for each pair.
pub fn input_channel_weights(steps: &FusedSteps, step: usize) -> Option<u64> {
    let of = &steps.steps[step];
    let inputs: u64 = of.inputs.iter().map(|t| steps.tensors[*t].shape.channels as u64).sum();
    let pairs = inputs * steps.tensors[of.output].shape.channels as u64;
    of.filter.is_multiple_of(pairs).then(|| of.filter / inputs)
}

/// Elements of all weights of one output channel, rounded up.
pub fn output_channel_weights(steps: &FusedSteps, step: usize) -> u64 {
    let channels = steps.tensors[steps.steps[step].output].shape.channels as u64;
    steps.steps[step].filter.div_ceil(channels) + steps.steps[step].rest.div_ceil(channels)
}

/// Elements for what streams past a step: one channel of each tensor that is not whole, and its weights.
pub fn buffers(steps: &FusedSteps, step: usize, mode: StepDataflow) -> u64 {
    let of = &steps.steps[step];
    let plane = |t: &usize| steps.tensors[*t].shape.plane();
    let output = plane(&of.output);
    let sides = of.sides.len() as u64 * output;
    let input = of.inputs.iter().map(plane).max().unwrap_or(0);
    match mode {
        StepDataflow::Channels => input + output + sides + output_channel_weights(steps, step),
        StepDataflow::InputsWhole => output + sides + output_channel_weights(steps, step),
        StepDataflow::OutputWhole => {
            let rest = of.rest.div_ceil(steps.tensors[of.output].shape.channels as u64);
            (input + input_channel_weights(steps, step).unwrap_or(0)).max(sides + rest)
        }
    }
}

/// The cheapest maps that were found for a group; `None` if some step has no side that fits.
pub fn best(steps: &FusedSteps, group: Span, capacity: u64) -> Option<(Price, Maps)> {
    let mut best: Option<(Price, Maps)> = None;
    for by_relief in [false, true] {
        let mut pager = Pager::new(steps, group, capacity)?;
        if !pager.fit(by_relief) {
            return best;
        }
        if pager.gaps.iter().all(|g| g.kept == pager.channels(g.tensor)) {
            return Some((pager.price(), Maps { modes: pager.modes, gaps: pager.gaps }));
        }
        pager.refill();
        let price = pager.price();
        if best.as_ref().is_none_or(|(least, _)| price < *least) {
            best = Some((price, Maps { modes: pager.modes, gaps: pager.gaps }));
        }
    }
    best
}
