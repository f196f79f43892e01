//! Plans which units of a program become one kernel: candidates that its passes can make, chosen by the model's scores, proven.

use super::candidate_set::CandidateSet;
use super::cover_plan::{StateCover, state_cover};
use super::planning::Planning;
use crate::pipeline::PipelineError;
use layouts::packing::problem::{FusionPattern, PackingProblem};
use layouts::packing::verify::verify;
use layouts::packing::{Dag, Dropped, PackingCertificate, PackingLimits, PackingPlan, plan};
use sdfg::{Sdfg, Unit};
use std::collections::BTreeSet;
use transforms::stitch::{AccessClass, CandidateSource, GrowthLimits, Saving, Savings, StateGraph, candidates, graphs, structure};

/// A pattern of a plan.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Positions of its units, sorted.
    pub units: Vec<u32>,
    pub source: CandidateSource,
    pub saving: Saving,
    pub score_ps: i64,
    /// Patterns with equal numbers are the same kernel.
    pub structure: usize,
    /// Units that it computes although another kernel computes them too.
    pub again: Vec<u32>,
    /// Its text without names: equal for patterns that are the same kernel.
    pub form: String,
    /// What one run saves by the model alone, and what of it others' computing again brings, in picoseconds.
    pub model_ps: i64,
    pub more_ps: i64,
}

/// The plan of one state, or of the body of a loop.
#[derive(Clone, Debug)]
pub struct StatePlan {
    /// The name of the state or of the loop.
    pub state: String,
    /// How often it runs in a step: the times of a loop. Scores are of all times together.
    pub times: u64,
    pub is_loop: bool,
    /// Names and classes of its units, in execution order.
    pub units: Vec<(String, AccessClass)>,
    pub problem: PackingProblem,
    pub plan: PackingPlan,
    /// The plan in which units are computed in several kernels, if it saves more than the packing: then its patterns are chosen.
    pub cover: Option<StateCover>,
    pub chosen: Vec<Chosen>,
    /// Sets of units that were offered to the passes, distinct structures among them, and refusals.
    pub asked: usize,
    pub asked_unique: usize,
    pub refused: usize,
}

impl StatePlan {
    /// Kernels of the state when the plan is carried out.
    pub fn kernels(&self) -> usize {
        match &self.cover {
            Some(cover) => cover.kernels,
            None => self.units.len() - self.chosen.iter().map(|chosen| chosen.units.len() - 1).sum::<usize>(),
        }
    }

    /// Distinct kernels among those that the plan makes.
    pub fn unique(&self) -> usize {
        self.chosen.iter().map(|chosen| chosen.structure).collect::<BTreeSet<_>>().len()
    }

    pub fn dropped(&self) -> Dropped {
        self.problem.dropped
    }

    pub fn certificate(&self) -> &PackingCertificate {
        &self.plan.certificate
    }

    /// The names of the units of each pattern.
    pub fn patterns(&self) -> Vec<Vec<String>> {
        self.chosen.iter().map(|chosen| self.names(&chosen.units)).collect()
    }

    /// The names of the units that each pattern computes although another kernel computes them too.
    pub fn again(&self) -> Vec<Vec<String>> {
        self.chosen.iter().map(|chosen| self.names(&chosen.again)).collect()
    }

    fn names(&self, units: &[u32]) -> Vec<String> {
        units.iter().map(|unit| self.units[*unit as usize].0.clone()).collect()
    }

    /// Whether no plan of the candidates saves more.
    pub fn is_proven(&self) -> bool {
        self.cover.as_ref().map_or(self.plan.is_proven(), StateCover::is_proven)
    }

    /// Picoseconds that the plan saves.
    pub fn saved(&self) -> i64 {
        self.cover.as_ref().map_or(self.plan.total, |cover| cover.saved)
    }
}

/// How far candidates of a recipe's program grow: the passes are asked about each.
pub const BOUNDS: GrowthLimits = GrowthLimits { per_seed: 8, members: 12, seed: 0, operands: 10, per_segment: 400, segment: 400 };

/// Units of a program whose patterns are explored; of longer ones the ladder alone is asked, since every candidate is checked by a pass.
const EXPLORED: usize = 1200;

