//! The units of a state as a graph: what each reads, writes and depends on, and the bytes that cross the boundary of several units.
//!
//! Containers are numbered in the order of their names, so that searches through long programs compare numbers and no names.

use fixedbitset::FixedBitSet;
use sdfg::{Node, NodeId, Op, Range, Role, Sdfg, State, StateId, Storage};
use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};

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

/// The units of a state in execution order. Only boundaries are read here; the inside of a scope is read when a pair is about to be
/// fused.
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
        // A gather stays a kernel of its own: what names its rows must be in memory, and its reads have no fixed places.
        Node::MapEntry(map) if reads_by_value(state, node) => Some((&map.label, Kind::Other)),
        Node::MapEntry(map) => Some((&map.label, Kind::Scope)),
        Node::Library(library) if matches!(library.op, Op::Contraction { .. }) => Some((&library.name, Kind::Contraction)),
        Node::Library(library) => Some((&library.name, Kind::Other)),
        Node::Nested(nested) => Some((&nested.name, Kind::Other)),
        Node::Access(_) | Node::Tasklet(_) | Node::MapExit { .. } => None,
    }
}

/// Whether a map's tasklets have subscripts that are elements of containers.
fn reads_by_value(state: &State, entry: NodeId) -> bool {
    let by_value = |range: &Range| matches!(range, Range::At(at) if at.reads_elements());
    state.edges_out(entry).iter().any(|(_, _, edge)| edge.memlet.subset.iter().any(by_value))
}

/// Names of the containers that a unit reads, and of those that it writes.
pub(crate) fn crossing(state: &State, node: NodeId) -> (BTreeSet<String>, BTreeSet<String>) {
    let (reads, writes) = state.boundary(node);
    let names = |memlets: Vec<&sdfg::Memlet>| memlets.into_iter().map(|m| m.data.clone()).collect();
    (names(reads), names(writes))
}

/// Whether a unit other than these, or the caller, needs a container.
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

/// Positions of units in their state's execution order.
pub(crate) type Members = BTreeSet<usize>;

pub(crate) struct UnitGraph<'a> {
    program: &'a Sdfg,
    pub id: StateId,
    pub state: &'a State,
    /// In execution order.
    pub all: Vec<Boundary>,
    names: Vec<String>,
    /// By unit: the containers that it reads, and those that it writes.
    reads: Vec<Vec<usize>>,
    writes: Vec<Vec<usize>>,
    /// By container: the units that read it, and those that write it.
    readers: Vec<Vec<usize>>,
    writers: Vec<Vec<usize>>,
    /// By container: whether another state or the caller needs it.
    leaving: OnceCell<Vec<bool>>,
    /// By unit: bytes that it moves of a container.
    moved: Vec<OnceCell<BTreeMap<usize, u64>>>,
    /// Bytes that cross the boundary of each set of members that was looked at. Candidates share most of these sets.
    crossing: RefCell<HashMap<Members, u64>>,
}

