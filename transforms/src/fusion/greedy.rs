//! Fusion by compatible iteration spaces: two kernels become one.
//!
//! ```text
//! map i=0:n { t[i] = a[i] + b[i] }            map i=0:n {
//! map i=0:n { y[i] = exp(t[i]) }        →       t = a[i] + b[i]; y[i] = exp(t)
//!                                             }
//! ```
//!
//! *Legal when* the two share outer indices ([`shared_indices`]) and nothing that runs between them depends on the first
//! while the second depends on it.
//! *Wanted where* the cores can still share the work: one point, such as the single image of a batch, is no kernel for many bytes. Kernels
//! that hand nothing to one another are fused as long as a core can prefetch all that they run through.
//! *Moves less because* what the first hands to the second stays in registers or in a core's cache, and what both read
//! is read once; two independent kernels over equal spaces save a launch.
//! *Not handled*: contractions (they take only a scale), sequential indices.
//! *Source*: "Data Movement Is All You Need", §IV and Fig. 3: (1) producer and consumer over equal spaces, (2) a consumer
//! or producer that also reduces, (3) siblings that read the same data, (4) independent operators over equal spaces.

use crate::fusion::iteration_space::{Statement, all_indices, correspondence, rebuild, shared_indices, statements};
use crate::fusion::local_copies::unify_copies;
use crate::fusion::once::all_or_none;
use crate::fusion::pairs::PairSearch;
use crate::fusion::single_point::{points, shared_among_cores};
use crate::pass::{Context, Loops, Pass, Rewritten, Stopped};
use crate::patch::{Edit, Patch};
use crate::refusal::{Reason, Refusal, Site};
use crate::unit_graph::{Kind, needed_outside};
use crate::unit_order::{Slot, UnitOfState, UnitOrder};
use sdfg::{NodeId, Scope, Sdfg, StateId, Unit};
use std::collections::BTreeSet;

/// Local buffers of one outer iteration must stay well within a core's private cache.
const LOCAL_LIMIT: u64 = 128 << 10;

/// Containers of one kernel that is made of kernels which hand nothing to one another. A core prefetches about as many streams. Updates of
/// parameters share the index of many, so that without a limit all of them become one loop, which runs several times slower than one after
/// another.
const STREAMS: usize = 24;

/// Fuses pairs of scopes. Kernels that composition has made stay as they are.
#[derive(Clone, Copy, Debug)]
pub struct Fusion {
    /// Bytes. Independent kernels over equal spaces are fused if one of them touches at most this many. That saves a launch but no bytes,
    /// and one loop nest ties the layouts of both, which costs more than a launch where both are long.
    pub independent: u64,
    /// The same limit in programs with kernels that composition has made.
    pub beside_composed: u64,
}

impl Default for Fusion {
    fn default() -> Self {
        Fusion { independent: u64::MAX, beside_composed: u64::MAX }
    }
}

impl Pass for Fusion {
    fn name(&self) -> &'static str {
        "fusion"
    }

    fn loops(&self) -> Loops {
        Loops::Inside
    }

    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let kernels = &context.facts.kernels;
        let barred = context.barred;
        let pairs = context.search.pairs.get_or_insert_with(|| {
            let independent = if kernels.is_empty() { self.independent } else { self.beside_composed };
            PairSearch::new(program, &kernels.iter().map(|kernel| kernel.name.as_str()).collect(), independent)
        });
        let judge = |program: &Sdfg, units: &UnitOrder, first: Slot, second: Slot| {
            are_scopes(units, first, second)?;
            streams(units, first, second)?;
            let patch = pair(program, units, first, second)?;
            if barred.has(&patch.summary) { Err(Reason::FoundWrong) } else { Ok(patch) }
        };
        if let Some(patch) = pairs.next(program, &judge) {
            return Ok(Rewritten::patch(patch));
        }
        let refused = pairs.refused(program, &judge);
        Err(Stopped::refused(refused.into_iter().map(|(site, reason)| *refusal(program, &site, reason)).collect()))
    }

    fn repeats(&self) -> bool {
        true
    }
}

/// Whether two units are scopes.
fn are_scopes(units: &UnitOrder, first: Slot, second: Slot) -> Result<(), Reason> {
    for unit in [units.unit(first), units.unit(second)] {
        match unit.kind {
            Kind::Scope => {}
            Kind::Contraction => return Err(Reason::Contraction { unit: unit.name.clone() }),
            Kind::Other => return Err(Reason::Unsupported(format!("`{}` has not been expanded into a map", unit.name))),
        }
    }
    Ok(())
}

/// Whether a core can prefetch all that two units run through, unless the first hands something to the second.
fn streams(units: &UnitOrder, first: Slot, second: Slot) -> Result<(), Reason> {
    let containers = units.touched(first, second);
    let hands_on = units.makers(second).contains(&first);
    if containers > STREAMS && !hands_on { Err(Reason::TooManyStreams { containers, limit: STREAMS }) } else { Ok(()) }
}

