//! The units of one state in an execution order that is kept while patches replace units.
//!
//! A patch replaces a few units. Finding the order of all units again after each one takes time that grows with the square of a program's
//! length, so only the units between the first and the last replaced one move: those that the new unit needs come before it, those that
//! need it after it.
//! *Source*: Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs".

use crate::unit_graph::{Kind, crossing, kind_of};
use sdfg::{NodeId, Sdfg, State, StateId};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// More sites or units than this are put in order once. The order of fewer is found anew after every rewrite: names and texts of kernels
/// follow from it, and measured times are kept under these.
pub(crate) const MANY: usize = 1000;

/// A unit by its number; a number is never used twice.
pub(crate) type Slot = usize;

/// One unit: what it is and what crosses its boundary, by numbers of containers.
pub(crate) struct UnitOfState {
    pub node: NodeId,
    pub name: String,
    pub kind: Kind,
    pub reads: Vec<usize>,
    pub writes: Vec<usize>,
    /// What it reads that is more than one number: only of these does a second reader save bytes.
    pub arrays: Vec<usize>,
    /// Bytes of all containers that it touches.
    pub bytes: u64,
}

/// The units of a state, and their order.
pub(crate) struct UnitOrder {
    pub id: StateId,
    units: Vec<UnitOfState>,
    /// By unit, where it stands in the order; `None` for a unit that was replaced.
    places: Vec<Option<usize>>,
    order: BTreeMap<usize, Slot>,
    slots: HashMap<NodeId, Slot>,
    /// Containers have numbers, in the order in which they were met.
    numbers: HashMap<String, usize>,
    /// By container: the units that read it, and those that write it, also those that were replaced.
    readers: Vec<Vec<Slot>>,
    writers: Vec<Vec<Slot>>,
    /// The units that the last search has met: by unit, the number of the search.
    met: RefCell<(u32, Vec<u32>)>,
}

/// What a replacement of units has changed.
pub(crate) struct Replaced {
    pub inserted: Vec<Slot>,
    /// Other units that have another place, and the place that they had.
    pub moved: Vec<(Slot, usize)>,
    /// Of these, units that others have passed: of two that have changed their order, one is among them.
    pub passed: Vec<Slot>,
}

impl UnitOrder {
    pub fn new(program: &Sdfg, (id, state): (StateId, &State)) -> Self {
        let mut order = UnitOrder {
            id,
            units: vec![],
            places: vec![],
            order: BTreeMap::new(),
            slots: HashMap::new(),
            numbers: HashMap::new(),
            readers: vec![],
            writers: vec![],
            met: RefCell::default(),
        };
        for node in state.topological(None).unwrap_or_default() {
            if let Some(slot) = order.add(program, state, node) {
                order.put(slot, slot);
            }
        }
        order
    }

    /// Adds the unit at a node, without a place; `None` if the node is none.
    fn add(&mut self, program: &Sdfg, state: &State, node: NodeId) -> Option<Slot> {
        let (name, kind) = kind_of(state, node)?;
        let (reads, writes) = crossing(state, node);
        let bytes = reads.union(&writes).map(|data| program.bytes(data).unwrap_or(u64::MAX)).fold(0, u64::saturating_add);
        let one = |data: &str| program.containers.get(data).is_some_and(|c| program.bytes(data).is_ok_and(|all| all <= c.dtype.bytes(1)));
        let arrays = reads.iter().filter(|data| !one(data)).map(|data| self.number(data)).collect();
        let reads: Vec<usize> = reads.iter().map(|data| self.number(data)).collect();
        let writes: Vec<usize> = writes.iter().map(|data| self.number(data)).collect();
        let slot = self.units.len();
        reads.iter().for_each(|data| self.readers[*data].push(slot));
        writes.iter().for_each(|data| self.writers[*data].push(slot));
        self.units.push(UnitOfState { node, name: name.to_string(), kind, reads, writes, arrays, bytes });
        self.places.push(None);
        self.slots.insert(node, slot);
        Some(slot)
    }

    fn number(&mut self, data: &str) -> usize {
        if let Some(known) = self.numbers.get(data) {
            return *known;
        }
        let next = self.numbers.len();
        self.numbers.insert(data.to_string(), next);
        self.readers.push(vec![]);
        self.writers.push(vec![]);
        next
    }

    fn put(&mut self, slot: Slot, place: usize) {
        self.places[slot] = Some(place);
        self.order.insert(place, slot);
    }

    pub fn unit(&self, slot: Slot) -> &UnitOfState {
        &self.units[slot]
    }

    /// Where a unit stands; units that were replaced stand before all others.
    pub fn place(&self, slot: Slot) -> usize {
        self.places[slot].unwrap_or_default()
    }

    pub fn stands(&self, slot: Slot) -> bool {
        self.places[slot].is_some()
    }

