//! In which order the configurations of one kernel are tried.
//!
//! First number 0 (row-major), the seeds, and, unless it is large, the coordinate set of number 0: every configuration that
//! differs from it in one digit. So any early stop leaves a valid choice and a first idea of every layout and knob. Then, in
//! turns, neighbours of the best one so far and the rest of the space, both by promise. Spaces too large to rank as a whole are taken in
//! blocks spread evenly over the space; in the end everything comes exactly once.

use crate::measure::space::{KernelSpace, by_predicted_cost};
use std::collections::{BTreeSet, VecDeque};

/// Numbers ranked at a time, at least. Ranking decodes every one of them, which takes some microseconds.
const BLOCK: u64 = 1 << 14;
/// Grains ([`KernelSpace::ranking_batch`]) ranked at a time, at least: working one out takes longer than ranking its numbers.
const GRAINS: u64 = 1 << 8;
/// The largest coordinate set that is tried before what promises more: of a kernel with many tensors and knobs most of it has one
/// tensor lie across all others.
const COORDINATES: usize = 96;

/// Which part of a space this process measures: numbers with `n % of == index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    pub index: u64,
    pub of: u64,
}

impl Shard {
    pub const WHOLE: Shard = Shard { index: 0, of: 1 };

    pub fn holds(&self, n: u64) -> bool {
        n % self.of.max(1) == self.index
    }

    /// How many of the numbers below `count` it holds.
    pub fn share(&self, count: u64) -> u64 {
        if count <= self.index { 0 } else { (count - self.index).div_ceil(self.of.max(1)) }
    }
}

