//! Scopes, edges across them, and cycles.

use super::{Kind, Report, around, scope_after, scope_before};
use crate::node::{Node, StateId};
use crate::state::State;

/// Whether the scopes hold together.
pub(super) fn check(report: &mut Report, id: StateId, state: &State) -> bool {
    let at = (id, state);
    let before = report.found.len();
    for (node, vertex) in state.nodes() {
        if let Some(scope) = vertex.scope
            && !matches!(state.node(scope), Some(Node::MapEntry(_)))
        {
            report.node(Kind::Scope, at, node, format!("it stands in {scope}, which is no map entry; name the entry that holds it"));
        }
        let chain = around(state, vertex.scope);
        let outermost = chain.last().and_then(|n| state.vertex(*n)).and_then(|v| v.scope);
        if chain.contains(&node) || outermost.is_some_and(|n| chain.contains(&n)) {
            report.node(Kind::Scope, at, node, "the scopes around it form a ring; let the outermost stand in no scope".into());
        }
        match &vertex.node {
            Node::MapEntry(map) => {
                let exits: Vec<_> = state.nodes().filter(|(_, v)| matches!(v.node, Node::MapExit { entry } if entry == node)).collect();
                if exits.len() != 1 {
                    report.node(Kind::Scope, at, node, format!("map `{}` has {} exits; give it exactly one", map.label, exits.len()));
                }
                for (exit, found) in exits {
                    if found.scope != vertex.scope {
                        report.node(
                            Kind::Scope,
                            at,
                            exit,
                            format!("the exit does not stand in the scope of its entry {node}; move it there"),
                        );
                    }
                }
            }
            Node::MapExit { entry } if !matches!(state.node(*entry), Some(Node::MapEntry(_))) => {
                report.node(Kind::Scope, at, node, format!("it closes {entry}, which is no map entry; name the entry that it closes"));
            }
            _ => {}
        }
    }
    for (edge, from, to, _) in state.edges() {
        if scope_after(state, from) != scope_before(state, to) {
            report.edge(
                Kind::Scope,
                at,
                edge,
                format!("it runs from {from} to {to} across the border of a scope; lead it through the map's entry or exit"),
            );
        }
    }
    if report.found.len() > before {
        return false;
    }
    let scopes = state.nodes().filter(|(_, v)| matches!(v.node, Node::MapEntry(_))).map(|(n, _)| Some(n));
    for scope in scopes.chain([None]) {
        if state.topological(scope).is_none() {
            let place = scope.or_else(|| state.nodes().next().map(|(n, _)| n)).unwrap_or(crate::node::NodeId(0));
            let what = scope.map_or("the top level of the state".to_string(), |s| format!("the scope of {s}"));
            report.node(
                Kind::Cycle,
                at,
                place,
                format!("the edges of {what} form a cycle; write to a second container instead of one that is read"),
            );
        }
    }
    report.found.len() == before
}
