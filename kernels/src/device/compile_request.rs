//! A kernel that is about to be measured: devices compile it ahead in the background.

use super::Device;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::maps;
use sdfg::config::KernelConfig;
use sdfg::{Container, Layout};

/// A kernel under a configuration that is about to be timed, and checked before that at other sizes.
#[derive(Clone)]
pub struct CompileRequest {
    pub timed: KernelSpec,
    pub checked: Option<KernelSpec>,
    pub config: KernelConfig,
}

impl CompileRequest {
    /// One that is run once, as it is.
    pub fn once(spec: &KernelSpec, config: &KernelConfig) -> Self {
        CompileRequest { timed: spec.clone(), checked: None, config: config.clone() }
    }

    /// A change of layout on GPUs.
    ///
    /// # Errors
    /// Layouts of other dims.
    pub fn relayout(container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Self, KernelError> {
        let dims: Vec<(String, i64)> = container.dims.iter().cloned().zip(shape.iter().map(|s| *s as i64)).collect();
        let (spec, config) = maps::cuda_copy(&container.name, container.dtype, &dims, from, to)?;
        Ok(CompileRequest::once(&spec, &config))
    }

    /// What is compiled, in this order.
    pub fn each(&self, device: &dyn Device) -> Vec<(KernelSpec, KernelConfig)> {
        let checked = self.checked.iter().map(|spec| (spec.clone(), device.scaled(&self.config, &self.timed, spec)));
        checked.chain([(self.timed.clone(), self.config.clone())]).collect()
    }
}
