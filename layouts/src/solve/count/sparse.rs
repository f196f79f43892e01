//! Tables of ways, by the values of some variables; combinations that cannot be within the limit have no entry.

use super::key::{Key, KeyLayout};
use super::ways::{CostUnit, Ways};
use crate::model::cost::Cost;
use crate::model::network::{CostFunction, Subproblem};
use std::collections::{BTreeSet, HashMap};

/// Costs by combination of values that all tables of a count together may hold: some hundred megabytes.
const ENTRIES: usize = 1 << 22;

/// Additions that counts may take.
pub struct CountingWork {
    /// All that come from now on.
    pub left: u64,
    /// Each.
    pub one: u64,
}

/// The limits of one count.
pub struct Room<'a> {
    entries: usize,
    additions: u64,
    work: &'a mut CountingWork,
}

impl<'a> Room<'a> {
    pub fn new(work: &'a mut CountingWork) -> Self {
        Room { entries: ENTRIES, additions: work.one.min(work.left), work }
    }

    fn give(&mut self, entries: usize) {
        self.entries += entries;
    }

    fn fits(&self, entries: usize) -> Option<()> {
        (entries <= self.entries).then_some(())
    }

    fn take(&mut self, entries: usize, work: usize) -> Option<()> {
        self.work.left = self.work.left.saturating_sub(work as u64);
        self.additions = self.additions.checked_sub(work as u64)?;
        self.entries = self.entries.checked_sub(entries)?;
        Some(())
    }
}

pub struct SparseTable {
    /// Variables, and their bits in the keys.
    scope: BTreeSet<usize>,
    mask: Key,
    entries: Vec<(Key, Ways)>,
}

impl SparseTable {
    fn new(scope: BTreeSet<usize>, entries: Vec<(Key, Ways)>, places: &KeyLayout) -> SparseTable {
        let mask = scope.iter().fold(Key::default(), |mask, v| mask.or(places.mask(*v)));
        SparseTable { scope, mask, entries }
    }

    pub fn scope(&self) -> &BTreeSet<usize> {
        &self.scope
    }

    /// Combinations of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn total(&self) -> u128 {
        self.entries.iter().fold(0, |sum, (_, ways)| ways.total().saturating_add(sum))
    }

    fn length(&self) -> usize {
        self.entries.iter().map(|(_, ways)| ways.len()).sum()
    }
}

/// What the terms of a cost are taken from, and how they are counted.
pub struct Terms<'a> {
    pub part: &'a Subproblem,
    pub places: &'a KeyLayout,
    /// Terms above it are left out.
    pub slack: Cost,
    pub unit: CostUnit,
}

impl Terms<'_> {
    /// What the functions gave to a variable, above the least of it.
    pub fn held(&self, variable: usize, held: &[Cost], room: &mut Room) -> Option<SparseTable> {
        let domain = &self.part.domains[variable];
        let least = domain.iter().map(|v| held[*v as usize]).min().unwrap_or(0);
        let above = domain.iter().map(|v| held[*v as usize] - least).enumerate().filter(|(_, above)| *above <= self.slack);
        let entries: Vec<_> = above.map(|(at, above)| (self.places.key(variable, at), Ways::once(self.unit.of(above)))).collect();
        room.take(entries.len(), 0)?;
        Some(SparseTable::new([variable].into(), entries, self.places))
    }

    /// What is left of a function's cost, above the least of it.
    pub fn left(&self, function: &CostFunction, rows: &[u32], shares: &[Vec<Cost>], room: &mut Room) -> Option<SparseTable> {
        let left = Left::new(function, shares, self.part, self.places);
        let rows: Vec<(u32, Cost)> = rows.iter().map(|row| (*row, left.least(*row))).collect();
        let least = rows.iter().map(|(_, total)| *total).min().unwrap_or(0);
        let mut entries = Vec::new();
        left.walk(0, Key::default(), &rows, least + self.slack, &mut |key, total, work| {
            room.take(usize::from(total.is_some()), work)?;
            entries.extend(total.map(|total| (key, Ways::once(self.unit.of(total - least)))));
            Some(())
        })?;
        Some(SparseTable::new(function.legs.iter().map(|leg| leg.variable).collect(), entries, self.places))
    }
}

/// A function whose variables hold part of its cost.
struct Left<'a> {
    function: &'a CostFunction,
    shares: &'a [Vec<Cost>],
    part: &'a Subproblem,
    places: &'a KeyLayout,
    /// The least that a pattern asks, by leg.
    reach: Vec<Vec<Cost>>,
}

