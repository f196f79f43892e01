//! The accelerator's memories, element by element: walks the moves of a plan, counts what crosses, and stops at the first fault.
//!
//! Each place of the on-chip memory knows which element lies there. A computation works out by itself what its output reads, and finds
//! every one of these elements where the plan says that it lies. What was overwritten, never brought, or brought before it was made is
//! found so; so is a place beyond the memory. The simulator takes nothing from the planner but the moves.

use super::moves::{Box3, Compute, Move, Moves, Piece, Source, Stage, volume};
use super::shapes::Span;
use super::steps::{Steps, Work};
use std::collections::HashMap;

/// What a plan does wrong, with the number of the move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("move {at}: `{what}` lies at {address}, behind the {capacity} elements of the on-chip memory")]
    Overflow { at: usize, what: String, address: u64, capacity: u64 },
    #[error("move {at}: an element of `{what}` is not at {address}, where it is read; something else was put there")]
    Clobbered { at: usize, what: String, address: u64 },
    #[error("move {at}: `{step}` reads {needed} elements of `{what}`, and {found} of them are on chip")]
    Missing { at: usize, step: String, what: String, needed: u64, found: u64 },
    #[error("move {at}: an element of `{what}` is loaded that nothing has stored")]
    NotStored { at: usize, what: String },
    #[error("move {at}: the sums of `{step}` are of {done} input channels when those from {next} are added")]
    Sums { at: usize, step: String, done: usize, next: usize },
    #[error("move {at}: a piece of `{what}` has {room} places for {needed} elements")]
    Size { at: usize, what: String, room: u64, needed: u64 },
    #[error("`{what}` is a result, and {missing} of its elements were never stored")]
    Unfinished { what: String, missing: u64 },
}

/// What a plan moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Elements loaded and stored.
    pub loaded: u64,
    pub stored: u64,
    /// By group: elements that moved.
    pub groups: Vec<u64>,
    /// By source: elements that moved, loads and stores.
    pub sources: Vec<(Source, u64, u64)>,
}

impl Traffic {
    pub fn moved(&self) -> u64 {
        self.loaded + self.stored
    }
}

/// Places whose last write is remembered together.
const BLOCK: u64 = 64;

struct Simulator<'a> {
    steps: &'a Steps,
    moves: &'a Moves,
    /// By place: number of the element there, above 0.
    places: Vec<u64>,
    /// By block of places: number of the last move that wrote there.
    written: Vec<u32>,
    /// By piece: number of the move at which all its elements were found in place.
    checked: Vec<u32>,
    /// First numbers of elements: of tensors, filters, other weights; sums of a tensor follow behind all of these.
    tensors: Vec<u64>,
    filters: Vec<u64>,
    rests: Vec<u64>,
    sums: u64,
    /// By tensor: which elements are in the outer memory.
    outside: Vec<Vec<u64>>,
    /// Sums by piece: input channels that they hold.
    progress: HashMap<usize, usize>,
    at: usize,
    moved: HashMap<Source, (u64, u64)>,
}

/// Runs all moves of a plan in a memory of `capacity` elements.
///
/// # Errors
/// The first [`Fault`].
pub fn simulate(steps: &Steps, moves: &Moves, capacity: u64) -> Result<Traffic, Fault> {
    let mut next = 1;
    let mut numbered = |count: u64| {
        next += count;
        next - count
    };
    let tensors = steps.tensors.iter().map(|t| numbered(t.shape.elements())).collect();
    let filters = steps.steps.iter().map(|s| numbered(s.filter)).collect();
    let rests = steps.steps.iter().map(|s| numbered(s.rest)).collect();
    let outside =
        |t: &super::steps::Tensor| vec![if t.producer.is_none() { u64::MAX } else { 0 }; t.shape.elements().div_ceil(64) as usize];
    let mut simulator = Simulator {
        steps,
        moves,
        places: vec![0; capacity as usize],
        written: vec![0; capacity.div_ceil(BLOCK) as usize],
        checked: vec![0; moves.pieces.len()],
        tensors,
        filters,
        rests,
        sums: next,
        outside: steps.tensors.iter().map(outside).collect(),
        progress: HashMap::new(),
        at: 0,
        moved: HashMap::new(),
    };
    let mut traffic = Traffic::default();
    let mut begin = 0;
    for end in &moves.ends {
        let before = traffic.moved();
        for (at, step) in moves.moves.iter().enumerate().take(*end).skip(begin) {
            simulator.at = at + 1;
            match step {
                Move::Load(piece) => traffic.loaded += simulator.load(*piece)?,
                Move::Store { piece, part } => traffic.stored += simulator.store(*piece, part)?,
                Move::Compute(compute) => simulator.compute(compute)?,
            }
        }
        begin = *end;
        traffic.groups.push(traffic.moved() - before);
        // Groups hand over nothing on chip.
        simulator.places.fill(0);
        simulator.written.fill(simulator.at as u32 + 1);
    }
    for (tensor, stored) in steps.tensors.iter().zip(&simulator.outside).filter(|(t, _)| t.result) {
        let missing = tensor.shape.elements() - count(stored, tensor.shape.elements());
        if missing > 0 {
            return Err(Fault::Unfinished { what: tensor.name.clone(), missing });
        }
    }
    traffic.sources = simulator.moved.iter().map(|(source, (loaded, stored))| (*source, *loaded, *stored)).collect();
    traffic.sources.sort_unstable();
    Ok(traffic)
}

