//! A GPU in use: its context, one stream, memory, and work captured as a graph.

use super::driver::{Driver, Gpu, failed};
use crate::error::KernelError;
use cudarc::driver::result::{self, ctx, device, event, graph, primary_ctx, stream};
use cudarc::driver::sys::{self, CUevent_flags_enum, CUgraphInstantiate_flags, CUstreamCaptureMode_enum};
use std::sync::Arc;

/// The primary context of a GPU and a stream of its own.
pub struct Context {
    pub gpu: Gpu,
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
}

// SAFETY: the driver's handles may be used by any thread; `current` binds the context before they are.
unsafe impl Send for Context {}
// SAFETY: as above; the driver serialises work on one stream.
unsafe impl Sync for Context {}

/// Bytes on the GPU.
#[derive(Debug)]
pub struct Memory {
    context: Arc<Context>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

/// Work captured from a stream, launched as one.
pub struct Graph {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
}

// SAFETY: as for the context.
unsafe impl Send for Graph {}

impl Context {
    /// GPU `number` of this machine.
    ///
    /// # Errors
    /// No driver, no such GPU.
    pub fn new(number: usize) -> Result<Arc<Self>, KernelError> {
        let driver = Driver::find()?;
        let count = driver.gpus.len();
        let gpu = driver.gpus.into_iter().nth(number);
        let gpu = gpu.ok_or_else(|| KernelError::NoGpu { what: format!("there are {count} GPUs, but number {number} was asked for") })?;
        let device = device::get(gpu.number).map_err(failed("cuDeviceGet"))?;
        // SAFETY: the device was just asked for; the context is released when this value is dropped.
        let context = unsafe { primary_ctx::retain(device) }.map_err(failed("cuDevicePrimaryCtxRetain"))?;
        // SAFETY: the context was just retained.
        unsafe { ctx::set_current(context) }.map_err(failed("cuCtxSetCurrent"))?;
        let stream = stream::create(stream::StreamKind::NonBlocking).map_err(failed("cuStreamCreate"))?;
        Ok(Arc::new(Context { gpu, device, context, stream }))
    }

    /// Makes the context the calling thread's.
    ///
    /// # Errors
    /// A device that was taken away.
    pub fn current(&self) -> Result<(), KernelError> {
        // SAFETY: retained until this value is dropped.
        unsafe { ctx::set_current(self.context) }.map_err(failed("cuCtxSetCurrent"))
    }

