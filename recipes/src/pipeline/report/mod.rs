//! The report of a run: all its results, as the values that `bench` draws.
//!
//! Every value was counted or measured in this run. A part without data stays empty, and the page reports that it was not run.

mod ceiling;
mod flow;
mod kernel_matches;
mod layer_forms;
mod rows;
mod space;
mod stitching;

pub use space::{compositions, coverage, products};
pub use stitching::stitched;

use crate::analyze::Analysis;
use crate::pipeline::PipelineError;
use crate::pipeline::choose::{Choices, SweptPrograms};
use crate::pipeline::measure::SweptProgram;
use crate::pipeline::run::{Candidate, Timed};
use crate::pipeline::variants::stitching::StatePlan;
use crate::pipeline::variants::{
    FusionPlan, KernelTime, PartialFusionLog, PatternTimes, Programs, TrialCost, Variant, VariantId, VariantKey, stackings,
};
use bench::mue::CopyBandwidth;
use bench::unit::{Bytes, Milliseconds, Quantity};
use bench::{Load, Provenance, Report, model};
use indexmap::IndexMap;
use kernels::device::Device;
use kernels::pool::Pool;
use layouts::record::median;
use layouts::{Method, Store};
use sdfg::Sdfg;
use sdfg::movement::{Movement, MovementError, movement};
use std::path::Path;
use transforms::recompute::{RecomputePolicy, Saved};

/// The results of a finished run.
pub struct Finished<'a> {
    pub analysis: &'a Analysis,
    pub programs: &'a Programs,
    pub sweeps: &'a SweptPrograms,
    pub store: &'a Store,
    /// Best first.
    pub choices: &'a [Choices],
    /// The contenders for the plan, then the baselines, if they fit into memory; the last one is the unfused program in its best
    /// uniform layout.
    pub candidates: &'a [Candidate],
    /// How many of the candidates are contenders.
    pub contenders: usize,
    /// In the order of the candidates.
    pub timed: &'a [Timed],
    /// Position of the plan among the candidates.
    pub winner: usize,
    /// The robustness of the selection, if requested.
    pub certainty: Option<model::Certainty>,
    pub pool: &'a Pool,
    pub device: &'a dyn Device,
    /// The load of other processes while kernels were timed, and while plans were.
    pub load: [(&'static str, Option<Load>); 2],
}

/// The winner with its program, and the baseline that it is compared with.
struct Plan<'a> {
    candidate: &'a Candidate,
    timed: &'a Timed,
    swept: &'a SweptProgram,
    /// The winner's variant.
    key: VariantKey,
    baseline: Option<&'a Timed>,
    /// The movement of each kernel of the plan and of the unfused program.
    kernels: Vec<Movement>,
    unfused: Vec<Movement>,
    /// The launches of the plan, and those of the baseline; without times if the baseline was not run.
    ours: Vec<rows::TimedLaunch>,
    before: Vec<rows::TimedLaunch>,
    /// Which of both compute the same.
    matches: Vec<kernel_matches::KernelMatch>,
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

/// Gathers the report. Measures the copy bandwidth, which takes about a second.
pub fn build(run: &Finished) -> Result<Report, PipelineError> {
    let (candidate, timed) =
        run.candidates.get(run.winner).zip(run.timed.get(run.winner)).ok_or_else(|| missing("a plan that was timed"))?;
    let of_plan = |swept: &&SweptProgram| swept.program == candidate.program;
    let swept = run.sweeps.variants.iter().chain(&run.sweeps.unfused).find(of_plan).ok_or_else(|| missing("the sweep of its plan"))?;
    // The unfused program is no variant, and nothing in it was refused.
    let known = run.sweeps.keys.iter().zip(&run.sweeps.variants).find(|(_, variant)| variant.program == candidate.program);
    let key = known.map_or_else(|| VariantId::Unfused.into(), |(key, _)| key.clone());
    let variant = run.programs.variants.iter().find(|v| v.key == key);
    let (kernels, unfused) = (movement(&candidate.program).map_err(counted)?, movement(&run.programs.unfused).map_err(counted)?);
    let baseline = run.timed.get(run.contenders..).unwrap_or_default().last();
    let ours = rows::launches(&candidate.program, &kernels, timed);
    let before = match baseline {
        Some(baseline) => rows::launches(&run.programs.unfused, &unfused, baseline),
        None => unfused.iter().map(|kernel| rows::TimedLaunch { kernel: kernel.clone(), ms: None }).collect(),
    };
    let operators = &run.programs.operators;
    let stacks = kernel_matches::stacks(operators, &candidate.program, &kernel_matches::ways(operators, &run.sweeps.partial_fusion, &key))?;
    let moved = |launches: &[rows::TimedLaunch]| launches.iter().map(|l| l.kernel.clone()).collect::<Vec<Movement>>();
    let plan = Plan {
        candidate,
        timed,
        swept,
        key,
        baseline,
        matches: kernel_matches::matches(&moved(&ours), &moved(&before), &stacks),
        kernels,
        unfused,
        ours,
        before,
        copy: ceiling::copy(run.pool, run.device)?,
        peak: rows::peak(run)?,
    };
    let operators = rows::operators(run, &plan)?;
    let kernels = rows::kernels(run, &plan);
    Ok(Report {
        program: run.analysis.program.clone(),
        about: run.analysis.about.clone(),
        sizes: sizes(&candidate.program),
        provenance: Provenance::here(run.device.toolchain(), versions(run)),
        waterfall: waterfall(run, &plan)?,
        memory: timed.map.clone(),
        graph: flow::graph(&plan),
        classes: rows::classes(&plan),
        roofline: rows::roofline(&plan, &kernels),
        comparison: rows::comparison(&plan),
        operators,
        kernels,
        algebraic: space::algebraic(run, &plan),
        compositions: compositions(run.sweeps),
        stitched: stitched(run.programs, run.sweeps, run.choices, run.timed, run.store)?,
        products: products(run.sweeps, run.store),
        sweeps: space::sweeps(run, &plan),
        layer_forms: layer_forms::layer_forms(run, &plan)?,
        config_graph: space::config_graph(run, &plan)?,
        contenders: contenders(run),
        movement: movements(run),
        selection: space::selection(run),
        coverage: Some(coverage(run.sweeps)),
        certainty: run.certainty,
        policy: policy(variant.map_or(&run.programs.saved, |variant| &variant.saved)),
        refusals: variant.map(refusals).unwrap_or_default(),
        phases: vec![],
    })
}

/// Writes `report.html`, its figures, `records.csv`, and `report.json`, from which the page can be redrawn.
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

/// Reads `report.json` of a folder.
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
    let device = run.device.name().map(|name| ("device", name));
    let loads: Vec<String> = run.load.iter().filter_map(|(what, load)| Some(format!("{} while {what} were timed", (*load)?))).collect();
    let others = (!loads.is_empty()).then(|| ("beside", loads.join("; ")));
    [("memlet", env!("CARGO_PKG_VERSION").to_string()), ("worker threads", run.pool.workers().to_string())]
        .into_iter()
        .chain(device)
        .chain(others)
        .map(|(name, version)| (name.to_string(), version))
        .collect()
}

