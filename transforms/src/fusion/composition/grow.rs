//! How clusters grow: each step takes the legal merger that saves most bytes, until no merger saves any.
//!
//! After a merger, candidates are recomputed only for the merged cluster and its neighbours: a layer that is unrolled over its time steps
//! has hundreds of clusters and mergers. Siblings (clusters that read a common container) are tried when no neighbour can be merged any
//! more; they are rare, and their candidates are recomputed for all clusters.

use super::cluster::Growth;
use crate::unit_graph::Kind as UnitKind;
use crate::unit_graph::Members;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// How a candidate was found. Siblings are looked for when no neighbour can be had any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    /// One reads what the other writes.
    Neighbour,
    /// Both read a container.
    Sibling,
}

/// A merger and what it saves; what comes first is better.
type Candidate = (Reverse<u64>, Members);

/// The candidates of all clusters.
#[derive(Default)]
struct Candidates {
    /// Each with the cluster that would grow into it; the best one first.
    all: BTreeSet<(Candidate, usize)>,
    of: BTreeMap<usize, Vec<Candidate>>,
}

impl Candidates {
    /// Puts other candidates in the place of those of a cluster.
    fn replace(&mut self, cluster: usize, with: Vec<Candidate>) {
        for gone in self.of.remove(&cluster).into_iter().flatten() {
            self.all.remove(&(gone, cluster));
        }
        self.all.extend(with.iter().map(|candidate| (candidate.clone(), cluster)));
        self.of.insert(cluster, with);
    }

    fn best(&self) -> Option<Members> {
        self.all.first().map(|((_, merged), _)| merged.clone())
    }

    /// Takes out the best candidate, of every cluster that would grow into it.
    fn remove_best(&mut self) {
        let Some((best, _)) = self.all.pop_first() else { return };
        while self.all.first().is_some_and(|(other, _)| *other == best) {
            self.all.pop_first();
        }
    }
}

/// Clusters by the number of one of their units: each unit is in one of them.
struct Partition {
    of: Vec<usize>,
    clusters: BTreeMap<usize, Members>,
}

impl Partition {
    fn of_units(units: usize) -> Self {
        Partition { of: (0..units).collect(), clusters: (0..units).map(|n| (n, Members::from([n]))).collect() }
    }

    /// Makes one cluster of those that these members are; says which it is.
    fn merge(&mut self, merged: &Members) -> Option<usize> {
        let first = merged.first().copied()?;
        for member in merged {
            self.clusters.remove(&self.of[*member]);
            self.of[*member] = first;
        }
        self.clusters.insert(first, merged.clone());
        Some(first)
    }

    /// The clusters of these units.
    fn owners(&self, units: impl Iterator<Item = usize>) -> BTreeSet<usize> {
        units.map(|n| self.of[n]).collect()
    }

    fn union(&self, clusters: &BTreeSet<usize>) -> Members {
        clusters.iter().flat_map(|c| &self.clusters[c]).copied().collect()
    }
}

impl Growth<'_> {
    /// Clusters of at least two units that hold a contraction, in the order of their last units.
    pub fn clusters(&mut self) -> Vec<Members> {
        let mut partition = Partition::of_units(self.units.all.len());
        for relation in [Relation::Neighbour, Relation::Sibling] {
            let mut candidates = Candidates::default();
            let mut changed: BTreeSet<usize> = partition.clusters.keys().copied().collect();
            loop {
                for cluster in changed {
                    candidates.replace(cluster, self.candidates(cluster, &partition, relation));
                }
                let Some(merged) = self.best(&mut candidates) else { break };
                for cluster in partition.owners(merged.iter().copied()) {
                    candidates.replace(cluster, vec![]);
                }
                let Some(grown) = partition.merge(&merged) else { break };
                let beside = partition.owners(merged.iter().flat_map(|m| self.units.beside(*m)));
                changed = match relation {
                    // What a cluster hands to none of the merged, nor is handed by them, has the neighbours that it had.
                    Relation::Neighbour => beside,
                    // Those that read with the merged, or with neighbours of these.
                    Relation::Sibling => {
                        let near = partition.union(&beside);
                        let read = near.iter().chain(&merged).flat_map(|m| self.units.reads(*m)).collect::<BTreeSet<_>>();
                        partition.owners(read.into_iter().flat_map(|data| self.units.readers(*data)).copied())
                    }
                };
                changed.insert(grown);
            }
        }
        let mut clusters: Vec<Members> = partition.clusters.into_values().filter(|c| c.len() > 1).collect();
        clusters.sort_by_key(|c| c.last().copied());
        clusters
    }

    /// The best candidate that is admitted; those that are not are taken out.
    fn best(&mut self, candidates: &mut Candidates) -> Option<Members> {
        loop {
            let merged = candidates.best()?;
            match self.admits(&merged) {
                Ok(()) => return Some(merged),
                Err(reason) => {
                    candidates.remove_best();
                    self.refused.insert(merged, reason);
                }
            }
        }
    }

    /// What a cluster could grow into, as far as that saves bytes and has not been refused.
    fn candidates(&self, cluster: usize, partition: &Partition, relation: Relation) -> Vec<Candidate> {
        let members = &partition.clusters[&cluster];
        let weighed = |clusters: BTreeSet<usize>| {
            let merged = partition.union(&clusters);
            let parts: u64 = clusters.iter().map(|c| self.units.bytes(&partition.clusters[c])).sum();
            let saved = parts.saturating_sub(self.units.bytes(&merged));
            (saved > 0 && !self.refused.contains_key(&merged)).then_some((Reverse(saved), merged))
        };
        let holds = |c: &usize| self.contractions(&partition.clusters[c]).next().is_some();
        if !holds(&cluster) {
            return vec![];
        }
        let beside = |members: &Members| partition.owners(members.iter().flat_map(|m| self.units.beside(*m)));
        let with = |c: usize| BTreeSet::from([cluster, c]);
        match relation {
            Relation::Neighbour => {
                let single = beside(members).into_iter().filter(|c| *c != cluster && !holds(c)).map(with);
                // A contraction comes with all that read the same intermediate, so that nothing of it is left to store.
                let written: BTreeSet<usize> = members.iter().flat_map(|m| self.units.writes(*m)).copied().collect();
                let readers = written.into_iter().filter(|d| !self.units.leaves(*d)).map(|d| {
                    let readers = self.units.readers(d).iter().copied();
                    partition.owners(readers).into_iter().chain([cluster]).collect::<BTreeSet<usize>>()
                });
                single.chain(readers.filter(|clusters| clusters.len() > 1)).filter_map(weighed).collect()
            }
            // What could still join a kernel without contractions is left to fusion, unless forms are few.
            Relation::Sibling if members.len() > 1 || self.wanted.form.is_some() => {
                let few = self.wanted.form.is_some();
                let free = |c: &usize| few || !beside(&partition.clusters[c]).iter().any(|o| o != c && !holds(o));
                let read = members.iter().flat_map(|m| self.units.reads(*m)).flat_map(|d| self.units.readers(*d));
                let siblings = partition.owners(read.copied()).into_iter();
                siblings.filter(|c| *c != cluster && !holds(c) && free(c)).map(with).filter_map(weighed).collect()
            }
            Relation::Sibling => vec![],
        }
    }

    pub fn contractions(&self, members: &Members) -> impl Iterator<Item = usize> {
        members.iter().copied().filter(|m| self.units.all[*m].kind == UnitKind::Contraction)
    }
}
