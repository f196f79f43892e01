//! Offsets in one piece of memory.

use super::{Handover, LiveInterval};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Rounds of placing the highest buffer first and then all others, if no simple order reaches the lower bound.
const ROUNDS: usize = 256;

/// Pairs of buffers alive at once that the rounds of one order may look at: tens of milliseconds. Steps of a layer get all rounds, those
/// of many layers fewer.
const LOOKED_AT: usize = 1 << 22;

/// A place for every buffer in one piece of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaPlan {
    /// Byte offset of each buffer.
    pub offsets: BTreeMap<String, u64>,
    /// Size of the arena.
    pub peak_bytes: u64,
    /// The most bytes alive at once, each rounded up to the alignment: with these handovers no plan is smaller.
    pub lower_bound: u64,
    /// The handovers that took place.
    pub handovers: Vec<Handover>,
}

/// Buffers that lie in one place one after the other.
struct ArenaSlot<'a> {
    members: Vec<&'a LiveInterval>,
    room: u64,
    first: usize,
    last: usize,
}

/// What places are ordered by, smallest first.
type Key = fn(&ArenaSlot) -> (Reverse<u64>, u64);

impl ArenaSlot<'_> {
    /// Kernels that it lives through.
    fn length(&self) -> u64 {
        (self.last - self.first + 1) as u64
    }

    fn meets(&self, other: &ArenaSlot) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// Assigns offsets. A handover takes place if both of its buffers are known, have equal sizes, and the first one ends where the second
/// begins. Then the arena is filled in each of a few fixed orders, and in further orders that place the highest buffer first, until an
/// arena is as small as the buffers that are alive at once. The smallest arena is taken; among equal ones, the first.
pub fn plan(intervals: &[LiveInterval], handovers: &[Handover]) -> ArenaPlan {
    let (places, handovers) = merged(intervals, handovers);
    // The load changes only where a life begins.
    let load = |kernel: usize| places.iter().filter(|p| (p.first..=p.last).contains(&kernel)).map(|p| p.room).sum();
    let lower_bound: u64 = places.iter().map(|p| load(p.first)).max().unwrap_or(0);
    let neighbours = neighbours(&places);
    let pairs: usize = neighbours.iter().map(Vec::len).sum();
    let rounds = (LOOKED_AT / pairs.max(1)).clamp(1, ROUNDS);
    let mut best: Option<(u64, Vec<u64>)> = None;
    let attempt = |order: &[usize], best: &mut Option<(u64, Vec<u64>)>| -> (bool, Vec<u64>) {
        let mut highest = Vec::new();
        for tight in [false, true] {
            let (peak, offsets) = filled(&places, &neighbours, order, tight);
            if best.as_ref().is_none_or(|(least, _)| peak < *least) {
                *best = Some((peak, offsets.clone()));
            }
            highest = offsets;
        }
        (best.as_ref().is_some_and(|(least, _)| *least <= lower_bound), highest)
    };
    let name = |p: &ArenaSlot| p.members.first().map(|m| m.data.clone()).unwrap_or_default();
    let keys: [Key; 4] = [
        |p| (Reverse(p.room), 0),
        |p| (Reverse(p.room.saturating_mul(p.length())), 0),
        |p| (Reverse(p.length()), 0),
        |p| (Reverse(0), p.first as u64),
    ];
    let mut done = places.is_empty();
    for key in keys.iter().filter(|_| !places.is_empty()) {
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by(|a, b| key(&places[*a]).cmp(&key(&places[*b])).then_with(|| name(&places[*a]).cmp(&name(&places[*b]))));
        for _ in 0..rounds {
            if done {
                break;
            }
            let (reached, offsets) = attempt(&order, &mut best);
            done = reached;
            let top = |n: &usize| offsets[*n] + places[*n].room;
            let Some(at) = (0..order.len()).max_by_key(|at| (top(&order[*at]), Reverse(*at))).filter(|at| *at > 0) else { break };
            order[..=at].rotate_right(1);
        }
    }
    let (peak_bytes, offsets) = best.unwrap_or_default();
    let each = places.iter().zip(offsets).flat_map(|(place, at)| place.members.iter().map(move |m| (m.data.clone(), at)));
    ArenaPlan { offsets: each.collect(), peak_bytes, lower_bound, handovers }
}

/// Buffers that are handed over to each other, as one place.
fn merged<'a>(intervals: &'a [LiveInterval], handovers: &[Handover]) -> (Vec<ArenaSlot<'a>>, Vec<Handover>) {
    let mut places: Vec<ArenaSlot> =
        intervals.iter().map(|i| ArenaSlot { members: vec![i], room: i.room(), first: i.first, last: i.last }).collect();
    let mut done = Vec::new();
    for handover in handovers {
        let ends = |p: &ArenaSlot| p.members.last().is_some_and(|m| m.data == handover.from);
        let begins = |p: &ArenaSlot| p.members.first().is_some_and(|m| m.data == handover.to);
        let (Some(from), Some(to)) = (places.iter().position(ends), places.iter().position(begins)) else { continue };
        // What the same kernel makes and gives up is not there before it.
        let was_there = places[from].members.last().is_some_and(|m| m.first < places[to].first);
        if from == to || !was_there || places[from].room != places[to].room || places[from].last != places[to].first {
            continue;
        }
        let next = places.remove(to);
        let place = &mut places[if to < from { from - 1 } else { from }];
        place.last = next.last;
        place.members.extend(next.members);
        done.push(handover.clone());
    }
    (places, done)
}

/// For each place those that it may not share bytes with.
fn neighbours(places: &[ArenaSlot]) -> Vec<Vec<usize>> {
    let meets = |n: usize| (0..places.len()).filter(|other| *other != n && places[n].meets(&places[*other])).collect();
    (0..places.len()).map(meets).collect()
}

/// Gives each place, in this order, a gap that is free throughout its life: the lowest, or the smallest that is no higher
/// than what lies there already. The size of it all, and the offsets.
fn filled(places: &[ArenaSlot], neighbours: &[Vec<usize>], order: &[usize], tight: bool) -> (u64, Vec<u64>) {
    let mut offsets = vec![0; places.len()];
    let mut placed = vec![false; places.len()];
    let mut peak = 0;
    for n in order {
        let place = &places[*n];
        let met = neighbours[*n].iter().filter(|p| placed[**p]);
        let mut taken: Vec<(u64, u64)> = met.map(|p| (offsets[*p], offsets[*p] + places[*p].room)).collect();
        taken.sort_unstable();
        let (mut end, mut gaps) = (0, Vec::new());
        for (from, to) in taken {
            if end + place.room <= from {
                gaps.push((from - end, end));
            }
            end = end.max(to);
        }
        let lowest = gaps.first().map(|(_, at)| *at);
        let smallest = gaps.iter().min().map(|(_, at)| *at);
        let offset = if tight { smallest } else { lowest }.unwrap_or(end);
        offsets[*n] = offset;
        placed[*n] = true;
        peak = peak.max(offset + place.room);
    }
    (peak, offsets)
}
