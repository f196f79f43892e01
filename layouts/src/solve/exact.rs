//! The exact choice: the cheapest variants, held layouts and configurations of the whole program, with proof.
//!
//! 1. A good choice is found by descent; its cost is the target. Values that another one replaces are dropped.
//! 2. A part of all choices is bounded from below by reparametrisation ([`crate::solve::dual`]), and a value that cannot be part of
//!    a choice cheaper than the target is dropped. Often nothing is left, and that is the proof.
//! 3. Otherwise the remaining values are eliminated ([`crate::solve::eliminate`]) if its tables fit.
//! 4. Otherwise it is split: one part for each value of a group of alternatives or of a container in the widest table.
//!
//! The part with the least bound comes first, so the least bound of the open parts is a bound of everything: stopped at
//! any time, the gap to it is known. Residual edges, ties, forward and backward are all in: none of the two
//! simplifications of the paper's VI-A is made. What was done is kept as a [`OptimalityProof`], which can be checked without
//! searching.

use crate::model::cost::Cost;
use crate::model::network::{Network, Subproblem};
use crate::model::selection_model::Model;
use crate::solve::dual::Dual;
use crate::solve::eliminate::{eliminate, order};
use std::collections::BTreeMap;
use std::rc::Rc;

/// How much the solver may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchLimits {
    /// Entries of the largest table (10 bytes each, with its decisions).
    pub table: u64,
    /// Additions in all. A count and not a time, so that results are deterministic.
    pub work: u64,
}

impl Default for SearchLimits {
    fn default() -> Self {
        // Seconds, and some dozens of megabytes.
        SearchLimits { table: 1 << 21, work: 1 << 31 }
    }
}

/// Why nothing in a part is cheaper than the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeProof {
    /// Its bound says so.
    Bounded,
    /// The values that its bounds left were eliminated, in this order of variables.
    Eliminated(Vec<usize>),
    /// Each value of a variable is a part of its own: value and node.
    Split(usize, Vec<(u16, usize)>),
    /// Not proven; the bound holds.
    Open,
}

/// One part of the choices: shares that are applied one after the other, each of which drops values and rows that cost too much; then
/// the step.
#[derive(Clone, Debug)]
pub struct SearchNode {
    pub duals: Vec<Rc<Dual>>,
    pub step: NodeProof,
}

/// How the optimum was proven.
#[derive(Clone, Debug, Default)]
pub struct OptimalityProof {
    /// Variable, value, and the value that replaces it.
    pub dominated: Vec<(usize, u16, u16)>,
    /// The first is the whole.
    pub nodes: Vec<SearchNode>,
}

/// The best choice found, and how good any could be, in picoseconds.
#[derive(Clone, Debug)]
pub struct Optimum {
    /// Position of the held layout of every class.
    pub held: Vec<u16>,
    /// Position of the variant of every group.
    pub variants: Vec<u16>,
    pub total: Cost,
    /// No choice costs less.
    pub bound: Cost,
    pub proof: OptimalityProof,
}

impl Optimum {
    pub fn proven(&self) -> bool {
        self.bound >= self.total
    }
}

/// Where a search stands.
#[derive(Clone, Copy, Debug)]
pub struct SearchProgress {
    pub total: Cost,
    pub bound: Cost,
    pub work: u64,
}

/// Called now and then; false stops the search.
pub type OnProgress<'a> = &'a mut dyn FnMut(SearchProgress) -> bool;

/// Where the search begins.
#[derive(Clone, Default)]
pub struct WarmStart {
    /// Assignments to begin with: held layouts, then variants.
    pub assignments: Vec<Vec<u16>>,
    /// Shares of a similar problem.
    pub dual: Option<Rc<Dual>>,
}

/// Two passes, forwards and backwards, between looks at the bound.
const PASSES: usize = 4;
/// Looks without a gain of a [`STALL`]th of the gap end the ascent.
const STALL: Cost = 24;
const ROUNDS: usize = 40;
/// Kernels whose containers are freed together when a first choice is improved.
const WINDOW: usize = 2;

struct Open {
    bound: Cost,
    part: Subproblem,
    dual: Rc<Dual>,
    /// Its node in the proof.
    node: usize,
}

