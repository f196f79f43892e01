//! Which phases of which launches share a dispatch, as data.

use super::groups::{BarrierGroup, PackedPhase};
use crate::phases::{PartitionIndex, Spread};
use crate::pool::Working;

/// What one worker or all do at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchStep {
    /// A phase of a launch.
    Phase { launch: usize, phase: usize },
    /// All phases of one, by one worker.
    Alone { launch: usize },
    /// A kernel that gives out its work by itself.
    Whole { launch: usize },
}

/// Runs of kernels in as few dispatches as their dependencies allow.
#[derive(Debug)]
pub struct Packed {
    pub(super) kernels: Vec<usize>,
    pub(super) steps: Vec<DispatchStep>,
    pub(super) pieces: Vec<PackedPhase>,
    pub(super) groups: Vec<BarrierGroup>,
    /// Working memory of each kernel, and of all.
    pub(super) places: Vec<Working>,
    pub(super) working: Working,
    /// Phases of each kernel.
    pub(super) phases: Vec<usize>,
}

impl DispatchStep {
    pub fn launch(self) -> usize {
        match self {
            DispatchStep::Phase { launch, .. } | DispatchStep::Alone { launch } | DispatchStep::Whole { launch } => launch,
        }
    }
}

impl Packed {
    /// Dispatches of a run, as far as they are known: kernels that give out their work by themselves count as one.
    pub fn dispatches(&self) -> usize {
        self.groups.iter().filter(|group| !group.work.is_empty()).count()
    }

    /// Launches that take part in each group, in order.
    pub fn groups(&self) -> impl Iterator<Item = Vec<usize>> + '_ {
        self.groups.iter().map(|group| {
            let mut launches: Vec<usize> =
                group.before.iter().copied().chain(group.work.iter().map(|w| w.piece)).map(|piece| self.steps[piece].launch()).collect();
            launches.dedup();
            launches
        })
    }

    pub fn working(&self) -> Working {
        self.working
    }

    /// Where the working memory of each kernel begins.
    pub fn places(&self) -> &[Working] {
        &self.places
    }

    /// The groups as data, for code that runs them without this crate.
    pub fn listed(&self) -> impl Iterator<Item = ListedGroup> + '_ {
        let of = |piece: usize, along: Option<PartitionIndex>| {
            let (launch, phases) = match self.steps[piece] {
                DispatchStep::Phase { launch, phase } => (launch, ListedPhases::One(phase)),
                DispatchStep::Alone { launch } => (launch, ListedPhases::All),
                DispatchStep::Whole { launch } => (launch, ListedPhases::Whole),
            };
            ListedPiece { launch, phases, spread: self.pieces[piece].spread, along }
        };
        self.groups.iter().map(move |group| ListedGroup {
            before: group.before.iter().map(|piece| of(*piece, None)).collect(),
            work: group.work.iter().map(|work| of(work.piece, work.along)).collect(),
        })
    }
}

/// Pieces between two barriers: what the caller does first, alone, and then what each worker does.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedGroup {
    pub before: Vec<ListedPiece>,
    pub work: Vec<ListedPiece>,
}

/// A part of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ListedPiece {
    pub launch: usize,
    pub phases: ListedPhases,
    pub spread: Spread,
    /// What it is divided by as others of its group are, if it is.
    pub along: Option<PartitionIndex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListedPhases {
    One(usize),
    /// All of them, by one worker.
    All,
    /// A kernel that gives out its work by itself.
    Whole,
}
