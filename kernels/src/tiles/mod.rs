//! Tile kernels: scopes with matrix products inside, walked tile by tile, with what surrounds the products done while the tile
//! is in a core's cache. "FusionStitching", block composition, is where the shape comes from.

mod lower;
mod micro;
mod product;
mod space;

pub use lower::lower;
pub use micro::Block;
pub use product::{Factors, factors};
pub use space::TileSpace;

use crate::compile::Toolchain;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::Products;
use crate::maps::{self, MapKernel};
use sdfg::config::KernelConfig;

impl Products {
    /// C of packing, micro-kernels and products.
    pub fn code(&self) -> String {
        let defines = format!("{}#define DEPTH {}\n", self.block.defines(), self.depth);
        defines + &include_str!("product.c").replace("MICRO_KERNELS\n", &self.block.code())
    }
}

/// Generates, compiles and loads a scope under a configuration.
///
/// # Errors
/// Scopes without a matrix product, or that cannot be generated; a compiler that is missing or refuses.
pub fn compile(spec: &KernelSpec, config: &KernelConfig, toolchain: &Toolchain) -> Result<MapKernel, KernelError> {
    // Results stay in the cache for the next kernel where they fit: a tile is written line by line anyway.
    Ok(maps::load(spec, &lower(spec, config)?, config, toolchain)?.streaming(false))
}
