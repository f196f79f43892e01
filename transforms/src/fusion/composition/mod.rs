//! Composition: a contraction and its neighbours become one kernel.
//!
//! ```text
//! t[i,j] = Σ w[i,k]·x[k,j]                    map i=0:n, j=0:m {
//! map i=0:n, j=0:m { y[i,j] = exp(t[i,j]) }  →  map k: t += w[i,k]·x[k,j]
//!                                               y[i,j] = exp(t)
//!                                             }
//! ```
//!
//! The contraction is written as its sum of products; the outer map holds the indices that all statements share, and what
//! they hand on is local to one outer iteration. A kernel template tiles the outer map and turns the sums into matrix
//! products on tiles. Found by structure alone:
//! - **epilogue**: an element-wise scope over the result; sums over its rows and columns leave by conflict resolution;
//! - **row epilogue**: the scope also reduces over an index of the result (softmax, normalization): rows are local;
//! - **prologue**: a scope makes an operand;
//! - **chain**: a contraction makes an operand of another (attention), or several contractions are added up.
//!
//! *Legal when* no unit outside the kernel depends on one member and is needed by another; all statements share an index; an operand that
//! a contraction computes inside is larger than that contraction's own operands; rows fit a core's cache; and a contraction that sums
//! over outer indices leaves other outer indices for the cores to share.
//! *Wanted where* no unit outside needs an operand that is computed inside, and where the cores can share the work: a kernel with a single
//! point, such as the one image of a batch, does not move many bytes. With [`WantedKernels::chains`] such an operand may be needed outside,
//! since templates that keep it in registers also write it; then also batches of small products become kernels, each of its own, as an
//! alternative to the library's.
//! *Moves less because* intermediates never leave the core, and containers that several parts read are read once.
//! *Not handled*: operands of contractions other than plain subscripts when scaled, sequential indices.
//! *Source*: block composition of "FusionStitching" (Long, Yang, Lin, arXiv:1911.11576), §5.1, with contractions
//! as members; attention on chip from saved row statistics.

mod build;
mod classes;
mod cluster;
pub(crate) mod clusters;
mod grow;
mod kind;

use crate::pass::{Context, Facts, Pass, Rewritten, Stopped};
use crate::patch::Patch;
use crate::refusal::{Reason, Refusal, Site};
use crate::unit_graph::Members;
use crate::unit_order::UnitOrder;
pub(in crate::fusion) use build::expanded;
use cluster::{Growth, Refused};
pub use clusters::Cluster;
use clusters::Clusters;
pub use kind::FusionKind;
use sdfg::{Sdfg, StateId, Unit};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// Composes contractions with their neighbours where [`WantedKernels`] allows it.
#[derive(Clone, Copy, Default)]
pub struct Composition<'a> {
    pub wanted: WantedKernels<'a>,
}

/// Which kernels are wanted. The function is called for a cluster each time it would grow, so a refused cluster may stay smaller, or
/// grow in another direction.
pub type Accept<'a> = &'a dyn Fn(&Cluster) -> bool;

/// Whether a kernel that a patch would put into a program has a form where it is to run.
pub type HasForm<'a> = &'a dyn Fn(&Sdfg, &Patch) -> bool;

/// Which kernels are wanted, by what they hold and by what they would be.
#[derive(Clone, Copy)]
pub struct WantedKernels<'a> {
    pub accept: Accept<'a>,
    /// Absent where every kernel has a form. Where few kernels have one, kernels of a contraction and a sum over its operand are tried,
    /// too, since fusion may not be able to fuse that sum.
    pub form: Option<HasForm<'a>>,
    /// Only chains: two contractions with all units between them, even if units outside need an operand of the second one; and single
    /// contractions that are batches of small products.
    pub chains: bool,
    /// Verdicts from composing the same program with the same `form` and `chains`.
    pub known: Option<&'a Verdicts>,
}

/// Which units of a program may become one scope that has a form. A program may be composed many times, with other kernels wanted each
/// time; the verdict on a set of units is found once.
#[derive(Debug, Default)]
pub struct Verdicts(Mutex<HashMap<(StateId, Members), Result<(), Reason>>>);

impl Verdicts {
    fn verdict(&self, (state, members): (StateId, &Members), find: impl FnOnce() -> Result<(), Reason>) -> Result<(), Reason> {
        let key = (state, members.clone());
        // The map is consistent after a panic: a verdict is in it or is not.
        let all = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all().get(&key) {
            return known.clone();
        }
        let found = find();
        all().insert(key, found.clone());
        found
    }
}

const EVERYTHING: WantedKernels = WantedKernels { accept: &|_| true, form: None, chains: false, known: None };

/// Every kernel that is legal and saves bytes.
impl Default for WantedKernels<'_> {
    fn default() -> Self {
        EVERYTHING
    }
}

impl<'a> From<Accept<'a>> for WantedKernels<'a> {
    fn from(accept: Accept<'a>) -> Self {
        WantedKernels { accept, ..EVERYTHING }
    }
}

/// Every wanted cluster of a program whose operations are expanded but for contractions, and why neighbours stay apart.
pub fn clusters(program: &Sdfg, wanted: WantedKernels) -> (Vec<Cluster>, Vec<Refusal>) {
    clusters_beside(program, wanted, &BTreeSet::new())
}

