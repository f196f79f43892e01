//! A GPU as a device: fused scopes as generated kernels, contractions as products of cuBLASLt.

use super::{Context, CudaKernel, Maker, Module, Nvrtc};
use crate::contraction::cublaslt::{
    Addresses, Algorithm, Asked, Batching, Choice, CublasLt, CublasLtSpace, Description, Form, Fused, Listing, Matmul, Offer, Product,
    Units,
};
use crate::contraction::{Call, Loop, Types};
use crate::device::{Device, Forms, Memory, Recording, Streams, Work};
use crate::emit::cuda::Source;
use crate::error::{Blame, KernelError};
use crate::kernel::{Executable, KernelSpec, Space};
use crate::maps;
use crate::template;
use sdfg::config::KernelConfig;
use sdfg::interpret::Run;
use sdfg::{Container, Dtype, Layout, Unit};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that products may use besides their operands: what NVIDIA's manual recommends for Hopper.
const WORKSPACE: usize = 32 << 20;
/// One sample of a kernel takes about so many milliseconds, so that the events around it cost little beside it, and at most so many
/// runs.
const SAMPLE_MS: f64 = 0.2;
const REPEATS: usize = 32;
/// Steps that make one sample, put under way without waiting: as many as those of other frameworks in `bench/peers`.
const STEPS: usize = 20;
/// Idle processors clock down; so long a kernel runs before it is timed.
const WARM_UP_MS: f64 = 1.0;
/// Configurations of a kernel whose code is made ahead: a text takes the compiler some tenths of a second, and the GPU less than a
/// millisecond, but kernels take turns.
const PREPARED: usize = 8;
/// Bytes of the arrays whose copy is timed, and how often.
const COPIED: usize = 1 << 30;
const COPIES: usize = 10;

/// One GPU with what makes code for it.
pub struct CudaDevice {
    context: Arc<Context>,
    maker: Arc<Maker>,
    products: Arc<Products>,
    /// Loaded code by its text.
    modules: Mutex<BTreeMap<[u8; 32], Arc<Module>>>,
    waited: Mutex<Duration>,
}

/// The library, and the algorithms that it has named.
struct Products {
    library: Arc<CublasLt>,
    offered: Mutex<BTreeMap<Key, Arc<Vec<Algorithm>>>>,
}

/// A product, and where algorithms for it are listed.
type Key = (Asked, Listing);

impl Offer for Products {
    fn known(&self, asked: &Asked, listing: Listing) -> Option<usize> {
        let offered = self.offered.lock().unwrap_or_else(|e| e.into_inner());
        offered.get(&(asked.clone(), listing)).map(|algorithms| algorithms.len())
    }
}

impl Products {
    /// Algorithms of a product, of what it offers the library's own choice first; asked for once.
    fn algorithms(&self, matmul: &Matmul, units: Units, key: Key) -> Result<Arc<Vec<Algorithm>>, KernelError> {
        let known = self.offered.lock().unwrap_or_else(|e| e.into_inner()).get(&key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        // A product that the library refuses has none: it is not asked again.
        let found = match key.1 {
            Listing::Heuristic => matmul.algorithms(units),
            Listing::Catalogue => {
                let offered = self.algorithms(matmul, units, (key.0.clone(), Listing::Heuristic))?;
                // What offers nothing is refused as a whole.
                if offered.is_empty() { Ok(vec![]) } else { matmul.catalogued(units, &offered) }
            }
        };
        let found = match found {
            Err(error) if error.blame() == Blame::Configuration => vec![],
            found => found?,
        };
        let found = Arc::new(found);
        self.offered.lock().unwrap_or_else(|e| e.into_inner()).insert(key, found.clone());
        Ok(found)
    }

    /// A contraction's problem and choice with everything that the library says about it.
    fn product(&self, fused: &Fused, config: &KernelConfig) -> Result<(Choice, Matmul, Arc<Vec<Algorithm>>), KernelError> {
        let choice = Choice::of(&fused.problem, config)?;
        let description = fused.description(&choice, config)?;
        let matmul = self.library.matmul(&description, fused.problem.types, choice.units)?;
        let (listing, _) = Listing::of(choice.algorithm);
        let offered = self.algorithms(&matmul, choice.units, (Asked::of(&description, fused.problem.types, choice.units), listing))?;
        Ok((choice, matmul, offered))
    }
}

impl CudaDevice {
    /// GPU `number` of this machine; compiled code is kept in `cache`.
    ///
    /// # Errors
    /// A library that is missing, a driver that is too old for the compiler, no such GPU.
    pub fn new(number: usize, cache: PathBuf) -> Result<Self, KernelError> {
        let nvrtc = Nvrtc::find()?;
        super::Library::CublasLt.load()?;
        let driver = super::Driver::find()?;
        // Code of a newer major version than the driver's is not loaded.
        super::driver::new_enough(driver.version, (nvrtc.version.0, 0))?;
        let context = Context::new(number)?;
        let library = Arc::new(CublasLt::new(&context, WORKSPACE)?);
        let products = Arc::new(Products { library, offered: Mutex::default() });
        let maker = Arc::new(Maker::new(nvrtc, &context.gpu, cache)?);
        Ok(CudaDevice { context, maker, products, modules: Mutex::default(), waited: Mutex::default() })
    }

