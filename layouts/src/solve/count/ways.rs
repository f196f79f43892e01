//! Numbers of choices by their cost above the bound.

use crate::model::cost::Cost;
use std::collections::BTreeMap;

/// The unit in which costs are counted.
#[derive(Clone, Copy, Debug)]
pub enum CostUnit {
    /// Picoseconds.
    Exact,
    /// Multiples of this number of picoseconds, rounded down: no choice within the limit is missed.
    Down(Cost),
    /// Multiples of this number of picoseconds, rounded up: no choice beyond the limit is counted.
    Up(Cost),
}

impl CostUnit {
    pub fn of(self, cost: Cost) -> Cost {
        match self {
            CostUnit::Exact => cost,
            CostUnit::Down(step) => cost / step,
            CostUnit::Up(step) => (cost + step - 1) / step,
        }
    }

    /// The largest sum of rounded costs that is within the slack: the slack rounded down to a whole number of units.
    pub fn most(self, slack: Cost) -> Cost {
        match self {
            CostUnit::Exact => slack,
            CostUnit::Down(step) | CostUnit::Up(step) => slack / step,
        }
    }
}

/// The number of choices of each cost, costs ascending. Sums saturate instead of overflowing.
#[derive(Clone, Debug, Default)]
pub struct Ways(Vec<(Cost, u128)>);

/// Costs up to which a product is added up in one array.
const DENSE: Cost = 1 << 13;

impl Ways {
    pub fn once(cost: Cost) -> Self {
        Ways(vec![(cost, 1)])
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn total(&self) -> u128 {
        self.0.iter().fold(0, |sum, (_, n)| n.saturating_add(sum))
    }

    /// Both at once: costs add up, ways multiply. Nothing beyond `most`.
    pub fn times(&self, other: &Ways, most: Cost) -> Ways {
        let (few, many) = if self.len() < other.len() { (self, other) } else { (other, self) };
        if let [(x, n)] = few.0[..] {
            let shifted = many.0.iter().take_while(|(y, _)| x + y <= most).map(|(y, m)| (x + y, n.saturating_mul(*m)));
            return Ways(shifted.collect());
        }
        let mut sum = Sum::new(most);
        for (x, n) in &few.0 {
            for (y, m) in many.0.iter().take_while(|(y, _)| x + y <= most) {
                sum.add(x + y, n.saturating_mul(*m));
            }
        }
        sum.ways()
    }

    /// Either: the ways of one and those of the other.
    pub fn or(self, other: Ways) -> Ways {
        let (mut a, mut b) = (self.0.into_iter().peekable(), other.0.into_iter().peekable());
        let mut both = Vec::with_capacity(a.len() + b.len());
        while let (Some(x), Some(y)) = (a.peek(), b.peek()) {
            let (cost, first, second) = (x.0.min(y.0), x.0 <= y.0, y.0 <= x.0);
            let mut n = 0u128;
            for (_, m) in [a.next_if(|_| first), b.next_if(|_| second)].into_iter().flatten() {
                n = n.saturating_add(m);
            }
            both.push((cost, n));
        }
        both.extend(a.chain(b));
        Ways(both)
    }
}

enum Sum {
    Dense(Vec<u128>),
    Sparse(BTreeMap<Cost, u128>),
}

impl Sum {
    fn new(most: Cost) -> Self {
        if (0..DENSE).contains(&most) { Sum::Dense(vec![0; most as usize + 1]) } else { Sum::Sparse(BTreeMap::new()) }
    }

    fn add(&mut self, cost: Cost, n: u128) {
        let known = match self {
            Sum::Dense(all) => &mut all[cost as usize],
            Sum::Sparse(all) => all.entry(cost).or_default(),
        };
        *known = known.saturating_add(n);
    }

    fn ways(self) -> Ways {
        Ways(match self {
            Sum::Dense(all) => all.into_iter().enumerate().filter(|(_, n)| *n > 0).map(|(cost, n)| (cost as Cost, n)).collect(),
            Sum::Sparse(all) => all.into_iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(ways: &Ways) -> Vec<(Cost, u128)> {
        ways.0.clone()
    }

    #[test]
    fn ways_multiply_at_the_sum_of_their_costs() {
        let (a, b) = (Ways(vec![(0, 2), (3, 1)]), Ways(vec![(1, 5), (4, 7)]));
        let all = vec![(1, 10), (4, 5 + 14), (7, 7)];
        for most in [7, DENSE + 7] {
            assert_eq!(listed(&a.times(&b, most)), all);
            assert_eq!(listed(&b.times(&a, most)), all);
        }
        assert_eq!(listed(&a.times(&b, 6)), all[..2]);
        assert_eq!(listed(&Ways(vec![(2, 3)]).times(&b, 5)), [(3, 15)]);
    }

    #[test]
    fn ways_of_one_or_the_other_add_up() {
        let (a, b) = (Ways(vec![(0, 2), (3, u128::MAX)]), Ways(vec![(1, 5), (3, 7), (9, 1)]));
        assert_eq!(listed(&a.clone().or(b.clone())), [(0, 2), (1, 5), (3, u128::MAX), (9, 1)]);
        assert_eq!(listed(&b.or(a)), [(0, 2), (1, 5), (3, u128::MAX), (9, 1)]);
    }

    #[test]
    fn rounding_down_misses_none_and_rounding_up_adds_none() {
        for cost in 0..40 {
            for slack in 0..40 {
                let within = |unit: CostUnit| unit.of(cost) <= unit.most(slack);
                assert!(cost > slack || within(CostUnit::Down(7)), "{cost} of {slack}");
                assert!(cost <= slack || !within(CostUnit::Up(7)), "{cost} of {slack}");
            }
        }
    }
}