/// The plans of all states of a program whose operations are expanded but for contractions, and of the bodies of its loops. Every
/// certificate was verified.
///
/// # Errors
/// A program whose units cannot run one after the other, or a certificate that the verifier refuses: Memlet is at fault.
pub fn stitching(program: &Sdfg, planning: &Planning) -> Result<Vec<StatePlan>, PipelineError> {
    let mut found = Vec::new();
    for graph in graphs(program).map_err(|e| PipelineError::Internal(e.to_string()))? {
        let name = program.state(graph.state).map(|state| state.name.clone()).unwrap_or_default();
        found.push(state_plan(program, &graph, (name, None), planning)?);
    }
    for (_, _, unit) in program.units() {
        let Unit::Nested(nested) = unit else { continue };
        let Some(repeat) = &nested.repeat else { continue };
        let mut body = (*nested.program).clone();
        for (symbol, value) in &nested.symbols {
            body.sizes.extend(value.eval(&program.sizes).ok().map(|value| (symbol.clone(), value)));
        }
        let times = program.size_of(&repeat.dim).eval(&program.sizes).ok().and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
        for graph in graphs(&body).map_err(|e| PipelineError::Internal(e.to_string()))? {
            found.push(state_plan(&body, &graph, (nested.name.clone(), Some(times)), planning)?);
        }
    }
    Ok(found)
}

fn state_plan(
    program: &Sdfg,
    graph: &StateGraph,
    (name, repeated): (String, Option<u64>),
    planning: &Planning,
) -> Result<StatePlan, PipelineError> {
    let (model, set, executed) = (&planning.model, planning.candidates, &planning.executed);
    let internal = |e: &dyn std::fmt::Display| PipelineError::Internal(e.to_string());
    let times = repeated.unwrap_or(1);
    let bounds = if graph.graph.len() > EXPLORED { GrowthLimits { per_seed: 0, ..BOUNDS } } else { BOUNDS };
    let found = candidates(program, graph, bounds);
    let mut savings = Savings::new(&graph.graph);
    let mut sources: Vec<(CandidateSource, Vec<u32>, Saving, i64)> = Vec::new();
    for (source, members) in found.patterns {
        let holds_product = members.iter().any(|m| graph.graph.operator(*m).class.is_product());
        if !set.has(source, holds_product) {
            continue;
        }
        let saving = savings.of(&members);
        // The passes have said that what is handed on fits.
        let by_model = model.score(saving.bytes, saving.launches, 0);
        // Kernels of a loop's body have no times of their own.
        let score = match executed.is_empty() || repeated.is_some() {
            true => by_model,
            false => executed.score(&structure(&graph.graph, &members), by_model),
        };
        sources.push((source, members, saving, score.saturating_mul(times as i64)));
    }
    let dag = Dag::new(graph.graph.len(), graph.graph.edges(), found.ladder.order).map_err(|e| internal(&e))?;
    let patterns = sources.iter().map(|(_, members, _, score)| FusionPattern { members: members.clone(), score: *score });
    let problem = PackingProblem::new(dag, patterns);
    let plan = plan(&problem, PackingLimits::default());
    verify(&problem, &plan.certificate).map_err(|e| internal(&e))?;
    let cover = match set {
        CandidateSet::All => state_cover(&graph.graph, &problem, &plan, model, times)?,
        _ => None,
    };
    let mut structures: Vec<String> = Vec::new();
    let mut chosen = Vec::new();
    let packed = || plan.chosen.iter().map(|pattern| (problem.patterns[*pattern as usize].members.clone(), vec![], None));
    let patterns: Vec<(Vec<u32>, Vec<u32>, Option<u64>)> = match &cover {
        Some(cover) => cover.patterns.iter().map(|p| (p.units.clone(), p.again.clone(), Some(p.bytes))).collect(),
        None => packed().collect(),
    };
    for (members, again, bytes) in patterns {
        let Some((source, units, saving, score)) = sources.iter().find(|(_, other, _, _)| *other == members) else { continue };
        let model_ps = model.score(saving.bytes, saving.launches, 0);
        let saving = Saving { bytes: bytes.unwrap_or(saving.bytes), ..*saving };
        let more_ps = model.score(saving.bytes, saving.launches, 0) - model_ps;
        let score_ps = score.saturating_add(more_ps.saturating_mul(times as i64));
        let form = structure(&graph.graph, units);
        let number = structures.iter().position(|known| *known == form).unwrap_or(structures.len());
        if number == structures.len() {
            structures.push(form.clone());
        }
        let (units, source, structure) = (units.clone(), *source, number);
        chosen.push(Chosen { units, source, saving, score_ps, structure, again, form, model_ps, more_ps });
    }
    let units = graph.names.iter().cloned().zip(graph.graph.operators.iter().map(|operator| operator.class)).collect();
    let (asked, asked_unique, refused) = (found.asked, found.unique, found.refused);
    let is_loop = repeated.is_some();
    Ok(StatePlan { state: name, times, is_loop, units, problem, plan, cover, chosen, asked, asked_unique, refused })
}
