//! A static partition of a kernel's points among workers; a worker that has finished takes the rest of another one's share.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};

/// A range in as many shares as there are workers, each taken piece by piece: its own first, then what others have left.
///
/// A worker has the same share in every kernel, step after step. What it wrote last time is in its own caches, and what it reads was
/// mostly written by itself: lines that another core has read since are written at 2 to 30 GB/s, its own at 100 (Zen 4, whose cores
/// may or may not have a third cache in common).
pub struct StaticPartition {
    shares: Vec<Share>,
    piece: i64,
}

/// On lines of its own: others look at theirs all the time.
#[repr(align(128))]
struct Share {
    next: AtomicI64,
    end: i64,
}

impl StaticPartition {
    /// Shares of 0 to `count` as equal as can be, taken in pieces of `piece`.
    pub fn new(count: i64, workers: usize, piece: i64) -> Self {
        let at = |worker: usize| count * worker as i64 / workers.max(1) as i64;
        let share = |worker: usize| Share { next: AtomicI64::new(at(worker)), end: at(worker + 1) };
        StaticPartition { shares: (0..workers.max(1)).map(share).collect(), piece: piece.max(1) }
    }

    /// The next piece for a worker; `None` when all are taken.
    pub fn take(&self, worker: usize) -> Option<Range<i64>> {
        let workers = self.shares.len();
        (0..workers).find_map(|n| self.shares[(worker + n) % workers].take(self.piece))
    }

    /// The next piece of a worker's own share.
    pub fn take_own(&self, worker: usize) -> Option<Range<i64>> {
        self.shares[worker % self.shares.len()].take(self.piece)
    }
}

impl Share {
    fn take(&self, piece: i64) -> Option<Range<i64>> {
        // Shares that are used up are only looked at.
        if self.next.load(Ordering::Relaxed) >= self.end {
            return None;
        }
        let from = self.next.fetch_add(piece, Ordering::Relaxed);
        (from < self.end).then(|| from..self.end.min(from + piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_pieces_come_first_then_those_of_others() {
        let shares = StaticPartition::new(7, 2, 2);
        let taken: Vec<Range<i64>> = std::iter::from_fn(|| shares.take(1)).collect();
        assert_eq!(taken, [3..5, 5..7, 0..2, 2..3]);
        assert_eq!(shares.take(0), None);
        let shares = StaticPartition::new(1, 3, 4);
        assert_eq!([0, 1, 2].map(|worker| shares.take_own(worker)), [None, None, Some(0..1)]);
    }

    #[test]
    fn every_point_is_taken_once() {
        for (count, workers, piece) in [(0, 2, 1), (1, 4, 1), (1000, 3, 7), (5, 8, 2)] {
            let shares = StaticPartition::new(count, workers, piece);
            let taken: Vec<Range<i64>> = std::thread::scope(|scope| {
                let mine = |worker| {
                    scope.spawn({
                        let shares = &shares;
                        move || std::iter::from_fn(|| shares.take(worker)).collect::<Vec<_>>()
                    })
                };
                let threads: Vec<_> = (0..workers).map(mine).collect();
                threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect()
            });
            let mut points: Vec<i64> = taken.into_iter().flatten().collect();
            points.sort_unstable();
            assert_eq!(points, (0..count).collect::<Vec<_>>());
        }
    }
}
