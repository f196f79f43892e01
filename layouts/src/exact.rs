//! The exact choice: the cheapest held layouts and configurations of the whole program, with proof.
//!
//! Pruning ([`crate::prune`]) shrinks layouts and choices without losing the optimum; variable elimination
//! ([`crate::eliminate`]) finds it. Where the tables would outgrow the memory limit, a good choice is found first, by
//! elimination over the few least dear layouts of every class and over a few kernels at a time; its cost prunes further. Then one
//! class after the other is fixed to each of its layouts in turn (branch and bound), which makes tables smaller. If the
//! limit of work is reached first, the best choice found is returned with the gap to the least bound of what was left
//! open.
//!
//! Residual edges, ties, forward and backward are all in: none of the two simplifications of the paper's VI-A is made.

use crate::eliminate::{eliminate, order};
use crate::model::Model;
use crate::prune::{RIVALS, Rest};

/// How much the solver may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of the largest table (10 bytes each, with its decisions).
    pub table: usize,
    /// Table entries computed and choices compared in all. A count and not a time, so that results are deterministic.
    pub work: usize,
}

impl Default for Limits {
    fn default() -> Self {
        // Seconds, and some megabytes.
        Limits { table: 1 << 18, work: 1 << 22 }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// Position of the held layout of every class.
    pub held: Vec<u16>,
    /// Position of the choice of every kernel.
    pub choices: Vec<usize>,
    pub total_ms: f64,
    /// No choice costs less. Equal to `total_ms` if proven.
    pub bound_ms: f64,
    pub proven: bool,
}

impl Solution {
    /// The best configurations for these held layouts; nothing is proven of it.
    pub fn of(model: &Model, held: Vec<u16>) -> Self {
        let best: Vec<(usize, f64)> = model.factors.iter().map(|f| f.best(&held)).collect();
        let total_ms = best.iter().map(|(_, ms)| ms).sum();
        let choices = best.into_iter().map(|(n, _)| n).collect();
        Solution { held, choices, total_ms, bound_ms: model.sum_of_minima(), proven: false }
    }

    /// (total − bound) ÷ total: 0 if proven.
    pub fn gap(&self) -> f64 {
        if self.proven || self.total_ms <= 0.0 { 0.0 } else { ((self.total_ms - self.bound_ms) / self.total_ms).max(0.0) }
    }
}

/// Improves held layouts one class at a time until nothing changes: a first choice, whose cost prunes.
pub fn descend(model: &Model, mut held: Vec<u16>) -> Vec<u16> {
    let mut touching: Vec<Vec<usize>> = vec![Vec::new(); model.classes.len()];
    for (n, factor) in model.factors.iter().enumerate() {
        for u in &factor.uses {
            if touching[u.class].last() != Some(&n) {
                touching[u.class].push(n);
            }
        }
    }
    loop {
        let mut changed = false;
        for class in 0..model.classes.len() {
            let around = |held: &[u16]| -> f64 { touching[class].iter().map(|n| model.factors[*n].best(held).1).sum() };
            let mut best = (around(&held), held[class]);
            let before = best.1;
            for layout in &model.classes[class].domain {
                held[class] = *layout;
                let cost = around(&held);
                if cost < best.0 {
                    best = (cost, *layout);
                }
            }
            held[class] = best.1;
            changed |= best.1 != before;
        }
        if !changed {
            return held;
        }
    }
}

/// Kernels whose containers are freed together when a first choice is improved.
const WINDOW: usize = 2;

struct Search<'a> {
    model: &'a Model,
    limits: Limits,
    work: usize,
    best: (f64, Vec<u16>),
    /// Least bound of the branches that were not followed.
    open: f64,
}

impl Search<'_> {
    fn offer(&mut self, held: Vec<u16>) {
        let total = self.model.total(&held);
        if total < self.best.0 {
            self.best = (total, held);
        }
    }

    /// Eliminates if the tables fit; false if they do not.
    fn fits(&mut self, rest: &Rest) -> bool {
        let order = order(self.model, rest);
        if order.largest > self.limits.table {
            return false;
        }
        let choices: usize = rest.choices.iter().map(Vec::len).sum();
        self.work = self.work.saturating_add(order.work).saturating_add(choices);
        self.offer(eliminate(self.model, rest, &order));
        true
    }

    fn prune(&mut self, rest: &mut Rest) -> bool {
        self.work = self.work.saturating_add(rest.choices.iter().map(|c| c.len() * RIVALS).sum());
        rest.prune(self.model, self.best.0)
    }

    /// Elimination over the least dear layouts around the best choice, as many as fit.
    fn widen(&mut self, rest: &Rest) {
        let longest = rest.domains.iter().map(Vec::len).max().unwrap_or(0);
        for most in 2..longest {
            let near = rest.near(&self.best.1, most);
            if !self.fits(&near) || self.work >= self.limits.work {
                break;
            }
        }
        // Then every layout of the containers of a few neighbouring kernels at once, until nothing improves.
        let mut improving = true;
        while improving && self.work < self.limits.work / 2 {
            let before = self.best.0;
            for window in self.model.factors.windows(WINDOW) {
                let free: Vec<usize> = window.iter().flat_map(|f| f.uses.iter().map(|u| u.class)).collect();
                self.fits(&rest.around(&self.best.1, &free));
            }
            improving = self.best.0 < before;
        }
    }

    fn node(&mut self, mut rest: Rest) {
        if !self.prune(&mut rest) || self.fits(&rest) {
            return;
        }
        if self.work >= self.limits.work {
            self.open = self.open.min(rest.bound);
            return;
        }
        let order = order(self.model, &rest);
        let widest = order.widest.iter().copied().max_by_key(|c| (rest.domains[*c].len(), std::cmp::Reverse(*c)));
        let Some(class) = widest else { return };
        let mut branches: Vec<Rest> = Vec::new();
        for layout in &rest.domains[class] {
            let mut branch = rest.clone();
            branch.domains[class] = vec![*layout];
            if self.prune(&mut branch) {
                branches.push(branch);
            }
        }
        branches.sort_by(|a, b| a.bound.total_cmp(&b.bound));
        for branch in branches {
            self.node(branch);
        }
    }
}

/// The cheapest choice. Deterministic: the same model gives the same solution.
pub fn solve(model: &Model, limits: Limits) -> Solution {
    let natural = model.natural();
    // A second start: every class as the slowest kernel that touches it likes it best.
    let mut liked = natural.clone();
    let mut by_time: Vec<_> = model.factors.iter().filter_map(|f| Some((f, f.choices.first()?))).collect();
    by_time.sort_by(|a, b| a.1.ms.total_cmp(&b.1.ms));
    for (factor, choice) in by_time {
        for (u, layout) in factor.uses.iter().zip(&choice.layouts) {
            if model.classes[u.class].domain.contains(layout) {
                liked[u.class] = *layout;
            }
        }
    }
    let mut search = Search { model, limits, work: 0, best: (f64::INFINITY, natural.clone()), open: f64::INFINITY };
    for start in [natural, liked] {
        let held = descend(model, start);
        search.offer(held);
    }
    let mut rest = Rest::whole(model);
    if search.prune(&mut rest) && !search.fits(&rest) {
        search.widen(&rest);
        search.node(rest);
    }
    let (open, held) = (search.open, search.best.1);
    let mut solution = Solution::of(model, held);
    solution.proven = open >= solution.total_ms;
    solution.bound_ms = if solution.proven { solution.total_ms } else { open };
    solution
}
