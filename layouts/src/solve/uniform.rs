//! Choices without a search over layouts: one order of dims for all containers. The honest baselines.
//!
//! Every kernel runs in exactly the layouts in which its containers are held, with its best knobs; only a kernel for
//! which that was not measured falls back to another configuration and relayouts.

use crate::model::cost::Cost;
use crate::model::selection_model::{Factor, Model};
use crate::solve::solution::Solution;
use std::collections::{BTreeMap, HashSet};

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

/// The plain layouts of a class.
struct PlainLayouts {
    /// The numbers of the class's dims.
    dims: Vec<u16>,
    /// Positions of layouts by their dims' numbers from outer to inner.
    by_dims: BTreeMap<Vec<u16>, u16>,
}

/// Orders of dims, which are numbers: many thousands of orders are tried.
struct Orders<'a> {
    model: &'a Model,
    same: Same<'a>,
    natural: Vec<u16>,
    plain: Vec<PlainLayouts>,
    /// By number of a dim, the classes that have it.
    with: Vec<Vec<usize>>,
    seen: HashSet<Vec<u16>>,
}

impl Orders<'_> {
    /// The layouts of containers under an order of dims; a layout that was not measured is left natural.
    fn held(&self, order: &[u16]) -> Vec<u16> {
        let mut held = self.natural.clone();
        self.hold(0..self.plain.len(), order, &mut held);
        held
    }

    /// The same where the order differs from that of `held` by the place of one dim.
    fn held_with(&self, moved: u16, order: &[u16], held: &[u16]) -> Vec<u16> {
        let mut held = held.to_vec();
        self.hold(self.with[usize::from(moved)].iter().copied(), order, &mut held);
        held
    }

    fn hold(&self, classes: impl Iterator<Item = usize>, order: &[u16], held: &mut [u16]) {
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(n, dim)| place[usize::from(*dim)] = n);
        for n in classes {
            let mut dims = self.plain[n].dims.clone();
            dims.sort_by_key(|dim| place[usize::from(*dim)]);
            let position = self.plain[n].by_dims.get(&dims).filter(|position| self.model.classes[n].domain.contains(position));
            held[n] = position.copied().unwrap_or(self.natural[n]);
        }
    }

    /// `None` if it was looked at before.
    fn offer(&mut self, held: Vec<u16>, best: &mut Solution) -> Option<bool> {
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
            let mut order = Vec::new();
            for piece in &layout.pieces {
                let known = dims.iter().position(|dim| *dim == piece.dim);
                order.push(known.unwrap_or(dims.len()) as u16);
                if known.is_none() {
                    dims.push(&piece.dim);
                }
            }
            known.insert(order, position as u16);
        }
        by_dims.push(known);
    }
    let mut with = vec![Vec::new(); dims.len()];
    let mut plain = Vec::new();
    for (n, by_dims) in by_dims.into_iter().enumerate() {
        let dims: Vec<u16> = by_dims.keys().next().cloned().unwrap_or_default();
        dims.iter().for_each(|dim| with[usize::from(*dim)].push(n));
        plain.push(PlainLayouts { dims, by_dims });
    }
    let mut dims: Vec<u16> = (0..dims.len() as u16).collect();
    let mut orders = Orders { model, same: Same::of(model), natural: model.natural(), plain, with, seen: HashSet::new() };
    let mut best = strict(model, model.natural());
    if dims.len() <= ALL_ORDERS {
        permute(&mut dims.clone(), 0, &mut |order| {
            let held = orders.held(order);
            orders.offer(held, &mut best);
        });
        return best;
    }
    loop {
        let mut improved = None;
        let held = orders.held(&dims);
        for from in 0..dims.len() {
            for to in 0..dims.len() {
                let mut moved = dims.clone();
                let dim = moved.remove(from);
                moved.insert(to, dim);
                let held = orders.held_with(dim, &moved, &held);
                if orders.offer(held, &mut best) == Some(true) {
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

fn permute(dims: &mut Vec<u16>, done: usize, visit: &mut dyn FnMut(&[u16])) {
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
