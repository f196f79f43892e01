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
        let Some((name, kind)) = kind_of(state, node) else { continue };
        let (reads, writes) = crossing(state, node);
        let mut before = FixedBitSet::with_capacity(units.len());
        for m in reads.iter().filter_map(|data| writers.get(data)).flatten() {
            before.insert(*m);
            before.union_with(&units[*m].before);
        }
        writes.iter().for_each(|data| writers.entry(data.clone()).or_default().push(units.len()));
        units.push(Boundary { node, name: name.to_string(), kind, reads, writes, before });
    }
    units
}

/// Name and kind of the unit at a node; `None` if the node is none.
pub(crate) fn kind_of(state: &State, node: NodeId) -> Option<(&str, Kind)> {
    match state.node(node)? {
        Node::MapEntry(map) => Some((&map.label, Kind::Scope)),
        Node::Library(library) if matches!(library.op, Op::Contraction { .. }) => Some((&library.name, Kind::Contraction)),
        Node::Library(library) => Some((&library.name, Kind::Other)),
        Node::Nested(nested) => Some((&nested.name, Kind::Other)),
        Node::Alternatives(alternatives) => Some((&alternatives.name, Kind::Other)),
        Node::Access(_) | Node::Tasklet(_) | Node::MapExit { .. } => None,
    }
}

/// Names of the containers that a unit reads, and of those that it writes.
pub(crate) fn crossing(state: &State, node: NodeId) -> (BTreeSet<String>, BTreeSet<String>) {
    let (reads, writes) = state.boundary(node);
    let names = |memlets: Vec<&sdfg::Memlet>| memlets.into_iter().map(|m| m.data.clone()).collect();
    (names(reads), names(writes))
}

/// Whether anyone but the given units (and the user) needs a container.
pub(crate) fn needed_outside(program: &Sdfg, state: StateId, fused: &[NodeId], data: &str) -> bool {
    let Some(container) = program.containers.get(data) else { return true };
    if container.role != Role::Transient {
        return true;
    }
    program.states().any(|(id, s)| {
        let readers = s.access(data, None).map(|access| s.edges_out(access)).unwrap_or_default();
        readers.iter().any(|(_, to, _)| id != state || !fused.contains(to))
    })
}
