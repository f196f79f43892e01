//! Which phases of which kernels share a dispatch (Long, Yang and Lin, "FusionStitching", arXiv:1911.11576, section 5.1; the packing of
//! independent kernels, and thread composition by a common partition).
//!
//! A phase comes after all that touch memory which it writes, or write memory that it touches. It needs no barrier after one of them if
//! each worker finds there nothing but its own work: both divide their points by an index of the same size, and that index walks the same
//! dim of the memory that they share. Each phase takes the earliest group that this allows, so the groups follow from the phases alone.

use crate::phases::{AccessedPart, PartitionIndex, Spread};
use std::collections::BTreeMap;
use std::ops::Range;

/// A worker's share may exceed an equal one by this much where phases are divided alike.
const MOST_UNEQUAL: f64 = 1.15;

/// A phase of a kernel as grouping sees it.
#[derive(Clone, Debug)]
pub struct PackedPhase {
    pub spread: Spread,
    /// Whether the caller does it before the others begin: it finishes what all workers have begun.
    pub closes: bool,
    pub partition: Option<PartitionIndex>,
    pub regions: Vec<Region>,
    /// A kernel that gives out its work by itself, which nothing can share a dispatch with.
    pub whole: bool,
}

/// Memory that a piece touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    pub memory: usize,
    pub bytes: Range<usize>,
    pub written: bool,
    pub part: AccessedPart,
}

/// Pieces between two barriers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BarrierGroup {
    /// What the caller does first, alone.
    pub before: Vec<usize>,
    /// What each worker does, in this order.
    pub work: Vec<Work>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Work {
    pub piece: usize,
    /// Where the workers' ranges of the index begin and end, if the piece is divided as others are.
    pub bounds: Option<Vec<i64>>,
    /// What all of these are divided by, of which the bounds follow.
    pub along: Option<PartitionIndex>,
}

/// Pieces of a group that are divided alike.
#[derive(Clone, Debug)]
struct Team {
    partition: PartitionIndex,
    members: Vec<usize>,
}

impl Team {
    fn with(&self, partition: PartitionIndex) -> Option<PartitionIndex> {
        (self.partition.size == partition.size).then(|| PartitionIndex { step: lcm(self.partition.step, partition.step), ..partition })
    }
}

fn lcm(a: i64, b: i64) -> i64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x.max(1) * b
}

/// The bounds of the workers' ranges of the index, one more than workers: multiples of the partition's step, as equal as possible.
pub fn bounds(partition: PartitionIndex, workers: usize) -> Vec<i64> {
    let PartitionIndex { size, step } = partition;
    let at = |worker: usize| {
        let equal = size as f64 * worker as f64 / workers as f64;
        (((equal / step as f64).round() as i64) * step).min(size)
    };
    (0..workers).map(at).chain([size]).collect()
}

/// Whether no worker has much more than an equal share.
fn is_balanced(partition: PartitionIndex, workers: usize) -> bool {
    let bounds = bounds(partition, workers);
    let most = bounds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
    most as f64 <= partition.size as f64 / workers as f64 * MOST_UNEQUAL
}

/// What has touched a memory so far.
#[derive(Clone, Debug)]
struct Toucher {
    piece: usize,
    bytes: Range<usize>,
    written: bool,
    part: AccessedPart,
}

/// What a piece requires of a piece before it that touches the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    /// The worker that runs the first piece runs the second one after it.
    Order,
    /// No barrier, if both are divided along the same partition: each worker then reads its own results only.
    Alike,
    Barrier,
}

struct Grouping<'p> {
    pieces: &'p [PackedPhase],
    workers: usize,
    groups: Vec<(BarrierGroup, Vec<Team>)>,
    /// The group of each piece so far.
    placed: Vec<usize>,
    touched: BTreeMap<usize, Vec<Toucher>>,
}

/// Groups pieces, given in an order in which they can run, for a number of workers.
pub fn groups(pieces: &[PackedPhase], workers: usize) -> Vec<BarrierGroup> {
    let mut grouping = Grouping { pieces, workers, groups: vec![], placed: vec![], touched: BTreeMap::new() };
    for n in 0..pieces.len() {
        grouping.place(n);
    }
    grouping.finish()
}

