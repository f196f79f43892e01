//! Persistent workers, one for each core, and the working memory that kernels share.

use crate::buffer::Buffer;
use crate::error::KernelError;
use std::sync::{Mutex, MutexGuard};

/// Persistent worker threads.
pub struct Pool {
    threads: rayon::ThreadPool,
    scratch: Mutex<Option<Buffer>>,
}

/// Working memory of the kernel that runs.
pub struct Scratch<'a>(MutexGuard<'a, Option<Buffer>>);

impl Scratch<'_> {
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut().map_or(std::ptr::null_mut(), Buffer::as_mut_ptr)
    }
}

impl Pool {
    /// `workers` threads; 0 means one for each core. If they are as many as the cores, each stays on one of its own: on a machine
    /// that does other things too, the system may wake two on the same.
    ///
    /// # Errors
    /// The system refuses the threads.
    pub fn new(workers: usize) -> Result<Self, KernelError> {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let all = cores.len() > 1 && (workers == 0 || workers == cores.len());
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(workers)
            .start_handler(move |n| {
                if let Some(core) = cores.get(n).filter(|_| all) {
                    core_affinity::set_for_current(*core);
                }
            })
            .thread_name(|n| format!("memlet-{n}"))
            .build()
            .map_err(|e| KernelError::Workers(e.to_string()))?;
        Ok(Pool { threads, scratch: Mutex::new(None) })
    }

    pub fn workers(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// Runs `work(worker)` once on every worker and waits.
    pub fn broadcast<R: Send>(&self, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
        self.threads.broadcast(|context| work(context.index()))
    }

    /// Working memory of at least so many bytes, until it is dropped. All kernels have the same: what one leaves in the caches is
    /// where the next one writes, and a step needs as much as its largest kernel. Holds anything at first.
    ///
    /// # Errors
    /// No memory.
    pub fn scratch(&self, bytes: usize) -> Result<Scratch<'_>, KernelError> {
        let mut held = self.scratch.lock().unwrap_or_else(|e| e.into_inner());
        if held.as_ref().is_none_or(|b| b.len() < bytes) {
            *held = None;
            *held = Some(Buffer::new(bytes)?);
        }
        // A kernel that reads what it has not written shows in tests.
        if cfg!(debug_assertions) {
            held.as_mut().map_or(&mut [][..], |b| &mut b.as_mut_slice()[..bytes]).fill(0xff);
        }
        Ok(Scratch(held))
    }

    /// The threads, for libraries that share work among them.
    pub fn threads(&self) -> &rayon::ThreadPool {
        &self.threads
    }
}
