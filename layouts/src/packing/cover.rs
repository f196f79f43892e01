//! Covers: plans of fusion in which an operator may be computed in several kernels, if that costs less than to keep its result.
//!
//! A kernel computes its members and leaves the results of some of them in memory. A plan is a set of kernels, and of operators that run
//! alone, such that every result that leaves the graph is in memory, everything that a kernel or an operator alone reads of others is, and
//! they have an order. It minimises the sum of their costs. A packing is a cover in which no operator is computed twice.
//!
//! As a program in 0/1: `y_v` says that the operator v does not run alone, which saves its cost, and `x_P` that the kernel P runs, which
//! costs its own. With W(v) the kernels that leave the result of v in memory:
//!
//! - y_v − Σ_{W(v)} x ≤ 0 for every result that leaves,
//! - y_u − y_v − Σ_{W(u)} x ≤ 0 for every edge u → v: who runs alone reads from memory,
//! - x_P + y_u − Σ_{W(u)∖P} x ≤ 1 for every operator u that P reads and does not compute,
//! - and cuts for sets of which each member waits for another one, added when a choice has them.
//!
//! Source: the constraint "each at least once" of Korch (Hu et al., "Optimal Kernel Orchestration for Tensor Programs", ASPLOS 2024) in
//! place of "at most once" of "FusionStitching" (Long, Yang, Lin), §4.1.

use super::branch::{self, BranchNode, LinearConstraint, Program};
use super::dag::Dag;
use super::planner::PackingLimits;
use crate::model::cost::Cost;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A kernel that a cover may contain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverKernel {
    /// The operators that it computes, sorted.
    pub members: Vec<u32>,
    /// Those of them whose results it leaves in memory, sorted.
    pub writes: Vec<u32>,
    /// Picoseconds.
    pub cost: Cost,
}

/// Operators with what each costs alone, and kernels of several of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoverProblem {
    pub dag: Dag,
    /// Whether the caller needs an operator's result.
    pub leaves: Vec<bool>,
    /// Picoseconds of each operator alone.
    pub alone: Vec<Cost>,
    pub kernels: Vec<CoverKernel>,
}

/// Something that runs: an operator alone, or a kernel by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoverStep {
    Alone(u32),
    Kernel(u32),
}

/// Steps of which none can be the first: each waits for an operator that only they compute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverCut {
    /// Each with the operator that it waits for.
    pub waits: Vec<(CoverStep, u32)>,
}

/// Why no cover costs less: bounds of parts of all choices, by prices of the rows in the order of the module's list, then of the cuts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoverProof {
    pub cuts: Vec<CoverCut>,
    pub tree: Vec<BranchNode>,
}

/// A cover with its proof.
#[derive(Clone, Debug)]
pub struct CoverPlan {
    /// In an order in which they can run.
    pub steps: Vec<CoverStep>,
    pub cost: Cost,
    /// No cover costs less.
    pub bound: Cost,
    pub proof: CoverProof,
}

impl CoverPlan {
    pub fn is_proven(&self) -> bool {
        self.cost == self.bound
    }

    /// The kernels of several operators, by their positions, in the order of the steps.
    pub fn kernels(&self) -> impl Iterator<Item = u32> + '_ {
        self.steps.iter().filter_map(|step| if let CoverStep::Kernel(kernel) = step { Some(*kernel) } else { None })
    }
}

impl CoverProblem {
    /// What a step reads of others, sorted.
    pub fn reads(&self, step: CoverStep) -> Vec<u32> {
        match step {
            CoverStep::Alone(operator) => self.dag.before(operator).to_vec(),
            CoverStep::Kernel(kernel) => {
                let members = &self.kernels[kernel as usize].members;
                let all = members.iter().flat_map(|m| self.dag.before(*m)).filter(|u| members.binary_search(u).is_err());
                all.copied().collect::<BTreeSet<_>>().into_iter().collect()
            }
        }
    }

    fn writes(&self, step: CoverStep) -> &[u32] {
        match step {
            CoverStep::Alone(_) => &[],
            CoverStep::Kernel(kernel) => &self.kernels[kernel as usize].writes,
        }
    }

