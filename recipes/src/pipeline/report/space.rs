//! The measured part of the configuration space, and the selections from it (Table II, Figs. 4 to 6).

use super::{Choices, KernelTime, SweptPrograms, TrialCost};
use super::{Finished, Plan, measured, missing, predicted};
use crate::pipeline::PipelineError;
use bench::model::{
    AlgebraicVariant, CompositionPart, CompositionRow, Coverage, DrawnEdge, DrawnGraph, DrawnNode, KernelSweep, ProductRow, SelectionRow,
    SweptConfiguration, Time,
};
use bench::unit::{Measured, Milliseconds};
use layouts::config_graph::{self, PathStep};
use layouts::measure::space::KernelSpace;
use layouts::problem::Kernel;
use layouts::record::Outcome;
use layouts::relayout::RelayoutCosts;
use layouts::shortest_path::shortest_path;
use layouts::{Model, Store, Tally};
use sdfg::config::KernelConfig;
use sdfg::{Class, Direction, Layout};
use std::collections::{BTreeMap, BTreeSet};

/// Layouts drawn in each layer of the configuration graph.
const DRAWN: usize = 6;

/// Every measured configuration of the plan's kernels.
pub fn sweeps(run: &Finished, plan: &Plan) -> Vec<KernelSweep> {
    let classes: BTreeMap<&str, Class> = plan.kernels.iter().map(|k| (k.name.as_str(), k.class)).collect();
    let mut found = Vec::new();
    for kernel in &plan.swept.kernels {
        let plan = plan.candidate;
        let in_plan = plan.measured_as.get(kernel.name()).or_else(|| plan.configuration.kernels.get(kernel.name()));
        let (mut configurations, mut chosen) = (Vec::new(), None);
        for m in run.store.of(kernel.key()) {
            let Some(ms) = run.store.ms(m) else { continue };
            if in_plan == Some(&m.config) {
                chosen = Some(configurations.len());
            }
            let median = Measured(Milliseconds(ms));
            configurations.push(SweptConfiguration {
                label: m.config.to_string(),
                median,
                intuitive: kernel.matches_rule_of_thumb(&m.config),
            });
        }
        let class = classes.get(kernel.name()).copied().unwrap_or(Class::Elementwise);
        found.push(KernelSweep { kernel: kernel.name().to_string(), class, configurations, chosen });
    }
    found
}

/// The outcomes of all configurations. Kernels that several programs share count once.
pub fn coverage(sweeps: &SweptPrograms) -> Coverage {
    let mut seen = BTreeSet::new();
    let mut total = Tally::default();
    for swept in sweeps.variants.iter().chain(&sweeps.trials).chain(&sweeps.unfused) {
        for kernel in &swept.problem.kernels {
            // Some programs sweep only some of their kernels.
            if let Some(tally) = swept.report.tallies.get(&kernel.name).filter(|_| seen.insert(&kernel.key)) {
                total += *tally;
            }
        }
    }
    Coverage {
        enumerated: total.enumerated,
        identical: total.identical,
        bounded_out: total.bounded,
        raced: total.raced,
        full: total.full,
        unfit: total.mismatch + total.failed,
        not_reached: total.not_reached,
    }
}

/// The selection of each method for each program, compared with the least sum of fastest kernels over all programs.
pub fn selection(run: &Finished) -> Vec<SelectionRow> {
    let all = || run.choices.iter().flat_map(|c| c.selections.iter().map(move |s| (c, s)));
    let least = all().map(|(_, s)| s.sum_of_minima_ms).fold(f64::INFINITY, f64::min);
    let row = |(choice, s): (&Choices, &layouts::Selection)| {
        let program = run.sweeps.variants.get(choice.swept).map(|v| v.name.as_str()).unwrap_or_default();
        SelectionRow {
            method: format!("{program} · {}", s.method),
            total: predicted(s.total_ms),
            lower_bound: predicted(least),
            proven: s.proven,
        }
    };
    all().map(row).collect()
}