    /// All units, in order.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = Slot> {
        self.order.values().copied()
    }

    /// The unit at a place.
    pub fn at(&self, place: usize) -> Option<Slot> {
        self.order.get(&place).copied()
    }

    pub fn slot(&self, node: NodeId) -> Option<Slot> {
        self.slots.get(&node).copied()
    }

    fn standing<'a>(&'a self, slots: &'a [Slot]) -> impl Iterator<Item = Slot> + 'a {
        slots.iter().copied().filter(|slot| self.stands(*slot))
    }

    /// The units that read a container, in the order in which they were added.
    pub fn readers(&self, data: usize) -> impl Iterator<Item = Slot> + '_ {
        self.standing(&self.readers[data])
    }

    /// The units that read what a unit writes; some of them several times.
    fn after(&self, slot: Slot) -> impl Iterator<Item = Slot> + '_ {
        let place = self.place(slot);
        self.units[slot].writes.iter().flat_map(|data| self.readers(*data)).filter(move |reader| self.place(*reader) > place)
    }

    /// The units that write what a unit reads; some of them several times.
    fn before(&self, slot: Slot) -> impl Iterator<Item = Slot> + '_ {
        let place = self.place(slot);
        self.units[slot].reads.iter().flat_map(|data| self.standing(&self.writers[*data])).filter(move |writer| self.place(*writer) < place)
    }

    fn by_place(&self, slots: impl Iterator<Item = Slot>) -> Vec<Slot> {
        let mut found: Vec<Slot> = slots.collect();
        found.sort_unstable_by_key(|slot| self.place(*slot));
        found.dedup();
        found
    }

    /// The units whose results a unit reads, in order.
    pub fn makers(&self, slot: Slot) -> Vec<Slot> {
        self.by_place(self.before(slot))
    }

    /// The units that read what a unit writes, in order.
    pub fn takers(&self, slot: Slot) -> Vec<Slot> {
        self.by_place(self.after(slot))
    }

    /// The other units that read an array which a unit reads, in order.
    pub fn siblings(&self, slot: Slot) -> Vec<Slot> {
        self.by_place(self.units[slot].arrays.iter().flat_map(|data| self.readers(*data)).filter(|other| *other != slot))
    }

    /// How many containers two units touch.
    pub fn touched(&self, a: Slot, b: Slot) -> usize {
        let both = [&self.units[a], &self.units[b]];
        both.into_iter().flat_map(|unit| unit.reads.iter().chain(&unit.writes)).collect::<BTreeSet<_>>().len()
    }

    /// Whether a search meets a unit for the first time; `true` begins a new search.
    fn meets(&self, slot: Slot, begins: bool) -> bool {
        let (search, met) = &mut *self.met.borrow_mut();
        met.resize(self.units.len(), 0);
        if begins {
            *search += 1;
        }
        std::mem::replace(&mut met[slot], *search) != *search
    }

    /// All units up to a place that depend on some, which are not among them unless one depends on another.
    fn descendants(&self, from: &[Slot], until: usize) -> Vec<Slot> {
        let (mut found, mut begins) = (Vec::new(), true);
        let mut next = from.to_vec();
        while let Some(slot) = next.pop() {
            for taker in self.after(slot).filter(|taker| self.place(*taker) <= until) {
                if self.meets(taker, std::mem::take(&mut begins)) {
                    found.push(taker);
                    next.push(taker);
                }
            }
        }
        found
    }

    /// All units from a place on that some depend on, in the same way.
    fn ancestors(&self, of: &[Slot], from: usize) -> Vec<Slot> {
        let (mut found, mut begins) = (Vec::new(), true);
        let mut next = of.to_vec();
        while let Some(slot) = next.pop() {
            for maker in self.before(slot).filter(|maker| self.place(*maker) >= from) {
                if self.meets(maker, std::mem::take(&mut begins)) {
                    found.push(maker);
                    next.push(maker);
                }
            }
        }
        found
    }

    /// Whether some unit that is none of these depends on one of them, as another one depends on it.
    pub fn path_outside(&self, members: &[Slot]) -> bool {
        let last = members.iter().map(|slot| self.place(*slot)).max().unwrap_or_default();
        let mut begins = true;
        let mut next: Vec<Slot> = Vec::new();
        let outside = |slot: Slot| self.after(slot).filter(|taker| self.place(*taker) < last && !members.contains(taker));
        for taker in members.iter().flat_map(|member| outside(*member)) {
            if self.meets(taker, std::mem::take(&mut begins)) {
                next.push(taker);
            }
        }
        while let Some(slot) = next.pop() {
            for taker in self.after(slot).filter(|taker| self.place(*taker) <= last) {
                if members.contains(&taker) {
                    return true;
                }
                if self.meets(taker, false) {
                    next.push(taker);
                }
            }
        }
        false
    }

    /// The first unit that is none of these, depends on one of them, and another one depends on it.
    pub fn first_outside(&self, members: &[Slot]) -> Option<Slot> {
        let places = || members.iter().map(|slot| self.place(*slot));
        let (first, last) = (places().min()?, places().max()?);
        let after: HashSet<Slot> = self.descendants(members, last).into_iter().filter(|slot| !members.contains(slot)).collect();
        let before = self.ancestors(members, first);
        before.into_iter().filter(|slot| after.contains(slot)).min_by_key(|slot| self.place(*slot))
    }

    /// Puts the units at some nodes in the place of at least as many others, after a patch. Few units are put in order again; of many, only
    /// those near the replaced ones move.
    pub fn replace(&mut self, program: &Sdfg, state: &State, removed: &[NodeId], inserted: &[NodeId]) -> Replaced {
        let removed: Vec<Slot> = removed.iter().filter_map(|node| self.slots.remove(node)).collect();
        if self.order.len() <= MANY {
            self.reordered(program, state, &removed, inserted)
        } else {
            self.fitted(program, state, &removed, inserted)
        }
    }

    fn reordered(&mut self, program: &Sdfg, state: &State, removed: &[Slot], inserted: &[NodeId]) -> Replaced {
        for slot in removed {
            self.places[*slot] = None;
        }
        let inserted: Vec<Slot> = inserted.iter().filter_map(|node| self.add(program, state, *node)).collect();
        let order: Vec<Slot> = state.topological(None).unwrap_or_default().iter().filter_map(|node| self.slot(*node)).collect();
        let was: Vec<(Slot, usize)> = order.iter().filter_map(|slot| Some((*slot, self.places[*slot]?))).collect();
        self.order.clear();
        for (place, slot) in order.into_iter().enumerate() {
            self.put(slot, place);
        }
        let kept = longest_rising(&was.iter().map(|(_, place)| *place).collect::<Vec<_>>());
        let passed = was.iter().zip(kept).filter(|(_, kept)| !kept).map(|((slot, _), _)| *slot).collect();
        Replaced { inserted, moved: was.into_iter().filter(|(slot, place)| self.place(*slot) != *place).collect(), passed }
    }

    fn fitted(&mut self, program: &Sdfg, state: &State, removed: &[Slot], inserted: &[NodeId]) -> Replaced {
        let places = || removed.iter().filter_map(|slot| self.places[*slot]);
        let (first, last) = (places().min().unwrap_or_default(), places().max().unwrap_or_default());
        let others = |found: Vec<Slot>| self.by_place(found.into_iter().filter(|slot| !removed.contains(slot)));
        let before = others(self.ancestors(removed, first));
        let after: Vec<Slot> = others(self.descendants(removed, last)).into_iter().filter(|slot| !before.contains(slot)).collect();
        let mut free: Vec<usize> = before.iter().chain(&after).chain(removed).map(|slot| self.place(*slot)).collect();
        free.sort_unstable();
        let mut moved = Vec::new();
        for slot in before.iter().chain(&after).chain(removed) {
            self.order.remove(&self.place(*slot));
        }
        let at_end = free.split_off(free.len() - after.len());
        for (slot, place) in before.iter().zip(&free).chain(after.iter().zip(&at_end)) {
            if self.place(*slot) != *place {
                moved.push((*slot, self.place(*slot)));
            }
            self.put(*slot, *place);
        }
        for slot in removed {
            self.places[*slot] = None;
        }
        let mut made = Vec::new();
        let mut free = free.into_iter().skip(before.len());
        for node in inserted {
            if let (Some(slot), Some(place)) = (self.add(program, state, *node), free.next()) {
                self.put(slot, place);
                made.push(slot);
            }
        }
        let passed = moved.iter().map(|(slot, _)| *slot).collect();
        Replaced { inserted: made, moved, passed }
    }
}

/// Which numbers belong to a longest sequence of ever larger ones.
fn longest_rising(numbers: &[usize]) -> Vec<bool> {
    // The position of the least number that ends a sequence of each length, and the position before each one.
    let (mut ends, mut before): (Vec<usize>, Vec<Option<usize>>) = (vec![], vec![]);
    for (n, number) in numbers.iter().enumerate() {
        let length = ends.partition_point(|end| numbers[*end] < *number);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        if length == ends.len() { ends.push(n) } else { ends[length] = n }
    }
    let mut kept = vec![false; numbers.len()];
    let mut next = ends.last().copied();
    while let Some(n) = next {
        kept[n] = true;
        next = before[n];
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_order_are_found() {
        assert_eq!(longest_rising(&[]), Vec::<bool>::new());
        assert_eq!(longest_rising(&[1, 2, 9, 3, 4]), [true, true, false, true, true]);
        assert_eq!(longest_rising(&[5, 1, 2, 3]), [false, true, true, true]);
    }
}
