//! The space of configurations of a kernel, and the device that checks and times them.

use crate::problem::{Access, Kernel, SelectionProblem, Tensor};
use sdfg::config::KernelConfig;
use sdfg::{Direction, Layout};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// The layouts in which a kernel can touch one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpace {
    pub data: String,
    pub access: Access,
    /// Distinct; the natural (row-major) layout first.
    pub layouts: Vec<Layout>,
    pub bytes: u64,
}

/// All configurations of one kernel, by number.
///
/// Numbers are mixed-radix: the first digit (slowest) is the layout of the first tensor, the last digits are knobs, so
/// number 0 is row-major everywhere with the default knobs. [`KernelSpace::radices`] says how many values a digit has.
pub trait KernelSpace {
    fn name(&self) -> &str;
    /// Content hash of the kernel and its sizes: what measurements are filed under.
    fn key(&self) -> &str;
    fn pass(&self) -> Direction;
    fn tensors(&self) -> &[TensorSpace];
    /// Number of configurations; at least 1.
    fn count(&self) -> u64;
    fn config(&self, n: u64) -> KernelConfig;
    /// Equal strings mean the same compiled code and strides: such configurations are measured once.
    fn identity(&self, n: u64) -> String;
    /// Equal for kernels that are equal but for names, and so take as long; empty if unknown.
    fn mark(&self, _n: u64) -> String {
        String::new()
    }
    /// An estimate of the cost before measuring; lower is tried first.
    /// Whether it runs once, before the first step: one time suffices.
    fn runs_once(&self) -> bool {
        false
    }

    fn predicted_cost(&self, n: u64) -> f64;
    /// The same of many configurations, in their order.
    fn predicted_costs(&self, numbers: &[u64]) -> Vec<f64> {
        numbers.iter().map(|n| self.predicted_cost(*n)).collect()
    }
    /// Length of the aligned runs of numbers that share the slow part of ranking; `count` is a multiple of it.
    fn ranking_batch(&self) -> u64 {
        1
    }
    /// The paper's rule of thumb: the vectorised dim is innermost, and reduced and vectorised dim are equal.
    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool;

    /// A time in milliseconds that the configuration cannot beat; 0 when nothing is known.
    fn lower_bound_ms(&self, _n: u64) -> f64 {
        0.0
    }

    /// Configurations to try right after number 0 (for example those of a uniform layout).
    fn seeds(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Values of each digit, slowest first; their product is `count`.
    fn radices(&self) -> Vec<u64> {
        let mut radices: Vec<u64> = self.tensors().iter().map(|t| t.layouts.len() as u64).collect();
        match radices.iter().try_fold(1u64, |n, r| n.checked_mul(*r)) {
            Some(layouts) if layouts > 0 && self.count().is_multiple_of(layouts) => radices.push(self.count() / layouts),
            _ => radices = vec![self.count()],
        }
        radices
    }
}

/// Numbers in the order of their predicted costs, the lowest first.
pub fn by_predicted_cost(space: &dyn KernelSpace, numbers: &[u64]) -> Vec<u64> {
    let mut ranked: Vec<(f64, u64)> = space.predicted_costs(numbers).into_iter().zip(numbers.iter().copied()).collect();
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    ranked.into_iter().map(|(_, n)| n).collect()
}

/// The change of layout of one container is a kernel too: its configurations are the pairs of distinct layouts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayoutSpace {
    pub data: String,
    name: String,
    key: String,
    /// Natural layout first.
    pub layouts: Vec<Layout>,
    pub bytes: u64,
}

impl RelayoutSpace {
    /// `key` is a hash of shape and element type: containers of equal shape share measurements.
    pub fn new(data: &str, key: &str, layouts: Vec<Layout>, bytes: u64) -> Self {
        RelayoutSpace { data: data.to_string(), name: relayout_name(data), key: key.to_string(), layouts, bytes }
    }
}

/// Name under which a bench is asked for the relayouts of a container: `relayout:x`.
pub fn relayout_name(data: &str) -> String {
    format!("relayout:{data}")
}

/// The configuration of a relayout: its layouts are filed under `from` and `to`.
pub fn relayout_config(from: &Layout, to: &Layout) -> KernelConfig {
    let layouts = BTreeMap::from([("from".to_string(), from.clone()), ("to".to_string(), to.clone())]);
    KernelConfig { layouts, ..KernelConfig::default() }
}

impl KernelSpace for RelayoutSpace {
    fn name(&self) -> &str {
        &self.name
    }

    fn key(&self) -> &str {
        &self.key
    }

    fn pass(&self) -> Direction {
        Direction::Forward
    }

    fn tensors(&self) -> &[TensorSpace] {
        &[]
    }

    fn count(&self) -> u64 {
        let layouts = self.layouts.len() as u64;
        layouts * layouts.saturating_sub(1)
    }

