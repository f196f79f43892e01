//! A run of a kernel cut at its barriers, so that it can share dispatches with runs of other kernels.

use crate::pool::StaticPartition;
use crate::run_context::RunContext;
use std::ops::Range;

/// What happens between two barriers of a kernel's run.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    pub spread: Spread,
    pub touches: Vec<Touch>,
}

/// How the work of a phase is spread over the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Too little work to share: one worker does all of it.
    Alone,
    /// Each worker has a part that follows from its number.
    Fixed,
    /// Items that the workers take a few at a time: each worker's share in so many parts, if it has as many.
    Items { count: i64, parts: i64 },
}

/// Memory that a phase reads or writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    pub place: PhaseMemory,
    pub written: bool,
    pub part: AccessedPart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseMemory {
    /// An argument, by its number.
    Argument(usize),
    /// The worker's own working memory.
    Own,
    /// Working memory that all workers share.
    Shared,
}

/// Which part of it a worker touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessedPart {
    /// Any part.
    Whole,
    /// Elements whose position along this dim is in the worker's range of the kernel's [`PartitionIndex`].
    Along(usize),
    /// What belongs to the worker.
    Own,
}

/// An index by which a kernel's points can be divided among workers: the outermost one of its shared loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionIndex {
    /// Positions along the index.
    pub size: i64,
    /// Positions that cannot be divided: those of a tile or of a block of lanes.
    pub step: i64,
}

/// The work of one worker in one phase.
#[derive(Clone, Copy)]
pub enum WorkerShare<'a> {
    /// All of it, since the others do nothing.
    All,
    /// What a static partition gives out.
    Taken(&'a StaticPartition),
    /// The points whose position along the index of the kernel's [`PartitionIndex`] is in a range.
    Along { from: i64, to: i64 },
}

impl Spread {
    /// The shares of workers; nothing where each one's part follows from its number.
    pub(crate) fn shares(self, workers: usize) -> StaticPartition {
        match self {
            Spread::Items { count, parts } => StaticPartition::new(count, workers, count / (workers as i64).saturating_mul(parts)),
            Spread::Alone | Spread::Fixed => StaticPartition::new(0, workers, 1),
        }
    }
}

impl WorkerShare<'_> {
    /// The points of a range of positions, where each step along the index has `points` of them.
    pub(crate) fn points(from: i64, to: i64, step: i64, points: i64) -> Range<i64> {
        from / step * points..(to + step - 1) / step * points
    }
}

/// Working memory of one kernel, apart from that of kernels that run beside it.
#[derive(Clone, Copy, Debug)]
pub struct WorkingMemory {
    /// The first worker's part; those of the others follow, each `stride` bytes after the one before.
    pub own: *mut u8,
    pub stride: usize,
    /// What all workers share.
    pub shared: *mut u8,
}

// SAFETY: workers write parts of their own, or parts that their shares give them.
unsafe impl Sync for WorkingMemory {}
// SAFETY: as above.
unsafe impl Send for WorkingMemory {}

/// What a run of a kernel's phase is given.
#[derive(Clone, Copy)]
pub struct PhaseRun<'a> {
    /// As for [`crate::Executable::run`].
    pub arguments: &'a [*mut u8],
    pub context: &'a RunContext<'a>,
    pub memory: WorkingMemory,
    /// Whether results that no later kernel reads soon are written around the caches, and those that other workers may read next.
    pub late: bool,
    pub far: bool,
}
