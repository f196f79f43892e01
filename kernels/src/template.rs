//! Which template a unit of a program gets: its space, and its executable under a configuration.

use crate::compile::Toolchain;
use crate::error::KernelError;
use crate::kernel::{Executable, KernelSpec, Space};
use crate::maps::{self, MapSpace};
use sdfg::Unit;
use sdfg::config::KernelConfig;
use std::sync::Arc;

/// Every way to run a unit.
///
/// # Errors
/// Units that no template takes.
pub fn space(spec: &KernelSpec) -> Result<Box<dyn Space>, KernelError> {
    match &spec.unit {
        Unit::Scope(_) => Ok(Box::new(MapSpace::new(spec)?)),
        _ => Err(no_template(spec)),
    }
}

/// A unit under a configuration, ready to run.
///
/// # Errors
/// Units that no template takes, configurations of another unit, a compiler that is missing or refuses.
pub fn compile(spec: &KernelSpec, config: &KernelConfig, toolchain: &Toolchain) -> Result<Arc<dyn Executable>, KernelError> {
    match &spec.unit {
        Unit::Scope(_) => Ok(Arc::new(maps::compile(spec, config, toolchain)?)),
        _ => Err(no_template(spec)),
    }
}

fn no_template(spec: &KernelSpec) -> KernelError {
    KernelError::Unsupported { kernel: spec.name.clone(), what: "no template takes it; expand it into scopes".into() }
}
