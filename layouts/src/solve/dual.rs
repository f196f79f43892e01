//! A lower bound by reparametrisation: every function gives part of its cost to the variables it binds.
//!
//! For any shares λ (one number for each function, leg and value) the cost of every assignment is
//! Σ over functions of (f − Σ λ) + Σ over variables of (Σ λ), so the sum of the minima of these terms is a lower bound.
//! Good shares are found by block-coordinate ascent: functions are visited in order, each takes in what its variables
//! hold, works out the least it can cost for every value (its *marginals*), and hands them on to the variables that
//! occur later (then, backwards, earlier). The bound never falls but for rounding, and on a chain one pass makes it
//! exact. It solves, approximately, the dual of the linear relaxation over whole kernels, residual edges and all.
//!
//! The same numbers bound every single value and row: one that cannot be part of a choice cheaper than a known one is
//! dropped. Source: sequential reweighted message passing (Kolmogorov 2015), with kernels as factors.

use crate::model::cost::Cost;
use crate::model::network::{CostFunction, Network, Subproblem};

/// Shares by function, leg and value; and what each variable holds: their sum over functions.
#[derive(Clone, Debug, Default)]
pub struct Dual {
    pub shares: Vec<Vec<Vec<Cost>>>,
    held: Vec<Vec<Cost>>,
}

/// Lower bound of one function's cost, under shares.
struct Marginals {
    least: Cost,
    /// By leg and value; only values of the part are meant.
    values: Vec<Vec<Cost>>,
    /// By row left.
    rows: Vec<Cost>,
}

/// Lower bounds within a part.
#[derive(Clone, Debug)]
pub struct LowerBounds {
    /// Of everything.
    pub least: Cost,
    /// By variable and value (all values; only those of the part are meant).
    pub values: Vec<Vec<Cost>>,
    /// By function and row left.
    rows: Vec<Vec<Cost>>,
}

fn marginals(function: &CostFunction, shares: &[Vec<Cost>], part: &Subproblem, rows: &[u32]) -> Marginals {
    let mut reach: Vec<Vec<Cost>> = Vec::with_capacity(function.legs.len());
    for (leg, shares) in function.legs.iter().zip(shares) {
        let domain = &part.domains[leg.variable];
        let least = |p: usize| {
            let cost = leg.of(p as u16);
            domain.iter().map(|v| cost[*v as usize] - shares[*v as usize]).min().unwrap_or(Cost::MAX / 4)
        };
        reach.push((0..leg.patterns()).map(least).collect());
    }
    let mut by_pattern: Vec<Vec<Cost>> = reach.iter().map(|r| vec![Cost::MAX / 4; r.len()]).collect();
    let mut least = Cost::MAX / 4;
    let mut totals = Vec::with_capacity(rows.len());
    for row in rows {
        let patterns = function.patterns_of(*row as usize);
        let total =
            patterns.iter().zip(&reach).fold(function.rows[*row as usize], |sum, (p, reach)| sum.saturating_add(reach[*p as usize]));
        totals.push(total);
        least = least.min(total);
        for (p, best) in patterns.iter().zip(&mut by_pattern) {
            let best = &mut best[*p as usize];
            *best = (*best).min(total);
        }
    }
    let mut values = Vec::with_capacity(function.legs.len());
    for (n, leg) in function.legs.iter().enumerate() {
        let mut found = vec![Cost::MAX / 4; leg.values];
        for (p, best) in by_pattern[n].iter().enumerate().filter(|(_, best)| **best < Cost::MAX / 4) {
            let cost = leg.of(p as u16);
            let others = best - reach[n][p];
            for v in &part.domains[leg.variable] {
                let v = *v as usize;
                found[v] = found[v].min(others + cost[v] - shares[n][v]);
            }
        }
        values.push(found);
    }
    Marginals { least, values, rows: totals }
}

impl Dual {
    pub fn new(network: &Network) -> Self {
        let shares = network.functions.iter().map(|f| f.legs.iter().map(|leg| vec![0; leg.values]).collect()).collect();
        Dual { shares, held: network.sizes.iter().map(|n| vec![0; *n]).collect() }
    }

