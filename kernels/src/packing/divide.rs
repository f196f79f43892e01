//! Dividing a kernel's points along one dim, so that workers need no barrier between it and kernels that are divided alike.

use crate::device::Partitioned;
use crate::kernel::KernelSpec;
use crate::loopnest::partition::PartitionedNest;
use sdfg::Unit;
use sdfg::config::KernelConfig;

/// Lanes of a block are a multiple of this number, a cache line of f32.
const LANES: usize = 16;

/// The configuration of a kernel with its points divided along a dim among `workers` workers, in parts as equal as tiles allow, and the
/// memory that each part touches; `None` where no index of the kernel walks the dim, or its parts would be too unequal.
pub fn divide(
    kernel: &KernelSpec,
    config: &KernelConfig,
    dim: &str,
    workers: usize,
    partitioned: Partitioned,
) -> Option<(KernelConfig, PartitionedNest)> {
    let index = index_along(&kernel.unit, dim)?;
    let size = kernel.size(dim).ok()?;
    let mut config = config.clone();
    if let Some(tile) = config.knobs.get("tile").map(str::to_string) {
        let part = size.div_ceil(workers);
        let mut tiles: Vec<String> = Vec::new();
        for each in tile.split(',').filter(|t| !t.is_empty()) {
            let (of, count) = each.split_once(':')?;
            if of != index {
                tiles.push(each.to_string());
                continue;
            }
            let count = count.parse::<usize>().ok()?;
            // Whole tiles for each worker: as many as before, or one.
            let tile = if count >= part { part } else { part.div_ceil(part.div_ceil(count)) };
            tiles.push(format!("{index}:{tile}"));
        }
        // An index without a tile is walked position by position.
        config.knobs = config.knobs.with("tile", tiles.join(",")).with("first", &index);
    } else if let Some(order) = config.knobs.get("order").map(str::to_string) {
        let rest = order.split(',').filter(|each| *each != index);
        let order: Vec<&str> = std::iter::once(index.as_str()).chain(rest).collect();
        config.knobs = config.knobs.with("order", order.join(","));
    }
    // Lanes run along the index in blocks, of which each worker has some.
    if config.knobs.get("vector") == Some(index.as_str()) && config.knobs.get("tile").is_none() {
        config.knobs = config.knobs.with("lanes", size.div_ceil(workers).next_multiple_of(LANES));
    }
    let nest = partitioned(kernel, &config)?;
    let (partition, _) = nest.partition.as_ref()?;
    let fits = partition.size == size as i64 && partition.step <= size.div_ceil(workers) as i64;
    fits.then_some((config, nest))
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
