//! Packs the launches of a step: phases that need nothing of one another, or of which each worker needs nothing but its own work, share
//! dispatches (see [`kernels::packing`]).
//!
//! What conflicts is decided by memory, as for streams: a phase comes after all that touch memory which it writes, or write memory that it
//! touches.

use super::launch::{Launch, Slot, SlotPlace};
use kernels::packing::{self, ArgumentAddresses, ArgumentMemory, ListedGroup, Packed};
use kernels::pool::Working;
use kernels::{Executable, KernelError, RunContext};

/// The launches of a step in common dispatches.
pub(crate) struct Packs {
    packed: Packed,
    workers: usize,
}

/// Where the arguments of launches lie.
struct SlotAddresses<'a> {
    launches: &'a [Launch],
    pointers: &'a [*mut u8],
}
// SAFETY: workers write parts that their shares give them.
unsafe impl Sync for SlotAddresses<'_> {}

impl ArgumentAddresses for SlotAddresses<'_> {
    fn of(&self, launch: usize, into: &mut Vec<*mut u8>) {
        into.extend(self.launches[launch].arguments.iter().map(|(slot, _)| self.pointers[*slot]));
    }
}

/// The kernels of launches, in order.
fn kernels(launches: &[Launch]) -> Vec<&dyn Executable> {
    launches.iter().map(|launch| &*launch.executable).collect()
}

impl Packs {
    /// Packs launches, in their order, for a number of workers.
    pub fn of(launches: &[Launch], slots: &[Slot], workers: usize) -> Packs {
        let held = |slot: usize| {
            let Slot { bytes, place, .. } = &slots[slot];
            match place {
                SlotPlace::Held(_) => ArgumentMemory { memory: slot, bytes: 0..*bytes },
                SlotPlace::Over(held) => ArgumentMemory { memory: *held, bytes: 0..*bytes },
                SlotPlace::Arena(offset) => ArgumentMemory { memory: slots.len(), bytes: *offset..offset + bytes },
            }
        };
        let of = |(kernel, launch): (usize, &Launch)| packing::PackedLaunch {
            kernel,
            arguments: launch.arguments.iter().map(|(slot, _)| held(*slot)).collect(),
        };
        let each: Vec<packing::PackedLaunch> = launches.iter().enumerate().map(of).collect();
        Packs { packed: Packed::new(&kernels(launches), &each, workers), workers }
    }

    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The groups as data, and where each launch's working memory begins in that of all.
    pub fn listed(&self) -> (Vec<ListedGroup>, &[Working]) {
        (self.packed.listed().collect(), self.packed.places())
    }

    /// Working memory of all launches.
    pub fn working(&self) -> Working {
        self.packed.working()
    }

    /// The launches that take part in each group between two barriers.
    pub fn groups(&self) -> Vec<Vec<usize>> {
        self.packed.groups().collect()
    }

    /// Runs a step; calls `done` with the number of each group when the group is complete.
    pub fn run(
        &self,
        launches: &[Launch],
        pointers: &[*mut u8],
        context: &RunContext,
        done: &mut dyn FnMut(usize),
    ) -> Result<(), KernelError> {
        let addresses = SlotAddresses { launches, pointers };
        // SAFETY: slots are as large as their container in their layout, and alive slots do not overlap, but where a kernel was compiled to
        // write in place; groups keep apart what one launch writes and another one touches.
        unsafe { self.packed.run(&kernels(launches), &addresses, context, done) }.map(|_| ())
    }
}