    pub fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Memory, not initialised.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn memory(self: &Arc<Self>, bytes: usize) -> Result<Memory, KernelError> {
        self.current()?;
        if bytes == 0 {
            return Ok(Memory { context: self.clone(), address: 0, bytes });
        }
        // SAFETY: freed once, when the value is dropped.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(|e| {
            let (free, total) = result::mem_get_info().unwrap_or((0, self.gpu.memory));
            match e.0 {
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => KernelError::GpuMemory { gpu: self.gpu.name.clone(), bytes, free, total },
                _ => failed("cuMemAlloc")(e),
            }
        })?;
        Ok(Memory { context: self.clone(), address, bytes })
    }

    /// Free bytes of the GPU.
    ///
    /// # Errors
    /// A device that failed.
    pub fn free(&self) -> Result<usize, KernelError> {
        self.current()?;
        Ok(result::mem_get_info().map_err(failed("cuMemGetInfo"))?.0)
    }

    /// Waits for the stream. A kernel that failed is reported here.
    ///
    /// # Errors
    /// Whatever went wrong since the last wait.
    pub fn wait(&self) -> Result<(), KernelError> {
        self.current()?;
        // SAFETY: the stream lives as long as this value.
        unsafe { stream::synchronize(self.stream) }.map_err(failed("a kernel on the GPU"))
    }

    /// Milliseconds that the GPU takes for `work`, between two events on the stream.
    ///
    /// # Errors
    /// What `work` returns, and kernels that failed.
    pub fn milliseconds(&self, work: impl FnOnce() -> Result<(), KernelError>) -> Result<f64, KernelError> {
        self.current()?;
        let (start, end) = (Event::new()?, Event::new()?);
        // SAFETY: events and stream live until the end of this function.
        unsafe { event::record(start.0, self.stream) }.map_err(failed("cuEventRecord"))?;
        work()?;
        // SAFETY: as above.
        unsafe { event::record(end.0, self.stream) }.map_err(failed("cuEventRecord"))?;
        self.wait()?;
        // SAFETY: as above; both events have happened.
        let ms = unsafe { event::elapsed(start.0, end.0) }.map_err(failed("cuEventElapsedTime"))?;
        Ok(f64::from(ms))
    }

    /// Captures what `work` puts on the stream.
    ///
    /// # Errors
    /// What `work` returns; work that cannot be captured.
    pub fn capture(self: &Arc<Self>, work: impl FnOnce() -> Result<(), KernelError>) -> Result<Graph, KernelError> {
        self.current()?;
        // SAFETY: the stream lives as long as this value.
        unsafe { stream::begin_capture(self.stream, CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) }
            .map_err(failed("cuStreamBeginCapture"))?;
        let outcome = work();
        // SAFETY: as above. The capture ends whatever came of the work.
        let captured = unsafe { stream::end_capture(self.stream) };
        outcome?;
        let captured = captured.map_err(failed("cuStreamEndCapture"))?;
        // SAFETY: the graph was just captured, and is destroyed once.
        let executable = unsafe {
            let executable = graph::instantiate(captured, CUgraphInstantiate_flags(0)).map_err(failed("cuGraphInstantiate"));
            let _ = graph::destroy(captured);
            executable?
        };
        Ok(Graph { context: self.clone(), executable })
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.gpu)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: made in `new`, given back once. Errors at the end have nobody to go to.
        unsafe {
            let _ = stream::destroy(self.stream);
            let _ = primary_ctx::release(self.device);
        }
    }
}

struct Event(sys::CUevent);

impl Event {
    fn new() -> Result<Self, KernelError> {
        event::create(CUevent_flags_enum::CU_EVENT_DEFAULT).map(Event).map_err(failed("cuEventCreate"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { event::destroy(self.0) };
    }
}

impl Memory {
    pub fn address(&self) -> u64 {
        self.address
    }

    pub fn len(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies to the GPU, after everything on the stream.
    ///
    /// # Errors
    /// More bytes than there are; a device that failed.
    pub fn write(&mut self, from: &[u8]) -> Result<(), KernelError> {
        self.fits(from.len())?;
        // The copy is on another stream than the kernels.
        self.context.wait()?;
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: the bytes fit.
        unsafe { result::memcpy_htod_sync(self.address, from) }.map_err(failed("a copy to the GPU"))?;
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
            unsafe { result::memset_d8_async(self.address, 0, self.bytes, self.context.stream) }.map_err(failed("cuMemsetD8Async"))?;
        }
        self.context.wait()
    }

    /// Puts a copy of other memory of the same context on the stream.
    ///
    /// # Errors
    /// More bytes than there are; a device that failed.
    pub fn copy(&mut self, from: &Memory) -> Result<(), KernelError> {
        self.fits(from.bytes)?;
        self.context.current()?;
        // SAFETY: the bytes fit, and both live until the stream has been waited for: dropping waits.
        unsafe { result::memcpy_dtod_async(self.address, from.address, from.bytes, self.context.stream) }
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

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 && self.context.wait().is_ok() {
            // SAFETY: allocated by `Context::memory`, freed once; nothing on the stream uses it any more.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

impl Graph {
    /// Puts the captured work on the stream.
    ///
    /// # Errors
    /// A device that failed.
    pub fn launch(&self) -> Result<(), KernelError> {
        self.context.current()?;
        // SAFETY: graph and stream live as long as this value.
        unsafe { graph::launch(self.executable, self.context.stream) }.map_err(failed("cuGraphLaunch"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.current().is_ok() {
            // SAFETY: made by `Context::capture`, destroyed once.
            let _ = unsafe { graph::exec_destroy(self.executable) };
        }
    }
}
