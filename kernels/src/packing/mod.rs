//! Packing: kernels that share dispatches (Long, Yang and Lin, "FusionStitching", arXiv:1911.11576, section 5.1).
//!
//! Kernels of any iteration spaces are packed: each worker does its share of the first one's phase, then of the second one's, and all meet
//! at one barrier where each kernel alone would have had one of its own.

pub mod divide;
pub mod groups;
pub mod packed;

use crate::error::KernelError;
use crate::executable::Executable;
use crate::phases::{AccessedPart, Phase, PhaseMemory, PhaseRun, Spread, WorkerShare, WorkingMemory};
use crate::pool::{StaticPartition, Working};
use crate::processor::streams_for;
use crate::run_context::{Completion, RunContext};
use groups::{PackedPhase, Region, groups};
use packed::DispatchStep;
pub use packed::{ListedGroup, ListedPhases, ListedPiece, Packed};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Every kernel's part of working memory begins on a line of its own.
const LINE: usize = 64;
/// Bytes of arguments up to which one worker runs a kernel faster than several meet at a barrier.
const SMALL: usize = 8 << 10;
/// Bytes of packed operands up to which the caller packs them by itself.
const SMALL_PACKED: usize = 16 << 10;
/// Launches up to which each small kernel is tried both ways.
const MOST_TRIED: usize = 200;
/// Bytes of packed operands up to which a kernel has shared memory of its own; those of larger ones lie in one place.
const APART: usize = 4 << 20;

/// Memory of an argument: which one, and its bytes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentMemory {
    pub memory: usize,
    pub bytes: Range<usize>,
}

/// A run of a kernel that is to be packed: one of `kernels`, with its arguments' memory.
#[derive(Clone, Debug)]
pub struct PackedLaunch {
    pub kernel: usize,
    pub arguments: Vec<ArgumentMemory>,
}

/// The addresses of a launch's arguments.
pub trait ArgumentAddresses: Sync {
    /// Writes them into `into`, in order.
    fn of(&self, launch: usize, into: &mut Vec<*mut u8>);
}

impl Packed {
    /// Groups launches of kernels, given in an order in which they can run, for a number of workers.
    ///
    /// A small kernel can be done by one worker, or be divided like those around it: whichever leaves fewer groups.
    pub fn new(kernels: &[&dyn Executable], launches: &[PackedLaunch], workers: usize) -> Packed {
        let with = |alone: &[bool]| Packed::with(kernels, launches, workers, (alone, &[]));
        let (mut alone, divided) = (vec![true; kernels.len()], vec![false; kernels.len()]);
        let (mut best, other) = (with(&alone), with(&divided));
        if other.groups.len() < best.groups.len() {
            (best, alone) = (other, divided);
        }
        if launches.len() > MOST_TRIED {
            return best;
        }
        for kernel in 0..kernels.len() {
            let mut tried = alone.clone();
            tried[kernel] = !tried[kernel];
            let found = with(&tried);
            if found.groups.len() < best.groups.len() {
                (best, alone) = (found, tried);
            }
        }
        best
    }

    /// The same, where the caller does some kernels by itself before the workers begin what comes after them.
    pub fn after(kernels: &[&dyn Executable], launches: &[PackedLaunch], workers: usize, before: &[usize]) -> Packed {
        Packed::with(kernels, launches, workers, (&vec![false; kernels.len()], before))
    }