struct Search<'a> {
    network: &'a Network,
    limits: SearchLimits,
    work: u64,
    best: (Cost, Vec<u16>),
    proof: OptimalityProof,
    queue: BTreeMap<(Cost, usize), Open>,
}

/// Improves an assignment one variable at a time, within a part, until nothing changes. If it was good but for some
/// changed variables, only what lies around them is looked at first.
pub fn descend(network: &Network, part: &Subproblem, mut assignment: Vec<u16>, changed: Option<&[usize]>) -> Vec<u16> {
    let mut stale = vec![changed.is_none(); network.sizes.len()];
    for n in changed.into_iter().flatten().flat_map(|v| &network.touching[*v]) {
        network.functions[*n].legs.iter().for_each(|leg| stale[leg.variable] = true);
    }
    while stale.contains(&true) {
        for variable in 0..network.sizes.len() {
            if !std::mem::take(&mut stale[variable]) || part.domains[variable].len() < 2 {
                continue;
            }
            let before = assignment[variable];
            let mut costs: Vec<Cost> = vec![0; network.sizes[variable]];
            for function in network.touching[variable].iter().map(|n| &network.functions[*n]) {
                let legs = (0..function.legs.len()).filter(|l| function.legs[*l].variable == variable);
                for cost in legs.map(|l| function.along(l, &assignment)) {
                    costs.iter_mut().zip(cost).for_each(|(sum, cost)| *sum = sum.saturating_add(cost));
                }
            }
            let mut best = (costs[before as usize], before);
            for value in &part.domains[variable] {
                if costs[*value as usize] < best.0 {
                    best = (costs[*value as usize], *value);
                }
            }
            assignment[variable] = best.1;
            if best.1 != before {
                let near = network.touching[variable].iter().flat_map(|n| &network.functions[*n].legs);
                near.for_each(|leg| stale[leg.variable] |= leg.variable != variable);
            }
        }
    }
    assignment
}

