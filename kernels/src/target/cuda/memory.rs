//! Memory of a GPU.

use crate::device::OwnMemory;
use crate::error::KernelError;
use crate::target::cuda::context::CudaContext;
use crate::target::cuda::driver::failed;
use cudarc::driver::result::{self, ctx};
use cudarc::driver::sys;
use std::sync::Arc;

/// Bytes on the GPU.
#[derive(Debug)]
pub struct GpuMemory {
    context: Arc<CudaContext>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl GpuMemory {
    /// Memory, not initialised.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self, KernelError> {
        context.current()?;
        let address = if bytes == 0 { 0 } else { context.allocate(bytes)? };
        Ok(GpuMemory { context: context.clone(), address, bytes })
    }

    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies to the GPU, from a byte on, after everything on the stream.
    ///
    /// # Errors
    /// More bytes than there are; a device that failed.
    pub fn write(&mut self, at: usize, from: &[u8]) -> Result<(), KernelError> {
        self.fits(at.saturating_add(from.len()))?;
        // The copy is on another stream than the kernels.
        self.context.wait()?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes fit.
        unsafe { result::memcpy_htod_sync(self.address + at as u64, from) }.map_err(failed("a copy to the GPU"))?;
        // It returns when the bytes have been read, which may be before they have arrived; the stream does not wait for that.
        ctx::synchronize().map_err(failed("a copy to the GPU"))
    }

    /// Sets every byte to 0, before anything that is put on the stream later.
    ///
    /// # Errors
    /// A device that failed.
    pub fn zero(&mut self) -> Result<(), KernelError> {
        self.context.current()?;
        if self.bytes > 0 {
            // SAFETY: the memory has these bytes.
            unsafe { result::memset_d8_async(self.address, 0, self.bytes, self.context.stream()) }.map_err(failed("cuMemsetD8Async"))?;
        }
        self.context.wait()
    }

    /// Puts a copy of other memory of the same context on the stream.
    ///
    /// # Errors
    /// More bytes than there are; a device that failed.
    pub fn copy(&mut self, from: &GpuMemory) -> Result<(), KernelError> {
        self.fits(from.bytes)?;
        self.context.current()?;
        // SAFETY: the bytes fit, and both live until the stream has been waited for: dropping waits.
        unsafe { result::memcpy_dtod_async(self.address, from.address, from.bytes, self.context.stream()) }
            .map_err(failed("a copy on the GPU"))
    }

    /// Copies from the GPU, from a byte on, after everything on the stream.
    ///
    /// # Errors
    /// More bytes than there are; a kernel or device that failed.
    pub fn read(&self, at: usize, to: &mut [u8]) -> Result<(), KernelError> {
        self.fits(at.saturating_add(to.len()))?;
        self.context.wait()?;
        if to.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes fit.
        unsafe { result::memcpy_dtoh_sync(to, self.address + at as u64) }.map_err(failed("a copy from the GPU"))
    }

    fn fits(&self, bytes: usize) -> Result<(), KernelError> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(KernelError::Cuda { what: format!("{bytes} bytes do not fit into memory of {} bytes", self.bytes) })
    }
}

impl Drop for GpuMemory {
    fn drop(&mut self) {
        if self.address != 0 && self.context.wait().is_ok() {
            // SAFETY: allocated by `CudaContext::allocate`, freed once; nothing on the stream uses it any more.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

impl OwnMemory for GpuMemory {
    fn address(&self) -> u64 {
        self.address
    }

    fn len(&self) -> usize {
        self.bytes
    }

    fn read(&self, at: usize, to: &mut [u8]) -> Result<(), KernelError> {
        GpuMemory::read(self, at, to)
    }

    fn write(&mut self, at: usize, from: &[u8]) -> Result<(), KernelError> {
        GpuMemory::write(self, at, from)
    }
}