fn count(bits: &[u64], of: u64) -> u64 {
    (0..of).filter(|n| bits[(n / 64) as usize] >> (n % 64) & 1 == 1).count() as u64
}

fn meet(a: &Box3, b: &Box3) -> Box3 {
    [a[0].meet(b[0]), a[1].meet(b[1]), a[2].meet(b[2])]
}

impl Simulator<'_> {
    fn name(&self, source: Source) -> String {
        match source {
            Source::Tensor(t) => self.steps.tensors[t].name.clone(),
            Source::Filter(s) | Source::Rest(s) => format!("weights of {}", self.steps.steps[s].name),
        }
    }

    /// The number of a source's first element, and its extents below the outermost.
    fn numbers(&self, source: Source) -> (u64, u64, u64) {
        match source {
            Source::Tensor(t) => (self.tensors[t], self.steps.tensors[t].shape.rows as u64, self.steps.tensors[t].shape.columns as u64),
            Source::Filter(s) => {
                let [_, inputs, taps] = super::moves::filter_shape(self.steps, s);
                (self.filters[s], inputs as u64, taps as u64)
            }
            Source::Rest(s) => {
                let channels = self.steps.tensors[self.steps.steps[s].output].shape.channels.max(1) as u64;
                (self.rests[s], 1, self.steps.steps[s].rest / channels)
            }
        }
    }

    /// Calls `run` for each run of places of a part of a piece: first place, number of the first element, how many.
    fn runs(&self, piece: &Piece, part: &Box3, run: &mut dyn FnMut(u64, u64, u64) -> bool) {
        let (base, rows, columns) = self.numbers(piece.source);
        let [channels, own_rows, own_columns] = piece.part;
        let (height, width) = (own_rows.len() as u64, own_columns.len() as u64);
        // Whole rows and whole channels lie together in both memories.
        let across = own_columns == part[2] && width == columns;
        let through = across && own_rows == part[1] && height == rows;
        let (outer, middle, length) = match (through, across) {
            (true, _) => (1, 1, part[0].len() as u64 * height * width),
            (_, true) => (part[0].len(), 1, part[1].len() as u64 * width),
            _ => (part[0].len(), part[1].len(), part[2].len() as u64),
        };
        let mut range = 0;
        let mut passed = 0;
        for c in 0..outer {
            for r in 0..middle {
                let (channel, row) = ((part[0].begin + c) as u64, (part[1].begin + r) as u64);
                let mut inside = ((channel - channels.begin as u64) * height + row - own_rows.begin as u64) * width
                    + (part[2].begin - own_columns.begin) as u64;
                let mut number = base + (channel * rows + row) * columns + part[2].begin as u64;
                let mut left = length;
                while left > 0 {
                    while range < piece.ranges.len() && inside >= passed + piece.ranges[range].1 {
                        passed += piece.ranges[range].1;
                        range += 1;
                    }
                    let Some((from, many)) = piece.ranges.get(range) else { return };
                    let skip = inside - passed;
                    let here = left.min(many - skip);
                    if !run(from + skip, number, here) {
                        return;
                    }
                    (inside, number, left) = (inside + here, number + here, left - here);
                }
            }
        }
    }

    /// The piece has a place for each of its elements, and all places exist.
    fn placed(&self, piece: &Piece) -> Result<(), Fault> {
        let room: u64 = piece.ranges.iter().map(|(_, many)| many).sum();
        let needed = volume(&piece.part);
        if room != needed {
            return Err(Fault::Size { at: self.at, what: self.name(piece.source), room, needed });
        }
        let capacity = self.places.len() as u64;
        match piece.ranges.iter().find(|(from, many)| from + many > capacity) {
            Some((from, many)) => Err(Fault::Overflow { at: self.at, what: self.name(piece.source), address: from + many - 1, capacity }),
            None => Ok(()),
        }
    }

    /// Puts elements, or sums that will become them, into their places.
    fn write(&mut self, piece: usize, part: &Box3, sums: bool) {
        let moves = self.moves;
        let piece = &moves.pieces[piece];
        let (mut places, mut written) = (std::mem::take(&mut self.places), std::mem::take(&mut self.written));
        let add = if sums { self.sums } else { 0 };
        self.runs(piece, part, &mut |place, number, many| {
            for n in 0..many {
                places[(place + n) as usize] = number + n + add;
            }
            for block in place / BLOCK..=(place + many - 1) / BLOCK {
                written[block as usize] = self.at as u32;
            }
            true
        });
        (self.places, self.written) = (places, written);
    }

    /// Every element of a part of a piece is in its place.
    fn check(&mut self, number: usize, part: &Box3, sums: bool) -> Result<(), Fault> {
        let moves = self.moves;
        let piece = &moves.pieces[number];
        let whole = *part == piece.part && !sums;
        if whole && self.checked[number] > 0 {
            let blocks = |(from, many): &(u64, u64)| *from / BLOCK..=(from + many - 1) / BLOCK;
            let fresh = piece.ranges.iter().flat_map(blocks).all(|b| self.written[b as usize] < self.checked[number]);
            if fresh {
                return Ok(());
            }
        }
        let add = if sums { self.sums } else { 0 };
        let mut wrong = None;
        self.runs(piece, part, &mut |place, first, many| {
            let there = &self.places[place as usize..(place + many) as usize];
            wrong = there.iter().zip(first + add..).position(|(a, b)| *a != b).map(|n| place + n as u64);
            wrong.is_none()
        });
        if let Some(address) = wrong {
            return Err(Fault::Clobbered { at: self.at, what: self.name(piece.source), address });
        }
        if whole {
            self.checked[number] = self.at as u32;
        }
        Ok(())
    }

    fn load(&mut self, number: usize) -> Result<u64, Fault> {
        let moves = self.moves;
        let piece = &moves.pieces[number];
        self.placed(piece)?;
        if let Source::Tensor(tensor) = piece.source {
            let base = self.tensors[tensor];
            let mut there = true;
            self.runs(piece, &piece.part, &mut |_, first, many| {
                there = (first - base..first - base + many).all(|n| self.outside[tensor][(n / 64) as usize] >> (n % 64) & 1 == 1);
                there
            });
            if !there {
                return Err(Fault::NotStored { at: self.at, what: self.name(piece.source) });
            }
        }
        self.write(number, &piece.part, false);
        let many = volume(&piece.part);
        self.moved.entry(piece.source).or_default().0 += many;
        Ok(many)
    }

    fn store(&mut self, number: usize, part: &Box3) -> Result<u64, Fault> {
        self.check(number, part, false)?;
        let moves = self.moves;
        let piece = &moves.pieces[number];
        if let Source::Tensor(tensor) = piece.source {
            let base = self.tensors[tensor];
            let mut outside = std::mem::take(&mut self.outside[tensor]);
            self.runs(piece, part, &mut |_, first, many| {
                (first - base..first - base + many).for_each(|n| outside[(n / 64) as usize] |= 1 << (n % 64));
                true
            });
            self.outside[tensor] = outside;
        }
        let many = volume(part);
        self.moved.entry(piece.source).or_default().1 += many;
        Ok(many)
    }

    /// All elements of `needed` are among the pieces that are read, each where the plan says.
    fn find(&mut self, compute: &Compute, source: Source, needed: &Box3) -> Result<(), Fault> {
        let moves = self.moves;
        let mut met: Vec<(usize, Box3)> = Vec::new();
        for number in &compute.reads {
            let piece = &moves.pieces[*number];
            let part = meet(&piece.part, needed);
            if piece.source == source && volume(&part) > 0 {
                met.push((*number, part));
            }
        }
        // Pieces that overlap would be counted twice.
        let apart = |a: &Box3, b: &Box3| volume(&meet(a, b)) == 0;
        let overlap = met.iter().enumerate().any(|(n, (_, a))| met[n + 1..].iter().any(|(_, b)| !apart(a, b)));
        let found: u64 = met.iter().map(|(_, part)| volume(part)).sum();
        if found != volume(needed) || overlap {
            let step = self.steps.steps[compute.step].name.clone();
            return Err(Fault::Missing { at: self.at, step, what: self.name(source), needed: volume(needed), found });
        }
        met.iter().try_for_each(|(number, part)| self.check(*number, part, false))
    }

    fn compute(&mut self, compute: &Compute) -> Result<(), Fault> {
        let steps = self.steps;
        let of = &steps.steps[compute.step];
        let part = &compute.part;
        let whole = Span::new(0, steps.tensors[of.output].shape.channels);
        let [filters, inputs, taps] = super::moves::filter_shape(steps, compute.step);
        let all_inputs = Span::new(0, of.inputs.iter().map(|t| steps.tensors[*t].shape.channels).sum());
        let reads = match compute.stage {
            Stage::Whole if of.work == Work::Channelwise => part[0],
            Stage::Whole => all_inputs,
            Stage::Sums(inputs) => inputs,
            Stage::Finish => Span::default(),
        };
        // The rows and columns that the window of the output reaches, inside the input.
        let reached = |outputs: Span, reach: super::layers::Reach, size: usize| {
            let low = (outputs.begin * reach.stride) as i64 - reach.pad as i64;
            let high = ((outputs.end - 1) * reach.stride + reach.kernel) as i64 - reach.pad as i64;
            Span::new(low.clamp(0, size as i64) as usize, high.clamp(0, size as i64) as usize)
        };
        let mut first = 0;
        for tensor in &of.inputs {
            let shape = steps.tensors[*tensor].shape;
            let own = reads.meet(Span::new(first, first + shape.channels));
            if !own.is_empty() {
                let rows = reached(part[1], of.window.rows, shape.rows);
                let columns = reached(part[2], of.window.columns, shape.columns);
                let channels = Span::new(own.begin - first, own.end - first);
                self.find_windows(compute, *tensor, [channels, rows, columns])?;
            }
            first += shape.channels;
        }
        if compute.stage != Stage::Finish && of.filter > 0 {
            let channels = if inputs == 1 && all_inputs.len() != 1 {
                Span::new(0, 1)
            } else if of.work == Work::Dense {
                reads
            } else {
                Span::new(0, inputs)
            };
            self.find(compute, Source::Filter(compute.step), &[part[0].meet(Span::new(0, filters)), channels, Span::new(0, taps)])?;
        }
        if !matches!(compute.stage, Stage::Sums(_)) {
            if of.rest > 0 {
                let each = of.rest as usize / whole.len().max(1);
                self.find(compute, Source::Rest(compute.step), &[part[0], Span::new(0, 1), Span::new(0, each)])?;
            }
            for side in &of.sides {
                self.find(compute, Source::Tensor(*side), part)?;
            }
        }
        self.write_outputs(compute, all_inputs.len())
    }

    /// The input of a computation; rows that lie between windows need not be there.
    fn find_windows(&mut self, compute: &Compute, tensor: usize, needed: Box3) -> Result<(), Fault> {
        let reach = self.steps.steps[compute.step].window.rows;
        if reach.kernel >= reach.stride {
            return self.find(compute, Source::Tensor(tensor), &needed);
        }
        for row in compute.part[1].begin..compute.part[1].end {
            let low = (row * reach.stride).saturating_sub(reach.pad);
            let high = (row * reach.stride + reach.kernel).saturating_sub(reach.pad).min(self.steps.tensors[tensor].shape.rows);
            if low < high {
                self.find(compute, Source::Tensor(tensor), &[needed[0], Span::new(low, high), needed[2]])?;
            }
        }
        Ok(())
    }

    fn write_outputs(&mut self, compute: &Compute, channels: usize) -> Result<(), Fault> {
        let moves = self.moves;
        let mut room = 0;
        for number in &compute.outputs {
            let piece = &moves.pieces[*number];
            let part = meet(&piece.part, &compute.part);
            room += volume(&part);
            self.placed(piece)?;
            let done = self.progress.get(number).copied().unwrap_or(0);
            let step = || self.steps.steps[compute.step].name.clone();
            match compute.stage {
                Stage::Whole => self.write(*number, &part, false),
                Stage::Sums(inputs) => {
                    if done != inputs.begin {
                        return Err(Fault::Sums { at: self.at, step: step(), done, next: inputs.begin });
                    }
                    if done > 0 {
                        self.check(*number, &part, true)?;
                    }
                    self.progress.insert(*number, inputs.end);
                    self.write(*number, &part, true);
                }
                Stage::Finish => {
                    if done != channels {
                        return Err(Fault::Sums { at: self.at, step: step(), done, next: channels });
                    }
                    self.check(*number, &part, true)?;
                    self.write(*number, &part, false);
                }
            }
        }
        if room != volume(&compute.part) {
            let what = self.steps.tensors[self.steps.steps[compute.step].output].name.clone();
            return Err(Fault::Size { at: self.at, what, room, needed: volume(&compute.part) });
        }
        Ok(())
    }
}
