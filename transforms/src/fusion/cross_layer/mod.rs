//! Cross-layer reuse: a layer and those that read it become one kernel, which hands intermediate results over on chip.
//!
//! ```text
//! t = conv(x), u = relu(t + b), y = conv(u)         map n, p, q { window of t; window of u, the fill outside the picture; y[p, q] }
//! ```
//!
//! Three modes are found from the graph: *straight*, one layer after another; *split*, several layers read one; *merge*, one layer reads
//! what several make. Element-wise work between them is free. The scope that a patch inserts says what one outer point needs (see
//! `window.rs`); templates run it in tiles, within which windows of neighbouring points overlap.
//!
//! *Legal when* every intermediate is needed inside alone, its readers move over it with one outer index each dim, and they declare one
//! fill. What lies outside the picture is the fill of the consumer's read, never what the producer would compute there.
//! *Moves less because* the intermediate is neither written nor read; tiles bring the borders of their inputs again. [`TileCost`] counts
//! both, and flop that are computed again: a patch that moves more, or computes too much again, is refused with its numbers.
//! *Source*: "Accelerating Deep Learning Inference with Cross-Layer Data Reuse on GPUs", §3; there one level, here
//! [`CrossLayerReuse::levels`].

mod cost;
mod sets;
mod window;

use crate::fusion::alignment::align;
use crate::fusion::composition::{Cluster, FusionKind, expanded};
use crate::fusion::iteration_space::{Statement, range_symbols, rebuild_windows, shared_indices};
use crate::fusion::local_copies::unify_copies;
use crate::fusion::once::runs_once;
use crate::pass::{Context, Facts, Pass, Rewritten, Stopped};
use crate::patch::{Edit, Patch};
use crate::refusal::{Percent, Reason, Refusal, Site};
use crate::unit_graph::{Members, UnitGraph, needed_outside};
use cost::Model;
pub use cost::TileCost;
use sdfg::{NodeId, Sdfg, State, StateId, Unit};
use std::collections::BTreeSet;
use std::fmt;
pub use window::DimWindow;

/// Puts layers that hand over on chip into one kernel.
#[derive(Clone, Copy, Debug)]
pub struct CrossLayerReuse {
    /// Most levels of intermediate results between products; 1 is what the paper does.
    pub levels: usize,
    /// Bytes of intermediate results that a tile may have.
    pub on_chip: u64,
    /// Most flop that may be computed again.
    pub recompute: Percent,
}

impl Default for CrossLayerReuse {
    /// Half of a second-level cache of 512 KiB, and as many levels as pay.
    fn default() -> Self {
        CrossLayerReuse { levels: usize::MAX, on_chip: 256 << 10, recompute: Percent(50_000) }
    }
}

/// How layers of a kernel depend on one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Straight,
    Split,
    Merge,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Straight => "straight",
            Mode::Split => "split",
            Mode::Merge => "merge",
        })
    }
}

/// Whether a statement reads a container at a sum of indices.
fn reads_windows(statement: &Statement) -> bool {
    let several = |range: &sdfg::Range| matches!(range, sdfg::Range::At(e) if e.symbols().iter().filter(|s| statement.has(s)).count() > 1);
    statement.computation.reads.iter().any(|(_, m)| m.subset.iter().any(several))
}

/// A kernel of several layers that may be made.
struct Found {
    cluster: Cluster,
    patch: Patch,
}

impl Pass for CrossLayerReuse {
    fn name(&self) -> &'static str {
        "cross-layer reuse"
    }

    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let known = &mut context.search.refused;
        let made: BTreeSet<&str> = context.facts.kernels.iter().map(|k| k.name.as_str()).collect();
        // Reasons of earlier rounds hold, too.
        for (id, state) in program.states() {
            let units = UnitGraph::new(program, (id, state));
            let apart = |unit: usize| made.contains(units.all[unit].name.as_str()) || runs_once(program, state, units.all[unit].node);
            let [found, refused] = sets::sets(&units, &apart, &|members| self.build(program, (id, state), &units, members).is_ok());
            let site = |members: &Members| Site { state: id, units: members.iter().map(|m| units.all[*m].node).collect() };
            for members in refused {
                let Err(reason) = self.build(program, (id, state), &units, &members) else { continue };
                let refusal = self.refusal(state, site(&members), &units, &members, reason);
                if known.iter().all(|r| r.units != refusal.units) {
                    known.push(refusal);
                }
            }
            for members in found {
                match self.build(program, (id, state), &units, &members) {
                    Ok(found) if context.barred.has(&found.patch.summary) => {
                        known.push(context.barred.refusal(self.name(), program, &site(&members)));
                    }
                    Ok(Found { cluster, patch }) => {
                        return Ok(Rewritten::patch(patch).with(Facts { kernels: vec![cluster], ..Facts::default() }));
                    }
                    Err(reason) => known.push(self.refusal(state, site(&members), &units, &members, reason)),
                }
            }
        }
        if known.is_empty() {
            return Err(Stopped::at_program(self.name(), "no layer reads what another layer computes and nothing else needs"));
        }
        Err(Stopped::refused(std::mem::take(known)))
    }

    fn repeats(&self) -> bool {
        true
    }
}

