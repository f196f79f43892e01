//! Computes a unit a second time for the pattern that holds it, so that the pattern reads no result of another kernel.
//!
//! ```text
//! e = exp(x);  a = e + y;  b = e * z   →   e.again = exp(x);  e = exp(x);  a = e.again + y;  b = e * z
//! ```
//!
//! Source: Korch (Hu et al., "Optimal Kernel Orchestration for Tensor Programs", ASPLOS 2024), whose kernels may share primitives.

use crate::patch::{Edit, Patch};
use crate::refusal::Reason;
use sdfg::rename::NameKind;
use sdfg::{Container, NodeId, Role, Sdfg, StateId, Storage, Unit};
use std::collections::BTreeSet;

/// The name of a unit's clone for the pattern with this number.
pub fn clone_name(unit: &str, pattern: usize) -> String {
    format!("{unit}.again{pattern}")
}

/// The patch that computes a unit once more, under the name that [`clone_name`] gives, for those of its readers that are members of a
/// pattern; `None` where it has no other readers, and the pattern may have it as it is.
///
/// # Errors
/// Why it cannot be computed twice.
pub fn again(program: &Sdfg, state: StateId, unit: NodeId, members: &[NodeId], pattern: usize) -> Result<Option<Patch>, Reason> {
    let refused = |why: &str| Err(Reason::Unsupported(why.into()));
    let Some(of) = program.state(state) else { return refused("the state does not exist") };
    let (_, writes) = of.boundary(unit);
    let made: BTreeSet<&str> = writes.iter().map(|memlet| memlet.data.as_str()).collect();
    let Some(data) = made.first().filter(|_| made.len() == 1).map(|data| data.to_string()) else {
        return refused("it has several results");
    };
    let Some(container) = program.containers.get(&data) else { return refused("its result is no container") };
    let Some(scope) = of.scope(unit) else { return refused("it is no map") };
    let mut locals = scope
        .computations()
        .into_iter()
        .flat_map(|(_, c)| c.reads.iter().chain(&c.writes).map(|(_, m)| m.data.clone()).collect::<Vec<_>>());
    if locals.any(|name| program.containers.get(&name).is_none_or(|c| c.storage != Storage::Heap)) {
        return refused("it has results that stay within it");
    }
    let reads = |node: &NodeId| of.boundary(*node).0.iter().any(|memlet| memlet.data == data);
    let all: Vec<NodeId> = of.units().into_iter().map(|(node, _)| node).filter(|node| *node != unit && reads(node)).collect();
    let (inside, outside): (Vec<NodeId>, Vec<NodeId>) = all.into_iter().partition(|node| members.contains(node));
    let needed =
        container.role != Role::Transient || program.states().any(|(id, other)| id != state && other.access(&data, None).is_some());
    if outside.is_empty() && !needed {
        return Ok(None);
    }
    if inside.is_empty() {
        return refused("no other unit of the pattern reads it");
    }
    let name = program.fresh_name(&clone_name(&data, pattern));
    let label = clone_name(&scope.map.label, pattern);
    let renamed = |unit: &Unit, title: Option<&str>| {
        unit.renamed(&mut |kind, own: &str| match kind {
            NameKind::Container if own == data => name.clone(),
            NameKind::Title if title == Some(own) => label.clone(),
            _ => own.to_string(),
        })
    };
    let whole = Unit::Scope(scope.clone());
    let mut insert: Vec<Unit> = renamed(&whole, Some(&scope.map.label)).into_iter().collect();
    for node in &inside {
        let reader = of.scope(*node).map(Unit::Scope).or_else(|| of.operation(*node).map(Unit::Operation));
        let Some(reader) = reader.and_then(|reader| renamed(&reader, None)) else { return refused("a reader is no unit") };
        insert.push(reader);
    }
    let clone = Container { name: name.clone(), role: Role::Transient, ..container.clone() };
    Ok(Some(Patch {
        summary: format!("compute `{data}` again as `{name}`"),
        edits: vec![Edit { state, remove: inside, insert }],
        containers: vec![clone],
        drop: vec![],
        dims: vec![],
    }))
}
