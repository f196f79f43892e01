//! Loops over time as kernels: the kernels of the body, run once for each time with their addresses moved along.
//!
//! A container that has a place for each time holds the times one after the other, so a slice of it is where the body's kernels would
//! have a container of their own. What lies outside in time is one slice of its own that holds the fill. Containers that the body reads
//! as a whole, such as recurrent weights, keep one layout for all times: in panels they are packed once and not in every iteration.

mod body;
mod divided;
mod executable;
mod runs;
mod space;

pub use space::LoopSpace;

use crate::device::Device;
use crate::error::KernelError;
use crate::executable::Executable;
use crate::kernel::KernelSpec;
use body::Body;
use executable::LoopKernel;
use sdfg::Unit;
use sdfg::config::KernelConfig;
use std::sync::Arc;

/// Whether a kernel is a loop over time.
pub fn is_loop(spec: &KernelSpec) -> bool {
    matches!(&spec.unit, Unit::Nested(nested) if nested.repeat.is_some())
}

/// A loop under a configuration, ready to run: `compile` makes the kernels of its body.
///
/// # Errors
/// Layouts in which a time is no slice; kernels of the body that cannot be compiled.
pub fn compile(spec: &KernelSpec, config: &KernelConfig, device: &dyn Device) -> Result<Arc<dyn Executable>, KernelError> {
    Ok(Arc::new(LoopKernel::new(&Body::new(spec)?, config, device)?))
}

/// The kernels of a loop's body, each with its configuration; none where the configuration is another kernel's.
pub fn members(spec: &KernelSpec, config: &KernelConfig) -> Vec<(KernelSpec, KernelConfig)> {
    let Ok(body) = Body::new(spec) else { return vec![] };
    let configs = body.configs(config).unwrap_or_default();
    body.kernels.into_iter().zip(configs).collect()
}

/// The corresponding configuration of the same loop at other sizes: that of each kernel of its body.
pub fn scaled(config: &KernelConfig, from: &KernelSpec, to: &KernelSpec, device: &dyn Device) -> KernelConfig {
    let (Ok(from), Ok(to)) = (Body::new(from), Body::new(to)) else { return config.clone() };
    let Ok(configs) = from.configs(config) else { return config.clone() };
    let each = configs.iter().zip(from.kernels.iter().zip(&to.kernels)).map(|(config, (from, to))| device.scaled(config, from, to));
    let knobs = body::with_before(body::joined(&each.collect::<Vec<_>>()), &body::before(&config.knobs));
    KernelConfig { knobs, ..config.clone() }
}
