//! What the CUDA of a unit under a configuration means as a schedule template: on a GPU that need not be here, it counts as an H200.

use crate::contraction::is_windowed;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::streaming::is_streamed;
use crate::target::cuda::cublaslt::FusedContraction;
use crate::target::cuda::emit::{self, Chip, map_template, tile_template};
use crate::template::{KernelOperators, ScheduleTemplate};
use crate::tiles::{expanded, is_tiled};
use sdfg::Unit;
use sdfg::config::KernelConfig;

/// The template of a kernel under a configuration; `None` where a library has it, where several kernels are launched as one, and for
/// kernels in the streaming form: what their rows hand over has no word in the grammar.
///
/// # Errors
/// Knobs that the kernel does not have; scopes that cannot be generated.
pub fn template_of(spec: &KernelSpec, config: &KernelConfig) -> Result<Option<ScheduleTemplate>, KernelError> {
    match &spec.unit {
        Unit::Operation(o) if is_windowed(o) => return template_of(&expanded(spec)?, config),
        Unit::Scope(_) if !FusedContraction::has(spec) && !is_streamed(config) => {}
        _ => return Ok(None),
    }
    let operators = KernelOperators::of(spec)?;
    if is_tiled(config) {
        return tile_template(&operators, spec, &crate::tiles::lower(spec, config)?, config, Chip::HOPPER).map(Some);
    }
    let knobs = config.knobs.clone().with("lanes", emit::lanes(spec, config)?);
    let config = KernelConfig { layouts: config.layouts.clone(), knobs };
    let mut nest = crate::maps::lower(spec, &config)?;
    emit::elements_first(&mut nest);
    map_template(&operators, spec, &nest, &config, Chip::HOPPER).map(Some)
}