impl Search<'_> {
    fn offer(&mut self, part: &Subproblem, assignment: Vec<u16>) {
        let assignment = descend(self.network, part, assignment, None);
        let total = self.network.total(&assignment);
        self.work = self.work.saturating_add(self.network.weight(part));
        if total < self.best.0 {
            self.best = (total, assignment);
        }
    }

    /// Eliminates if the tables fit; the order in which that was done.
    fn fits(&mut self, part: &Subproblem, table: u64) -> Option<Vec<usize>> {
        let order = order(self.network, part);
        if order.largest > table || self.work.saturating_add(order.work) > self.limits.work.saturating_mul(2) {
            return None;
        }
        self.work = self.work.saturating_add(order.work).saturating_add(self.network.weight(part));
        let (assignment, total) = eliminate(self.network, part, &order.variables);
        if total < self.best.0 {
            self.best = (total, assignment);
        }
        Some(order.variables)
    }

    /// Elimination over the least dear values around the best choice, as many as fit, and around every few kernels.
    fn widen(&mut self, part: &Subproblem, values: &[Vec<Cost>]) {
        let longest = part.domains.iter().map(Vec::len).max().unwrap_or(0);
        for most in [2, 3, 4, 6, 8, 12, 16].into_iter().filter(|n| *n < longest) {
            let mut near = part.clone();
            for (v, domain) in near.domains.iter_mut().enumerate() {
                let mut by_cost = domain.clone();
                by_cost.sort_by_key(|x| (*x != self.best.1[v], values[v][*x as usize], *x));
                by_cost.truncate(most);
                domain.retain(|x| by_cost.contains(x));
            }
            if self.work >= self.limits.work / 4 || self.fits(&near, self.limits.table / 4).is_none() {
                break;
            }
        }
        let mut improving = true;
        while improving && self.work < self.limits.work / 4 {
            let before = self.best.0;
            for n in 0..self.network.functions.len().saturating_sub(WINDOW - 1) {
                let functions = &self.network.functions[n..n + WINDOW];
                let free: Vec<usize> = functions.iter().flat_map(|f| f.legs.iter().map(|leg| leg.variable)).collect();
                self.improve(part, &free);
            }
            improving = self.best.0 < before;
        }
    }

    /// The best values of a few variables, the others as they are.
    fn improve(&mut self, part: &Subproblem, free: &[usize]) {
        let (network, rows) = self.network.around(part, free);
        let mut domains: Vec<Vec<u16>> = self.best.1.iter().map(|v| vec![*v]).collect();
        for v in free {
            domains[*v].clone_from(&part.domains[*v]);
        }
        let around = Subproblem { domains, rows };
        let order = order(&network, &around);
        if order.largest > self.limits.table / 16 {
            return;
        }
        self.work = self.work.saturating_add(order.work).saturating_add(network.weight(&around));
        let (assignment, _) = eliminate(&network, &around, &order.variables);
        let total = self.network.total(&assignment);
        if total < self.best.0 {
            self.best = (total, assignment);
        }
    }

    /// Bounds a part, shrinks it, and eliminates or splits the remainder.
    fn advance(&mut self, open: Open) {
        let Open { mut part, dual, node, .. } = open;
        let mut dual = (*dual).clone();
        let mut duals = Vec::new();
        let mut bounds = dual.bounds(self.network, &part);
        let root = node == 0;
        let (mut eliminated, mut looked) = (None, 0);
        loop {
            let weight = self.network.weight(&part);
            let mut last = bounds.least;
            while looked < ROUNDS && bounds.least < self.best.0 && self.work < self.limits.work {
                looked += 1;
                for pass in 0..PASSES {
                    dual.pass(self.network, &part, pass % 2 == 1, self.best.0.saturating_mul(2));
                }
                self.work = self.work.saturating_add(weight * (PASSES as u64 + 1));
                bounds = dual.bounds(self.network, &part);
                let cheapest = |(v, domain): (usize, &Vec<u16>)| {
                    domain.iter().copied().min_by_key(|x| (bounds.values[v][*x as usize], *x)).unwrap_or(0)
                };
                let decoded: Vec<u16> = part.domains.iter().enumerate().map(cheapest).collect();
                // A descent takes as long as some passes: below the root, the tables find what is better.
                if root && self.best.1 != decoded {
                    self.offer(&part, decoded);
                }
                if bounds.least.saturating_sub(last) < (self.best.0 - bounds.least) / STALL {
                    break;
                }
                last = bounds.least;
            }
            duals.push(Rc::new(dual.clone()));
            let before: usize = part.domains.iter().map(Vec::len).sum();
            if bounds.least >= self.best.0 {
                self.proof.nodes[node] = SearchNode { duals, step: NodeProof::Bounded };
                return;
            }
            let Some(dropped) = part.drop_dear(&bounds, self.best.0) else {
                self.proof.nodes[node] = SearchNode { duals, step: NodeProof::Bounded };
                return;
            };
            part.drop_dominated(self.network);
            eliminated = eliminated.or_else(|| self.fits(&part, self.limits.table));
            if eliminated.is_some() || looked >= ROUNDS || dropped * 12 < before || self.work >= self.limits.work {
                break;
            }
            bounds = dual.bounds(self.network, &part);
        }
        if let Some(order) = eliminated {
            self.proof.nodes[node] = SearchNode { duals, step: NodeProof::Eliminated(order) };
            return;
        }
        if self.work >= self.limits.work {
            self.proof.nodes[node] = SearchNode { duals: duals.clone(), step: NodeProof::Open };
            let dual = Rc::new(dual);
            self.queue.insert((bounds.least, node), Open { bound: bounds.least, part, dual, node });
            return;
        }
        if root {
            self.widen(&part, &bounds.values);
        }
        // Of the widest table, the variable whose values differ most in their bounds: most of its parts are closed at once.
        let apart =
            |v: &usize| part.domains[*v].iter().map(|x| bounds.values[*v][*x as usize].min(self.best.0) - bounds.least).sum::<Cost>();
        let groups = (self.network.groups..self.network.sizes.len()).filter(|v| part.domains[*v].len() > 1);
        let group = groups.max_by_key(|v| (apart(v), std::cmp::Reverse(*v)));
        let widest = || order(self.network, &part).widest.into_iter().max_by_key(|v| (apart(v), std::cmp::Reverse(*v)));
        let Some(variable) = group.or_else(widest) else { return };
        let dual = duals.last().cloned().unwrap_or_else(|| Rc::new(dual));
        let mut parts = Vec::new();
        for value in part.domains[variable].clone() {
            let child = self.proof.nodes.len();
            self.proof.nodes.push(SearchNode { duals: Vec::new(), step: NodeProof::Open });
            parts.push((value, child));
            let bound = bounds.values[variable][value as usize].max(bounds.least);
            let part = part.with(variable, value);
            self.queue.insert((bound, child), Open { bound, part, dual: dual.clone(), node: child });
        }
        self.proof.nodes[node] = SearchNode { duals, step: NodeProof::Split(variable, parts) };
    }
}

