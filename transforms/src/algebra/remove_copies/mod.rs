//! Copies removed: parts of a joined tensor are written in place, and slices and padded tensors are read where they lie.
//!
//! ```text
//! a[n,o] = relu(s[n,o])                                       y[n,o]    = relu(s[n,o])
//! b[n,p] = relu(t[n,p])                                  →    y[n,p+64] = relu(t[n,p])
//! y[n,e] = where(e < 64, a[n,e else 0], b[n,e-64 else 0])
//!
//! u[n,h] = x[n,h-1 else 0]
//! z[n,p] = max(u[n,2*p+r], over: r)                      →    z[n,p] = max(x[n,2*p+r-1 else 0], over: r)
//! ```
//!
//! A *join* is an element-wise operation whose code compares one of its indices with sizes. Cut at these sizes, it is one operation a part.
//! A part that copies all of a container disappears: the operations that write the container write the slice of the joined one, and the
//! other operations that read the container read the slice. The other parts become operations of their own, which fusion puts into the
//! kernels that make what they copy. A *copy* stores elements of another container at shifted or strided places; its readers read that
//! container instead.
//!
//! *Legal when* the parts cover the joined container for all sizes; a container that disappears is transient, of the joined one's element
//! type, and made by operations that can write a slice; and no part is computed from another part. A copy's readers must subscript it by
//! sums of indices, and find what the copy has outside the container: its fill.
//! *Moves less because* each element is written once, in its place, and read where it lies.
//! *Not handled*: joins along several dims at once, copies through floor division (upsampling), reductions that write slices (fusion
//! combines them in a register and writes the slice from there).

mod copy;
mod join;
mod subscripts;

use crate::pass::Pattern;
use crate::patch::{Edit, Patch};
use crate::refusal::{Reason, Refusal, Site};
use sdfg::{Container, NodeId, Op, Operation, Role, Sdfg, StateId, Storage, Unit};

/// Removes one join or copy after another.
#[derive(Clone, Copy, Debug, Default)]
pub struct RemoveCopies;

impl Pattern for RemoveCopies {
    fn name(&self) -> &'static str {
        "remove copies"
    }

    fn sites(&self, program: &Sdfg) -> Vec<Site> {
        let all = Operations::of(program);
        let found = all.0.iter().filter(|at| join::is_join(&at.operation, program) || copy::is_copy(&at.operation, program));
        found.map(|at| Site { state: at.state, units: vec![at.node] }).collect()
    }

    fn plan(&self, program: &Sdfg, site: &Site) -> Result<Patch, Box<Refusal>> {
        let all = Operations::of(program);
        let at = all.0.iter().find(|at| at.state == site.state && site.units.first() == Some(&at.node));
        let refuse = |why: String| {
            Box::new(Refusal {
                transform: Pattern::name(self),
                site: site.clone(),
                units: at.iter().map(|at| at.operation.name.clone()).collect(),
                reason: Reason::Unsupported(why),
                origin: at.and_then(|at| at.operation.origin.clone()),
            })
        };
        let Some(at) = at else { return Err(refuse("there is no such operation".into())) };
        let planned = if join::is_join(&at.operation, program) { join::plan(program, &all, at) } else { copy::plan(program, &all, at) };
        planned.map_err(refuse)
    }
}

/// An operation and its place.
pub(super) struct Placed {
    state: StateId,
    node: NodeId,
    operation: Operation,
}

/// Every operation of a program, in execution order.
pub(super) struct Operations(Vec<Placed>);

impl Operations {
    fn of(program: &Sdfg) -> Self {
        let operation = |(state, node, unit)| match unit {
            Unit::Operation(operation) => Some(Placed { state, node, operation }),
            _ => None,
        };
        Operations(program.units().into_iter().filter_map(operation).collect())
    }

    fn writers<'a>(&'a self, data: &'a str) -> impl Iterator<Item = &'a Placed> {
        self.0.iter().filter(move |at| at.operation.outputs.iter().any(|o| o.data == data))
    }

    fn readers<'a>(&'a self, data: &'a str) -> impl Iterator<Item = &'a Placed> {
        self.0.iter().filter(move |at| at.operation.inputs.iter().any(|o| o.data == data))
    }
}

/// The rewrite of single operations: what stands in the place of each.
#[derive(Default)]
struct Changes(Vec<(StateId, NodeId, Vec<Operation>)>);

impl Changes {
    /// What stands in the place of an operation, to be changed further.
    fn at(&mut self, placed: &Placed) -> &mut Vec<Operation> {
        let known = self.0.iter().position(|(state, node, _)| (*state, *node) == (placed.state, placed.node));
        let n = known.unwrap_or_else(|| {
            self.0.push((placed.state, placed.node, vec![placed.operation.clone()]));
            self.0.len() - 1
        });
        &mut self.0[n].2
    }

    /// The patch, in the execution order of `all`.
    fn patch(self, all: &Operations, summary: String, drop: Vec<String>) -> Patch {
        let mut edits: Vec<Edit> = Vec::new();
        for placed in &all.0 {
            let Some((.., with)) = self.0.iter().find(|(state, node, _)| (*state, *node) == (placed.state, placed.node)) else { continue };
            if edits.last().is_none_or(|edit| edit.state != placed.state) {
                edits.push(Edit { state: placed.state, remove: vec![], insert: vec![] });
            }
            let Some(edit) = edits.last_mut() else { continue };
            edit.remove.push(placed.node);
            edit.insert.extend(with.iter().cloned().map(Unit::Operation));
        }
        Patch { summary, edits, containers: vec![], drop, dims: vec![] }
    }
}

/// Why a container cannot disappear, if it cannot: others than the program's operations see it.
fn is_own<'a>(program: &'a Sdfg, data: &str) -> Result<&'a Container, String> {
    let container = program.containers.get(data).ok_or_else(|| format!("`{data}` is not declared"))?;
    if container.role != Role::Transient {
        return Err(format!(
            "`{data}` is {}",
            if container.role == Role::Input { "given by the caller" } else { "no intermediate result" }
        ));
    }
    let viewed = program.containers.values().any(|c| c.view.as_ref().is_some_and(|v| v.of == data));
    if container.view.is_some() || viewed {
        return Err(format!("`{data}` is a view or is viewed"));
    }
    if container.storage != Storage::Heap {
        return Err(format!("`{data}` is on chip"));
    }
    let nested = program.units().into_iter().any(|(_, _, unit)| !matches!(unit, Unit::Operation(_)));
    if nested {
        return Err("the program has units that are no operations".into());
    }
    Ok(container)
}

/// Whether an operator's subscripts may be any sums of indices.
fn takes_shifted(operation: &Operation) -> bool {
    matches!(operation.op, Op::Elementwise { .. } | Op::Contraction { .. } | Op::Reduce { .. })
}

/// Whether a rewritten program runs at all: none of its units waits for its own result.
fn runs(program: &Sdfg, patch: &Patch) -> bool {
    let mut changed = program.clone();
    patch.clone().apply(&mut changed).is_ok() && changed.states().all(|(_, state)| state.topological(None).is_some())
}
