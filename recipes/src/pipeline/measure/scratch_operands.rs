//! The memory that kernels are timed on. All kernels of a sweep share it, so that the next kernel costs nothing: allocating, touching and
//! filling an attention layer's inputs takes longer than running a kernel on them.
//!
//! Memory for inputs is never written and keeps its signed numbers; memory for results holds whatever the last kernel wrote.

use kernels::KernelError;
use kernels::device::{Device, DeviceMemory};
use sdfg::Dtype;
use std::cmp::Reverse;

/// Values that the numbers in a piece of memory repeat: times depend on addresses, not on values (no denormals, no NaN).
const PATTERN: usize = 1 << 16;
/// From here on memory is backed by huge pages, and begins on one.
const LARGE: usize = kernels::buffer::HUGE;

/// The memory of one kernel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScratchBuffer {
    pub dtype: Dtype,
    pub bytes: usize,
    pub written: bool,
}

impl ScratchBuffer {
    /// Arguments share memory with those of their kind only: small ones lie elsewhere than large ones.
    fn is_like(&self, other: &ScratchBuffer) -> bool {
        (self.dtype, self.written, self.bytes >= LARGE) == (other.dtype, other.written, other.bytes >= LARGE)
    }
}

/// Memory for the arguments of one kernel at a time, as much as the largest so far has needed.
#[derive(Default)]
pub struct ScratchOperands {
    /// Within each kind, the larger buffers come first.
    held: Vec<(ScratchBuffer, Option<DeviceMemory>)>,
}

impl ScratchOperands {
    /// Memory for every argument, in their order, as indices for [`ScratchOperands::address`] and [`ScratchOperands::memory`].
    ///
    /// # Errors
    /// No memory; a device that failed.
    pub fn take(&mut self, rooms: &[ScratchBuffer], device: &dyn Device, seed: u64) -> Result<Vec<usize>, KernelError> {
        let mut order: Vec<usize> = (0..rooms.len()).collect();
        order.sort_by_key(|n| Reverse(rooms[*n].bytes));
        let (mut taken, mut found) = (vec![false; self.held.len()], vec![0; rooms.len()]);
        for n in order {
            let room = rooms[n];
            let free = (0..self.held.len()).find(|at| !taken[*at] && self.held[*at].0.is_like(&room));
            let at = match free {
                Some(at) if self.held[at].0.bytes >= room.bytes && self.held[at].1.is_some() => at,
                Some(at) => {
                    // The smaller buffer is freed first: there may not be memory for both.
                    self.held[at].1 = None;
                    self.held[at] = (room, Some(filled(room, at, device, seed)?));
                    at
                }
                None => {
                    self.held.push((room, Some(filled(room, self.held.len(), device, seed)?)));
                    taken.push(false);
                    self.held.len() - 1
                }
            };
            taken[at] = true;
            found[n] = at;
        }
        Ok(found)
    }

    pub fn address(&mut self, at: usize) -> *mut u8 {
        self.held[at].1.as_mut().map_or(std::ptr::null_mut(), DeviceMemory::address)
    }

    /// The buffer at an index.
    pub fn memory(&self, at: usize) -> Option<&DeviceMemory> {
        self.held[at].1.as_ref()
    }
}

fn filled(room: ScratchBuffer, number: usize, device: &dyn Device, seed: u64) -> Result<DeviceMemory, KernelError> {
    let mut memory = device.memory(room.bytes)?;
    let values = sdfg::random::tensor(seed, &number.to_string(), PATTERN).into_iter();
    let pattern: Vec<u8> = match room.dtype {
        Dtype::F64 => values.flat_map(f64::to_le_bytes).collect(),
        Dtype::Bf16 => values.flat_map(|v| sdfg::rounding::to_bf16(v).to_le_bytes()).collect(),
        Dtype::F16 => values.flat_map(|v| sdfg::rounding::to_f16(v).to_le_bytes()).collect(),
        // From 0 to 3.
        Dtype::I64 => values.flat_map(|v| ((v + 2.0) as i64).to_le_bytes()).collect(),
        Dtype::I32 => values.flat_map(|v| ((v + 2.0) as i32).to_le_bytes()).collect(),
        _ => values.flat_map(|v| (v as f32).to_le_bytes()).collect(),
    };
    memory.fill(&pattern)?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Toolchain;
    use kernels::target::cpu::Cores;

    fn room(bytes: usize, written: bool) -> ScratchBuffer {
        ScratchBuffer { dtype: Dtype::F32, bytes, written }
    }

    #[test]
    fn kernels_share_memory_and_no_two_arguments_do() -> Result<(), Box<dyn std::error::Error>> {
        let device = Cores { toolchain: Toolchain::system()? };
        let mut operands = ScratchOperands::default();
        let first = operands.take(&[room(4096, false), room(8192, false), room(8192, true)], &device, 1)?;
        assert!(first[0] != first[1] && first[1] != first[2] && first[0] != first[2]);
        let addresses: Vec<_> = first.iter().map(|n| operands.address(*n)).collect();
        // The larger of two arguments takes the larger memory, in any order.
        let again = operands.take(&[room(8000, false), room(4000, false)], &device, 1)?;
        assert_eq!([again[0], again[1]].map(|n| operands.address(n)), [addresses[1], addresses[0]]);
        let more = operands.take(&[room(8192, false), room(8192, false), room(64, true), room(64, true)], &device, 1)?;
        assert_eq!((operands.address(more[0]), operands.address(more[2])), (addresses[1], addresses[2]));
        assert!(more.iter().all(|n| more.iter().filter(|m| *m == n).count() == 1));
        Ok(())
    }

    #[test]
    fn inputs_hold_numbers_that_no_kernel_writes() -> Result<(), Box<dyn std::error::Error>> {
        let device = Cores { toolchain: Toolchain::system()? };
        let mut operands = ScratchOperands::default();
        let taken = operands.take(&[room(64, true), room(64, false)], &device, 1)?;
        // SAFETY: both have 64 bytes.
        let values = |at: *mut u8| unsafe { std::slice::from_raw_parts_mut(at.cast::<f32>(), 16) };
        let read = values(operands.address(taken[1])).to_vec();
        assert!(read.iter().all(|v| v.is_normal()) && read.iter().any(|v| *v < 0.0), "{read:?}");
        values(operands.address(taken[0])).fill(f32::NAN);
        let other = operands.take(&[room(32, false), room(32, false)], &device, 1)?;
        for at in other {
            assert!(values(operands.address(at))[..8].iter().all(|v| v.is_normal()));
        }
        Ok(())
    }
}
