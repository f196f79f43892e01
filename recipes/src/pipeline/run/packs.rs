//! Packs the launches of a step: launches that need nothing of one another share dispatches.
//!
//! What conflicts is decided by memory, as for streams: a launch comes after all that use memory that it writes, or write memory that it
//! uses. Each launch takes the earliest pack that this allows, so the packs follow from the launches alone.

use super::launch::Launch;
use super::streams::{Region, conflict};
use sdfg::Direction;

/// The memory of independent launches is kept apart as for this number of streams: more of them can be packed, and it costs little.
pub const BESIDE: usize = 4;

/// A launch as packing sees it.
struct Packable<'a> {
    regions: &'a [Region],
    pass: Direction,
    /// Whether its run can be cut at its barriers.
    phased: bool,
}

/// Numbers of launches, pack by pack, in an order that respects all conflicts; each pack is of one pass.
pub(in crate::pipeline) fn packs(launches: &[Launch], regions: &[Vec<Region>]) -> Vec<Vec<usize>> {
    let packable = |(launch, regions): (&Launch, _)| Packable {
        regions: Vec::as_slice(regions),
        pass: launch.pass,
        phased: launch.executable.is_phased(),
    };
    packed(&launches.iter().zip(regions).map(packable).collect::<Vec<_>>())
}

fn packed(launches: &[Packable]) -> Vec<Vec<usize>> {
    let mut packs: Vec<Vec<usize>> = Vec::new();
    for (n, launch) in launches.iter().enumerate() {
        let conflicts = |m: &usize| conflict(launches[*m].regions, launch.regions);
        let after = packs.iter().rposition(|pack| pack.iter().any(conflicts)).map_or(0, |last| last + 1);
        let joins = |pack: &Vec<usize>| launch.phased && pack.iter().all(|m| launches[*m].phased && launches[*m].pass == launch.pass);
        match packs.iter().skip(after).position(joins) {
            Some(at) => packs[after + at].push(n),
            None => packs.push(vec![n]),
        }
    }
    packs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(memory: usize, written: bool) -> Region {
        Region { memory, bytes: 0..8, written }
    }

    fn of(launches: &[(&[Region], Direction, bool)]) -> Vec<Vec<usize>> {
        packed(&launches.iter().map(|(regions, pass, phased)| Packable { regions, pass: *pass, phased: *phased }).collect::<Vec<_>>())
    }

    #[test]
    fn launches_come_as_early_as_memory_allows() {
        use Direction::{Backward, Forward};
        let (first, second) = ([region(0, true)], [region(1, true)]);
        let (reads, over) = ([region(0, false), region(2, true)], [region(1, false), region(0, true)]);
        let found = of(&[(&first, Forward, true), (&reads, Forward, true), (&second, Forward, true), (&over, Forward, true)]);
        assert_eq!(found, [vec![0, 2], vec![1], vec![3]], "the last one writes what the second one reads");
        let found = of(&[(&first, Forward, true), (&second, Backward, true), (&reads, Backward, true)]);
        assert_eq!(found, [vec![0], vec![1, 2]], "passes are timed apart");
        let found = of(&[(&first, Forward, true), (&second, Forward, false), (&[region(5, true)], Forward, true)]);
        assert_eq!(found, [vec![0, 2], vec![1]], "a kernel that gives out its own work stays alone");
    }
}
