//! The plan of fusion of a recipe's unfused program: its patterns, what they save, and the proof that no choice of the candidates saves
//! more.

use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::variants::cover_plan::StateCover;
use crate::pipeline::variants::planning::Planning;
use crate::pipeline::variants::programs;
use crate::pipeline::variants::stitching::{Chosen, StatePlan, stitching};
use crate::pipeline::variants::table::VariantId;
use bench::table::{Align, Cell, Table};
use layouts::packing::score::ScoreModel;
use layouts::packing::{FusionPattern, PackingCertificate};
use serde::Serialize;
use std::fmt::Write;
use std::time::Instant;
use transforms::stitch::CandidateSource;

/// The plans of a recipe's program, as JSON has them.
#[derive(Clone, Debug, Serialize)]
pub struct Stitching {
    pub program: String,
    /// Where the scores come from.
    pub scores: String,
    pub model: ScoreModel,
    /// Seconds to find candidates, to choose, to prove, and to verify the proof.
    pub seconds: f64,
    pub states: Vec<StateStitching>,
}

/// The plan of one state.
#[derive(Clone, Debug, Serialize)]
pub struct StateStitching {
    /// A state, or a loop over time.
    pub state: String,
    /// How often it runs in a step; scores are of all times together.
    pub times: u64,
    pub units: usize,
    pub kernels: usize,
    pub unique_kernels: usize,
    pub saved_ps: i64,
    /// No plan of these candidates saves more.
    pub bound_ps: i64,
    pub proven: bool,
    pub greedy_ps: i64,
    /// What the best packing saves, in which each unit is in one kernel; the plan is a cover if that saves more.
    pub packing_ps: i64,
    /// Units that several kernels compute.
    pub repeated: usize,
    pub patterns: Vec<PatternRow>,
    pub candidates: CandidateCounts,
    /// The problem and its certificate: units by number, in execution order.
    pub problem: ProblemRow,
    pub certificate: PackingCertificate,
}