/// The comparison that decided each fusion of contractions.
pub fn compositions(sweeps: &SweptPrograms) -> Vec<CompositionRow> {
    let parts =
        |parts: &[KernelTime]| parts.iter().map(|p| CompositionPart { kernel: p.kernel.clone(), time: p.ms.map(measured) }).collect();
    let row = |w: &TrialCost| CompositionRow {
        subject: w.subjects(),
        holds: w.kinds.iter().map(ToString::to_string).collect(),
        change: w.change.clone(),
        with: parts(&w.with),
        instead: parts(&w.instead),
        changed: w.changed,
        note: w.note.clone(),
    };
    sweeps.partial_fusion.weighed.iter().map(row).collect()
}

/// Contractions for which several library algorithms were tried, in program order; those that programs share count once.
pub fn products(sweeps: &SweptPrograms, store: &Store) -> Vec<ProductRow> {
    let mut seen = BTreeSet::new();
    let kernels = sweeps.variants.iter().flat_map(|swept| &swept.kernels).filter(|kernel| seen.insert(kernel.key().to_string()));
    let rows = kernels.filter_map(|kernel| {
        let tried = || store.of(kernel.key()).filter(|m| m.config.knobs.get("algorithm").is_some());
        let timed: Vec<(&KernelConfig, f64)> = tried().filter_map(|m| Some((&m.config, store.ms(m)?))).collect();
        // Configurations that were given up for being slow ran nonetheless: the fastest run bounds the time of plain units.
        let given_up = tried().filter(|m| units(&m.config) == "plain").filter_map(|m| match m.outcome {
            Outcome::Raced { bound_ms, .. } => Some(bound_ms),
            _ => None,
        });
        product(kernel.name(), &timed, given_up.min_by(f64::total_cmp))
    });
    rows.collect()
}

fn units(config: &KernelConfig) -> &str {
    config.knobs.get("units").unwrap_or_default()
}

/// One contraction, by its configurations with milliseconds, and by the milliseconds of given-up plain units.
fn product(kernel: &str, timed: &[(&KernelConfig, f64)], given_up: Option<f64>) -> Option<ProductRow> {
    let (fastest, best) = timed.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let described = |config: &KernelConfig| {
        let mut all = config.clone();
        all.knobs.0.remove("algorithm");
        all
    };
    // By description: the time of the library's own choice, and the best time.
    let mut groups: BTreeMap<KernelConfig, (Option<f64>, f64)> = BTreeMap::new();
    for (config, ms) in timed {
        let group = groups.entry(described(config)).or_insert((None, f64::INFINITY));
        group.0 = if config.knobs.get("algorithm") == Some("0") { Some(*ms) } else { group.0 };
        group.1 = group.1.min(*ms);
    }
    let plain = timed.iter().filter(|(config, _)| units(config) == "plain").map(|(_, ms)| *ms).chain(given_up).min_by(f64::total_cmp);
    Some(ProductRow {
        kernel: kernel.to_string(),
        measured: timed.len() as u64,
        descriptions: groups.len() as u64,
        best: measured(*best),
        first: groups.get(&described(fastest)).and_then(|(first, _)| *first).map(measured),
        worst: groups.values().filter_map(|(first, best)| Some((*first)? / *best)).filter(|worst| worst.is_finite()).max_by(f64::total_cmp),
        plain: plain.map(measured),
    })
}

