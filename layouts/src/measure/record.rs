//! The records of measurements: one JSON object a line. The format is open:
//!
//! ```text
//! {"line":"session","session":"1767261600000-1.0000@node-3","format":1,"device":"…","toolchain":"…","threads":2,"sizes":{"b":8},
//!  "commit":"…","clock":"…","host":"node-3","hardware":"…","cache":"warm","program":{…}}
//! {"line":"measurement","session":"…","kernel":"SM","key":"…","config":{"layouts":{"x":"h,b"},"knobs":{}},"identity":"…",
//!  "round":0,"check":0.2,"outcome":"measured","samples":[1.5,1.4]}
//! ```
//!
//! | field of a measurement | meaning |
//! | --- | --- |
//! | `session` | the session that made it |
//! | `kernel`, `key` | name of the kernel, and the hash of what it computes at which sizes |
//! | `config`, `identity` | the configuration, and a text that is equal for configurations of equal code and strides |
//! | `mark` | a text that is equal for configurations that do the same under other names, in kernels of any key |
//! | `lender` | the kernel whose samples these are, if it was not run itself |
//! | `round` | 0 in the sweep, 1 for the fresh samples of finalists |
//! | `check` | error ÷ tolerance at small sizes |
//! | `samples`, `bound_ms` | milliseconds |
//! | `reason` | why it has no time |
//!
//! | `outcome` | meaning |
//! | --- | --- |
//! | `measured` | timed in full: `samples` |
//! | `raced`, `bounded` | it cannot be faster than `bound_ms`, by what was timed or by a lower bound: `reason` |
//! | `identical` | it takes as long as the timed configuration of the same key and `identity` |
//! | `mismatch` | its result is wrong; it is never timed |
//! | `failed` | it did not compile or run: `reason` |

use crate::problem::SelectionProblem;
use sdfg::config::KernelConfig;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The state of the caches before a timed run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    /// They hold what the previous run left.
    #[default]
    Warm,
    /// They hold nothing of the kernel's containers.
    Cold,
}

impl fmt::Display for CacheState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CacheState::Warm => "warm",
            CacheState::Cold => "cold",
        })
    }
}

/// Under which circumstances measurements were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Unique among all hosts and ascending with time, for example a timestamp, a process id and a host: processes of a job array begin in
    /// the same millisecond, and in containers they have equal ids.
    pub session: String,
    /// Version of the format.
    pub format: u32,
    pub device: String,
    pub toolchain: String,
    pub threads: usize,
    pub sizes: BTreeMap<String, i64>,
    pub commit: String,
    /// Which clock gave the times, and when the session began.
    pub clock: String,
    /// Which of several equal machines it was; empty in records of earlier versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Its processor, cores, caches and memory, in words.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hardware: String,
    /// Records that do not say were made with warm caches.
    #[serde(default)]
    pub cache: CacheState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<SelectionProblem>,
    /// If the program is one of several that compute the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<RecipeVariant>,
}

/// A program among others that compute the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecipeVariant {
    /// The recipe's name.
    pub of: String,
    pub name: String,
}

impl Session {
    /// Times of sessions on different machines, or with other caches, are never mixed.
    pub fn machine(&self) -> (&str, &str, usize, CacheState) {
        (&self.device, &self.toolchain, self.threads, self.cache)
    }
}

/// The result of trying one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub enum Outcome {
    Measured { samples: Vec<f64> },
    Raced { bound_ms: f64, reason: String },
    Bounded { bound_ms: f64, reason: String },
    Identical,
    Mismatch,
    Failed { reason: String },
}

impl Outcome {
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Measured { .. } => "measured",
            Outcome::Raced { .. } => "raced",
            Outcome::Bounded { .. } => "bounded",
            Outcome::Identical => "identical",
            Outcome::Mismatch => "mismatch",
            Outcome::Failed { .. } => "failed",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    pub session: String,
    pub kernel: String,
    pub key: String,
    pub config: KernelConfig,
    pub identity: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub mark: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lender: Option<String>,
    pub round: u32,
    pub check: Option<f64>,
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Measurement {
    /// Median of the samples in milliseconds, if it was measured.
    pub fn ms(&self) -> Option<f64> {
        match &self.outcome {
            Outcome::Measured { samples } => median(samples),
            _ => None,
        }
    }

    /// Which of two records of the same configuration counts, independent of the order in which they are read: a mismatch
    /// (never forget that it was wrong), else a time before a bound before none; then the later round, its own samples
    /// before borrowed ones, more samples, the later session.
    pub fn outweighs(&self, other: &Measurement) -> bool {
        fn weight(m: &Measurement) -> (u8, u32, bool, usize, &str, String) {
            let (rank, samples) = match &m.outcome {
                Outcome::Mismatch => (5, 0),
                Outcome::Measured { samples } => (4, samples.len()),
                Outcome::Identical => (3, 0),
                Outcome::Raced { .. } => (2, 0),
                Outcome::Bounded { .. } => (1, 0),
                Outcome::Failed { .. } => (0, 0),
            };
            // The last part only makes the order total.
            (rank, m.round, m.lender.is_none(), samples, &m.session, format!("{m:?}"))
        }
        weight(self) > weight(other)
    }
}

/// Lines of a records file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase")]
pub enum Line {
    Session(Box<Session>),
    Measurement(Box<Measurement>),
}

/// The middle sample; the mean of the two middle ones. `None` without samples or if one is not finite.
pub fn median(samples: &[f64]) -> Option<f64> {
    if samples.is_empty() || samples.iter().any(|s| !s.is_finite()) {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted.get(middle).copied() } else { Some((sorted.get(middle - 1)? + sorted.get(middle)?) / 2.0) }
}
