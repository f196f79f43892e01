//! Cache of a search for patches: units, and pairs of units that were refused. A patch replaces a few units and invalidates only their
//! entries.

use crate::patch::Change;
use crate::refusal::{Reason, Site};
use crate::unit_graph::{Kind, crossing, kind_of};
use fixedbitset::FixedBitSet;
use sdfg::{NodeId, Sdfg, State, StateId};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

/// The cache of one program while it is rewritten; empty at the start.
#[derive(Default)]
pub struct SearchCache {
    /// Containers have numbers, in the order in which they were met.
    numbers: HashMap<String, usize>,
    units: HashMap<(StateId, NodeId), Rc<UnitOfState>>,
    states: HashMap<StateId, Rc<UnitsOfState>>,
    /// By state and first unit: second units with which it was refused.
    refused: HashMap<(StateId, NodeId), HashMap<NodeId, Reason>>,
}

/// One unit: what it is and what crosses its boundary, by numbers of containers.
pub(crate) struct UnitOfState {
    pub node: NodeId,
    pub name: String,
    pub kind: Kind,
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
    /// What it reads that is more than one number: only of these does a second reader save bytes.
    arrays: Vec<usize>,
    /// Bytes of all containers that it touches.
    pub bytes: u64,
}

/// The units of one state in execution order.
pub(crate) struct UnitsOfState {
    pub id: StateId,
    pub units: Vec<Rc<UnitOfState>>,
    /// By unit: positions of all units that it depends on, directly or not.
    pub before: Vec<FixedBitSet>,
    /// By container: positions of the units that read it as an array, and of those that write it.
    readers: Vec<Vec<usize>>,
    writers: Vec<Vec<usize>>,
}

impl UnitsOfState {
    /// How many containers two units touch.
    pub fn touched(&self, a: usize, b: usize) -> usize {
        let both = [&self.units[a], &self.units[b]];
        both.into_iter().flat_map(|unit| unit.reads.iter().chain(&unit.writes)).collect::<BTreeSet<_>>().len()
    }

    /// The units before this one whose results it reads.
    pub fn makers(&self, unit: usize) -> BTreeSet<usize> {
        self.units[unit].reads.iter().flat_map(|d| &self.writers[*d]).copied().filter(|m| *m < unit).collect()
    }

    /// The units before this one that read an array which it reads.
    pub fn siblings(&self, unit: usize) -> BTreeSet<usize> {
        self.units[unit].arrays.iter().flat_map(|d| &self.readers[*d]).copied().filter(|m| *m < unit).collect()
    }
}

impl SearchCache {
    /// The units of all states, in the order of the states.
    pub(crate) fn states(&mut self, program: &Sdfg) -> Vec<Rc<UnitsOfState>> {
        program.states().map(|(id, state)| self.state(program, id, state)).collect()
    }

    fn state(&mut self, program: &Sdfg, id: StateId, state: &State) -> Rc<UnitsOfState> {
        if let Some(known) = self.states.get(&id) {
            return known.clone();
        }
        let units: Vec<Rc<UnitOfState>> =
            state.topological(None).unwrap_or_default().into_iter().filter_map(|node| self.unit(program, (id, state), node)).collect();
        let mut before: Vec<FixedBitSet> = Vec::with_capacity(units.len());
        let (mut readers, mut writers) = (vec![vec![]; self.numbers.len()], vec![vec![]; self.numbers.len()]);
        for (n, unit) in units.iter().enumerate() {
            let mut needed = FixedBitSet::with_capacity(units.len());
            for read in &unit.reads {
                for maker in &writers[*read] {
                    needed.insert(*maker);
                    needed.union_with(&before[*maker]);
                }
            }
            unit.arrays.iter().for_each(|read| readers[*read].push(n));
            unit.writes.iter().for_each(|write| writers[*write].push(n));
            before.push(needed);
        }
        let found = Rc::new(UnitsOfState { id, units, before, readers, writers });
        self.states.insert(id, found.clone());
        found
    }

    /// A unit at a node of the top level; `None` if the node is none.
    fn unit(&mut self, program: &Sdfg, (id, state): (StateId, &State), node: NodeId) -> Option<Rc<UnitOfState>> {
        if let Some(known) = self.units.get(&(id, node)) {
            return Some(known.clone());
        }
        let (name, kind) = kind_of(state, node)?;
        let (reads, writes) = crossing(state, node);
        let bytes = reads.union(&writes).map(|data| program.bytes(data).unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
        let mut numbered = |data: BTreeSet<String>| -> Vec<usize> {
            let mut number = |data| {
                let next = self.numbers.len();
                *self.numbers.entry(data).or_insert(next)
            };
            data.into_iter().map(&mut number).collect()
        };
        let one = |data: &str| program.containers.get(data).is_some_and(|c| program.bytes(data).is_ok_and(|all| all <= c.dtype.bytes(1)));
        let arrays = numbered(reads.iter().filter(|data| !one(data)).cloned().collect());
        let (reads, writes) = (numbered(reads), numbered(writes));
        let unit = Rc::new(UnitOfState { node, name: name.to_string(), kind, reads, writes, arrays, bytes });
        self.units.insert((id, node), unit.clone());
        Some(unit)
    }

    /// Why two units were refused, if that reason depends on these units alone.
    pub(crate) fn refused(&self, site: &Site) -> Option<Reason> {
        let [first, second] = site.units[..] else { return None };
        self.refused.get(&(site.state, first))?.get(&second).cloned()
    }

    /// Keeps the reason why two units were refused. A cycle is not kept: the next patch may remove the unit between them.
    pub(crate) fn refuse(&mut self, site: &Site, reason: &Reason) {
        if let ([first, second], false) = (&site.units[..], matches!(reason, Reason::Cycle { .. })) {
            self.refused.entry((site.state, *first)).or_default().insert(*second, reason.clone());
        }
    }

    /// Forgets what a patch has changed.
    pub(crate) fn forget(&mut self, change: &Change) {
        self.states.remove(&change.state);
        for node in change.removed.iter().chain(&change.inserted) {
            self.units.remove(&(change.state, *node));
            self.refused.remove(&(change.state, *node));
            self.refused.values_mut().for_each(|seconds| _ = seconds.remove(node));
        }
    }
}
