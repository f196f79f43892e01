//! The shim as a device: what a GPU would be given, carried out on this machine, so that everything around it can be tested
//! without one. Its times are times of the shim.

use crate::cancel::CancelToken;
use crate::config_space::ConfigSpace;
use crate::device::{CompileRequest, Device, DeviceWork, Forms, Recording, Streams};
use crate::error::KernelError;
use crate::executable::Executable;
use crate::kernel::{KernelArgument, KernelSpec};
use crate::run_context::{Completion, RunContext};
use crate::target::cuda::cublaslt::{CublasLtReference, CublasLtSpace, Everything, FusedContraction};
use crate::target::cuda::emit::{Chip, CudaSource};
use crate::target::cuda::{relayout, templates};
use crate::target::shim::recording::{Recordable, Recorder};
use crate::target::shim::{Shim, ShimKernel, ShimRun};
use rayon::prelude::*;
use sdfg::config::KernelConfig;
use sdfg::interpret::Run;
use sdfg::{Container, Layout};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Kernels that are compiled as one: what all of them include takes the compiler as long as some of them.
const TOGETHER: usize = 8;

/// Generated CUDA run thread by thread, and cuBLASLt's descriptions carried out by plain loops.
pub struct ShimDevice {
    shim: Shim,
    /// What was made ahead, by its text.
    ready: Mutex<BTreeMap<String, ShimKernel>>,
    recorder: Arc<Recorder>,
}

impl ShimDevice {
    /// Compiled code is kept in `cache`.
    pub fn new(cache: PathBuf) -> Self {
        ShimDevice { shim: Shim::new(cache), ready: Mutex::default(), recorder: Arc::default() }
    }

    fn ready(&self) -> MutexGuard<'_, BTreeMap<String, ShimKernel>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kernel(&self, spec: &KernelSpec, source: CudaSource) -> Result<ShimScope, KernelError> {
        let ready = self.ready().get(&source.text).map(|made| made.of(source.clone()));
        let kernel = match ready {
            None => self.shim.compile(vec![source])?.pop(),
            made => made,
        };
        let kernel = kernel.ok_or_else(|| KernelError::Shim { kernel: spec.name.clone(), what: "nothing was compiled".into() })?;
        let arguments = spec.arguments();
        let bytes = arguments.iter().map(|a| Ok(a.dtype.bytes(spec.shape(&a.data)?.iter().product::<usize>() as u64) as usize));
        let bytes = bytes.collect::<Result<Vec<_>, KernelError>>()?;
        let parts = arguments.iter().map(|a| a.data.clone()).filter(|data| spec.writes_part(data)).collect();
        Ok(ShimScope { name: spec.name.clone(), kernel, arguments, bytes, parts })
    }

    fn recordable(&self, executable: Arc<dyn Executable>) -> Arc<dyn Executable> {
        Arc::new(Recordable { executable, recorder: self.recorder.clone() })
    }
}

/// A fused scope under one configuration.
struct ShimScope {
    name: String,
    kernel: ShimKernel,
    arguments: Vec<KernelArgument>,
    bytes: Vec<usize>,
    /// Containers that it writes only a part of.
    parts: Vec<String>,
}

impl Executable for ShimScope {
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments.len() {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments.len(), given: arguments.len() });
        }
        let memory: Vec<(*mut u8, usize)> = arguments.iter().copied().zip(self.bytes.iter().copied()).collect();
        let run = ShimRun { run: Run { seed: context.seed, step: context.step, dropout: context.dropout }, order: 0 };
        // SAFETY: whole containers, as promised by the caller.
        let unwritten = unsafe { self.kernel.run_at(&self.name, &self.arguments, &memory, &run)? };
        match unwritten.iter().find(|u| !self.parts.contains(&u.data)) {
            None => Ok(Completion::Done),
            Some(found) => Err(KernelError::Shim {
                kernel: self.name.clone(),
                what: format!("{} elements of `{}` were not written, the first is {}", found.elements, found.data, found.first),
            }),
        }
    }

    fn source(&self) -> Option<&str> {
        Some(&self.kernel.source().text)
    }
}

impl Device for ShimDevice {
    fn name(&self) -> Option<String> {
        Some("CUDA on the CPU, thread by thread: for tests".into())
    }

    fn toolchain(&self) -> String {
        format!("shim, {}", self.shim.command)
    }

    fn clock(&self) -> &'static str {
        "wall, monotonic; times of a simulation"
    }

    fn extension(&self) -> &'static str {
        "cu"
    }

    fn epilogues(&self) -> Option<Forms> {
        Some(FusedContraction::has)
    }

    fn space(&self, spec: &KernelSpec) -> Result<Box<dyn ConfigSpace>, KernelError> {
        match FusedContraction::wanted(spec)? {
            Some(fused) => Ok(Box::new(CublasLtSpace::new(fused, Arc::new(Everything)))),
            None => templates::space(spec, Chip::HOPPER),
        }
    }

    fn compile(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError> {
        match FusedContraction::wanted(spec)? {
            Some(fused) => Ok(self.recordable(Arc::new(CublasLtReference::new(spec, fused, config)?))),
            None => Ok(self.recordable(Arc::new(self.kernel(spec, templates::source(spec, config, Chip::HOPPER)?)?))),
        }
    }

    fn precompile_batch_size(&self, spec: &KernelSpec) -> usize {
        if matches!(FusedContraction::wanted(spec), Ok(None)) { TOGETHER } else { 0 }
    }

    fn precompile(&self, kernels: &[CompileRequest], until: CancelToken) {
        let generated =
            kernels.iter().filter(|request| self.precompile_batch_size(&request.timed) > 0).flat_map(|request| request.each(self));
        let sources = generated.filter_map(|(spec, config)| templates::source(&spec, &config, Chip::HOPPER).ok());
        let mut wanted: BTreeMap<String, CudaSource> = sources.map(|source| (source.text.clone(), source)).collect();
        wanted.retain(|text, _| !self.ready().contains_key(text));
        let wanted: Vec<CudaSource> = wanted.into_values().collect();
        wanted.par_chunks(TOGETHER).filter(|_| until.goes_on()).for_each(|sources| {
            // An error is reported where the kernel is compiled alone.
            let made = self.shim.compile(sources.to_vec()).unwrap_or_default();
            self.ready().extend(made.into_iter().map(|kernel| (kernel.source().text.clone(), kernel)));
        });
    }

    fn granules(&self, spec: &KernelSpec) -> Vec<(String, i64)> {
        FusedContraction::granules(spec)
    }

    fn written(&self, spec: &KernelSpec, config: &KernelConfig) -> Vec<String> {
        if matches!(FusedContraction::wanted(spec), Ok(Some(_))) { vec![] } else { templates::specialized_dims(spec, config) }
    }

    fn relayout_request(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Option<CompileRequest> {
        relayout::request(container, shape, from, to).ok()
    }

    fn relayout(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Arc<dyn Executable>, KernelError> {
        let CompileRequest { timed, config, .. } = relayout::request(container, shape, from, to)?;
        self.compile(&timed, &config)
    }

    fn record(&self, work: DeviceWork) -> Result<Option<Box<dyn Recording>>, KernelError> {
        Ok(Some(Box::new(self.recorder.record(work)?)))
    }

    fn records(&self) -> bool {
        true
    }

    /// As GPUs: what a step leaves behind is what the next one finds.
    fn steps(&self) -> usize {
        2
    }

    fn streams(&self) -> Option<&dyn Streams> {
        Some(&*self.recorder)
    }
}
