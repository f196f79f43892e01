//! Map kernels on the cores: the C of a configuration, and its executable.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::maps::lower;
use crate::target::cpu::Toolchain;
use crate::target::cpu::emit::{CSource, emit};
use crate::target::cpu::executable::{MapKernel, load};
use sdfg::config::KernelConfig;

/// Generates, compiles and loads a scope under a configuration.
///
/// # Errors
/// Scopes that cannot be generated; a compiler that is missing or refuses.
pub fn compile(spec: &KernelSpec, config: &KernelConfig, toolchain: &Toolchain) -> Result<MapKernel, KernelError> {
    load(spec, &lower(spec, config)?, config, toolchain)
}

/// The C of a scope under a configuration, and the integers that it is given.
///
/// # Errors
/// Scopes that cannot be generated.
pub fn source(spec: &KernelSpec, config: &KernelConfig) -> Result<CSource, KernelError> {
    emit(spec, &lower(spec, config)?, config)
}
