//! Plans fusion anew once patterns have times: *FusionStitching*'s score by execution (arXiv:1911.11576, section 4.3) in place of the
//! model's, for all patterns of the plan that was carried out. Patterns that lose are dropped, and the model is trusted less where it
//! promised too much.

use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::measure::{PatternTimes, SweepContext, SweepExtent, SweptProgram, sweep_program};
use crate::pipeline::variants::execution_scores::RunPattern;
use crate::pipeline::variants::programs::stitched_by_times;
use crate::pipeline::variants::{FusionPlan, Programs, Variant, wrong};
use layouts::Store;
use layouts::measure::space::KernelSpace;
use std::collections::BTreeSet;
use std::time::Duration;

/// Picoseconds of a millisecond.
const MS: f64 = 1e9;

/// The program of the new plan, or why it was left out.
#[derive(Default)]
pub struct StitchedByTimes {
    pub program: Option<(Variant, SweptProgram)>,
    pub left_out: Option<String>,
}

/// Makes and sweeps the program of a new plan of fusion; none where there was no plan, where nothing of it has a time, or where the new plan
/// makes the same kernels.
///
/// # Errors
/// As [`sweep_program`].
pub fn stitch_by_times(
    recipe: &Recipe,
    programs: &Programs,
    swept: &[SweptProgram],
    budget: Option<Duration>,
    with: &mut SweepContext,
) -> Result<StitchedByTimes, PipelineError> {
    let planned = programs.variants.iter().zip(swept).find_map(|(variant, swept)| Some((variant, variant.plan.as_deref()?, swept)));
    let Some((before, plan, before_swept)) = planned else { return Ok(StitchedByTimes::default()) };
    let run = run_patterns(plan, before_swept, with.store)?;
    if run.is_empty() {
        return Ok(StitchedByTimes::default());
    }
    let planning = plan.planning.with_executed(plan.planning.executed.and(run));
    let Some(variant) = stitched_by_times(recipe, &planning, &programs.options)? else { return Ok(StitchedByTimes::default()) };
    if variant.program == before.program {
        return Ok(StitchedByTimes::default());
    }
    let name = variant.key.to_string();
    let out = |why: String| Ok(StitchedByTimes { program: None, left_out: Some(format!("{name} is left out: {why}")) });
    if let Some(why) = wrong(&programs.operators, std::slice::from_ref(&variant)).into_iter().flatten().next() {
        return out(format!("it computes something else than the recipe: {why}"));
    }
    if let Some(why) = with.memory.too_small(&variant.program)? {
        return out(why);
    }
    let new = with.budget.new_kernels(&variant.program, with.store)?;
    if let Some(why) = with.budget.too_dear(new.len()) {
        return out(why);
    }
    let known: BTreeSet<String> = swept.iter().flat_map(|s| &s.kernels).map(|kernel| kernel.key().to_string()).collect();
    let swept = sweep_program(&name, &variant.program, budget, SweepExtent::Beside(&known), with)?;
    Ok(StitchedByTimes { program: Some((variant, swept)), left_out: None })
}

/// The patterns of a plan that have become kernels and have times, as their units have. Those of loops' bodies have none.
fn run_patterns(plan: &FusionPlan, swept: &SweptProgram, store: &Store) -> Result<Vec<RunPattern>, PipelineError> {
    let times = PatternTimes::of(plan, swept, store)?;
    let states = plan.plans.iter().filter(|state| !state.is_loop);
    let found = states.flat_map(|state| state.chosen.iter().zip(state.patterns())).filter_map(|(chosen, units)| {
        let kernel = &plan.made.iter().find(|made| made.units == units)?.kernel;
        let saved_ps = ((times.apart(&units)? - times.together(kernel)?) * MS).round() as i64;
        Some(RunPattern { form: chosen.form.clone(), model_ps: chosen.model_ps, more_ps: chosen.more_ps, saved_ps })
    });
    Ok(found.collect())
}