impl<'a> UnitGraph<'a> {
    pub fn new(program: &'a Sdfg, (id, state): (StateId, &'a State)) -> Self {
        let all = boundaries(state);
        let mut touched: Vec<&String> = all.iter().flat_map(|u| u.reads.iter().chain(&u.writes)).collect();
        touched.sort_unstable();
        touched.dedup();
        let names: Vec<String> = touched.into_iter().cloned().collect();
        let numbers = |data: &BTreeSet<String>| data.iter().filter_map(|d| names.binary_search(d).ok()).collect();
        let reads: Vec<Vec<usize>> = all.iter().map(|u| numbers(&u.reads)).collect();
        let writes: Vec<Vec<usize>> = all.iter().map(|u| numbers(&u.writes)).collect();
        let by_container = |of: &[Vec<usize>]| {
            let mut users = vec![vec![]; names.len()];
            of.iter().enumerate().for_each(|(unit, data)| data.iter().for_each(|d| users[*d].push(unit)));
            users
        };
        UnitGraph {
            program,
            id,
            state,
            readers: by_container(&reads),
            writers: by_container(&writes),
            leaving: OnceCell::new(),
            moved: all.iter().map(|_| OnceCell::new()).collect(),
            crossing: RefCell::default(),
            all,
            names,
            reads,
            writes,
        }
    }

    /// The number of a container that crosses the boundary of some unit.
    pub fn number(&self, data: &str) -> Option<usize> {
        self.names.binary_search_by(|name| name.as_str().cmp(data)).ok()
    }

    pub fn name(&self, data: usize) -> &str {
        &self.names[data]
    }

    pub fn reads(&self, unit: usize) -> &[usize] {
        &self.reads[unit]
    }

    pub fn writes(&self, unit: usize) -> &[usize] {
        &self.writes[unit]
    }

    pub fn readers(&self, data: usize) -> &[usize] {
        &self.readers[data]
    }

    pub fn leaves(&self, data: usize) -> bool {
        self.leaving.get_or_init(|| {
            let others = self.program.states().filter(|(other, _)| *other != self.id).flat_map(|(_, other)| boundaries(other));
            let outside: BTreeSet<String> = others.flat_map(|unit| unit.reads).collect();
            let kept = |name: &String| self.program.containers.get(name).is_some_and(|c| c.role != Role::Transient);
            self.names.iter().map(|name| kept(name) || outside.contains(name)).collect()
        })[data]
    }

    /// The units that read what a unit writes, and those that write what it reads.
    pub fn beside(&self, unit: usize) -> impl Iterator<Item = usize> {
        let after = self.writes[unit].iter().flat_map(|d| &self.readers[*d]);
        after.chain(self.reads[unit].iter().flat_map(|d| &self.writers[*d])).copied()
    }

    /// The first unit that is no member and reads a container.
    pub fn reader_outside(&self, data: usize, members: &Members) -> Option<usize> {
        self.readers[data].iter().copied().find(|n| !members.contains(n))
    }

    /// The first member that writes a container.
    pub fn maker(&self, data: usize, members: &Members) -> Option<usize> {
        self.writers[data].iter().copied().find(|n| members.contains(n))
    }

    /// Bytes that a unit moves of each heap container.
    pub fn moved(&self, unit: usize) -> &BTreeMap<usize, u64> {
        self.moved[unit].get_or_init(|| {
            let mut found: BTreeMap<usize, u64> = BTreeMap::new();
            for (data, bytes) in moved(self.program, self.state, self.all[unit].node) {
                let known = self.names.binary_search_by(|name| name.as_str().cmp(data)).map(|number| found.entry(number).or_default());
                known.into_iter().for_each(|known| *known = (*known).max(bytes));
            }
            found
        })
    }

    /// Bytes that cross the boundary of members.
    pub fn bytes(&self, members: &Members) -> u64 {
        if let Some(known) = self.crossing.borrow().get(members) {
            return *known;
        }
        let bytes = self.bytes_across(members);
        self.crossing.borrow_mut().insert(members.clone(), bytes);
        bytes
    }

    fn bytes_across(&self, members: &Members) -> u64 {
        let mut crossing: BTreeMap<(usize, bool), u64> = BTreeMap::new();
        for m in members {
            let read = self.reads[*m].iter().filter(|d| self.maker(**d, members).is_none()).map(|d| (*d, false));
            let leaves = |d: &&usize| self.leaves(**d) || self.reader_outside(**d, members).is_some();
            for (data, written) in read.chain(self.writes[*m].iter().filter(leaves).map(|d| (*d, true))) {
                let known = crossing.entry((data, written)).or_default();
                *known = (*known).max(self.moved(*m).get(&data).copied().unwrap_or(0));
            }
        }
        crossing.values().sum()
    }
}

/// The heap container of each memlet at a unit's boundary, with the bytes that it moves.
fn moved<'a>(program: &'a Sdfg, state: &'a State, node: NodeId) -> impl Iterator<Item = (&'a str, u64)> {
    let (reads, writes) = state.boundary(node);
    reads.into_iter().chain(writes).filter_map(|memlet| {
        let container = program.containers.get(&memlet.data).filter(|c| c.storage == Storage::Heap)?;
        let count = |r: &sdfg::Range| r.count().eval(&program.sizes).ok().map(|c| c.max(0) as u64);
        let elements = memlet.subset.iter().try_fold(1u64, |n, r| count(r).map(|c| n.saturating_mul(c))).unwrap_or(0);
        Some((memlet.data.as_str(), container.dtype.bytes(elements)))
    })
}
