//! Choosing one configuration for the whole program from what was measured.
//!
//! Everything here is a function of program and store: the same measurements give the same bytes. Ties fall to the
//! earlier layout (natural first) and the earlier configuration in their order.

use crate::config_graph::ConfigGraph;
use crate::exact::{self, Limits, Solution};
use crate::model::{Factor, Model, SelectError};
use crate::problem::{Access, Program};
use crate::relayout::RelayoutCosts;
use crate::store::Store;
use crate::{sssp, uniform};
use sdfg::config::{Configuration, KernelConfig, Relayout};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// How a choice is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// The optimum, with proof.
    Exact,
    /// Shortest path over the forward pass, the rest inferred (the paper's VI-A).
    Sssp,
    /// One order of dims for every container, the best one; knobs free.
    Uniform,
    /// Row-major in the recipe's dim order; knobs free.
    Natural,
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Exact => "exact",
            Method::Sssp => "shortest path",
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

/// What a kernel costs within the choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelCost {
    pub kernel: String,
    pub ms: f64,
    pub relayout_ms: f64,
    /// Its fastest measured configuration, whatever the layouts.
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

/// Chooses with one method.
pub fn select(program: &Program, store: &Store, method: Method, limits: Limits) -> Result<Selection, SelectError> {
    let costs = RelayoutCosts::new(program, store);
    let model = Model::new(program, store, &costs)?;
    let mut path_ms = None;
    let solution = match method {
        Method::Exact => exact::solve(&model, limits),
        Method::Sssp => {
            let (solution, length) = sssp::solve(&model, &ConfigGraph::new(&model));
            path_ms = Some(length);
            solution
        }
        Method::Uniform => uniform::solve(&model),
        Method::Natural => uniform::strict(&model, model.natural()),
    };
    let mut selection = write_out(&model, &costs, method, &solution);
    selection.path_ms = path_ms;
    Ok(selection)
}

/// The `count` best choices that differ in how some container is held, best first; fewer if there are fewer.
///
/// Lawler's partition: what remains after a best choice splits into disjoint parts, in each of which one class must
/// differ and those before it stay. Exact if the best choice is proven; otherwise (the program is too wide for a proof
/// within the limits) the parts are only improved one class at a time, from the choice they exclude.
pub fn select_top(program: &Program, store: &Store, count: usize, limits: Limits) -> Result<Vec<Selection>, SelectError> {
    let costs = RelayoutCosts::new(program, store);
    let whole = Model::new(program, store, &costs)?;
    let first = exact::solve(&whole, limits);
    let proven = first.proven;
    let mut open = vec![(first, whole.clone())];
    let mut chosen: Vec<Selection> = Vec::new();
    while chosen.len() < count {
        let best = open.iter().enumerate().min_by(|a, b| a.1.0.total_ms.total_cmp(&b.1.0.total_ms).then(a.0.cmp(&b.0)));
        let Some(best) = best.map(|(n, _)| n) else { break };
        let (solution, mut part) = open.remove(best);
        for class in 0..part.classes.len() {
            let held = solution.held[class];
            if part.classes[class].domain.len() > 1 {
                let mut other = part.clone();
                other.classes[class].domain.retain(|l| *l != held);
                let found = if proven {
                    exact::solve(&other, limits)
                } else {
                    let mut start = solution.held.clone();
                    start[class] = other.classes[class].domain[0];
                    Solution::of(&other, exact::descend(&other, start))
                };
                open.push((found, other));
            }
            part.classes[class].domain = vec![held];
        }
        chosen.push(write_out(&whole, &costs, Method::Exact, &solution));
    }
    // Without a proof a part can turn out cheaper than the choice it was split from.
    chosen.sort_by(|a, b| a.total_ms.total_cmp(&b.total_ms));
    Ok(chosen)
}

/// The fastest measured configuration of every kernel, whatever its layouts: (kernel, configuration, ms).
pub fn minima(program: &Program, store: &Store) -> Result<Vec<(String, KernelConfig, f64)>, SelectError> {
    let model = Model::new(program, store, &RelayoutCosts::new(program, store))?;
    let first = |f: &Factor| f.choices.first().map(|c| (f.name.clone(), c.config.clone(), c.ms));
    Ok(model.factors.iter().filter_map(first).collect())
}

/// Spells a solution out.
pub fn write_out(model: &Model, costs: &RelayoutCosts, method: Method, solution: &Solution) -> Selection {
    let mut configuration = Configuration::default();
    for (class, held) in model.classes.iter().zip(&solution.held) {
        for data in &class.members {
            configuration.layouts.insert(data.clone(), class.layouts[*held as usize].clone());
        }
    }
    let mut relayouts = Vec::new();
    let mut kernels = Vec::new();
    for (factor, choice) in model.factors.iter().zip(&solution.choices) {
        let choice = &factor.choices[*choice];
        let mut relayout_ms = 0.0;
        for (used, wanted) in factor.uses.iter().zip(&choice.layouts) {
            let held = solution.held[used.class];
            if held == *wanted {
                continue;
            }
            let layouts = &model.classes[used.class].layouts;
            let (held, wanted) = (layouts[held as usize].clone(), layouts[*wanted as usize].clone());
            let (from, to) = if used.access == Access::Read { (held, wanted) } else { (wanted, held) };
            let cost = costs.cost(&used.data, &from, &to);
            relayout_ms += cost.ms;
            let relayout = Relayout { data: used.data.clone(), from, to };
            let kernel = factor.name.clone();
            relayouts.push(PlannedRelayout { kernel, access: used.access, relayout, ms: cost.ms, measured: cost.measured });
        }
        configuration.kernels.insert(factor.name.clone(), choice.config.clone());
        let least_ms = factor.choices.first().map_or(choice.ms, |c| c.ms);
        kernels.push(KernelCost { kernel: factor.name.clone(), ms: choice.ms, relayout_ms, least_ms });
    }
    Selection {
        method,
        total_ms: solution.total_ms,
        configuration,
        relayouts,
        kernels,
        bound_ms: solution.bound_ms,
        proven: solution.proven,
        gap: solution.gap(),
        sum_of_minima_ms: model.sum_of_minima(),
        path_ms: None,
    }
}

/// Configurations and relayouts of some selections, each once: what to measure again before they are compared.
pub fn ingredients(selections: &[Selection]) -> (Vec<(String, KernelConfig)>, Vec<Relayout>) {
    let kernels: BTreeSet<_> = selections.iter().flat_map(|s| s.configuration.kernels.clone()).collect();
    let relayouts: BTreeSet<_> = selections.iter().flat_map(|s| s.relayouts.iter().map(|r| r.relayout.clone())).collect();
    (kernels.into_iter().collect(), relayouts.into_iter().collect())
}
