//! The candidates of a plan of fusion by how they were found, for ablations.

use serde::Serialize;
use transforms::stitch::CandidateSource;

/// Which patterns of a program a plan is chosen from: the steps of an ablation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum CandidateSet {
    /// Substitution fusion alone, without products.
    Ladder,
    /// The ladder, and patterns that grew around seeds, without products.
    Explored,
    /// All: also products with what surrounds them.
    #[default]
    All,
}

impl CandidateSet {
    /// Whether a pattern is among them.
    pub fn has(self, source: CandidateSource, holds_product: bool) -> bool {
        match self {
            CandidateSet::All => true,
            CandidateSet::Explored => !holds_product,
            CandidateSet::Ladder => !holds_product && source != CandidateSource::Explored,
        }
    }
}