impl<'a> Left<'a> {
    fn new(function: &'a CostFunction, shares: &'a [Vec<Cost>], part: &'a Subproblem, places: &'a KeyLayout) -> Self {
        let mut left = Left { function, shares, part, places, reach: Vec::new() };
        let least = |n: usize, p: u16| left.domain(n).iter().map(|v| left.asked(n, p, *v)).min().unwrap_or(Cost::MAX / 4);
        left.reach = (0..function.legs.len()).map(|n| (0..function.legs[n].patterns() as u16).map(|p| least(n, p)).collect()).collect();
        left
    }

    fn domain(&self, leg: usize) -> &'a [u16] {
        &self.part.domains[self.function.legs[leg].variable]
    }

    fn asked(&self, leg: usize, pattern: u16, value: u16) -> Cost {
        self.function.legs[leg].of(pattern)[value as usize] - self.shares[leg][value as usize]
    }

    /// Lower bound of a row's cost.
    fn least(&self, row: u32) -> Cost {
        let patterns = self.function.patterns_of(row as usize).iter().zip(&self.reach);
        patterns.fold(self.function.rows[row as usize], |sum, (p, reach)| sum.saturating_add(reach[*p as usize]))
    }

    /// Fixes the values of legs one after the other, from number `leg` on, and drops rows that cost too much for all values of the other
    /// legs. Calls `tell` for every combination with its cost if that is at most `most`, and for the work done.
    fn walk(&self, leg: usize, key: Key, rows: &[(u32, Cost)], most: Cost, tell: Tell) -> Option<()> {
        if leg == self.function.legs.len() {
            return tell(key, rows.iter().map(|(_, total)| *total).min(), 1);
        }
        for (at, value) in self.domain(leg).iter().enumerate() {
            let moved = |(row, total): &(u32, Cost)| {
                let p = self.function.patterns_of(*row as usize)[leg];
                (*row, total - self.reach[leg][p as usize] + self.asked(leg, p, *value))
            };
            tell(key, None, rows.len())?;
            let rows: Vec<(u32, Cost)> = rows.iter().map(moved).filter(|(_, total)| *total <= most).collect();
            if !rows.is_empty() {
                let key = key.or(self.places.key(self.function.legs[leg].variable, at));
                self.walk(leg + 1, key, &rows, most, tell)?;
            }
        }
        Some(())
    }
}

/// Takes a combination with its cost, or none, and the work that it took.
type Tell<'a> = &'a mut dyn FnMut(Key, Option<Cost>, usize) -> Option<()>;

/// All tables at once, without one of their variables: the ways of all its values.
pub fn eliminated(
    mut tables: Vec<SparseTable>,
    variable: Option<usize>,
    most: Cost,
    places: &KeyLayout,
    room: &mut Room,
) -> Option<SparseTable> {
    // Short ones first: what they rule out is never looked at.
    tables.sort_by(|a, b| (a.len(), &a.scope).cmp(&(b.len(), &b.scope)));
    let count = tables.len();
    let mut joint = SparseTable::new(BTreeSet::new(), vec![(Key::default(), Ways::once(0))], places);
    room.take(joint.length(), 0)?;
    for (n, table) in tables.into_iter().enumerate() {
        let next = joined(&joint, &table, variable.filter(|_| n + 1 == count), most, places, room)?;
        room.give(joint.length() + table.length());
        joint = next;
    }
    Some(joint)
}

/// Two tables at once; without `gone` if it is given.
fn joined(a: &SparseTable, b: &SparseTable, gone: Option<usize>, most: Cost, places: &KeyLayout, room: &mut Room) -> Option<SparseTable> {
    let shared = a.mask.and(b.mask);
    let gone_mask = gone.map_or(Key::default(), |v| places.mask(v));
    let mut partners: HashMap<Key, Vec<&(Key, Ways)>> = HashMap::new();
    for entry in &b.entries {
        partners.entry(entry.0.and(shared)).or_default().push(entry);
    }
    let mut found: HashMap<Key, Ways> = HashMap::new();
    let mut length = 0;
    for (key, ways) in &a.entries {
        for (other, more) in partners.get(&key.and(shared)).into_iter().flatten() {
            let product = ways.times(more, most);
            room.take(0, ways.len() * more.len() + 1)?;
            if product.is_empty() {
                continue;
            }
            let known = found.entry(key.or(*other).without(gone_mask)).or_default();
            length -= known.len();
            *known = std::mem::take(known).or(product);
            length += known.len();
            room.fits(length)?;
        }
    }
    let mut entries: Vec<(Key, Ways)> = found.into_iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    let scope = a.scope.union(&b.scope).copied().filter(|v| Some(*v) != gone).collect();
    let table = SparseTable::new(scope, entries, places);
    room.take(table.length(), 0)?;
    Some(table)
}
