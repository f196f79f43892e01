//! The plan of fusion of a state where a unit may be computed in several kernels: the candidates of its packing, each also without the
//! results that others may compute for themselves.

use crate::pipeline::PipelineError;
use layouts::packing::cover::{CoverKernel, CoverPlan, CoverProblem, CoverStep, cover};
use layouts::packing::cover_verify::verify_cover;
use layouts::packing::problem::PackingProblem;
use layouts::packing::score::ScoreModel;
use layouts::packing::{PackingLimits, PackingPlan};
use std::collections::HashMap;
use transforms::stitch::{AccessClass, OperatorGraph, Savings};

/// Rows of the largest program that is solved: each pivot of its relaxation takes the square of their number.
const ROWS: usize = 1_500;

/// How far the search goes.
const LIMITS: PackingLimits = PackingLimits { nodes: 400, pivots: 4_000 };

/// A kernel of a cover: its units, and those of them that others compute too, or have in memory.
#[derive(Clone, Debug)]
pub struct CoverPattern {
    pub units: Vec<u32>,
    pub again: Vec<u32>,
    /// Bytes that it saves against its units alone.
    pub bytes: u64,
}

/// A cover that was verified.
#[derive(Clone, Debug)]
pub struct StateCover {
    /// Kernels of several units, in an order in which they can run.
    pub patterns: Vec<CoverPattern>,
    /// All kernels, those of single units too.
    pub kernels: usize,
    /// What it saves against all units alone, and what no cover of these kernels exceeds, in picoseconds.
    pub saved: i64,
    pub bound: i64,
}

impl StateCover {
    pub fn is_proven(&self) -> bool {
        self.saved == self.bound
    }

    /// How many units are computed in more than one kernel.
    pub fn repeated(&self) -> usize {
        let mut times: HashMap<u32, usize> = HashMap::new();
        self.patterns.iter().flat_map(|p| &p.again).for_each(|unit| *times.entry(*unit).or_default() += 1);
        times.len()
    }
}

/// The members of a pattern whose results others need and that may be computed again instead: element-wise ones with one result that stays
/// in the graph.
fn repeatable(graph: &OperatorGraph, members: &[u32]) -> Vec<u32> {
    let fits = |member: &&u32| {
        let operator = graph.operator(**member);
        let [(tensor, _)] = operator.writes[..] else { return false };
        let readers = graph.readers(tensor);
        let inside = |reader: &u32| members.contains(reader);
        operator.class == AccessClass::Elementwise
            && !graph.tensors[tensor as usize].leaves
            && graph.writers(tensor).len() == 1
            && readers.iter().any(inside)
            && !readers.iter().all(inside)
    };
    members.iter().filter(fits).copied().collect()
}

/// The best cover by the scores of the packing, each state `times` times; `None` where none computes a unit twice, or the graph is too
/// large.
///
/// # Errors
/// A proof that the verifier refuses: Memlet is at fault.
pub fn state_cover(
    graph: &OperatorGraph,
    packing: &PackingProblem,
    plan: &PackingPlan,
    model: &ScoreModel,
    times: u64,
) -> Result<Option<StateCover>, PipelineError> {
    let time = |bytes: u64| (model.curve.time(bytes) + model.launch_ps).saturating_mul(times as i64);
    let alone: Vec<i64> = (0..graph.len() as u32).map(|v| time(graph.bytes(v))).collect();
    let leaves = |v: u32| {
        let operator = graph.operator(v);
        graph.after(v).is_empty() || operator.writes.iter().any(|(t, _)| graph.tensors[*t as usize].leaves)
    };
    let mut savings = Savings::new(graph);
    let (mut kernels, mut patterns) = (Vec::new(), Vec::new());
    let mut any = false;
    for pattern in &packing.patterns {
        let members = &pattern.members;
        let saving = savings.of(members);
        let sum: i64 = members.iter().map(|m| alone[*m as usize]).sum();
        let needed = |m: &u32| leaves(*m) || !graph.after(*m).iter().all(|reader| members.contains(reader));
        let again = repeatable(graph, members);
        for again in if again.is_empty() { vec![vec![]] } else { vec![vec![], again] } {
            let writes: Vec<u32> = members.iter().filter(|m| needed(m) && !again.contains(m)).copied().collect();
            if writes.is_empty() {
                continue;
            }
            any |= !again.is_empty();
            let more: u64 = again.iter().flat_map(|m| &graph.operator(*m).writes).map(|(_, bytes)| bytes).sum();
            let bytes = saving.bytes + more;
            let by_model = |bytes: u64| model.score(bytes, saving.launches, 0);
            let score = pattern.score.saturating_add((by_model(bytes) - by_model(saving.bytes)).saturating_mul(times as i64));
            kernels.push(CoverKernel { members: members.clone(), writes, cost: (sum - score).max(1) });
            patterns.push(CoverPattern { units: members.clone(), again, bytes });
        }
    }
    let rows = graph.len() + packing.dag.edges().len();
    if !any || rows > ROWS {
        return Ok(None);
    }
    let problem = CoverProblem { dag: packing.dag.clone(), leaves: (0..graph.len() as u32).map(leaves).collect(), alone, kernels };
    let reads = |kernel: usize| problem.reads(CoverStep::Kernel(kernel as u32)).len();
    if rows + (0..problem.kernels.len()).map(reads).sum::<usize>() > ROWS {
        return Ok(None);
    }
    let start: Vec<u32> = plan
        .chosen
        .iter()
        .filter_map(|chosen| {
            let members = &packing.patterns[*chosen as usize].members;
            patterns.iter().position(|p: &CoverPattern| p.units == *members && p.again.is_empty()).map(|n| n as u32)
        })
        .collect();
    let found: CoverPlan = cover(&problem, &start, LIMITS);
    verify_cover(&problem, &found).map_err(|e| PipelineError::Internal(e.to_string()))?;
    let all: i64 = problem.alone.iter().sum();
    let patterns: Vec<CoverPattern> = found.kernels().map(|kernel| patterns[kernel as usize].clone()).collect();
    let cover = StateCover { patterns, kernels: found.steps.len(), saved: all - found.cost, bound: all - found.bound };
    Ok(Some(cover).filter(|cover| cover.repeated() > 0 && cover.saved > plan.total))
}
