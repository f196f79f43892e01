//! The shim with planted faults, and a log of the calls to it.

use kernels::device::{Device, DeviceMemory, DeviceWork, Forms, Recording, Streams};
use kernels::target::shim::ShimDevice;
use kernels::{Completion, ConfigSpace, Executable, KernelError, KernelSpec, RunContext};
use recipes::pipeline::oracle::small_sizes::with_small_sizes;
use recipes::pipeline::run::candidate::Candidate;
use recipes::pipeline::variants::programs::programs;
use sdfg::config::{Configuration, KernelConfig};
use sdfg::{Container, Layout, Sdfg};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Multi-head attention at small sizes: the operators, and the program with separate projections, every kernel in its first
/// configuration.
pub fn attention(device: &dyn Device, streams: usize) -> Result<(Sdfg, Candidate), Box<dyn std::error::Error>> {
    let recipe = recipes::load::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml"), &[])?;
    let mut programs = programs(&recipe, false)?;
    let (operators, program) = (with_small_sizes(&programs.operators), with_small_sizes(&programs.variants.remove(0).program));
    let mut configuration = Configuration::default();
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(&program, &unit)?;
        configuration.kernels.insert(spec.name.clone(), device.space(&spec)?.config(0));
    }
    configuration.layouts = program.containers.values().map(|c| (c.name.clone(), Layout::row_major(c))).collect();
    Ok((
        operators,
        Candidate {
            name: "fused".into(),
            program,
            configuration,
            predicted_ms: 0.0,
            streams,
            packed: false,
            beside: recipes::pipeline::run::candidate::BESIDE,
            exchanges: vec![],
            measured_as: Default::default(),
        },
    ))
}

/// The calls to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Compile,
    Memory,
    Run,
    Time,
    Record,
    Flush,
}

/// A call that fails, with all calls after it, once it was answered this many times.
pub struct Planted {
    pub call: Call,
    pub answered: AtomicUsize,
    pub error: fn() -> KernelError,
}

impl Planted {
    pub fn after(answered: usize, call: Call, error: fn() -> KernelError) -> Arc<Self> {
        Arc::new(Planted { call, answered: AtomicUsize::new(answered), error })
    }

    fn meets(&self, call: Call) -> Result<(), KernelError> {
        let less = |left: usize| left.checked_sub(1);
        if call == self.call && self.answered.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
            return Err((self.error)());
        }
        Ok(())
    }
}

pub struct Fake {
    device: ShimDevice,
    planted: Option<Arc<Planted>>,
    pub calls: Mutex<Vec<Call>>,
    /// Waits for launches are dropped; waits for marks before the first launch of a recording, which mark its beginning, are kept.
    pub forgets: bool,
    beginning: AtomicUsize,
    /// The kernel of this name makes a mistake in the last of its results.
    pub spoiled: Option<String>,
}

impl Fake {
    pub fn new(planted: Option<Arc<Planted>>) -> Self {
        let device = ShimDevice::new(Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim")).into());
        Fake { device, planted, calls: Mutex::default(), forgets: false, beginning: AtomicUsize::new(usize::MAX), spoiled: None }
    }

    pub fn called(&self, call: Call) -> usize {
        self.calls.lock().expect("calls").iter().filter(|c| **c == call).count()
    }

    fn call(&self, call: Call) -> Result<(), KernelError> {
        self.calls.lock().expect("calls").push(call);
        self.planted.as_ref().map_or(Ok(()), |planted| planted.meets(call))
    }

    fn wrapped(&self, executable: Arc<dyn Executable>) -> Arc<dyn Executable> {
        match &self.planted {
            Some(planted) => Arc::new(Failing { executable, planted: planted.clone() }),
            None => executable,
        }
    }
}

struct Failing {
    executable: Arc<dyn Executable>,
    planted: Arc<Planted>,
}

impl Executable for Failing {
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        self.planted.meets(Call::Run)?;
        // SAFETY: as promised by the caller.
        unsafe { self.executable.run(arguments, context) }
    }
}

/// Sets the first element of the last result to a clearly different number.
struct Spoiling(Arc<dyn Executable>);

impl Executable for Spoiling {
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        // SAFETY: as promised by the caller; the last argument is a result, with room for a number of f32.
        unsafe {
            let done = self.0.run(arguments, context)?;
            *arguments[arguments.len() - 1].cast::<f32>() += 1e3;
            Ok(done)
        }
    }
}

impl Streams for Fake {
    fn count(&self) -> usize {
        self.device.streams().map_or(1, |s| s.count())
    }

    fn enter(&self, stream: usize) {
        self.device.streams().into_iter().for_each(|s| s.enter(stream));
    }

    fn mark(&self, number: usize) -> Result<(), KernelError> {
        let _ = self.beginning.compare_exchange(usize::MAX, number, Ordering::Relaxed, Ordering::Relaxed);
        self.device.streams().map_or(Ok(()), |s| s.mark(number))
    }

    fn wait(&self, number: usize) -> Result<(), KernelError> {
        let kept = !self.forgets || number >= self.beginning.load(Ordering::Relaxed);
        self.device.streams().filter(|_| kept).map_or(Ok(()), |s| s.wait(number))
    }
}

impl Device for Fake {
    fn name(&self) -> Option<String> {
        self.device.name()
    }

    fn toolchain(&self) -> String {
        self.device.toolchain()
    }

    fn clock(&self) -> &'static str {
        self.device.clock()
    }

    fn extension(&self) -> &'static str {
        self.device.extension()
    }

    fn epilogues(&self) -> Option<Forms> {
        self.device.epilogues()
    }

    fn space(&self, spec: &KernelSpec) -> Result<Box<dyn ConfigSpace>, KernelError> {
        self.device.space(spec)
    }

    fn compile(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError> {
        self.call(Call::Compile)?;
        let executable = self.device.compile(spec, config)?;
        if self.spoiled.as_ref() == Some(&spec.name) {
            return Ok(Arc::new(Spoiling(executable)));
        }
        Ok(self.wrapped(executable))
    }

    fn relayout(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Arc<dyn Executable>, KernelError> {
        Ok(self.wrapped(self.device.relayout(container, shape, from, to)?))
    }

    fn memory(&self, bytes: usize) -> Result<DeviceMemory, KernelError> {
        self.call(Call::Memory)?;
        self.device.memory(bytes)
    }

    fn time(&self, work: DeviceWork) -> Result<f64, KernelError> {
        self.call(Call::Time)?;
        self.device.time(work)
    }

    fn record(&self, work: DeviceWork) -> Result<Option<Box<dyn Recording>>, KernelError> {
        self.call(Call::Record)?;
        self.beginning.store(usize::MAX, Ordering::Relaxed);
        self.device.record(work)
    }

    fn records(&self) -> bool {
        self.device.records()
    }

    fn steps(&self) -> usize {
        self.device.steps()
    }

    fn streams(&self) -> Option<&dyn Streams> {
        Some(self)
    }

    fn flush(&self, memories: &[(&DeviceMemory, usize)]) -> Result<bool, KernelError> {
        self.call(Call::Flush)?;
        self.device.flush(memories)
    }
}