    fn config(&self, n: u64) -> KernelConfig {
        let others = (self.layouts.len() as u64).saturating_sub(1).max(1);
        let (from, to) = ((n / others) as usize, (n % others) as usize);
        let to = if to >= from { to + 1 } else { to };
        match (self.layouts.get(from), self.layouts.get(to)) {
            (Some(from), Some(to)) => relayout_config(from, to),
            _ => KernelConfig::default(),
        }
    }

    fn identity(&self, n: u64) -> String {
        self.config(n).to_string()
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        n as f64
    }

    fn matches_rule_of_thumb(&self, _config: &KernelConfig) -> bool {
        false
    }
}

/// The result of comparing a configuration with the oracle at small sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    /// Largest error divided by its derived tolerance; the configuration is correct up to 1.
    pub ratio: f64,
}

impl Check {
    pub fn passed(&self) -> bool {
        // Written so that NaN fails.
        self.ratio <= 1.0
    }
}

/// The result of timing a configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum TimingResult {
    /// Raw samples in milliseconds, at least one.
    Samples(Vec<f64>),
    /// Given up: it takes longer than `give_up`. The fastest sample seen, in milliseconds.
    ExceededAfter(f64),
}

/// Why a configuration gave no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("{0}")]
    Configuration(String),
    /// The configuration is at fault, and took the device with it: it is kept as failed, and the sweep ends.
    #[error("{0}")]
    Crash(String),
    #[error("{0}; nothing more can be measured, and what was measured is kept")]
    Device(String),
}

/// The configurations that a sweep expects to measure after the announced one, as far as it knows them. Each list is as long as asked for,
/// or shorter.
pub struct Coming<'a> {
    /// Of the same kernel.
    pub same_kernel: &'a dyn Fn(usize) -> Vec<KernelConfig>,
    /// Of all kernels in the order in which they take turns, with their names.
    pub in_turns: &'a dyn Fn(usize) -> Vec<(String, KernelConfig)>,
}

/// A device that checks and times configurations. Kernels and relayouts (`relayout:<data>`) are identified by name.
pub trait Bench {
    /// Announces the configuration that is checked and timed next, and those that follow it, so that a bench with a slow compiler can
    /// compile them in one batch.
    fn ahead(&mut self, _kernel: &str, _config: &KernelConfig, _coming: &Coming) {}

    /// Compares the configuration with the oracle at small sizes.
    fn check(&mut self, kernel: &str, config: &KernelConfig) -> Result<Check, Fault>;
    /// Times the configuration at full size, giving up as soon as it is certain to take longer than `give_up`.
    fn time(&mut self, kernel: &str, config: &KernelConfig, give_up: Duration) -> Result<TimingResult, Fault>;
}

/// Time since the sweep began.
pub trait Clock {
    fn elapsed(&self) -> Duration;
}

impl SelectionProblem {
    /// The program made of these kernels, in execution order.
    pub fn of(
        spaces: &[&dyn KernelSpace],
        relayouts: &[RelayoutSpace],
        boundary: BTreeMap<String, Layout>,
        ties: Vec<(String, String)>,
    ) -> Self {
        let mut program = SelectionProblem { boundary, ties, ..SelectionProblem::default() };
        let relayouts: HashMap<&str, &RelayoutSpace> = relayouts.iter().rev().map(|r| (r.data.as_str(), r)).collect();
        let mut known: HashSet<&str> = HashSet::new();
        for space in spaces {
            let tensors = space.tensors().iter().map(|t| (t.data.clone(), t.access)).collect();
            program.kernels.push(Kernel::new(space.name(), space.key(), space.pass(), tensors));
            for tensor in space.tensors() {
                if known.insert(&tensor.data) {
                    let relayout_key = relayouts.get(tensor.data.as_str()).map(|r| r.key.clone()).unwrap_or_default();
                    let natural = tensor.layouts.first().cloned().unwrap_or_default();
                    let (data, bytes) = (tensor.data.clone(), tensor.bytes);
                    program.tensors.push(Tensor { data, natural, bytes, relayout_key, ..Tensor::default() });
                }
            }
        }
        program
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relayouts_enumerate_all_ordered_pairs_of_distinct_layouts() {
        let layouts = Layout::permutations(&["a".into(), "b".into(), "c".into()]);
        let space = RelayoutSpace::new("x", "k", layouts, 64);
        let mut pairs: Vec<_> = (0..space.count()).map(|n| space.config(n)).collect();
        assert_eq!(pairs.len(), 30);
        assert!(pairs.iter().all(|c| c.layouts["from"] != c.layouts["to"]));
        pairs.sort();
        pairs.dedup();
        assert_eq!(pairs.len(), 30);
    }

    #[test]
    fn a_check_that_is_not_a_number_fails() {
        assert!(Check { ratio: 1.0 }.passed());
        assert!(!Check { ratio: 1.0000001 }.passed());
        assert!(!Check { ratio: f64::NAN }.passed());
    }
}
