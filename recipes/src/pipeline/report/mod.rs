//! The report of a run: everything that it found, as the values that `bench` draws.
//!
//! Nothing is filled in that was not counted or measured in this run. A part without data stays empty, and the page says
//! that it was not run.

mod ceiling;
mod flow;
mod rows;
mod space;

use super::PipelineError;
use super::optimize::{Choices, Sweeps, Timed};
use super::plan::Candidate;
use super::programs::Programs;
use super::sweep::Swept;
use crate::analyze::Analysis;
use bench::mue::CopyBandwidth;
use bench::unit::{Bytes, Milliseconds, Quantity};
use bench::{Provenance, Report, model};
use indexmap::IndexMap;
use kernels::Toolchain;
use kernels::device::cpu::Pool;
use layouts::record::median;
use layouts::{Method, Store};
use sdfg::Sdfg;
use sdfg::movement::{Movement, MovementError, movement};
use std::collections::BTreeMap;
use std::path::Path;
use transforms::recompute::Policy;

/// A run at its end.
pub struct Finished<'a> {
    pub analysis: &'a Analysis,
    pub programs: &'a Programs,
    pub sweeps: &'a Sweeps,
    pub store: &'a Store,
    /// Best first.
    pub choices: &'a [Choices],
    /// The contenders for the plan, then the baselines; the last one is the unfused program in its best uniform layout.
    pub candidates: &'a [Candidate],
    /// In the order of the candidates.
    pub timed: &'a [Timed],
    /// Position of the plan among the candidates.
    pub winner: usize,
    pub pool: &'a Pool,
    pub toolchain: &'a Toolchain,
}

/// The winner with its program, and the baseline that it is broken down against.
struct Plan<'a> {
    candidate: &'a Candidate,
    timed: &'a Timed,
    swept: &'a Swept,
    baseline: &'a Timed,
    /// What each kernel of the plan and of the unfused program must move.
    kernels: Vec<Movement>,
    unfused: Vec<Movement>,
    copy: Option<CopyBandwidth>,
    /// The fastest contraction that was measured, in Gflop/s.
    peak: Option<f64>,
}

fn counted(error: MovementError) -> PipelineError {
    PipelineError::Internal(error.to_string())
}

fn missing(what: &str) -> PipelineError {
    PipelineError::Internal(format!("a report needs {what}"))
}

fn measured(ms: f64) -> model::Time {
    Quantity::Measured(Milliseconds(ms))
}

fn predicted(ms: f64) -> model::Time {
    Quantity::Predicted(Milliseconds(ms))
}

fn bytes(kernels: &[Movement]) -> u64 {
    kernels.iter().map(Movement::bytes).sum()
}

/// Median of each kernel's launches in milliseconds, by name. Relayouts are launches of their own.
fn launches(timed: &Timed) -> BTreeMap<&str, f64> {
    timed.launches.iter().filter_map(|(name, _, samples)| Some((name.as_str(), median(samples)?))).collect()
}

/// Gathers the report. Measures the copy bandwidth, which takes about a second.
pub fn build(run: &Finished) -> Result<Report, PipelineError> {
    let (candidate, timed) =
        run.candidates.get(run.winner).zip(run.timed.get(run.winner)).ok_or_else(|| missing("a plan that was timed"))?;
    let swept = run.sweeps.variants.iter().find(|s| s.program == candidate.program).ok_or_else(|| missing("the sweep of its plan"))?;
    let plan = Plan {
        candidate,
        timed,
        swept,
        baseline: run.timed.last().ok_or_else(|| missing("a baseline"))?,
        kernels: movement(&candidate.program).map_err(counted)?,
        unfused: movement(&run.programs.unfused).map_err(counted)?,
        copy: ceiling::copy(run.pool),
        peak: rows::peak(run)?,
    };
    let operators = rows::operators(run, &plan)?;
    let kernels = rows::kernels(run, &plan);
    Ok(Report {
        program: run.analysis.program.clone(),
        about: run.analysis.about.clone(),
        sizes: sizes(&candidate.program),
        provenance: Provenance::here(&run.toolchain.version, versions(run)),
        waterfall: waterfall(run, &plan)?,
        graph: flow::graph(&plan),
        classes: rows::classes(&plan, &kernels),
        roofline: rows::roofline(&plan, &kernels),
        operators,
        kernels,
        algebraic: space::algebraic(run, &plan),
        sweeps: space::sweeps(run, &plan),
        config_graph: space::config_graph(run, &plan)?,
        contenders: contenders(run),
        movement: movements(run),
        selection: space::selection(run),
        coverage: Some(space::coverage(run)),
        policy: policy(run),
        refusals: refusals(run),
    })
}

/// Writes `report.html`, its figures, `report.json`, from which it can be drawn again, and `records.csv`.
pub fn write(out: &Path, report: &Report, store: &Store) -> Result<(), PipelineError> {
    draw(out, report)?;
    let fault = |e: &dyn std::fmt::Display| PipelineError::Plan { file: out.display().to_string(), why: e.to_string() };
    let text = serde_json::to_string(report).map_err(|e| fault(&e))?;
    bench::atomic::write(&out.join("report.json"), text.as_bytes()).map_err(|e| fault(&e))?;
    let mut csv = Vec::new();
    store.csv(&mut csv).map_err(|e| fault(&e))?;
    bench::atomic::write(&out.join("records.csv"), &csv).map_err(|e| fault(&e))
}

