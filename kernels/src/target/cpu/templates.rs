//! Which template a unit of a program gets on the cores: its space, and its executable under a configuration.

use crate::cancel::CancelToken;
use crate::config_space::ConfigSpace;
use crate::contraction::{ContractionProblem, is_windowed};
use crate::error::KernelError;
use crate::executable::Executable;
use crate::in_place::{self, InPlace};
use crate::kernel::KernelSpec;
use crate::loopnest::partition::PartitionedNest;
use crate::maps::{self, MapSpace};
use crate::processor::{PanelBlock, cores};
use crate::split_blocked_dims;
use crate::target::cpu::emit::CSource;
use crate::target::cpu::gemm_library::{ContractionKernel, ContractionSpace};
use crate::target::cpu::scatter::{ScatterKernel, ScatterSpace, is_scatter};
use crate::target::cpu::{self, GemmSpace, Toolchain, is_generated};
use crate::tiles::{self, LayerSpace, TileSpace};
use rayon::prelude::*;
use sdfg::config::KernelConfig;
use sdfg::{Class, Container, Expr, Layout, Range, Scope, Unit};
use std::borrow::Cow;
use std::sync::Arc;

/// Configurations that are compared for the least predicted cost of a space.
const RANKED: u64 = 256;

/// Every way to run a unit.
///
/// # Errors
/// Units that no template takes.
pub fn space(spec: &KernelSpec) -> Result<Box<dyn ConfigSpace>, KernelError> {
    match &spec.unit {
        Unit::Operation(o) if is_scatter(o) => Ok(Box::new(ScatterSpace::new(spec)?)),
        Unit::Scope(scope) if reads_by_value(scope) => Ok(Box::new(MapSpace::new(spec)?)),
        Unit::Scope(_) if let Ok(layers) = LayerSpace::new(spec) => Ok(Box::new(layers)),
        Unit::Scope(_) => match TileSpace::new(spec) {
            Ok(tiles) => Ok(Box::new(tiles.in_panels(width()))),
            Err(_) => Ok(Box::new(MapSpace::new(spec)?.in_panels(width()))),
        },
        Unit::Operation(o) if is_windowed(o) => space(&tiles::expanded(spec)?),
        Unit::Operation(o) if o.class() == Class::Contraction => {
            // Libraries know of plain layouts alone.
            if let Some(direct) = tiles::expanded(spec).ok().and_then(|scope| TileSpace::new(&scope).ok()).filter(TileSpace::is_direct) {
                return Ok(Box::new(direct));
            }
            let libraries = || ContractionProblem::on_cores(spec).map(|problem| ContractionSpace::new(problem, cores()));
            match generated(spec).and_then(|(generated, least)| GemmSpace::new(libraries().ok()?, generated, least)) {
                Some(both) => Ok(Box::new(both)),
                None => Ok(Box::new(libraries()?)),
            }
        }
        _ => Err(no_template(spec)),
    }
}

/// Generated code of a contraction, and its predicted cost at its best: tiles, or loops where one factor is a vector.
fn generated(spec: &KernelSpec) -> Option<(Box<dyn ConfigSpace>, f64)> {
    let scope = tiles::expanded(spec).ok()?;
    if let Ok(tiles) = TileSpace::new(&scope) {
        let tiles = tiles.in_panels(width());
        let least = tiles.bytes();
        return Some((Box::new(tiles), least));
    }
    let maps = MapSpace::new(&scope).ok()?;
    let some = (0..maps.count().min(RANKED)).map(|n| maps.predicted_cost(n * (maps.count() / maps.count().min(RANKED))));
    let least = some.fold(f64::INFINITY, f64::min);
    Some((Box::new(maps), least))
}

/// A unit under a configuration, ready to run.
///
/// # Errors
/// Units that no template takes, configurations of another unit, a compiler that is missing or refuses.
pub fn compile(spec: &KernelSpec, config: &KernelConfig, toolchain: &Toolchain) -> Result<Arc<dyn Executable>, KernelError> {
    match &spec.unit {
        Unit::Scope(_) => {
            let (spec, config) = split_blocked_dims::split(spec, config)?;
            let kernel = match tiles::is_tiled(&config) {
                true => cpu::tiles::compile(&spec, &config, toolchain)?,
                false => cpu::maps::compile(&spec, &config, toolchain)?,
            };
            // Where a dim is blocks and their elements, an index along it is no longer one of the container that others know.
            Ok(Arc::new(if matches!(spec, Cow::Owned(_)) { kernel.undivided() } else { kernel }))
        }
        Unit::Operation(o) if is_scatter(o) => Ok(Arc::new(ScatterKernel::new(spec, config)?)),
        Unit::Operation(o) if is_windowed(o) || (o.class() == Class::Contraction && is_generated(config)) => {
            compile(&tiles::expanded(spec)?, config, toolchain)
        }
        Unit::Operation(o) if o.class() == Class::Contraction => Ok(Arc::new(ContractionKernel::new(spec, config, cores())?)),
        _ => Err(no_template(spec)),
    }
}

