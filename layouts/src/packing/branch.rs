//! Branch and bound over a 0/1 program whose rows may be added while it is solved, with a proof.
//!
//! The bound of a part of all choices is a sum: with any prices `y ≥ 0` of the rows, no choice is worth more than
//! Σ y·b + Σ_j max(0, w_j − Σ_r y_r·a_rj). Prices come from the linear relaxation, are rounded to whole numbers of 1/65,536 ps, and bound
//! exactly then.

use super::simplex::{Linear, Relaxed};
use crate::model::cost::Cost;
use serde::{Deserialize, Serialize};

/// Prices are whole numbers of this part of a picosecond.
pub const FRACTION: i64 = 1 << 16;

/// Rows of the largest relaxation: the inverse of its basis takes 128 MiB.
const LARGEST: usize = 4_096;

/// Σ a·x ≤ bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearConstraint {
    pub terms: Vec<(u32, i64)>,
    pub bound: i64,
}

/// max Σ w·x over x ∈ {0,1} under rows.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub weights: Vec<Cost>,
    pub rows: Vec<LinearConstraint>,
}

/// A part of all choices in a proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BranchNode {
    /// Prices of rows, those that are not zero, bound it.
    Bounded(Vec<(u32, i64)>),
    /// A variable is taken in one part and left in the other; positions of both come later in the list.
    Split { variable: u32, taken: u32, left: u32 },
}

/// The best choice that was found, with the proof of its bound.
#[derive(Clone, Debug)]
pub struct Solved {
    /// Sorted.
    pub chosen: Vec<u32>,
    pub total: Cost,
    /// Equal to the total if the choice is proven to be the best.
    pub bound: Cost,
    /// The first is the whole.
    pub tree: Vec<BranchNode>,
    /// With those that were added.
    pub rows: Vec<LinearConstraint>,
    pub pivots: usize,
}

/// An open part: its place in the tree, which variables are fixed to what, and what is known of the part that it is in.
struct Open {
    node: u32,
    fixed: Vec<Option<bool>>,
    bound: i128,
    /// The prices that give the bound.
    prices: Vec<(u32, i64)>,
}

struct Search<'a> {
    program: Program,
    /// By variable: its terms in rows.
    columns: Vec<Vec<(u32, i64)>>,
    best: (Cost, Vec<u32>),
    tree: Vec<BranchNode>,
    lazy: Lazy<'a>,
    pivots: usize,
}

/// Rows that a choice breaks and that were not in the program; none if it is legal.
pub type Lazy<'a> = &'a mut dyn FnMut(&[u32]) -> Vec<LinearConstraint>;

/// Solves a program. `start` is a legal choice; after `nodes` parts or as many `pivots` the best choice so far is returned with the bound
/// that holds.
pub fn maximise(program: Program, start: Vec<u32>, (nodes, pivots): (usize, usize), lazy: Lazy) -> Solved {
    let mut columns = vec![Vec::new(); program.weights.len()];
    for (number, row) in program.rows.iter().enumerate() {
        row.terms.iter().for_each(|(variable, a)| columns[*variable as usize].push((number as u32, *a)));
    }
    let total = start.iter().map(|v| program.weights[*v as usize]).sum();
    let free = vec![None; program.weights.len()];
    let mut search = Search { program, columns, best: (total, start), tree: vec![BranchNode::Bounded(Vec::new())], lazy, pivots: 0 };
    let mut waiting = vec![Open { node: 0, fixed: free, bound: i128::MAX, prices: Vec::new() }];
    let mut unproven: i128 = i128::MIN;
    while let Some(open) = waiting.pop() {
        let stop = search.tree.len() >= nodes || search.pivots >= pivots;
        let (own, split) = search.look(&open.fixed, open.node, pivots, stop);
        // A choice that is fixed only lowers the bound that prices give, so that those of the whole part hold here, too.
        let bound = own.min(open.bound);
        if bound < own {
            search.tree[open.node as usize] = BranchNode::Bounded(open.prices.clone());
        }
        if whole(bound) <= search.best.0 {
            continue;
        }
        let Some((variable, prefer)) = split else {
            unproven = unproven.max(bound);
            continue;
        };
        let prices = match &search.tree[open.node as usize] {
            BranchNode::Bounded(prices) => prices.clone(),
            BranchNode::Split { .. } => Vec::new(),
        };
        let first = search.tree.len() as u32;
        search.tree.extend([BranchNode::Bounded(Vec::new()), BranchNode::Bounded(Vec::new())]);
        search.tree[open.node as usize] = BranchNode::Split { variable, taken: first, left: first + 1 };
        let part = |taken: bool| {
            let mut fixed = open.fixed.clone();
            fixed[variable as usize] = Some(taken);
            Open { node: if taken { first } else { first + 1 }, fixed, bound, prices: prices.clone() }
        };
        // The last one waiting is looked at first.
        waiting.extend([part(!prefer), part(prefer)]);
    }
    let bound = if unproven == i128::MIN { search.best.0 } else { whole(unproven).max(search.best.0) };
    let Search { program, best: (total, mut chosen), tree, pivots, .. } = search;
    chosen.sort_unstable();
    Solved { chosen, total, bound, tree, rows: program.rows, pivots }
}