    /// `alone`: whether one worker does a kernel by itself if it is small; `before`: those that the caller does first.
    fn with(kernels: &[&dyn Executable], launches: &[PackedLaunch], workers: usize, (alone, before): (&[bool], &[usize])) -> Packed {
        let phases: Vec<Option<Vec<Phase>>> = kernels.iter().map(|kernel| kernel.phases()).collect();
        let (places, working) = places(kernels);
        // Memory numbers beyond those of arguments: each kernel's own working memory, then its shared one.
        let first = launches.iter().flat_map(|l| &l.arguments).map(|a| a.memory + 1).max().unwrap_or(0);
        let mut steps = Vec::new();
        let mut pieces: Vec<PackedPhase> = Vec::new();
        let mut packed_for: Vec<Option<Vec<ArgumentMemory>>> = vec![None; kernels.len()];
        for (n, launch) in launches.iter().enumerate() {
            let kernel = kernels[launch.kernel];
            let whole = |written: &dyn Fn(usize) -> bool| -> Vec<Region> {
                let region = |(n, held): (usize, &ArgumentMemory)| Region {
                    memory: held.memory,
                    bytes: held.bytes.clone(),
                    written: written(n),
                    part: AccessedPart::Whole,
                };
                launch.arguments.iter().enumerate().map(region).collect()
            };
            let Some(phases) = &phases[launch.kernel] else {
                steps.push(DispatchStep::Whole { launch: n });
                // The kernel may write any of its arguments, and it takes working memory from the pool by itself.
                let mut regions = whole(&|_| true);
                for memory in first..=first + kernels.len() {
                    regions.push(Region { memory, bytes: 0..usize::MAX, written: true, part: AccessedPart::Whole });
                }
                pieces.push(PackedPhase { spread: Spread::Fixed, closes: false, partition: None, regions, whole: true });
                continue;
            };
            let writes =
                |argument: usize| phases.iter().flat_map(|p| &p.touches).any(|t| t.written && t.place == PhaseMemory::Argument(argument));
            let bytes = launch.arguments.iter().fold(0, |sum: usize, a| sum.saturating_add(a.bytes.len()));
            let closes = before.contains(&launch.kernel);
            if (closes || (alone[launch.kernel] && bytes <= SMALL)) && kernel.working().shared == 0 {
                steps.push(DispatchStep::Alone { launch: n });
                let mut regions = whole(&writes);
                regions.push(Region { memory: first + launch.kernel, bytes: 0..1, written: true, part: AccessedPart::Whole });
                pieces.push(PackedPhase { spread: Spread::Alone, closes, partition: None, regions, whole: false });
                continue;
            }
            for (number, phase) in phases.iter().enumerate() {
                let region = |touch: &crate::phases::Touch| {
                    let (memory, bytes) = match touch.place {
                        PhaseMemory::Argument(argument) => {
                            let held = launch.arguments.get(argument)?;
                            (held.memory, held.bytes.clone())
                        }
                        PhaseMemory::Own => (first + launch.kernel, 0..1),
                        PhaseMemory::Shared => {
                            let place = places[launch.kernel].shared;
                            (first + kernels.len(), place..place + kernel.working().shared.max(1))
                        }
                    };
                    Some(Region { memory, bytes, written: touch.written, part: touch.part })
                };
                let packs = number + 1 < phases.len() && phase.touches.iter().any(|t| t.written && t.place == PhaseMemory::Shared);
                if packs {
                    // What was packed for a launch of the same kernel with the same operands is packed already, unless they have changed.
                    let operands: Vec<ArgumentMemory> = phase
                        .touches
                        .iter()
                        .filter(|t| !t.written)
                        .filter_map(|t| match t.place {
                            PhaseMemory::Argument(argument) => launch.arguments.get(argument).cloned(),
                            _ => None,
                        })
                        .collect();
                    let own = kernel.working().shared <= APART;
                    if own && packed_for[launch.kernel].as_ref() == Some(&operands) && !is_written(&pieces, &operands) {
                        continue;
                    }
                    packed_for[launch.kernel] = Some(operands);
                }
                let small = packs && kernel.working().shared <= SMALL_PACKED;
                steps.push(DispatchStep::Phase { launch: n, phase: number });
                pieces.push(PackedPhase {
                    spread: phase.spread,
                    closes: phase.spread == Spread::Alone || small,
                    partition: kernel.partition().filter(|_| matches!(phase.spread, Spread::Items { .. }) && !packs),
                    regions: phase.touches.iter().filter_map(region).collect(),
                    whole: false,
                });
            }
        }
        let groups = groups(&pieces, workers);
        let phases = phases.iter().map(|p| p.as_ref().map_or(0, Vec::len)).collect();
        Packed { phases, kernels: launches.iter().map(|l| l.kernel).collect(), steps, pieces, groups, places, working }
    }

