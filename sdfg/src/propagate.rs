//! Memlet propagation: what a whole scope moves, from what one iteration moves.

use crate::memlet::{Memlet, Range};
use crate::node::Index;
use crate::symbol::Expr;
use std::collections::BTreeMap;

/// What the memlet moves over all iterations of `indices`.
///
/// Exact for subscripts that are affine in each index with integer coefficients; otherwise the whole dimension
/// (`sizes`, one per dimension) is taken and the memlet becomes dynamic.
pub fn propagate(memlet: &Memlet, indices: &[Index], sizes: &[Expr]) -> Memlet {
    let mut subset = Vec::with_capacity(memlet.subset.len());
    let mut dynamic = memlet.dynamic;
    for (range, size) in memlet.subset.iter().zip(sizes) {
        match propagate_range(range, indices) {
            Some(range) => subset.push(range),
            None => {
                dynamic = true;
                subset.push(Range::full(size.clone()));
            }
        }
    }
    let volume = indices.iter().fold(memlet.volume.clone(), |volume, index| index.count() * volume);
    Memlet { data: memlet.data.clone(), subset, volume, wcr: memlet.wcr, dynamic, fill: memlet.fill }
}

fn propagate_range(range: &Range, indices: &[Index]) -> Option<Range> {
    let (first, last, mut step) = match range {
        Range::At(at) => (at.clone(), at.clone(), None),
        Range::Span { start, stop, step } => (start.clone(), stop.clone() - Expr::Int(1), Some(step.clone())),
    };
    let (mut low, mut high) = (first, last);
    if low.reads_elements() || high.reads_elements() {
        return None;
    }
    let mut involved = false;
    for index in indices {
        let low_slope = slope(&low, &index.name)?;
        let high_slope = slope(&high, &index.name)?;
        if low_slope == 0 && high_slope == 0 {
            continue;
        }
        involved = true;
        // One index with slope a over an unstepped point leaves a regular pattern; anything else is its hull.
        step = match step {
            None if index.step == Expr::Int(1) => Some(Expr::Int(low_slope.abs())),
            None => Some(Expr::Int(low_slope.abs()) * index.step.clone()),
            Some(_) => Some(Expr::Int(1)),
        };
        let last = if index.step == Expr::Int(1) {
            index.stop.clone() - Expr::Int(1)
        } else {
            index.start.clone() + (index.count() - Expr::Int(1)) * index.step.clone()
        };
        let ends = |slope: i64| if slope >= 0 { (index.start.clone(), last.clone()) } else { (last.clone(), index.start.clone()) };
        low = low.substitute(&BTreeMap::from([(index.name.clone(), ends(low_slope).0)]));
        high = high.substitute(&BTreeMap::from([(index.name.clone(), ends(high_slope).1)]));
    }
    if !involved {
        return Some(range.clone());
    }
    Some(Range::Span { start: low, stop: one_past(high), step: step.unwrap_or(Expr::Int(1)) })
}

/// `last + 1`, folding `n - 1 + 1` to `n`.
fn one_past(last: Expr) -> Expr {
    match last {
        Expr::Sub(a, b) if *b == Expr::Int(1) => *a,
        other => other + Expr::Int(1),
    }
}

/// The constant coefficient of an index in an expression affine in it; `None` if it is not affine.
pub fn slope(e: &Expr, index: &str) -> Option<i64> {
    Some(match e {
        Expr::Int(_) => 0,
        Expr::Sym(name) => i64::from(name == index),
        Expr::Add(a, b) => slope(a, index)?.checked_add(slope(b, index)?)?,
        Expr::Sub(a, b) => slope(a, index)?.checked_sub(slope(b, index)?)?,
        Expr::Mul(a, b) => match (slope(a, index)?, slope(b, index)?) {
            (0, 0) => 0,
            (s, 0) => s.checked_mul(b.as_int()?)?,
            (0, s) => s.checked_mul(a.as_int()?)?,
            _ => return None,
        },
        Expr::FloorDiv(a, b) | Expr::Mod(a, b) | Expr::Min(a, b) | Expr::Max(a, b) => {
            if slope(a, index)? == 0 && slope(b, index)? == 0 {
                0
            } else {
                return None;
            }
        }
        Expr::Element(..) if e.symbols().contains(index) => return None,
        Expr::Element(..) => 0,
    })
}

/// The smallest memlet that covers both: the hull of the subsets, the sum of the volumes.
pub fn union(a: &Memlet, b: &Memlet) -> Memlet {
    let subset = a.subset.iter().zip(&b.subset).map(|(a, b)| hull(a, b)).collect();
    let volume = a.volume.clone() + b.volume.clone();
    Memlet { data: a.data.clone(), subset, volume, wcr: a.wcr.or(b.wcr), dynamic: a.dynamic || b.dynamic, fill: a.fill.or(b.fill) }
}

fn hull(a: &Range, b: &Range) -> Range {
    if a == b {
        return a.clone();
    }
    let ends = |r: &Range| match r {
        Range::At(e) => (e.clone(), e.clone() + Expr::Int(1)),
        Range::Span { start, stop, .. } => (start.clone(), stop.clone()),
    };
    let ((a0, a1), (b0, b1)) = (ends(a), ends(b));
    Range::Span { start: a0.min(b0), stop: a1.max(b1), step: Expr::Int(1) }
}