#[derive(Clone, Debug, Serialize)]
pub struct CandidateCounts {
    /// Sets of units that the passes were asked about, distinct structures among them, and refusals.
    pub asked: usize,
    pub asked_unique: usize,
    pub refused: usize,
    /// What was planned with.
    pub kept: usize,
    pub negative: usize,
    pub not_convex: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct ProblemRow {
    pub units: Vec<String>,
    pub edges: Vec<(u32, u32)>,
    pub order: Vec<u32>,
    pub patterns: Vec<FusionPattern>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PatternRow {
    pub units: Vec<String>,
    /// Those of them that another kernel computes too.
    pub again: Vec<String>,
    pub found: String,
    pub saved_bytes: u64,
    pub saved_launches: u64,
    /// Whether only a measurement tells its time well.
    pub is_complex: bool,
    pub score_ps: i64,
    /// Patterns of one number are the same kernel.
    pub structure: usize,
}

/// Plans the unfused program of a recipe.
///
/// # Errors
/// Errors of the recipe.
pub fn plan(recipe: &Recipe, planning: &Planning) -> Result<Stitching, PipelineError> {
    let unfused = programs::plain(recipe, VariantId::Unfused, false)?.program;
    let begin = Instant::now();
    let plans = stitching(&unfused, planning)?;
    let seconds = begin.elapsed().as_secs_f64();
    let states = plans.iter().filter(|plan| !plan.units.is_empty()).map(state).collect();
    Ok(Stitching { program: recipe.program.name.clone(), scores: planning.scores.clone(), model: planning.model.clone(), seconds, states })
}

fn state(plan: &StatePlan) -> StateStitching {
    let dropped = plan.dropped();
    StateStitching {
        state: plan.state.clone(),
        times: plan.times,
        units: plan.units.len(),
        kernels: plan.kernels(),
        unique_kernels: plan.unique(),
        saved_ps: plan.saved(),
        bound_ps: plan.cover.as_ref().map_or(plan.plan.bound, |cover| cover.bound),
        proven: plan.is_proven(),
        packing_ps: plan.plan.total,
        repeated: plan.cover.as_ref().map_or(0, StateCover::repeated),
        greedy_ps: plan.plan.greedy_total,
        patterns: plan.chosen.iter().map(|chosen| row(plan, chosen)).collect(),
        candidates: CandidateCounts {
            asked: plan.asked,
            asked_unique: plan.asked_unique,
            refused: plan.refused,
            kept: plan.problem.patterns.len(),
            negative: dropped.negative,
            not_convex: dropped.not_convex,
        },
        problem: ProblemRow {
            units: plan.units.iter().map(|(name, _)| name.clone()).collect(),
            edges: plan.problem.dag.edges().to_vec(),
            order: plan.problem.dag.order().to_vec(),
            patterns: plan.problem.patterns.clone(),
        },
        certificate: plan.certificate().clone(),
    }
}

fn row(plan: &StatePlan, chosen: &Chosen) -> PatternRow {
    PatternRow {
        units: chosen.units.iter().map(|unit| plan.units[*unit as usize].0.clone()).collect(),
        again: chosen.again.iter().map(|unit| plan.units[*unit as usize].0.clone()).collect(),
        found: match chosen.source {
            CandidateSource::Rung(rung) => format!("rung {}", rung + 1),
            CandidateSource::Part(rung) => format!("part of rung {}", rung + 1),
            CandidateSource::Explored => "explored".to_string(),
        },
        saved_bytes: chosen.saving.bytes,
        saved_launches: chosen.saving.launches,
        is_complex: chosen.saving.is_complex,
        score_ps: chosen.score_ps,
        structure: chosen.structure + 1,
    }
}

/// The name of a unit in a pattern, marked where another kernel computes it too.
fn named(unit: &str, again: &[String]) -> String {
    if again.iter().any(|other| other == unit) { format!("{unit} (again)") } else { unit.to_string() }
}

fn microseconds(ps: i64) -> String {
    format!("{:.2}", ps as f64 / 1e6)
}

/// The same as tables for a terminal.
pub fn text(found: &Stitching, colour: bool) -> String {
    let mut out = format!("{}: fusion of the unfused program, planned by {}\n", found.program, found.scores);
    for state in &found.states {
        let mut table = Table::new(&[
            ("pattern", "", Align::Left),
            ("found", "", Align::Left),
            ("bytes saved", "", Align::Right),
            ("launches", "", Align::Right),
            ("score", "us", Align::Right),
            ("kernel", "", Align::Right),
        ]);
        for row in &state.patterns {
            table.row(vec![
                Cell::text(row.units.iter().map(|u| named(u, &row.again)).collect::<Vec<_>>().join(" + ")),
                Cell::text(if row.is_complex { format!("{}, complex", row.found) } else { row.found.clone() }),
                Cell::text(row.saved_bytes.to_string()),
                Cell::text(row.saved_launches.to_string()),
                Cell::text(microseconds(row.score_ps)),
                Cell::text(format!("#{}", row.structure)),
            ]);
        }
        let repeated = match state.repeated {
            0 => String::new(),
            n => format!("; {n} units are computed in several kernels, without which a plan saves {} us", microseconds(state.packing_ps)),
        };
        let CandidateCounts { asked, asked_unique, refused, kept, negative, not_convex } = state.candidates;
        let proof = if state.proven {
            "proven: no plan of these candidates saves more".to_string()
        } else {
            format!("not proven: at most {} us", microseconds(state.bound_ps))
        };
        let _ = write!(
            out,
            "\n{}{}: {} units, {} kernels ({} of them stitched, {} distinct)\n{}  saves {} us, {proof}{repeated}; greedy on the same scores saves {} us ({:+.1}%)\n  {kept} candidates; {asked} sets of units were asked about, {asked_unique} distinct ones; {refused} have no kernel, {negative} save nothing, {not_convex} would wait for themselves\n",
            state.state,
            if state.times > 1 { format!(", {} times", state.times) } else { String::new() },
            state.units,
            state.kernels,
            state.patterns.len(),
            state.unique_kernels,
            table.text(colour),
            microseconds(state.saved_ps),
            microseconds(state.greedy_ps),
            (state.greedy_ps as f64 / state.saved_ps.max(1) as f64 - 1.0) * 100.0,
        );
    }
    let _ = writeln!(out, "\nplanned, proven and verified in {:.2} s", found.seconds);
    out
}
