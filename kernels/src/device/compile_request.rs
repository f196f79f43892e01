//! A kernel that is about to be measured: devices compile it ahead in the background.

use crate::device::Device;
use crate::kernel::KernelSpec;
use sdfg::config::KernelConfig;

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

    /// The kernels to compile, in this order.
    pub fn each(&self, device: &dyn Device) -> Vec<(KernelSpec, KernelConfig)> {
        let checked = self.checked.iter().map(|spec| (spec.clone(), device.scaled(&self.config, &self.timed, spec)));
        checked.chain([(self.timed.clone(), self.config.clone())]).collect()
    }
}
