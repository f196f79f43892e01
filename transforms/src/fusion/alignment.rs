//! Common names for the indices of several scopes that are about to share iterations.
//!
//! Indices correspond where one scope subscripts what another wrote, and then where two read the same container. Of two windows of a
//! container, those indices correspond with which they move: `p` of `x[p+r-1]` and `q` of `x[q]`. Nothing else counts: equal sizes alone
//! make no correspondence, so that unrelated loops stay apart.

use crate::fusion::iteration_space::{Statement, all_indices};
use petgraph::unionfind::UnionFind;
use sdfg::{Expr, Index, Memlet, Range};
use std::collections::{BTreeMap, BTreeSet};

/// An index of one of the scopes.
type ScopedIndex = (usize, String);

/// Classes of corresponding indices. No class holds two indices of one scope.
struct Classes {
    /// The number of each index in the union-find.
    number: BTreeMap<ScopedIndex, usize>,
    indices: Vec<Index>,
    /// By number of an index: the scopes with an index in its class, kept at the representative.
    scopes: Vec<BTreeSet<usize>>,
    union: UnionFind<usize>,
}

impl Classes {
    fn new(scopes: &[Vec<Statement>]) -> Self {
        let all = scopes.iter().enumerate().flat_map(|(n, s)| all_indices(s).into_iter().map(move |(name, index)| ((n, name), index)));
        let all: BTreeMap<ScopedIndex, Index> = all.collect();
        let (places, indices): (Vec<ScopedIndex>, Vec<Index>) = all.into_iter().unzip();
        let scopes = places.iter().map(|(scope, _)| BTreeSet::from([*scope])).collect();
        let union = UnionFind::new(places.len());
        Classes { number: places.into_iter().zip(0..).collect(), indices, scopes, union }
    }

    fn class(&self, place: &ScopedIndex) -> Option<usize> {
        self.number.get(place).map(|number| self.union.find(*number))
    }

    fn unite(&mut self, a: &ScopedIndex, b: &ScopedIndex) {
        let (Some(&a), Some(&b)) = (self.number.get(a), self.number.get(b)) else { return };
        let (one, other) = (self.union.find(a), self.union.find(b));
        let range = |n: usize| (&self.indices[n].start, &self.indices[n].stop, &self.indices[n].step);
        if range(a) != range(b) || !self.scopes[one].is_disjoint(&self.scopes[other]) {
            return;
        }
        self.union.union(one, other);
        let (kept, gone) = if self.union.find(one) == one { (one, other) } else { (other, one) };
        let moved = std::mem::take(&mut self.scopes[gone]);
        self.scopes[kept].extend(moved);
    }
}

fn memlets(statements: &[Statement], writes: bool) -> impl Iterator<Item = &Memlet> {
    statements.iter().flat_map(move |s| if writes { &s.computation.writes } else { &s.computation.reads }).map(|(_, m)| m)
}

/// The index with which a subscript moves from one result to the next.
struct Moved<'a> {
    data: &'a str,
    dim: usize,
    index: String,
    slope: i64,
    /// Whether the subscript is more than that index.
    window: bool,
}

/// Subscripts that move with one index of the result.
fn moved(statements: &[Statement]) -> impl Iterator<Item = Moved<'_>> {
    statements.iter().flat_map(|statement| {
        let reduced = statement.reduced();
        let dims =
            statement.computation.reads.iter().flat_map(|(_, m)| m.subset.iter().enumerate().map(move |(dim, range)| (m, dim, range)));
        dims.filter_map(move |(memlet, dim, range)| {
            let Range::At(e) = range else { return None };
            let mut kept = e.symbols().into_iter().filter(|name| statement.has(name) && !reduced.contains(name));
            let index = kept.next()?;
            let slope = sdfg::propagate::slope(e, &index).filter(|_| kept.next().is_none())?;
            Some(Moved { data: &memlet.data, dim, index, slope, window: e.as_sym().is_none() })
        })
    })
}

/// Renames the indices of all scopes so that corresponding ones are called as in the first scope that has them.
pub(crate) fn align(scopes: &mut [Vec<Statement>]) {
    let mut classes = Classes::new(scopes);
    for writes in [true, false] {
        for (n, first) in scopes.iter().enumerate() {
            for (m, second) in scopes.iter().enumerate().filter(|(m, _)| if writes { *m != n } else { *m > n }) {
                for ours in memlets(first, writes) {
                    for theirs in memlets(second, false).filter(|t| t.data == ours.data) {
                        for pair in ours.subset.iter().zip(&theirs.subset) {
                            if let (Range::At(Expr::Sym(a)), Range::At(Expr::Sym(b))) = pair {
                                classes.unite(&(n, a.clone()), &(m, b.clone()));
                            }
                        }
                    }
                }
            }
        }
    }
    for (n, first) in scopes.iter().enumerate() {
        for (m, second) in scopes.iter().enumerate().skip(n + 1) {
            for ours in moved(first) {
                let same = |theirs: &Moved| (ours.data, ours.dim, ours.slope) == (theirs.data, theirs.dim, theirs.slope);
                for theirs in moved(second).filter(|theirs| same(theirs) && (ours.window || theirs.window)) {
                    classes.unite(&(n, ours.index.clone()), &(m, theirs.index.clone()));
                }
            }
        }
    }
    let mut names: BTreeMap<usize, String> = BTreeMap::new();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for (n, statements) in scopes.iter_mut().enumerate() {
        let mut renamed = BTreeMap::new();
        for index in all_indices(statements).into_keys() {
            let Some(class) = classes.class(&(n, index.clone())) else { continue };
            let name = names.entry(class).or_insert_with(|| {
                let fresh = || (2..).map(|k| format!("{index}_{k}")).find(|name| !taken.contains(name)).unwrap_or_default();
                if taken.contains(&index) { fresh() } else { index.clone() }
            });
            taken.insert(name.clone());
            renamed.insert(index, name.clone());
        }
        for statement in statements {
            statement.rename(&renamed);
        }
    }
}