/// Separate and stacked contractions: the sum of fastest times over kernels that not all programs share.
pub fn algebraic(run: &Finished, plan: &Plan) -> Vec<AlgebraicVariant> {
    let variants = &run.sweeps.variants;
    if variants.len() < 2 {
        return vec![];
    }
    let common = |key: &str| variants.iter().all(|v| v.problem.kernels.iter().any(|k| k.key == key));
    let time = |kernels: &[Kernel], pass: Direction| -> Option<Time> {
        let concerned = kernels.iter().filter(|k| k.pass == pass && !common(&k.key));
        let least = |k: &Kernel| run.store.of(&k.key).filter_map(|m| run.store.ms(m)).min_by(f64::total_cmp);
        let total = concerned.map(least).sum::<Option<f64>>()?;
        (total > 0.0).then(|| measured(total))
    };
    let groups: BTreeSet<String> = transforms::stack::groups(&run.programs.operators).into_iter().map(|g| g.weights.join(", ")).collect();
    let site = groups.into_iter().collect::<Vec<_>>().join("; ");
    variants
        .iter()
        .zip(&run.sweeps.keys)
        .map(|(v, key)| AlgebraicVariant {
            site: site.clone(),
            variant: v.name.clone(),
            forward: time(&v.problem.kernels, Direction::Forward),
            backward: time(&v.problem.kernels, Direction::Backward),
            chosen: *key == plan.key,
        })
        .collect()
}

/// The chain of forward kernels with, in each layer, the plan's layout and the fastest others.
pub fn config_graph(run: &Finished, plan: &Plan) -> Result<DrawnGraph, PipelineError> {
    let problem = &plan.swept.problem;
    let costs = RelayoutCosts::new(problem, run.store);
    let model = Model::new(problem, run.store, &costs)?;
    let graph = config_graph::ConfigGraph::new(&model);
    let configuration = &plan.candidate.configuration;
    // A node is in the plan if its layout is the one its kernel writes; behind a possible relayout, the one the next kernel reads; at the
    // ends, the held one.
    let in_plan = |node: &config_graph::ConfigNode| {
        let kernel = if node.settled { Some(node.layer) } else { node.layer.checked_sub(1) };
        let factor = kernel.and_then(|n| graph.chain.get(n)).and_then(|n| model.factors.get(*n));
        let used = factor.and_then(|f| configuration.kernels.get(&f.name)).and_then(|c| c.layouts.get(&node.data));
        used.or_else(|| configuration.layouts.get(&node.data)) == Some(&node.layout)
    };
    let shortest: BTreeSet<usize> = shortest_path(&graph).map(|p| p.edges.into_iter().collect()).unwrap_or_default();
    let on_path: BTreeSet<usize> = shortest.iter().filter_map(|e| graph.edges.get(*e)).flat_map(|edge| [edge.from, edge.to]).collect();
    let mut least = vec![f64::INFINITY; graph.nodes.len()];
    for edge in &graph.edges {
        for end in [edge.from, edge.to] {
            if let Some(least) = least.get_mut(end) {
                *least = least.min(edge.ms);
            }
        }
    }
    let layer_of = |node: &config_graph::ConfigNode| 2 * node.layer + usize::from(node.settled);
    let mut layers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (n, node) in graph.nodes.iter().enumerate() {
        layers.entry(layer_of(node)).or_default().push(n);
    }
    let mut shown = DrawnGraph::default();
    let mut place: BTreeMap<usize, usize> = BTreeMap::new();
    for members in layers.values_mut() {
        let node = |n: &usize| graph.nodes.get(*n).ok_or_else(|| missing("every node of the configuration graph"));
        let mut ranked = members
            .iter()
            .map(|n| Ok((!in_plan(node(n)?), !on_path.contains(n), least[*n], *n)))
            .collect::<Result<Vec<_>, PipelineError>>()?;
        ranked.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(a.2.total_cmp(&b.2)).then(a.3.cmp(&b.3)));
        for (other, _, _, n) in ranked.into_iter().take(DRAWN) {
            let at = node(&n)?;
            place.insert(n, shown.nodes.len());
            shown.nodes.push(DrawnNode { layer: shown.layers.len(), label: at.layout.to_string(), chosen: !other });
        }
        let first = node(members.first().ok_or_else(|| missing("a node in every layer"))?)?;
        shown.layers.push(match first.settled {
            true if first.layer == graph.chain.len() => format!("{}, as wanted", first.data),
            true => format!("{}, as read", first.data),
            false => first.data.clone(),
        });
    }
    for (n, edge) in graph.edges.iter().enumerate() {
        let (Some(from), Some(to)) = (place.get(&edge.from), place.get(&edge.to)) else { continue };
        let chosen = [from, to].iter().all(|n| shown.nodes.get(**n).is_some_and(|n| n.chosen));
        let (label, ms) = match &edge.step {
            PathStep::Kernel { factor, .. } => (model.factors.get(*factor).map(|f| f.name.clone()).unwrap_or_default(), edge.ms),
            PathStep::Relayout => {
                let ends = graph.nodes.get(edge.from).zip(graph.nodes.get(edge.to));
                let (from, to) = ends.ok_or_else(|| missing("both ends of every edge"))?;
                // The plan may hold the container in a third layout between the two.
                let held = configuration.layouts.get(&from.data).filter(|_| chosen).unwrap_or(&to.layout);
                relayout(&costs, &from.data, &[&from.layout, held, &to.layout])
            }
        };
        shown.edges.push(DrawnEdge {
            from: *from,
            to: *to,
            label,
            time: Measured(Milliseconds(ms)),
            chosen,
            shortest: shortest.contains(&n),
        });
    }
    shown.omitted_nodes = (graph.nodes.len() - shown.nodes.len()) as u64;
    shown.omitted_edges = (graph.edges.len() - shown.edges.len()) as u64;
    Ok(shown)
}

