//! Which units belong together: clusters grown around contractions, always by what saves most bytes.

use super::build::build;
use super::kind::{Inside, Kind};
use super::{Cluster, Wanted};
use crate::boundary::{Boundary, Kind as UnitKind, boundaries};
use crate::patch::Patch;
use crate::transform::{Reason, Site};
use sdfg::{NodeId, Role, Sdfg, State, StateId, Storage, Unit};
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Operations for each byte that is moved, below which memory limits a product and not units: GPUs' tensor cores have time for 150 to 300.
const INTENSE: u64 = 128;

/// Positions of units in their state's execution order.
pub(super) type Members = BTreeSet<usize>;

/// How a candidate was found, best first among those that save equally.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Relation {
    /// One reads what the other writes.
    Neighbour,
    /// Both read a container.
    Sibling,
}

/// The clusters of one state while they grow.
pub(super) struct Growth<'a> {
    program: &'a Sdfg,
    id: StateId,
    state: &'a State,
    pub units: Vec<Boundary>,
    /// Bytes that a unit moves of a container.
    moved: Vec<BTreeMap<String, u64>>,
    /// Containers that someone outside the state needs.
    leaving: BTreeSet<String>,
    /// What each unit reduces and reads, inside and out.
    inside: Vec<Inside>,
    /// Which candidates are.
    wanted: Wanted<'a>,
    /// By container: who reads it, in execution order.
    readers: BTreeMap<String, Vec<usize>>,
    /// Bytes that cross the boundaries of clusters that were looked at: every merger looks at most of them again.
    crossing: RefCell<BTreeMap<Members, u64>>,
    /// Candidates that were refused, and why.
    refused: BTreeMap<Members, Reason>,
}

