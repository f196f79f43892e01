//! Choosing one configuration for the whole program from what was measured.
//!
//! Everything here is a function of program and store: the same measurements give the same bytes. Ties fall to the
//! earlier layout (natural first) and the earlier configuration in their order.

use crate::measure::relayout::RelayoutCosts;
use crate::measure::store::Store;
use crate::model::cost::{Cost, FORBIDDEN, milliseconds};
use crate::model::network::{Network, Subproblem};
use crate::model::selection_model::{Factor, Model, SelectError};
use crate::problem::{Access, SelectionProblem};
use crate::solve::config_graph::GraphScope;
use crate::solve::exact::{self, Optimum, SearchLimits, SolveOptions, WarmStart};
use crate::solve::solution::Solution;
use crate::{solve::sssp, solve::uniform};
use sdfg::Direction;
use sdfg::config::{Configuration, KernelConfig, Relayout};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// How a choice is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The optimum, with proof.
    Exact,
    /// Shortest path over the forward pass, the rest inferred (the paper's VI-A).
    Sssp,
    /// Shortest path over the backward pass first, then over the forward pass under what that decided.
    BackwardFirst,
    /// One shortest path through both passes.
    Joint,
    /// One order of dims for every container, the best one; knobs free.
    Uniform,
    /// Row-major in the recipe's dim order; knobs free.
    Natural,
}

impl Method {
    pub const ALL: [Method; 6] = [Method::Exact, Method::Sssp, Method::BackwardFirst, Method::Joint, Method::Uniform, Method::Natural];
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Exact => "exact",
            Method::Sssp => "shortest path",
            Method::BackwardFirst => "shortest path, backward first",
            Method::Joint => "shortest path, both passes",
            Method::Uniform => "best uniform layout",
            Method::Natural => "row-major",
        })
    }
}

/// A relayout of the plan: before its kernel for a read, after it for a write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedRelayout {
    pub kernel: String,
    pub access: Access,
    pub relayout: Relayout,
    pub ms: f64,
    /// Whether `ms` was measured; otherwise it is a pessimistic estimate.
    pub measured: bool,
}

/// The cost of a kernel within the choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelCost {
    pub kernel: String,
    pub ms: f64,
    pub relayout_ms: f64,
    /// Its fastest measured configuration in any layouts.
    pub least_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    pub method: Method,
    /// Kernels and relayouts.
    pub total_ms: f64,
    /// `layouts` says how every container is held; where a kernel names another layout, a relayout stands in `relayouts`.
    pub configuration: Configuration,
    pub relayouts: Vec<PlannedRelayout>,
    /// In execution order.
    pub kernels: Vec<KernelCost>,
    /// No choice costs less than this, as far as the method knows.
    pub bound_ms: f64,
    pub proven: bool,
    /// (total − bound) ÷ total; 0 if proven.
    pub gap: f64,
    /// Every kernel at its fastest, ignoring layouts: the paper's yardstick.
    pub sum_of_minima_ms: f64,
    /// Length of the shortest path (forward chain with its relayouts), for that method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_ms: Option<f64>,
}

impl Selection {
    /// How far the choice lies above the sum of the kernels' minima: 0.04 is 4%.
    pub fn above_minima(&self) -> f64 {
        if self.sum_of_minima_ms > 0.0 { self.total_ms / self.sum_of_minima_ms - 1.0 } else { 0.0 }
    }

    /// Its relayouts that are estimates: measure them and choose again.
    pub fn unmeasured(&self) -> impl Iterator<Item = &Relayout> {
        self.relayouts.iter().filter(|r| !r.measured).map(|r| &r.relayout)
    }
}

/// Combinations of variants that methods without a solver of their own are tried on, one by one.
const COMBINATIONS: usize = 64;

/// Chooses with one method. Where a program has alternatives, every method gets the variants that suit it best.
pub fn select(program: &SelectionProblem, store: &Store, method: Method, limits: SearchLimits) -> Result<Selection, SelectError> {
    let costs = RelayoutCosts::new(program, store);
    let model = Model::new(program, store, &costs)?;
    Ok(choose(&model, &costs, method, limits))
}

/// The same with several methods, from one model.
pub fn select_each(
    program: &SelectionProblem,
    store: &Store,
    methods: &[Method],
    limits: SearchLimits,
) -> Result<Vec<Selection>, SelectError> {
    let costs = RelayoutCosts::new(program, store);
    let model = Model::new(program, store, &costs)?;
    Ok(methods.iter().map(|method| choose(&model, &costs, *method, limits)).collect())
}

/// The same for a model that stands already.
pub fn choose(model: &Model, costs: &RelayoutCosts, method: Method, limits: SearchLimits) -> Selection {
    if method == Method::Exact {
        return exactly(model, costs, &optimum(model, limits, &mut |_| true));
    }
    let mut best: Option<(Vec<u16>, Solution, Option<f64>)> = None;
    for variants in model.tried(COMBINATIONS) {
        let (solution, length) = heuristic(&model.variant(&variants), method);
        if best.as_ref().is_none_or(|(_, known, _)| solution.total < known.total) {
            best = Some((variants, solution, length));
        }
    }
    let (variants, solution, path_ms) = best.unwrap_or_else(|| (Vec::new(), Solution::of(model, model.natural()), None));
    let mut selection = write_out(model, &variants, costs, method, &solution);
    selection.path_ms = path_ms;
    selection
}

