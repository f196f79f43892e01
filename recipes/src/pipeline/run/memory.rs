//! Memory of a step: its amount, and where each tensor lies and for how long.

use crate::pipeline::PipelineError;
use bench::memory::{Life, MemoryMap};
use kernels::KernelSpecs;
use kernels::target::cpu::templates;
use sdfg::lifetime::{ArenaPlan, LiveInterval, Schedule};
use sdfg::{Container, Role, Sdfg, Unit};
use serde::{Deserialize, Serialize};

/// Peak bytes of tensors: planned from lifetimes, and taken by a plan that runs by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakMemory {
    /// Inputs and parameters, with upstream gradients; included in the other figures except working memory.
    #[serde(default)]
    pub given_bytes: u64,
    /// `given_bytes`, and the most that results and transients need at once by the plan.
    pub planned_bytes: u64,
    pub actual_bytes: u64,
    /// Working memory of kernels besides tensors, such as packed operands and tiles of each worker; not included in the other figures.
    /// Known after a run.
    #[serde(default)]
    pub working_bytes: u64,
    /// A lower bound for every plan of these kernels in this order: tensors that are alive at once.
    pub lower_bound_bytes: u64,
}

/// The memory map of a plan.
pub(in crate::pipeline) fn map(given: Vec<(String, u64)>, schedule: &Schedule, plan: &ArenaPlan) -> MemoryMap {
    let life = |i: LiveInterval| Life {
        offset: plan.offsets.get(&i.data).copied().unwrap_or_default(),
        kept: schedule.buffers.iter().any(|b| b.kept && b.name == i.data),
        over: plan.handovers.iter().find(|h| h.to == i.data).map(|h| h.from.clone()),
        name: i.data,
        bytes: i.bytes,
        first: i.first,
        last: i.last,
    };
    let kernels = schedule.steps.iter().map(|s| s.name.clone()).collect();
    MemoryMap { given, kernels, lives: schedule.intervals().into_iter().map(life).collect() }
}

/// The memory of a program before it has a configuration: tensors in the recipe's order of dims, each kernel in its first configuration,
/// which decides what it can write in place.
///
/// # Errors
/// Sizes without a value.
pub fn expected(program: &Sdfg) -> Result<MemoryMap, PipelineError> {
    let mut schedule = Schedule::of(program)?;
    let specs = KernelSpecs::of(program);
    for (n, (_, _, unit)) in program.units().iter().enumerate().filter(|(_, (_, _, u))| matches!(u, Unit::Scope(_))) {
        let spec = specs.spec(unit)?;
        let Ok(space) = templates::space(&spec) else { continue };
        let number = |data: &str| schedule.buffers.iter().position(|b| b.name == data);
        let pairs = templates::in_place(&spec, &space.config(0)).into_iter();
        schedule.steps[n].in_place = pairs.filter_map(|p| Some((number(&p.read)?, number(&p.written)?))).collect();
    }
    let schedule = schedule.reordered(&schedule.order());
    let plan = sdfg::lifetime::plan(&schedule.intervals(), &schedule.handovers());
    let is_given = |c: &&Container| matches!(c.role, Role::Input | Role::Parameter) && c.view.is_none();
    let given = program.containers.values().filter(is_given).map(|c| Ok((c.name.clone(), program.bytes(&c.name)?)));
    Ok(map(given.collect::<Result<_, PipelineError>>()?, &schedule, &plan))
}
