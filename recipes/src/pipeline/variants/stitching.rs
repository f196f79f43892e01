//! Plans which units of a program become one kernel: candidates that its passes can make, chosen by the model's scores, proven.

use crate::pipeline::PipelineError;
use layouts::packing::problem::{FusionPattern, PackingProblem};
use layouts::packing::score::{Curve, ScoreModel};
use layouts::packing::verify::verify;
use layouts::packing::{Dag, Dropped, PackingCertificate, PackingLimits, PackingPlan, plan};
use sdfg::Sdfg;
use std::collections::BTreeSet;
use std::sync::OnceLock;
use transforms::stitch::{AccessClass, CandidateSource, GrowthLimits, Saving, Savings, StateGraph, Stitch, candidates, graphs, structure};
use transforms::{Context, Pass, Rewritten, Stopped};

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
}

/// The plan of one state.
#[derive(Clone, Debug)]
pub struct StatePlan {
    pub state: String,
    /// Names and classes of its units, in execution order.
    pub units: Vec<(String, AccessClass)>,
    pub problem: PackingProblem,
    pub plan: PackingPlan,
    pub chosen: Vec<Chosen>,
    /// Sets of units that were offered to the passes, distinct structures among them, and refusals.
    pub asked: usize,
    pub asked_unique: usize,
    pub refused: usize,
}

impl StatePlan {
    /// Kernels of the state when the plan is carried out.
    pub fn kernels(&self) -> usize {
        self.units.len() - self.chosen.iter().map(|chosen| chosen.units.len() - 1).sum::<usize>()
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
        let names = |chosen: &Chosen| chosen.units.iter().map(|unit| self.units[*unit as usize].0.clone()).collect();
        self.chosen.iter().map(names).collect()
    }
}

/// Scores where no machine was measured: a dispatch to a pool of cores, and copies within their caches.
pub fn typical_cores() -> ScoreModel {
    ScoreModel { curve: Curve::saturating(20e9, 16 << 10), launch_ps: 2_000_000, on_chip: 256 << 10 }
}

/// How far candidates of a recipe's program grow: the passes are asked about each.
pub const BOUNDS: GrowthLimits = GrowthLimits { per_seed: 8, members: 12, seed: 0, operands: 10, per_segment: 400, segment: 400 };

/// The plans of all states of a program whose operations are expanded but for contractions. Every certificate was verified.
///
/// # Errors
/// A program whose units cannot run one after the other, or a certificate that the verifier refuses: Memlet is at fault.
pub fn stitching(program: &Sdfg, model: &ScoreModel, bounds: GrowthLimits) -> Result<Vec<StatePlan>, PipelineError> {
    let graphs = graphs(program).map_err(|e| PipelineError::Internal(e.to_string()))?;
    graphs.iter().map(|graph| state_plan(program, graph, model, bounds)).collect()
}

fn state_plan(program: &Sdfg, graph: &StateGraph, model: &ScoreModel, bounds: GrowthLimits) -> Result<StatePlan, PipelineError> {
    let internal = |e: &dyn std::fmt::Display| PipelineError::Internal(e.to_string());
    let found = candidates(program, graph, bounds);
    let mut savings = Savings::new(&graph.graph);
    let mut sources: Vec<(CandidateSource, Vec<u32>, Saving, i64)> = Vec::new();
    for (source, members) in found.patterns {
        let saving = savings.of(&members);
        // The passes have said that what is handed on fits.
        let score = model.score(saving.bytes, saving.launches, 0);
        sources.push((source, members, saving, score));
    }
    let dag = Dag::new(graph.graph.len(), graph.graph.edges(), found.ladder.order).map_err(|e| internal(&e))?;
    let patterns = sources.iter().map(|(_, members, _, score)| FusionPattern { members: members.clone(), score: *score });
    let problem = PackingProblem::new(dag, patterns);
    let plan = plan(&problem, PackingLimits::default());
    verify(&problem, &plan.certificate).map_err(|e| internal(&e))?;
    let mut structures: Vec<String> = Vec::new();
    let mut chosen = Vec::new();
    for pattern in &plan.chosen {
        let members = &problem.patterns[*pattern as usize].members;
        let Some((source, units, saving, score)) = sources.iter().find(|(_, other, _, _)| other == members) else { continue };
        let text = structure(&graph.graph, units);
        let number = structures.iter().position(|known| *known == text).unwrap_or(structures.len());
        if number == structures.len() {
            structures.push(text);
        }
        chosen.push(Chosen { units: units.clone(), source: *source, saving: *saving, score_ps: *score, structure: number });
    }
    let name = program.state(graph.state).map(|state| state.name.clone()).unwrap_or_default();
    let units = graph.names.iter().cloned().zip(graph.graph.operators.iter().map(|operator| operator.class)).collect();
    let (asked, asked_unique, refused) = (found.asked, found.unique, found.refused);
    Ok(StatePlan { state: name, units, problem, plan, chosen, asked, asked_unique, refused })
}

/// The pass that plans a program and makes the plan's kernels. It plans once, the first program that it is given.
pub struct PlannedFusion {
    model: ScoreModel,
    planned: OnceLock<Stitch>,
}

impl PlannedFusion {
    pub fn new(model: ScoreModel) -> Self {
        PlannedFusion { model, planned: OnceLock::new() }
    }
}

impl Pass for PlannedFusion {
    fn name(&self) -> &'static str {
        transforms::stitch::pass::NAME
    }

    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let stitch = self.planned.get_or_init(|| {
            // A program that cannot be planned has no plan: nothing is stitched in it.
            let plans = stitching(program, &self.model, BOUNDS).unwrap_or_default();
            Stitch { patterns: plans.iter().flat_map(StatePlan::patterns).collect() }
        });
        stitch.run(program, context)
    }

    fn repeats(&self) -> bool {
        true
    }
}