/// The effect of fusion, stacking and free layouts, each on top of the one before; the stages before `layouts` have one uniform layout.
fn waterfall(run: &Finished, plan: &Plan) -> Result<Vec<model::WaterfallStep>, PipelineError> {
    // A relayout reads a container and writes it.
    let stage = |name: &str, program: &Sdfg, relayouts: &[&str], time: Option<model::Time>, note: String| {
        let kernels = movement(program).map_err(counted)?;
        let extra: u64 = relayouts.iter().map(|data| 2 * program.bytes(data).unwrap_or(0)).sum();
        let moved: u64 = kernels.iter().map(Movement::bytes).sum();
        Ok::<_, PipelineError>(model::WaterfallStep {
            name: name.to_string(),
            launches: Some((kernels.len() + relayouts.len()) as u64),
            bytes: Some(Quantity::Predicted(Bytes(moved + extra))),
            time,
            note,
        })
    };
    let whole = |name: &str, program: &Sdfg, timed: &Timed, note: &str| {
        let relayouts: Vec<&str> = timed.launches.iter().filter_map(|(name, _, _)| rows::relayouted(name)).collect();
        let ms = median(&timed.step.samples).ok_or_else(|| missing("samples of whole steps"))?;
        stage(name, program, &relayouts, Some(measured(ms)), note.to_string())
    };
    let chosen = |name: &str, swept: &SweptProgram, method, note: String| {
        let selection = swept.select(run.store, method)?;
        let relayouts: Vec<&str> = selection.relayouts.iter().map(|r| r.relayout.data.as_str()).collect();
        stage(name, &swept.program, &relayouts, Some(predicted(selection.total_ms)), note)
    };
    let of = |id: VariantId| run.sweeps.keys.iter().position(|key| key.is(id)).map(|n| &run.sweeps.variants[n]);
    let separate = of(VariantId::Fused);
    let operators = "one kernel for each operator, the best uniform layout";
    let mut steps = vec![match run.sweeps.unfused.as_ref().map(|unfused| chosen("unfused", unfused, Method::Uniform, operators.into())) {
        None | Some(Err(PipelineError::Select(layouts::SelectError::Unmeasured { .. }))) => stage(
            "unfused",
            &run.programs.unfused,
            &[],
            None,
            "one kernel for each operator; it does not fit into memory, or one of its kernels could not be measured".into(),
        )?,
        Some(step) => step?,
    }];
    match separate.map(|separate| chosen("fused", separate, Method::Uniform, "operators fused; still one uniform layout".into())) {
        // The fused program does not fit into memory, or no configuration of one of its kernels was right.
        None | Some(Err(PipelineError::Select(layouts::SelectError::Unmeasured { .. }))) => {}
        Some(step) => steps.push(step?),
    }
    // If the unfused program wins in the end, the stages are still those of the best selection.
    let best = run.choices.first().map(|c| (&run.sweeps.variants[c.swept], &run.sweeps.keys[c.swept]));
    let best = best.filter(|_| plan.key.is(VariantId::Unfused));
    let (staged, key) = best.unwrap_or((plan.swept, &plan.key));
    if !key.is(VariantId::Fused) {
        let note = format!("contractions stacked or composed: {}; still one uniform layout", staged.name);
        steps.push(chosen("algebraic", staged, Method::Uniform, note)?);
    }
    steps.push(chosen("layouts", staged, Method::Sssp, "layouts along the shortest path, the others inferred".into())?);
    steps.push(chosen("selection", staged, Method::Exact, "every layout chosen at once, exactly".into())?);
    if let Some(baseline) = plan.baseline {
        steps.push(whole("unfused, run", &run.programs.unfused, baseline, "the first, timed as a whole step")?);
    }
    let note =
        if best.is_some() { "the plan: the unfused program, which was faster than all others" } else { "the plan, timed as a whole step" };
    steps.push(whole("plan, run", &plan.candidate.program, plan.timed, note)?);
    Ok(steps)
}

