//! Which places of a dim a subscript reaches over all iterations: windows overlap, and may leave gaps.

use crate::affine::Affine;
use crate::node::Index;
use crate::symbol::{Bindings, Expr};

/// `start`, `start + step`, … below `stop`, but for some places in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub start: i64,
    pub stop: i64,
    pub step: i64,
    /// How many of these are not reached.
    pub gaps: u64,
}

/// Places beyond which gaps are not counted.
const LIMIT: i64 = 1 << 24;

impl Places {
    /// The part of a regular pattern that lies in a dim of `size` places.
    pub(super) fn regular(start: i64, stop: i64, step: i64, size: i64) -> Places {
        // The first place inside, where the pattern begins outside.
        let first = if start < 0 { start.rem_euclid(step.max(1)) } else { start };
        Places { start: first, stop: stop.min(size), step, gaps: 0 }
    }

    /// What an affine subscript reaches in a dim of `size` places; `None` if it is not affine or a bound depends on an index.
    pub(super) fn of(subscript: &Expr, around: &[&Index], symbols: &Bindings, size: i64) -> Option<Places> {
        let form = Affine::of(subscript, &|name| around.iter().any(|index| index.name == name))?;
        let mut first = form.offset.eval(symbols).ok()?;
        let mut terms = Vec::new();
        for (name, by) in &form.terms {
            let index = around.iter().rev().find(|index| index.name == *name)?;
            let (start, step, count) = (index.start.eval(symbols).ok()?, index.step.eval(symbols).ok()?, index.count().eval(symbols).ok()?);
            let by = by.checked_mul(step)?;
            first = first.checked_add(form.coefficient(name).checked_mul(start)?)?;
            if count < 1 {
                return None;
            }
            first = first.checked_add(if by < 0 { by.checked_mul(count - 1)? } else { 0 })?;
            terms.extend((count > 1).then_some((by.checked_abs()?, count)));
        }
        let common = terms.iter().fold(0, |common, (by, _)| gcd(common, *by)).max(1);
        terms.sort_unstable();
        let (mut reach, mut whole) = (0i64, true);
        for (by, count) in &terms {
            whole &= by / common <= reach + 1;
            reach = reach.checked_add((by / common).checked_mul(count - 1)?)?;
        }
        let stop = first.checked_add(reach.checked_mul(common)?)?.checked_add(1)?;
        let hull = Places::regular(first, stop, common, size);
        if whole || reach > LIMIT {
            return Some(hull);
        }
        // Multiples of `common` above the first place, which every term shifts on by up to `count - 1` of its steps.
        let mut reached = vec![false; reach as usize + 1];
        reached[0] = true;
        for (by, count) in &terms {
            let (by, count) = ((by / common) as usize, *count as usize);
            let mut last: Vec<Option<usize>> = vec![None; reached.len()];
            for at in 0..reached.len() {
                last[at] = if reached[at] { Some(at) } else { at.checked_sub(by).and_then(|before| last[before]) };
            }
            reached = last.iter().enumerate().map(|(at, last)| last.is_some_and(|last| (at - last) / by < count)).collect();
        }
        let inside = |at: usize| (0..size).contains(&(first + at as i64 * common));
        let count = reached.iter().enumerate().filter(|(at, reached)| **reached && inside(*at)).count() as u64;
        Some(Places { gaps: hull.count().saturating_sub(count), ..hull })
    }

    /// How many places there are.
    pub(super) fn count(&self) -> u64 {
        (((self.stop - self.start).max(0) as u64).div_ceil(self.step.max(1) as u64)).saturating_sub(self.gaps)
    }

    /// The smallest range around both.
    pub(super) fn hull(&self, other: &Places) -> Places {
        if self == other {
            return *self;
        }
        Places { start: self.start.min(other.start), stop: self.stop.max(other.stop), step: 1, gaps: 0 }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::IndexKind;
    use std::collections::BTreeSet;

    #[test]
    fn places_are_those_that_are_reached() {
        let index = |name: &str, size: i64| Index::over(name, name, Expr::Int(size), IndexKind::Independent);
        for (text, sizes, size) in [
            ("2*p+r-1", [4, 3], 7),
            ("2*p+2*r-2", [4, 3], 7),
            ("4*p+r", [4, 3], 16),
            ("4*p+6*r-5", [6, 4], 31),
            ("2*p", [4, 3], 8),
            ("5-p-r", [4, 3], 4),
            ("3*p-5*r+7", [5, 4], 20),
            ("7", [4, 3], 9),
        ] {
            let indices = [index("p", sizes[0]), index("r", sizes[1])];
            let around: Vec<&Index> = indices.iter().collect();
            let e: Expr = text.parse().unwrap();
            let all = (0..sizes[0]).flat_map(|p| (0..sizes[1]).map(move |r| (p, r)));
            let values = all.filter_map(|(p, r)| e.eval(&[("p".to_string(), p), ("r".to_string(), r)].into()).ok());
            let reached: BTreeSet<i64> = values.filter(|at| (0..size).contains(at)).collect();
            let found = Places::of(&e, &around, &Bindings::new(), size).unwrap();
            assert_eq!(found.count(), reached.len() as u64, "{text}: {found:?}");
        }
    }
}
