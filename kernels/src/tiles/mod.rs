//! Tile kernels: scopes with matrix products inside, walked tile by tile, with what surrounds the products done while the tile
//! is in a core's cache. "FusionStitching", block composition, is where the shape comes from.

mod buffer_reuse;
mod contraction;
mod factor;
mod fit;
pub(crate) mod layers;
pub(crate) mod lower;
mod product_order;
mod small_sides;
pub(crate) mod space;
mod window_cost;
pub(crate) mod windows;
mod winograd_forms;

pub use contraction::expanded;
pub use layers::{LayerFlop, LayerSpace};
pub use lower::lower;
pub use space::{TileSpace, Tiles};

use crate::collapsed_dims::CollapsedDims;
use crate::images::lanes;
use crate::kernel::KernelSpec;
use sdfg::config::KernelConfig;
use sdfg::{Index, Unit};

/// Whether a configuration is one of tile kernels.
pub fn is_tiled(config: &KernelConfig) -> bool {
    config.knobs.get("tile").is_some()
}

/// The configuration with its tiles in the same proportion to other sizes, so that a check at small sizes walks as many kinds
/// of tiles as the kernel does at its own. Tiles of whole vectors keep whole vectors where products read their factors where they lie:
/// factors are packed for these alone.
pub fn scaled(config: &KernelConfig, from: &KernelSpec, to: &KernelSpec) -> KernelConfig {
    let Some(knob) = config.knobs.get("tile") else { return config.clone() };
    let folded = |spec| CollapsedDims::under(spec, config).map(|folded| folded.spec);
    let (Ok(from), Ok(to)) = (folded(from), folded(to)) else { return config.clone() };
    let count = |spec: &KernelSpec, index: &str| -> Option<i64> {
        let of = |i: &Index| i.count().eval(&spec.sizes).ok();
        match &spec.unit {
            Unit::Scope(scope) => scope.map.indices.iter().find(|i| i.name == index).and_then(of),
            Unit::Operation(operation) => spec.size(operation.indices.get(index)?).ok().map(|s| s as i64),
            _ => None,
        }
    };
    let scale = |part: &str| -> Option<String> {
        let (index, size) = part.split_once(':')?;
        let (size, whole, small) = (size.parse::<i64>().ok()?, count(&from, index)?, count(&to, index)?);
        let vectors = if lower::is_direct(config) && size % lanes() == 0 { lanes() } else { 1 };
        let share = (size * small + whole - 1) / whole;
        let scaled = match (share + vectors - 1) / vectors * vectors {
            _ if size >= whole => small,
            share if vectors == 1 => share.clamp(2, (small - 1).max(2)),
            share => share.min(small),
        };
        Some(format!("{index}:{scaled}"))
    };
    let tile: Option<Vec<String>> = knob.split(',').filter(|p| !p.is_empty()).map(scale).collect();
    let Some(tile) = tile else { return config.clone() };
    let mut knobs = config.knobs.clone().with("tile", tile.join(","));
    // Strips keep two steps at least, without which they keep no rows.
    if let Some((index, strip)) = config.knobs.get("strip").and_then(|strip| Some((strip.split_once(':')?.0, scale(strip)?))) {
        let of_step = tile.iter().find_map(|part| part.strip_prefix(&format!("{index}:"))).and_then(|size| size.parse().ok()).unwrap_or(1);
        let rows = strip.rsplit(':').next().and_then(|rows| rows.parse::<i64>().ok()).unwrap_or(1);
        knobs = knobs.with("strip", format!("{index}:{}", rows.max(2 * of_step)));
    }
    KernelConfig { knobs, ..config.clone() }
}
