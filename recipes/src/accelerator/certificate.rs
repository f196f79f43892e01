//! The proof of a partition: a chain of minima over the cuts between steps, with the prices that it rests on.

use super::partition::StepPartition;
use serde::{Deserialize, Serialize};

/// The version of the form below; other versions are refused.
pub const FORMAT: u32 = 1;

/// What a verifier needs beside the network: elements throughout, steps by number in the order that is proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleCertificate {
    pub format: u32,
    pub model: String,
    /// Elements of the on-chip memory.
    pub capacity: u64,
    /// Names of the steps.
    pub steps: Vec<String>,
    /// By cut: the least that any partition of the steps before it moves; `None` where no way through the cut stays below the bound.
    pub least: Vec<Option<u64>>,
    /// What some partition stays below.
    pub bound: u64,
    /// The groups that were chosen: the first step, and the one behind the last.
    pub groups: Vec<(usize, usize)>,
    /// First step, step behind the last, and what the cheapest schedule of the interval moves; `None` where none fits.
    pub priced: Vec<(usize, usize, Option<u64>)>,
}

impl ScheduleCertificate {
    pub fn of(partition: &StepPartition, capacity: u64) -> ScheduleCertificate {
        ScheduleCertificate {
            format: FORMAT,
            model: partition.steps.name.clone(),
            capacity,
            steps: partition.steps.steps.iter().map(|s| s.name.clone()).collect(),
            least: partition.least.iter().map(|l| (*l != u64::MAX).then_some(*l)).collect(),
            bound: partition.bound,
            groups: partition.groups.iter().map(|g| (g.steps.begin, g.steps.end)).collect(),
            priced: partition.priced.iter().map(|(group, moved)| (group.begin, group.end, *moved)).collect(),
        }
    }
}