    /// Runs all launches; calls `done` with the number of each group when the group is complete.
    ///
    /// # Errors
    /// As for [`Executable::run`].
    ///
    /// # Safety
    /// As for [`Executable::run`], with the kernels and the memory that [`Packed::new`] was given.
    pub unsafe fn run(
        &self,
        kernels: &[&dyn Executable],
        addresses: &dyn ArgumentAddresses,
        context: &RunContext,
        done: &mut dyn FnMut(usize),
    ) -> Result<Completion, KernelError> {
        let late = streams_for(context.pool.workers());
        let far = late && !context.pool.is_near();
        let mut scratch = None;
        let expired = AtomicBool::new(false);
        for (number, group) in self.groups.iter().enumerate() {
            if let [work] = group.work.as_slice()
                && let DispatchStep::Whole { launch } = self.steps[work.piece]
            {
                // It takes working memory by itself. What others have packed there would be lost, so none of it is carried over.
                drop(scratch.take());
                let mut arguments = Vec::new();
                addresses.of(launch, &mut arguments);
                // SAFETY: as promised by the caller.
                if unsafe { kernels[self.kernels[launch]].run(&arguments, context)? } == Completion::DeadlineExceeded {
                    return Ok(Completion::DeadlineExceeded);
                }
                done(number);
                continue;
            }
            let held = match &mut scratch {
                Some(held) => held,
                none => none.insert(context.pool.scratch(self.working)?),
            };
            let (own, stride) = (held.as_mut_ptr(), held.stride());
            // SAFETY: the buffer holds the parts of all workers, each as large as all kernels need, then what they share.
            let all = unsafe { WorkingMemory { own, stride, shared: own.add(held.shared_at()) } };
            let runner = Runner { packed: self, kernels, addresses, context, all, late, far, expired: &expired };
            let mut arguments = Vec::new();
            for piece in &group.before {
                // SAFETY: as promised by the caller.
                unsafe { runner.run(*piece, 0, WorkerShare::All, &mut arguments) };
            }
            let alone = |work: &groups::Work| matches!(self.pieces[work.piece].spread, Spread::Alone);
            if group.work.iter().all(alone) {
                for work in &group.work {
                    // SAFETY: as promised by the caller.
                    unsafe { runner.run(work.piece, 0, WorkerShare::All, &mut arguments) };
                }
                context.pool.count_alone(usize::from(!group.work.is_empty()));
            } else {
                let workers = context.pool.workers();
                let given: Vec<StaticPartition> = group.work.iter().map(|work| self.pieces[work.piece].spread.shares(workers)).collect();
                context.pool.broadcast(|worker| {
                    let mut arguments = Vec::new();
                    for (work, given) in group.work.iter().zip(&given) {
                        let share = match (&work.bounds, self.pieces[work.piece].spread) {
                            (Some(bounds), _) => WorkerShare::Along { from: bounds[worker], to: bounds[worker + 1] },
                            (None, Spread::Alone) if worker > 0 => continue,
                            (None, Spread::Alone) => WorkerShare::All,
                            (None, _) => WorkerShare::Taken(given),
                        };
                        // SAFETY: as promised by the caller.
                        unsafe { runner.run(work.piece, worker, share, &mut arguments) };
                    }
                });
            }
            if expired.load(Ordering::Relaxed) {
                return Ok(Completion::DeadlineExceeded);
            }
            done(number);
        }
        Ok(Completion::Done)
    }
}

/// What a worker needs to run a piece.
struct Runner<'r> {
    packed: &'r Packed,
    kernels: &'r [&'r dyn Executable],
    addresses: &'r dyn ArgumentAddresses,
    context: &'r RunContext<'r>,
    all: WorkingMemory,
    late: bool,
    far: bool,
    expired: &'r AtomicBool,
}

