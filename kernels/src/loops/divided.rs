//! Kernels of a loop's body that are divided along one dim, such as the batch: each worker then goes through all times by itself.

use super::body::Body;
use crate::device::Partitioned;
use crate::kernel::KernelSpec;
use crate::phases::{Part, Place};
use sdfg::Unit;
use sdfg::config::KernelConfig;

/// The dims along which all that the kernels of a body write can be divided, as the first of them has them.
pub(super) fn dims(body: &Body) -> Vec<String> {
    let written = |kernel: &KernelSpec| -> Vec<Vec<String>> {
        let arguments = kernel.arguments();
        arguments.into_iter().filter(|a| a.access == crate::ArgumentAccess::Write).map(|a| a.dims).collect()
    };
    let all: Vec<Vec<String>> = body.kernels.iter().flat_map(written).collect();
    let Some((first, rest)) = all.split_first() else { return vec![] };
    first.iter().filter(|dim| rest.iter().all(|dims| dims.contains(dim))).cloned().collect()
}

/// The configuration with the points of a kernel divided along a dim among so many workers, in parts as equal as tiles allow; `None` where the
/// kernel cannot be divided so.
pub(super) fn divided(
    body: &Body,
    kernel: &KernelSpec,
    config: &KernelConfig,
    dim: &str,
    workers: usize,
    partitioned: Partitioned,
) -> Option<KernelConfig> {
    let index = index_along(&kernel.unit, dim)?;
    let size = kernel.size(dim).ok()?;
    let mut config = config.clone();
    if let Some(tile) = config.knobs.get("tile").map(str::to_string) {
        let part = size.div_ceil(workers);
        let mut found = false;
        let mut tiles: Vec<String> = Vec::new();
        for each in tile.split(',').filter(|t| !t.is_empty()) {
            let (of, count) = each.split_once(':')?;
            if of != index {
                tiles.push(each.to_string());
                continue;
            }
            found = true;
            let count = count.parse::<usize>().ok()?;
            // Whole tiles for each worker: as many as before, or one.
            let tile = if count >= part { part } else { part.div_ceil(part.div_ceil(count)) };
            tiles.push(format!("{index}:{tile}"));
        }
        if !found {
            return None;
        }
        config.knobs = config.knobs.with("tile", tiles.join(",")).with("first", &index);
    } else if let Some(order) = config.knobs.get("order").map(str::to_string) {
        let rest = order.split(',').filter(|each| *each != index);
        let order: Vec<&str> = std::iter::once(index.as_str()).chain(rest).collect();
        config.knobs = config.knobs.with("order", order.join(","));
    }
    let nest = partitioned(kernel, &config)?;
    let (partition, _) = nest.partition?;
    let fits = partition.size == size as i64 && partition.step <= size.div_ceil(workers) as i64;
    let along = nest.touches.iter().filter(|t| t.written).all(|touch| {
        let (Place::Argument(n), Part::Along(axis)) = (touch.place, touch.part) else { return false };
        kernel.arguments().get(n).and_then(|a| a.dims.get(axis)).is_some_and(|d| d == dim)
    });
    // What a worker reads of another one's work would need a barrier at each time.
    let made: Vec<String> = body
        .kernels
        .iter()
        .flat_map(KernelSpec::arguments)
        .filter(|a| a.access == crate::ArgumentAccess::Write)
        .map(|a| body.outer(&a.data).unwrap_or(&a.data).to_string())
        .collect();
    let own = nest.touches.iter().filter(|t| !t.written).all(|touch| {
        let Place::Argument(n) = touch.place else { return true };
        let Some(argument) = kernel.arguments().into_iter().nth(n) else { return true };
        let outer = body.outer(&argument.data).unwrap_or(&argument.data);
        let apart = !made.iter().any(|m| m == outer);
        apart || matches!(touch.part, Part::Along(axis) if argument.dims.get(axis).is_some_and(|d| d == dim))
    });
    (fits && along && own).then_some(config)
}

/// The index of a kernel that walks a dim.
fn index_along(unit: &Unit, dim: &str) -> Option<String> {
    match unit {
        Unit::Scope(scope) => {
            let computations = scope.computations();
            computations.iter().flat_map(|(around, _)| around.iter()).find(|index| index.dim == dim).map(|index| index.name.clone())
        }
        Unit::Operation(operation) => operation.indices.iter().find(|(_, d)| *d == dim).map(|(index, _)| index.clone()),
        Unit::Nested(_) => None,
    }
}
