//! Saves and restores the inputs that a launch overwrites, so that repeated runs all get the inputs of the first.

use super::launch::{Slot, SlotPlace};
use super::streams::LaunchRegion;
use kernels::KernelError;
use kernels::device::DeviceMemory;
use std::ops::Range;

/// The contents of regions that a launch both reads and writes.
#[derive(Default)]
pub(in crate::pipeline) struct SavedInputs {
    parts: Vec<(usize, Range<usize>, Vec<u8>)>,
}

impl SavedInputs {
    /// Copies the memory that a launch with these regions reads and overwrites.
    ///
    /// # Errors
    /// A device that failed.
    pub fn before(regions: Vec<LaunchRegion>, slots: &[Slot], arena: &DeviceMemory) -> Result<Self, KernelError> {
        let shared =
            |a: &LaunchRegion, b: &LaunchRegion| a.memory == b.memory && a.bytes.start < b.bytes.end && b.bytes.start < a.bytes.end;
        let read = |written: &&LaunchRegion| regions.iter().any(|r| !r.written && shared(r, written));
        let mut parts = Vec::new();
        for region in regions.iter().filter(|r| r.written).filter(read) {
            let memory = match slots.get(region.memory).map(|s| &s.place) {
                Some(SlotPlace::Held(memory)) => memory,
                _ => arena,
            };
            parts.push((region.memory, region.bytes.clone(), memory.read(region.bytes.start, region.bytes.len())?));
        }
        Ok(SavedInputs { parts })
    }

    /// # Errors
    /// A device that failed.
    pub fn put_back(&self, slots: &mut [Slot], arena: &mut DeviceMemory) -> Result<(), KernelError> {
        for (memory, bytes, copy) in &self.parts {
            let memory = match slots.get_mut(*memory).map(|s| &mut s.place) {
                Some(SlotPlace::Held(memory)) => memory,
                _ => &mut *arena,
            };
            memory.write(bytes.start, copy)?;
        }
        Ok(())
    }
}
