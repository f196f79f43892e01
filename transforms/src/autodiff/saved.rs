//! What backward reads from memory and what it computes again, as decisions with their reasons.

use sdfg::{BuildError, SymbolError};
use serde::Serialize;
use std::fmt;

/// Whether backward reads a tensor of forward from memory or computes it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RecomputePolicy {
    Saved,
    Recomputed,
}

/// One decision, with its reason as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Saved {
    pub container: String,
    /// Size of the container under the program's sizes; of a mask, one byte an element.
    pub bytes: u64,
    pub policy: RecomputePolicy,
    pub why: String,
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policy = if self.policy == RecomputePolicy::Saved { "saved" } else { "recomputed" };
        write!(f, "{} ({} bytes) is {policy}: {}", self.container, self.bytes, self.why)
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecomputeError {
    #[error("`{unit}` is no operator any more; decide what is saved before expanding or fusing")]
    Expanded { unit: String },
    #[error("whether `{container}` is saved depends on its size: {source}")]
    Size { container: String, source: SymbolError },
    #[error(transparent)]
    Build(#[from] BuildError),
}
