//! Algorithms as their knobs make them, beside those that the library's heuristic offers: every tile with every number of stages,
//! swizzled or not, with the algorithm's own options, and with the depth split and summed in every way that it can.

use std::collections::BTreeSet;

/// Parts that the depth is split into, where an algorithm can: fewer than tiles of a large result would leave idle, more than the
/// sums of parts are worth.
const SPLITS: [i32; 8] = [2, 3, 4, 5, 6, 8, 12, 16];
/// Values of an algorithm's own option that are tried besides its first.
const OPTIONS: i32 = 3;

/// The settings that an algorithm has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlgorithmCapabilities {
    /// The library's numbers of tiles and of stages; none where it takes no such number.
    pub tiles: Vec<u32>,
    pub stages: Vec<u32>,
    pub splits: bool,
    /// Bits of the ways to sum parts.
    pub schemes: u32,
    pub swizzles: bool,
    /// Greatest value of its own option.
    pub options: i32,
}

/// The settings of an algorithm; 0 stands for the library's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AlgorithmConfig {
    pub tile: u32,
    pub stages: u32,
    /// Parts of the depth, 1 if it is whole.
    pub split: i32,
    /// A bit of [`AlgorithmCapabilities::schemes`].
    pub scheme: u32,
    pub swizzled: bool,
    pub option: i32,
}

impl AlgorithmCapabilities {
    /// All settings of an algorithm, the plainest first.
    pub fn told(&self) -> Vec<AlgorithmConfig> {
        let or_none = |all: &[u32]| if all.is_empty() { vec![0] } else { all.to_vec() };
        let (tiles, stages) = (or_none(&self.tiles), or_none(&self.stages));
        let schemes: Vec<u32> = (0..u32::BITS).map(|bit| 1 << bit).filter(|bit| self.schemes & bit != 0).collect();
        // A sum of parts without a way to sum them is none.
        let splits = if self.splits { SPLITS.iter().flat_map(|split| schemes.iter().map(|s| (*split, *s))).collect() } else { vec![] };
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        let ways = [(1, 0)].into_iter().chain(splits);
        for (split, scheme) in ways {
            for option in 0..=self.options.clamp(0, OPTIONS) {
                for swizzled in if self.swizzles { vec![false, true] } else { vec![false] } {
                    for tile in &tiles {
                        for stages in &stages {
                            let told = AlgorithmConfig { tile: *tile, stages: *stages, split, scheme, swizzled, option };
                            if seen.insert(told) {
                                all.push(told);
                            }
                        }
                    }
                }
            }
        }
        all
    }
}

/// At most `most` settings of algorithms that pass a check, of at most `checks` that are checked: those with the plainest
/// things first, algorithm by algorithm in turn.
pub fn catalogued<A, T>(
    algorithms: &[(A, AlgorithmCapabilities)],
    checks: usize,
    most: usize,
    check: impl Fn(&A, &AlgorithmConfig) -> Option<T>,
) -> Vec<T> {
    let all: Vec<(&A, Vec<AlgorithmConfig>)> = algorithms.iter().map(|(algorithm, abilities)| (algorithm, abilities.told())).collect();
    let longest = all.iter().map(|(_, told)| told.len()).max().unwrap_or(0);
    let in_turn = (0..longest).flat_map(|n| all.iter().filter_map(move |(algorithm, told)| Some((*algorithm, told.get(n)?))));
    in_turn.take(checks).filter_map(|(algorithm, told)| check(algorithm, told)).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn able() -> AlgorithmCapabilities {
        AlgorithmCapabilities { tiles: vec![15, 18], stages: vec![7], splits: true, schemes: 0b101, swizzles: true, options: 1 }
    }

    #[test]
    fn plain_things_are_said_first_and_nothing_twice() {
        let told = able().told();
        assert_eq!(told[0], AlgorithmConfig { tile: 15, stages: 7, split: 1, scheme: 0, swizzled: false, option: 0 });
        assert_eq!(told[1].tile, 18);
        // Two tiles, swizzled or not, two options: whole, or split eight ways with two ways to sum.
        assert_eq!(told.len(), 2 * 2 * 2 * (1 + 8 * 2));
        assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), told.len());
        assert!(told.iter().all(|t| (t.split == 1) == (t.scheme == 0)));
    }

    #[test]
    fn an_algorithm_without_knobs_is_told_nothing() {
        assert_eq!(AlgorithmCapabilities::default().told(), [AlgorithmConfig { split: 1, ..AlgorithmConfig::default() }]);
        let cannot_sum = AlgorithmCapabilities { splits: true, ..AlgorithmCapabilities::default() };
        assert_eq!(cannot_sum.told().len(), 1);
    }

    #[test]
    fn algorithms_take_turns_within_what_is_checked() {
        let all = [("a", able()), ("b", AlgorithmCapabilities::default()), ("c", able())];
        let named = |checks, most| catalogued(&all, checks, most, |name, told| (told.tile != 18).then_some(*name));
        assert_eq!(named(100, 4), ["a", "b", "c", "a"]);
        // The fourth and the fifth are of tile 18.
        assert_eq!(named(5, 100), ["a", "b", "c"]);
        assert!(named(0, 9).is_empty());
    }
}
