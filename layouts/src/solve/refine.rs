//! Refining a sweep around the choice that it leads to.
//!
//! A choice takes every tensor in one layout, so most kernels do not run in the layouts in which they are fastest alone, and
//! where two disagree a relayout stands between them. Rounds of choosing and measuring, until nothing is new or the time is up:
//! every kernel beside a relayout in the layouts that would spare it, with the knobs that it has; then other knobs in the
//! chosen layouts, the largest kernels first.

use crate::measure::race::Race;
use crate::measure::record::Outcome;
use crate::measure::relayout::RelayoutCosts;
use crate::measure::space::{Coming, KernelSpace, by_predicted_cost};
use crate::measure::sweep::{Subject, SweepError, Sweeper};
use crate::problem::SelectionProblem;
use crate::solve::exact::SearchLimits;
use crate::solve::selection::{Method, PlannedRelayout, Selection, select};
use sdfg::Layout;
use sdfg::config::KernelConfig;
use std::collections::{BTreeMap, BTreeSet};

/// Knobs of each kernel that a round measures.
const ROUND: usize = 6;

/// The result of the rounds so far.
#[derive(Default)]
struct Round {
    /// Configurations measured.
    taken: usize,
    /// Whether one since the last choice is faster than all with its layouts.
    improved: bool,
}