/// The same; kernels of these names, which other passes have made, stay as they are.
fn clusters_beside(program: &Sdfg, wanted: WantedKernels, made: &BTreeSet<&str>) -> (Vec<Cluster>, Vec<Refusal>) {
    let (mut found, mut refusals) = (Vec::new(), Vec::new());
    for (id, state) in program.states() {
        let mut growth = Growth::new(program, (id, state), wanted);
        growth.made = growth.units.all.iter().enumerate().filter(|(_, u)| made.contains(u.name.as_str())).map(|(n, _)| n).collect();
        let clusters = if wanted.chains { growth.chains() } else { growth.clusters() };
        let name = |m: usize| growth.units.all[m].name.clone();
        found.extend(clusters.iter().map(|members| growth.describe(members)));
        let refused = Refused::of(&growth.refused);
        let held: BTreeSet<usize> = clusters.iter().flatten().copied().collect();
        let alone = (0..growth.units.all.len()).filter(|n| !held.contains(n)).map(|n| Members::from([n]));
        let all: Vec<Members> = clusters.iter().cloned().chain(alone).collect();
        let mut holders = vec![0; growth.units.all.len()];
        all.iter().enumerate().for_each(|(holder, members)| members.iter().for_each(|m| holders[*m] = holder));
        for (n, first) in all.iter().enumerate() {
            let readers = first.iter().flat_map(|m| growth.units.writes(*m)).flat_map(|data| growth.units.readers(*data));
            for second in readers.map(|reader| holders[*reader]).filter(|second| *second != n).collect::<BTreeSet<_>>() {
                let second = &all[second];
                if growth.contractions(first).chain(growth.contractions(second)).next().is_none() {
                    continue;
                }
                let last = |c: &Members| c.last().copied().unwrap_or_default();
                let site = Site { state: id, units: vec![growth.units.all[last(first)].node, growth.units.all[last(second)].node] };
                let names = vec![name(last(first)), name(last(second))];
                refusals.push(refusal(program, site, names, growth.apart(first, second, &refused)));
            }
        }
    }
    (found, refusals)
}

fn refusal(program: &Sdfg, site: Site, units: Vec<String>, reason: Reason) -> Refusal {
    let last = site.units.last().zip(program.state(site.state));
    let origin = last.and_then(|(node, state)| match state.operation(*node) {
        Some(operation) => operation.origin,
        None => state.scope(*node).and_then(|s| s.computations().first().and_then(|(_, c)| c.tasklet.origin.clone())),
    });
    Refusal { transform: "composition", site, units, reason, origin }
}

impl Pass for Composition<'_> {
    fn name(&self) -> &'static str {
        "composition"
    }

    /// Kernels are found once, in the program that is given; no unit belongs to two kernels.
    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let made: BTreeSet<&str> = context.facts.kernels.iter().map(|k| k.name.as_str()).collect();
        let todo = context.search.clusters.get_or_insert_with(|| {
            let (found, apart) = clusters_beside(program, self.wanted, &made);
            let units = program.states().map(|state| UnitOrder::new(program, state)).collect();
            Clusters { waiting: found.into(), units, refused: vec![], apart }
        });
        while let Some(cluster) = todo.waiting.pop_front() {
            match todo.patch(program, &cluster.site) {
                Ok(patch) if context.barred.has(&patch.summary) => {
                    todo.refused.push(context.barred.refusal(self.name(), program, &cluster.site));
                }
                Ok(patch) => return Ok(Rewritten::patch(patch).with(Facts { kernels: vec![cluster], ..Facts::default() })),
                Err(reason) => todo.refused.push(refusal(program, cluster.site, cluster.members, reason)),
            }
        }
        Err(Stopped::refused(todo.refused.drain(..).chain(todo.apart.drain(..)).collect()))
    }

    fn repeats(&self) -> bool {
        true
    }
}

impl Composition<'_> {
    /// The patch that makes one kernel of the units of a site, whether it is wanted or not.
    ///
    /// # Errors
    /// Why they cannot be one kernel.
    pub fn plan(&self, program: &Sdfg, site: &Site) -> Result<Patch, Box<Refusal>> {
        let names = |units: &[sdfg::NodeId]| -> Vec<String> {
            let state = program.state(site.state);
            let name = |n: &sdfg::NodeId| {
                let state = state?;
                state.operation(*n).map(Unit::Operation).or_else(|| state.scope(*n).map(Unit::Scope)).map(|u| u.name().to_string())
            };
            units.iter().filter_map(name).collect()
        };
        let refuse = |reason: Reason| Box::new(refusal(program, site.clone(), names(&site.units), reason));
        let state = program.state(site.state).ok_or_else(|| refuse(Reason::Unsupported("the state does not exist".into())))?;
        let growth = Growth::new(program, (site.state, state), EVERYTHING);
        let at = |node: &sdfg::NodeId| {
            growth
                .units
                .all
                .iter()
                .position(|u| u.node == *node)
                .ok_or_else(|| refuse(Reason::Unsupported(format!("there is no unit {node}"))))
        };
        let members = site.units.iter().map(at).collect::<Result<Members, _>>()?;
        growth.fits(&members).map_err(refuse)
    }
}

/// Which units of a state may become one kernel around a contraction, asked set by set.
pub(crate) struct Composable<'a>(Growth<'a>);

impl<'a> Composable<'a> {
    pub fn new(program: &'a Sdfg, state: (StateId, &'a sdfg::State)) -> Self {
        Composable(Growth::new(program, state, EVERYTHING))
    }

    /// # Errors
    /// Why these units, by their positions in execution order, stay apart.
    pub fn admits(&self, members: &Members) -> Result<(), Reason> {
        self.0.admits(members)
    }

    /// The kernel that these units would be.
    pub fn describe(&self, members: &Members) -> Cluster {
        self.0.describe(members)
    }
}
