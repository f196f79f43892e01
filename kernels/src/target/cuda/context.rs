//! A GPU in use: its context, its streams, and what all launches share.

use crate::error::KernelError;
use crate::target::cuda::driver::{Driver, Gpu, failed};
use crate::target::cuda::emit::{DRAWN, drawn};
use cudarc::driver::result::{self, ctx, device, event, primary_ctx, stream};
use cudarc::driver::sys::{self, CUevent_flags_enum};
use sdfg::interpret::Run;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Streams of a GPU: as many as a layer has kernels that wait for nothing of one another, and one more.
pub const STREAMS: usize = 4;

/// What has not ended after that never will: whatever is measured takes seconds at most.
const LONGEST: Duration = Duration::from_secs(20);
/// How long a waiting thread polls without a pause; after that it polls with pauses of [`PAUSE`].
const BUSY: Duration = Duration::from_millis(2);
const PAUSE: Duration = Duration::from_micros(200);

/// The primary context of a GPU and streams of its own. Everything begins and ends on the first of them.
pub struct CudaContext {
    pub gpu: Gpu,
    device: sys::CUdevice,
    context: sys::CUcontext,
    pub(crate) streams: Vec<sys::CUstream>,
    /// The stream that takes launches.
    pub(crate) at: AtomicUsize,
    /// Whether work is recorded, not run.
    pub(crate) recording: AtomicBool,
    /// What the current recording remembers, by number.
    pub(crate) marks: Mutex<BTreeMap<usize, Event>>,
    /// The device memory with a run's random state, and its contents.
    draw: sys::CUdeviceptr,
    drawn: Mutex<Option<Run>>,
    /// Written to empty the second-level cache; made when it is needed.
    flushed: Mutex<sys::CUdeviceptr>,
    /// Whether a kernel does not end: every call of the driver that waits for it would not either.
    stuck: AtomicBool,
}