/// How a search is bounded, begun and watched.
#[derive(Default)]
pub struct SolveOptions<'a> {
    pub limits: SearchLimits,
    pub start: WarmStart,
    pub watch: Option<OnProgress<'a>>,
}

impl From<SearchLimits> for SolveOptions<'_> {
    fn from(limits: SearchLimits) -> Self {
        SolveOptions { limits, ..SolveOptions::default() }
    }
}

/// The cheapest choice within the limits. Deterministic: the same model gives the same answer.
pub fn solve<'a>(model: &Model, options: impl Into<SolveOptions<'a>>) -> Optimum {
    let mut options = options.into();
    options.start.assignments.extend(starts(model));
    let network = Network::new(model);
    solve_part(&network, Subproblem::whole(model, &network), options)
}

/// The cheapest choice within a part. Assignments to start from may lie outside it: they are brought inside.
pub fn solve_part<'a>(network: &Network, mut part: Subproblem, options: impl Into<SolveOptions<'a>>) -> Optimum {
    let SolveOptions { limits, start, mut watch } = options.into();
    let first: Vec<u16> = part.domains.iter().map(|d| d.first().copied().unwrap_or(0)).collect();
    let proof = OptimalityProof { dominated: Vec::new(), nodes: vec![SearchNode { duals: Vec::new(), step: NodeProof::Open }] };
    let mut search = Search { network, limits, work: 0, best: (Cost::MAX, first), proof, queue: BTreeMap::new() };
    for mut assignment in start.assignments.into_iter().chain([search.best.1.clone()]) {
        for (value, domain) in assignment.iter_mut().zip(&part.domains) {
            if !domain.contains(value) {
                *value = domain.first().copied().unwrap_or(0);
            }
        }
        search.offer(&part, assignment);
    }
    search.proof.dominated = part.drop_dominated_values(network);
    part.drop_dominated(network);
    search.proof.nodes[0].duals.extend(start.dual.clone());
    let dual = start.dual.unwrap_or_else(|| Rc::new(Dual::new(network)));
    let bound = dual.bounds(network, &part).least;
    search.queue.insert((bound, 0), Open { bound, part, dual, node: 0 });
    while let Some(entry) = search.queue.first_entry() {
        let (bound, total) = (entry.get().bound, search.best.0);
        if bound >= total {
            // So are all others. Their parents' shares say so.
            for (_, open) in std::mem::take(&mut search.queue) {
                search.proof.nodes[open.node].step = NodeProof::Bounded;
            }
            break;
        }
        if search.work >= limits.work || !watch.as_mut().is_none_or(|watch| watch(SearchProgress { total, bound, work: search.work })) {
            break;
        }
        let open = entry.remove();
        search.advance(open);
    }
    let total = search.best.0;
    let bound = search.queue.first_key_value().map_or(total, |((bound, _), _)| (*bound).min(total));
    let variants = search.best.1.split_off(network.groups);
    Optimum { held: search.best.1, variants, total, bound, proof: search.proof }
}

/// First assignments: row-major, and every class as the slowest kernel that touches it likes it best; for each variant.
pub fn starts(model: &Model) -> Vec<Vec<u16>> {
    let natural = model.natural();
    let mut liked = natural.clone();
    let mut by_time: Vec<_> = model.factors.iter().filter_map(|f| Some((f, f.choices.first()?))).collect();
    by_time.sort_by_key(|(_, choice)| choice.ps);
    for (factor, choice) in by_time {
        for (u, layout) in factor.uses.iter().zip(&choice.layouts) {
            if model.classes[u.class].domain.contains(layout) {
                liked[u.class] = *layout;
            }
        }
    }
    let variants = model.tried(16);
    variants.iter().flat_map(|v| [&natural, &liked].map(|held| [held.as_slice(), v].concat())).collect()
}
