//! Single-source shortest path over an acyclic graph: one relaxation of every edge in topological order.
//!
//! Nodes are numbered in topological order, so the time is O(nodes + edges) after sorting the edges by source.
//! Among equal paths the one whose edges come first wins.

use crate::solve::config_graph::{ConfigEdge, ConfigGraph};

/// Edges from a source to a target, and their total in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    pub edges: Vec<usize>,
    pub ms: f64,
}

/// The cheapest path from any source to any target; `None` if there is none.
pub fn shortest_path(graph: &ConfigGraph) -> Option<Path> {
    relax(graph.nodes.len(), &graph.edges, &graph.sources, &graph.targets)
}

fn relax(nodes: usize, edges: &[ConfigEdge], sources: &[usize], targets: &[usize]) -> Option<Path> {
    let mut distance = vec![f64::INFINITY; nodes];
    let mut through: Vec<Option<usize>> = vec![None; nodes];
    for source in sources {
        distance[*source] = 0.0;
    }
    let mut order: Vec<usize> = (0..edges.len()).collect();
    order.sort_by_key(|e| (edges[*e].from, *e));
    for e in order {
        let edge = &edges[e];
        let reached = distance[edge.from] + edge.ms;
        if reached < distance[edge.to] {
            distance[edge.to] = reached;
            through[edge.to] = Some(e);
        }
    }
    let target = targets.iter().copied().min_by(|a, b| distance[*a].total_cmp(&distance[*b]).then(a.cmp(b)))?;
    let ms = distance[target];
    if !ms.is_finite() {
        return None;
    }
    let mut path = Vec::new();
    let mut at = target;
    while let Some(e) = through[at] {
        path.push(e);
        at = edges[e].from;
    }
    path.reverse();
    Some(Path { edges: path, ms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::solve::config_graph::PathStep;
    use proptest::prelude::*;

    fn brute_force(edges: &[ConfigEdge], at: usize, targets: &[usize]) -> f64 {
        let stop = if targets.contains(&at) { 0.0 } else { f64::INFINITY };
        edges.iter().filter(|e| e.from == at).map(|e| e.ms + brute_force(edges, e.to, targets)).fold(stop, f64::min)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn equals_brute_force(raw in prop::collection::vec((0usize..7, 1usize..8, 0u32..50), 0..22), sources in 1usize..3) {
            let edges: Vec<ConfigEdge> = raw
                .iter()
                .filter(|(a, b, _)| a < b)
                .map(|(from, to, ms)| ConfigEdge { from: *from, to: *to, ms: f64::from(*ms), step: PathStep::Relayout })
                .collect();
            let sources: Vec<usize> = (0..sources).collect();
            let targets = [6, 7];
            let expected = sources.iter().map(|s| brute_force(&edges, *s, &targets)).fold(f64::INFINITY, f64::min);
            match relax(8, &edges, &sources, &targets) {
                // Whole numbers: sums are exact.
                Some(path) => {
                    prop_assert_eq!(path.ms, expected);
                    prop_assert_eq!(path.edges.iter().map(|e| edges[*e].ms).sum::<f64>(), expected);
                }
                None => prop_assert!(expected.is_infinite()),
            }
        }
    }
}
