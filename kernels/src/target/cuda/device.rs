//! A GPU as a device: fused scopes as generated kernels, contractions as products of cuBLASLt.

use crate::cancel::CancelToken;
use crate::config_space::ConfigSpace;
use crate::contraction::{GemmNest, StridedLoop, Types};
use crate::device::{CompileRequest, Device, DeviceMemory, DeviceWork, Forms, Recording, Streams};
use crate::error::{Blame, KernelError};
use crate::executable::Executable;
use crate::kernel::KernelSpec;
use crate::target::cuda::algorithm_cache::AlgorithmCache;
use crate::target::cuda::context::locked;
use crate::target::cuda::cublaslt::{
    AlgorithmQuery, Batching, CublasLtKernel, CublasLtSpace, Description, FusedContraction, GemmAddresses, Listing, MatrixOrder, Units,
};
use crate::target::cuda::emit::CudaSource;
use crate::target::cuda::{CudaContext, CudaKernel, JitCompiler, Module, Nvrtc};
use crate::target::cuda::{relayout, templates};
use sdfg::config::KernelConfig;
use sdfg::interpret::Run;
use sdfg::{Container, Dtype, Layout};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Milliseconds of one sample of a kernel, and the most runs in it: enough that the events around it cost little in comparison.
const SAMPLE_MS: f64 = 0.2;
const REPEATS: usize = 32;
/// Steps that make one sample, put under way without waiting: as many as those of other frameworks in `bench/peers`.
const STEPS: usize = 20;
/// Idle processors clock down; so long a kernel runs before it is timed.
const WARM_UP_MS: f64 = 1.0;
/// Configurations of a kernel that are made ready ahead: a text takes the compiler some tenths of a second, a list of algorithms the
/// library some hundredths, and the GPU less than a millisecond, but kernels take turns.
const PRECOMPILE_BATCH: usize = 8;
/// Bytes of the arrays whose copy is timed, and how often.
const COPIED: usize = 1 << 30;
const COPIES: usize = 10;

/// One GPU with what makes code for it.
pub struct CudaDevice {
    context: Arc<CudaContext>,
    jit: Arc<JitCompiler>,
    algorithms: Arc<AlgorithmCache>,
    /// Loaded code by its text.
    modules: Mutex<BTreeMap<[u8; 32], Arc<Module>>>,
    compile_wait: Mutex<Duration>,
}

impl CudaDevice {
    /// GPU `number` of this machine; compiled code is kept in `cache`.
    ///
    /// # Errors
    /// A library that is missing, a driver that is too old for the compiler, no such GPU.
    pub fn new(number: usize, cache: PathBuf) -> Result<Self, KernelError> {
        let nvrtc = Nvrtc::find()?;
        crate::target::cuda::CudaLibrary::CublasLt.load()?;
        let driver = crate::target::cuda::Driver::find()?;
        // Code of a newer major version than the driver's is not loaded.
        crate::target::cuda::driver::new_enough(driver.version, (nvrtc.version.0, 0))?;
        let context = CudaContext::new(number)?;
        let algorithms = Arc::new(AlgorithmCache::new(&context)?);
        let jit = Arc::new(JitCompiler::new(nvrtc, &context.gpu, cache)?);
        Ok(CudaDevice { context, jit, algorithms, modules: Mutex::default(), compile_wait: Mutex::default() })
    }

    /// What makes a kernel ready to be checked and timed: its code, or what the library says about it.
    fn compile_step(&self) -> impl Fn(&CompileRequest) + Send + Sync + 'static {
        // Weak references: dropping the device waits for running compilations, not for queued ones.
        let (jit, algorithms) = (Arc::downgrade(&self.jit), Arc::downgrade(&self.algorithms));
        move |request| match (jit.upgrade(), algorithms.upgrade()) {
            (Some(jit), _) if generates(&request.timed) => jit.make(request),
            (_, Some(algorithms)) => algorithms.ask(request),
            _ => {}
        }
    }

    /// What `work` returns, whose time is spent waiting for what could have been made ahead.
    fn waiting<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let found = work();
        *locked(&self.compile_wait) += began.elapsed();
        found
    }

    fn kernel(&self, name: &str, source: CudaSource, arguments: usize) -> Result<CudaKernel, KernelError> {
        let hash = *blake3::hash(source.text.as_bytes()).as_bytes();
        let known = locked(&self.modules).get(&hash).cloned();
        let module = match known {
            Some(module) => module,
            None => {
                let compiled = self.waiting(|| self.jit.compiled(name, &source.text))?;
                let module = Arc::new(Module::new(&self.context, &compiled, source.finish.is_some())?);
                locked(&self.modules).insert(hash, module.clone());
                module
            }
        };
        CudaKernel::of(name, source, arguments, module)
    }
}

