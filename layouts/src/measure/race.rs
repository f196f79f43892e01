//! Racing: when a configuration need not be timed to the end.
//!
//! A configuration is dropped only if no optimal plan can contain it: it is slower than one with the same layouts of all
//! its containers (which replaces it everywhere), or slower than the best one plus the relayouts of all its containers
//! (which replaces it everywhere too, with those relayouts around it, possibly after another one: then two in a row). Relayouts that were
//! not measured count with their pessimistic estimate, and only if some relayout was measured at all; the recorded reason says so.

use crate::measure::relayout::RelayoutCosts;
use crate::measure::space::KernelSpace;
use crate::measure::store::Store;
use crate::problem::Access;
use sdfg::Layout;
use sdfg::config::KernelConfig;
use std::collections::BTreeMap;

/// A time in milliseconds that need not be exceeded, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit {
    pub ms: f64,
    pub reason: String,
}

/// The best times of one kernel so far.
#[derive(Clone, Debug, Default)]
pub struct Race {
    best: Option<(f64, KernelConfig)>,
    by_layouts: BTreeMap<BTreeMap<String, Layout>, f64>,
}

impl Race {
    /// Starts from what was measured before.
    pub fn of(key: &str, store: &Store) -> Self {
        let mut race = Race::default();
        for record in store.of(key) {
            if let Some(ms) = store.ms(record) {
                race.enter(ms, &record.config);
            }
        }
        race
    }

    /// Takes a time into account; returns the relative improvement of the best, if it is (again) the best.
    pub fn enter(&mut self, ms: f64, config: &KernelConfig) -> Option<f64> {
        let same = self.by_layouts.entry(config.layouts.clone()).or_insert(ms);
        *same = same.min(ms);
        match &self.best {
            Some((best, _)) if *best < ms => None,
            known => {
                let gain = known.as_ref().map_or(1.0, |(best, _)| if *best > 0.0 { (best - ms) / best } else { 0.0 });
                self.best = Some((ms, config.clone()));
                Some(gain)
            }
        }
    }

    /// Whether a choice may change with this time: it is the fastest with the same layouts of all containers.
    pub fn improves(&self, ms: f64, config: &KernelConfig) -> bool {
        self.by_layouts.get(&config.layouts).is_none_or(|known| ms < *known)
    }

    pub fn best_ms(&self) -> Option<f64> {
        self.best.as_ref().map(|(ms, _)| *ms)
    }

    /// The tighter of the two rules for this configuration; `None` if neither applies yet.
    pub fn limit(&self, space: &dyn KernelSpace, config: &KernelConfig, costs: &RelayoutCosts) -> Option<Limit> {
        let same = self.by_layouts.get(&config.layouts).copied();
        let around = self.best.as_ref().filter(|_| costs.any_measured()).map(|(ms, best)| {
            let mut estimated = false;
            let mut total = *ms;
            for tensor in space.tensors() {
                let (Some(mine), Some(its)) = (config.layouts.get(&tensor.data), best.layouts.get(&tensor.data)) else { continue };
                let (before, after) = (costs.cost(&tensor.data, mine, its), costs.cost(&tensor.data, its, mine));
                let paid = match tensor.access {
                    Access::Read => vec![before],
                    Access::Write => vec![after],
                    Access::Update => vec![before, after],
                };
                total += paid.iter().map(|c| c.ms).sum::<f64>();
                estimated |= paid.iter().any(|c| !c.measured);
            }
            (total, estimated)
        });
        match (same, around) {
            (Some(same), around) if around.is_none_or(|(total, _)| same <= total) => {
                Some(Limit { ms: same, reason: format!("slower than {same:.6} ms measured in the same layouts") })
            }
            (_, Some((total, estimated))) => {
                let how = if estimated { "estimated" } else { "measured" };
                Some(Limit { ms: total, reason: format!("slower than {total:.6} ms: the best and the {how} relayouts of all its tensors") })
            }
            _ => None,
        }
    }
}
