//! Which units may become one kernel, and why others may not; chains of contractions.

use super::WantedKernels;
use super::build::build;
use super::classes::Classes;
use super::clusters::Cluster;
use super::kind::{FusionKind, Inside};
use crate::fusion::once::all_or_none;
use crate::fusion::single_point::{points, shared_among_cores};
use crate::patch::Patch;
use crate::refusal::{Reason, Site};
use crate::unit_graph::Kind as UnitKind;
use crate::unit_graph::{Members, UnitGraph};
use sdfg::{NodeId, Role, Sdfg, State, StateId, Unit};
use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Operations for each byte that is moved, below which memory limits a product and not units: GPUs' tensor cores have time for 150 to 300.
const INTENSE: u64 = 128;

/// The clusters of one state while they grow.
pub(super) struct Growth<'a> {
    pub(super) program: &'a Sdfg,
    id: StateId,
    pub(super) state: &'a State,
    pub units: UnitGraph<'a>,
    /// Sets of units that are the same but for names.
    pub(super) classes: Classes,
    /// What each unit reduces and reads, inside and out.
    inside: Vec<OnceCell<Inside>>,
    /// Which candidates are.
    pub(super) wanted: WantedKernels<'a>,
    /// Candidates that were refused, and why.
    pub(super) refused: BTreeMap<Members, Reason>,
    /// Kernels that other passes have made.
    pub(super) made: Members,
}

/// Refused candidates in their order, and by unit the positions of those that it is in.
pub(super) struct Refused<'a> {
    all: Vec<(&'a Members, &'a Reason)>,
    of: HashMap<usize, Vec<usize>>,
}

impl<'a> Refused<'a> {
    pub fn of(refused: &'a BTreeMap<Members, Reason>) -> Self {
        let mut found = Refused { all: refused.iter().collect(), of: HashMap::new() };
        for (n, (members, _)) in found.all.iter().enumerate() {
            members.iter().for_each(|m| found.of.entry(*m).or_default().push(n));
        }
        found
    }

    /// The smallest candidate that holds all of some units.
    fn around(&self, units: &Members) -> Option<&'a Reason> {
        let found = units.last().and_then(|last| self.of.get(last)).into_iter().flatten().map(|n| self.all[*n]);
        found.filter(|(members, _)| units.is_subset(members)).min_by_key(|(members, _)| members.len()).map(|(_, reason)| reason)
    }
}