/// Every plan that was timed in the last race; the one that won is ours.
fn contenders(run: &Finished) -> Vec<model::ContenderTimes> {
    let timing = |of: &Timed, samples: &[f64]| bench::Timing { name: of.name.clone(), cache: of.step.cache, samples: samples.to_vec() };
    let times = |(n, t): (usize, &Timed)| {
        let backward = t.backward_ms.iter().any(|ms| *ms > 0.0).then(|| timing(t, &t.backward_ms));
        model::ContenderTimes {
            name: t.name.clone(),
            ours: n == run.winner,
            baseline: n >= run.contenders,
            forward: Some(timing(t, &t.forward_ms)),
            backward,
            step: Some(t.step.clone()),
            peak: Some(Bytes(t.memory.actual_bytes)),
        }
    };
    run.timed.iter().enumerate().filter(|(_, t)| !t.earlier).map(times).collect()
}

fn movements(run: &Finished) -> Vec<model::MovementRow> {
    let row = |m: &crate::analyze::DefinitionRow| model::MovementRow {
        definition: m.definition.clone(),
        unfused: Bytes(m.unfused_bytes),
        fused: Bytes(m.fused_bytes),
        composed: m.composed_bytes.filter(|_| !run.analysis.compositions.is_empty()).map(Bytes),
    };
    // The baseline that was timed comes first.
    let (timed, others): (Vec<_>, Vec<_>) = run.analysis.movement.iter().partition(|m| m.definition.starts_with(crate::analyze::BASELINE));
    timed.into_iter().chain(others).map(row).collect()
}

fn policy(saved: &[Saved]) -> Vec<model::PolicyRow> {
    let row = |saved: &Saved| model::PolicyRow {
        tensor: saved.container.clone(),
        policy: match saved.policy {
            RecomputePolicy::Saved => model::ReportedPolicy::Saved,
            RecomputePolicy::Recomputed => model::ReportedPolicy::Recomputed,
        },
        bytes: Bytes(saved.bytes),
        reason: saved.why.clone(),
    };
    saved.iter().map(row).collect()
}

/// Pairs of the plan's kernels that share data; refusals of other pairs are to be expected.
fn refusals(variant: &Variant) -> Vec<model::FusionRefusal> {
    let refused = crate::analyze::refusals(variant).into_iter().filter(|r| r.neighbours);
    refused.map(|r| model::FusionRefusal { first: r.first, second: r.second, reason: r.reason, kind: r.kind }).collect()
}