    /// Whether a kernel's code is generated: the library has its own for what it can do.
    fn generates(&self, spec: &KernelSpec) -> bool {
        matches!(spec.unit, Unit::Scope(_) | Unit::Nested(_)) && !matches!(Fused::wanted(spec), Ok(Some(_)))
    }

    fn kernel(&self, name: &str, source: Source, arguments: usize) -> Result<CudaKernel, KernelError> {
        let hash = *blake3::hash(source.text.as_bytes()).as_bytes();
        let known = self.modules.lock().unwrap_or_else(|e| e.into_inner()).get(&hash).cloned();
        let module = match known {
            Some(module) => module,
            None => {
                let began = Instant::now();
                let compiled = self.maker.compiled(name, &source.text);
                *self.waited.lock().unwrap_or_else(|e| e.into_inner()) += began.elapsed();
                let module = Arc::new(Module::new(&self.context, &compiled?, source.finish.is_some())?);
                self.modules.lock().unwrap_or_else(|e| e.into_inner()).insert(hash, module.clone());
                module
            }
        };
        CudaKernel::of(name, source, arguments, module)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        self.maker.wait();
    }
}

/// What the library makes of one product.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Ceiling {
    pub types: String,
    /// m, n, k.
    pub sizes: [usize; 3],
    /// TFLOP/s of the algorithm that the library chooses itself, and of the fastest.
    pub first: f64,
    pub best: f64,
    pub algorithms: usize,
}

/// Runs of each algorithm, of which the fastest counts.
const ROUNDS: usize = 5;
/// Launches of an algorithm that are timed as one.
const LAUNCHES: usize = 8;

impl CudaDevice {
    /// What the library reaches for a product of matrices in columns, the first of them transposed, of numbers like those that are
    /// multiplied in earnest: the power that a product takes depends on them.
    ///
    /// # Errors
    /// Not enough memory; a device that failed.
    pub fn ceiling(&self, types: Types, sizes: [usize; 3]) -> Result<Ceiling, KernelError> {
        let [m, n, k] = sizes;
        let walk = |extent, a, b, c| Loop { extent, strides: [a, b, c] };
        let call = Call { m: walk(m, k, 0, 1), n: walk(n, 0, k, m), k: walk(k, 1, 1, 0), batch: vec![], depth: vec![] };
        let description = Description::new(&call, [0; 3], 1.0, Form::Columns, Batching::Strided);
        let description = description.map_err(|e| KernelError::Cuda { what: e.to_string() })?;
        let matmul = self.products.library.matmul(&description, types, Units::Any)?;
        let mut memory = Vec::new();
        for (which, (elements, width)) in [m * k, k * n, m * n].iter().zip(types.widths()).enumerate() {
            let mut each = self.memory(elements * width)?;
            let values = sdfg::random::tensor(1, &which.to_string(), 1 << 16).into_iter();
            let pattern: Vec<u8> = match width {
                2 if types.factor == Dtype::F16 => values.flat_map(|v| half::f16::from_f64(v).to_le_bytes()).collect(),
                2 => values.flat_map(|v| half::bf16::from_f64(v).to_le_bytes()).collect(),
                8 => values.flat_map(f64::to_le_bytes).collect(),
                _ => values.flat_map(|v| (v as f32).to_le_bytes()).collect(),
            };
            each.fill(&pattern)?;
            memory.push(each);
        }
        let addresses: Vec<u64> = memory.iter_mut().map(|m| m.address() as u64).collect();
        let mut rates = Vec::new();
        for algorithm in
            self.products.algorithms(&matmul, Units::Any, (Asked::of(&description, types, Units::Any), Listing::Heuristic))?.iter()
        {
            let mut least = f64::INFINITY;
            for _ in 0..ROUNDS {
                // SAFETY: three matrices of these sizes, which live until they have been waited for.
                let addresses = Addresses { operands: [addresses[0], addresses[1], addresses[2]], beside: [0; 2] };
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
        Ok(Ceiling { types: types.to_string(), sizes, first, best, algorithms: rates.iter().filter(|rate| **rate > 0.0).count() })
    }
}

struct Graph(super::Graph);

impl Recording for Graph {
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
        let (major, minor) = self.maker.nvrtc.version;
        format!("NVRTC {major}.{minor}, cuBLASLt {}", self.products.library.version())
    }

    fn clock(&self) -> &'static str {
        "events of the GPU's stream: around recorded graphs, and where caches are cold around single launches"
    }

