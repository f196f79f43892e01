//! The cores of this machine, and C from the system's compiler.

pub mod canonical;
pub mod compile;
mod dialect;
mod direct;
pub mod emit;
mod emit_gemm;
pub(crate) mod executable;
pub(crate) mod gemm;
pub mod gemm_library;
mod gemm_space;
mod kept;
pub mod maps;
mod prefetch;
pub mod relayout;
pub mod scatter;
mod shared_kernels;
pub mod template;
pub mod templates;
pub mod tiles;
mod window_reduction;

pub use compile::Toolchain;
pub use executable::MapKernel;
pub use gemm_space::GemmSpace;
pub use gemm_space::is_generated;

use super::TargetInfo;
use crate::cancel::CancelToken;
use crate::config_space::ConfigSpace;
use crate::device::{CompileRequest, Device, Forms, Partitioned};
use crate::error::KernelError;
use crate::executable::Executable;
use crate::in_place::InPlace;
use crate::kernel::KernelSpec;
use crate::loops;
use sdfg::config::KernelConfig;
use sdfg::{Container, Layout};
use std::sync::Arc;

/// Configurations of a kernel whose code is made at a time: several share one text, and all cores should have something to do.
const PRECOMPILE_BATCH: usize = 16;

/// The cores of this machine in the registry.
pub static TARGET: TargetInfo = TargetInfo {
    id: "cpu",
    title: "the cores of this machine, C by the system's compiler",
    is_numbered: false,
    is_for_tests: false,
    open: |_| Ok(Arc::new(Cores { toolchain: Toolchain::system()? })),
    epilogues: None,
    code: |spec, config| Ok(templates::source(spec, config).map(|source| source.text)),
    template: template::template_of,
    generated: templates::space,
};

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
        if loops::is_loop(spec) { Ok(Box::new(loops::LoopSpace::new(spec, self)?)) } else { templates::space(spec) }
    }

    fn compile(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError> {
        if loops::is_loop(spec) { loops::compile(spec, config, self) } else { templates::compile(spec, config, &self.toolchain) }
    }

    fn compile_for_plan(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError> {
        shared_kernels::shared((spec, config), &self.toolchain, || self.compile(spec, config))
    }

    fn has_for_plan(&self, spec: &KernelSpec, config: &KernelConfig) -> bool {
        shared_kernels::has(spec, config, &self.toolchain)
    }

    fn scaled(&self, config: &KernelConfig, from: &KernelSpec, to: &KernelSpec) -> KernelConfig {
        if loops::is_loop(from) { loops::scaled(config, from, to, self) } else { crate::tiles::scaled(config, from, to) }
    }

    fn in_place(&self, spec: &KernelSpec, config: &KernelConfig) -> Vec<InPlace> {
        templates::in_place(spec, config)
    }

    fn partitioned(&self) -> Option<Partitioned> {
        Some(templates::partitioned)
    }

    fn relayout(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Arc<dyn Executable>, KernelError> {
        templates::relayout(container, shape, from, to, &self.toolchain)
    }

    fn precompile_batch_size(&self, _: &KernelSpec) -> usize {
        PRECOMPILE_BATCH
    }

    fn precompile(&self, kernels: &[CompileRequest], until: CancelToken) {
        let of = |(spec, config): (KernelSpec, KernelConfig)| {
            if loops::is_loop(&spec) { loops::members(&spec, &config) } else { vec![(spec, config)] }
        };
        let kernels: Vec<(KernelSpec, KernelConfig)> = kernels.iter().flat_map(|request| request.each(self)).flat_map(of).collect();
        templates::precompile(&kernels, &self.toolchain, until);
    }
}
