//! A generated kernel on a GPU.

use crate::error::KernelError;
use crate::executable::{Executable, Resources};
use crate::run_context::{Completion, RunContext};
use crate::target::cuda::context::CudaContext;
use crate::target::cuda::driver::failed;
use crate::target::cuda::emit::CudaSource;
use crate::target::cuda::memory::GpuMemory;
use crate::target::cuda::nvrtc::{Compiled, Nvrtc};
use cudarc::driver::result::{function, launch_kernel, module};
use cudarc::driver::sys;
use sdfg::interpret::Run;
use std::ffi::c_void;
use std::sync::Arc;

/// Shared memory that every block may be given without asking for more, in bytes.
const SHARED: i64 = 48 << 10;

/// Code that is loaded on a GPU: the kernel, and the one that combines partial results. Kernels that differ in integers alone
/// share it.
pub struct Module {
    context: Arc<CudaContext>,
    module: sys::CUmodule,
    kernel: sys::CUfunction,
    finish: Option<sys::CUfunction>,
    pub resources: Vec<Resources>,
}

// SAFETY: the driver's handles may be used by any thread; the context is bound before they are.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel on a GPU, with the scratch memory of its teams.
pub struct CudaKernel {
    name: String,
    source: CudaSource,
    context: Arc<CudaContext>,
    module: Arc<Module>,
    scratch: GpuMemory,
    arguments: usize,
}

impl Module {
    /// Loads code for the context's GPU; `finishes` says whether it combines partial results.
    ///
    /// # Errors
    /// Code of another GPU; memory that cannot be had.
    pub fn new(context: &Arc<CudaContext>, compiled: &Compiled, finishes: bool) -> Result<Self, KernelError> {
        context.current()?;
        // SAFETY: the image is a whole file as NVRTC made it.
        let module = unsafe { module::load_data(compiled.code.as_ptr().cast()) }.map_err(failed("cuModuleLoadData"))?;
        // SAFETY: the module was just loaded.
        let function = |name: &std::ffi::CStr| unsafe { module::get_function(module, name.into()) }.map_err(failed("cuModuleGetFunction"));
        let kernel = function(c"memlet_kernel")?;
        let finish = if finishes { Some(function(c"memlet_finish")?) } else { None };
        Ok(Module { context: context.clone(), module, kernel, finish, resources: compiled.resources.clone() })
    }
}

impl CudaKernel {
    /// Compiles a source for the context's GPU and loads it. `arguments` is how many containers it takes.
    ///
    /// # Errors
    /// What the compiler refuses; memory that cannot be had.
    pub fn new(name: &str, source: CudaSource, arguments: usize, context: &Arc<CudaContext>, nvrtc: &Nvrtc) -> Result<Self, KernelError> {
        let compiled = nvrtc.compile(name, &source.text, context.gpu.capability)?;
        let module = Module::new(context, &compiled, source.finish.is_some())?;
        CudaKernel::of(name, source, arguments, Arc::new(module))
    }

    /// A source with the code that was made of it.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn of(name: &str, source: CudaSource, arguments: usize, module: Arc<Module>) -> Result<Self, KernelError> {
        let context = module.context.clone();
        if source.shared > SHARED {
            context.current()?;
            let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let what = format!("giving the blocks of `{name}` {} bytes of shared memory", source.shared);
            // SAFETY: the function belongs to a module that lives as long as this kernel.
            unsafe { function::set_function_attribute(module.kernel, attribute, source.shared as i32) }.map_err(failed(&what))?;
        }
        // Others keep less: the sweep goes on with them.
        let scratch = GpuMemory::new(&context, (source.teams * source.scratch * if source.double { 8 } else { 4 }) as usize);
        let scratch = scratch.map_err(|error| match error {
            KernelError::GpuMemory { bytes, free, .. } => KernelError::Scratch { kernel: name.into(), bytes, free },
            other => other,
        })?;
        Ok(CudaKernel { name: name.into(), source, context, module, scratch, arguments })
    }

    /// Puts the kernel on the context's stream; returns before it has run. Its masks are those of what was drawn last when it does.
    ///
    /// # Errors
    /// A launch that the driver refuses.
    ///
    /// # Safety
    /// `arguments` are in the order of [`crate::KernelSpec::arguments`]; each is the address of a whole container on this GPU, laid
    /// out as the configuration says; those written overlap with no other, and all live until the stream has been waited for.
    pub unsafe fn launch(&self, arguments: &[u64]) -> Result<(), KernelError> {
        self.context.current()?;
        let mut packed = self.source.pack(arguments, self.scratch.address(), self.context.draw_address());
        let mut parameters = [packed.as_mut_ptr().cast::<c_void>()];
        let what = format!("launching `{}`", self.name);
        let mut launch = |function, grid: i64, threads: i64, shared: i64| {
            let (grid, threads) = ((grid as u32, 1, 1), (threads as u32, 1, 1));
            // SAFETY: as promised by the caller; the one parameter is as large as the text declares it, and copied at once.
            unsafe { launch_kernel(function, grid, threads, shared as u32, self.context.stream(), &mut parameters) }.map_err(failed(&what))
        };
        launch(self.module.kernel, self.source.grid, self.source.threads, self.source.shared)?;
        match (self.module.finish, self.source.finish) {
            (Some(function), Some((grid, threads))) => launch(function, grid, threads, 0),
            _ => Ok(()),
        }
    }
}

impl Executable for CudaKernel {
    /// Returns before the kernel has run, whatever the deadline.
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        let addresses: Vec<u64> = arguments.iter().map(|a| *a as u64).collect();
        self.context.draw(&Run { seed: context.seed, step: context.step, dropout: context.dropout })?;
        // SAFETY: as promised by the caller.
        unsafe { self.launch(&addresses)? };
        Ok(Completion::Done)
    }

    fn source(&self) -> Option<&str> {
        Some(&self.source.text)
    }

    fn resources(&self) -> &[Resources] {
        &self.module.resources
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.wait().is_ok() {
            // SAFETY: loaded in `new`, unloaded once.
            let _ = unsafe { module::unload(self.module) };
        }
    }
}