    fn cost(&self, step: CoverStep) -> Cost {
        match step {
            CoverStep::Alone(operator) => self.alone[operator as usize],
            CoverStep::Kernel(kernel) => self.kernels[kernel as usize].cost,
        }
    }

    /// The variable of a kernel: those of operators come first.
    fn variable(&self, kernel: u32) -> u32 {
        self.dag.operators() as u32 + kernel
    }

    /// The kernels that leave an operator's result in memory.
    fn writers(&self, operator: u32) -> impl Iterator<Item = u32> + '_ {
        let all = self.kernels.iter().enumerate();
        all.filter(move |(_, kernel)| kernel.writes.binary_search(&operator).is_ok()).map(|(n, _)| n as u32)
    }

    fn program(&self) -> Program {
        let weights = self.alone.iter().copied().chain(self.kernels.iter().map(|kernel| -kernel.cost)).collect();
        let mut rows = Vec::new();
        let made = |operator: u32, but: Option<u32>| {
            let others = self.writers(operator).filter(move |kernel| Some(*kernel) != but);
            others.map(|kernel| (self.variable(kernel), -1)).collect::<Vec<_>>()
        };
        for operator in (0..self.dag.operators() as u32).filter(|v| self.leaves[*v as usize]) {
            rows.push(row(std::iter::once((operator, 1)).chain(made(operator, None)), 0));
        }
        for (from, to) in self.dag.edges() {
            rows.push(row([(*from, 1), (*to, -1)].into_iter().chain(made(*from, None)), 0));
        }
        for kernel in 0..self.kernels.len() as u32 {
            for read in self.reads(CoverStep::Kernel(kernel)) {
                rows.push(row([(self.variable(kernel), 1), (read, 1)].into_iter().chain(made(read, Some(kernel))), 1));
            }
        }
        Program { weights, rows }
    }

    /// If all steps of a cut run, another one must compute what one of them waits for.
    fn cut_row(&self, cut: &CoverCut) -> LinearConstraint {
        let inside: BTreeSet<CoverStep> = cut.waits.iter().map(|(step, _)| *step).collect();
        let waited: BTreeSet<u32> = cut.waits.iter().map(|(_, operator)| *operator).collect();
        let (mut terms, mut bound) = (Vec::new(), inside.len() as i64 - 1);
        for step in &inside {
            match step {
                CoverStep::Kernel(kernel) => terms.push((self.variable(*kernel), 1)),
                CoverStep::Alone(operator) => {
                    terms.push((*operator, -1));
                    bound -= 1;
                }
            }
        }
        let mut others: BTreeSet<u32> = BTreeSet::new();
        for operator in waited {
            others.extend(self.writers(operator).filter(|kernel| !inside.contains(&CoverStep::Kernel(*kernel))));
            if !inside.contains(&CoverStep::Alone(operator)) {
                terms.push((operator, 1));
                bound += 1;
            }
        }
        row(terms.into_iter().chain(others.into_iter().map(|kernel| (self.variable(kernel), -1))), bound)
    }

    /// The operators that must run alone beside kernels: all that is needed in memory and no kernel leaves there.
    fn alone_beside(&self, kernels: &[u32]) -> Vec<u32> {
        let written: BTreeSet<u32> = kernels.iter().flat_map(|k| &self.kernels[*k as usize].writes).copied().collect();
        let mut waiting: Vec<u32> = (0..self.dag.operators() as u32).filter(|v| self.leaves[*v as usize]).collect();
        waiting.extend(kernels.iter().flat_map(|k| self.reads(CoverStep::Kernel(*k))));
        let mut alone = BTreeSet::new();
        while let Some(operator) = waiting.pop() {
            if !written.contains(&operator) && alone.insert(operator) {
                waiting.extend(self.dag.before(operator));
            }
        }
        alone.into_iter().collect()
    }

    /// Steps in an order in which each finds what it reads in memory, or those that cannot run, each with an operator that it waits for.
    fn order(&self, steps: &[CoverStep]) -> Result<Vec<CoverStep>, Vec<(CoverStep, u32)>> {
        let mut made = vec![false; self.dag.operators()];
        let (mut done, mut left) = (Vec::new(), steps.to_vec());
        loop {
            let missing = |step: &CoverStep| self.reads(*step).into_iter().find(|u| !made[*u as usize]);
            let (ready, waiting): (Vec<CoverStep>, Vec<CoverStep>) = left.iter().partition(|step| missing(step).is_none());
            if ready.is_empty() {
                let stuck: Vec<(CoverStep, u32)> = waiting.iter().filter_map(|step| Some((*step, missing(step)?))).collect();
                return if stuck.is_empty() { Ok(done) } else { Err(stuck) };
            }
            for step in &ready {
                if let CoverStep::Alone(operator) = step {
                    made[*operator as usize] = true;
                }
                self.writes(*step).iter().for_each(|operator| made[*operator as usize] = true);
            }
            done.extend(ready);
            left = waiting;
        }
    }

    /// The smallest set among stuck steps of which each waits for another one, with all of them that compute what it waits for.
    fn cut(&self, stuck: &[(CoverStep, u32)]) -> CoverCut {
        let computes = |step: CoverStep, operator: u32| step == CoverStep::Alone(operator) || self.writes(step).contains(&operator);
        let closed = |first: (CoverStep, u32)| {
            let mut found = vec![first];
            let mut at = 0;
            while at < found.len() {
                let operator = found[at].1;
                for step in stuck.iter().filter(|(step, _)| computes(*step, operator)) {
                    if !found.contains(step) {
                        found.push(*step);
                    }
                }
                at += 1;
            }
            found.sort_unstable();
            found
        };
        let waits = stuck.iter().map(|first| closed(*first)).min_by_key(|found| (found.len(), found.clone())).unwrap_or_default();
        CoverCut { waits }
    }
}

