//! The pairs of kernels that fusion looks at, best first, kept from one rewrite to the next.
//!
//! A pair that was refused stays refused as long as both of its kernels stand: no patch elsewhere removes what depends on the first kernel
//! as the second depends on it, and all other reasons are about the two alone. So after a patch only pairs with the new kernel are looked
//! at.
//!
//! Pairs that hand nothing to one another and read no common array grow with the square of a program's length. Such kernels are fused over
//! equal iteration spaces alone, so only those with equal sizes meet. Of these, most depend on one another through others: if `a`
//! reaches `b`, and `b` reaches `c`, nothing has to be searched to see that `a` reaches `c`.

use crate::fusion::iteration_space::{all_indices, statements};
use crate::patch::{Change, Patch};
use crate::refusal::{Reason, Site};
use crate::unit_graph::Kind;
use crate::unit_order::{Slot, UnitOfState, UnitOrder};
use sdfg::{Index, Sdfg, State, StateId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// How two units relate, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// The second reads what the first writes.
    Producer,
    /// Both read an array.
    Sibling,
    Independent,
}

const RELATIONS: [Relation; 3] = [Relation::Producer, Relation::Sibling, Relation::Independent];

/// How many pairs that share no data are listed as refused at most, and looked at for that. A long program has millions.
struct Left {
    listed: usize,
    looks: usize,
}

const MOST: Left = Left { listed: 10_000, looks: 1_000_000 };

/// The patch that fuses two units of a state between which nothing runs, or why there is none.
pub(super) type Judge<'a> = &'a dyn Fn(&Sdfg, &UnitOrder, Slot, Slot) -> Result<Patch, Reason>;

/// The search through the pairs of a program.
pub(crate) struct PairSearch {
    states: Vec<StatePairs>,
}

impl PairSearch {
    /// Units of the names in `apart` are looked at in no pair. Pairs that share no data are looked at if one of them touches at most
    /// `independent` bytes.
    pub fn new(program: &Sdfg, apart: &BTreeSet<&str>, independent: u64) -> Self {
        PairSearch { states: program.states().map(|state| StatePairs::new(program, state, apart, independent)).collect() }
    }

    /// Learns what a patch has replaced. `false` if it has to begin anew.
    pub fn changed(&mut self, program: &Sdfg, change: &Change) -> bool {
        let Some(pairs) = self.states.iter_mut().find(|pairs| pairs.order.id == change.state) else { return false };
        let Some(state) = program.state(change.state) else { return false };
        if change.inserted.len() > change.removed.len() {
            return false;
        }
        pairs.replace(program, state, change);
        true
    }

    /// The best pair that is not refused: its patch.
    pub fn next(&mut self, program: &Sdfg, judge: Judge) -> Option<Patch> {
        RELATIONS.into_iter().find_map(|relation| self.states.iter_mut().find_map(|state| state.next(program, relation, judge)))
    }

    /// All pairs that were refused, best first; of those that share no data only the first.
    pub fn refused(&self, program: &Sdfg, judge: Judge) -> Vec<(Site, Reason)> {
        let (mut found, mut left) = (Vec::new(), MOST);
        for relation in RELATIONS {
            self.states.iter().for_each(|state| state.refused(program, relation, judge, &mut left, &mut found));
        }
        found
    }
}

/// The pairs of one state.
struct StatePairs {
    order: UnitOrder,
    independent: u64,
    /// By unit: whether it may be fused at all.
    free: Vec<bool>,
    /// By unit: which of those that share no data it may be fused with.
    class: Vec<Option<usize>>,
    /// The units of each class by their places.
    classes: Vec<BTreeMap<usize, Slot>>,
    /// Classes by the sizes of their units' indices.
    spaces: HashMap<Vec<String>, usize>,
    /// Units whose pairs are still to be looked at, by relation: what each has to be looked at with as the second of a pair, by its place.
    waiting: [BTreeMap<usize, With>; 3],
    /// Whether pairs that share no data were looked at; until then all of them wait.
    begun: bool,
    /// By unit: a later unit that depends on it.
    reaches: Vec<Option<Slot>>,
    refused: HashMap<(Slot, Slot), Reason>,
}

/// What a unit has still to be looked at with.
enum With {
    All,
    Some(Vec<Slot>),
}

impl StatePairs {
    fn new(program: &Sdfg, (id, state): (StateId, &State), apart: &BTreeSet<&str>, independent: u64) -> Self {
        let mut pairs = StatePairs {
            order: UnitOrder::new(program, (id, state)),
            independent,
            free: vec![],
            class: vec![],
            classes: vec![],
            spaces: HashMap::new(),
            waiting: Default::default(),
            begun: false,
            reaches: vec![],
            refused: HashMap::new(),
        };
        for slot in pairs.order.all().collect::<Vec<_>>() {
            let free = !apart.contains(pairs.order.unit(slot).name.as_str());
            pairs.add(program, state, slot, free);
        }
        pairs
    }