    fn extension(&self) -> &'static str {
        "cu"
    }

    fn epilogues(&self) -> Option<Forms> {
        Some(Fused::has)
    }

    fn space(&self, spec: &KernelSpec) -> Result<Box<dyn Space>, KernelError> {
        match Fused::wanted(spec)? {
            Some(fused) => Ok(Box::new(CublasLtSpace::new(fused, self.products.clone()))),
            None => template::cuda_space(spec, self.context.gpu.chip),
        }
    }

    fn compile(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError> {
        match Fused::wanted(spec)? {
            Some(fused) => {
                let (choice, matmul, offered) = self.products.product(&fused, config)?;
                Ok(Arc::new(Product::new(spec, &fused, &choice, matmul, &offered)?))
            }
            None => Ok(Arc::new(self.kernel(&spec.name, self.maker.source(spec, config)?, spec.arguments().len())?)),
        }
    }

    fn granules(&self, spec: &KernelSpec) -> Vec<(String, i64)> {
        Fused::granules(spec)
    }

    fn written(&self, spec: &KernelSpec, config: &KernelConfig) -> Vec<String> {
        if self.generates(spec) { template::cuda_written(spec, config) } else { vec![] }
    }

    fn relayout(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Arc<dyn Executable>, KernelError> {
        let dims: Vec<(String, i64)> = container.dims.iter().cloned().zip(shape.iter().map(|s| *s as i64)).collect();
        let (spec, source) = maps::cuda_relayout(&container.name, container.dtype, &dims, from, to)?;
        Ok(Arc::new(self.kernel(&spec.name, source, spec.arguments().len())?))
    }

    /// At other sizes the library offers other algorithms: one of those.
    fn scaled(&self, config: &KernelConfig, from: &KernelSpec, to: &KernelSpec) -> KernelConfig {
        let Some(number) = config.knobs.get("algorithm").and_then(|text| text.parse::<usize>().ok()) else { return config.clone() };
        // Of those that the heuristic offers: the catalogue would take longer to list than everything else.
        let (listing, number) = Listing::of(number);
        let with = |number: usize| KernelConfig { knobs: config.knobs.clone().with("algorithm", number), ..config.clone() };
        let offered = |spec: &KernelSpec| self.products.product(&Fused::of(spec).ok()?, &with(0)).ok().map(|(_, _, offered)| offered.len());
        // What is not there when it is timed need not be checked in the place of another.
        let absent = || offered(from).is_some_and(|offered| listing == Listing::Heuristic && number >= offered);
        // What is wrong with the configuration is said when it is compiled.
        match offered(to) {
            Some(offered) if !absent() => with(number % offered.max(1)),
            _ => config.clone(),
        }
    }

    fn waited(&self) -> Duration {
        *self.waited.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn prepares(&self, spec: &KernelSpec) -> usize {
        if self.generates(spec) { PREPARED } else { 0 }
    }

    fn prepare(&self, kernels: &[(KernelSpec, KernelConfig)], until: Option<Instant>) {
        self.maker.make_all(&kernels.iter().filter(|(spec, _)| self.generates(spec)).collect::<Vec<_>>(), until);
    }

    fn prepare_meanwhile(&self, kernels: Vec<(KernelSpec, KernelConfig)>, unwanted: &Arc<AtomicBool>) -> bool {
        self.maker.make_meanwhile(kernels.into_iter().filter(|(spec, _)| self.generates(spec)).collect(), unwanted);
        true
    }

    fn memory(&self, bytes: usize) -> Result<Memory, KernelError> {
        let mut memory = super::Memory::new(&self.context, bytes)?;
        memory.zero()?;
        Ok(Memory::Gpu(memory))
    }

    fn time(&self, work: Work) -> Result<f64, KernelError> {
        self.context.milliseconds(work)
    }

    fn record(&self, work: Work) -> Result<Option<Box<dyn Recording>>, KernelError> {
        Ok(Some(Box::new(Graph(self.context.capture(work)?))))
    }

    fn records(&self) -> bool {
        true
    }

    fn streams(&self) -> Option<&dyn Streams> {
        Some(&*self.context)
    }

    fn flush(&self, _: &[(&Memory, usize)]) -> Result<bool, KernelError> {
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
        let (mut from, mut to) = (super::Memory::new(&self.context, COPIED)?, super::Memory::new(&self.context, COPIED)?);
        from.zero()?;
        to.copy(&from)?;
        let mut least = f64::INFINITY;
        for _ in 0..COPIES {
            least = least.min(self.context.milliseconds(|| to.copy(&from))?);
        }
        Ok(Some(2.0 * COPIED as f64 / least / 1e6))
    }
}