    /// What the functions gave to each variable, by value.
    pub fn held(&self) -> &[Vec<Cost>] {
        &self.held
    }

    /// Visits every function once, in order or backwards. No share grows by more than `most` above the least at a time.
    pub fn pass(&mut self, network: &Network, part: &Subproblem, backwards: bool, most: Cost) {
        let count = network.functions.len();
        for step in 0..count {
            let n = if backwards { count - 1 - step } else { step };
            let function = &network.functions[n];
            for (leg, shares) in function.legs.iter().zip(&mut self.shares[n]) {
                for (share, held) in shares.iter_mut().zip(&mut self.held[leg.variable]) {
                    *share -= *held;
                    *held = 0;
                }
            }
            let earlier = |v: usize| network.touching[v].first().is_some_and(|first| *first < n);
            let later = |v: usize| network.touching[v].last().is_some_and(|last| *last > n);
            let open = |v: usize| part.domains[v].len() > 1;
            let (mut before, mut after) = (0, 0);
            for leg in function.legs.iter().filter(|leg| open(leg.variable)) {
                before += Cost::from(earlier(leg.variable));
                after += Cost::from(later(leg.variable));
            }
            let ahead: &dyn Fn(usize) -> bool = if backwards { &earlier } else { &later };
            let parts = before.max(after);
            if parts == 0 {
                continue;
            }
            let found = marginals(function, &self.shares[n], part, &part.rows[n]);
            for (l, leg) in function.legs.iter().enumerate().filter(|(_, leg)| open(leg.variable) && ahead(leg.variable)) {
                for v in &part.domains[leg.variable] {
                    let v = *v as usize;
                    let share = found.values[l][v].min(found.least.saturating_add(most)).div_euclid(parts);
                    self.shares[n][l][v] += share;
                    self.held[leg.variable][v] += share;
                }
            }
        }
    }

    pub fn bounds(&self, network: &Network, part: &Subproblem) -> LowerBounds {
        let held_least = |v: usize| part.domains[v].iter().map(|x| self.held[v][*x as usize]).min().unwrap_or(0);
        let mut values: Vec<Vec<Cost>> =
            self.held.iter().enumerate().map(|(v, held)| held.iter().map(|h| h - held_least(v)).collect()).collect();
        let mut least = (0..network.sizes.len()).map(held_least).fold(0, Cost::saturating_add);
        let mut rows = Vec::with_capacity(network.functions.len());
        for (n, function) in network.functions.iter().enumerate() {
            let found = marginals(function, &self.shares[n], part, &part.rows[n]);
            least = least.saturating_add(found.least);
            for (leg, found_values) in function.legs.iter().zip(&found.values) {
                for v in &part.domains[leg.variable] {
                    let value = &mut values[leg.variable][*v as usize];
                    *value = value.saturating_add(found_values[*v as usize] - found.least);
                }
            }
            rows.push(found.rows.into_iter().map(|r| r.saturating_sub(found.least)).collect::<Vec<_>>());
        }
        for value in values.iter_mut().flatten() {
            *value = value.saturating_add(least);
        }
        for row in rows.iter_mut().flatten() {
            *row = row.saturating_add(least);
        }
        LowerBounds { least, values, rows }
    }
}

impl Subproblem {
    /// Drops values and rows with which nothing is cheaper than `target`. `None` if nothing is left; otherwise how many
    /// values were dropped.
    pub fn drop_dear(&mut self, bounds: &LowerBounds, target: Cost) -> Option<usize> {
        let mut dropped = 0;
        for (domain, bounds) in self.domains.iter_mut().zip(&bounds.values) {
            let before = domain.len();
            domain.retain(|v| bounds[*v as usize] < target);
            dropped += before - domain.len();
            if domain.is_empty() {
                return None;
            }
        }
        for (rows, bounds) in self.rows.iter_mut().zip(&bounds.rows) {
            let mut bounds = bounds.iter();
            rows.retain(|_| bounds.next().is_some_and(|b| *b < target));
            if rows.is_empty() {
                return None;
            }
        }
        Some(dropped)
    }
}