// SAFETY: the driver's handles may be used by any thread; `current` binds the context before they are.
unsafe impl Send for CudaContext {}
// SAFETY: as above; the driver serialises work on one stream.
unsafe impl Sync for CudaContext {}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CudaContext {
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
        let mut made = CudaContext {
            gpu,
            device,
            context,
            streams: Vec::new(),
            at: AtomicUsize::new(0),
            recording: AtomicBool::new(false),
            marks: Mutex::default(),
            draw: 0,
            drawn: Mutex::default(),
            flushed: Mutex::default(),
            stuck: AtomicBool::new(false),
        };
        made.current()?;
        for _ in 0..STREAMS {
            made.streams.push(stream::create(stream::StreamKind::NonBlocking).map_err(failed("cuStreamCreate"))?);
        }
        made.draw = made.allocate(DRAWN * size_of::<u64>())?;
        Ok(Arc::new(made))
    }

    /// Makes the context the calling thread's.
    ///
    /// # Errors
    /// A device that was taken away; one that a kernel occupies for good.
    pub fn current(&self) -> Result<(), KernelError> {
        if self.stuck.load(Ordering::Relaxed) {
            return Err(KernelError::Crash { what: format!("a kernel on the GPU had not ended after {} s", LONGEST.as_secs()) });
        }
        // SAFETY: retained until this value is dropped.
        unsafe { ctx::set_current(self.context) }.map_err(failed("cuCtxSetCurrent"))
    }

    /// The number of the stream that takes launches: the first one, unless a recording says otherwise.
    pub fn at(&self) -> usize {
        self.at.load(Ordering::Relaxed)
    }

    /// The stream that takes launches.
    pub fn stream(&self) -> sys::CUstream {
        self.streams[self.at()]
    }

    /// The address of new memory of at least one byte; the caller frees it.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<sys::CUdeviceptr, KernelError> {
        // SAFETY: freed once, by the caller.
        unsafe { result::malloc_sync(bytes) }.map_err(|e| {
            let (free, total) = result::mem_get_info().unwrap_or((0, self.gpu.memory));
            match e.0 {
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => KernelError::GpuMemory { gpu: self.gpu.name.clone(), bytes, free, total },
                _ => failed("cuMemAlloc")(e),
            }
        })
    }

    /// Free bytes of the GPU.
    ///
    /// # Errors
    /// A device that failed.
    pub fn free(&self) -> Result<usize, KernelError> {
        self.current()?;
        Ok(result::mem_get_info().map_err(failed("cuMemGetInfo"))?.0)
    }

    /// Where kernels find what was drawn last.
    pub fn draw_address(&self) -> u64 {
        self.draw
    }

    /// Sets the random state for the masks of all later launches; a recording reads the state when it runs.
    ///
    /// # Errors
    /// A device that failed.
    pub fn draw(&self, run: &Run) -> Result<(), KernelError> {
        let mut known = locked(&self.drawn);
        if self.recording.load(Ordering::Relaxed) || *known == Some(*run) {
            return Ok(());
        }
        self.current()?;
        *known = None;
        // SAFETY: the memory has these words. They may go away at once: the driver has read them when it returns (CUDA Driver API,
        // "API synchronization behavior", asynchronous copies from pageable memory).
        unsafe { result::memcpy_htod_async(self.draw, &drawn(run), self.streams[0]) }.map_err(failed("a copy to the GPU"))?;
        *known = Some(*run);
        Ok(())
    }

    /// Bytes that [`CudaContext::flush`] writes.
    pub fn flushing(&self) -> usize {
        2 * self.gpu.cache
    }

    /// Evicts everything from the second-level cache, before later launches on the stream, by writing twice as much as it holds.
    ///
    /// # Errors
    /// Not enough memory; a device that failed.
    pub fn flush(&self) -> Result<(), KernelError> {
        self.current()?;
        let bytes = self.flushing();
        let mut address = locked(&self.flushed);
        if *address == 0 && bytes > 0 {
            *address = self.allocate(bytes)?;
        }
        // SAFETY: the memory has these bytes.
        unsafe { result::memset_d8_async(*address, 0, bytes, self.stream()) }.map_err(failed("cuMemsetD8Async"))
    }

    /// Waits for the first stream, where everything ends. A kernel that failed, or does not end, is reported here.
    ///
    /// # Errors
    /// Whatever went wrong since the last wait.
    pub fn wait(&self) -> Result<(), KernelError> {
        self.current()?;
        let begin = Instant::now();
        loop {
            // SAFETY: the stream lives as long as this value.
            match unsafe { sys::cuStreamQuery(self.streams[0]) } {
                sys::CUresult::CUDA_ERROR_NOT_READY if begin.elapsed() > LONGEST => {
                    self.stuck.store(true, Ordering::Relaxed);
                    return self.current();
                }
                sys::CUresult::CUDA_ERROR_NOT_READY if begin.elapsed() > BUSY => std::thread::sleep(PAUSE),
                // Yielding the core would mean waiting some milliseconds for the thread that takes it.
                sys::CUresult::CUDA_ERROR_NOT_READY => std::hint::spin_loop(),
                ended => return ended.result().map_err(failed("a kernel on the GPU")),
            }
        }
    }

    /// Whether all that the GPU was given has ended well. Not to be known while work is recorded.
    pub fn is_well(&self) -> bool {
        let mut status = sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream lives as long as this value.
        let asked = unsafe { sys::cuStreamIsCapturing(self.stream(), &mut status) };
        let records = status != sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
        asked == sys::CUresult::CUDA_SUCCESS && !records && self.wait().is_ok()
    }

    /// Milliseconds that the GPU takes for `work`, between two events on the stream.
    ///
    /// # Errors
    /// What `work` returns, and kernels that failed.
    pub fn milliseconds(&self, work: impl FnOnce() -> Result<(), KernelError>) -> Result<f64, KernelError> {
        self.current()?;
        let (start, end) = (Event::new(CUevent_flags_enum::CU_EVENT_DEFAULT)?, Event::new(CUevent_flags_enum::CU_EVENT_DEFAULT)?);
        start.record(self.stream())?;
        work()?;
        end.record(self.stream())?;
        self.wait()?;
        // SAFETY: both events live, and have happened.
        let ms = unsafe { event::elapsed(start.0, end.0) }.map_err(failed("cuEventElapsedTime"))?;
        Ok(f64::from(ms))
    }
}

impl std::fmt::Debug for CudaContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.gpu)
    }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        // The driver would wait for ever; it clears up when the process ends.
        if self.stuck.load(Ordering::Relaxed) {
            return;
        }
        // No caller is left that an error could be returned to.
        let bound = self.current().is_ok();
        locked(&self.marks).clear();
        for address in [self.draw, *locked(&self.flushed)].into_iter().filter(|address| bound && *address != 0) {
            // SAFETY: allocated by this value, freed once.
            let _ = unsafe { result::free_sync(address) };
        }
        // SAFETY: made in `new`, given back once.
        unsafe {
            for stream in &self.streams {
                let _ = stream::destroy(*stream);
            }
            let _ = primary_ctx::release(self.device);
        }
    }
}

/// A moment on a stream.
pub(crate) struct Event(sys::CUevent);

impl Event {
    pub(crate) fn new(flags: CUevent_flags_enum) -> Result<Self, KernelError> {
        event::create(flags).map(Event).map_err(failed("cuEventCreate"))
    }

    pub(crate) fn record(&self, stream: sys::CUstream) -> Result<(), KernelError> {
        // SAFETY: event and stream live.
        unsafe { event::record(self.0, stream) }.map_err(failed("cuEventRecord"))
    }

    pub(crate) fn wait(&self, stream: sys::CUstream) -> Result<(), KernelError> {
        let flags = sys::CUevent_wait_flags_enum::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream live.
        unsafe { stream::wait_event(stream, self.0, flags) }.map_err(failed("cuStreamWaitEvent"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { event::destroy(self.0) };
    }
}
