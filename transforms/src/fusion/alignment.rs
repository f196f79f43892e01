//! Common names for the indices of several scopes that are about to share iterations.
//!
//! Indices correspond where one scope subscripts what another wrote, and then where two read the same container. Nothing
//! else counts: equal sizes alone make no correspondence, so that unrelated loops stay apart.

use crate::fusion::iteration_space::{Statement, all_indices};
use sdfg::{Expr, Index, Memlet, Range};
use std::collections::{BTreeMap, BTreeSet};

/// An index of one of the scopes.
type Place = (usize, String);

/// Classes of corresponding indices. No class holds two indices of one scope.
struct Classes {
    class_of: BTreeMap<Place, usize>,
    members: BTreeMap<usize, BTreeSet<Place>>,
    indices: BTreeMap<Place, Index>,
}

impl Classes {
    fn new(scopes: &[Vec<Statement>]) -> Self {
        let all = scopes.iter().enumerate().flat_map(|(n, s)| all_indices(s).into_iter().map(move |(name, index)| ((n, name), index)));
        let indices: BTreeMap<Place, Index> = all.collect();
        let class_of: BTreeMap<Place, usize> = indices.keys().cloned().zip(0..).collect();
        let members = class_of.iter().map(|(place, class)| (*class, BTreeSet::from([place.clone()]))).collect();
        Classes { class_of, members, indices }
    }

    fn unite(&mut self, a: &Place, b: &Place) {
        let (Some(&one), Some(&other)) = (self.class_of.get(a), self.class_of.get(b)) else { return };
        let range = |place: &Place| self.indices.get(place).map(|i| (&i.start, &i.stop, &i.step));
        if one == other || range(a) != range(b) {
            return;
        }
        let (ours, theirs) = (&self.members[&one], &self.members[&other]);
        if ours.iter().any(|(scope, _)| theirs.iter().any(|(s, _)| s == scope)) {
            return;
        }
        let moved = self.members.remove(&other).unwrap_or_default();
        for place in &moved {
            self.class_of.insert(place.clone(), one);
        }
        self.members.entry(one).or_default().extend(moved);
    }
}

fn memlets(statements: &[Statement], writes: bool) -> impl Iterator<Item = &Memlet> {
    statements.iter().flat_map(move |s| if writes { &s.computation.writes } else { &s.computation.reads }).map(|(_, m)| m)
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
    let mut names: BTreeMap<usize, String> = BTreeMap::new();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for (n, statements) in scopes.iter_mut().enumerate() {
        let mut renamed = BTreeMap::new();
        for index in all_indices(statements).into_keys() {
            let Some(class) = classes.class_of.get(&(n, index.clone())) else { continue };
            let name = names.entry(*class).or_insert_with(|| {
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
