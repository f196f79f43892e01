//! The cost of a relayout (a change of layout): its measured time, or an estimate from the relayouts that were measured.
//!
//! The estimate is bytes × the slowest measured time per byte (of the same container if there is one): pessimistic, so
//! that a choice does not depend on a relayout that was never timed. For a container that no kernel can relayout it is ten minutes. A
//! selection says which of its relayouts are estimates; they disappear if these are measured and the choice is made once more.
//! A relayout of what is the same in every step, such as a parameter in inference, costs a picosecond: it is made before the first step.

use crate::measure::store::Store;
use crate::problem::{SelectionProblem, Tensor};
use sdfg::Layout;
use std::collections::{BTreeMap, BTreeSet};

/// Used where not one relayout was measured: 1 GB/s, slower than any memory this runs on, so relayouts are a last resort.
const UNMEASURED_MS_PER_BYTE: f64 = 1e-6;
/// Of containers that are the same in every step: a picosecond, by which the choice without such a relayout comes before one with it.
const ONCE_MS: f64 = 1e-9;
/// Of containers that no kernel changes: ten minutes, longer than anything that is chosen.
const NEVER_MS: f64 = 6e5;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RelayoutCost {
    pub ms: f64,
    pub measured: bool,
}

/// Costs of the relayouts of every container.
#[derive(Clone, Debug, Default)]
pub struct RelayoutCosts {
    measured: BTreeMap<String, BTreeMap<(Layout, Layout), f64>>,
    estimate: BTreeMap<String, f64>,
    /// Containers that are the same in every step: relayouts of these are made before the first one.
    free: BTreeSet<String>,
}

impl RelayoutCosts {
    pub fn new(program: &SelectionProblem, store: &Store) -> Self {
        Self::of(&program.tensors, store)
    }

    pub fn of(tensors: &[Tensor], store: &Store) -> Self {
        let free = tensors.iter().filter(|t| t.once).map(|t| t.data.clone()).collect();
        let mut costs = RelayoutCosts { free, ..RelayoutCosts::default() };
        let mut slowest: Option<f64> = None;
        let mut own: BTreeMap<&str, f64> = BTreeMap::new();
        for tensor in tensors.iter().filter(|t| !t.relayout_key.is_empty()) {
            let mut pairs = BTreeMap::new();
            for record in store.of(&tensor.relayout_key) {
                let (Some(from), Some(to)) = (record.config.layouts.get("from"), record.config.layouts.get("to")) else { continue };
                let Some(ms) = store.ms(record) else { continue };
                pairs.insert((from.clone(), to.clone()), ms);
                if tensor.bytes > 0 {
                    let rate = ms / tensor.bytes as f64;
                    slowest = Some(slowest.map_or(rate, |s| s.max(rate)));
                    own.entry(&tensor.data).and_modify(|s| *s = s.max(rate)).or_insert(rate);
                }
            }
            costs.measured.insert(tensor.data.clone(), pairs);
        }
        for tensor in tensors {
            let rate = own.get(tensor.data.as_str()).copied().or(slowest).unwrap_or(UNMEASURED_MS_PER_BYTE);
            let ms = if tensor.fixed { NEVER_MS } else { rate * tensor.bytes as f64 };
            costs.estimate.insert(tensor.data.clone(), ms);
        }
        costs
    }

    /// Whether any relayout was measured, so that estimates rest on something.
    pub fn any_measured(&self) -> bool {
        self.measured.values().any(|pairs| !pairs.is_empty())
    }

    pub fn cost(&self, data: &str, from: &Layout, to: &Layout) -> RelayoutCost {
        if self.free.contains(data) && from != to {
            return RelayoutCost { ms: ONCE_MS, measured: true };
        }
        if from == to {
            return RelayoutCost { ms: 0.0, measured: true };
        }
        // A tuple of clones only where the container has measurements at all.
        let known = self.measured.get(data).filter(|p| !p.is_empty()).and_then(|p| p.get(&(from.clone(), to.clone())));
        match known {
            Some(ms) => RelayoutCost { ms: *ms, measured: true },
            None => RelayoutCost { ms: self.estimate.get(data).copied().unwrap_or(f64::INFINITY), measured: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relayouts_of_what_stays_the_same_are_paid_by_no_step() {
        let costs = RelayoutCosts::of(&[Tensor { data: "k".into(), bytes: 8, once: true, ..Tensor::default() }], &Store::default());
        let [from, to] = [Layout::of(&["i", "j"]), Layout::of(&["j", "i"])];
        assert_eq!(costs.cost("k", &from, &to), RelayoutCost { ms: ONCE_MS, measured: true });
        assert_eq!(costs.cost("k", &from, &from).ms, 0.0);
    }

    #[test]
    fn what_no_kernel_changes_stays() {
        let tensor = |data: &str, fixed| Tensor { data: data.into(), bytes: 8, fixed, ..Tensor::default() };
        let costs = RelayoutCosts::of(&[tensor("signs", true), tensor("y", false)], &Store::default());
        let [from, to] = [Layout::of(&["i", "j"]), Layout::of(&["j", "i"])];
        assert_eq!(costs.cost("signs", &from, &to).ms, NEVER_MS);
        assert!(costs.cost("y", &from, &to).ms < 1.0);
        assert_eq!(costs.cost("signs", &from, &from).ms, 0.0);
    }
}
