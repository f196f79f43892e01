//! The cores of this machine: persistent workers, one for each, and C from the system's compiler.

use super::{Device, Memory, Work};
use crate::buffer::Buffer;
use crate::compile::Toolchain;
use crate::error::KernelError;
use crate::kernel::{Executable, KernelSpec, Space};
use crate::template;
use sdfg::config::KernelConfig;
use sdfg::{Container, Layout};
use std::sync::Arc;
use std::time::Instant;

/// Persistent worker threads.
pub struct Pool {
    threads: rayon::ThreadPool,
}

impl Pool {
    /// `workers` threads; 0 means one for each core.
    ///
    /// # Errors
    /// The system refuses the threads.
    pub fn new(workers: usize) -> Result<Self, KernelError> {
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(workers)
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

/// The cores as a device.
pub struct Cores {
    pub toolchain: Toolchain,
}

impl Device for Cores {
    fn name(&self) -> Option<String> {
        None
    }

    fn toolchain(&self) -> String {
        self.toolchain.version.clone()
    }

    fn clock(&self) -> &'static str {
        "wall, monotonic; warm cache"
    }

    fn extension(&self) -> &'static str {
        "c"
    }

    fn composes(&self) -> bool {
        true
    }

    fn space(&self, spec: &KernelSpec) -> Result<Box<dyn Space>, KernelError> {
        template::space(spec)
    }

    fn compile(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError> {
        template::compile(spec, config, &self.toolchain)
    }

    fn relayout(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Arc<dyn Executable>, KernelError> {
        template::relayout(container, shape, from, to, &self.toolchain)
    }

    fn memory(&self, bytes: usize) -> Result<Memory, KernelError> {
        Buffer::new(bytes).map(Memory::Host)
    }

    fn time(&self, work: Work) -> Result<f64, KernelError> {
        let start = Instant::now();
        work()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}