/// The kind of relayout from one layout to the next, and its cost in milliseconds.
fn relayout(costs: &RelayoutCosts, data: &str, layouts: &[&Layout]) -> (String, f64) {
    let hops: Vec<_> = layouts.windows(2).filter(|pair| pair[0] != pair[1]).map(|pair| costs.cost(data, pair[0], pair[1])).collect();
    let what = match hops.as_slice() {
        [] => "kept",
        [..] if hops.iter().any(|c| !c.measured) => "relayout, estimated",
        [_] => "relayout",
        [..] => "two relayouts",
    };
    (what.to_string(), hops.iter().fold(0.0, |total, c| total + c.ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdfg::config::Knobs;

    fn config(order: &[&str], algorithm: usize, units: &str) -> KernelConfig {
        let knobs = Knobs::default().with("algorithm", algorithm).with("units", units);
        KernelConfig { layouts: [("y".to_string(), Layout::of(order))].into(), knobs }
    }

    #[test]
    fn the_librarys_choice_is_compared_under_the_same_layouts() {
        let [near, far] = [["b", "u"], ["u", "b"]];
        let configs = [
            (config(&near, 0, "any"), 1.1),
            (config(&near, 3, "any"), 1.0),
            (config(&far, 0, "any"), 2.0),
            (config(&far, 1, "any"), 1.6),
            (config(&near, 0, "plain"), 8.0),
            // Without a time of the library's choice, its loss is unknown.
            (config(&far, 2, "plain"), 9.0),
        ];
        let timed: Vec<(&KernelConfig, f64)> = configs.iter().map(|(c, ms)| (c, *ms)).collect();
        let row = product("qq.dot", &timed, None).expect("a row");
        assert_eq!((row.measured, row.descriptions), (6, 4));
        assert!(row.loss().is_some_and(|loss| (loss - 0.1).abs() < 1e-12), "{row:?}");
        assert!(row.worst.is_some_and(|worst| (worst - 1.25).abs() < 1e-12), "{row:?}");
        assert_eq!(row.gain(), Some(8.0));
        let alone = product("qq.dot", &timed[5..], None).expect("a row");
        assert_eq!((alone.loss(), alone.worst), (None, None));
        assert_eq!(product("qq.dot", &[], Some(3.0)), None);
        // Only given-up configurations of plain units.
        assert_eq!(product("qq.dot", &timed[..4], Some(9.0)).and_then(|row| row.gain()), Some(9.0));
        assert_eq!(product("qq.dot", &timed[..4], None).and_then(|row| row.gain()), None);
    }
}