/// Writes `report.html` and its figures.
pub fn draw(out: &Path, report: &Report) -> Result<(), PipelineError> {
    bench::report::write(out, report).map_err(|e| PipelineError::Plan { file: out.display().to_string(), why: e.to_string() })
}

/// Reads `report.json`.
pub fn read(folder: &Path) -> Result<Report, PipelineError> {
    let path = folder.join("report.json");
    let fault = |why: String| PipelineError::Plan { file: path.display().to_string(), why };
    let text = std::fs::read_to_string(&path).map_err(|e| fault(format!("{e}; `memlet optimize` writes it")))?;
    serde_json::from_str(&text).map_err(|e| fault(format!("this is no report: {e}; make one with `memlet optimize RECIPE`")))
}

fn sizes(program: &Sdfg) -> IndexMap<String, u64> {
    let size = |dim: &String| program.size_of(dim).eval(&program.sizes).ok().and_then(|n| u64::try_from(n).ok());
    program.dims.keys().filter_map(|dim| Some((dim.clone(), size(dim)?))).collect()
}

fn versions(run: &Finished) -> IndexMap<String, String> {
    [("memlet", env!("CARGO_PKG_VERSION").to_string()), ("worker threads", run.pool.workers().to_string())]
        .into_iter()
        .map(|(name, version)| (name.to_string(), version))
        .collect()
}

/// One layout for all until the last stages: what fusion, stacking and free layouts bring, each on top of the one before.
fn waterfall(run: &Finished, plan: &Plan) -> Result<Vec<model::WaterfallStep>, PipelineError> {
    let step = |name: &str, launches: usize, moved: u64, time: model::Time, note: String| model::WaterfallStep {
        name: name.to_string(),
        launches: Some(launches as u64),
        bytes: Some(Quantity::Predicted(Bytes(moved))),
        time: Some(time),
        note,
    };
    let whole = |timed: &Timed| median(&timed.step.samples).map(measured).ok_or_else(|| missing("samples of whole steps"));
    let total = |swept: &Swept, method| swept.select(run.store, method).map(|s| predicted(s.total_ms));
    let mut steps = vec![step(
        "unfused",
        plan.baseline.launches.len(),
        bytes(&plan.unfused),
        whole(plan.baseline)?,
        "one kernel for each operator, the best uniform layout".into(),
    )];
    let separate = run.sweeps.variants.first().ok_or_else(|| missing("a fused program"))?;
    let fused = movement(&separate.program).map_err(counted)?;
    let note = "operators fused; still one uniform layout".to_string();
    steps.push(step("fused", fused.len(), bytes(&fused), total(separate, Method::Uniform)?, note));
    let (count, moved) = (plan.kernels.len(), bytes(&plan.kernels));
    if plan.swept.name != separate.name {
        let note = format!("contractions stacked: {}; still one uniform layout", plan.swept.name);
        steps.push(step("algebraic", count, moved, total(plan.swept, Method::Uniform)?, note));
    }
    let note = "layouts along the shortest path, the others inferred".to_string();
    steps.push(step("layouts", count, moved, total(plan.swept, Method::Sssp)?, note));
    let note = "every layout chosen at once, exactly".to_string();
    steps.push(step("selection", count, moved, total(plan.swept, Method::Exact)?, note));
    let note = "the best of the candidate plans, timed as a whole".to_string();
    steps.push(step("plan", plan.timed.launches.len(), moved, whole(plan.timed)?, note));
    Ok(steps)
}

/// Every plan that was timed; the one that won is ours.
fn contenders(run: &Finished) -> Vec<model::ContenderTimes> {
    let timing = |of: &Timed, samples: &[f64]| bench::Timing { name: of.name.clone(), cache: of.step.cache, samples: samples.to_vec() };
    let times = |(n, t): (usize, &Timed)| {
        let backward = t.backward_ms.iter().any(|ms| *ms > 0.0).then(|| timing(t, &t.backward_ms));
        model::ContenderTimes {
            name: t.name.clone(),
            ours: n == run.winner,
            forward: Some(timing(t, &t.forward_ms)),
            backward,
            step: Some(t.step.clone()),
        }
    };
    run.timed.iter().enumerate().map(times).collect()
}

fn movements(run: &Finished) -> Vec<model::MovementRow> {
    let row = |m: &crate::analyze::MovementRow| model::MovementRow {
        definition: m.definition.clone(),
        unfused: Bytes(m.unfused_bytes),
        fused: Bytes(m.fused_bytes),
    };
    run.analysis.movement.iter().map(row).collect()
}

fn policy(run: &Finished) -> Vec<model::PolicyRow> {
    let row = |saved: &transforms::recompute::Saved| model::PolicyRow {
        tensor: saved.container.clone(),
        policy: match saved.policy {
            Policy::Saved => model::Policy::Saved,
            Policy::Recomputed => model::Policy::Recomputed,
        },
        bytes: Bytes(saved.bytes),
        reason: saved.why.clone(),
    };
    run.programs.saved.iter().map(row).collect()
}

/// Pairs that share data: that the others stay apart surprises nobody.
fn refusals(run: &Finished) -> Vec<model::FusionRefusal> {
    let refused = run.analysis.refusals.iter().filter(|r| r.neighbours);
    refused.map(|r| model::FusionRefusal { first: r.first.clone(), second: r.second.clone(), reason: r.reason.clone() }).collect()
}
