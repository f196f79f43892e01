//! Exploratory fusion: patterns grown around seeds by one producer or consumer at a time, within bounds.
//!
//! Everything that was a pattern on the way is a candidate. Growth without bounds gives thousands of candidates for a hundred operators;
//! the bounds keep patterns within a segment between large products, short, and few for each seed.
//!
//! *Source*: "FusionStitching" (Long, Yang, Lin), Algorithm 2.

use super::graph::{Ancestors, OperatorGraph};
use fixedbitset::FixedBitSet;
use std::collections::{HashMap, HashSet, VecDeque};

/// How far patterns grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthLimits {
    /// Patterns for each seed.
    pub per_seed: usize,
    /// Operators of a pattern.
    pub members: usize,
    /// Bytes that a seed moves at least.
    pub seed: u64,
    /// Operands of a seed at most.
    pub operands: usize,
    /// Patterns of one segment.
    pub per_segment: usize,
    /// Operators of a segment that is explored; longer ones have their ladder alone.
    pub segment: usize,
}

impl Default for GrowthLimits {
    fn default() -> Self {
        GrowthLimits { per_seed: 12, members: 14, seed: 10 << 10, operands: 10, per_segment: 240, segment: 600 }
    }
}

/// Patterns of one segment, convex within it, each sorted. `takes` says whether operators may become one kernel; a pattern that it refuses
/// does not grow.
pub fn explore(graph: &OperatorGraph, segment: &[u32], bounds: GrowthLimits, takes: &mut dyn FnMut(&[u32]) -> bool) -> Vec<Vec<u32>> {
    if segment.len() < 2 || segment.len() > bounds.segment {
        return Vec::new();
    }
    let mut sorted = segment.to_vec();
    sorted.sort_unstable();
    let number: HashMap<u32, usize> = sorted.iter().enumerate().map(|(n, operator)| (*operator, n)).collect();
    let ancestors = Ancestors::new(graph, &sorted, &|operator| number.get(&operator).copied());
    let mut seen: HashSet<FixedBitSet> = HashSet::new();
    let mut found = Vec::new();
    let mut seeds: Vec<usize> = (0..sorted.len())
        .filter(|n| graph.operator(sorted[*n]).reads.len() <= bounds.operands && graph.bytes(sorted[*n]) >= bounds.seed)
        .collect();
    seeds.sort_by_key(|n| (std::cmp::Reverse(graph.bytes(sorted[*n])), *n));
    for seed in seeds {
        let mut single = FixedBitSet::with_capacity(sorted.len());
        single.insert(seed);
        let mut growing = VecDeque::from([single]);
        let mut own = 0;
        while let Some(members) = growing.pop_front() {
            let near = members.ones().flat_map(|m| graph.after(sorted[m]).iter().chain(graph.before(sorted[m])));
            let mut near: Vec<usize> = near.filter_map(|o| number.get(o).copied()).filter(|n| !members.contains(*n)).collect();
            near.sort_unstable();
            near.dedup();
            for more in near {
                if own >= bounds.per_seed || found.len() >= bounds.per_segment {
                    break;
                }
                let mut grown = members.clone();
                grown.insert(more);
                // What lies between joins as well.
                close(&ancestors, &mut grown);
                if grown.count_ones(..) > bounds.members || !seen.insert(grown.clone()) || !ancestors.is_convex(&grown) {
                    continue;
                }
                let pattern: Vec<u32> = grown.ones().map(|n| sorted[n]).collect();
                if takes(&pattern) {
                    own += 1;
                    found.push(pattern);
                    growing.push_back(grown);
                }
            }
        }
    }
    found
}

/// Adds what depends on a member and is depended on by one.
fn close(ancestors: &Ancestors, members: &mut FixedBitSet) {
    let mut needed = FixedBitSet::with_capacity(ancestors.before.len());
    members.ones().for_each(|m| needed.union_with(&ancestors.before[m]));
    let between: Vec<usize> = needed.ones().filter(|n| !ancestors.before[*n].is_disjoint(members)).collect();
    between.into_iter().for_each(|n| members.insert(n));
}
