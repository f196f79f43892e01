//! The accelerator's memories, element by element: walks the moves of a plan, counts what crosses, and stops at the first fault.
//!
//! Each place of the on-chip memory knows which element lies there. A computation works out by itself what its output reads, and finds
//! every one of these elements where the plan says that it lies. What was overwritten, never brought, or brought before it was made is
//! found so; so is a place beyond the memory. The simulator takes nothing from the planner but the moves.

mod compute;
mod places;

use super::moves::{ElementOwner, Move, Moves};
use super::steps::FusedSteps;
use std::collections::HashMap;

/// What a plan does wrong, with the number of the move.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationFault {
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
pub struct MovedElements {
    /// Elements loaded and stored.
    pub loaded: u64,
    pub stored: u64,
    /// By group: elements that moved.
    pub groups: Vec<u64>,
    /// By source: elements that moved, loads and stores.
    pub sources: Vec<(ElementOwner, u64, u64)>,
}

impl MovedElements {
    pub fn moved(&self) -> u64 {
        self.loaded + self.stored
    }
}

/// Places whose last write is remembered together.
const BLOCK: u64 = 64;

struct Simulator<'a> {
    steps: &'a FusedSteps,
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
    moved: HashMap<ElementOwner, (u64, u64)>,
}

/// Runs all moves of a plan in a memory of `capacity` elements.
///
/// # Errors
/// The first [`SimulationFault`].
pub fn simulate(steps: &FusedSteps, moves: &Moves, capacity: u64) -> Result<MovedElements, SimulationFault> {
    let mut next = 1;
    let mut numbered = |count: u64| {
        next += count;
        next - count
    };
    let tensors = steps.tensors.iter().map(|t| numbered(t.shape.elements())).collect();
    let filters = steps.steps.iter().map(|s| numbered(s.filter)).collect();
    let rests = steps.steps.iter().map(|s| numbered(s.rest)).collect();
    let outside =
        |t: &super::steps::StepTensor| vec![if t.producer.is_none() { u64::MAX } else { 0 }; t.shape.elements().div_ceil(64) as usize];
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
    let mut traffic = MovedElements::default();
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
            return Err(SimulationFault::Unfinished { what: tensor.name.clone(), missing });
        }
    }
    traffic.sources = simulator.moved.iter().map(|(source, (loaded, stored))| (*source, *loaded, *stored)).collect();
    traffic.sources.sort_unstable();
    Ok(traffic)
}

fn count(bits: &[u64], of: u64) -> u64 {
    (0..of).filter(|n| bits[(n / 64) as usize] >> (n % 64) & 1 == 1).count() as u64
}

impl Simulator<'_> {
    fn name(&self, source: ElementOwner) -> String {
        match source {
            ElementOwner::Tensor(t) => self.steps.tensors[t].name.clone(),
            ElementOwner::Filter(s) | ElementOwner::Rest(s) => format!("weights of {}", self.steps.steps[s].name),
        }
    }

    /// The number of a source's first element, and its extents below the outermost.
    fn numbers(&self, source: ElementOwner) -> (u64, u64, u64) {
        match source {
            ElementOwner::Tensor(t) => {
                (self.tensors[t], self.steps.tensors[t].shape.rows as u64, self.steps.tensors[t].shape.columns as u64)
            }
            ElementOwner::Filter(s) => {
                let [_, inputs, taps] = super::moves::filter_shape(self.steps, s);
                (self.filters[s], inputs as u64, taps as u64)
            }
            ElementOwner::Rest(s) => {
                let channels = self.steps.tensors[self.steps.steps[s].output].shape.channels.max(1) as u64;
                (self.rests[s], 1, self.steps.steps[s].rest / channels)
            }
        }
    }
}