fn heuristic(model: &Model, method: Method) -> (Solution, Option<f64>) {
    let (forward, backward) = (GraphScope::Pass(Direction::Forward), GraphScope::Pass(Direction::Backward));
    let path = |scopes: &[GraphScope]| {
        let (solution, length) = sssp::solve(model, scopes);
        (solution, Some(length))
    };
    match method {
        Method::Sssp => path(&[forward]),
        Method::BackwardFirst => path(&[backward, forward]),
        Method::Joint => path(&[GraphScope::Both]),
        Method::Uniform => (uniform::solve(model), None),
        Method::Natural | Method::Exact => (uniform::strict(model, model.natural()), None),
    }
}

/// The exact method, begun from what the shortest path finds, so that it is never worse even if it is cut short.
pub fn optimum(model: &Model, limits: SearchLimits, watch: exact::OnProgress) -> Optimum {
    let mut assignments = Vec::new();
    for variants in model.tried(COMBINATIONS) {
        let chosen = model.variant(&variants);
        for method in [Method::Sssp, Method::BackwardFirst, Method::Joint] {
            assignments.push([heuristic(&chosen, method).0.held, variants.clone()].concat());
        }
    }
    let mut optimum =
        exact::solve(model, SolveOptions { limits, start: WarmStart { assignments, ..WarmStart::default() }, watch: Some(watch) });
    if !optimum.proven() {
        for variants in model.tried(COMBINATIONS) {
            let uniform = uniform::solve(&model.variant(&variants));
            if uniform.total < optimum.total {
                (optimum.held, optimum.variants, optimum.total) = (uniform.held, variants, uniform.total);
            }
        }
        optimum.bound = optimum.bound.min(optimum.total);
    }
    optimum
}

/// The selection of an optimum.
pub fn exactly(model: &Model, costs: &RelayoutCosts, optimum: &Optimum) -> Selection {
    let chosen = model.variant(&optimum.variants);
    let solution = Solution { bound: optimum.bound, ..Solution::of(&chosen, optimum.held.clone()) };
    write_out(model, &optimum.variants, costs, Method::Exact, &solution)
}

/// The `count` best choices that differ in a variant or in how some container is held, best first; fewer if there are
/// fewer. Where the limits did not suffice for a proof, a selection says so.
///
/// Lawler's partition: what remains after a best choice splits into disjoint parts, in each of which one variable must
/// differ and those before it stay. A part is searched only when no other one has a lower bound.
pub fn select_top(program: &SelectionProblem, store: &Store, count: usize, limits: SearchLimits) -> Result<Vec<Selection>, SelectError> {
    let costs = RelayoutCosts::new(program, store);
    let model = Model::new(program, store, &costs)?;
    let first = optimum(&model, limits, &mut |_| true);
    Ok(top(&model, first, count, limits).iter().map(|o| exactly(&model, &costs, o)).collect())
}

/// The best choices, from the best one.
pub fn top(model: &Model, first: Optimum, count: usize, limits: SearchLimits) -> Vec<Optimum> {
    let network = Network::new(model);
    let dual = first.proof.nodes.first().and_then(|n| n.duals.last().cloned());
    let bound = |part: &Subproblem| dual.as_ref().map_or(0, |d| d.bounds(&network, part).least);
    let mut open: Vec<(Cost, Subproblem, Option<Optimum>)> = vec![(first.total, Subproblem::whole(model, &network), Some(first))];
    let mut chosen: Vec<Optimum> = Vec::new();
    while chosen.len() < count {
        let least = open.iter().enumerate().min_by_key(|(n, (cost, _, found))| (*cost, found.is_none(), *n)).map(|(n, _)| n);
        let Some((_, mut part, found)) = least.map(|n| open.remove(n)) else { break };
        let Some(found) = found else {
            let start =
                WarmStart { assignments: chosen.iter().map(|o| [o.held.as_slice(), &o.variants].concat()).collect(), dual: dual.clone() };
            let found = exact::solve_part(&network, part.clone(), SolveOptions { limits, start, watch: None });
            if found.total >= FORBIDDEN {
                continue;
            }
            open.push((found.total, part, Some(found)));
            continue;
        };
        // What no running kernel touches makes no difference: groups first, then the containers of the variant.
        let active = model.variant(&found.variants);
        let touched: BTreeSet<usize> = active.factors.iter().flat_map(|f| f.uses.iter().map(|u| u.class)).collect();
        let taken = [found.held.as_slice(), &found.variants].concat();
        for variable in (network.groups..network.sizes.len()).chain(touched) {
            let value = taken[variable];
            if part.domains[variable].len() > 1 {
                let mut other = part.clone();
                other.domains[variable].retain(|v| *v != value);
                open.push((bound(&other), other, None));
            }
            part.domains[variable] = vec![value];
        }
        chosen.push(found);
    }
    // Without a proof a part can turn out cheaper than the choice it was split from.
    chosen.sort_by_key(|o| o.total);
    chosen
}

