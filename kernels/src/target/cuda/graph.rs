//! Work captured from the streams of a GPU as a graph.

use crate::device::Streams;
use crate::error::KernelError;
use crate::target::cuda::context::{CudaContext, Event, STREAMS, locked};
use crate::target::cuda::driver::failed;
use cudarc::driver::result::{graph, stream};
use cudarc::driver::sys::{self, CUevent_flags_enum, CUgraphInstantiate_flags, CUstreamCaptureMode_enum};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Work captured from the streams, launched as one.
pub struct CudaGraph {
    context: Arc<CudaContext>,
    executable: sys::CUgraphExec,
}

// SAFETY: as for the context.
unsafe impl Send for CudaGraph {}

impl CudaContext {
    /// Captures what `work` puts on the streams.
    ///
    /// # Errors
    /// What `work` returns; work that cannot be captured.
    pub fn capture(self: &Arc<Self>, work: impl FnOnce() -> Result<(), KernelError>) -> Result<CudaGraph, KernelError> {
        self.current()?;
        let first = self.streams[0];
        // SAFETY: the stream lives as long as this value.
        unsafe { stream::begin_capture(first, CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) }
            .map_err(failed("cuStreamBeginCapture"))?;
        self.recording.store(true, Ordering::Relaxed);
        let outcome = work();
        self.recording.store(false, Ordering::Relaxed);
        self.at.store(0, Ordering::Relaxed);
        // SAFETY: as above. The capture ends whatever came of the work.
        let captured = unsafe { stream::end_capture(first) };
        locked(&self.marks).clear();
        let executable = outcome.and_then(|()| {
            let captured = captured.map_err(failed("cuStreamEndCapture"))?;
            // SAFETY: the graph was just captured.
            unsafe { graph::instantiate(captured, CUgraphInstantiate_flags(0)) }.map_err(failed("cuGraphInstantiate"))
        });
        if let Ok(captured) = captured {
            // SAFETY: as above; no other thread has it, whether the work failed or not.
            let _ = unsafe { graph::destroy(captured) };
        }
        Ok(CudaGraph { context: self.clone(), executable: executable? })
    }
}

impl Streams for CudaContext {
    fn count(&self) -> usize {
        STREAMS
    }

    fn enter(&self, stream: usize) {
        self.at.store(stream.min(STREAMS - 1), Ordering::Relaxed);
    }

    fn mark(&self, number: usize) -> Result<(), KernelError> {
        self.current()?;
        let event = Event::new(CUevent_flags_enum::CU_EVENT_DISABLE_TIMING)?;
        event.record(self.stream())?;
        locked(&self.marks).insert(number, event);
        Ok(())
    }

    fn wait(&self, number: usize) -> Result<(), KernelError> {
        self.current()?;
        let marks = locked(&self.marks);
        let event = marks.get(&number).ok_or_else(|| KernelError::Cuda { what: format!("nothing was marked {number}") })?;
        event.wait(self.stream())
    }
}

impl CudaGraph {
    /// Puts the captured work on the first stream.
    ///
    /// # Errors
    /// A device that failed.
    pub fn launch(&self) -> Result<(), KernelError> {
        self.context.current()?;
        // SAFETY: graph and stream live as long as this value.
        unsafe { graph::launch(self.executable, self.context.streams[0]) }.map_err(failed("cuGraphLaunch"))
    }

    pub fn context(&self) -> &CudaContext {
        &self.context
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        if self.context.current().is_ok() {
            // SAFETY: made by `CudaContext::capture`, destroyed once.
            let _ = unsafe { graph::exec_destroy(self.executable) };
        }
    }
}
