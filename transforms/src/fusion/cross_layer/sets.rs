//! Which units may become one kernel of several layers: found from the graph.

use super::Mode;
use crate::unit_graph::{Kind, Members, UnitGraph};

/// Sets of units around each intermediate result, those that save most first, grown by others that overlap as long as `fits` holds; each
/// set stands for itself. Sets that do not fit come second, so that reasons can be given. No set has units that are kernels already or run
/// once, which `apart` says.
pub(super) fn sets(units: &UnitGraph, apart: &dyn Fn(usize) -> bool, fits: &dyn Fn(&Members) -> bool) -> [Vec<Members>; 2] {
    let mut around: Vec<Members> = Vec::new();
    for unit in 0..units.all.len() {
        for data in units.writes(unit).iter().filter(|d| !units.leaves(**d)) {
            let reads = |n: &usize| units.all[*n].kind == Kind::Contraction;
            if !units.readers(*data).iter().any(&reads) {
                continue;
            }
            let members = around_of(units, *data, unit, apart);
            let products = members.iter().filter(|m| reads(m)).count();
            if products > 1 && !members.iter().any(|m| apart(*m)) && !around.contains(&members) {
                around.push(members);
            }
        }
    }
    let saved = |members: &Members| {
        let parts: u64 = members.iter().map(|m| units.bytes(&Members::from([*m]))).sum();
        parts.saturating_sub(units.bytes(members))
    };
    around.sort_by_key(|members| (std::cmp::Reverse(saved(members)), members.clone()));
    let (mut found, mut refused): (Vec<Members>, Vec<Members>) = (Vec::new(), Vec::new());
    for members in around {
        let overlapping: Vec<usize> = (0..found.len()).filter(|n| !found[*n].is_disjoint(&members)).collect();
        let all: Members = overlapping.iter().flat_map(|n| found[*n].iter().copied()).chain(members.iter().copied()).collect();
        if fits(&all) {
            let mut n = 0;
            found.retain(|_| {
                n += 1;
                !overlapping.contains(&(n - 1))
            });
            found.push(all);
        } else {
            refused.push(if overlapping.is_empty() { members } else { all });
        }
    }
    [found, refused]
}

/// The units around an intermediate result: what makes it, back to products, and all that reads it, with element-wise work on their
/// results.
fn around_of(units: &UnitGraph, data: usize, writer: usize, apart: &dyn Fn(usize) -> bool) -> Members {
    let mut members = Members::from([writer]);
    let mut after: Vec<usize> = units.readers(data).to_vec();
    while let Some(unit) = after.pop() {
        if !members.insert(unit) && unit != writer {
            continue;
        }
        for made in units.writes(unit).iter().filter(|d| !units.leaves(**d)) {
            let readers = units.readers(*made);
            // Element-wise work on a result joins it; products begin layers of their own.
            if readers.iter().all(|r| units.all[*r].kind == Kind::Scope && is_pointwise(units, *r, *made)) {
                after.extend(readers.iter().copied().filter(|r| !members.contains(r)));
            }
        }
    }
    let mut before = vec![writer];
    while let Some(unit) = before.pop() {
        members.insert(unit);
        if units.all[unit].kind != Kind::Scope {
            continue;
        }
        for read in units.reads(unit).iter().filter(|d| !units.leaves(**d)) {
            if units.readers(*read).iter().all(|r| members.contains(r)) {
                before.extend((0..units.all.len()).filter(|n| units.writes(*n).contains(read) && !members.contains(n) && !apart(*n)));
            }
        }
    }
    members
}

/// Whether a scope walks the elements of what it reads one by one, and reduces nothing.
fn is_pointwise(units: &UnitGraph, unit: usize, data: usize) -> bool {
    let Some(scope) = units.state.scope(units.all[unit].node) else { return false };
    scope.computations().iter().all(|(_, c)| {
        let plain = |m: &sdfg::Memlet| {
            m.data != units.name(data) || m.subset.iter().all(|r| matches!(r, sdfg::Range::At(e) if e.as_sym().is_some()))
        };
        c.writes.iter().all(|(_, m)| m.wcr.is_none()) && c.reads.iter().all(|(_, m)| plain(m))
    })
}

/// How the products of a set depend on one another.
pub(super) fn mode(units: &UnitGraph, members: &Members) -> Mode {
    let products: Vec<usize> = members.iter().copied().filter(|m| units.all[*m].kind == Kind::Contraction).collect();
    let depends = |n: usize, on: usize| units.all[n].before.contains(on);
    let first = products.iter().filter(|n| !products.iter().any(|m| depends(**n, *m))).count();
    let last = products.iter().filter(|n| !products.iter().any(|m| depends(*m, **n))).count();
    match (first, last) {
        (_, last) if last > 1 => Mode::Split,
        (first, _) if first > 1 => Mode::Merge,
        _ => Mode::Straight,
    }
}
