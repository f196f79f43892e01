//! Devices: everything that measuring and running programs asks of the processor that kernels run on.

mod compile_request;
mod memory;
mod streams;

pub use compile_request::CompileRequest;
pub use memory::{DeviceMemory, OwnMemory};
pub use streams::Streams;

use crate::buffer::AlignedBuffer;
use crate::cancel::CancelToken;
use crate::config_space::ConfigSpace;
use crate::error::KernelError;
use crate::executable::Executable;
use crate::in_place::InPlace;
use crate::kernel::KernelSpec;
use crate::loopnest::partition::PartitionedNest;
use sdfg::config::KernelConfig;
use sdfg::interpret::Run;
use sdfg::{Container, Layout};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Launches that a device runs or records. The closure returns once everything is launched.
pub type DeviceWork<'a> = &'a mut dyn FnMut() -> Result<(), KernelError>;

/// Whether a vendor's library has a fused kernel for a contraction and the operators around it.
pub type Forms = fn(&KernelSpec) -> bool;

/// Launches that a device has recorded and runs as one.
pub trait Recording {
    /// Launches the recording, with the dropout masks of this run: seed and step may be others than when it was recorded.
    ///
    /// # Errors
    /// A device that failed.
    fn run(&self, run: &Run) -> Result<(), KernelError>;
}

/// How the points of a kernel can be divided under a configuration, and what they touch; `None` where that is not known.
pub type Partitioned = fn(&KernelSpec, &KernelConfig) -> Option<PartitionedNest>;

/// A processor with memory, a compiler and a clock: the part of running a program that differs between targets.
pub trait Device: Send + Sync {
    /// Its name in records and reports; `None` stands for the processor of this machine.
    fn name(&self) -> Option<String>;

    /// Whether it is the processor of this machine, with the machine's memory and the workers of this process.
    fn is_host(&self) -> bool {
        self.name().is_none()
    }

    /// The compiler of its code, and its libraries, with versions.
    fn toolchain(&self) -> String;

    /// The clock of its times, and the state of the caches.
    fn clock(&self) -> &'static str;

    /// What its generated code is called: `c`, `cu`.
    fn extension(&self) -> &'static str;

    /// Which fused kernels (a contraction with operators around it) the device's library has; generated code has all of them.
    fn epilogues(&self) -> Option<Forms>;

    /// Every way to run a unit.
    ///
    /// # Errors
    /// Units that no template takes.
    fn space(&self, spec: &KernelSpec) -> Result<Box<dyn ConfigSpace>, KernelError>;