impl Grouping<'_> {
    fn place(&mut self, n: usize) {
        let piece = &self.pieces[n];
        let needs = self.needs(n);
        let after = |(before, need): (&usize, &Need)| {
            let group = self.placed[*before];
            // What the caller does first is done before the workers begin.
            let together = match (self.pieces[*before].closes, piece.closes) {
                (true, _) => true,
                (false, true) => false,
                (false, false) => *need != Need::Barrier,
            };
            group + usize::from(!together)
        };
        let mut at = needs.iter().map(after).max().unwrap_or(0);
        // Nothing shares a group with a kernel that gives out its work by itself.
        while at < self.groups.len() && (piece.whole || self.is_whole(at)) {
            at += 1;
        }
        let partners: Vec<usize> = needs
            .iter()
            .filter(|(before, need)| **need == Need::Alike && self.placed[**before] == at && !self.pieces[**before].closes)
            .map(|(before, _)| *before)
            .collect();
        if !partners.is_empty() && !self.join(at, n, &partners) {
            at += 1;
            while at < self.groups.len() && (piece.whole || self.is_whole(at)) {
                at += 1;
            }
        }
        if at >= self.groups.len() {
            self.groups.resize_with(at + 1, Default::default);
        }
        let group = &mut self.groups[at].0;
        match piece.closes {
            true => group.before.push(n),
            false => group.work.push(Work { piece: n, bounds: None, along: None }),
        }
        self.placed.push(at);
        for region in &piece.regions {
            let toucher = Toucher { piece: n, bytes: region.bytes.clone(), written: region.written, part: region.part };
            let known = self.touched.entry(region.memory).or_default();
            // An access that a later piece overwrites as a whole behind a barrier can be forgotten: what conflicts with the access
            // conflicts with the later piece, too.
            if region.written && region.part == AccessedPart::Whole {
                known.retain(|t| t.bytes.start < region.bytes.start || t.bytes.end > region.bytes.end || self.placed[t.piece] >= at);
            }
            known.push(toucher);
        }
    }

    fn is_whole(&self, group: usize) -> bool {
        self.groups[group].0.work.iter().any(|work| self.pieces[work.piece].whole)
    }

    /// The pieces that a piece must come after, and what for.
    fn needs(&self, n: usize) -> BTreeMap<usize, Need> {
        let piece = &self.pieces[n];
        let mut needs = BTreeMap::new();
        for region in &piece.regions {
            for t in self.touched.get(&region.memory).into_iter().flatten() {
                let meet = t.bytes.start < region.bytes.end && region.bytes.start < t.bytes.end;
                if !meet || !(t.written || region.written) {
                    continue;
                }
                let before = &self.pieces[t.piece];
                let same_index = matches!((before.partition, piece.partition), (Some(a), Some(b)) if a.size == b.size);
                let alone = before.spread == Spread::Alone && piece.spread == Spread::Alone;
                let need = match (t.part, region.part) {
                    _ if alone => Need::Order,
                    (AccessedPart::Own, AccessedPart::Own) => Need::Order,
                    (AccessedPart::Along(a), AccessedPart::Along(b)) if a == b && t.bytes == region.bytes && same_index => Need::Alike,
                    _ => Need::Barrier,
                };
                let known = needs.entry(t.piece).or_insert(need);
                *known = (*known).max(need);
            }
        }
        needs
    }

    /// Whether a piece can be divided as those of a group that it needs are; if so, it is from now on.
    fn join(&mut self, at: usize, n: usize, partners: &[usize]) -> bool {
        let (Some(own), Some((_, teams))) = (self.pieces[n].partition, self.groups.get_mut(at)) else { return false };
        let team = teams.iter().position(|team| team.partition.size == own.size);
        let base = match team {
            Some(team) => teams[team].clone(),
            None => Team { partition: own, members: vec![] },
        };
        let joining = partners.iter().filter(|p| !base.members.contains(p)).copied();
        let mut joined = base.clone();
        for each in joining.chain([n]) {
            let Some(with) = self.pieces[each].partition.and_then(|partition| joined.with(partition)) else { return false };
            joined.partition = with;
            joined.members.push(each);
        }
        if !is_balanced(joined.partition, self.workers) {
            return false;
        }
        match team {
            Some(team) => teams[team] = joined,
            None => teams.push(joined),
        }
        true
    }

    fn finish(self) -> Vec<BarrierGroup> {
        let workers = self.workers;
        let of = |(mut group, teams): (BarrierGroup, Vec<Team>)| {
            for team in teams {
                let bounds = bounds(team.partition, workers);
                for work in group.work.iter_mut().filter(|work| team.members.contains(&work.piece)) {
                    (work.bounds, work.along) = (Some(bounds.clone()), Some(team.partition));
                }
            }
            group
        };
        self.groups.into_iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEMS: Spread = Spread::Items { count: 64, parts: 8 };

    fn region(memory: usize, written: bool, part: AccessedPart) -> Region {
        Region { memory, bytes: 0..8, written, part }
    }

    /// A piece divided by an index of 64 positions in steps of `step`, 0 for one that cannot be divided.
    fn piece(step: i64, regions: &[Region]) -> PackedPhase {
        let partition = (step > 0).then_some(PartitionIndex { size: 64, step });
        PackedPhase { spread: ITEMS, closes: false, partition, regions: regions.to_vec(), whole: false }
    }

    fn pieces(groups: &[BarrierGroup]) -> Vec<(Vec<usize>, Vec<usize>)> {
        groups.iter().map(|g| (g.before.clone(), g.work.iter().map(|w| w.piece).collect())).collect()
    }

    #[test]
    fn pieces_come_as_early_as_memory_allows() {
        use AccessedPart::Whole;
        let first = piece(0, &[region(0, true, Whole)]);
        let reads = piece(0, &[region(0, false, Whole), region(2, true, Whole)]);
        let second = piece(0, &[region(1, true, Whole)]);
        let over = piece(0, &[region(1, false, Whole), region(0, true, Whole)]);
        let found = groups(&[first, reads, second, over], 2);
        let expected = [(vec![], vec![0, 2]), (vec![], vec![1]), (vec![], vec![3])];
        assert_eq!(pieces(&found), expected, "the last one writes what the second one reads");
    }

    #[test]
    fn a_worker_that_finds_its_own_work_needs_no_barrier() {
        use AccessedPart::{Along, Whole};
        let makes = piece(16, &[region(0, true, Along(0))]);
        let takes = piece(4, &[region(0, false, Along(0)), region(1, true, Along(1))]);
        let whole = piece(4, &[region(1, false, Whole), region(2, true, Along(0))]);
        let other = piece(4, &[region(1, false, Along(0)), region(3, true, Along(0))]);
        let found = groups(&[makes, takes, whole, other], 2);
        assert_eq!(pieces(&found), [(vec![], vec![0, 1]), (vec![], vec![2, 3])], "along another dim it would be another worker's");
        let bounds: Vec<_> = found[0].work.iter().map(|w| w.bounds.clone()).collect();
        assert_eq!(bounds, [Some(vec![0, 32, 64]), Some(vec![0, 32, 64])]);
        assert_eq!(found[1].work[0].bounds, None, "what needs nothing of its group is shared out as it comes");
    }

    #[test]
    fn pieces_are_divided_alike_only_where_that_is_fair() {
        use AccessedPart::Along;
        let chain =
            |step: i64| [piece(1, &[region(0, true, Along(0))]), piece(step, &[region(0, false, Along(0)), region(1, true, Along(0))])];
        assert_eq!(groups(&chain(16), 2).len(), 1);
        assert_eq!(groups(&chain(48), 2).len(), 2, "one of two workers would have 48 of 64");
        assert_eq!(groups(&chain(16), 3).len(), 2, "one of three workers would have 32 of 64");
        assert_eq!(bounds(PartitionIndex { size: 100, step: 7 }, 3), [0, 35, 70, 100]);
    }

    #[test]
    fn memory_that_two_tensors_have_in_turn_is_kept_apart() {
        use AccessedPart::Along;
        let makes = piece(1, &[region(0, true, Along(0))]);
        let takes = piece(1, &[Region { bytes: 0..16, ..region(0, false, Along(0)) }, region(1, true, Along(0))]);
        assert_eq!(groups(&[makes, takes], 2).len(), 2, "the same positions lie elsewhere in a tensor of another size");
    }

    #[test]
    fn what_closes_comes_before_the_work_of_its_group() {
        use AccessedPart::{Along, Own, Whole};
        let sums = piece(1, &[region(0, false, Along(0)), region(9, true, Own)]);
        let closes = PackedPhase { spread: Spread::Alone, closes: true, ..piece(0, &[region(9, false, Whole), region(1, true, Whole)]) };
        let takes = piece(1, &[region(1, false, Whole), region(2, true, Along(0))]);
        let again = piece(1, &[region(9, true, Own)]);
        let found = groups(&[sums, closes, takes, again], 2);
        assert_eq!(pieces(&found), [(vec![], vec![0]), (vec![1], vec![2, 3])]);
    }

    #[test]
    fn a_kernel_that_gives_out_its_own_work_stays_alone() {
        let first = piece(0, &[region(0, true, AccessedPart::Whole)]);
        let whole = PackedPhase { whole: true, ..piece(0, &[region(1, true, AccessedPart::Whole)]) };
        let last = piece(0, &[region(2, true, AccessedPart::Whole)]);
        assert_eq!(pieces(&groups(&[first, whole, last], 2)), [(vec![], vec![0, 2]), (vec![], vec![1])]);
    }
}
