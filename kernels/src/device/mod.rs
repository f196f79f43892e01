//! Where kernels run: what every device offers to whoever measures and runs programs.

mod compile_request;
mod memory;
mod streams;

pub use compile_request::CompileRequest;
pub use memory::{DeviceMemory, OwnMemory};
pub use streams::Streams;

use crate::buffer::Buffer;
use crate::cancel::CancelToken;
use crate::error::KernelError;
use crate::in_place::InPlace;
use crate::kernel::{ConfigSpace, Executable, KernelSpec};
use sdfg::config::KernelConfig;
use sdfg::interpret::Run;
use sdfg::{Container, Layout};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What a device is given to run. It returns once everything is under way.
pub type Work<'a> = &'a mut dyn FnMut() -> Result<(), KernelError>;

/// Whether a library has a form of a kernel composed around a contraction.
pub type Forms = fn(&KernelSpec) -> bool;

/// Work that a device has recorded and runs as one.
pub trait Recording {
    /// Puts the work under way, with the masks of this run: seed and step may be others than when it was recorded.
    ///
    /// # Errors
    /// A device that failed.
    fn run(&self, run: &Run) -> Result<(), KernelError>;
}

/// A processor with memory, code for it, and a clock. Everything of a program is the same on all of them but this.
pub trait Device: Send + Sync {
    /// As records and reports name it; `None` stands for the processor of this machine.
    fn name(&self) -> Option<String>;

    /// Whether it is the processor of this machine, with the machine's memory and the workers of this process.
    fn is_host(&self) -> bool {
        self.name().is_none()
    }

    /// What makes its code, with versions.
    fn toolchain(&self) -> String;

    /// Which clock times come from, and what is in the caches.
    fn clock(&self) -> &'static str;

    /// What its generated code is called: `c`, `cu`.
    fn extension(&self) -> &'static str;

    /// Which kernels composed around contractions a library has a form of, besides generated code, which has one of all.
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

    /// What a kernel may write in place under a configuration. [`crate::in_place::with`] makes a configuration that does.
    fn in_place(&self, _spec: &KernelSpec, _config: &KernelConfig) -> Vec<InPlace> {
        vec![]
    }

    /// A copy of a container from one layout into another. Takes the container in `from`, then in `to`.
    ///
    /// # Errors
    /// Layouts that do not order the container's dims; a compiler that is missing or refuses.
    fn relayout(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Arc<dyn Executable>, KernelError>;

    /// A change of layout as a kernel whose code can be made ahead; `None` where it is not one like others.
    fn relayout_request(&self, _container: &Container, _shape: &[usize], _from: &Layout, _to: &Layout) -> Option<CompileRequest> {
        None
    }

    /// A configuration for the same kernel at other sizes: where there is a choice that depends on sizes, one alike.
    fn scaled(&self, config: &KernelConfig, from: &KernelSpec, to: &KernelSpec) -> KernelConfig {
        crate::tiles::scaled(config, from, to)
    }

    /// Dims that a kernel must have in multiples here, whatever its sizes: a check at small sizes keeps to them.
    fn granules(&self, _spec: &KernelSpec) -> Vec<(String, i64)> {
        vec![]
    }

    /// Dims whose sizes the code of a kernel under a configuration has in it: a check that is small in all others checks the very code
    /// that is timed.
    fn written(&self, _spec: &KernelSpec, _config: &KernelConfig) -> Vec<String> {
        vec![]
    }

    /// How long whoever compiles has waited for code so far, where others make it meanwhile.
    fn compile_wait(&self) -> Duration {
        Duration::ZERO
    }

    /// How many configurations of a kernel are worth preparing at a time; 0 where making code takes no longer than checking and
    /// timing it.
    fn precompile_batch_size(&self, _spec: &KernelSpec) -> usize {
        0
    }

    /// Makes the code of kernels that are about to be compiled, as many at a time as the machine has cores, as long as it goes on.
    fn precompile(&self, _kernels: &[CompileRequest], _until: CancelToken) {}

    /// Begins to make the code of kernels, in this order, while others are checked and timed, until it is unwanted; false where cores
    /// that make code would disturb what is timed, and nothing is made.
    fn precompile_in_background(&self, _kernels: Vec<CompileRequest>, _unwanted: &Arc<AtomicBool>) -> bool {
        false
    }

    /// Zeroed memory: this machine's, unless the device has its own.
    ///
    /// # Errors
    /// Not enough of it.
    fn memory(&self, bytes: usize) -> Result<DeviceMemory, KernelError> {
        Buffer::new(bytes).map(DeviceMemory::Host)
    }

    /// Milliseconds that work takes, from its beginning until nothing of it runs any more: by the wall, where a device has no clock of
    /// its own.
    ///
    /// # Errors
    /// What the work returns; a device that failed meanwhile.
    fn time(&self, work: Work) -> Result<f64, KernelError> {
        let start = Instant::now();
        work()?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    /// Records work instead of running it, once it has been run before; `None` where it would run just the same.
    ///
    /// # Errors
    /// What the work returns; work that cannot be recorded.
    fn record(&self, _work: Work) -> Result<Option<Box<dyn Recording>>, KernelError> {
        Ok(None)
    }

    /// Whether it records.
    fn records(&self) -> bool {
        false
    }

    /// Where launches that are recorded may run beside one another; `None` where one follows the other.
    fn streams(&self) -> Option<&dyn Streams> {
        None
    }

    /// Throws the first bytes of these pieces of memory, as many as it says, out of the caches, before anything that is put under way
    /// later; false where Memlet does not know how.
    ///
    /// # Errors
    /// A device that failed.
    fn flush(&self, memories: &[(&DeviceMemory, usize)]) -> Result<bool, KernelError> {
        Ok(memories.iter().all(|(memory, bytes)| memory.flush(*bytes)))
    }

    /// How many runs of a kernel make one sample if one takes so many milliseconds: more than one where putting a kernel under way
    /// takes longer than running it.
    fn repeats(&self, _ms: f64) -> usize {
        1
    }

    /// How many recorded steps make one sample: more than one where whoever waits for each would be timed with it.
    fn steps(&self) -> usize {
        1
    }

    /// Milliseconds that recorded runs of a kernel go by untimed first.
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

    /// Bytes of its own memory that nobody holds; `None` where it has the machine's.
    ///
    /// # Errors
    /// A device that failed.
    fn free(&self) -> Result<Option<u64>, KernelError> {
        Ok(None)
    }
}
