//! The order of kernels that needs the least memory.
//!
//! A set of steps that are done decides what is alive, whatever order they were done in: the least peak over all orders is a
//! shortest path over such sets. Sets are many where much is independent, so only the most promising of each size are kept;
//! the search is exact as long as there are no more. Among orders of the least peak the one is taken that follows the
//! program's own order for as long as possible, since neighbours there find each other's results in the caches.

use super::room;
use super::schedule::Schedule;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Sets of one size that are followed.
const WIDTH: usize = 1000;
/// Sets that are looked at for the order nearest to the program's.
const LOOKS: usize = 100_000;
/// Steps that a set has room for; programs of more keep their order.
const MOST: usize = 256;

/// A set of steps, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Steps([u64; MOST / 64]);

impl Steps {
    fn has(&self, step: usize) -> bool {
        self.0[step / 64] >> (step % 64) & 1 == 1
    }

    fn with(mut self, step: usize) -> Steps {
        self.0[step / 64] |= 1 << (step % 64);
        self
    }

    fn within(&self, other: &Steps) -> bool {
        self.0.iter().zip(other.0).all(|(a, b)| a & !b == 0)
    }

    fn meets(&self, other: &Steps) -> bool {
        self.0.iter().zip(other.0).any(|(a, b)| a & b != 0)
    }
}

impl FromIterator<usize> for Steps {
    fn from_iter<I: IntoIterator<Item = usize>>(steps: I) -> Steps {
        steps.into_iter().fold(Steps::default(), Steps::with)
    }
}

struct Search<'a> {
    schedule: &'a Schedule,
    /// By step: those that must come before it.
    needs: Vec<Steps>,
    /// By buffer: the steps that touch it.
    users: Vec<Steps>,
    /// By step: the buffers that it touches.
    touched: Vec<Vec<usize>>,
}

/// A way to do some steps.
#[derive(Clone)]
struct Way {
    /// The most bytes so far, and those alive afterwards.
    peak: u64,
    alive: u64,
    order: Vec<usize>,
}

impl Schedule {
    /// The order of steps that needs the least memory at once, of all that were looked at.
    pub fn order(&self) -> Vec<usize> {
        let own: Vec<usize> = (0..self.steps.len()).collect();
        let Some(search) = Search::new(self) else { return own };
        let Some(least) = search.least().filter(|way| way.peak < search.peak(&own)) else { return own };
        search.within(least.peak).unwrap_or(least.order)
    }
}

impl<'a> Search<'a> {
    fn new(schedule: &'a Schedule) -> Option<Self> {
        let steps = &schedule.steps;
        let users = |b: usize| (0..steps.len()).filter(|s| steps[*s].touches(b)).collect();
        let touched = |s: usize| (0..schedule.buffers.len()).filter(|b| steps[s].touches(*b)).collect();
        let before = |later: usize| -> Steps {
            let conflict = |earlier: &usize| {
                let (a, b) = (&steps[*earlier], &steps[later]);
                a.stage < b.stage || a.writes.iter().any(|w| b.touches(*w)) || b.writes.iter().any(|w| a.touches(*w))
            };
            (0..later).filter(conflict).collect()
        };
        (steps.len() <= MOST).then(|| Search {
            schedule,
            needs: (0..steps.len()).map(before).collect(),
            users: (0..schedule.buffers.len()).map(users).collect(),
            touched: (0..steps.len()).map(touched).collect(),
        })
    }

    fn ready<'s>(&'s self, done: &'s Steps) -> impl Iterator<Item = usize> + 's {
        (0..self.needs.len()).filter(|s| !done.has(*s) && self.needs[*s].within(done))
    }

