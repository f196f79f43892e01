//! How many choices are nearly as good as the best: an elimination that counts instead of minimising.
//!
//! A choice is a combination of variants and a way to hold every container that they touch, each kernel in its best
//! configuration. Combinations of variants are enumerated first; most are ruled out together, by the dual bound
//! ([`crate::solve::dual`]). Its shares are then taken off every kernel's cost, so that the remainder is the cost of a choice above the
//! bound: no term is negative, and a sum that has passed the limit stays beyond it. Tables (`sparse`) hold, for every
//! combination of values that may still be within the limit, the number of choices of each cost (`ways`).
//!
//! Costs are kept to the picosecond. Where that makes the tables too long, costs are rounded down and up: the count lies
//! between the two. Where even that exceeds the effort, choices are split by the layout of one more container, and the
//! combinations that are still too large are left uncounted: the count is then marked as a lower bound.

mod key;
mod sparse;
mod ways;

use crate::model::cost::Cost;
use crate::model::network::{Network, Subproblem};
use crate::model::selection_model::Model;
use crate::solve::dual::{Dual, LowerBounds};
use key::KeyLayout;
use sparse::{CountingWork, Room, SparseTable, Terms, eliminated};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use ways::CostUnit;

/// Numbers of units into which the range from the bound to the limit is divided if exact tables are too long; costs are rounded to these
/// units. The last, coarsest one is tried first: if its tables are too long as well, choices are split. Otherwise the finest that fits is
/// taken.
const STEPS: [Cost; 4] = [4096, 1024, 256, 64];
/// Containers by whose layouts choices are split.
const SPLITS: usize = 1;
/// Passes over the kernels before values are dropped, and how often at most.
const PASSES: usize = 8;
const ROUNDS: usize = 6;
/// Sets of combinations after which a count is asked whether to go on.
const ASKED: usize = 16;
/// Combinations counted side by side: each may hold some hundred megabytes of tables.
const WORKERS: usize = 8;

/// Additions that a count may take: a hundred million are about a second.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// In all; every combination of variants has the same share.
    pub all: u64,
    /// In one attempt.
    pub one: u64,
    /// Sets of combinations of variants that are bounded from below on the way to those within the limit: a network of a hundred layers,
    /// each of which is fused or not, has too many to look at.
    pub sets: usize,
}

impl Effort {
    /// Half a minute.
    pub const BRIEF: Effort = Effort { all: 1 << 32, one: 1 << 30, sets: 1 << 8 };
    /// As long as it takes, as far as memory allows.
    pub const FULL: Effort = Effort { all: u64::MAX, one: 1 << 33, sets: usize::MAX };
}

/// At least `least` and at most `most` choices; equal if counted exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    pub least: u128,
    /// Unknown if some were not counted.
    pub most: Option<u128>,
    /// Combinations of variants that may have such choices, and how many of them were not counted whole.
    pub combinations: usize,
    pub uncounted: usize,
}

impl Count {
    const NONE: Count = Count { least: 0, most: Some(0), combinations: 0, uncounted: 0 };
    const UNKNOWN: Count = Count { most: None, ..Count::NONE };

    fn between(least: u128, most: u128) -> Count {
        Count { least, most: Some(most), ..Count::NONE }
    }

    fn plus(self, other: Count) -> Count {
        Count {
            least: self.least.saturating_add(other.least),
            most: self.most.zip(other.most).map(|(a, b)| a.saturating_add(b)),
            combinations: self.combinations + other.combinations,
            uncounted: self.uncounted + other.uncounted,
        }
    }

    /// The count of one combination.
    fn whole(self) -> Count {
        Count { combinations: 1, uncounted: usize::from(self.most.is_none()), ..self }
    }
}

