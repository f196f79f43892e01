//! The problem of a plan: operators, and the patterns that may become kernels.

use super::dag::{Convexity, Dag};
use crate::model::cost::Cost;
use serde::{Deserialize, Serialize};

/// The largest score of a pattern, in picoseconds: about 18 minutes.
pub const LARGEST: Cost = crate::model::cost::LONGEST;

/// A set of operators that may become one kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FusionPattern {
    /// Sorted, each once.
    pub members: Vec<u32>,
    /// Picoseconds that it saves against its members, each alone.
    pub score: Cost,
}

/// Patterns that are no candidates, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// They save nothing, or have no kernel.
    pub negative: usize,
    /// A path leaves the pattern and enters it again: its kernel would wait for itself.
    pub not_convex: usize,
    /// The same set of operators stands earlier in the list with at least this score.
    pub repeated: usize,
    /// Of one operator, of none, or of operators that do not exist.
    pub empty: usize,
}

/// Operators and candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackingProblem {
    pub dag: Dag,
    pub patterns: Vec<FusionPattern>,
    pub dropped: Dropped,
}

impl PackingProblem {
    /// The candidates among patterns: those with a score above zero that a plan can contain.
    pub fn new(dag: Dag, patterns: impl IntoIterator<Item = FusionPattern>) -> Self {
        let mut dropped = Dropped::default();
        let mut convexity = Convexity::new(&dag);
        let mut best: std::collections::HashMap<Vec<u32>, usize> = std::collections::HashMap::new();
        let mut kept: Vec<FusionPattern> = Vec::new();
        for mut pattern in patterns {
            pattern.members.sort_unstable();
            pattern.members.dedup();
            if pattern.members.len() < 2 || pattern.members.last().is_some_and(|last| *last as usize >= dag.operators()) {
                dropped.empty += 1;
            } else if pattern.score <= 0 || pattern.score > LARGEST {
                dropped.negative += 1;
            } else if let Some(known) = best.get(&pattern.members) {
                dropped.repeated += 1;
                kept[*known].score = kept[*known].score.max(pattern.score);
            } else if !convexity.is_convex(&pattern.members) {
                dropped.not_convex += 1;
            } else {
                best.insert(pattern.members.clone(), kept.len());
                kept.push(pattern);
            }
        }
        PackingProblem { dag, patterns: kept, dropped }
    }

    /// A hash of graph and candidates: a certificate is of one problem.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut number = |n: u64| _ = hasher.update(&n.to_le_bytes());
        number(self.dag.operators() as u64);
        number(self.dag.edges().len() as u64);
        for (from, to) in self.dag.edges() {
            number(u64::from(*from) << 32 | u64::from(*to));
        }
        for pattern in &self.patterns {
            number(pattern.score as u64);
            number(pattern.members.len() as u64);
            pattern.members.iter().for_each(|m| number(u64::from(*m)));
        }
        hasher.finalize().to_hex()[..32].to_string()
    }

    /// The sum of the scores of patterns.
    pub fn total(&self, chosen: &[u32]) -> Cost {
        chosen.iter().map(|p| self.patterns[*p as usize].score).sum()
    }
}