/// The fastest measured configuration of every kernel in any layouts: (kernel, configuration, ms).
pub fn minima(program: &SelectionProblem, store: &Store) -> Result<Vec<(String, KernelConfig, f64)>, SelectError> {
    let model = Model::new(program, store, &RelayoutCosts::new(program, store))?;
    let first = |f: &Factor| f.choices.first().map(|c| (f.name.clone(), c.config.clone(), milliseconds(c.ps)));
    Ok(model.factors.iter().filter_map(first).collect())
}

/// Spells out a solution for some variants of a model.
pub fn write_out(whole: &Model, variants: &[u16], costs: &RelayoutCosts, method: Method, solution: &Solution) -> Selection {
    let model = whole.variant(variants);
    let mut configuration = Configuration::default();
    for (group, variant) in whole.groups.iter().zip(variants) {
        configuration.variants.insert(group.name.clone(), group.variants[*variant as usize].clone());
    }
    let plain = |data: &String| whole.plain.get(data).unwrap_or(data).clone();
    // Containers of other variants are nowhere in the plan.
    let touched: BTreeSet<&String> = model.factors.iter().flat_map(|f| f.uses.iter().map(|u| &u.data)).collect();
    for (class, held) in model.classes.iter().zip(&solution.held) {
        for data in class.members.iter().filter(|d| whole.groups.is_empty() || touched.contains(d)) {
            configuration.layouts.insert(plain(data), class.layouts[*held as usize].clone());
        }
    }
    let mut relayouts = Vec::new();
    let mut kernels = Vec::new();
    for (factor, choice) in model.factors.iter().zip(&solution.choices) {
        let choice = &factor.choices[*choice];
        for (used, wanted) in factor.uses.iter().zip(&choice.layouts) {
            let held = solution.held[used.class];
            if held == *wanted {
                continue;
            }
            let layouts = &model.classes[used.class].layouts;
            let (held, wanted) = (layouts[held as usize].clone(), layouts[*wanted as usize].clone());
            let (before, after) = ((Access::Read, &held, &wanted), (Access::Write, &wanted, &held));
            let paid = match used.access {
                Access::Read => vec![before],
                Access::Write => vec![after],
                Access::Update => vec![before, after],
            };
            for (access, from, to) in paid {
                let cost = costs.cost(&used.data, from, to);
                let relayout = Relayout { data: plain(&used.data), from: from.clone(), to: to.clone() };
                let kernel = factor.plain.clone();
                relayouts.push(PlannedRelayout { kernel, access, relayout, ms: cost.ms, measured: cost.measured });
            }
        }
        configuration.kernels.insert(factor.plain.clone(), choice.config.clone());
        let least_ms = milliseconds(factor.choices.first().map_or(choice.ps, |c| c.ps));
        let relayout_ms = milliseconds(factor.cost(choice, &solution.held) - choice.ps);
        kernels.push(KernelCost { kernel: factor.plain.clone(), ms: milliseconds(choice.ps), relayout_ms, least_ms });
    }
    let (total, bound) = (solution.total, solution.bound.min(solution.total));
    let minima = match whole.groups.is_empty() {
        true => whole.sum_of_minima(),
        false => exact::solve(&whole.without_layouts(), SearchLimits::default()).bound,
    };
    Selection {
        method,
        total_ms: milliseconds(total),
        configuration,
        relayouts,
        kernels,
        bound_ms: milliseconds(bound),
        proven: bound >= total,
        gap: if total > 0 { (total - bound) as f64 / total as f64 } else { 0.0 },
        sum_of_minima_ms: milliseconds(minima),
        path_ms: None,
    }
}

/// Configurations and relayouts of some selections, each once: what to measure again before they are compared. Where a
/// container is brought from one layout to a third by way of the one it is held in, the direct way is among them: if it
/// is cheaper, the next selection takes it.
pub fn ingredients(selections: &[Selection]) -> (Vec<(String, KernelConfig)>, Vec<Relayout>) {
    let kernels: BTreeSet<_> = selections.iter().flat_map(|s| s.configuration.kernels.clone()).collect();
    let mut relayouts: BTreeSet<Relayout> = BTreeSet::new();
    for selection in selections {
        relayouts.extend(selection.relayouts.iter().map(|r| r.relayout.clone()));
        for into in selection.relayouts.iter().filter(|r| r.access == Access::Write) {
            let data = &into.relayout.data;
            let out_of = selection.relayouts.iter().filter(|r| r.access == Access::Read && r.relayout.data == *data);
            let direct = out_of.map(|o| Relayout { data: data.clone(), from: into.relayout.from.clone(), to: o.relayout.to.clone() });
            relayouts.extend(direct.filter(|d| d.from != d.to));
        }
    }
    (kernels.into_iter().collect(), relayouts.into_iter().collect())
}