    /// Bytes alive while a step runs and after it.
    fn run(&self, done: &Steps, alive: u64, step: usize) -> (u64, u64) {
        let buffers = &self.schedule.buffers;
        let is_new = |b: usize| !self.users[b].meets(done);
        let then = done.with(step);
        let ends = |b: usize| !buffers[b].kept && self.users[b].within(&then);
        let size = |b: usize| room(buffers[b].bytes);
        let mut during = alive + self.touched[step].iter().filter(|b| is_new(**b)).map(|b| size(*b)).sum::<u64>();
        let ended: u64 = self.touched[step].iter().filter(|b| ends(**b)).map(|b| size(*b)).sum();
        let after = during - ended;
        let (mut given, mut taken) = (BTreeSet::new(), BTreeSet::new());
        for (from, to) in &self.schedule.steps[step].in_place {
            let legal = ends(*from) && is_new(*to) && size(*from) == size(*to);
            if legal && !given.contains(from) && !taken.contains(to) {
                given.insert(*from);
                taken.insert(*to);
                during -= size(*to);
            }
        }
        (during, after)
    }

    fn peak(&self, order: &[usize]) -> u64 {
        let (mut done, mut alive, mut peak) = (Steps::default(), 0, 0);
        for step in order {
            let (during, after) = self.run(&done, alive, *step);
            (peak, alive, done) = (peak.max(during), after, done.with(*step));
        }
        peak
    }

    /// The way of the least peak, of those that were followed.
    fn least(&self) -> Option<Way> {
        let mut ways = BTreeMap::from([(Steps::default(), Way { peak: 0, alive: 0, order: vec![] })]);
        for _ in 0..self.needs.len() {
            let mut next: BTreeMap<Steps, Way> = BTreeMap::new();
            for (done, way) in &ways {
                for step in self.ready(done) {
                    let (during, alive) = self.run(done, way.alive, step);
                    let peak = way.peak.max(during);
                    let set = done.with(step);
                    let order = || way.order.iter().copied().chain([step]).collect();
                    match next.entry(set) {
                        Entry::Vacant(new) => drop(new.insert(Way { peak, alive, order: order() })),
                        Entry::Occupied(mut known) if peak < known.get().peak => drop(known.insert(Way { peak, alive, order: order() })),
                        Entry::Occupied(_) => (),
                    }
                }
            }
            if next.len() > WIDTH {
                let mut all: Vec<(Steps, Way)> = next.into_iter().collect();
                // The first so many; among themselves they need no order.
                all.select_nth_unstable_by(WIDTH, |(_, a), (_, b)| (a.peak, a.alive, &a.order).cmp(&(b.peak, b.alive, &b.order)));
                all.truncate(WIDTH);
                next = all.into_iter().collect();
            }
            ways = next;
        }
        ways.into_values().min_by(|a, b| a.peak.cmp(&b.peak))
    }

    /// The first order, by the numbers of its steps, that stays within so many bytes; `None` if it is not found soon.
    fn within(&self, bytes: u64) -> Option<Vec<usize>> {
        let mut hopeless: BTreeSet<Steps> = BTreeSet::new();
        // For each step that was taken: what was done before it, and the steps that are still to be tried in its place.
        let mut path: Vec<(Steps, u64, usize)> = Vec::new();
        let (mut done, mut alive, mut from) = (Steps::default(), 0, 0);
        for _ in 0..LOOKS {
            if path.len() == self.needs.len() {
                return Some(path.into_iter().map(|(_, _, step)| step).collect());
            }
            let fits = |step: usize| {
                let (during, after) = self.run(&done, alive, step);
                let next = done.with(step);
                (during <= bytes && !hopeless.contains(&next)).then_some((step, after, next))
            };
            let found = self.ready(&done).filter(|s| *s >= from).find_map(fits);
            match found {
                Some((step, after, next)) => {
                    path.push((done, alive, step));
                    (done, alive, from) = (next, after, 0);
                }
                None => {
                    hopeless.insert(done);
                    let (before, bytes_then, step) = path.pop()?;
                    (done, alive, from) = (before, bytes_then, step + 1);
                }
            }
        }
        None
    }
}
