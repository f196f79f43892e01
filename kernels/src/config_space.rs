//! What may be chosen for a kernel: its configurations, numbered, each with a predicted cost.

use crate::kernel::KernelSpec;
use rayon::prelude::*;
use sdfg::Layout;
use sdfg::config::KernelConfig;

/// The layouts that a container may have in a space.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorChoice {
    pub data: String,
    pub layouts: Vec<Layout>,
}

/// Every way to run one kernel, numbered from 0.
pub trait ConfigSpace: Send + Sync {
    fn tensors(&self) -> &[TensorChoice];
    fn count(&self) -> u64;
    /// How many values each knob has, slowest first, after the layouts of the tensors: the digits of a number. Empty where knobs are
    /// one digit together.
    fn knobs(&self) -> Vec<u64> {
        Vec::new()
    }
    /// Configuration `n`; numbers beyond the last one wrap around.
    fn config(&self, n: u64) -> KernelConfig;
    /// Equal for configurations that run the same code on the same addresses: distinct knobs can come to the same kernel.
    fn identity(&self, n: u64) -> String;
    /// Size of a batch of consecutive numbers, beginning at a multiple of it, that share an expensive computation: a batch is ranked at a
    /// time.
    fn ranking_batch(&self) -> u64 {
        1
    }
    /// Predicted cost in bytes moved, penalties included; only comparisons within a kernel have a meaning.
    fn predicted_cost(&self, n: u64) -> f64;
    /// The same of many configurations, in their order, on all cores.
    fn predicted_costs(&self, numbers: &[u64]) -> Vec<f64> {
        numbers.par_iter().map(|n| self.predicted_cost(*n)).collect()
    }
    /// Whether a rule of thumb would choose these knobs under these layouts.
    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool;
    /// A control for `n`, measured whatever its predicted cost: the same configuration without the feature that makes `n` fast.
    fn control(&self, _n: u64) -> Option<u64> {
        None
    }
}

/// The identity of a configuration: its knobs, and the strides of its tensors.
pub(crate) fn identity(spec: &KernelSpec, tensors: &[TensorChoice], config: &KernelConfig) -> String {
    let mut text = config.knobs.to_string();
    for tensor in tensors {
        let Some(container) = spec.containers.get(&tensor.data) else { continue };
        let shape = spec.shape(&tensor.data).unwrap_or_default();
        let layout = config.layouts.get(&tensor.data).cloned().unwrap_or_default();
        let strides = layout.strides(&container.dims, &shape).unwrap_or_default();
        // The stride of a dim of size 1 is never used.
        let steps: Vec<usize> = strides.iter().zip(&shape).map(|(s, n)| if *n == 1 { 0 } else { *s }).collect();
        text += &format!(" {}{steps:?}", tensor.data);
        if !layout.is_plain() {
            let steps = layout.steps(&container.dims, &shape).unwrap_or_default();
            text += &format!("{:?}", steps.iter().map(|s| [s.block, s.across, s.within]).collect::<Vec<_>>());
        }
    }
    text
}