impl<'a> Growth<'a> {
    pub fn new(program: &'a Sdfg, (id, state): (StateId, &'a State), wanted: Wanted<'a>) -> Self {
        let units = boundaries(state);
        let moved = units.iter().map(|u| moved(program, state, u.node)).collect();
        let inside = units.iter().map(|u| Inside::of(state, u)).collect();
        let mut leaving: BTreeSet<String> =
            program.containers.values().filter(|c| c.role != Role::Transient).map(|c| c.name.clone()).collect();
        for (other, s) in program.states().filter(|(other, _)| *other != id) {
            debug_assert_ne!(other, id);
            leaving.extend(s.units().into_iter().flat_map(|(node, _)| s.boundary(node).0).map(|m| m.data.clone()));
        }
        let mut readers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (n, unit) in units.iter().enumerate() {
            unit.reads.iter().for_each(|data| readers.entry(data.clone()).or_default().push(n));
        }
        let (crossing, refused) = (RefCell::default(), BTreeMap::new());
        Growth { program, id, state, units, moved, leaving, inside, wanted, readers, crossing, refused }
    }

    /// The nodes of members, in execution order.
    pub fn nodes(&self, members: &Members) -> Vec<NodeId> {
        members.iter().map(|m| self.units[*m].node).collect()
    }

    /// Clusters of at least two units that hold a contraction, in the order of their last units.
    pub fn clusters(&mut self) -> Vec<Members> {
        let mut clusters: Vec<Members> = (0..self.units.len()).map(|n| Members::from([n])).collect();
        for relation in [Relation::Neighbour, Relation::Sibling] {
            while let Some(merged) = self.best(&clusters, relation) {
                clusters.retain(|c| !c.is_subset(&merged));
                clusters.push(merged);
            }
        }
        clusters.retain(|c| c.len() > 1);
        clusters.sort_by_key(|c| c.last().copied());
        clusters
    }

    /// Two contractions each with all that lies between them, as far as they are wanted: those that save most, no unit in two of them.
    /// With them, alone, what else is many small products that memory limits: libraries do worst at these.
    pub fn chains(&mut self) -> Vec<Members> {
        let contractions: Vec<usize> = (0..self.units.len()).filter(|n| self.units[*n].kind == UnitKind::Contraction).collect();
        // Of those that save the same, one comes first whose rows are neighbours in the recipe's order.
        let mut found: Vec<(Reverse<u64>, bool, Members)> = Vec::new();
        for last in &contractions {
            for first in contractions.iter().filter(|first| self.units[*last].before.contains(first)) {
                let between = |n: &usize| self.units[*n].before.contains(first) && self.units[*last].before.contains(n);
                let merged: Members = (0..self.units.len()).filter(between).chain([*first, *last]).collect();
                if self.contractions(&merged).count() > 2 {
                    continue;
                }
                // What is made for these alone, by a product as well, may be made where they are.
                let whole = self.with_feeders(&merged);
                let also = (self.contractions(&whole).count() == 3).then_some(whole);
                for merged in [Some(merged), also].into_iter().flatten() {
                    let parts: u64 = merged.iter().map(|n| self.bytes(&Members::from([*n]))).sum();
                    let saved = parts.saturating_sub(self.bytes(&merged));
                    if saved == 0 {
                        continue;
                    }
                    match self.admits(&merged) {
                        Ok(()) => found.push((Reverse(saved), !self.sums_neighbours(*last, &merged), merged)),
                        Err(reason) => drop(self.refused.insert(merged, reason)),
                    }
                }
            }
        }
        found.sort();
        let mut chains: Vec<Members> = Vec::new();
        for (_, _, merged) in found {
            if chains.iter().all(|c| c.is_disjoint(&merged)) {
                chains.push(merged);
            }
        }
        for lone in contractions.into_iter().filter(|n| self.is_streamed(*n)).map(|n| Members::from([n])) {
            if chains.iter().all(|c| c.is_disjoint(&lone)) && self.admits(&lone).is_ok() {
                chains.push(lone);
            }
        }
        chains.sort_by_key(|c| c.last().copied());
        chains
    }

    /// Members with all that nobody else reads, back to the products that it comes from.
    fn with_feeders(&self, members: &Members) -> Members {
        let mut whole = members.clone();
        loop {
            let feeds = |n: &usize| {
                let (unit, mut read) = (&self.units[*n], false);
                let alone = unit.writes.iter().all(|data| {
                    read |= whole.iter().any(|m| self.units[*m].reads.contains(data));
                    !self.leaving.contains(data) && self.unit_outside(data, &whole).is_none_or(|reader| reader == *n)
                });
                alone && read && !whole.contains(n)
            };
            // A product's own factors come from elsewhere.
            let product = |n: usize| self.units[n].kind == UnitKind::Contraction && !members.contains(&n);
            let behind = |n: &usize| !whole.iter().any(|m| product(*m) && self.units[*m].before.contains(n));
            let Some(more) = (0..self.units.len()).filter(behind).find(feeds) else { break };
            whole.insert(more);
        }
        let products: Members = self.contractions(&whole).filter(|n| !members.contains(n)).collect();
        let follows = |n: &usize| members.contains(n) || products.contains(n) || products.iter().any(|p| self.units[*n].before.contains(p));
        whole.into_iter().filter(follows).collect()
    }

    /// Whether a contraction is a batch of products that do little with what they move.
    fn is_streamed(&self, contraction: usize) -> bool {
        let Some(operation) = self.state.operation(self.units[contraction].node) else { return false };
        let has = |o: &sdfg::Operand, index: &str| o.subscripts.iter().any(|e| e.as_sym() == Some(index));
        let mut batch = operation.indices.keys().filter(|index| operation.inputs.iter().chain(&operation.outputs).all(|o| has(o, index)));
        let size = |dim: &String| self.program.size_of(dim).eval(&self.program.sizes).ok().and_then(|n| u64::try_from(n).ok());
        let points = operation.indices.values().map(size).try_fold(2u64, |product, n| product.checked_mul(n?));
        batch.next().is_some() && points.is_some_and(|points| points < INTENSE * self.bytes(&Members::from([contraction])))
    }

    /// Whether a contraction sums over the last dim of what the others make for it.
    fn sums_neighbours(&self, contraction: usize, members: &Members) -> bool {
        let Some(operation) = self.state.operation(self.units[contraction].node) else { return false };
        let mut made = operation.inputs.iter().filter(|o| members.iter().any(|m| self.units[*m].writes.contains(&o.data)));
        let kept = |e: &sdfg::Expr| operation.outputs.iter().any(|out| out.subscripts.contains(e));
        made.all(|o| o.subscripts.last().is_some_and(|e| !kept(e)))
    }

    fn best(&mut self, clusters: &[Members], relation: Relation) -> Option<Members> {
        let mut candidates: Vec<(Reverse<u64>, Members)> = Vec::new();
        for cluster in clusters.iter().filter(|c| self.contractions(c).next().is_some()) {
            for merged in self.candidates(cluster, clusters, relation) {
                let parts: u64 = clusters.iter().filter(|c| c.is_subset(&merged)).map(|c| self.bytes(c)).sum();
                let saved = parts.saturating_sub(self.bytes(&merged));
                if saved > 0 && !self.refused.contains_key(&merged) {
                    candidates.push((Reverse(saved), merged));
                }
            }
        }
        candidates.sort();
        candidates.dedup();
        for (_, merged) in candidates {
            match self.admits(&merged) {
                Ok(()) => return Some(merged),
                Err(reason) => self.refused.insert(merged, reason),
            };
        }
        None
    }

    /// What a cluster could grow into.
    fn candidates(&self, cluster: &Members, clusters: &[Members], relation: Relation) -> Vec<Members> {
        let holds = |c: &Members| self.contractions(c).next().is_some();
        let others = || clusters.iter().filter(|c| *c != cluster);
        let union = |c: &Members| -> Members { cluster.union(c).copied().collect() };
        match relation {
            Relation::Neighbour => {
                let mut found: Vec<Members> =
                    others().filter(|c| !holds(c) && (self.hands(cluster, c) || self.hands(c, cluster))).map(union).collect();
                // A contraction comes with all that read the same intermediate, so that nothing of it is left to store.
                let written: BTreeSet<&String> = cluster.iter().flat_map(|m| &self.units[*m].writes).collect();
                for data in written.into_iter().filter(|d| !self.leaving.contains(*d)) {
                    let readers = clusters.iter().filter(|c| c.iter().any(|m| self.units[*m].reads.contains(data)));
                    let merged = readers.fold(cluster.clone(), |all, c| all.union(c).copied().collect());
                    if merged.len() > cluster.len() {
                        found.push(merged);
                    }
                }
                found
            }
            // What could still join a kernel without contractions is left to fusion, unless forms are few.
            Relation::Sibling if cluster.len() > 1 || self.wanted.form.is_some() => {
                let few = self.wanted.form.is_some();
                let free =
                    |c: &Members| !holds(c) && (few || !others().any(|o| !holds(o) && o != c && (self.hands(o, c) || self.hands(c, o))));
                let reads = |c: &Members| -> BTreeSet<&String> { c.iter().flat_map(|m| &self.units[*m].reads).collect() };
                let ours = reads(cluster);
                others().filter(|c| free(c) && reads(c).intersection(&ours).next().is_some()).map(union).collect()
            }
            Relation::Sibling => vec![],
        }
    }

    /// The kernel that these units would be.
    pub fn describe(&self, members: &Members) -> Cluster {
        let name = |m: usize| self.units[m].name.clone();
        Cluster {
            site: Site { state: self.id, units: self.nodes(members) },
            name: members.last().map(|m| name(*m)).unwrap_or_default(),
            members: members.iter().map(|m| name(*m)).collect(),
            contractions: self.contractions(members).map(name).collect(),
            kinds: self.kinds(members),
        }
    }

    /// What the members are to their contractions.
    fn kinds(&self, members: &Members) -> BTreeSet<Kind> {
        let contractions: Members = self.contractions(members).collect();
        let others = || members.difference(&contractions);
        let mut kinds = BTreeSet::new();
        if contractions.len() > 1 {
            kinds.insert(Kind::Chain);
        }
        if others().any(|m| !self.units[*m].before.is_disjoint(&contractions)) {
            kinds.insert(Kind::Epilogue);
        }
        if contractions.iter().any(|c| others().any(|m| self.units[*c].before.contains(m))) {
            kinds.insert(Kind::Prologue);
        }
        let reduced: BTreeSet<&String> = members.iter().flat_map(|m| &self.inside[*m].reduces).collect();
        if members.iter().flat_map(|m| &self.inside[*m].reads).any(|data| reduced.contains(data)) {
            kinds.insert(Kind::Rows);
        }
        if kinds.is_empty() && members.len() > 1 {
            kinds.insert(Kind::Beside);
        }
        kinds
    }

    /// Whether these units may become one scope, and are wanted as one.
    fn admits(&self, members: &Members) -> Result<(), Reason> {
        let cluster = self.describe(members);
        let not_wanted = |why: &str| Err(Reason::NotWanted { kernel: cluster.name.clone(), why: why.into() });
        if !(self.wanted.accept)(&cluster) {
            return not_wanted("");
        }
        if !self.wanted.chains {
            self.on_chip(members)?;
        }
        let patch = self.fits(members)?;
        match self.wanted.form {
            Some(form) if !form(self.program, &patch) => not_wanted(": it has no form on this device"),
            Some(_) if !self.wanted.chains => Ok(()),
            _ => self.whole(&patch),
        }
    }

    /// A sum inside a kernel leaves it by plain indices: one that holds a contraction must not write a part of a container. Chains hand
    /// over what they have summed up, and must not sum in one.
    fn whole(&self, patch: &Patch) -> Result<(), Reason> {
        for unit in patch.edits.iter().flat_map(|edit| &edit.insert) {
            let Unit::Scope(scope) = unit else { continue };
            // What the patch declares, anew or again, is inside the kernel.
            for (data, memlets) in scope.writes().into_iter().filter(|(data, _)| patch.containers.iter().all(|c| c.name != *data)) {
                let sums = !self.wanted.chains || memlets.iter().any(|m| m.wcr.is_some());
                if sums && scope.writes_part(self.program, &data) {
                    return Err(Reason::WritesPart { data });
                }
            }
        }
        Ok(())
    }

    /// What would make these units one scope.
    pub fn fits(&self, members: &Members) -> Result<Patch, Reason> {
        if let Some(other) = members.iter().map(|m| &self.units[*m]).find(|u| u.kind == UnitKind::Other) {
            return Err(Reason::Unsupported(format!("`{}` has not been expanded into a map", other.name)));
        }
        for (n, between) in self.units.iter().enumerate().filter(|(n, _)| !members.contains(n)) {
            if between.before.iter().any(|b| members.contains(b)) && members.iter().any(|m| self.units[*m].before.contains(&n)) {
                return Err(Reason::Cycle { between: between.name.clone() });
            }
        }
        self.chained(members)?;
        build(self.program, (self.id, self.state), &self.nodes(members))
    }

    /// Why two clusters stayed apart. Where one more reader was missing, why all of them could not join.
    pub fn apart(&self, first: &Members, second: &Members) -> Reason {
        let merged: Members = first.union(second).copied().collect();
        let reason = match self.refused.get(&merged).cloned().map_or_else(|| self.admits(&merged), Err) {
            Err(reason) => reason,
            Ok(()) if (self.bytes(first) + self.bytes(second)) <= self.bytes(&merged) => Reason::SavesNothing,
            Ok(()) => Reason::Unsupported("another composition had taken what would have joined them".into()),
        };
        let with_more = || self.refused.iter().filter(|(members, _)| merged.is_subset(members)).min_by_key(|(members, _)| members.len());
        match (&reason, with_more()) {
            (Reason::Stored { .. }, Some((_, more))) => more.clone(),
            _ => reason,
        }
    }

    /// Whether a unit of `second` reads what a unit of `first` writes.
    pub fn hands(&self, first: &Members, second: &Members) -> bool {
        first.iter().any(|w| second.iter().any(|r| self.units[*w].writes.iter().any(|d| self.units[*r].reads.contains(d))))
    }

    /// An operand made inside must not reach memory: where somebody outside needs it, an ordinary product reads it as well.
    fn on_chip(&self, members: &Members) -> Result<(), Reason> {
        for consumer in self.contractions(members) {
            for data in self.units[consumer].reads.iter().filter(|d| members.iter().any(|m| self.units[*m].writes.contains(*d))) {
                if let Some(reader) = self.reader_outside(data, members) {
                    return Err(Reason::Stored { data: data.clone(), contraction: self.units[consumer].name.clone(), reader });
                }
            }
        }
        Ok(())
    }

    /// Where a contraction makes an operand of another one it must outweigh what it is made of: otherwise two ordinary products are
    /// better off with tiles of their own.
    fn chained(&self, members: &Members) -> Result<(), Reason> {
        for consumer in self.contractions(members) {
            for data in &self.units[consumer].reads {
                let Some(maker) = members.iter().copied().find(|m| self.units[*m].writes.contains(data)) else { continue };
                let makers = members.iter().copied().filter(|m| *m == maker || self.units[maker].before.contains(m));
                for producer in makers.filter(|m| self.units[*m].kind == UnitKind::Contraction) {
                    let operand = |d: &String| self.moved[producer].get(d).copied().unwrap_or(0);
                    let operands = self.units[producer].reads.iter().map(operand).max().unwrap_or(0);
                    let bytes = self.moved[consumer].get(data).copied().unwrap_or(0);
                    if bytes <= operands {
                        return Err(Reason::Outweighed {
                            data: data.clone(),
                            bytes,
                            contraction: self.units[producer].name.clone(),
                            operands,
                        });
                    }
                }
            }
        }
        Ok(())
    }

    fn reader_outside(&self, data: &str, members: &Members) -> Option<String> {
        match self.unit_outside(data, members) {
            Some(n) => Some(format!("`{}`", self.units[n].name)),
            None => self.leaving.contains(data).then(|| {
                let handed_back = self.program.containers.get(data).is_some_and(|c| c.role != Role::Transient);
                if handed_back { "the caller".into() } else { "another state".into() }
            }),
        }
    }

    /// The first unit that is no member and reads a container.
    fn unit_outside(&self, data: &str, members: &Members) -> Option<usize> {
        self.readers.get(data).into_iter().flatten().copied().find(|n| !members.contains(n))
    }

    pub fn contractions(&self, members: &Members) -> impl Iterator<Item = usize> {
        members.iter().copied().filter(|m| self.units[*m].kind == UnitKind::Contraction)
    }

    /// Bytes that cross the boundary of a cluster.
    fn bytes(&self, members: &Members) -> u64 {
        if let Some(known) = self.crossing.borrow().get(members) {
            return *known;
        }
        let bytes = self.bytes_across(members);
        self.crossing.borrow_mut().insert(members.clone(), bytes);
        bytes
    }

    fn bytes_across(&self, members: &Members) -> u64 {
        let mut crossing: BTreeMap<(&String, bool), u64> = BTreeMap::new();
        for m in members {
            let unit = &self.units[*m];
            let bytes = |d: &String| self.moved[*m].get(d).copied().unwrap_or(0);
            let made = |d: &String| members.iter().any(|w| self.units[*w].writes.contains(d));
            for data in unit.reads.iter().filter(|d| !made(d)) {
                let known = crossing.entry((data, false)).or_default();
                *known = (*known).max(bytes(data));
            }
            for data in unit.writes.iter().filter(|d| self.leaving.contains(*d) || self.unit_outside(d, members).is_some()) {
                let known = crossing.entry((data, true)).or_default();
                *known = (*known).max(bytes(data));
            }
        }
        crossing.values().sum()
    }
}

/// Bytes of each heap container that a unit moves.
fn moved(program: &Sdfg, state: &State, node: NodeId) -> BTreeMap<String, u64> {
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    let (reads, writes) = state.boundary(node);
    for memlet in reads.into_iter().chain(writes) {
        let Some(container) = program.containers.get(&memlet.data).filter(|c| c.storage == Storage::Heap) else { continue };
        let count = |r: &sdfg::Range| r.count().eval(&program.sizes).ok().map(|c| c.max(0) as u64);
        let elements = memlet.subset.iter().try_fold(1u64, |n, r| count(r).map(|c| n.saturating_mul(c))).unwrap_or(0);
        let known = found.entry(memlet.data.clone()).or_default();
        *known = (*known).max(container.dtype.bytes(elements));
    }
    found
}
