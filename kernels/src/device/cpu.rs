//! The cores of this machine: persistent workers, one for each.

use crate::error::KernelError;

/// Persistent worker threads.
pub struct Pool {
    threads: rayon::ThreadPool,
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
        Ok(Pool { threads })
    }

    pub fn workers(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// Runs `work(worker)` once on every worker and waits.
    pub fn broadcast<R: Send>(&self, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
        self.threads.broadcast(|context| work(context.index()))
    }

    /// The threads, for libraries that share work among them.
    pub fn threads(&self) -> &rayon::ThreadPool {
        &self.threads
    }
}
