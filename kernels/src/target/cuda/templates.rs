//! Which template a unit of a program gets on a GPU: its space, and its text under a configuration.

use crate::config_space::ConfigSpace;
use crate::contraction::is_windowed;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::target::cuda::emit::{Chip, CudaSource};
use crate::target::cuda::group::{self, GroupSpace};
use crate::target::cuda::maps::{self, CudaSpace};
use crate::target::cuda::streaming::StreamedSpace;
use crate::target::cuda::tiles::{self, CudaTileSpace};
use crate::tiles::{expanded, is_tiled};
use sdfg::Unit;
use sdfg::config::KernelConfig;
use std::borrow::Cow;

/// Every way to run a scope, or a group of contractions, on a GPU.
///
/// # Errors
/// What cannot be generated.
pub fn space(spec: &KernelSpec, chip: Chip) -> Result<Box<dyn ConfigSpace>, KernelError> {
    let spec = &*scope_of(spec)?;
    if let Unit::Nested(_) = &spec.unit {
        return Ok(Box::new(GroupSpace::new(spec, chip)?));
    }
    if let Ok(streamed) = StreamedSpace::new(spec, chip) {
        return Ok(Box::new(streamed));
    }
    match CudaTileSpace::new(spec, chip) {
        Ok(tiles) => Ok(Box::new(tiles)),
        Err(_) => Ok(Box::new(CudaSpace::new(spec, chip)?)),
    }
}

/// A contraction over windows as the scope that it means: no library multiplies it.
fn scope_of(spec: &KernelSpec) -> Result<Cow<'_, KernelSpec>, KernelError> {
    match &spec.unit {
        Unit::Operation(o) if is_windowed(o) => Ok(Cow::Owned(expanded(spec)?)),
        _ => Ok(Cow::Borrowed(spec)),
    }
}

/// The CUDA of a scope, or of a group of contractions, under a configuration.
///
/// # Errors
/// Knobs that kernels do not have; scopes that cannot be generated.
pub fn source(spec: &KernelSpec, config: &KernelConfig, chip: Chip) -> Result<CudaSource, KernelError> {
    let spec = &*scope_of(spec)?;
    match &spec.unit {
        Unit::Nested(_) => group::source(spec, config, chip),
        _ if is_tiled(config) => tiles::source(spec, config, chip),
        _ => maps::source(spec, config, chip),
    }
}

/// Dims whose sizes that text has in it: at other sizes of these it is another text.
pub fn specialized_dims(spec: &KernelSpec, config: &KernelConfig) -> Vec<String> {
    match scope_of(spec) {
        Ok(spec) if !is_tiled(config) => maps::specialized_dims(&spec, config),
        _ => vec![],
    }
}