/// Whether a kernel's code is generated: the library has its own for what it can do.
fn generates(spec: &KernelSpec) -> bool {
    matches!(FusedContraction::wanted(spec), Ok(None))
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.jit.wait();
    }
}

/// What the library makes of one product.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct GemmCeiling {
    pub types: String,
    /// m, n, k.
    pub sizes: [usize; 3],
    /// TFLOP/s of the algorithm that the library chooses itself, and of the fastest.
    pub first: f64,
    pub best: f64,
    pub algorithms: usize,
}

/// Runs of each algorithm; the fastest counts.
const ROUNDS: usize = 5;
/// Launches of an algorithm that are timed as one.
const LAUNCHES: usize = 8;

impl CudaDevice {
    /// What the library reaches for a product of matrices in columns, the first of them transposed, of numbers like those that are
    /// multiplied in earnest: the power that a product takes depends on them.
    ///
    /// # Errors
    /// Not enough memory; a device that failed.
    pub fn ceiling(&self, types: Types, sizes: [usize; 3]) -> Result<GemmCeiling, KernelError> {
        let [m, n, k] = sizes;
        let walk = |extent, a, b, c| StridedLoop { extent, strides: [a, b, c] };
        let call = GemmNest { m: walk(m, k, 0, 1), n: walk(n, 0, k, m), k: walk(k, 1, 1, 0), batch: vec![], depth: vec![] };
        let description = Description::new(&call, [0; 3], 1.0, MatrixOrder::Columns, Batching::Strided);
        let description = description.map_err(|e| KernelError::Cuda { what: e.to_string() })?;
        let matmul = self.algorithms.library.matmul(&description, types, Units::Any)?;
        let mut memory = Vec::new();
        for (which, (elements, width)) in [m * k, k * n, m * n].iter().zip(types.widths()).enumerate() {
            let mut each = self.memory(elements * width)?;
            let values = sdfg::random::tensor(1, &which.to_string(), 1 << 16).into_iter();
            let pattern: Vec<u8> = match width {
                2 if types.factor == Dtype::F16 => values.flat_map(|v| sdfg::rounding::to_f16(v).to_le_bytes()).collect(),
                2 => values.flat_map(|v| sdfg::rounding::to_bf16(v).to_le_bytes()).collect(),
                8 => values.flat_map(f64::to_le_bytes).collect(),
                _ => values.flat_map(|v| (v as f32).to_le_bytes()).collect(),
            };
            each.fill(&pattern)?;
            memory.push(each);
        }
        let addresses: Vec<u64> = memory.iter_mut().map(|m| m.address() as u64).collect();
        let mut rates = Vec::new();
        for algorithm in self
            .algorithms
            .algorithms(&matmul, Units::Any, &AlgorithmQuery::of(&description, types, Units::Any), Listing::Heuristic)?
            .iter()
        {
            let mut least = f64::INFINITY;
            for _ in 0..ROUNDS {
                // SAFETY: three matrices of these sizes, which live until they have been waited for.
                let addresses = GemmAddresses { operands: [addresses[0], addresses[1], addresses[2]], beside: [0; 2] };
                let run = || unsafe { matmul.launch(addresses, algorithm) };
                // Several at once: what comes between two events on a stream that waits is not the product alone.
                least = match self.context.milliseconds(|| (0..LAUNCHES).try_for_each(|_| run())) {
                    // What the library offers and then refuses is no algorithm.
                    Err(error) if error.blame() == Blame::Configuration => break,
                    ms => least.min(ms? / LAUNCHES as f64),
                };
            }
            rates.push(description.flop() / least / 1e9);
        }
        let (first, best) = (rates.first().copied().unwrap_or(0.0), rates.iter().copied().fold(0.0, f64::max));
        Ok(GemmCeiling { types: types.to_string(), sizes, first, best, algorithms: rates.iter().filter(|rate| **rate > 0.0).count() })
    }
}

struct CudaGraph(super::CudaGraph);

impl Recording for CudaGraph {
    fn run(&self, run: &Run) -> Result<(), KernelError> {
        self.0.context().draw(run)?;
        self.0.launch()
    }
}

impl Device for CudaDevice {
    fn name(&self) -> Option<String> {
        Some(self.context.gpu.name.clone())
    }

    fn toolchain(&self) -> String {
        let (major, minor) = self.jit.nvrtc.version;
        format!("NVRTC {major}.{minor}, cuBLASLt {}", self.algorithms.library.version())
    }

