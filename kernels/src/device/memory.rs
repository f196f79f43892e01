//! Memory of a device, and the way between it and host arrays.

use crate::buffer::AlignedBuffer;
use crate::error::KernelError;
use ndarray::ArrayD;
use sdfg::{Container, Layout};

/// Memory that a device has besides that of this machine.
pub trait OwnMemory: std::fmt::Debug + Send + Sync {
    /// Where it begins, as kernels of the device take it.
    fn address(&self) -> u64;

    /// Bytes.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes to this machine, from a place on.
    ///
    /// # Errors
    /// More bytes than there are; a device that failed.
    fn read(&self, at: usize, to: &mut [u8]) -> Result<(), KernelError>;

    /// Copies bytes from this machine, to a place on.
    ///
    /// # Errors
    /// More bytes than there are; a device that failed.
    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), KernelError>;
}

/// Bytes where kernels can reach them.
#[derive(Debug)]
pub enum DeviceMemory {
    /// Of this machine.
    Host(AlignedBuffer),
    /// Of a device that has its own.
    Own(Box<dyn OwnMemory>),
}

impl DeviceMemory {
    /// What kernels take: an address of the device that the memory belongs to.
    pub fn address(&mut self) -> *mut u8 {
        match self {
            DeviceMemory::Host(buffer) => buffer.as_mut_ptr(),
            DeviceMemory::Own(memory) => memory.address() as *mut u8,
        }
    }

    /// Throws the lines of its first bytes out of the caches; false where Memlet does not know how.
    pub fn flush(&self, bytes: usize) -> bool {
        match self {
            DeviceMemory::Host(buffer) => buffer.flush(bytes),
            DeviceMemory::Own(_) => false,
        }
    }

    pub fn len(&self) -> usize {
        match self {
            DeviceMemory::Host(buffer) => buffer.len(),
            DeviceMemory::Own(memory) => memory.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes a pattern again and again.
    ///
    /// # Errors
    /// A device that failed.
    pub fn fill(&mut self, pattern: &[u8]) -> Result<(), KernelError> {
        let repeat = |bytes: &mut [u8]| match pattern {
            [byte] => bytes.fill(*byte),
            _ => bytes.chunks_mut(pattern.len().max(1)).for_each(|chunk| chunk.copy_from_slice(&pattern[..chunk.len()])),
        };
        match self {
            DeviceMemory::Host(buffer) => repeat(buffer.as_mut_slice()),
            DeviceMemory::Own(memory) => {
                let mut bytes = vec![0; memory.len()];
                repeat(&mut bytes);
                memory.write(0, &bytes)?;
            }
        }
        Ok(())
    }

    /// Writes an array (axes in the container's order of dims) in the container's element type and the given layout.
    ///
    /// # Errors
    /// An array of another size; a layout of other dims; a device that failed.
    pub fn pack(&mut self, container: &Container, layout: &Layout, array: &ArrayD<f64>) -> Result<(), KernelError> {
        match self {
            DeviceMemory::Host(buffer) => buffer.pack(container, layout, array),
            DeviceMemory::Own(memory) => {
                let mut buffer = AlignedBuffer::new(memory.len())?;
                buffer.pack(container, layout, array)?;
                memory.write(0, buffer.as_slice())
            }
        }
    }

    /// The array of this shape (axes in the container's order of dims) that the memory holds from a byte on.
    ///
    /// # Errors
    /// A shape of another size; a layout of other dims; a device that failed.
    pub fn unpack(&self, at: usize, container: &Container, layout: &Layout, shape: &[usize]) -> Result<ArrayD<f64>, KernelError> {
        match self {
            DeviceMemory::Host(buffer) => buffer.unpack_from(at, container, layout, shape),
            DeviceMemory::Own(memory) => {
                let bytes = container.dtype.bytes(layout.extent(&container.dims, shape).unwrap_or_default() as u64) as usize;
                let mut buffer = AlignedBuffer::new(bytes)?;
                memory.read(at, buffer.as_mut_slice())?;
                buffer.unpack(container, layout, shape)
            }
        }
    }

    /// A copy of a part of it.
    ///
    /// # Errors
    /// More bytes than there are; a device that failed.
    pub fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, KernelError> {
        match self {
            DeviceMemory::Host(buffer) => {
                let all = buffer.as_slice();
                let part = at.checked_add(bytes).and_then(|end| all.get(at..end));
                part.map(<[u8]>::to_vec).ok_or(KernelError::Beyond { at, bytes, len: all.len() })
            }
            DeviceMemory::Own(memory) => {
                let mut copy = vec![0; bytes];
                memory.read(at, &mut copy).map(|()| copy)
            }
        }
    }

    /// Writes bytes into it from a place on.
    ///
    /// # Errors
    /// More bytes than there are; a device that failed.
    pub fn write(&mut self, at: usize, from: &[u8]) -> Result<(), KernelError> {
        match self {
            DeviceMemory::Host(buffer) => {
                let all = buffer.as_mut_slice();
                let (bytes, len) = (from.len(), all.len());
                let part = all.get_mut(at..at.saturating_add(bytes));
                part.map(|part| part.copy_from_slice(from)).ok_or(KernelError::Beyond { at, bytes, len })
            }
            DeviceMemory::Own(memory) => memory.write(at, from),
        }
    }

    /// Writes one byte again and again into a part of it, where that takes no copy.
    pub fn spoil(&mut self, at: usize, bytes: usize, with: u8) {
        if let DeviceMemory::Host(buffer) = self {
            buffer.as_mut_slice().get_mut(at..at + bytes).unwrap_or_default().fill(with);
        }
    }
}
