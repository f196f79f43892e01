//! Memory of a step: how much, and who lies where from when to when.

use super::PipelineError;
use bench::table::{Align, Cell, Table};
use kernels::{KernelSpec, in_place, template};
use sdfg::lifetime::{ArenaPlan, Schedule};
use sdfg::{Role, Sdfg, Unit};
use serde::{Deserialize, Serialize};

/// Peak bytes of tensors: planned from lifetimes, and really allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeakMemory {
    /// Inputs and parameters, upstream gradients among them: part of the following.
    #[serde(default)]
    pub given_bytes: u64,
    /// What is given, and the most that results so far and transients need at once.
    pub planned_bytes: u64,
    pub actual_bytes: u64,
    /// What no plan of these kernels in this order can go below: what is alive at once.
    pub lower_bound_bytes: u64,
}

/// One buffer in the arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// Container; with its layout where it is a copy in another one.
    pub name: String,
    pub bytes: u64,
    pub offset: u64,
    /// Numbers of kernels.
    pub first: usize,
    pub last: usize,
    /// Whether it is a result.
    #[serde(default)]
    pub kept: bool,
    /// The buffer that it takes the place of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
}

/// The arena of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryMap {
    /// Inputs and parameters: name and bytes. They are there all the time.
    pub given: Vec<(String, u64)>,
    /// What runs, in order.
    pub kernels: Vec<String>,
    /// In order of first use.
    pub lives: Vec<Life>,
}

impl MemoryMap {
    pub fn new(given: Vec<(String, u64)>, schedule: &Schedule, plan: &ArenaPlan) -> Self {
        let life = |i: sdfg::lifetime::Interval| Life {
            offset: plan.offsets.get(&i.data).copied().unwrap_or_default(),
            over: plan.handovers.iter().find(|h| h.to == i.data).map(|h| h.from.clone()),
            kept: schedule.buffers.iter().any(|b| b.kept && b.name == i.data),
            name: i.data,
            bytes: i.bytes,
            first: i.first,
            last: i.last,
        };
        let kernels = schedule.steps.iter().map(|s| s.name.clone()).collect();
        MemoryMap { given, kernels, lives: schedule.intervals().into_iter().map(life).collect() }
    }

    pub fn given_bytes(&self) -> u64 {
        self.given.iter().map(|(_, bytes)| bytes).sum()
    }

    /// What is in the arena while a kernel runs. What another one takes the place of is not counted twice.
    pub fn alive(&self, kernel: usize) -> impl Iterator<Item = &Life> {
        let replaced = move |life: &Life| self.lives.iter().any(|l| l.first == kernel && l.over.as_ref() == Some(&life.name));
        self.lives.iter().filter(move |l| (l.first..=l.last).contains(&kernel) && !replaced(l))
    }

    pub fn alive_bytes(&self, kernel: usize) -> u64 {
        self.alive(kernel).map(|l| l.bytes).sum()
    }

    /// What is left when the last kernel has run.
    fn results_bytes(&self, end: usize) -> u64 {
        self.lives.iter().filter(|l| l.kept && l.last == end).map(|l| l.bytes).sum()
    }

    /// The kernel at which most is alive, the first of equals; none if nothing runs.
    pub fn fullest(&self) -> Option<usize> {
        (0..self.kernels.len()).rev().max_by_key(|k| self.alive_bytes(*k))
    }
}

/// The memory of a program before it has a configuration: tensors in the recipe's order of dims, kernels as a person would
/// choose them, so that what is written in place and the order of kernels are those of such a plan.
pub fn expected(program: &Sdfg) -> Result<MemoryMap, PipelineError> {
    let mut schedule = Schedule::of(program)?;
    for (n, (_, _, unit)) in program.units().iter().enumerate().filter(|(_, (_, _, u))| matches!(u, Unit::Scope(_))) {
        let spec = KernelSpec::new(program, unit)?;
        let Ok(space) = template::space(&spec) else { continue };
        let number = |data: &str| schedule.buffers.iter().position(|b| b.name == data);
        let pairs = in_place::in_place(&spec, &space.config(0)).into_iter();
        schedule.steps[n].in_place = pairs.filter_map(|p| Some((number(&p.read)?, number(&p.written)?))).collect();
    }
    let schedule = schedule.reordered(&schedule.order());
    let plan = sdfg::lifetime::plan(&schedule.intervals(), &schedule.handovers());
    let is_given = |c: &&sdfg::Container| matches!(c.role, Role::Input | Role::Parameter) && c.view.is_none();
    let given = program.containers.values().filter(is_given).map(|c| Ok((c.name.clone(), program.bytes(&c.name)?)));
    Ok(MemoryMap::new(given.collect::<Result<_, PipelineError>>()?, &schedule, &plan))
}

/// What is alive at the fullest kernel, the largest first.
pub fn table(map: &MemoryMap) -> Table {
    let mut table = Table::new(&[
        ("alive at the peak", "", Align::Left),
        ("size", "MB", Align::Right),
        ("from kernel", "", Align::Left),
        ("to", "", Align::Left),
        ("in the place of", "", Align::Left),
    ]);
    let size = |bytes: u64| Cell::number(bytes as f64 / 1e6, 2);
    let kernel = |n: usize| Cell::text(map.kernels.get(n).map(String::as_str).unwrap_or_default());
    table.row(vec![Cell::text("inputs and parameters"), size(map.given_bytes()), Cell::text(""), Cell::text(""), Cell::text("")]);
    let Some(at) = map.fullest() else { return table };
    let mut alive: Vec<&Life> = map.alive(at).collect();
    alive.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.first.cmp(&b.first)));
    for life in alive {
        let over = life.over.clone().unwrap_or_default();
        table.row(vec![Cell::text(&life.name), size(life.bytes), kernel(life.first), kernel(life.last), Cell::text(over)]);
    }
    table
}

/// The sentence above the table.
pub fn summary(map: &MemoryMap) -> String {
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
    let Some(at) = map.fullest() else { return String::new() };
    let end = map.kernels.len().saturating_sub(1);
    format!(
        "peak {} at kernel {} of {}, `{}`; {} of it given, and {} once the step has ended",
        megabytes(map.given_bytes() + map.alive_bytes(at)),
        at + 1,
        map.kernels.len(),
        map.kernels[at],
        megabytes(map.given_bytes()),
        megabytes(map.given_bytes() + map.results_bytes(end)),
    )
}
