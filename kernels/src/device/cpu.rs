//! The cores of this machine, and C from the system's compiler.

use super::{CompileRequest, Device, Forms};
use crate::cancel::CancelToken;
use crate::compile::Toolchain;
use crate::error::KernelError;
use crate::in_place::InPlace;
use crate::kernel::{ConfigSpace, Executable, KernelSpec};
use crate::template;
use sdfg::config::KernelConfig;
use sdfg::{Container, Layout};
use std::sync::Arc;

/// Configurations of a kernel whose code is made at a time: several share one text, and all cores should have something to do.
const PRECOMPILE_BATCH: usize = 16;

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
        "wall, monotonic"
    }

    fn extension(&self) -> &'static str {
        "c"
    }

    fn epilogues(&self) -> Option<Forms> {
        None
    }

    fn space(&self, spec: &KernelSpec) -> Result<Box<dyn ConfigSpace>, KernelError> {
        template::space(spec)
    }

    fn compile(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError> {
        template::compile(spec, config, &self.toolchain)
    }

    fn in_place(&self, spec: &KernelSpec, config: &KernelConfig) -> Vec<InPlace> {
        template::in_place(spec, config)
    }

    fn relayout(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Arc<dyn Executable>, KernelError> {
        template::relayout(container, shape, from, to, &self.toolchain)
    }

    fn precompile_batch_size(&self, _: &KernelSpec) -> usize {
        PRECOMPILE_BATCH
    }

    fn precompile(&self, kernels: &[CompileRequest], until: CancelToken) {
        let kernels: Vec<(KernelSpec, KernelConfig)> = kernels.iter().flat_map(|request| request.each(self)).collect();
        template::precompile(&kernels, &self.toolchain, until);
    }
}