impl Sweeper<'_> {
    /// Returns how many configurations were measured; `limits` bound each choice.
    ///
    /// # Errors
    /// The store or the device.
    pub fn refine(&mut self, spaces: &[&dyn KernelSpace], program: &SelectionProblem, limits: SearchLimits) -> Result<usize, SweepError> {
        let mut round = Round::default();
        let mut known = None;
        loop {
            let selection = match known.take() {
                Some(selection) => selection,
                None => match select(program, self.store, Method::Exact, limits) {
                    Ok(selection) => selection,
                    Err(_) => return Ok(round.taken),
                },
            };
            let costs = RelayoutCosts::new(program, self.store);
            let before = round.taken;
            let sparing: Vec<(&dyn KernelSpace, Vec<u64>)> = spaces.iter().map(|s| (*s, self.sparing(*s, &selection))).collect();
            let most = sparing.iter().map(|(_, numbers)| numbers.len()).max().unwrap_or(0);
            if !self.in_turns(&sparing, most, &costs, &mut round)? {
                return Ok(round.taken);
            }
            // What was found may have changed the layouts whose knobs are wanted.
            if round.taken == before {
                let ms = |space: &dyn KernelSpace| selection.kernels.iter().find(|k| k.kernel == space.name()).map_or(0.0, |k| k.ms);
                let mut chosen: Vec<(&dyn KernelSpace, Vec<u64>)> = spaces.iter().map(|s| (*s, self.knobs(*s, &selection))).collect();
                chosen.sort_by(|a, b| ms(b.0).total_cmp(&ms(a.0)));
                if !self.in_turns(&chosen, ROUND, &costs, &mut round)? || round.taken == before {
                    return Ok(round.taken);
                }
            }
            // Where nothing is faster than what was known in the same layouts, the choice is the same.
            known = (!std::mem::take(&mut round.improved)).then_some(selection);
        }
    }

    /// Measures numbers of kernels in turns; false when the time is up.
    fn in_turns(
        &mut self,
        wanted: &[(&dyn KernelSpace, Vec<u64>)],
        turns: usize,
        costs: &RelayoutCosts,
        round: &mut Round,
    ) -> Result<bool, SweepError> {
        let mut races: BTreeMap<&str, Race> = BTreeMap::new();
        for turn in 0..turns {
            for (place, (space, numbers)) in wanted.iter().enumerate() {
                let Some(n) = numbers.get(turn).copied() else { continue };
                if self.stopped(1.0).is_some() {
                    return Ok(false);
                }
                let (config, identity, mark) = (space.config(n), space.identity(n), space.mark(n));
                let subject = Subject { kernel: space.name(), key: space.key(), config: &config, identity: &identity, mark: &mark };
                let race = races.entry(space.key()).or_insert_with(|| Race::of(space.key(), self.store));
                let limit = race.limit(*space, &config, costs);
                if self.borrow(subject, 0, limit.as_ref())? {
                    round.taken += 1;
                } else {
                    let same_kernel = |count: usize| numbers.iter().skip(turn + 1).take(count).map(|n| space.config(*n)).collect();
                    let others = |turn: usize| {
                        let each = wanted.iter().cycle().skip(place + 1).take(wanted.len());
                        let turn = move |at: usize| turn + usize::from(place + 1 + at >= wanted.len());
                        each.enumerate().filter_map(move |(at, (space, numbers))| Some((*space, *numbers.get(turn(at))?)))
                    };
                    let in_turns = |count: usize| {
                        let coming = (turn..turns).flat_map(&others).take(count);
                        coming.map(|(space, n)| (space.name().to_string(), space.config(n))).collect()
                    };
                    self.bench.ahead(space.name(), &config, &Coming { same_kernel: &same_kernel, in_turns: &in_turns });
                    let outcome = self.measure(subject, 0, limit)?;
                    round.taken += usize::from(!matches!(outcome, Outcome::Failed { .. }));
                }
                if let Some(ms) = self.store.get(space.key(), &config).and_then(|m| self.store.ms(m)) {
                    round.improved |= race.improves(ms, &config);
                    race.enter(ms, &config);
                }
            }
        }
        Ok(true)
    }

    /// The chosen knobs of a kernel in layouts that would spare relayouts around it, not measured yet: its own, all of them and
    /// each alone, and those of others of its tensors, which it could hold as they want them.
    fn sparing(&self, space: &dyn KernelSpace, selection: &Selection) -> Vec<u64> {
        let Some(config) = selection.configuration.kernels.get(space.name()) else { return Vec::new() };
        let touched = |r: &&PlannedRelayout| config.layouts.contains_key(&r.relayout.data);
        let mut wishes: Vec<Vec<(&String, &Layout)>> = Vec::new();
        let mut own: Vec<(&String, &Layout)> = Vec::new();
        for planned in selection.relayouts.iter().filter(touched) {
            let relayout = &planned.relayout;
            let mine = planned.kernel == space.name();
            // One side of the relayout is the kernel's own layout, the other is the layout in which the container is held.
            let its_side = if planned.access == crate::problem::Access::Write { &relayout.from } else { &relayout.to };
            let held = if *its_side == relayout.from { &relayout.to } else { &relayout.from };
            wishes.push(vec![(&relayout.data, if mine { held } else { its_side })]);
            if mine {
                own.push((&relayout.data, held));
            }
        }
        if own.len() > 1 {
            wishes.insert(0, own);
        }
        let known: BTreeSet<&str> = self.store.of(space.key()).map(|m| m.identity.as_str()).collect();
        let mut found = Vec::new();
        for wish in wishes {
            let mut wanted = config.clone();
            wanted.layouts.extend(wish.into_iter().map(|(data, layout)| (data.clone(), layout.clone())));
            let (Some(had), Some(new)) = (of_layouts(space, config), of_layouts(space, &wanted)) else { continue };
            let Some(knob) = had.clone().find(|n| space.config(*n).knobs == config.knobs) else { continue };
            let n = new.start + (knob - had.start);
            if !found.contains(&n) && !known.contains(space.identity(n).as_str()) {
                found.push(n);
            }
        }
        found
    }

    /// Knobs not measured yet in a kernel's chosen layouts, the most promising first.
    fn knobs(&self, space: &dyn KernelSpace, selection: &Selection) -> Vec<u64> {
        let Some(config) = selection.configuration.kernels.get(space.name()) else { return Vec::new() };
        let Some(range) = of_layouts(space, config) else { return Vec::new() };
        let mut known: BTreeSet<String> = self.store.of(space.key()).map(|m| m.identity.clone()).collect();
        let promising =
            by_predicted_cost(space, &range.collect::<Vec<u64>>()).into_iter().filter(|n| space.predicted_cost(*n) < f64::INFINITY);
        promising.filter(|n| known.insert(space.identity(*n))).take(ROUND).collect()
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
