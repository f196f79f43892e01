//! The default configuration of a kernel for which nothing was measured.

use crate::pipeline::PipelineError;
use kernels::KernelSpec;
use kernels::device::Device;
use sdfg::config::KernelConfig;

/// The number of configurations among which the best by predicted cost is taken.
const CONSIDERED: u64 = 256;

/// The configuration of least predicted cost, with row-major layouts in the recipe's order of dims.
pub fn default_config(device: &dyn Device, spec: &KernelSpec) -> Result<KernelConfig, PipelineError> {
    let space = device.space(spec)?;
    let layouts = space.tensors().iter().fold(1u64, |n, t| n.saturating_mul(t.layouts.len() as u64));
    let knobs = (space.count() / layouts.max(1)).clamp(1, CONSIDERED);
    let best = (0..knobs).min_by(|a, b| space.predicted_cost(*a).total_cmp(&space.predicted_cost(*b)));
    Ok(space.config(best.unwrap_or(0)))
}
