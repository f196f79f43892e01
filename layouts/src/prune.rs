//! Shrinking the choice without losing its optimum.
//!
//! - A choice c of a kernel is *dominated* by a faster one c′ if, however the containers are held, running c′ with its
//!   relayouts costs no more: t(c) ≥ t(c′) + Σ over its containers of max over held h of (r(h, c′) − r(h, c)). This
//!   needs no triangle inequality of the relayout times, which measured times do not always obey.
//! - A held layout is *too dear* if the sum over kernels of what each costs at least, given that layout, exceeds the cost
//!   of a choice already known.
//!
//! Cost: choices × containers × (held layouts + rivals looked at) per round.

use crate::model::Model;
use std::cmp::Ordering;

/// How many of the fastest undominated choices a choice is compared with: nearly all that dominate are among them.
pub(crate) const RIVALS: usize = 48;

/// What is left: held layouts per class, choices per kernel (ascending positions).
#[derive(Clone, Debug)]
pub struct Rest {
    pub domains: Vec<Vec<u16>>,
    pub choices: Vec<Vec<u32>>,
    /// No choice within the rest costs less.
    pub bound: f64,
    /// What holding a class in a layout costs at least above `bound`, by class and layout.
    pub extra: Vec<Vec<f64>>,
}

impl Rest {
    pub fn whole(model: &Model) -> Self {
        let domains = model.classes.iter().map(|c| c.domain.clone()).collect();
        let choices = model.factors.iter().map(|f| (0..f.choices.len() as u32).collect()).collect();
        Rest { domains, choices, bound: 0.0, extra: Vec::new() }
    }

    /// Shrinks to a fixed point; returns whether anything cheaper than `known` may be left.
    pub fn prune(&mut self, model: &Model, known: f64) -> bool {
        loop {
            self.drop_dominated(model);
            let Some(dropped) = self.drop_dear(model, known) else { return false };
            if !dropped {
                return self.bound < known;
            }
        }
    }

    /// The part in which every class keeps what it is held in now and its least dear layouts, `most` in all.
    pub fn near(&self, held: &[u16], most: usize) -> Rest {
        let mut near = self.clone();
        for ((domain, held), extra) in near.domains.iter_mut().zip(held).zip(&self.extra) {
            let mut by_cost = domain.clone();
            by_cost.sort_by(|a, b| {
                (a != held, extra[*a as usize]).partial_cmp(&(b != held, extra[*b as usize])).unwrap_or(Ordering::Equal).then(a.cmp(b))
            });
            by_cost.truncate(most);
            domain.retain(|l| by_cost.contains(l));
        }
        near
    }

    /// The part in which only some classes are free and the others stay as they are held.
    pub fn around(&self, held: &[u16], free: &[usize]) -> Rest {
        let mut around = self.clone();
        for (class, (domain, held)) in around.domains.iter_mut().zip(held).enumerate() {
            if !free.contains(&class) {
                *domain = vec![*held];
            }
        }
        around
    }

    fn drop_dominated(&mut self, model: &Model) {
        for (factor, left) in model.factors.iter().zip(&mut self.choices) {
            // excess[use][a][b] = max over held h of r(h, a) − r(h, b)
            let excess: Vec<Vec<Vec<f64>>> = factor
                .uses
                .iter()
                .map(|u| {
                    let held = &self.domains[u.class];
                    let n = u.cost.len();
                    let most = |a: usize, b: usize| {
                        held.iter().map(|h| u.cost[*h as usize][a] - u.cost[*h as usize][b]).fold(f64::NEG_INFINITY, f64::max)
                    };
                    (0..n).map(|a| (0..n).map(|b| if a == b { 0.0 } else { most(a, b) }).collect()).collect()
                })
                .collect();
            let mut kept: Vec<u32> = Vec::new();
            for n in left.iter().copied() {
                let choice = &factor.choices[n as usize];
                let dominated = kept.iter().take(RIVALS).any(|rival| {
                    let rival = &factor.choices[*rival as usize];
                    let pairs = excess.iter().zip(rival.layouts.iter().zip(&choice.layouts));
                    rival.ms + pairs.map(|(e, (a, b))| e[*a as usize][*b as usize]).sum::<f64>() <= choice.ms
                });
                if !dominated {
                    kept.push(n);
                }
            }
            *left = kept;
        }
    }

    /// `None` if a domain ran empty: nothing as cheap as `known` is left.
    fn drop_dear(&mut self, model: &Model, known: f64) -> Option<bool> {
        let mut least = 0.0;
        // extra[class][l] = what holding l costs at least above the sum of the kernels' minima.
        let mut extra: Vec<Vec<f64>> = model.classes.iter().map(|c| vec![0.0; c.layouts.len()]).collect();
        for (factor, left) in model.factors.iter().zip(&self.choices) {
            let mut uses_of: Vec<(usize, Vec<usize>)> = Vec::new();
            for (n, u) in factor.uses.iter().enumerate() {
                match uses_of.iter_mut().find(|(class, _)| *class == u.class) {
                    Some((_, uses)) => uses.push(n),
                    None => uses_of.push((u.class, vec![n])),
                }
            }
            let mut floor: Vec<Vec<f64>> = uses_of.iter().map(|(class, _)| vec![f64::INFINITY; extra[*class].len()]).collect();
            let mut least_here = f64::INFINITY;
            for n in left {
                let choice = &factor.choices[*n as usize];
                let relayout = |uses: &[usize], h: u16| -> f64 {
                    uses.iter().map(|n| factor.uses[*n].cost[h as usize][choice.layouts[*n] as usize]).sum()
                };
                let cheapest: Vec<f64> = uses_of
                    .iter()
                    .map(|(class, uses)| self.domains[*class].iter().map(|h| relayout(uses, *h)).fold(f64::INFINITY, f64::min))
                    .collect();
                let alone = choice.ms + cheapest.iter().sum::<f64>();
                least_here = least_here.min(alone);
                for ((floor, (class, uses)), cheapest) in floor.iter_mut().zip(&uses_of).zip(&cheapest) {
                    for h in &self.domains[*class] {
                        let with = alone - cheapest + relayout(uses, *h);
                        floor[*h as usize] = floor[*h as usize].min(with);
                    }
                }
            }
            least += least_here;
            for (floor, (class, _)) in floor.iter().zip(&uses_of) {
                for h in &self.domains[*class] {
                    extra[*class][*h as usize] += floor[*h as usize] - least_here;
                }
            }
        }
        self.bound = least;
        self.extra.clone_from(&extra);
        let mut dropped = false;
        // Rounding must not drop the optimum itself: a sum of n terms errs by at most n·ε relatively.
        let slack = known * f64::EPSILON * 8.0 * (model.factors.len() + model.classes.len()) as f64;
        for (domain, extra) in self.domains.iter_mut().zip(&extra) {
            let before = domain.len();
            domain.retain(|h| least + extra[*h as usize] <= known + slack);
            dropped |= domain.len() < before;
            if domain.is_empty() {
                return None;
            }
        }
        Some(dropped)
    }
}
