//! Packing of intervals of one order: dynamic programming, exact, with a dual.
//!
//! Disjoint intervals of a topological order never wait for one another. With `best(i)` the most that intervals before place i can sum up
//! to, the prices `best(i+1) − best(i)` of the places pay for every interval, and they sum up to the optimum: they prove it.

use crate::model::cost::Cost;

/// An interval of places, the end excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaceRange {
    pub begin: usize,
    pub end: usize,
    pub score: Cost,
}

/// The best disjoint intervals, by their positions in the list, and a price of each place.
pub fn pack(places: usize, intervals: &[PlaceRange]) -> (Vec<usize>, Vec<Cost>) {
    let mut ending: Vec<Vec<usize>> = vec![Vec::new(); places + 1];
    intervals.iter().enumerate().for_each(|(n, interval)| ending[interval.end].push(n));
    let mut best: Vec<(Cost, Option<usize>)> = vec![(0, None)];
    for end in 1..=places {
        let mut here = (best[end - 1].0, None);
        for n in &ending[end] {
            let with = best[intervals[*n].begin].0 + intervals[*n].score;
            if with > here.0 {
                here = (with, Some(*n));
            }
        }
        best.push(here);
    }
    let prices = best.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    let (mut chosen, mut at) = (Vec::new(), places);
    while at > 0 {
        match best[at].1 {
            Some(n) => {
                chosen.push(n);
                at = intervals[n].begin;
            }
            None => at -= 1,
        }
    }
    chosen.reverse();
    (chosen, prices)
}