/// Fuses two scopes of a state.
fn pair(program: &Sdfg, units: &UnitOrder, first: Slot, second: Slot) -> Result<Patch, Reason> {
    let state = program.state(units.id).ok_or_else(|| Reason::Unsupported("the state does not exist".into()))?;
    let scope_of = |unit: &UnitOfState| {
        let scope = state.scope(unit.node).ok_or_else(|| Reason::Unsupported(format!("the inside of `{}` has a cycle", unit.name)))?;
        Ok((unit.node, scope))
    };
    let [a, b] = [units.unit(first), units.unit(second)];
    all_or_none(program, state, &[(a.node, a.name.as_str()), (b.node, b.name.as_str())])?;
    let parts = [scope_of(a)?, scope_of(b)?];
    let patch = fuse(program, units.id, &parts)?;
    let several = parts.iter().any(|(_, scope)| points(scope, program) != Some(1));
    let bytes = units.unit(first).bytes.max(units.unit(second).bytes);
    for unit in patch.edits.iter().flat_map(|edit| &edit.insert) {
        if let Unit::Scope(scope) = unit {
            shared_among_cores(scope, program, bytes, several)?;
        }
    }
    Ok(patch)
}

fn refusal(program: &Sdfg, site: &Site, reason: Reason) -> Box<Refusal> {
    let Some(state) = program.state(site.state) else {
        return Box::new(Refusal { transform: "fusion", site: site.clone(), units: vec![], reason, origin: None });
    };
    let found: Vec<Unit> =
        site.units.iter().filter_map(|n| state.operation(*n).map(Unit::Operation).or_else(|| state.scope(*n).map(Unit::Scope))).collect();
    let origin = found.last().and_then(|u| match u {
        Unit::Operation(o) => o.origin.clone(),
        Unit::Scope(s) => s.computations().first().and_then(|(_, c)| c.tasklet.origin.clone()),
        _ => None,
    });
    let units = found.iter().map(|u| u.name().to_string()).collect();
    Box::new(Refusal { transform: "fusion", site: site.clone(), units, reason, origin })
}

/// Fuses scopes of one state, given in execution order, into one.
pub(crate) fn fuse(program: &Sdfg, state: StateId, scopes: &[(NodeId, Scope)]) -> Result<Patch, Reason> {
    let nodes: Vec<NodeId> = scopes.iter().map(|(n, _)| *n).collect();
    fuse_within(program, state, scopes, &|data| needed_outside(program, state, &nodes, data))
}

/// The same; `kept` says which containers others than these scopes need.
pub(crate) fn fuse_within(
    program: &Sdfg,
    state: StateId,
    scopes: &[(NodeId, Scope)],
    kept: &dyn Fn(&str) -> bool,
) -> Result<Patch, Reason> {
    let mut all: Vec<Statement> = Vec::new();
    let mut spaces: Vec<BTreeSet<String>> = Vec::new();
    let mut connected = true;
    for (n, (_, scope)) in scopes.iter().enumerate() {
        let mut mine = statements(scope, program)
            .ok_or_else(|| Reason::Unsupported(format!("`{}` has a sequential index or holds a contraction", scope.map.label)))?;
        if n > 0 {
            let names = correspondence(&all, &mine, program);
            for statement in &mut mine {
                statement.rename(&names);
            }
            let touches = |s: &Statement, data: &str| s.computation.reads.iter().chain(&s.computation.writes).any(|(_, m)| m.data == data);
            connected &= mine.iter().any(|s| s.computation.reads.iter().any(|(_, m)| all.iter().any(|a| touches(a, &m.data))));
        }
        spaces.push(all_indices(&mine).keys().cloned().collect());
        all.extend(mine);
    }
    unify_copies(&mut all, program);
    let text = |space: &BTreeSet<String>| space.iter().cloned().collect::<Vec<_>>().join(",");
    let hands_on = all
        .iter()
        .any(|w| w.computation.writes.iter().any(|(_, m)| all.iter().any(|r| r.computation.reads.iter().any(|(_, o)| o.data == m.data))));
    if (!connected || !hands_on) && spaces.windows(2).any(|w| w[0] != w[1]) {
        return Err(Reason::SpacesDiffer { first_space: text(&spaces[0]), second_space: text(&spaces[spaces.len() - 1]) });
    }
    let shared = shared_indices(&all);
    if shared.is_empty() && !all_indices(&all).is_empty() {
        let label = |n: usize| scopes[n].1.map.label.clone();
        return Err(Reason::NoSharedIndex {
            first: label(0),
            first_space: text(&spaces[0]),
            second: label(scopes.len() - 1),
            second_space: text(&spaces[spaces.len() - 1]),
        });
    }
    let nodes: Vec<NodeId> = scopes.iter().map(|(n, _)| *n).collect();
    let label = scopes[scopes.len() - 1].1.map.label.clone();
    let rebuilt = rebuild(&label, all, &shared, kept, program)
        .ok_or_else(|| Reason::Unsupported("an intermediate result is subscripted in a way that has no local form".into()))?;
    if rebuilt.local_bytes > LOCAL_LIMIT {
        return Err(Reason::TooLarge { bytes: rebuilt.local_bytes, limit: LOCAL_LIMIT });
    }
    let names: Vec<&str> = scopes.iter().map(|(_, s)| s.map.label.as_str()).collect();
    let summary =
        format!("fuse `{}` over [{}]", names.join("` with `"), shared.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(","));
    let edits = vec![Edit { state, remove: nodes, insert: vec![Unit::Scope(rebuilt.scope)] }];
    Ok(Patch { summary, edits, containers: rebuilt.containers, drop: vec![], dims: vec![] })
}
