//! What `memlet run --kernels` says of each kernel: its times, what it is made of, and the memory that it has on chip.

use super::{cells, table};
use crate::pipeline::PipelineError;
use bench::table::Table;
use bench::unit::significant;
use kernels::executable::Resources;
use kernels::{MemberTimes, OnChipMemory};
use sdfg::Sdfg;
use sdfg::library::Class;
use sdfg::movement::{MovementError, movement};
use serde::Serialize;
use std::collections::BTreeMap;

/// Times of one launch in milliseconds.
#[derive(Serialize)]
pub struct KernelTimes {
    pub name: String,
    pub pass: sdfg::Direction,
    /// What it computes; missing for copies between layouts and for loops.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<KernelPattern>,
    pub on_chip: OnChipMemory,
    /// How often it gives work to the pool or the GPU in one step.
    pub dispatches: u64,
    pub in_step_ms: f64,
    pub alone_ms: f64,
    /// Of a loop: what the kernels of its body take in one step, all times together, each with barriers of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub body: Vec<MemberRow>,
    /// GPU resources of each of its functions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Resources>,
}

/// A kernel of a loop's body.
#[derive(Serialize)]
pub struct MemberRow {
    #[serde(flatten)]
    pub times: MemberTimes,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub pattern: Option<KernelPattern>,
}

/// What a kernel is made of: a contraction if it holds one, a normalization if it reduces, else element-wise.
#[derive(Clone, Copy, Serialize)]
pub struct KernelPattern {
    pub class: Class,
    /// Operators that are fused in it.
    pub operators: usize,
}

impl KernelPattern {
    /// Those of all kernels of a program, and of its loops' bodies, by name.
    ///
    /// # Errors
    /// As [`movement`].
    pub fn of(program: &Sdfg) -> Result<BTreeMap<String, KernelPattern>, PipelineError> {
        let counted = |e: MovementError| PipelineError::Internal(e.to_string());
        let of = |m: sdfg::movement::Movement| (m.name, KernelPattern { class: m.class, operators: m.operators.len() });
        Ok(movement(program).map_err(counted)?.into_iter().map(of).collect())
    }
}

/// What the kernels within loops take, all times together.
pub fn bodies(kernels: &[KernelTimes]) -> Table {
    let mut rows = table(&["loop", "kernel of its body", "runs", "dispatches", "all runs ms", "share %"]).words(&["kernel of its body"]);
    for kernel in kernels.iter().filter(|k| !k.body.is_empty()) {
        let all: f64 = kernel.body.iter().map(|m| m.times.ms).sum();
        let row = |name: &str, member: &str, counts: [u64; 2], ms: f64| {
            let share = significant(100.0 * ms / all.max(f64::MIN_POSITIVE));
            cells(vec![name.into(), member.into(), counts[0].to_string(), counts[1].to_string(), significant(ms), share])
        };
        for (n, member) in kernel.body.iter().enumerate() {
            let name = if n == 0 { kernel.name.as_str() } else { "" };
            rows.row(row(name, &member.times.name, [member.times.runs, member.times.dispatches], member.times.ms));
        }
        let sum = |of: fn(&MemberTimes) -> u64| kernel.body.iter().map(|m| of(&m.times)).sum();
        rows.row(row("", "all", [sum(|m| m.runs), sum(|m| m.dispatches)], all));
    }
    rows
}

/// GPU resources of the kernels' functions; empty elsewhere.
pub fn needs(kernels: &[KernelTimes]) -> Table {
    let mut rows = table(&["kernel", "function", "registers", "spilled bytes", "stack bytes", "shared bytes"]);
    for (kernel, r) in kernels.iter().flat_map(|k| k.resources.iter().map(move |r| (k, r))) {
        let numbers = [r.registers, r.spill_stores + r.spill_loads, r.stack, r.shared].map(|n| n.to_string());
        rows.row(cells([kernel.name.clone(), r.function.clone()].into_iter().chain(numbers).collect()));
    }
    rows
}
