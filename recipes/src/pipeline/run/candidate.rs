//! A program with a configuration for each kernel: candidates are assembled, run and timed.

use sdfg::config::{Configuration, KernelConfig};
use sdfg::{Sdfg, Unit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A program with a configuration for each of its kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    pub name: String,
    pub program: Sdfg,
    pub configuration: Configuration,
    /// Sum of measured kernel and relayout times, in milliseconds; not a measurement of the whole.
    pub predicted_ms: f64,
    /// Streams of the device that launches are spread over.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub streams: usize,
    /// Whether independent kernels of cores share dispatches.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packed: bool,
    /// In a packed plan: how many independent launches keep their memory apart, so that they can share dispatches. More of them need more
    /// memory; with 1 only launches share that need no memory for it.
    #[serde(default = "beside", skip_serializing_if = "is_beside")]
    pub beside: usize,
    /// Kernels whose configuration differs from the selected one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exchanges: Vec<Exchange>,
    /// Kernels that are divided otherwise than they were measured, so that they share dispatches: the configuration of the measurement.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub measured_as: BTreeMap<String, KernelConfig>,
}

impl Candidate {
    /// The number of kernels that `other` lacks or runs in another configuration.
    pub fn differences(&self, other: &Candidate) -> usize {
        let units = self.program.units();
        let theirs = other.program.units();
        let configured = |of: &Candidate, name: &str| of.configuration.kernels.get(name).cloned();
        let same =
            |unit: &Unit| theirs.iter().any(|(_, _, t)| t == unit) && configured(self, unit.name()) == configured(other, unit.name());
        units.iter().filter(|(_, _, unit)| !same(unit)).count()
    }
}

/// The memory of independent launches of a packed plan is kept apart as for this number of streams: it costs little.
pub const BESIDE: usize = 4;

fn beside() -> usize {
    BESIDE
}

fn is_beside(beside: &usize) -> bool {
    *beside == BESIDE
}

fn one() -> usize {
    1
}

fn is_one(streams: &usize) -> bool {
    *streams == 1
}

/// A kernel in another configuration than the selected one, because that was faster in the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    pub kernel: String,
    /// The configuration that was selected by times of the kernel alone.
    pub chosen: KernelConfig,
    /// Medians within the step, in milliseconds: of the selected configuration, and of the one in the plan.
    pub chosen_ms: f64,
    pub taken_ms: f64,
}
