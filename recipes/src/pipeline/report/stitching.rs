//! The stitched program's plan beside measurements: what each pattern saved, and how well the model ranks patterns and programs.

use super::{Choices, FusionPlan, PatternTimes, Programs, StatePlan, SweptProgram, SweptPrograms, Timed};
use super::{counted, measured, predicted};
use crate::pipeline::PipelineError;
use bench::stitching::{RankedProgram, StitchedPattern, StitchedProgram};
use bench::unit::Bytes;
use layouts::packing::score::ScoreModel;
use layouts::record::median;
use layouts::{Method, Store};
use sdfg::movement::movement;
use sdfg::{Sdfg, Unit};
use std::collections::BTreeMap;

/// Picoseconds of a millisecond.
const MS: f64 = 1e9;

/// The plan of the stitched program beside measurements; `None` if there is no such program.
///
/// # Errors
/// Programs whose movement has no number.
pub fn stitched(
    programs: &Programs,
    sweeps: &SweptPrograms,
    choices: &[Choices],
    timed: &[Timed],
    store: &Store,
) -> Result<Option<StitchedProgram>, PipelineError> {
    // The last one was made of the times of the one before.
    let Some((plan, swept)) = programs.variants.iter().rev().find_map(|variant| {
        let at = sweeps.keys.iter().position(|key| *key == variant.key)?;
        Some((variant.plan.as_deref()?, sweeps.variants.get(at)?))
    }) else {
        return Ok(None);
    };
    let times = PatternTimes::of(plan, &swept.problem, store)?;
    let mut patterns = Vec::new();
    for state in &plan.plans {
        patterns.extend(match state.is_loop {
            true => vec![of_loop(state, times.apart(std::slice::from_ref(&state.state)), times.together(&state.state))],
            false => of_state(plan, state, &times),
        });
    }
    patterns.retain(|pattern: &StitchedPattern| !pattern.units.is_empty());
    let best = |swept: usize| choices.iter().find(|choice| choice.swept == swept).and_then(|choice| choice.selections.first());
    let mut ranked = Vec::new();
    let unfused = sweeps.unfused.iter().map(|swept| (swept, swept.select(store, Method::Exact).ok().map(|s| s.total_ms)));
    let all = sweeps.variants.iter().enumerate().map(|(n, swept)| (swept, best(n).map(|s| s.total_ms))).chain(unfused);
    for (swept, kernels) in all {
        ranked.push(RankedProgram {
            name: swept.name.clone(),
            model: predicted(by_model(&swept.program, &plan.planning.model)? / MS),
            kernels: kernels.map(measured),
            step: whole(swept, timed).map(measured),
        });
    }
    let (candidates, proven) = plan.proof();
    let scores = plan.planning.scores.clone();
    Ok(Some(StitchedProgram { scores, candidates: candidates as u64, proven, patterns, programs: ranked }))
}

/// A row for each pattern of a state that has become a kernel.
fn of_state(plan: &FusionPlan, state: &StatePlan, times: &PatternTimes) -> Vec<StitchedPattern> {
    let rows = state.chosen.iter().zip(state.patterns()).filter_map(|(chosen, units)| {
        let kernel = &plan.made.iter().find(|made| made.units == units)?.kernel;
        Some(StitchedPattern {
            kernel: kernel.clone(),
            saved_bytes: Bytes(chosen.saving.bytes),
            saved_launches: chosen.saving.launches,
            score: predicted(chosen.score_ps as f64 / MS),
            model: Some(predicted((chosen.model_ps + chosen.more_ps) as f64 * state.times as f64 / MS)),
            separate: times.apart(&units).map(measured),
            stitched: times.together(kernel).map(measured),
            units,
        })
    });
    rows.collect()
}

/// One row for the patterns of a loop's body, whose kernels are measured within the loop alone.
fn of_loop(state: &StatePlan, separate: Option<f64>, stitched: Option<f64>) -> StitchedPattern {
    let sum = |of: fn(&transforms::stitch::Saving) -> u64| state.chosen.iter().map(|c| of(&c.saving)).sum::<u64>() * state.times;
    StitchedPattern {
        kernel: state.state.clone(),
        units: state.patterns().into_iter().map(|units| format!("({})", units.join(" + "))).collect(),
        saved_bytes: Bytes(sum(|saving| saving.bytes)),
        saved_launches: sum(|saving| saving.launches),
        score: predicted(state.saved() as f64 / MS),
        model: None,
        separate: separate.map(measured),
        stitched: stitched.map(measured),
    }
}

/// Picoseconds of a step by the model: M(V) + φ of each kernel, of those in loops for each time.
fn by_model(program: &Sdfg, model: &ScoreModel) -> Result<f64, PipelineError> {
    let mut bodies: BTreeMap<String, f64> = BTreeMap::new();
    for (_, _, unit) in program.units() {
        let Unit::Nested(nested) = unit else { continue };
        let Some(repeat) = &nested.repeat else { continue };
        let mut body = (*nested.program).clone();
        for (symbol, value) in &nested.symbols {
            body.sizes.extend(value.eval(&program.sizes).ok().map(|value| (symbol.clone(), value)));
        }
        let times = program.size_of(&repeat.dim).eval(&program.sizes).unwrap_or(1);
        bodies.insert(nested.name.clone(), times as f64 * by_model(&body, model)?);
    }
    let alone = |bytes: u64| (model.curve.time(bytes) + model.launch_ps) as f64;
    let kernels = movement(program).map_err(counted)?;
    Ok(kernels.iter().map(|kernel| bodies.get(&kernel.name).copied().unwrap_or_else(|| alone(kernel.bytes()))).sum())
}

/// The least median of whole steps of a program.
fn whole(swept: &SweptProgram, timed: &[Timed]) -> Option<f64> {
    let of = timed.iter().filter(|t| !t.earlier && (t.name == swept.name || t.name.starts_with(&format!("{} ·", swept.name))));
    of.filter_map(|t| median(&t.step.samples)).min_by(f64::total_cmp)
}