fn row(terms: impl IntoIterator<Item = (u32, i64)>, bound: i64) -> LinearConstraint {
    LinearConstraint { terms: terms.into_iter().collect(), bound }
}

/// The cheapest cover within the limits, with its proof; never dearer than `start`, kernels of a packing. Deterministic.
pub fn cover(problem: &CoverProblem, start: &[u32], limits: PackingLimits) -> CoverPlan {
    let operators = problem.dag.operators() as u32;
    let steps = |kernels: &[u32], alone: &[u32]| -> Vec<CoverStep> {
        alone.iter().map(|v| CoverStep::Alone(*v)).chain(kernels.iter().map(|k| CoverStep::Kernel(*k))).collect()
    };
    let choice = |kernels: &[u32]| -> Vec<u32> {
        let alone = problem.alone_beside(kernels);
        let not_alone = (0..operators).filter(|v| alone.binary_search(v).is_err());
        not_alone.chain(kernels.iter().map(|k| problem.variable(*k))).collect()
    };
    let fits = problem.order(&steps(start, &problem.alone_beside(start))).is_ok();
    let start = choice(if fits { start } else { &[] });
    let apart = |choice: &[u32]| -> (Vec<u32>, Vec<u32>) {
        let kernels = choice.iter().filter(|v| **v >= operators).map(|v| v - operators).collect();
        (kernels, (0..operators).filter(|v| choice.binary_search(v).is_err()).collect())
    };
    let program = problem.program();
    let rows = program.rows.len();
    let mut found: Vec<(LinearConstraint, CoverCut)> = Vec::new();
    let mut lazy = |choice: &[u32]| match problem.order(&{
        let (kernels, alone) = apart(choice);
        steps(&kernels, &alone)
    }) {
        Ok(_) => vec![],
        Err(stuck) => {
            let cut = problem.cut(&stuck);
            let row = problem.cut_row(&cut);
            found.push((row.clone(), cut));
            vec![row]
        }
    };
    let solved = branch::maximise(program, start, (limits.nodes, limits.pivots), &mut lazy);
    let of = |row: &LinearConstraint| found.iter().find(|(known, _)| known == row).map(|(_, cut)| cut.clone());
    let cuts = solved.rows[rows..].iter().filter_map(of).collect();
    let (kernels, alone) = apart(&solved.chosen);
    let steps = problem.order(&steps(&kernels, &alone)).unwrap_or_default();
    let all: Cost = problem.alone.iter().sum();
    let cost = steps.iter().map(|step| problem.cost(*step)).sum();
    CoverPlan { steps, cost, bound: all - solved.bound, proof: CoverProof { cuts, tree: solved.tree } }
}
