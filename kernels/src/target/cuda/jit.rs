//! The just-in-time compiler of one GPU: NVRTC on all cores, first for kernels that somebody waits for, then for those announced ahead.

use crate::cancel::CancelToken;
use crate::device::CompileRequest;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::single_flight::InFlight;
use crate::target::cuda::driver::Gpu;
use crate::target::cuda::emit::{Chip, CudaSource};
use crate::target::cuda::templates;
use crate::target::cuda::{Compiled, Nvrtc};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};
use sdfg::config::KernelConfig;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

/// Cores that are left to the thread that times kernels in the meantime.
const LEFT: usize = 2;
/// The niceness of compiling threads: a thread that launches kernels for a measurement must not wait for a core.
#[cfg(target_os = "linux")]
const NICE: i32 = 10;

/// Elsewhere a process gives way as a whole, or not at all.
#[cfg(target_os = "linux")]
fn gives_way() {
    // Where that is refused threads share the cores as all do.
    let _ = rustix::process::nice(NICE);
}

#[cfg(not(target_os = "linux"))]
fn gives_way() {}

/// What makes code: compiled texts are files, so that they are made once, by whatever process.
pub struct JitCompiler {
    pub nvrtc: Nvrtc,
    capability: u32,
    chip: Chip,
    /// Folder of compiled code.
    cache: PathBuf,
    /// Texts that some thread compiles, by their keys.
    making: InFlight,
    /// Read-locked by each compiling thread.
    busy: RwLock<()>,
    threads: ThreadPool,
}

impl JitCompiler {
    /// # Errors
    /// No compiler; threads that cannot be had.
    pub fn new(nvrtc: Nvrtc, gpu: &Gpu, cache: PathBuf) -> Result<Self, KernelError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = ThreadPoolBuilder::new().num_threads(cores.saturating_sub(LEFT).max(1));
        let threads = threads.start_handler(|_| gives_way()).build();
        let threads = threads.map_err(|e| KernelError::Cuda { what: format!("threads that compile cannot be had: {e}") })?;
        let (making, busy) = (InFlight::default(), RwLock::default());
        Ok(JitCompiler { nvrtc, capability: gpu.capability, chip: gpu.chip, cache, making, busy, threads })
    }

    /// A generated kernel as text.
    ///
    /// # Errors
    /// Knobs that kernels do not have; scopes that cannot be generated.
    pub fn source(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<CudaSource, KernelError> {
        templates::source(spec, config, self.chip)
    }

    /// Code of a text: from the cache, or compiled, unless another thread is at it, which is waited for.
    ///
    /// # Errors
    /// What the compiler refuses; a cache that cannot be written.
    pub fn compiled(&self, name: &str, text: &str) -> Result<Compiled, KernelError> {
        let key = self.nvrtc.key(text, self.capability);
        let file = self.cache.join(format!("{key}.cubin"));
        let _making = self.making.claim(&key);
        if let Some(compiled) = read(&file) {
            return Ok(compiled);
        }
        self.nvrtc.compile(name, text, self.capability).and_then(|compiled| self.write(&file, compiled))
    }

    fn write(&self, file: &Path, compiled: Compiled) -> Result<Compiled, KernelError> {
        let fault = |source| KernelError::Cache { path: file.into(), source };
        std::fs::create_dir_all(&self.cache).map_err(fault)?;
        // Written aside and renamed, so that no other process sees half a file.
        let aside = file.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
        let whole = |bytes: &[u8], file: &Path| std::fs::write(&aside, bytes).and_then(|()| std::fs::rename(&aside, file));
        let resources = serde_json::to_vec(&compiled.resources).unwrap_or_default();
        whole(&resources, &file.with_extension("json")).and_then(|()| whole(&compiled.code, file)).map_err(fault)?;
        Ok(compiled)
    }

    /// Waits for running compilations: a process that ended before them would take the compiler away from its threads. Queued compilations
    /// are skipped once they are cancelled.
    pub fn wait(&self) {
        drop(self.busy.write());
    }

    /// Compiles a kernel that is about to be checked and timed.
    pub fn make(&self, request: &CompileRequest) {
        // Configurations of generated kernels are the same at all sizes.
        for spec in request.checked.iter().chain([&request.timed]) {
            // The error is reported where the kernel is compiled for its first run.
            let Ok(source) = self.source(spec, &request.config) else { return };
            // The checked and the timed kernel mostly have one text: where another thread compiles it already, this one does not wait.
            let key = self.nvrtc.key(&source.text, self.capability);
            if !self.making.has(&key) {
                drop(self.compiled(&spec.name, &source.text));
            }
        }
    }

    /// Runs `each` on all requests, on all compiling threads, until it is cancelled.
    pub fn compile_all(&self, request: &[CompileRequest], until: CancelToken, each: impl Fn(&CompileRequest) + Sync) {
        self.threads.install(|| {
            request.par_iter().filter(|_| until.goes_on()).for_each(&each);
        });
    }

    /// Queues `each` for all requests, in this order; those still queued once `unwanted` is set are skipped.
    pub fn compile_in_background(
        self: &Arc<Self>,
        request: Vec<CompileRequest>,
        unwanted: &Arc<AtomicBool>,
        each: impl Fn(&CompileRequest) + Send + Sync + 'static,
    ) {
        let each = Arc::new(each);
        for request in request {
            let (jit, unwanted, each) = (self.clone(), unwanted.clone(), each.clone());
            self.threads.spawn_fifo(move || {
                let _busy = jit.busy.read();
                if !unwanted.load(Ordering::Relaxed) {
                    each(&request);
                }
            });
        }
    }
}

fn read(file: &Path) -> Option<Compiled> {
    let code = std::fs::read(file).ok()?;
    // Without them a kernel runs as well.
    let known = std::fs::read(file.with_extension("json")).ok().and_then(|text| serde_json::from_slice(&text).ok());
    Some(Compiled { code, resources: known.unwrap_or_default() })
}
