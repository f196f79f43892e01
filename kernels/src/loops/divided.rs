//! Kernels of a loop's body that are divided along one dim, such as the batch: each worker then goes through all times by itself.

use super::body::Body;
use crate::device::Partitioned;
use crate::kernel::KernelSpec;
use crate::loopnest::partition::PartitionedNest;
use crate::packing::divide::divide;
use crate::phases::{AccessedPart, PhaseMemory};
use sdfg::config::KernelConfig;

/// The dims that at least half of what the kernels of a body write have, in order of first appearance.
pub(super) fn dims(body: &Body) -> Vec<String> {
    let written = |kernel: &KernelSpec| -> Vec<Vec<String>> {
        let arguments = kernel.arguments();
        arguments.into_iter().filter(|a| a.access == crate::ArgumentAccess::Write).map(|a| a.dims).collect()
    };
    let all: Vec<Vec<String>> = body.kernels.iter().flat_map(written).collect();
    let dims: indexmap::IndexSet<&String> = all.iter().flatten().collect();
    let often = |dim: &&String| 2 * all.iter().filter(|dims| dims.contains(*dim)).count() >= all.len();
    dims.into_iter().filter(often).cloned().collect()
}

/// Whether each worker writes its own part along a dim alone.
pub(super) fn writes_along(kernel: &KernelSpec, nest: &PartitionedNest, dim: &str) -> bool {
    nest.touches.iter().filter(|t| t.written).all(|touch| {
        let (PhaseMemory::Argument(n), AccessedPart::Along(axis)) = (touch.place, touch.part) else { return false };
        kernel.arguments().get(n).and_then(|a| a.dims.get(axis)).is_some_and(|d| d == dim)
    })
}

/// The configuration of a kernel of a body with its points divided along a dim among `workers` workers; `None` where a worker would then
/// need a result of another one.
pub(super) fn divided(
    body: &Body,
    kernel: &KernelSpec,
    config: &KernelConfig,
    dim: &str,
    workers: usize,
    partitioned: Partitioned,
) -> Option<KernelConfig> {
    let (config, nest) = divide(kernel, config, dim, workers, partitioned)?;
    let along = writes_along(kernel, &nest, dim);
    // What a worker reads of another one's work would need a barrier at each time.
    let made: Vec<String> = body
        .kernels
        .iter()
        .flat_map(KernelSpec::arguments)
        .filter(|a| a.access == crate::ArgumentAccess::Write)
        .map(|a| body.outer(&a.data).unwrap_or(&a.data).to_string())
        .collect();
    let own = nest.touches.iter().filter(|t| !t.written).all(|touch| {
        let PhaseMemory::Argument(n) = touch.place else { return true };
        let Some(argument) = kernel.arguments().into_iter().nth(n) else { return true };
        let outer = body.outer(&argument.data).unwrap_or(&argument.data);
        let apart = !made.iter().any(|m| m == outer);
        apart || matches!(touch.part, AccessedPart::Along(axis) if argument.dims.get(axis).is_some_and(|d| d == dim))
    });
    (along && own).then_some(config)
}