    /// A unit that is new.
    fn add(&mut self, program: &Sdfg, state: &State, slot: Slot, free: bool) {
        let class = if free { self.class_of(program, state, slot) } else { None };
        let place = self.order.place(slot);
        self.free.push(free);
        self.class.push(class);
        self.reaches.push(None);
        if let Some(class) = class {
            self.classes[class].insert(place, slot);
        }
        if free {
            self.waiting.iter_mut().for_each(|waiting| drop(waiting.insert(place, With::All)));
        }
    }

    /// Units that share no data can be fused if their iteration spaces are equal but for names.
    fn class_of(&mut self, program: &Sdfg, state: &State, slot: Slot) -> Option<usize> {
        let UnitOfState { node, kind: Kind::Scope, .. } = self.order.unit(slot) else { return None };
        let statements = statements(&state.scope(*node)?, program)?;
        let size = |index: &Index| format!("{} {}", program.size_of(&index.dim), index.count());
        let mut space: Vec<String> = all_indices(&statements).values().map(size).collect();
        space.sort_unstable();
        let next = self.classes.len();
        let class = *self.spaces.entry(space).or_insert(next);
        if class == next {
            self.classes.push(BTreeMap::new());
        }
        Some(class)
    }

    fn is_scope(&self, slot: Slot) -> bool {
        self.free[slot] && self.order.unit(slot).kind == Kind::Scope
    }

    fn is_short(&self, slot: Slot) -> bool {
        self.order.unit(slot).bytes <= self.independent
    }

    fn replace(&mut self, program: &Sdfg, state: &State, change: &Change) {
        for slot in change.removed.iter().filter_map(|node| self.order.slot(*node)) {
            let place = self.order.place(slot);
            self.waiting.iter_mut().for_each(|waiting| drop(waiting.remove(&place)));
            if let Some(class) = self.class[slot] {
                self.classes[class].remove(&place);
            }
        }
        let replaced = self.order.replace(program, state, &change.removed, &change.inserted);
        let moved: Vec<(Slot, usize, usize)> = replaced.moved.iter().map(|(slot, was)| (*slot, *was, self.order.place(*slot))).collect();
        let members: Vec<(usize, usize, Slot)> =
            moved.iter().filter_map(|(slot, was, _)| Some((self.class[*slot]?, *was, *slot))).collect();
        for (class, was, _) in &members {
            self.classes[*class].remove(was);
        }
        for (class, _, slot) in members {
            self.classes[class].insert(self.order.place(slot), slot);
        }
        for waiting in &mut self.waiting {
            let kept: Vec<(usize, Option<With>)> = moved.iter().map(|(_, was, now)| (*now, waiting.remove(was))).collect();
            waiting.extend(kept.into_iter().filter_map(|(now, with)| Some((now, with?))));
        }
        for slot in replaced.inserted {
            self.add(program, state, slot, true);
            let seconds =
                [self.order.takers(slot), self.order.siblings(slot), if self.begun { self.beside(slot).collect() } else { vec![] }];
            for (relation, seconds) in RELATIONS.into_iter().zip(seconds) {
                self.wait(relation, slot, seconds);
            }
        }
        // Of two that hand nothing to one another, the other one may be the first now.
        for slot in replaced.passed {
            if !self.free[slot] {
                continue;
            }
            let seconds = [self.order.siblings(slot), if self.begun { self.beside(slot).collect() } else { vec![] }];
            for (relation, seconds) in RELATIONS.into_iter().skip(1).zip(seconds) {
                self.waiting[relation as usize].insert(self.order.place(slot), With::All);
                self.wait(relation, slot, seconds);
            }
        }
    }

    /// Units that stand later have to be looked at with a first one.
    fn wait(&mut self, relation: Relation, first: Slot, seconds: Vec<Slot>) {
        let (place, waiting) = (self.order.place(first), &mut self.waiting[relation as usize]);
        for second in seconds.into_iter().filter(|second| self.free[*second] && self.order.place(*second) > place) {
            if let With::Some(firsts) = waiting.entry(self.order.place(second)).or_insert(With::Some(vec![])) {
                firsts.push(first);
            }
        }
    }

