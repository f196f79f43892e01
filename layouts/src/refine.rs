//! Refining a sweep around the choice that it leads to.
//!
//! A choice takes every tensor in one layout, so most kernels do not run in the layouts in which they are fastest alone. Other
//! knobs may be best in those: rounds of choosing and measuring knobs at the chosen layouts, the largest kernels first, until
//! nothing is new or the time is up.

use crate::exact::Limits;
use crate::problem::{KernelSpace, Program};
use crate::race::Race;
use crate::record::Outcome;
use crate::relayout::RelayoutCosts;
use crate::selection::{Method, Selection, select};
use crate::sweep::{SweepError, Sweeper};
use sdfg::config::KernelConfig;
use std::collections::BTreeSet;

/// Knobs of each kernel that a round measures.
const ROUND: usize = 6;

impl Sweeper<'_> {
    /// Returns how many configurations were measured; `limits` bound each choice.
    ///
    /// # Errors
    /// The store or the device.
    pub fn refine(&mut self, spaces: &[&dyn KernelSpace], program: &Program, limits: Limits) -> Result<usize, SweepError> {
        let mut taken = 0;
        loop {
            let Ok(selection) = select(program, self.store, Method::Exact, limits) else { return Ok(taken) };
            let costs = RelayoutCosts::new(program, self.store);
            let mut chosen: Vec<(f64, &dyn KernelSpace, Vec<u64>)> = Vec::new();
            for space in spaces {
                let ms = selection.kernels.iter().find(|k| k.kernel == space.name()).map_or(0.0, |k| k.ms);
                chosen.push((ms, *space, self.knobs(*space, &selection)));
            }
            chosen.sort_by(|a, b| b.0.total_cmp(&a.0));
            let before = taken;
            for turn in 0..ROUND {
                for (_, space, numbers) in &chosen {
                    let Some(n) = numbers.get(turn).copied() else { continue };
                    if self.stopped(1.0).is_some() {
                        return Ok(taken);
                    }
                    let config = space.config(n);
                    let coming = |count: usize| numbers.iter().skip(turn + 1).take(count).map(|n| space.config(*n)).collect();
                    self.bench.ahead(space.name(), &config, &coming);
                    let limit = Race::of(space.key(), self.store).limit(*space, &config, &costs);
                    let outcome = self.measure(space.name(), space.key(), &config, &space.identity(n), 0, limit)?;
                    taken += usize::from(!matches!(outcome, Outcome::Failed { .. }));
                }
            }
            if taken == before {
                return Ok(taken);
            }
        }
    }

    /// Knobs not measured yet in a kernel's chosen layouts, the most promising first.
    fn knobs(&self, space: &dyn KernelSpace, selection: &Selection) -> Vec<u64> {
        let Some(config) = selection.configuration.kernels.get(space.name()) else { return Vec::new() };
        let Some(range) = of_layouts(space, config) else { return Vec::new() };
        let mut known: BTreeSet<String> = self.store.of(space.key()).map(|m| m.identity.clone()).collect();
        let mut numbers: Vec<(f64, u64)> = range.map(|n| (space.promise(n), n)).collect();
        numbers.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let new = numbers.into_iter().filter(|(_, n)| known.insert(space.identity(*n)));
        new.take(ROUND).map(|(_, n)| n).collect()
    }
}

/// The numbers of all configurations in a configuration's layouts.
fn of_layouts(space: &dyn KernelSpace, config: &KernelConfig) -> Option<std::ops::Range<u64>> {
    let layouts = space.tensors().iter().try_fold(1u64, |n, t| n.checked_mul(t.layouts.len() as u64))?;
    if layouts == 0 || !space.count().is_multiple_of(layouts) {
        return None;
    }
    let knobs = space.count() / layouts;
    let mut first = 0;
    for tensor in space.tensors() {
        let layout = config.layouts.get(&tensor.data)?;
        first = first * tensor.layouts.len() as u64 + tensor.layouts.iter().position(|l| l == layout)? as u64;
    }
    Some(first * knobs..(first + 1) * knobs)
}
