//! A generated kernel on a GPU.

use super::context::{Context, Memory};
use super::driver::failed;
use super::nvrtc::{Nvrtc, Resources};
use crate::emit::cuda::Source;
use crate::error::KernelError;
use crate::maps::dropout;
use cudarc::driver::result::{launch_kernel, module};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::Arc;

/// A kernel that is loaded on a GPU, with the scratch memory of its teams.
pub struct CudaKernel {
    name: String,
    source: Source,
    context: Arc<Context>,
    module: sys::CUmodule,
    kernel: sys::CUfunction,
    finish: Option<sys::CUfunction>,
    scratch: Memory,
    pub resources: Vec<Resources>,
}

/// What a run depends on besides its arguments.
#[derive(Clone, Copy, Debug)]
pub struct CudaRun {
    pub seed: u64,
    pub step: u64,
    pub dropout: bool,
}

impl CudaKernel {
    /// Compiles a source for the context's GPU and loads it.
    ///
    /// # Errors
    /// What the compiler refuses; memory that cannot be had.
    pub fn new(name: &str, source: Source, context: &Arc<Context>, nvrtc: &Nvrtc) -> Result<Self, KernelError> {
        let compiled = nvrtc.compile(name, &source.text, context.gpu.capability)?;
        context.current()?;
        // SAFETY: the image is a whole file as NVRTC made it.
        let module = unsafe { module::load_data(compiled.code.as_ptr().cast()) }.map_err(failed("cuModuleLoadData"))?;
        // SAFETY: the module was just loaded.
        let function = |name: &std::ffi::CStr| unsafe { module::get_function(module, name.into()) }.map_err(failed("cuModuleGetFunction"));
        let kernel = function(c"memlet_kernel")?;
        let finish = source.finish.map(|_| function(c"memlet_finish")).transpose()?;
        let scratch = context.memory((source.teams * source.scratch * if source.double { 8 } else { 4 }) as usize)?;
        Ok(CudaKernel {
            name: name.into(),
            source,
            context: context.clone(),
            module,
            kernel,
            finish,
            scratch,
            resources: compiled.resources,
        })
    }

    /// Puts the kernel on the context's stream; returns before it has run.
    ///
    /// # Errors
    /// A launch that the driver refuses.
    ///
    /// # Safety
    /// `arguments` are in the order of [`crate::KernelSpec::arguments`]; each is the address of a whole container on this GPU, laid
    /// out as the configuration says; those written overlap with no other, and all live until the stream has been waited for.
    pub unsafe fn launch(&self, arguments: &[u64], run: &CudaRun) -> Result<(), KernelError> {
        self.context.current()?;
        let keeps = dropout::keeps(&self.source.masks, run.seed, run.step, run.dropout);
        let mut packed = self.source.pack(arguments, self.scratch.address(), &keeps);
        let mut parameters = [packed.as_mut_ptr().cast::<c_void>()];
        let what = format!("launching `{}`", self.name);
        let mut launch = |function, grid: i64, threads: i64| {
            let (grid, threads) = ((grid as u32, 1, 1), (threads as u32, 1, 1));
            // SAFETY: as promised by the caller; the one parameter is as large as the text declares it, and copied at once.
            unsafe { launch_kernel(function, grid, threads, 0, self.context.stream(), &mut parameters) }.map_err(failed(&what))
        };
        launch(self.kernel, self.source.grid, self.source.threads)?;
        match (self.finish, self.source.finish) {
            (Some(function), Some((grid, threads))) => launch(function, grid, threads),
            _ => Ok(()),
        }
    }
}

impl Drop for CudaKernel {
    fn drop(&mut self) {
        if self.context.current().is_ok() {
            // SAFETY: loaded in `new`, unloaded once.
            let _ = unsafe { module::unload(self.module) };
        }
    }
}
