//! Units that read nothing but parameters: where these stay the same, such units run once, before the first step. Within the kernel of
//! another unit they would run in every step, and where they have fewer indices, as the factors of a batch normalization, their indices
//! are all that the kernel's points have: sums of a product behind them could neither be divided by places nor stay in registers.

use crate::refusal::Reason;
use crate::unit_graph::crossing;
use sdfg::{NodeId, Role, Sdfg, State};

/// Whether a unit of a state runs once: the program has no backward pass and replaces nothing, and the unit reads parameters alone and
/// writes what only the program sees.
pub(in crate::fusion) fn runs_once(program: &Sdfg, state: &State, node: NodeId) -> bool {
    let trains = program.states().any(|(_, s)| s.name == "backward") || program.containers.values().any(|c| c.replaces.is_some());
    let role = |data: &String| program.containers.get(data).map(|c| c.role);
    let (reads, writes) = crossing(state, node);
    let all = |names: &std::collections::BTreeSet<String>, wanted: Role| names.iter().all(|data| role(data) == Some(wanted));
    !trains && !reads.is_empty() && all(&reads, Role::Parameter) && all(&writes, Role::Transient)
}

/// Refuses to make one kernel of units that run once and units that run in every step.
///
/// # Errors
/// [`Reason::RunsOnce`].
pub(in crate::fusion) fn all_or_none(program: &Sdfg, state: &State, units: &[(NodeId, &str)]) -> Result<(), Reason> {
    let (once, each): (Vec<_>, Vec<_>) = units.iter().partition(|(node, _)| runs_once(program, state, *node));
    match (once.first(), each.first()) {
        (Some((_, once)), Some((_, each))) => Err(Reason::RunsOnce { once: once.to_string(), each: each.to_string() }),
        _ => Ok(()),
    }
}
