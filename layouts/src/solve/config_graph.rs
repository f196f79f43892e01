//! The layout-configuration graph of the paper (VI-A, Fig. 6).
//!
//! Operators of the forward pass are visited in depth-first pre-order from the input. A node is (container, layout); an
//! operator is an edge from each layout of its input to each layout of its output, weighted with its fastest measured
//! configuration that has both; relayouts are edges between the layouts of one container, so a path always exists.
//!
//! As in the paper, residual connections are omitted: the graph is a chain of operators. Where the forward pass branches
//! (separate Q, K and V), the chain is the one with most operators, the first in pre-order among equals; operators beside
//! it are inferred from the layouts on it, as those of the backward pass are.
//!
//! Complexity: nodes = layouts summed over the chain, edges ≤ layouts² per operator and per relayout layer.

use crate::model::cost::milliseconds;
use crate::model::selection_model::Model;
use crate::problem::Access;
use sdfg::{Direction, Layout};
use std::collections::{BTreeMap, BTreeSet};

/// A container in a layout, before (`settled: false`) or after a possible relayout.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigNode {
    pub data: String,
    pub layout: Layout,
    pub settled: bool,
    /// Number of operators before it on the chain.
    pub layer: usize,
    pub(crate) class: usize,
    pub(crate) position: u16,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PathStep {
    /// A kernel in one of its measured configurations: positions in the model.
    Kernel {
        factor: usize,
        choice: usize,
    },
    Relayout,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ConfigEdge {
    pub from: usize,
    pub to: usize,
    pub ms: f64,
    pub step: PathStep,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigGraph {
    /// Positions of the kernels on the chain.
    pub chain: Vec<usize>,
    /// In topological order.
    pub nodes: Vec<ConfigNode>,
    /// In the order of their sources.
    pub edges: Vec<ConfigEdge>,
    /// Where a path may begin and end.
    pub sources: Vec<usize>,
    pub targets: Vec<usize>,
}

/// Whose kernels a graph is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphScope {
    /// One pass, as in the paper.
    Pass(Direction),
    /// Both, as one graph.
    Both,
}

impl GraphScope {
    pub fn holds(self, pass: Direction) -> bool {
        match self {
            GraphScope::Pass(own) => own == pass,
            GraphScope::Both => true,
        }
    }
}

/// Kernel, the container through which the chain enters it, and the one through which it leaves.
type Link = (usize, usize, usize);

/// Use that is written, kernel that reads it, its use.
type Successor = (usize, usize, usize);

/// Kernels in depth-first pre-order from those that read what no kernel of the scope writes.
pub fn pre_order(model: &Model, scope: GraphScope) -> Vec<usize> {
    let successors = successors(model, scope);
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    let reached: BTreeSet<usize> = successors.iter().flatten().map(|(_, next, _)| *next).collect();
    let within = |n: &usize| scope.holds(model.factors[*n].pass);
    let mut stack: Vec<usize> = (0..model.factors.len()).filter(|n| within(n) && !reached.contains(n)).rev().collect();
    while let Some(n) = stack.pop() {
        if seen.insert(n) {
            order.push(n);
            stack.extend(successors[n].iter().rev().map(|(_, next, _)| *next));
        }
    }
    order
}

/// For each kernel, in execution order.
fn successors(model: &Model, scope: GraphScope) -> Vec<Vec<Successor>> {
    let mut readers: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
    for (n, factor) in model.factors.iter().enumerate().filter(|(_, f)| scope.holds(f.pass)) {
        for (u, used) in factor.uses.iter().enumerate().filter(|(_, u)| u.access == Access::Read) {
            readers.entry(&used.data).or_default().push((n, u));
        }
    }
    let of = |factor: &crate::model::selection_model::Factor| {
        let writes = factor.uses.iter().enumerate().filter(|(_, u)| u.access != Access::Read && scope.holds(factor.pass));
        let mut next: Vec<Successor> =
            writes.flat_map(|(w, used)| readers.get(used.data.as_str()).into_iter().flatten().map(move |(n, u)| (w, *n, *u))).collect();
        next.sort_by_key(|(w, n, u)| (*n, *w, *u));
        next
    };
    model.factors.iter().map(of).collect()
}

/// The chain: longest path over the dataflow of the kernels (execution order is topological).
fn chain(model: &Model, scope: GraphScope) -> Vec<Link> {
    let successors = successors(model, scope);
    // (operators from here on, use left by, next kernel, use entered by)
    let mut longest: Vec<(usize, Option<Successor>)> = vec![(1, None); model.factors.len()];
    for n in (0..model.factors.len()).rev() {
        for link in successors[n].iter().filter(|(_, next, _)| *next > n) {
            if longest[link.1].0 + 1 > longest[n].0 {
                longest[n] = (longest[link.1].0 + 1, Some(*link));
            }
        }
    }
    let order = pre_order(model, scope);
    let most = order.iter().map(|n| longest[*n].0).max().unwrap_or(0);
    let Some(mut at) = order.into_iter().find(|n| longest[*n].0 == most) else { return Vec::new() };
    // It enters through the first container read that no kernel of the scope writes, and leaves through the last one written.
    let written: BTreeSet<&str> = model
        .factors
        .iter()
        .filter(|f| scope.holds(f.pass))
        .flat_map(|f| &f.uses)
        .filter(|u| u.access != Access::Read)
        .map(|u| u.data.as_str())
        .collect();
    let uses = &model.factors[at].uses;
    let given = uses.iter().position(|u| u.access == Access::Read && !written.contains(u.data.as_str()));
    let mut entered = given.or_else(|| uses.iter().position(|u| u.access == Access::Read)).unwrap_or(0);
    let mut links = Vec::new();
    loop {
        match longest[at].1 {
            Some((leave, next, enter)) => {
                links.push((at, entered, leave));
                (at, entered) = (next, enter);
            }
            None => {
                let leave = model.factors[at].uses.iter().rposition(|u| u.access != Access::Read).unwrap_or(entered);
                links.push((at, entered, leave));
                return links;
            }
        }
    }
}

impl ConfigGraph {
    /// The graph of the paper: the forward pass, nothing decided before.
    pub fn new(model: &Model) -> Self {
        Self::of(model, GraphScope::Pass(Direction::Forward), &vec![None; model.classes.len()])
    }

    /// The graph of a scope, where some classes are held in a layout already: a container among them is brought to it
    /// after it was written and from it before it is read.
    pub fn of(model: &Model, scope: GraphScope, decided: &[Option<u16>]) -> Self {
        let links = chain(model, scope);
        let mut graph = ConfigGraph { chain: links.iter().map(|(n, _, _)| *n).collect(), ..ConfigGraph::default() };
        // Nodes of the layer that the chain has reached, by layout.
        let mut frontier: BTreeMap<u16, usize> = BTreeMap::new();
        for (layer, (n, enter, leave)) in links.iter().enumerate() {
            let factor = &model.factors[*n];
            if layer == 0 {
                let class = factor.uses[*enter].class;
                let domain = decided[class].map_or_else(|| model.classes[class].domain.clone(), |held| vec![held]);
                for position in &domain {
                    let node = graph.add(model, *n, *enter, *position, false, 0);
                    frontier.insert(*position, node);
                    graph.sources.push(node);
                }
            }
            // The fastest configuration for each pair of layouts: choices are sorted by time.
            let mut fastest: BTreeMap<(u16, u16), usize> = BTreeMap::new();
            for (c, choice) in factor.choices.iter().enumerate() {
                fastest.entry((choice.layouts[*enter], choice.layouts[*leave])).or_insert(c);
            }
            let wanted: BTreeSet<u16> = fastest.keys().map(|(i, _)| *i).collect();
            let settled: BTreeMap<u16, usize> =
                wanted.into_iter().map(|position| (position, graph.add(model, *n, *enter, position, true, layer))).collect();
            for (held, from) in &frontier {
                for (position, to) in &settled {
                    let used = &factor.uses[*enter];
                    let ps = match (decided[used.class], layer) {
                        (Some(between), 1..) => {
                            let (writer, _, left) = links[layer - 1];
                            let written = &model.factors[writer].uses[left];
                            written.cost[between as usize][*held as usize] + used.cost[between as usize][*position as usize]
                        }
                        _ => used.cost[*held as usize][*position as usize],
                    };
                    let ms = milliseconds(ps);
                    graph.edges.push(ConfigEdge { from: *from, to: *to, ms, step: PathStep::Relayout });
                }
            }
            let produced: BTreeSet<u16> = fastest.keys().map(|(_, o)| *o).collect();
            frontier = produced.into_iter().map(|position| (position, graph.add(model, *n, *leave, position, false, layer + 1))).collect();
            for ((i, o), choice) in fastest {
                let ms = milliseconds(factor.choices[choice].ps);
                graph.edges.push(ConfigEdge { from: settled[&i], to: frontier[&o], ms, step: PathStep::Kernel { factor: *n, choice } });
            }
        }
        if let Some((n, _, leave)) = links.last() {
            // The last container must end as it is wanted.
            let used = &model.factors[*n].uses[*leave];
            let domain = decided[used.class].map_or_else(|| model.classes[used.class].domain.clone(), |held| vec![held]);
            for position in &domain {
                let target = graph.add(model, *n, *leave, *position, true, links.len());
                for (held, from) in &frontier {
                    let ms = milliseconds(used.cost[*position as usize][*held as usize]);
                    graph.edges.push(ConfigEdge { from: *from, to: target, ms, step: PathStep::Relayout });
                }
                graph.targets.push(target);
            }
        }
        graph
    }

    fn add(&mut self, model: &Model, factor: usize, used: usize, position: u16, settled: bool, layer: usize) -> usize {
        let used = &model.factors[factor].uses[used];
        let layout = model.classes[used.class].layouts[position as usize].clone();
        self.nodes.push(ConfigNode { data: used.data.clone(), layout, settled, layer, class: used.class, position });
        self.nodes.len() - 1
    }
}
