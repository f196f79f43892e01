//! A plan as moves: every load, store and computation with the places of its elements in the on-chip memory.
//!
//! A *piece* is a box of a tensor or of weights on chip, its elements one after the other in one or several ranges of addresses.

mod chunks;
mod maps;
mod memory;
mod strips;

use super::partition::ScheduledGroup;
use super::schedules::GroupSchedule;
use super::shapes::Span;
use super::steps::FusedSteps;
use memory::FreeRanges;

/// What elements belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementOwner {
    /// Channels, rows, columns.
    Tensor(usize),
    /// Weights of a step's anchor: output channels, input channels, elements of each pair. Where pairs have no equal share, the second is
    /// 1.
    Filter(usize),
    /// Biases, norms and scales of a step: output channels, 1, elements of each channel.
    Rest(usize),
}

/// A box in three dimensions, outermost first.
pub type Box3 = [Span; 3];

/// Elements of a box.
pub fn volume(of: &Box3) -> u64 {
    of.iter().map(|s| s.len() as u64).product()
}

#[derive(Clone, Debug, PartialEq)]
pub struct ElementRange {
    pub source: ElementOwner,
    pub part: Box3,
    /// Addresses, in elements: the first and how many.
    pub ranges: Vec<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Move {
    /// Brings a piece on chip.
    Load(usize),
    /// Brings a part of a piece out.
    Store { piece: usize, part: Box3 },
    /// Makes a box of a step's output, or adds the share of some input channels to its sums.
    Compute(Compute),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Compute {
    pub step: usize,
    /// The box of the output that is made.
    pub part: Box3,
    /// Pieces that the box lies in.
    pub outputs: Vec<usize>,
    /// Pieces that are read.
    pub reads: Vec<usize>,
    pub stage: StepStage,
}

/// Which part of a step a computation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepStage {
    /// All of it.
    Whole,
    /// Adds the products of these input channels to sums; the first ones begin them.
    Sums(Span),
    /// Makes values of complete sums: biases, norms, additions, activations.
    Finish,
}

/// All moves of a plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moves {
    pub pieces: Vec<ElementRange>,
    pub moves: Vec<Move>,
    /// By group: the place behind its last move.
    pub ends: Vec<usize>,
    /// By group: the most elements that were on chip at once.
    pub peaks: Vec<u64>,
    /// By move: elements that are on chip once it is done.
    pub levels: Vec<u64>,
}

/// A plan and the memory disagree: the planner is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("step `{step}` needs {needed} more elements on chip, and {free} are free")]
pub struct NoRoom {
    pub step: String,
    pub needed: u64,
    pub free: u64,
}

impl Moves {
    /// The moves of a plan for a memory of `capacity` elements.
    ///
    /// # Errors
    /// A group that does not fit although the planner priced it.
    pub fn of(steps: &FusedSteps, groups: &[ScheduledGroup], capacity: u64) -> Result<Moves, NoRoom> {
        let mut made = Moves::default();
        for group in groups {
            let mut writer = Writer { steps, memory: FreeRanges::new(capacity), out: &mut made };
            match &group.schedule {
                GroupSchedule::Strips(strips) => writer.strips(group.steps, strips)?,
                GroupSchedule::Maps(maps) => writer.maps(group.steps, maps)?,
                GroupSchedule::Chunks(chunks) => writer.chunks(group.steps, chunks)?,
            }
            let peak = writer.memory.peak();
            made.ends.push(made.moves.len());
            made.peaks.push(peak);
        }
        Ok(made)
    }
}

/// Writes the moves of one group.
struct Writer<'a> {
    steps: &'a FusedSteps,
    memory: FreeRanges,
    out: &'a mut Moves,
}