/// The C of a unit under a configuration, if it has any.
pub fn source(spec: &KernelSpec, config: &KernelConfig) -> Option<CSource> {
    match &spec.unit {
        Unit::Scope(_) => {
            let (spec, config) = split_blocked_dims::split(spec, config).ok()?;
            let source = if tiles::is_tiled(&config) { cpu::tiles::source } else { cpu::maps::source };
            source(&spec, &config).ok()
        }
        Unit::Operation(o) if is_windowed(o) || is_generated(config) => source(&tiles::expanded(spec).ok()?, config),
        _ => None,
    }
}

/// Makes the code of units under configurations that are about to be compiled, on all cores, as long as it goes on. What cannot be
/// made is left to [`compile`] to tell.
pub fn precompile(kernels: &[(KernelSpec, KernelConfig)], toolchain: &Toolchain, until: CancelToken) {
    toolchain.precompile(kernels.par_iter().filter_map(|(spec, config)| source(spec, config)).collect(), until);
}

/// Columns of a panel of f32: as many as products take at once on this processor.
fn width() -> usize {
    PanelBlock::native().width(4)
}

/// Whether some subscript of a scope is an element of a container.
fn reads_by_value(scope: &Scope) -> bool {
    let by_value = |range: &Range| matches!(range, Range::At(at) if Expr::reads_elements(at));
    scope.computations().iter().any(|(_, c)| c.reads.iter().any(|(_, memlet)| memlet.subset.iter().any(by_value)))
}

fn no_template(spec: &KernelSpec) -> KernelError {
    KernelError::Unsupported { kernel: spec.name.clone(), what: "no template takes it; expand it into scopes".into() }
}

/// A copy of a container from one layout into another. Takes the container in `from`, then in `to`.
///
/// # Errors
/// Layouts that do not order the container's dims; a compiler that is missing or refuses.
pub fn relayout(
    container: &Container,
    shape: &[usize],
    from: &Layout,
    to: &Layout,
    toolchain: &Toolchain,
) -> Result<Arc<dyn Executable>, KernelError> {
    let dims: Vec<(String, i64)> = container.dims.iter().cloned().zip(shape.iter().map(|s| *s as i64)).collect();
    Ok(Arc::new(cpu::relayout::relayout(&container.name, container.dtype, &dims, from, to, toolchain)?))
}

/// How the points of a kernel can be divided under a configuration; `None` where its code is not generated here, or a dim of it is blocks.
pub fn partitioned(spec: &KernelSpec, config: &KernelConfig) -> Option<PartitionedNest> {
    match &spec.unit {
        Unit::Scope(_) => {
            let (spec, config) = split_blocked_dims::split(spec, config).ok()?;
            if matches!(spec, Cow::Owned(_)) {
                return None;
            }
            let lower = if tiles::is_tiled(&config) { tiles::lower } else { maps::lower };
            Some(PartitionedNest::of(&spec, &lower(&spec, &config).ok()?))
        }
        Unit::Operation(o) if is_windowed(o) || is_generated(config) => partitioned(&tiles::expanded(spec).ok()?, config),
        _ => None,
    }
}

/// All that a kernel may write in place under a configuration; nothing where its code is not generated here.
pub fn in_place(spec: &KernelSpec, config: &KernelConfig) -> Vec<InPlace> {
    if let Unit::Operation(o) = &spec.unit
        && is_scatter(o)
        && let (Some(base), Some(out)) = (o.input("base"), o.output("out"))
    {
        return vec![InPlace { read: base.data.clone(), written: out.data.clone() }];
    }
    let Ok((spec, config)) = split_blocked_dims::split(spec, config) else { return vec![] };
    let nest = match &spec.unit {
        Unit::Scope(_) if tiles::is_tiled(&config) => tiles::lower(&spec, &config),
        Unit::Scope(_) => maps::lower(&spec, &config),
        _ => return vec![],
    };
    nest.map(|nest| in_place::found(&spec, &nest, &config)).unwrap_or_default()
}
