//! Tile kernels on the cores: the C of a configuration, and its executable.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::processor::cores;
use crate::target::cpu::Toolchain;
use crate::target::cpu::emit::{CSource, emit};
use crate::target::cpu::executable::{MapKernel, load};
use crate::tiles::lower::SCRATCH;
use crate::tiles::lower::{self, lower};
use crate::tiles::space::{TileSpace, Tiles};
use sdfg::config::KernelConfig;

/// The C of a scope under a configuration, and the integers that it is given.
///
/// # Errors
/// Scopes without a matrix product, or that cannot be generated.
pub fn source(spec: &KernelSpec, config: &KernelConfig) -> Result<CSource, KernelError> {
    lower::on_cores(spec)?;
    emit(spec, &lower(spec, config)?, config)
}

/// Generates, compiles and loads a scope under a configuration.
///
/// # Errors
/// Scopes without a matrix product, or that cannot be generated; a compiler that is missing or refuses.
pub fn compile(spec: &KernelSpec, config: &KernelConfig, toolchain: &Toolchain) -> Result<MapKernel, KernelError> {
    lower::on_cores(spec)?;
    // Results stay in the cache for the next kernel where they fit: a tile is written line by line anyway.
    Ok(load(spec, &lower(spec, config)?, config, toolchain)?.streaming(false))
}

/// Tiles for the caches of a core.
fn on_cores() -> Tiles {
    Tiles {
        short: &[128, 512, 256, 64, 32],
        long: &[512, 1024, 256, 4096],
        depths: &[768, 384, 1024, 256],
        usual: [256.0, 1024.0],
        local: SCRATCH / 2,
        unit: 1,
        banks: None,
        processors: cores() as i64,
    }
}

impl TileSpace {
    /// The space of kernels on cores.
    ///
    /// # Errors
    /// Scopes without a matrix product, or that cannot be generated.
    pub fn new(spec: &KernelSpec) -> Result<Self, KernelError> {
        lower::on_cores(spec)?;
        TileSpace::of(spec, on_cores())
    }
}