impl Writer<'_> {
    /// A new piece in free memory.
    fn place(&mut self, step: usize, source: ElementOwner, part: Box3) -> Result<usize, NoRoom> {
        let needed = volume(&part);
        let free = self.memory.free();
        let ranges = self.memory.allocate(needed).ok_or_else(|| NoRoom { step: self.steps.steps[step].name.clone(), needed, free })?;
        Ok(self.piece(source, part, ranges))
    }

    fn piece(&mut self, source: ElementOwner, part: Box3, ranges: Vec<(u64, u64)>) -> usize {
        self.out.pieces.push(ElementRange { source, part, ranges });
        self.out.pieces.len() - 1
    }

    fn push(&mut self, next: Move) {
        self.out.moves.push(next);
        self.out.levels.push(self.memory.used());
    }

    fn load(&mut self, step: usize, source: ElementOwner, part: Box3) -> Result<usize, NoRoom> {
        let piece = self.place(step, source, part)?;
        self.push(Move::Load(piece));
        Ok(piece)
    }

    fn store(&mut self, piece: usize, part: Box3) {
        self.push(Move::Store { piece, part });
    }

    fn release(&mut self, piece: usize) {
        self.memory.release(&self.out.pieces[piece].ranges);
    }

    /// Cuts a piece in two at an outermost coordinate within it.
    fn cut(&mut self, piece: usize, at: usize) -> (usize, usize) {
        let ElementRange { source, part, ranges } = self.out.pieces[piece].clone();
        let [channels, rows, columns] = part;
        let mut left = (at - channels.begin) as u64 * (rows.len() * columns.len()) as u64;
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for (from, count) in ranges {
            let here = count.min(left);
            left -= here;
            if here > 0 {
                first.push((from, here));
            }
            if here < count {
                second.push((from + here, count - here));
            }
        }
        let first = self.piece(source, [Span::new(channels.begin, at), rows, columns], first);
        (first, self.piece(source, [Span::new(at, channels.end), rows, columns], second))
    }

    /// The shape of a source.
    fn filter_shape(&self, step: usize) -> [usize; 3] {
        filter_shape(self.steps, step)
    }

    /// Elements of a step's weights beside the anchor's, for each output channel.
    fn rest_each(&self, step: usize) -> usize {
        self.steps.steps[step].rest as usize / self.channels(self.steps.steps[step].output).max(1)
    }

    fn channels(&self, tensor: usize) -> usize {
        self.steps.tensors[tensor].shape.channels
    }

    /// Loads the weights of some output channels of a step.
    fn load_weights(&mut self, step: usize, channels: Span) -> Result<Vec<usize>, NoRoom> {
        let mut pieces = Vec::new();
        let [_, inputs, taps] = self.filter_shape(step);
        if inputs * taps > 0 && !channels.is_empty() {
            pieces.push(self.load(step, ElementOwner::Filter(step), [channels, Span::new(0, inputs), Span::new(0, taps)])?);
        }
        pieces.extend(self.load_rest(step, channels)?);
        Ok(pieces)
    }

    /// Loads biases, norms and scales of some output channels.
    fn load_rest(&mut self, step: usize, channels: Span) -> Result<Option<usize>, NoRoom> {
        let each = self.rest_each(step);
        if each == 0 || channels.is_empty() {
            return Ok(None);
        }
        self.load(step, ElementOwner::Rest(step), [channels, Span::new(0, 1), Span::new(0, each)]).map(Some)
    }
}

/// Output channels, input channels and elements of each pair of a step's filter.
pub fn filter_shape(steps: &FusedSteps, step: usize) -> [usize; 3] {
    let of = &steps.steps[step];
    let outputs = steps.tensors[of.output].shape.channels;
    let inputs: usize = of.inputs.iter().map(|t| steps.tensors[*t].shape.channels).sum();
    let pairs = (outputs * inputs) as u64;
    if of.work == super::steps::ChannelDependence::Dense && of.filter.is_multiple_of(pairs.max(1)) {
        [outputs, inputs, (of.filter / pairs.max(1)) as usize]
    } else {
        [outputs, 1, (of.filter / outputs.max(1) as u64) as usize]
    }
}
