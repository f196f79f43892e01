//! The certificate of a plan: what was chosen, and why no plan of the same candidates is worth more.
//!
//! Candidates fall into parts that share no operator; equal parts are written once. The proof of a part is a tree: either prices of
//! operators and cuts bound it, or a pattern is taken in one branch and left in the other. Scores are whole picoseconds, prices whole
//! numbers of 1/65,536 ps. [`super::verify`] checks it without searching.

use super::problem::PackingProblem;
use crate::model::cost::Cost;
use serde::{Deserialize, Serialize};

/// Version of the format.
pub const FORMAT: u32 = 1;

/// Patterns that cannot all be chosen, since they would wait for one another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Each holds both operators of one place of the cycle: where it enters and where it leaves.
    pub patterns: Vec<u32>,
    /// Edges; where one ends at another operator than the next begins, a pattern must hold both. One pattern fewer than there are such
    /// places can be chosen.
    pub cycle: Vec<(u32, u32)>,
}

/// One step of a proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum ProofStep {
    /// Prices of operators and of cuts, those that are not zero.
    Bounded { operators: Vec<(u32, i64)>, cuts: Vec<(u32, i64)> },
    /// A pattern, and the positions of the steps for plans with it and without it.
    Split { pattern: u32, taken: u32, left: u32 },
}

/// A part of the problem, numbered on its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProofPart {
    pub operators: u32,
    pub members: Vec<Vec<u32>>,
    pub scores: Vec<Cost>,
    pub cuts: Vec<Cut>,
    /// The first is the whole.
    pub steps: Vec<ProofStep>,
    /// No choice within the part is worth more.
    pub bound_ps: Cost,
}

/// Where a part stands in the problem: the operator and the pattern of each of its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    pub part: usize,
    pub operators: Vec<u32>,
    pub patterns: Vec<u32>,
}

/// A plan with the proof of its bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackingCertificate {
    pub format: u32,
    /// [`PackingProblem::fingerprint`].
    pub problem: String,
    /// Positions of patterns in the problem.
    pub chosen: Vec<u32>,
    pub total_ps: Cost,
    /// Equal to the total if the plan is proven to be the best of these candidates.
    pub bound_ps: Cost,
    pub parts: Vec<ProofPart>,
    pub instances: Vec<Instance>,
}

impl PackingCertificate {
    pub fn new(
        problem: &PackingProblem,
        chosen: Vec<u32>,
        (total_ps, bound_ps): (Cost, Cost),
        parts: Vec<ProofPart>,
        instances: Vec<Instance>,
    ) -> Self {
        PackingCertificate { format: FORMAT, problem: problem.fingerprint(), chosen, total_ps, bound_ps, parts, instances }
    }
}