    fn clock(&self) -> &'static str {
        "events of the GPU's stream: around recorded graphs, and where caches are cold around single launches"
    }

    fn extension(&self) -> &'static str {
        "cu"
    }

    fn epilogues(&self) -> Option<Forms> {
        Some(FusedContraction::has)
    }

    fn space(&self, spec: &KernelSpec) -> Result<Box<dyn ConfigSpace>, KernelError> {
        match FusedContraction::wanted(spec)? {
            Some(fused) => Ok(Box::new(CublasLtSpace::new(fused, self.algorithms.clone()))),
            None => templates::space(spec, self.context.gpu.chip),
        }
    }

    fn compile(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError> {
        match FusedContraction::wanted(spec)? {
            Some(fused) => {
                let (choice, matmul, offered) = self.waiting(|| self.algorithms.matmul(&fused, config))?;
                Ok(Arc::new(CublasLtKernel::new(spec, &fused, &choice, matmul, &offered)?))
            }
            None => Ok(Arc::new(self.kernel(&spec.name, self.jit.source(spec, config)?, spec.arguments().len())?)),
        }
    }

    fn granules(&self, spec: &KernelSpec) -> Vec<(String, i64)> {
        FusedContraction::granules(spec)
    }

    fn written(&self, spec: &KernelSpec, config: &KernelConfig) -> Vec<String> {
        if generates(spec) { templates::specialized_dims(spec, config) } else { vec![] }
    }

    fn relayout_request(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Option<CompileRequest> {
        relayout::request(container, shape, from, to).ok()
    }

    fn relayout(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Arc<dyn Executable>, KernelError> {
        let CompileRequest { timed, config, .. } = relayout::request(container, shape, from, to)?;
        self.compile(&timed, &config)
    }

    /// At other sizes the library offers other algorithms: one of those.
    fn scaled(&self, config: &KernelConfig, from: &KernelSpec, to: &KernelSpec) -> KernelConfig {
        self.waiting(|| self.algorithms.scaled(config, from, to))
    }

    fn compile_wait(&self) -> Duration {
        *locked(&self.compile_wait)
    }

    fn precompile_batch_size(&self, _: &KernelSpec) -> usize {
        PRECOMPILE_BATCH
    }

    fn precompile(&self, kernels: &[CompileRequest], until: CancelToken) {
        self.jit.compile_all(kernels, until, self.compile_step());
    }

    fn precompile_in_background(&self, kernels: Vec<CompileRequest>, unwanted: &Arc<AtomicBool>) -> bool {
        self.jit.compile_in_background(kernels, unwanted, self.compile_step());
        true
    }

    fn memory(&self, bytes: usize) -> Result<DeviceMemory, KernelError> {
        let mut memory = crate::target::cuda::GpuMemory::new(&self.context, bytes)?;
        memory.zero()?;
        Ok(DeviceMemory::Own(Box::new(memory)))
    }

    fn time(&self, work: DeviceWork) -> Result<f64, KernelError> {
        self.context.milliseconds(work)
    }

    fn record(&self, work: DeviceWork) -> Result<Option<Box<dyn Recording>>, KernelError> {
        Ok(Some(Box::new(CudaGraph(self.context.capture(work)?))))
    }

    fn records(&self) -> bool {
        true
    }

    fn streams(&self) -> Option<&dyn Streams> {
        Some(&*self.context)
    }

    fn flush(&self, _: &[(&DeviceMemory, usize)]) -> Result<bool, KernelError> {
        self.context.flush().map(|()| true)
    }

    fn repeats(&self, ms: f64) -> usize {
        ((SAMPLE_MS / ms.max(1e-4)).ceil() as usize).clamp(1, REPEATS)
    }

    fn steps(&self) -> usize {
        STEPS
    }

    fn warm_up_ms(&self) -> f64 {
        WARM_UP_MS
    }

    fn copy_bandwidth(&self) -> Result<Option<f64>, KernelError> {
        let (mut from, mut to) =
            (crate::target::cuda::GpuMemory::new(&self.context, COPIED)?, crate::target::cuda::GpuMemory::new(&self.context, COPIED)?);
        from.zero()?;
        to.copy(&from)?;
        let mut least = f64::INFINITY;
        for _ in 0..COPIES {
            least = least.min(self.context.milliseconds(|| to.copy(&from))?);
        }
        Ok(Some(2.0 * COPIED as f64 / least / 1e6))
    }

    fn free(&self) -> Result<Option<u64>, KernelError> {
        // What caches are emptied with comes later.
        Ok(Some(self.context.free()?.saturating_sub(self.context.flushing()).max(1) as u64))
    }
}
