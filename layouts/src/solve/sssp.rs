//! The paper's selection: shortest path over the forward pass, everything else inferred (VI-A).
//!
//! Layouts on the path are fixed first. Then every kernel in execution order, forward before backward, takes the
//! cheapest configuration given the layouts already fixed, relayouts included; containers it is the first to touch are
//! held as it likes them. Nothing is revised, so the result can cost more than the exact one, never less.

use crate::model::cost::Cost;
use crate::model::selection_model::{Choice, Factor, Model};
use crate::solve::config_graph::{ConfigGraph, GraphScope, PathStep};
use crate::solve::shortest_path::shortest_path;
use crate::solve::solution::Solution;

/// Held layouts chosen by shortest paths over these scopes, one after the other, and by inference; and the length of the
/// first path in milliseconds.
///
/// The paper goes over the forward pass alone. `[Backward, Forward]` decides the backward pass first and the forward pass
/// under what that left; `[Both]` takes one path through both.
pub fn solve(model: &Model, scopes: &[GraphScope]) -> (Solution, f64) {
    let mut held: Vec<Option<u16>> =
        model.classes.iter().map(|c| if c.fixed || c.domain.len() == 1 { c.domain.first().copied() } else { None }).collect();
    let mut length = None;
    let mut visited: Vec<usize> = Vec::new();
    for (n, scope) in scopes.iter().enumerate() {
        // The first path is the paper's: nothing on it is decided but its ends.
        let decided = if n == 0 { vec![None; held.len()] } else { held.clone() };
        let graph = ConfigGraph::of(model, *scope, &decided);
        if let Some(path) = shortest_path(&graph) {
            length.get_or_insert(path.ms);
            for edge in path.edges.iter().map(|e| &graph.edges[*e]) {
                // A container is held as it was first met on the path: as given, or as produced.
                for node in [&graph.nodes[edge.from], &graph.nodes[edge.to]] {
                    let free = held[node.class].is_none() && model.classes[node.class].domain.contains(&node.position);
                    if free && (!node.settled || matches!(edge.step, PathStep::Kernel { .. })) {
                        held[node.class] = Some(node.position);
                    }
                }
            }
        }
        // The chain first: its configurations are those of the path as far as its containers tell.
        let beside = (0..model.factors.len()).filter(|n| scope.holds(model.factors[*n].pass) && !graph.chain.contains(n));
        for n in graph.chain.iter().copied().chain(beside) {
            infer(model, &model.factors[n], &mut held);
            visited.push(n);
        }
    }
    for n in (0..model.factors.len()).filter(|n| !visited.contains(n)) {
        infer(model, &model.factors[n], &mut held);
    }
    let natural = model.natural();
    let held = held.iter().zip(natural).map(|(h, n)| h.unwrap_or(n)).collect();
    (Solution::of(model, held), length.unwrap_or(0.0))
}

fn infer(model: &Model, factor: &Factor, held: &mut [Option<u16>]) {
    let cost = |choice: &Choice| -> Cost {
        let relayout =
            |(u, l): (&crate::model::selection_model::ContainerUse, &u16)| held[u.class].map_or(0, |h| u.cost[h as usize][*l as usize]);
        choice.ps + factor.uses.iter().zip(&choice.layouts).map(relayout).sum::<Cost>()
    };
    // The first among equals: choices are in order.
    let mut best: Option<(Cost, &Choice)> = None;
    for choice in &factor.choices {
        let cost = cost(choice);
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, choice));
        }
    }
    let Some((_, choice)) = best else { return };
    for (u, layout) in factor.uses.iter().zip(&choice.layouts) {
        if held[u.class].is_none() && model.classes[u.class].domain.contains(layout) {
            held[u.class] = Some(*layout);
        }
    }
}