/// Whole picoseconds of a sum of prices.
fn whole(prices: i128) -> Cost {
    Cost::try_from(prices.div_euclid(i128::from(FRACTION))).unwrap_or(Cost::MAX)
}

impl Search<'_> {
    /// Bounds a part and looks for a better choice in it: its bound, and unless that rules it out, a variable to split by with the value
    /// to look at first. Without a split when told to stop.
    fn look(&mut self, fixed: &[Option<bool>], node: u32, limit: usize, stop: bool) -> (i128, Option<(u32, bool)>) {
        loop {
            let left: Vec<i64> = self.program.rows.iter().map(|row| remaining(row, fixed)).collect();
            let (free, conflicts) = self.free(fixed, &left);
            let (relaxed, rows) = self.relax(&free, &left, limit);
            let prices = self.prices((&relaxed, &rows), fixed, &conflicts, &left);
            let bound = self.bound(fixed, &left, &prices);
            let used = prices.iter().enumerate().filter(|(_, price)| **price != 0).map(|(row, price)| (row as u32, *price));
            self.tree[node as usize] = BranchNode::Bounded(used.collect());
            if whole(bound) <= self.best.0 || stop {
                return (bound, None);
            }
            let taken = fixed.iter().enumerate().filter(|(_, f)| **f == Some(true)).map(|(v, _)| v as u32);
            let rounded = free.iter().zip(&relaxed.values).filter(|(_, x)| **x > 0.5).map(|(v, _)| *v);
            let mut choice: Vec<u32> = taken.chain(rounded).collect();
            choice.sort_unstable();
            if self.is_legal(&choice) {
                let broken = (self.lazy)(&choice);
                let total = choice.iter().map(|v| self.program.weights[*v as usize]).sum();
                if broken.is_empty() && total > self.best.0 {
                    self.best = (total, choice);
                } else if self.add(broken) {
                    continue;
                }
                if whole(bound) <= self.best.0 {
                    return (bound, None);
                }
            }
            let apart = |x: f64| (x - 0.5).abs();
            let worth = |n: usize| self.program.weights[free[n] as usize];
            let least = |a: &usize, b: &usize| {
                let by_value = (apart(relaxed.values[*a]) * 16.0).round().total_cmp(&(apart(relaxed.values[*b]) * 16.0).round());
                by_value.then(worth(*b).cmp(&worth(*a))).then(free[*a].cmp(&free[*b]))
            };
            let split = (0..free.len()).min_by(least).map(|n| (free[n], true));
            // A row that only variables mend which others rule out: without these it is broken.
            let ruled_out = || conflicts.first().map(|(variable, _)| (*variable, false));
            return (bound, split.or_else(ruled_out));
        }
    }

    /// Adds rows that are new: whether there was one.
    fn add(&mut self, rows: Vec<LinearConstraint>) -> bool {
        let before = self.program.rows.len();
        for row in rows {
            if !self.program.rows.contains(&row) {
                let number = self.program.rows.len() as u32;
                row.terms.iter().for_each(|(variable, a)| self.columns[*variable as usize].push((number, *a)));
                self.program.rows.push(row);
            }
        }
        self.program.rows.len() > before
    }

    /// Variables that are still to be chosen, and those that a full row without negative terms rules out, each with that row.
    fn free(&self, fixed: &[Option<bool>], left: &[i64]) -> (Vec<u32>, Vec<(u32, u32)>) {
        let (mut free, mut conflicts) = (Vec::new(), Vec::new());
        for variable in (0..fixed.len()).filter(|v| fixed[*v].is_none()) {
            let full = |(row, a): &&(u32, i64)| {
                let row = *row as usize;
                *a > left[row] && self.program.rows[row].terms.iter().all(|(_, a)| *a > 0)
            };
            match self.columns[variable].iter().find(full) {
                Some((row, _)) => conflicts.push((variable as u32, *row)),
                None => free.push(variable as u32),
            }
        }
        (free, conflicts)
    }

    /// The linear relaxation over free variables, and the rows that it has.
    fn relax(&mut self, free: &[u32], left: &[i64], limit: usize) -> (Relaxed, Vec<u32>) {
        let mut number = vec![u32::MAX; left.len()];
        let mut rows: Vec<u32> = Vec::new();
        let mut columns = Vec::with_capacity(free.len());
        for variable in free {
            let mut column = Vec::new();
            for (row, a) in &self.columns[*variable as usize] {
                if number[*row as usize] == u32::MAX {
                    number[*row as usize] = rows.len() as u32;
                    rows.push(*row);
                }
                column.push((number[*row as usize], *a as f64));
            }
            columns.push(column);
        }
        let bounds: Vec<f64> = rows.iter().map(|row| left[*row as usize] as f64).collect();
        if rows.len() > LARGEST {
            self.pivots = self.pivots.saturating_add(limit);
            return (self.charged(free, &rows, &number), rows);
        }
        let weights = free.iter().map(|v| self.program.weights[*v as usize] as f64).collect();
        let relaxed = Linear { weights, columns, bounds }.solve(limit.saturating_sub(self.pivots).max(1));
        self.pivots += relaxed.pivots + 1;
        (relaxed, rows)
    }

    /// Prices without a relaxation, where it would be too large: every variable is paid for by its rows in equal shares, and a row pays the
    /// largest share.
    fn charged(&self, free: &[u32], rows: &[u32], number: &[u32]) -> Relaxed {
        let mut duals = vec![0.0f64; rows.len()];
        for variable in free {
            let own = self.columns[*variable as usize].iter().filter(|(_, a)| *a > 0);
            let share = self.program.weights[*variable as usize] as f64 / own.clone().count().max(1) as f64;
            own.for_each(|(row, _)| {
                let dual = &mut duals[number[*row as usize] as usize];
                *dual = dual.max(share);
            });
        }
        Relaxed { values: vec![0.0; free.len()], duals, pivots: 0 }
    }

    /// Whole prices of all rows. A full row pays for what it rules out, at no cost; a row that is broken, and that nothing that is still
    /// free mends, rules out the part.
    fn prices(&self, (relaxed, rows): (&Relaxed, &[u32]), fixed: &[Option<bool>], conflicts: &[(u32, u32)], left: &[i64]) -> Vec<i64> {
        let mut prices = vec![0i64; left.len()];
        for (row, dual) in rows.iter().zip(&relaxed.duals) {
            prices[*row as usize] = (dual * FRACTION as f64).round().clamp(0.0, (1i64 << 62) as f64) as i64;
        }
        for (variable, row) in conflicts {
            let price = &mut prices[*row as usize];
            *price = (*price).max(self.program.weights[*variable as usize].max(0).saturating_mul(FRACTION));
        }
        for (row, left) in left.iter().enumerate().filter(|(_, left)| **left < 0) {
            let mends = |(variable, a): &&(u32, i64)| *a < 0 && fixed[*variable as usize].is_none();
            let least: i64 = self.program.rows[row].terms.iter().filter(mends).map(|(_, a)| a).sum();
            if least > *left {
                let all: Cost = self.program.weights.iter().map(|w| w.max(&0)).sum();
                prices.fill(0);
                prices[row] = all.saturating_add(1).saturating_mul(FRACTION);
                return prices;
            }
        }
        prices
    }

    /// The most that choices of a part are worth, by prices.
    fn bound(&self, fixed: &[Option<bool>], left: &[i64], prices: &[i64]) -> i128 {
        let mut bound: i128 = prices.iter().zip(left).map(|(price, left)| i128::from(*price) * i128::from(*left)).sum();
        for (variable, fixed) in fixed.iter().enumerate() {
            let weight = i128::from(self.program.weights[variable]) * i128::from(FRACTION);
            match fixed {
                Some(false) => {}
                Some(true) => bound += weight,
                None => {
                    let paid = |(row, a): &(u32, i64)| i128::from(prices[*row as usize]) * i128::from(*a);
                    bound += (weight - self.columns[variable].iter().map(paid).sum::<i128>()).max(0);
                }
            }
        }
        bound
    }

    fn is_legal(&self, choice: &[u32]) -> bool {
        let holds = |row: &LinearConstraint| {
            let terms = row.terms.iter().filter(|(v, _)| choice.binary_search(v).is_ok());
            terms.map(|(_, a)| *a).sum::<i64>() <= row.bound
        };
        self.program.rows.iter().all(holds)
    }
}

/// The bound of a row less what the taken variables use of it.
fn remaining(row: &LinearConstraint, fixed: &[Option<bool>]) -> i64 {
    row.bound - row.terms.iter().filter(|(v, _)| fixed[*v as usize] == Some(true)).map(|(_, a)| *a).sum::<i64>()
}