impl CrossLayerReuse {
    fn refusal(&self, state: &State, site: Site, units: &UnitGraph, members: &Members, reason: Reason) -> Refusal {
        let last = site.units.last().copied();
        let origin = last.and_then(|node| match state.operation(node) {
            Some(operation) => operation.origin,
            None => state.scope(node).and_then(|s| s.computations().first().and_then(|(_, c)| c.tasklet.origin.clone())),
        });
        let names = members.iter().map(|m| units.all[*m].name.clone()).collect();
        Refusal { transform: self.name(), site, units: names, reason, origin }
    }

    /// The kernel of these units.
    fn build(&self, program: &Sdfg, (id, state): (StateId, &State), units: &UnitGraph, members: &Members) -> Result<Found, Reason> {
        for (n, between) in units.all.iter().enumerate().filter(|(n, _)| !members.contains(n)) {
            if members.iter().any(|m| between.before.contains(*m)) && members.iter().any(|m| units.all[*m].before.contains(n)) {
                return Err(Reason::Cycle { between: between.name.clone() });
            }
        }
        let nodes: Vec<NodeId> = members.iter().map(|m| units.all[*m].node).collect();
        let (mut around, mut scopes, names) = expanded(program, state, &nodes)?;
        align(&mut scopes);
        let mut all: Vec<Statement> = scopes.into_iter().flatten().collect();
        unify_copies(&mut all, &around);
        let read = |data: &str| all.iter().any(|s| s.computation.reads.iter().any(|(_, m)| m.data == data));
        // Outer indices are those of what leaves the kernel.
        let mut outer: BTreeSet<String> = BTreeSet::new();
        for statement in all.iter().filter(|s| s.computation.writes.iter().all(|(_, m)| !read(&m.data))) {
            let reduced = statement.reduced();
            outer.extend(statement.indices.iter().map(|i| i.name.clone()).filter(|name| !reduced.contains(name)));
        }
        for data in all.iter().flat_map(|s| &s.computation.writes).map(|(_, m)| &m.data).filter(|data| read(data)) {
            if program.containers.contains_key(data) && needed_outside(program, id, &nodes, data) {
                let by = units.all.iter().enumerate().find(|(n, u)| !members.contains(n) && u.reads.contains(data));
                let reader = by.map_or_else(|| "the caller".to_string(), |(_, u)| format!("`{}`", u.name));
                let contraction = names.last().cloned().unwrap_or_default();
                return Err(Reason::Stored { data: data.clone(), contraction, reader });
            }
        }
        let windowed = window::windowed(all, &outer, &mut around)?;
        // What a layer sums over stays inside.
        let summed: BTreeSet<String> = windowed.statements.iter().flat_map(|s| s.reduced()).collect();
        let shared: Vec<_> = shared_indices(&windowed.statements).into_iter().filter(|i| !summed.contains(&i.name)).collect();
        let shared_names: BTreeSet<String> = shared.iter().map(|i| i.name.clone()).collect();
        let lost = windowed.windows.iter().find(|w| !shared_names.contains(&w.outer));
        if windowed.windows.is_empty() && !windowed.statements.iter().any(reads_windows) {
            return Err(Reason::Unsupported("no layer reads windows of another: composition takes what has no halo".into()));
        }
        if shared.is_empty() || lost.is_some() {
            let space = |s: Option<&Statement>| {
                s.map_or_else(String::new, |s| s.indices.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(","))
            };
            let (first_name, second_name) = (names.first().cloned().unwrap_or_default(), names.last().cloned().unwrap_or_default());
            let (first, last) = (space(windowed.statements.first()), space(windowed.statements.last()));
            return Err(Reason::NoSharedIndex { first: first_name, first_space: first, second: second_name, second_space: last });
        }
        let model = Model::new(&windowed.statements, &windowed.windows, &shared_names, &around)
            .ok_or_else(|| Reason::Unsupported("a size has no value".into()))?;
        // An index of the weights that every layer walks, as channels are if the last layer is depthwise, gives no vectors in tiles.
        let of_weights = |name: &String| {
            let reads = windowed.statements.iter().flat_map(|s| &s.computation.reads);
            let mentions = |m: &sdfg::Memlet, name: &str| m.subset.iter().any(|r| range_symbols(r).iter().any(|s| s == name));
            reads.into_iter().any(|(_, m)| mentions(m, name) && !model.tiled().iter().any(|place| mentions(m, place)))
        };
        if let Some(index) = model.single().iter().find(|name| model.is_walked(name) && of_weights(name)) {
            let what = format!("every layer walks `{index}`, as depthwise layers walk channels: tiles of places have no vectors of it");
            return Err(Reason::Unsupported(what));
        }
        let levels = model.levels();
        if levels > self.levels {
            return Err(Reason::Levels { levels, limit: self.levels });
        }
        let cost = match model.best(self.on_chip) {
            Ok(cost) => cost,
            Err(least) => return Err(Reason::TooLarge { bytes: least.on_chip, limit: self.on_chip }),
        };
        if cost.bytes.0 >= 0 {
            return Err(Reason::TilesMoveMore { tile: cost.tile_text(), recompute: cost.recompute, bytes: cost.bytes });
        }
        if cost.recompute.0 > self.recompute.0 {
            return Err(Reason::Recompute { tile: cost.tile_text(), recompute: cost.recompute, limit: self.recompute, bytes: cost.bytes });
        }
        let kept = |_: &str| false;
        let names_of_windows: BTreeSet<String> = windowed.windows.iter().map(|w| w.data.clone()).collect();
        let label = names.last().cloned().unwrap_or_default();
        let summary = self.summary(&names, &windowed.windows, &cost, levels, sets::mode(units, members), &around);
        let rebuilt = rebuild_windows(&label, windowed.statements.clone(), &shared, &kept, &names_of_windows, &around)
            .ok_or_else(|| Reason::Unsupported("an intermediate result is subscripted in a way that has no local form".into()))?;
        let edits = vec![Edit { state: id, remove: nodes.clone(), insert: vec![Unit::Scope(rebuilt.scope)] }];
        let patch = Patch { summary, edits, containers: rebuilt.containers, drop: vec![], dims: windowed.dims };
        let of = |contraction: bool| {
            let is = move |m: &&usize| !contraction || units.all[**m].kind == crate::unit_graph::Kind::Contraction;
            members.iter().filter(is).map(|m| units.all[*m].name.clone()).collect::<Vec<String>>()
        };
        let kinds = if members.len() > of(true).len() {
            BTreeSet::from([FusionKind::Chain, FusionKind::Epilogue])
        } else {
            BTreeSet::from([FusionKind::Chain])
        };
        let site = Site { state: id, units: nodes };
        Ok(Found { cluster: Cluster { site, name: label, members: of(false), contractions: of(true), kinds }, patch })
    }

    /// What the patch does, with its halo, its recompute, and its bytes on chip.
    fn summary(&self, names: &[String], windows: &[DimWindow], cost: &TileCost, levels: usize, mode: Mode, program: &Sdfg) -> String {
        let mut halos: Vec<String> = Vec::new();
        for window in windows {
            let extent = window.extent.eval(&program.sizes).unwrap_or(1);
            let halo = extent - window.stride;
            if halo > 0 && !halos.iter().any(|h| h.starts_with(&format!("{} along {} of", halo, window.outer))) {
                halos.push(format!("{halo} along {} of `{}`", window.outer, window.data));
            }
        }
        let halo = if halos.is_empty() { "none".to_string() } else { halos.join(", ") };
        format!(
            "hand over on chip `{}` ({mode}, {levels} level{}): halo {halo}; in tiles of {}: recompute {:.1}%, {} bytes on chip, {}",
            names.join("` with `"),
            if levels == 1 { "" } else { "s" },
            cost.tile_text(),
            cost.recompute,
            cost.on_chip,
            cost.bytes,
        )
    }
}