#[derive(Debug)]
pub struct Candidates {
    radices: Vec<u64>,
    count: u64,
    shard: Shard,
    handed_out: BTreeSet<u64>,
    /// To be tried before anything else.
    first: VecDeque<u64>,
    /// Neighbours of the best so far, tried in turns with the ranked block.
    near: VecDeque<u64>,
    /// The best so far whose neighbours are not in `near` yet: a kernel that gets no further turn needs no ranking of them.
    unranked: Option<u64>,
    /// Numbers with an infinite predicted cost.
    hopeless: VecDeque<u64>,
    /// The current block, best promise last.
    ranked: Vec<u64>,
    /// Position in the spread-out order of the space, and how many there are: in grains.
    position: u64,
    grains: u64,
    grain: u64,
    stride: u64,
    turn: bool,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Candidates {
    pub fn new(space: &dyn KernelSpace, shard: Shard) -> Self {
        let (count, grain) = (space.count(), space.ranking_batch().max(1));
        let grains = count.div_ceil(grain);
        // Near the golden section of the space, and coprime to it: multiples visit every grain once, evenly spread.
        let mut stride = ((grains as f64 * 0.618_033_988_749_895) as u64).clamp(1, grains.max(1));
        while count > BLOCK && gcd(stride, grains) != 1 {
            stride = stride % grains + 1;
        }
        let mut candidates = Candidates {
            radices: space.radices(),
            count,
            shard,
            handed_out: BTreeSet::new(),
            first: VecDeque::new(),
            near: VecDeque::new(),
            unranked: None,
            hopeless: VecDeque::new(),
            ranked: Vec::new(),
            position: 0,
            grains,
            grain,
            stride: if count > BLOCK { stride } else { 1 },
            turn: false,
        };
        candidates.first.extend(space.seeds().into_iter().filter(|n| *n < count));
        candidates.first.push_back(0);
        match candidates.neighbours(0) {
            coordinates if coordinates.len() <= COORDINATES => candidates.first.extend(coordinates),
            _ => candidates.improved(0),
        }
        candidates
    }

    /// All numbers that differ from `n` in one digit.
    fn neighbours(&self, n: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let mut weight = 1u64;
        for radix in self.radices.iter().rev() {
            let digit = (n / weight) % (*radix).max(1);
            // A digit with very many values (all knobs as one digit) is no coordinate.
            if *radix <= 1024 {
                found.extend((0..*radix).filter(|d| *d != digit).map(|d| n - digit * weight + d * weight));
            }
            weight = weight.saturating_mul((*radix).max(1));
        }
        found
    }

    /// Tells that `n` is the best so far: what differs from it in one digit is tried soon.
    pub fn improved(&mut self, n: u64) {
        self.unranked = Some(n);
    }

    /// Neighbours of a number, the most promising first.
    fn ranked_neighbours(&self, n: u64, space: &dyn KernelSpace) -> VecDeque<u64> {
        by_predicted_cost(space, &self.neighbours(n)).into()
    }

    /// Numbers that will come soon, as far as that is known: nothing is handed out.
    pub fn coming(&self, count: usize, space: &dyn KernelSpace) -> Vec<u64> {
        let ranked = self.ranked.iter().rev();
        let wanted = self.first.iter().filter(|n| self.shard.holds(**n) && !self.handed_out.contains(n)).take(count).count() < count;
        let unranked = self.unranked.filter(|_| wanted).map(|n| self.ranked_neighbours(n, space));
        let near = unranked.as_ref().unwrap_or(&self.near).iter();
        let soon = |n: &&u64| self.shard.holds(**n) && !self.handed_out.contains(n);
        let first = self.first.iter().filter(soon).take(count);
        // The two that take turns, in turns.
        let (near, ranked): (Vec<&u64>, Vec<&u64>) = (near.filter(soon).take(count).collect(), ranked.filter(soon).take(count).collect());
        let turns = (0..count).flat_map(|n| [near.get(n), ranked.get(n)]).flatten().copied();
        first.chain(turns).take(count).copied().collect()
    }

    fn most_promising(&mut self, space: &dyn KernelSpace) -> Option<u64> {
        loop {
            while let Some(n) = self.ranked.pop() {
                if !self.handed_out.contains(&n) {
                    return Some(n);
                }
            }
            if self.position >= self.grains {
                return None;
            }
            let end = self.grains.min(self.position.saturating_add((BLOCK / self.grain).max(GRAINS)));
            let (stride, grains, grain, count, shard) = (self.stride as u128, self.grains as u128, self.grain, self.count, self.shard);
            let spread = (self.position..end).map(|p| (p as u128 * stride % grains) as u64 * grain);
            let numbers = spread.flat_map(|first| first..count.min(first + grain));
            self.ranked = by_predicted_cost(space, &numbers.filter(|n| shard.holds(*n)).collect::<Vec<u64>>());
            self.ranked.reverse();
            self.position = end;
        }
    }

    /// The next number to try; each comes once, and those that promise nothing come last. `None` when the shard is exhausted.
    pub fn next(&mut self, space: &dyn KernelSpace) -> Option<u64> {
        let mut skipped = 0;
        loop {
            self.turn = !self.turn;
            let first = self.first.pop_front();
            if first.is_none()
                && let Some(best) = self.unranked.take()
            {
                self.near = self.ranked_neighbours(best, space);
            }
            let soon = match first {
                None if self.turn => self.near.pop_front(),
                first => first,
            };
            let promising = soon.or_else(|| self.most_promising(space)).or_else(|| self.near.pop_front());
            let last = promising.is_none();
            let n = match promising {
                Some(n) => n,
                None => self.hopeless.pop_front()?,
            };
            // It may have promised something when it was ranked: spaces learn what there is.
            let hopeless = || !last && !self.handed_out.contains(&n) && space.predicted_cost(n) == f64::INFINITY;
            if skipped < BLOCK.max(GRAINS * self.grain) && hopeless() {
                skipped += 1;
                self.hopeless.push_back(n);
                continue;
            }
            if self.shard.holds(n) && self.handed_out.insert(n) {
                return Some(n);
            }
        }
    }
}