    /// Units of other classes that read a number which a unit reads: with these it may be fused too.
    fn beside_by_numbers(&self, slot: Slot) -> impl Iterator<Item = Slot> + '_ {
        let (unit, class) = (self.order.unit(slot), self.class[slot]);
        let numbers = unit.reads.iter().filter(move |data| class.is_some() && !unit.arrays.contains(data));
        numbers.flat_map(|data| self.order.readers(*data)).filter(move |other| self.class[*other].is_some_and(|other| Some(other) != class))
    }

    /// The units that a unit may be fused with although they share no array, in any order.
    fn beside(&self, slot: Slot) -> impl Iterator<Item = Slot> + '_ {
        let same = self.class[slot].into_iter().flat_map(|class| self.classes[class].values().copied());
        same.filter(move |other| *other != slot).chain(self.beside_by_numbers(slot))
    }

    /// The units that are looked at with a unit as their second, the last one first.
    fn firsts(&self, slot: Slot, relation: Relation) -> Vec<Slot> {
        let place = self.order.place(slot);
        let found: Vec<Slot> = match relation {
            Relation::Producer => self.order.makers(slot),
            Relation::Sibling => self.order.siblings(slot),
            Relation::Independent if self.beside_by_numbers(slot).next().is_none() => {
                let Some(class) = self.class[slot] else { return vec![] };
                return self.classes[class].range(..place).rev().map(|(_, first)| *first).collect();
            }
            Relation::Independent => self.beside(slot).collect(),
        };
        self.earlier(found, place)
    }

    /// Units before a place, the last one first.
    fn earlier(&self, mut units: Vec<Slot>, place: usize) -> Vec<Slot> {
        units.retain(|slot| self.free[*slot] && self.order.stands(*slot) && self.order.place(*slot) < place);
        units.sort_unstable_by_key(|slot| Reverse(self.order.place(*slot)));
        units.dedup();
        units
    }

    /// Whether two units relate so, where the second reads what `makers` write.
    fn relates(&self, relation: Relation, first: Slot, second: Slot, makers: &[Slot]) -> bool {
        if relation == Relation::Producer {
            return true;
        }
        let shares = || self.order.unit(first).arrays.iter().any(|data| self.order.unit(second).arrays.contains(data));
        self.is_scope(first)
            && !makers.contains(&first)
            && (relation == Relation::Sibling || ((self.is_short(first) || self.is_short(second)) && !shares()))
    }

    /// The first pair of a relation that is not refused.
    fn next(&mut self, program: &Sdfg, relation: Relation, judge: Judge) -> Option<Patch> {
        self.begun |= relation == Relation::Independent;
        while let Some((place, with)) = self.waiting[relation as usize].pop_first() {
            let second = self.order.at(place)?;
            if let Some(patch) = self.with(program, relation, second, with, judge) {
                // The patch replaces the unit. Where it cannot be applied, all pairs of the unit are looked at again.
                self.waiting[relation as usize].insert(place, With::All);
                return Some(patch);
            }
        }
        None
    }

    /// The first pair of a relation with this second unit that is not refused.
    fn with(&mut self, program: &Sdfg, relation: Relation, second: Slot, with: With, judge: Judge) -> Option<Patch> {
        if relation != Relation::Producer && !self.is_scope(second) {
            return None;
        }
        let makers = self.order.makers(second);
        let firsts = match with {
            With::All => self.firsts(second, relation),
            With::Some(some) => self.earlier(some, self.order.place(second)),
        };
        // Units that the second one depends on.
        let mut before: HashSet<Slot> = HashSet::new();
        let independent = relation == Relation::Independent;
        for first in firsts {
            if independent
                && (makers.contains(&first) || self.reaches[first].is_some_and(|other| other == second || before.contains(&other)))
            {
                before.insert(first);
                continue;
            }
            if !self.relates(relation, first, second, &makers) || self.refused.contains_key(&(first, second)) {
                continue;
            }
            if self.is_scope(first) && self.is_scope(second) && self.order.path_outside(&[first, second]) {
                // Which unit is between is asked when all is done.
                if independent {
                    self.reaches[first] = Some(second);
                    before.insert(first);
                }
                continue;
            }
            match judge(program, &self.order, first, second) {
                Ok(patch) => return Some(patch),
                Err(reason) => drop(self.refused.insert((first, second), reason)),
            }
        }
        None
    }

    /// Appends the pairs of a relation, each with the reason why it was refused, until `left` more are listed.
    fn refused(&self, program: &Sdfg, relation: Relation, judge: Judge, left: &mut Left, found: &mut Vec<(Site, Reason)>) {
        let mut before: Vec<Slot> = Vec::new();
        for second in self.order.all() {
            let seconds = self.free[second] && (relation == Relation::Producer || self.is_scope(second));
            let makers = self.order.makers(second);
            let firsts = match relation {
                _ if !seconds => vec![],
                Relation::Independent => before.iter().rev().copied().collect(),
                relation => self.firsts(second, relation),
            };
            for first in firsts {
                left.looks = left.looks.saturating_sub(usize::from(relation == Relation::Independent));
                if left.looks == 0 || left.listed == 0 {
                    return;
                }
                if !self.relates(relation, first, second, &makers) {
                    continue;
                }
                let units = [self.order.unit(first), self.order.unit(second)];
                let scopes = units.iter().all(|unit| unit.kind == Kind::Scope);
                let between = if scopes { self.order.first_outside(&[first, second]) } else { None };
                let reason = match (between, self.refused.get(&(first, second))) {
                    (Some(between), _) => Reason::Cycle { between: self.order.unit(between).name.clone() },
                    (None, Some(reason)) => reason.clone(),
                    (None, None) => match judge(program, &self.order, first, second) {
                        Err(reason) => reason,
                        Ok(_) => continue,
                    },
                };
                found.push((Site { state: self.order.id, units: units.map(|unit| unit.node).to_vec() }, reason));
                left.listed -= usize::from(relation == Relation::Independent);
            }
            if self.is_scope(second) {
                before.push(second);
            }
        }
    }
}
