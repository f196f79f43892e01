//! The units of a state as seen from outside: what each reads and writes, what it depends on, and who else needs a
//! container.

use fixedbitset::FixedBitSet;
use sdfg::{Node, NodeId, Op, Role, Sdfg, State, StateId};
use std::collections::{BTreeMap, BTreeSet};

/// One unit of a state: what it is and what crosses its boundary.
pub(crate) struct Boundary {
    pub node: NodeId,
    pub name: String,
    pub kind: Kind,
    pub reads: BTreeSet<String>,
    pub writes: BTreeSet<String>,
    /// Positions of all units that it depends on, directly or not.
    pub before: FixedBitSet,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Scope,
    Contraction,
    Other,
}

/// The units of a state in execution order. Read once for all pairs: what is inside a scope is read only when a pair
/// comes as far as being fused.
pub(crate) fn boundaries(state: &State) -> Vec<Boundary> {
    let mut units: Vec<Boundary> = Vec::new();
    let mut writers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for node in state.topological(None).unwrap_or_default() {
        let (name, kind) = match state.node(node) {
            Some(Node::MapEntry(map)) => (&map.label, Kind::Scope),
            Some(Node::Library(library)) if matches!(library.op, Op::Contraction { .. }) => (&library.name, Kind::Contraction),
            Some(Node::Library(library)) => (&library.name, Kind::Other),
            Some(Node::Nested(nested)) => (&nested.name, Kind::Other),
            Some(Node::Alternatives(alternatives)) => (&alternatives.name, Kind::Other),
            _ => continue,
        };
        let (reads, writes) = state.boundary(node);
        let reads: BTreeSet<String> = reads.into_iter().map(|m| m.data.clone()).collect();
        let mut before = FixedBitSet::with_capacity(units.len());
        for m in reads.iter().filter_map(|data| writers.get(data)).flatten() {
            before.insert(*m);
            before.union_with(&units[*m].before);
        }
        let writes: BTreeSet<String> = writes.into_iter().map(|m| m.data.clone()).collect();
        writes.iter().for_each(|data| writers.entry(data.clone()).or_default().push(units.len()));
        units.push(Boundary { node, name: name.clone(), kind, reads, writes, before });
    }
    units
}

/// Whether anyone but the given units (and the user) needs a container.
pub(crate) fn needed_outside(program: &Sdfg, state: StateId, fused: &[NodeId], data: &str) -> bool {
    let Some(container) = program.containers.get(data) else { return true };
    if container.role != Role::Transient {
        return true;
    }
    program.states().any(|(id, s)| {
        s.edges().any(|(_, from, to, edge)| {
            edge.memlet.data == data
                && s.vertex(from).is_some_and(|v| v.scope.is_none() && matches!(v.node, Node::Access(_)))
                && (id != state || !fused.contains(&to))
        })
    })
}
