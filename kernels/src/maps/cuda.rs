//! Scopes as CUDA kernels: the text of a configuration.

use crate::emit::cuda::{self, Source};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use sdfg::config::KernelConfig;

/// The CUDA of a scope under a configuration.
///
/// # Errors
/// Knobs that kernels do not have; scopes that cannot be generated.
pub fn cuda_source(spec: &KernelSpec, config: &KernelConfig) -> Result<Source, KernelError> {
    let knobs = config.knobs.clone().with("lanes", cuda::lanes(spec, config)?);
    let config = KernelConfig { layouts: config.layouts.clone(), knobs };
    cuda::emit(spec, &super::lower(spec, &config)?, &config)
}