    /// A unit under a configuration, ready to run on memory of this device.
    ///
    /// # Errors
    /// Units that no template takes, configurations of another unit, a compiler that is missing or refuses.
    fn compile(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError>;

    /// As [`Device::compile`]; plans may hold the same instance where it keeps nothing from one run to the next.
    ///
    /// # Errors
    /// As [`Device::compile`].
    fn compile_for_plan(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError> {
        self.compile(spec, config)
    }

    /// Whether [`Device::compile_for_plan`] has made a kernel before, and keeps it.
    fn has_for_plan(&self, _spec: &KernelSpec, _config: &KernelConfig) -> bool {
        false
    }

    /// What a kernel may write in place under a configuration. [`crate::in_place::with`] makes a configuration that does.
    fn in_place(&self, _spec: &KernelSpec, _config: &KernelConfig) -> Vec<InPlace> {
        vec![]
    }

    /// A copy of a container from one layout into another. Takes the container in `from`, then in `to`.
    ///
    /// # Errors
    /// Layouts that do not order the container's dims; a compiler that is missing or refuses.
    fn relayout(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Arc<dyn Executable>, KernelError>;

    /// How the points of a kernel can be divided under a configuration, if the device does so.
    fn partitioned(&self) -> Option<Partitioned> {
        None
    }

    /// A change of layout as a kernel that can be compiled ahead; `None` where the device copies otherwise.
    fn relayout_request(&self, _container: &Container, _shape: &[usize], _from: &Layout, _to: &Layout) -> Option<CompileRequest> {
        None
    }

    /// The corresponding configuration of the same kernel at other sizes: tiles and algorithms depend on sizes.
    fn scaled(&self, config: &KernelConfig, from: &KernelSpec, to: &KernelSpec) -> KernelConfig {
        crate::tiles::scaled(config, from, to)
    }

    /// Dims whose sizes must be multiples of a number here: a check at small sizes keeps to that.
    fn granules(&self, _spec: &KernelSpec) -> Vec<(String, i64)> {
        vec![]
    }

    /// Dims that the code of a kernel under a configuration is specialized for: their sizes are constants in it. A check that is small in
    /// all other dims checks the very code that is timed.
    fn written(&self, _spec: &KernelSpec, _config: &KernelConfig) -> Vec<String> {
        vec![]
    }

    /// How long callers have waited for compilations so far, on devices that compile in the background.
    fn compile_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// How many configurations of a kernel are worth compiling ahead at a time; 0 where compiling takes no longer than checking and timing.
    fn precompile_batch_size(&self, _spec: &KernelSpec) -> usize {
        0
    }

    /// Compiles kernels that are about to be run, on all cores, until it is cancelled.
    fn precompile(&self, _kernels: &[CompileRequest], _until: CancelToken) {}

    /// Begins to compile kernels, in this order, while others are checked and timed, until `unwanted` is set; false where compiling would
    /// disturb the measurement, and nothing is compiled.
    fn precompile_in_background(&self, _kernels: Vec<CompileRequest>, _unwanted: &Arc<AtomicBool>) -> bool {
        false
    }

    /// Zeroed memory: this machine's, unless the device has its own.
    ///
    /// # Errors
    /// Not enough of it.
    fn memory(&self, bytes: usize) -> Result<DeviceMemory, KernelError> {
        AlignedBuffer::new(bytes).map(DeviceMemory::Host)
    }

    /// Milliseconds from the beginning of the work until none of it runs any more, by the wall clock unless the device has its own.
    ///
    /// # Errors
    /// The error of the work; a device that failed.
    fn time(&self, work: DeviceWork) -> Result<f64, KernelError> {
        let start = Instant::now();
        work()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    /// Records work instead of running it, once it has been run before; `None` where a recording would not be faster.
    ///
    /// # Errors
    /// What the work returns; work that cannot be recorded.
    fn record(&self, _work: DeviceWork) -> Result<Option<Box<dyn Recording>>, KernelError> {
        Ok(None)
    }

    /// Whether it records.
    fn records(&self) -> bool {
        false
    }

    /// The streams on which recorded launches may run concurrently; `None` where one follows the other.
    fn streams(&self) -> Option<&dyn Streams> {
        None
    }

    /// Evicts the first bytes of these pieces of memory from the caches, before any later launch; false where Memlet does not know how.
    ///
    /// # Errors
    /// A device that failed.
    fn flush(&self, memories: &[(&DeviceMemory, usize)]) -> Result<bool, KernelError> {
        Ok(memories.iter().all(|(memory, bytes)| memory.flush(*bytes)))
    }

    /// How many runs of a kernel make one sample, if one run takes `ms` milliseconds: more than one where launching a kernel takes longer
    /// than running it.
    fn repeats(&self, _ms: f64) -> usize {
        1
    }

    /// How many recorded steps make one sample: several where the host's wait for each step would otherwise be timed with it.
    fn steps(&self) -> usize {
        1
    }

    /// Milliseconds of untimed warm-up runs before a kernel is timed.
    fn warm_up_ms(&self) -> f64 {
        0.0
    }

    /// Bytes read plus bytes written in a second by a copy that fits no cache, in GB/s; `None` where the caller measures the
    /// processor itself.
    ///
    /// # Errors
    /// A device that failed.
    fn copy_bandwidth(&self) -> Result<Option<f64>, KernelError> {
        Ok(None)
    }

    /// Free bytes of its own memory; `None` where it uses the machine's.
    ///
    /// # Errors
    /// A device that failed.
    fn free(&self) -> Result<Option<u64>, KernelError> {
        Ok(None)
    }
}