impl Runner<'_> {
    /// # Safety
    /// As for [`Packed::run`].
    unsafe fn run(&self, piece: usize, worker: usize, share: WorkerShare, arguments: &mut Vec<*mut u8>) {
        let step = self.packed.steps[piece];
        let launch = step.launch();
        let number = self.packed.kernels[launch];
        let kernel = self.kernels[number];
        arguments.clear();
        self.addresses.of(launch, arguments);
        let place = self.packed.places[number];
        // SAFETY: within the part that was laid out for this kernel.
        let memory = unsafe { WorkingMemory { own: self.all.own.add(place.own), shared: self.all.shared.add(place.shared), ..self.all } };
        let run = PhaseRun { arguments, context: self.context, memory, late: self.late, far: self.far };
        // SAFETY: as promised by the caller.
        let complete = unsafe {
            match step {
                DispatchStep::Phase { phase, .. } => kernel.work(phase, worker, share, &run),
                _ => (0..self.packed.phases[number]).all(|phase| kernel.work(phase, worker, share, &run)),
            }
        };
        if !complete {
            self.expired.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether any piece writes what operands lie in.
fn is_written(pieces: &[PackedPhase], operands: &[ArgumentMemory]) -> bool {
    let meets =
        |r: &Region, o: &ArgumentMemory| r.written && r.memory == o.memory && r.bytes.start < o.bytes.end && o.bytes.start < r.bytes.end;
    pieces.iter().flat_map(|p| &p.regions).any(|r| operands.iter().any(|o| meets(r, o)))
}

/// Working memory of each kernel, and of all together. Kernels whose own memory holds nothing from one phase to the next have the same.
fn places(kernels: &[&dyn Executable]) -> (Vec<Working>, Working) {
    let line = |bytes: usize| bytes.next_multiple_of(LINE);
    let brief = kernels.iter().filter(|k| !k.keeps_own_memory()).map(|k| line(k.working().own)).max().unwrap_or(0);
    let large = kernels.iter().map(|k| line(k.working().shared)).filter(|bytes| *bytes > APART).max().unwrap_or(0);
    let (mut places, mut all) = (Vec::new(), Working { own: brief, shared: large });
    for kernel in kernels {
        let needs = kernel.working();
        let (keeps, apart) = (kernel.keeps_own_memory(), line(needs.shared) <= APART);
        places.push(Working { own: if keeps { all.own } else { 0 }, shared: if apart { all.shared } else { 0 } });
        all.own += if keeps { line(needs.own) } else { 0 };
        all.shared += if apart { line(needs.shared) } else { 0 };
    }
    (places, all)
}

/// Runs a kernel by itself, phase by phase.
///
/// # Errors
/// As for [`Executable::run`].
///
/// # Safety
/// As for [`Executable::run`].
pub(crate) unsafe fn run_alone(
    kernel: &dyn Executable,
    phases: &[Phase],
    arguments: &[*mut u8],
    context: &RunContext,
) -> Result<Completion, KernelError> {
    let mut held = context.pool.scratch(kernel.working())?;
    let own = held.as_mut_ptr();
    // SAFETY: the buffer holds the scratch memory of all workers, then what they share.
    let memory = unsafe { WorkingMemory { own, stride: held.stride(), shared: own.add(held.shared_at()) } };
    let late = streams_for(context.pool.workers());
    let run = Alone(PhaseRun { arguments, context, memory, late, far: late && !context.pool.is_near() });
    let workers = context.pool.workers();
    for (number, phase) in phases.iter().enumerate() {
        if phase.spread == Spread::Alone {
            // SAFETY: as promised by the caller.
            unsafe { kernel.work(number, 0, WorkerShare::All, &run.0) };
            continue;
        }
        let items = phase.spread.shares(workers);
        let expired = AtomicBool::new(false);
        context.pool.broadcast(|worker| {
            let run = &run;
            // SAFETY: as promised by the caller.
            if !unsafe { kernel.work(number, worker, WorkerShare::Taken(&items), &run.0) } {
                expired.store(true, Ordering::Relaxed);
            }
        });
        if expired.into_inner() {
            return Ok(Completion::DeadlineExceeded);
        }
    }
    Ok(Completion::Done)
}

struct Alone<'a>(PhaseRun<'a>);
// SAFETY: workers write parts of their own, or parts that their shares give them.
unsafe impl Sync for Alone<'_> {}
