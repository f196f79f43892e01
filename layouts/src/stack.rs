//! Layers that are alike, one after the other: solved once for each way to hold what lies between them, and chained.
//!
//! Between two layers lie a few containers (the activation, and on the way back its gradient). Given how they are held on
//! both sides, layers do not know of each other: the stack is a shortest path through the ways to hold them, with the
//! layer's optimum as the length of a step, and all steps have the same lengths. A length is a lower bound at first; those
//! on the shortest path are sharpened, then solved, until the path stands on solved ones alone. What lies between layers
//! is held in a layout that kernels on both sides know.
//!
//! Source: (min, +) products of a layer's message with itself.

use crate::cost::Cost;
use crate::exact::{self, Limits, Start};
use crate::model::{Model, SelectError};
use crate::network::{Network, Part};
use std::rc::Rc;

/// A stack of equal layers, in picoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Stacked {
    pub total: Cost,
    /// No choice costs less.
    pub bound: Cost,
    /// Held layouts by layer and class.
    pub layers: Vec<Vec<u16>>,
    /// Layers solved: far fewer than there are ways to hold what lies between them.
    pub solved: usize,
}

/// How sure a step's length is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    Bound,
    Sharp,
    /// No step from the same state is shorter than the bound says.
    Row,
    Solved,
}

struct Length {
    bound: Cost,
    known: Known,
    /// Total and held layouts, once solved.
    found: Option<(Cost, Vec<u16>)>,
}

/// Passes that sharpen one bound.
const PASSES: usize = 24;