impl<'a> Growth<'a> {
    pub fn new(program: &'a Sdfg, (id, state): (StateId, &'a State), wanted: WantedKernels<'a>) -> Self {
        let units = UnitGraph::new(program, (id, state));
        let inside = units.all.iter().map(|_| OnceCell::new()).collect();
        let classes = Classes::of_units(units.all.len());
        Growth { program, id, state, units, classes, inside, wanted, refused: BTreeMap::new(), made: Members::new() }
    }

    /// The nodes of members, in execution order.
    pub fn nodes(&self, members: &Members) -> Vec<NodeId> {
        members.iter().map(|m| self.units.all[*m].node).collect()
    }

    /// Chains that are wanted: two contractions with all units between them. Those that save most bytes come first, and no unit is in two
    /// chains. Then single contractions that are batches of small products, at which libraries do worst.
    pub fn chains(&mut self) -> Vec<Members> {
        let contractions: Vec<usize> = (0..self.units.all.len()).filter(|n| self.units.all[*n].kind == UnitKind::Contraction).collect();
        // Among chains that save equally, the one whose rows are contiguous in the recipe's order comes first.
        let mut found: Vec<(Reverse<u64>, bool, Members)> = Vec::new();
        for last in &contractions {
            for first in contractions.iter().filter(|first| self.units.all[*last].before.contains(**first)) {
                let between = |n: &usize| self.units.all[*n].before.contains(*first) && self.units.all[*last].before.contains(*n);
                let merged: Members = (0..self.units.all.len()).filter(between).chain([*first, *last]).collect();
                if self.contractions(&merged).count() > 2 {
                    continue;
                }
                // Operands that only this chain reads may be computed inside, also by a third contraction.
                let whole = self.with_feeders(&merged);
                let also = (self.contractions(&whole).count() == 3).then_some(whole);
                for merged in [Some(merged), also].into_iter().flatten() {
                    let parts: u64 = merged.iter().map(|n| self.units.bytes(&Members::from([*n]))).sum();
                    let saved = parts.saturating_sub(self.units.bytes(&merged));
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

    /// Members with all units whose results only they read, back to the contractions that these results come from.
    fn with_feeders(&self, members: &Members) -> Members {
        let mut whole = members.clone();
        loop {
            let feeds = |n: &usize| {
                let read = self.units.writes(*n).iter().any(|d| self.units.readers(*d).iter().any(|r| whole.contains(r)));
                let ours = |d: &usize| self.units.reader_outside(*d, &whole).is_none_or(|reader| reader == *n);
                read && !whole.contains(n) && self.units.writes(*n).iter().all(|d| !self.units.leaves(*d) && ours(d))
            };
            // A product's own factors come from elsewhere.
            let product = |n: usize| self.units.all[n].kind == UnitKind::Contraction && !members.contains(&n);
            let behind = |n: &usize| !whole.iter().any(|m| product(*m) && self.units.all[*m].before.contains(*n));
            let Some(more) = (0..self.units.all.len()).filter(behind).find(feeds) else { break };
            whole.insert(more);
        }
        let products: Members = self.contractions(&whole).filter(|n| !members.contains(n)).collect();
        let follows =
            |n: &usize| members.contains(n) || products.contains(n) || products.iter().any(|p| self.units.all[*n].before.contains(*p));
        whole.into_iter().filter(follows).collect()
    }

    /// Whether a contraction is a batch of products that do little with what they move.
    fn is_streamed(&self, contraction: usize) -> bool {
        let Some(operation) = self.state.operation(self.units.all[contraction].node) else { return false };
        let has = |o: &sdfg::Operand, index: &str| o.subscripts.iter().any(|e| e.as_sym() == Some(index));
        let mut batch = operation.indices.keys().filter(|index| operation.inputs.iter().chain(&operation.outputs).all(|o| has(o, index)));
        let size = |dim: &String| self.program.size_of(dim).eval(&self.program.sizes).ok().and_then(|n| u64::try_from(n).ok());
        let points = operation.indices.values().map(size).try_fold(2u64, |product, n| product.checked_mul(n?));
        batch.next().is_some() && points.is_some_and(|points| points < INTENSE * self.units.bytes(&Members::from([contraction])))
    }

    /// Whether a contraction sums over the last dim of what the others make for it.
    fn sums_neighbours(&self, contraction: usize, members: &Members) -> bool {
        let Some(operation) = self.state.operation(self.units.all[contraction].node) else { return false };
        let mut made = operation.inputs.iter().filter(|o| members.iter().any(|m| self.units.all[*m].writes.contains(&o.data)));
        let kept = |e: &sdfg::Expr| operation.outputs.iter().any(|out| out.subscripts.contains(e));
        made.all(|o| o.subscripts.last().is_some_and(|e| !kept(e)))
    }

    fn inside(&self, unit: usize) -> &Inside {
        self.inside[unit].get_or_init(|| Inside::of(self.state, &self.units.all[unit]))
    }

    /// The kernel that these units would be.
    pub fn describe(&self, members: &Members) -> Cluster {
        let name = |m: usize| self.units.all[m].name.clone();
        Cluster {
            site: Site { state: self.id, units: self.nodes(members) },
            name: members.last().map(|m| name(*m)).unwrap_or_default(),
            members: members.iter().map(|m| name(*m)).collect(),
            contractions: self.contractions(members).map(name).collect(),
            kinds: self.kinds(members),
        }
    }

    /// What the members are to their contractions.
    fn kinds(&self, members: &Members) -> BTreeSet<FusionKind> {
        let contractions: Members = self.contractions(members).collect();
        let others = || members.difference(&contractions);
        let mut kinds = BTreeSet::new();
        if contractions.len() > 1 {
            kinds.insert(FusionKind::Chain);
        }
        if others().any(|m| contractions.iter().any(|c| self.units.all[*m].before.contains(*c))) {
            kinds.insert(FusionKind::Epilogue);
        }
        if contractions.iter().any(|c| others().any(|m| self.units.all[*c].before.contains(*m))) {
            kinds.insert(FusionKind::Prologue);
        }
        let reduced: BTreeSet<&String> = members.iter().flat_map(|m| &self.inside(*m).reduces).collect();
        if members.iter().flat_map(|m| &self.inside(*m).reads).any(|data| reduced.contains(data)) {
            kinds.insert(FusionKind::Rows);
        }
        if kinds.is_empty() && members.len() > 1 {
            kinds.insert(FusionKind::Beside);
        }
        kinds
    }

    /// Whether these units may become one scope, and are wanted as one.
    pub(super) fn admits(&self, members: &Members) -> Result<(), Reason> {
        if let Some(made) = members.iter().find(|m| self.made.contains(m)).filter(|_| members.len() > 1) {
            return Err(Reason::Unsupported(format!("`{}` holds several layers already", self.units.all[*made].name)));
        }
        let units: Vec<_> = members.iter().map(|m| (self.units.all[*m].node, self.units.all[*m].name.as_str())).collect();
        all_or_none(self.program, self.state, &units)?;
        let cluster = self.describe(members);
        if !(self.wanted.accept)(&cluster) {
            return Err(Reason::NotWanted { kernel: cluster.name, why: String::new() });
        }
        match self.wanted.known {
            Some(known) => known.verdict((self.id, members), || self.has_form(members, &cluster.name)),
            None => self.has_form(members, &cluster.name),
        }
    }

    /// Whether these units may become one scope that has a form, wanted or not. What is the same but for names is found once.
    fn has_form(&self, members: &Members, name: &str) -> Result<(), Reason> {
        if !self.wanted.chains {
            self.on_chip(members)?;
        }
        self.in_order(members)?;
        let any_form = self.wanted.form.is_none() && !self.wanted.chains;
        let Some(class) = any_form.then(|| self.classes.class(self.program, self.state, &self.units, members)).flatten() else {
            return self.has_form_itself(members, name);
        };
        if let Some(known) = self.classes.known(&class) {
            debug_assert_eq!(known, self.has_form_itself(members, name));
            return known;
        }
        let found = self.has_form_itself(members, name);
        self.classes.learn(class, &found);
        found
    }

    fn has_form_itself(&self, members: &Members, name: &str) -> Result<(), Reason> {
        let patch = self.fits(members)?;
        self.shared_among_cores(members, &patch)?;
        match self.wanted.form {
            Some(form) if !form(self.program, &patch) => {
                Err(Reason::NotWanted { kernel: name.into(), why: ": it has no form on this device".into() })
            }
            Some(_) if !self.wanted.chains => Ok(()),
            _ => self.whole(&patch),
        }
    }

    /// One point, such as the single image of a batch, is no kernel for many bytes.
    fn shared_among_cores(&self, members: &Members, patch: &Patch) -> Result<(), Reason> {
        let several = |unit: &usize| match self.units.all[*unit].kind {
            UnitKind::Scope => self.state.scope(self.units.all[*unit].node).is_none_or(|scope| points(&scope, self.program) != Some(1)),
            _ => true,
        };
        let parts_have_several = members.len() > 1 && members.iter().any(several);
        for unit in patch.edits.iter().flat_map(|edit| &edit.insert) {
            if let Unit::Scope(scope) = unit {
                shared_among_cores(scope, self.program, self.units.bytes(members), parts_have_several)?;
            }
        }
        Ok(())
    }

    /// A sum begins with all of its container, so none is summed into a part of one. What is made of a sum that is whole may be a part.
    fn whole(&self, patch: &Patch) -> Result<(), Reason> {
        for unit in patch.edits.iter().flat_map(|edit| &edit.insert) {
            let Unit::Scope(scope) = unit else { continue };
            // What the patch declares, anew or again, is inside the kernel.
            for (data, memlets) in scope.writes().into_iter().filter(|(data, _)| patch.containers.iter().all(|c| c.name != *data)) {
                let sums = memlets.iter().any(|m| m.wcr.is_some());
                if sums && scope.writes_part(self.program, &data) {
                    return Err(Reason::WritesPart { data });
                }
            }
        }
        Ok(())
    }

    /// Whether units are expanded, and none outside runs between them.
    fn in_order(&self, members: &Members) -> Result<(), Reason> {
        if let Some(other) = members.iter().map(|m| &self.units.all[*m]).find(|u| u.kind == UnitKind::Other) {
            return Err(Reason::Unsupported(format!("`{}` has not been expanded into a map", other.name)));
        }
        let (first, last) = (members.first().copied().unwrap_or_default(), members.last().copied().unwrap_or_default());
        for (n, between) in (first..last).map(|n| (n, &self.units.all[n])).filter(|(n, _)| !members.contains(n)) {
            if members.iter().any(|m| between.before.contains(*m)) && members.iter().any(|m| self.units.all[*m].before.contains(n)) {
                return Err(Reason::Cycle { between: between.name.clone() });
            }
        }
        Ok(())
    }

    /// The patch that makes these units one scope.
    pub fn fits(&self, members: &Members) -> Result<Patch, Reason> {
        self.in_order(members)?;
        self.chained(members)?;
        build(self.program, (self.id, self.state), &self.nodes(members))
    }

    /// Why two clusters stayed apart. Where a third unit reads the operand as well, why all three could not be merged.
    pub fn apart(&self, first: &Members, second: &Members, refused: &Refused) -> Reason {
        let merged: Members = first.union(second).copied().collect();
        let reason = match self.refused.get(&merged).cloned().map_or_else(|| self.admits(&merged), Err) {
            Err(reason) => reason,
            Ok(()) if (self.units.bytes(first) + self.units.bytes(second)) <= self.units.bytes(&merged) => Reason::SavesNothing,
            Ok(()) => Reason::Unsupported("another composition had taken what would have joined them".into()),
        };
        match (&reason, refused.around(&merged)) {
            (Reason::Stored { .. }, Some(more)) => more.clone(),
            _ => reason,
        }
    }

    /// An operand that is computed inside must not be needed outside: then it would be stored all the same, and an ordinary contraction
    /// could read it.
    fn on_chip(&self, members: &Members) -> Result<(), Reason> {
        for consumer in self.contractions(members) {
            for data in self.units.reads(consumer).iter().filter(|d| self.units.maker(**d, members).is_some()) {
                if let Some(reader) = self.reader_outside(*data, members) {
                    let contraction = self.units.all[consumer].name.clone();
                    return Err(Reason::Stored { data: self.units.name(*data).into(), contraction, reader });
                }
            }
        }
        Ok(())
    }

    /// Where a contraction makes an operand of another one it must outweigh what it is made of: otherwise two ordinary products are
    /// better off with tiles of their own.
    fn chained(&self, members: &Members) -> Result<(), Reason> {
        let moved = |unit: usize, data: &usize| self.units.moved(unit).get(data).copied().unwrap_or(0);
        for consumer in self.contractions(members) {
            for data in self.units.reads(consumer) {
                let Some(maker) = self.units.maker(*data, members) else { continue };
                let makers = members.iter().copied().filter(|m| *m == maker || self.units.all[maker].before.contains(*m));
                for producer in makers.filter(|m| self.units.all[*m].kind == UnitKind::Contraction) {
                    let operands = self.units.reads(producer).iter().map(|d| moved(producer, d)).max().unwrap_or(0);
                    let bytes = moved(consumer, data);
                    if bytes <= operands {
                        let contraction = self.units.all[producer].name.clone();
                        return Err(Reason::Outweighed { data: self.units.name(*data).into(), bytes, contraction, operands });
                    }
                }
            }
        }
        Ok(())
    }

    fn reader_outside(&self, data: usize, members: &Members) -> Option<String> {
        match self.units.reader_outside(data, members) {
            Some(n) => Some(format!("`{}`", self.units.all[n].name)),
            None => self.units.leaves(data).then(|| {
                let handed_back = self.program.containers.get(self.units.name(data)).is_some_and(|c| c.role != Role::Transient);
                if handed_back { "the caller".into() } else { "the other pass".into() }
            }),
        }
    }
}
