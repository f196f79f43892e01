//! Choices without a search over layouts: one order of dims for all containers. The honest baselines.
//!
//! Every kernel runs in exactly the layouts in which its containers are held, with its best knobs; only a kernel for
//! which that was not measured falls back to another configuration and relayouts.

use crate::model::cost::Cost;
use crate::model::selection_model::{Factor, Model};
use crate::solve::solution::Solution;
use std::collections::{BTreeMap, BTreeSet};

/// Largest number of dims for which all orders (40,320) are tried; beyond, single moves improve the recipe's order.
const ALL_ORDERS: usize = 8;

/// The fastest choice of every kernel in each of the layouts that it was measured in.
struct Same<'a>(Vec<BTreeMap<&'a [u16], usize>>);

impl<'a> Same<'a> {
    fn of(model: &'a Model) -> Self {
        let fastest = |factor: &'a Factor| {
            let mut known = BTreeMap::new();
            // Fastest first.
            for (n, choice) in factor.choices.iter().enumerate() {
                known.entry(choice.layouts.as_slice()).or_insert(n);
            }
            known
        };
        Same(model.factors.iter().map(fastest).collect())
    }

    /// These held layouts, every kernel in the same ones; `None` where that costs as much as `most`.
    fn strict(&self, model: &Model, held: Vec<u16>, most: Cost) -> Option<Solution> {
        let (mut choices, mut total) = (Vec::with_capacity(model.factors.len()), 0);
        let bound = model.sum_of_minima();
        // What is left costs no less than its minima.
        let mut left = bound;
        for (factor, known) in model.factors.iter().zip(&self.0) {
            let wanted: Vec<u16> = factor.uses.iter().map(|u| held[u.class]).collect();
            let same = known.get(wanted.as_slice()).map(|n| (*n, factor.cost(&factor.choices[*n], &held)));
            let (chosen, cost) = same.unwrap_or_else(|| factor.best(&held));
            choices.push(chosen);
            total += cost;
            left -= factor.choices.first().map_or(0, |c| c.ps);
            if total + left >= most {
                return None;
            }
        }
        Some(Solution { held, choices, total, bound: bound.min(total) })
    }
}

/// These held layouts, every kernel in the same ones.
pub fn strict(model: &Model, held: Vec<u16>) -> Solution {
    Same::of(model).strict(model, held.clone(), Cost::MAX).unwrap_or_else(|| Solution::of(model, held))
}

/// Plain layouts of every class by their dims from outer to inner.
struct Orders<'a> {
    model: &'a Model,
    same: Same<'a>,
    by_dims: Vec<BTreeMap<Vec<&'a str>, u16>>,
    seen: BTreeSet<Vec<u16>>,
}

impl Orders<'_> {
    /// The layouts of containers under an order of dims; a layout that was not measured is left natural.
    fn held(&self, order: &[&str]) -> Vec<u16> {
        let mut held = self.model.natural();
        for ((class, by_dims), held) in self.model.classes.iter().zip(&self.by_dims).zip(&mut held) {
            let Some(first) = by_dims.keys().next() else { continue };
            let dims: Vec<&str> = order.iter().copied().filter(|d| first.contains(d)).collect();
            match by_dims.get(&dims) {
                Some(position) if class.domain.contains(position) => *held = *position,
                _ => {}
            }
        }
        held
    }

    /// `None` if it was looked at before.
    fn offer(&mut self, order: &[&str], best: &mut Solution) -> Option<bool> {
        let held = self.held(order);
        if !self.seen.insert(held.clone()) {
            return None;
        }
        let better = self.same.strict(self.model, held, best.total);
        let found = better.is_some();
        better.into_iter().for_each(|better| *best = better);
        Some(found)
    }
}

/// The best single order of dims.
pub fn solve(model: &Model) -> Solution {
    let mut dims: Vec<&str> = Vec::new();
    let mut by_dims = Vec::new();
    for class in &model.classes {
        let mut known = BTreeMap::new();
        for (position, layout) in class.layouts.iter().enumerate().filter(|(_, l)| l.is_plain()) {
            let order: Vec<&str> = layout.pieces.iter().map(|p| p.dim.as_str()).collect();
            for dim in &order {
                if !dims.contains(dim) {
                    dims.push(dim);
                }
            }
            known.insert(order, position as u16);
        }
        by_dims.push(known);
    }
    let mut orders = Orders { model, same: Same::of(model), by_dims, seen: BTreeSet::new() };
    let mut best = strict(model, model.natural());
    if dims.len() <= ALL_ORDERS {
        permute(&mut dims.clone(), 0, &mut |order| {
            orders.offer(order, &mut best);
        });
        return best;
    }
    loop {
        let mut improved = None;
        for from in 0..dims.len() {
            for to in 0..dims.len() {
                let mut moved = dims.clone();
                let dim = moved.remove(from);
                moved.insert(to, dim);
                if orders.offer(&moved, &mut best) == Some(true) {
                    improved = Some(moved);
                }
            }
        }
        match improved {
            Some(order) => dims = order,
            None => return best,
        }
    }
}

fn permute<'a>(dims: &mut Vec<&'a str>, done: usize, visit: &mut dyn FnMut(&[&'a str])) {
    if done + 1 >= dims.len() {
        visit(dims);
        return;
    }
    for n in done..dims.len() {
        dims.swap(done, n);
        permute(dims, done + 1, visit);
        dims.swap(done, n);
    }
}