/// Counts the choices that cost at most `limit` picoseconds. `watch` learns how many combinations of variants are done, and of how
/// many, and says whether to go on: if not, the others are left uncounted.
pub fn within(model: &Model, limit: Cost, effort: Effort, watch: &(dyn Fn(usize, usize) -> bool + Sync)) -> Count {
    let (mut all, left) = programs(model, limit, effort.sets, &|found| watch(0, found));
    // The widest last.
    all.sort_by_key(|one| one.slack);
    let slack = all.last().map_or(0, |one| one.slack);
    let share = effort.all / all.len().max(1) as u64;
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let count = || {
        let mut sum = Count::NONE;
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut work = CountingWork { left: share, one: effort.one };
            let found = match watch(done.load(Ordering::Relaxed), all.len()) {
                true => settled(one, slack, SPLITS, &mut work),
                false => Count::UNKNOWN,
            };
            sum = sum.plus(found.whole());
            done.fetch_add(1, Ordering::Relaxed);
        }
        sum
    };
    // Which thread counts which part is left to chance; the result is not.
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get()).min(WORKERS).min(all.len());
    let found = std::thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(count)).collect();
        others.into_iter().fold(count(), |sum, other| sum.plus(other.join().unwrap_or(Count::UNKNOWN)))
    });
    (0..left).fold(found, |sum, _| sum.plus(Count::UNKNOWN.whole()))
}

/// The same with costs above the bound rounded to multiples of `step` picoseconds; `None` if the program is too wide for that.
pub fn rounded(model: &Model, limit: Cost, step: Cost) -> Option<Count> {
    let mut work = CountingWork { left: Effort::BRIEF.all, one: Effort::BRIEF.one };
    let (all, _) = programs(model, limit, usize::MAX, &|_| true);
    all.iter().try_fold(Count::NONE, |sum, one| Some(sum.plus(one.rounded(step, &mut work)?)))
}

/// Counts as finely as the work left allows. Steps are of the largest slack: who has less has fewer of them.
fn settled(one: &Bounded, slack: Cost, splits: usize, work: &mut CountingWork) -> Count {
    let (coarsest, finer) = (STEPS[STEPS.len() - 1], &STEPS[..STEPS.len() - 1]);
    let Some(coarse) = one.rounded(slack / coarsest, work) else {
        let widest = (0..one.part.domains.len()).max_by_key(|v| (one.part.domains[*v].len(), one.network.touching[*v].len(), Reverse(*v)));
        let (Some(variable), true) = (widest, splits > 0 && work.left > 0) else { return Count::UNKNOWN };
        let parts = one.part.domains[variable].iter().filter_map(|value| one.with(variable, *value));
        return parts.map(|part| settled(&part, slack, splits - 1, work)).fold(Count::NONE, Count::plus);
    };
    if coarse.most == Some(coarse.least) {
        return coarse;
    }
    let exact = one.counted(CostUnit::Exact, work).map(|n| Count::between(n, n));
    exact.or_else(|| finer.iter().find_map(|steps| one.rounded(slack / steps, work))).unwrap_or(coarse)
}

/// Every combination of variants that has choices within the limit; and how many sets of them were not looked into, because as many as may
/// be were, or because `goes_on`, which learns how many combinations are found, says so.
///
/// Variants are fixed site by site, the site whose variants differ most first, so that most combinations are ruled out together.
fn programs(model: &Model, limit: Cost, most: usize, goes_on: &dyn Fn(usize) -> bool) -> (Vec<Bounded>, usize) {
    let network = Network::new(model);
    let mut open = vec![(Subproblem::whole(model, &network), Dual::new(&network))];
    let (mut found, mut sets) = (Vec::new(), 0);
    while sets < most
        && (sets == 0 || sets % ASKED != 0 || goes_on(found.len()))
        && let Some((mut part, mut dual)) = open.pop()
    {
        sets += 1;
        let Some(bounds) = tightened(&network, &mut part, &mut dual, limit) else { continue };
        let apart = |v: &usize| part.domains[*v].iter().map(|x| bounds.values[*v][*x as usize].min(limit) - bounds.least).sum::<Cost>();
        let sites = (network.groups..network.sizes.len()).filter(|v| part.domains[*v].len() > 1);
        match sites.max_by_key(|v| (apart(v), Reverse(*v))) {
            Some(site) => open.extend(part.domains[site].iter().map(|value| (part.with(site, *value), dual.clone()))),
            None => {
                let variants: Vec<u16> = part.domains[network.groups..].iter().map(|d| d[0]).collect();
                found.extend(Bounded::new(&model.variant(&variants), limit));
            }
        }
    }
    (found, open.len())
}

/// Choices of layouts, and a bound from below that is near the best of them.
struct Bounded {
    network: Arc<Network>,
    /// What may still be within the limit.
    part: Subproblem,
    dual: Dual,
    limit: Cost,
    /// The limit above the bound.
    slack: Cost,
}

