//! The launches of a step, and where their arguments lie in memory.

use super::streams::LaunchRegion;
use kernels::device::DeviceMemory;
use kernels::{Completion, Executable, InPlace, KernelError, MemberTimes, RunContext};
use sdfg::{Direction, Layout};
use std::sync::Arc;

/// One launch: a kernel, or a relayout.
pub(crate) struct Launch {
    pub name: String,
    pub pass: Direction,
    /// Whether it copies its first argument in the layout of its second.
    pub is_relayout: bool,
    pub executable: Arc<dyn Executable>,
    /// Slots of memory, in the order of the kernel's arguments, and whether the kernel writes them.
    pub arguments: Vec<(usize, bool)>,
    /// Pairs of arguments where it writes one in place of the other.
    pub in_place: Vec<InPlace>,
    /// Slots whose lifetime ends here, unless another takes their place: offset and bytes in the arena.
    pub ends: Vec<(usize, usize)>,
}

/// Where a container, in one layout, lives.
pub(crate) struct Slot {
    /// Container and layout: a relayouted copy is a slot of its own.
    pub data: String,
    pub layout: Layout,
    pub bytes: usize,
    pub place: SlotPlace,
}

pub(crate) enum SlotPlace {
    /// In memory of its own, kept across steps.
    Held(DeviceMemory),
    /// In the arena, at this offset.
    Arena(usize),
    /// Where another slot lies, which is held: it is written in place.
    Over(usize),
}

impl Launch {
    /// Runs it, a loop kernel by kernel with the time of each.
    pub fn run_members(&self, pointers: &[*mut u8], context: &RunContext) -> Result<Option<Vec<MemberTimes>>, KernelError> {
        let arguments: Vec<*mut u8> = self.arguments.iter().map(|(slot, _)| pointers[*slot]).collect();
        // SAFETY: as for `run`.
        if let Some(members) = unsafe { self.executable.run_members(&arguments, context)? } {
            return Ok(Some(members));
        }
        self.run(pointers, context).map(|()| None)
    }

    pub fn run(&self, pointers: &[*mut u8], context: &RunContext) -> Result<(), KernelError> {
        let arguments: Vec<*mut u8> = self.arguments.iter().map(|(slot, _)| pointers[*slot]).collect();
        // SAFETY: slots are as large as their container in their layout, and alive slots do not overlap, but where the kernel was
        // compiled to write in place.
        match unsafe { self.executable.run(&arguments, context)? } {
            Completion::Done => Ok(()),
            Completion::DeadlineExceeded => {
                Err(KernelError::Unsupported { kernel: self.name.clone(), what: "it stopped early without a deadline".into() })
            }
        }
    }
}

/// The memory that each launch reads and writes: slots of their own, or the shared arena.
pub(in crate::pipeline) fn regions(slots: &[Slot], launches: &[&Launch]) -> Vec<Vec<LaunchRegion>> {
    let region = |(slot, written): &(usize, bool)| {
        let Slot { bytes, place, .. } = &slots[*slot];
        let (memory, from) = match place {
            SlotPlace::Held(_) => (*slot, 0),
            SlotPlace::Over(held) => (*held, 0),
            SlotPlace::Arena(offset) => (slots.len(), *offset),
        };
        LaunchRegion { memory, bytes: from..from + bytes, written: *written }
    };
    launches.iter().map(|l| l.arguments.iter().map(region).collect()).collect()
}

/// The tensors that each launch reads and writes, as regions of one byte: the memory of each is the number of the tensor.
pub(in crate::pipeline) fn dataflow<'a>(arguments: impl Iterator<Item = &'a [(usize, bool)]>) -> Vec<Vec<LaunchRegion>> {
    let region = |(slot, written): &(usize, bool)| LaunchRegion { memory: *slot, bytes: 0..1, written: *written };
    arguments.map(|each| each.iter().map(region).collect()).collect()
}