/// The cheapest stack of `count` layers. `joins` names containers of a layer and those of the next layer that they are;
/// at both ends of the stack they are held as row-major.
pub fn solve(model: &Model, joins: &[(String, String)], count: usize, limits: Limits) -> Result<Stacked, SelectError> {
    let class = |data: &String| model.class_of.get(data).copied().ok_or_else(|| SelectError::UnknownTensor(data.clone()));
    // Every way to hold what lies between: values on the near side, and on the far side.
    let mut states: Vec<Vec<(u16, u16)>> = vec![Vec::new()];
    let mut sides = Vec::new();
    for (near, far) in joins {
        let (a, b) = (class(near)?, class(far)?);
        let position = |layout| model.classes[b].layouts.iter().position(|l| l == layout).map(|p| p as u16);
        let common: Vec<(u16, u16)> =
            model.classes[a].layouts.iter().enumerate().filter_map(|(n, l)| Some((n as u16, position(l)?))).collect();
        if common.is_empty() {
            return Err(SelectError::Exhausted(format!("{near}, which is {far} of the next layer")));
        }
        states = states.iter().flat_map(|s| common.iter().map(move |c| [s.as_slice(), &[*c]].concat())).collect();
        sides.push((a, b));
    }
    let network = Network::new(model);
    let mut whole = Part::whole(model, &network);
    for (a, b) in &sides {
        for class in [a, b] {
            whole.domains[*class] = (0..network.sizes[*class] as u16).collect();
        }
    }
    whole.drop_dominated(&network);
    // A part of a layer: what comes from the layer before is its far side, what goes to the next its near side.
    let between = |from: usize, to: usize| {
        let mut part = whole.clone();
        for (n, (a, b)) in sides.iter().enumerate() {
            part.domains[*a] = vec![states[to][n].0];
            part.domains[*b] = vec![states[from][n].1];
        }
        part
    };
    // A layer that may choose what lies around it: no step is shorter.
    let first = exact::solve_within(&network, whole.clone(), limits, Start::default(), &mut |_| true);
    let dual = first.proof.nodes.first().and_then(|n| n.duals.last().cloned()).unwrap_or_default();
    let dual = if dual.shares.is_empty() { Rc::new(crate::dual::Dual::new(&network)) } else { dual };
    let mut lengths: Vec<Vec<Length>> = Vec::new();
    for from in 0..states.len() {
        let bound = |to| dual.bounds(&network, &between(from, to)).least.max(first.bound);
        lengths.push((0..states.len()).map(|to| Length { bound: bound(to), known: Known::Bound, found: None }).collect());
    }
    let mut solved = 0;
    let mut start: Vec<Vec<u16>> = vec![first.held];
    let mut best: Option<Stacked> = None;
    loop {
        let path = shortest(&lengths, count);
        let steps: Vec<(usize, usize)> = path.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let bound: Cost = steps.iter().map(|(f, t)| lengths[*f][*t].bound).sum();
        let found: Option<Vec<&(Cost, Vec<u16>)>> = steps.iter().map(|(f, t)| lengths[*f][*t].found.as_ref()).collect();
        if let Some(found) = found {
            let total = found.iter().map(|(total, _)| total).sum();
            if best.as_ref().is_none_or(|known| total < known.total) {
                best = Some(Stacked { total, bound, layers: found.iter().map(|(_, held)| held.clone()).collect(), solved });
            }
        }
        let open = steps.iter().copied().filter(|(f, t)| lengths[*f][*t].known != Known::Solved);
        let next = open.min_by_key(|(f, t)| (lengths[*f][*t].known, *f, *t));
        match (&best, next) {
            (Some(known), next) if next.is_none() || known.total <= bound => {
                return Ok(Stacked { bound: bound.min(known.total), solved, ..known.clone() });
            }
            (_, Some((from, to))) => {
                let part = between(from, to);
                let uses = steps.iter().filter(|s| **s == (from, to)).count() as Cost;
                if lengths[from][to].known == Known::Sharp {
                    let mut row = whole.clone();
                    for (n, (_, b)) in sides.iter().enumerate() {
                        row.domains[*b] = vec![states[from][n].1];
                    }
                    let leaving = steps.iter().filter(|(f, _)| *f == from).count() as Cost;
                    let cutoff = best.as_ref().map(|known| lengths[from][to].bound + (known.total - bound) / leaving + 1);
                    let known = Start { assignments: start.clone(), dual: Some(dual.clone()), cutoff };
                    let found = exact::solve_within(&network, row, limits, known, &mut |_| true);
                    let excluded = cutoff.is_some_and(|cutoff| found.total >= cutoff);
                    solved += 1;
                    for length in &mut lengths[from] {
                        length.bound = length.bound.max(found.bound);
                        // A row that was only excluded for now is looked at again when it is back on the path.
                        if length.known < Known::Row && !excluded {
                            length.known = Known::Row;
                        }
                    }
                    if !excluded {
                        let to = states.iter().position(|s| sides.iter().zip(s).all(|((a, _), (near, _))| found.held[*a] == *near));
                        if let Some(length) = to.map(|to| &mut lengths[from][to]) {
                            length.known = Known::Solved;
                            length.found = Some((found.total, found.held));
                        }
                    } else if !found.proven() {
                        lengths[from][to].known = Known::Row;
                    }
                    continue;
                }
                let length = &mut lengths[from][to];
                if length.known == Known::Bound {
                    let mut sharper = (*dual).clone();
                    for pass in 0..PASSES {
                        sharper.pass(&network, &part, pass % 2 == 1, first.total.saturating_mul(2));
                    }
                    length.bound = length.bound.max(sharper.bounds(&network, &part).least);
                    length.known = Known::Sharp;
                    continue;
                }
                // Beyond this length the step is on no path that is shorter than the best one known.
                let cutoff = best.as_ref().map(|known| length.bound + (known.total - bound) / uses + 1);
                let known = Start { assignments: start.clone(), dual: Some(dual.clone()), cutoff };
                let found = exact::solve_within(&network, part, limits, known, &mut |_| true);
                length.bound = length.bound.max(found.bound);
                solved += 1;
                if cutoff.is_none_or(|cutoff| found.total < cutoff) {
                    start.truncate(1);
                    start.push(found.held.clone());
                    length.known = Known::Solved;
                    length.found = Some((found.total, found.held));
                } else if !found.proven() {
                    length.known = Known::Solved;
                }
            }
            (None, None) => return Err(SelectError::Exhausted("the stack".into())),
            (Some(_), None) => continue,
        }
    }
}

/// The states that a shortest path of `count` steps visits, from the first state to the first state.
fn shortest(lengths: &[Vec<Length>], count: usize) -> Vec<usize> {
    let states = lengths.len();
    let mut least = vec![Cost::MAX / 2; states];
    least[0] = 0;
    let mut came: Vec<Vec<usize>> = Vec::new();
    for _ in 0..count {
        let step = |to: usize| {
            (0..states).map(|from| (least[from].saturating_add(lengths[from][to].bound), from)).min().unwrap_or((Cost::MAX / 2, 0))
        };
        let next: Vec<(Cost, usize)> = (0..states).map(step).collect();
        came.push(next.iter().map(|(_, from)| *from).collect());
        least = next.into_iter().map(|(cost, _)| cost).collect();
    }
    let mut path = vec![0];
    for came in came.iter().rev() {
        path.push(came[*path.last().unwrap_or(&0)]);
    }
    path.reverse();
    path
}