impl Bounded {
    fn new(model: &Model, limit: Cost) -> Option<Bounded> {
        let network = Arc::new(Network::new(model));
        let mut part = Subproblem::whole(model, &network);
        // What no kernel touches is held in no way.
        for (domain, _) in part.domains.iter_mut().zip(&network.touching).filter(|(_, touching)| touching.is_empty()) {
            domain.truncate(1);
        }
        let dual = Dual::new(&network);
        Bounded { network, part, dual, limit, slack: 0 }.tight()
    }

    fn tight(mut self) -> Option<Bounded> {
        self.slack = self.limit - tightened(&self.network, &mut self.part, &mut self.dual, self.limit)?.least;
        Some(self)
    }

    /// Those that hold one container so.
    fn with(&self, variable: usize, value: u16) -> Option<Bounded> {
        Bounded { network: self.network.clone(), part: self.part.with(variable, value), dual: self.dual.clone(), ..*self }.tight()
    }

    fn rounded(&self, step: Cost, work: &mut CountingWork) -> Option<Count> {
        let step = step.max(1);
        let most = self.counted(CostUnit::Down(step), work)?;
        Some(Count::between(self.counted(CostUnit::Up(step), work)?, most))
    }

    /// The number of choices that cost at most the slack above the bound; `None` if the tables grow too long.
    fn counted(&self, unit: CostUnit, work: &mut CountingWork) -> Option<u128> {
        let (part, slack, most) = (&self.part, self.slack, unit.most(self.slack));
        let (places, mut room) = (KeyLayout::of(part)?, Room::new(work));
        let terms = Terms { part, places: &places, slack, unit };
        let mut tables = Vec::new();
        for (variable, held) in self.dual.held().iter().enumerate() {
            tables.push(terms.held(variable, held, &mut room)?);
        }
        for ((function, rows), shares) in self.network.functions.iter().zip(&part.rows).zip(&self.dual.shares) {
            tables.push(terms.left(function, rows, shares, &mut room)?);
        }
        let mut open: BTreeSet<usize> = (0..part.domains.len()).filter(|v| part.domains[*v].len() > 1).collect();
        while let Some(variable) = next(&tables, &open, part) {
            open.remove(&variable);
            let (mine, others): (Vec<SparseTable>, Vec<SparseTable>) = tables.into_iter().partition(|t| t.scope().contains(&variable));
            tables = others;
            tables.push(eliminated(mine, Some(variable), most, &places, &mut room)?);
        }
        // What is left are variables of one value each.
        Some(eliminated(tables, None, most, &places, &mut room)?.total())
    }
}

/// The variable whose elimination makes the shortest table, if which values go together were left to chance.
fn next(tables: &[SparseTable], open: &BTreeSet<usize>, part: &Subproblem) -> Option<usize> {
    let length = |variable: usize| {
        let mine = || tables.iter().filter(|t| t.scope().contains(&variable));
        let mut times: BTreeMap<usize, i32> = BTreeMap::new();
        mine().flat_map(SparseTable::scope).for_each(|v| *times.entry(*v).or_default() += 1);
        let entries: f64 = mine().map(|t| (t.len().max(1) as f64).log2()).sum();
        let shared: f64 = times.iter().map(|(v, times)| f64::from(*times - 1) * (part.domains[*v].len() as f64).log2()).sum();
        entries - shared
    };
    open.iter().map(|v| (length(*v), *v)).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, v)| v)
}

/// Shares and drops until that brings little. `None` if no choice is within the limit.
fn tightened(network: &Network, part: &mut Subproblem, dual: &mut Dual, limit: Cost) -> Option<LowerBounds> {
    for _ in 0..ROUNDS {
        for pass in 0..PASSES {
            dual.pass(network, part, pass % 2 == 1, limit.saturating_mul(2));
        }
        let bounds = dual.bounds(network, part);
        let before: usize = part.domains.iter().map(Vec::len).sum();
        if bounds.least > limit || part.drop_dear(&bounds, limit + 1)? * 12 < before {
            break;
        }
    }
    let bounds = dual.bounds(network, part);
    (bounds.least <= limit).then_some(bounds)
}
