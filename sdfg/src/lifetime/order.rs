//! The order of kernels that needs the least memory.
//!
//! The set of finished steps decides which buffers are alive, independent of the order of those steps. So the least peak over all
//! orders is a shortest path over such sets. Programs with many independent steps have many sets; the search keeps the most promising
//! sets of each size, and is exact as long as it drops none. Among orders with the least peak it takes the one that follows the
//! program's own order for as long as possible, because neighbours in that order find each other's results in the caches.

use super::room;
use super::schedule::Schedule;
use std::collections::{BTreeSet, HashMap};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Sets of one size that are followed, at most.
const WIDTH: usize = 1000;
/// Sets of all sizes that are followed: fewer of each size where there are many steps.
const FOLLOWED: usize = 64_000;
/// Sets that are looked at for the order nearest to the program's.
const LOOKS: usize = 100_000;
/// Steps that a set has room for; programs of more keep their order.
const MOST: usize = 256;

/// A set of steps, one bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Steps([u64; MOST / 64]);

impl Steps {
    fn has(&self, step: usize) -> bool {
        self.0[step / 64] >> (step % 64) & 1 == 1
    }

    fn with(mut self, step: usize) -> Steps {
        self.0[step / 64] |= 1 << (step % 64);
        self
    }

    fn without(mut self, step: usize) -> Steps {
        self.0[step / 64] &= !(1 << (step % 64));
        self
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        let bits = |word: u64| std::iter::successors(Some(word), |w| Some(w & w.wrapping_sub(1))).take_while(|w| *w != 0);
        self.0.into_iter().enumerate().flat_map(move |(n, word)| bits(word).map(move |w| n * 64 + w.trailing_zeros() as usize))
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
    /// By step: those that it must come before.
    after: Vec<Vec<usize>>,
    /// By buffer: the steps that touch it.
    users: Vec<Steps>,
    /// By step: the buffers that it touches.
    touched: Vec<Vec<usize>>,
}

/// A way to do some steps: all of another way, and one more.
#[derive(Clone, Copy)]
struct Way {
    /// The most bytes so far, and those alive afterwards.
    peak: u64,
    alive: u64,
    /// The steps that could come next.
    ready: Steps,
    /// Place among the ways of its size by the order of its steps; at first that of the way that it goes on from.
    rank: usize,
    step: usize,
    /// The way that it goes on from, among those of a step less.
    from: usize,
}

/// Orders that were found: a plan is put together several times, for its kernels, for checks and for each race, and finding the order of
/// some hundred steps takes half a second.
static FOUND: LazyLock<Mutex<HashMap<Schedule, Vec<usize>>>> = LazyLock::new(Mutex::default);
/// Schedules whose orders are kept.
const KEPT: usize = 64;

impl Schedule {
    /// The order of steps that needs the least memory at once, of all that were looked at.
    pub fn order(&self) -> Vec<usize> {
        let found = || FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(order) = found().get(self) {
            return order.clone();
        }
        let order = self.searched();
        let mut found = found();
        if found.len() >= KEPT {
            found.clear();
        }
        found.insert(self.clone(), order.clone());
        order
    }

    fn searched(&self) -> Vec<usize> {
        let own: Vec<usize> = (0..self.steps.len()).collect();
        let Some(search) = Search::new(self) else { return own };
        let Some((peak, order)) = search.least(search.peak(&own)) else { return own };
        search.within(peak).unwrap_or(order)
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
        let needs: Vec<Steps> = if steps.len() <= MOST { (0..steps.len()).map(before).collect() } else { return None };
        let after = |earlier: usize| (0..needs.len()).filter(|later| needs[*later].has(earlier)).collect();
        Some(Search {
            schedule,
            after: (0..steps.len()).map(after).collect(),
            needs,
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

    /// The least peak among the orders that were followed, in bytes, and its order. `None` if every order needs `enough` bytes or more.
    fn least(&self, enough: u64) -> Option<(u64, Vec<usize>)> {
        let start = Way { peak: 0, alive: 0, ready: self.ready(&Steps::default()).collect(), rank: 0, step: 0, from: 0 };
        let mut ways = vec![(Steps::default(), start)];
        // By size: the step that each way took, and the way that it went on from.
        let mut taken: Vec<Vec<(usize, usize)>> = Vec::new();
        let width = WIDTH.min(FOLLOWED / self.needs.len().max(1));
        let mut next: HashMap<Steps, Way> = HashMap::new();
        for _ in 0..self.needs.len() {
            for (from, (done, way)) in ways.iter().enumerate() {
                for step in way.ready.iter() {
                    let (during, alive) = self.run(done, way.alive, step);
                    let (peak, set) = (way.peak.max(during), done.with(step));
                    if peak >= enough {
                        continue;
                    }
                    let found = Way { peak, alive, ready: Steps::default(), rank: way.rank, step, from };
                    // Where two ways have done the same, the first of those of the least peak is followed.
                    let known = next.entry(set).or_insert(found);
                    if peak < known.peak {
                        *known = found;
                    }
                }
            }
            let mut all: Vec<(Steps, Way)> = next.drain().collect();
            if all.len() > width {
                // The first so many; among themselves they need no order.
                all.select_nth_unstable_by_key(width, |(_, way)| (way.peak, way.alive, way.rank, way.step));
                all.truncate(width);
            }
            all.sort_unstable_by_key(|(done, _)| *done);
            let mut ranks: Vec<usize> = (0..all.len()).collect();
            ranks.sort_unstable_by_key(|n| (all[*n].1.rank, all[*n].1.step));
            ranks.into_iter().enumerate().for_each(|(rank, n)| all[n].1.rank = rank);
            for (done, way) in &mut all {
                let follow = self.after[way.step].iter().copied().filter(|s| self.needs[*s].within(done));
                way.ready = follow.fold(ways[way.from].1.ready.without(way.step), Steps::with);
            }
            taken.push(all.iter().map(|(_, way)| (way.step, way.from)).collect());
            ways = all;
        }
        let (mut at, (_, best)) = ways.iter().enumerate().min_by_key(|(_, (_, way))| way.peak)?;
        let mut order: Vec<usize> = Vec::with_capacity(taken.len());
        for ways in taken.iter().rev() {
            let (step, from) = ways[at];
            order.push(step);
            at = from;
        }
        order.reverse();
        Some((best.peak, order))
    }

    /// The lexicographically first order whose peak is at most `bytes`; `None` if the bounded search does not find it.
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
