//! What plans of fusion are made by: scores of launches and bytes, of patterns that were run, and the set of candidates.

use super::candidate_set::CandidateSet;
use super::execution_scores::ExecutionScores;
use layouts::packing::score::{Curve, ScoreModel};

/// What plans of fusion are made by.
#[derive(Clone, Debug, PartialEq)]
pub struct Planning {
    pub model: ScoreModel,
    /// Where the scores come from, in a few words.
    pub scores: String,
    pub candidates: CandidateSet,
    pub executed: ExecutionScores,
}

/// Scores where no machine was measured: a dispatch to a pool of cores, and copies within their caches.
pub fn typical_cores() -> ScoreModel {
    ScoreModel { curve: Curve::saturating(20e9, 16 << 10), launch_ps: 2_000_000, on_chip: 256 << 10 }
}

impl Planning {
    /// By scores that were measured on so many cores of this machine, or typical ones.
    pub fn of(measured: Option<ScoreModel>, cores: usize) -> Self {
        let scores = format!("launches and copies measured on {cores} cores");
        measured.map_or_else(Planning::default, |model| Planning { model, scores, ..Planning::default() })
    }

    /// The same, with patterns that were run.
    pub fn with_executed(&self, executed: ExecutionScores) -> Self {
        let scores = match &self.executed.scores.is_empty() {
            true => format!("{}, and {} by the times of their kernels", self.scores, patterns(executed.scores.len())),
            false => self.scores.clone(),
        };
        Planning { scores, executed, ..self.clone() }
    }
}

impl Default for Planning {
    fn default() -> Self {
        let scores = "typical cores; `memlet devices --cores` measures these".to_string();
        Planning { model: typical_cores(), scores, candidates: CandidateSet::default(), executed: ExecutionScores::default() }
    }
}

fn patterns(count: usize) -> String {
    if count == 1 { "1 pattern".into() } else { format!("{count} patterns") }
}
