//! The kernels that composition has found, and those that it has still to make.

use super::build::build;
use super::kind::FusionKind;
use crate::patch::{Change, Patch};
use crate::refusal::{Reason, Refusal, Site};
use crate::unit_order::UnitOrder;
use sdfg::{NodeId, Sdfg};
use std::collections::{BTreeSet, VecDeque};

/// A kernel to be: its units, and the name that it will have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub site: Site,
    pub name: String,
    /// Names of the units.
    pub members: Vec<String>,
    /// Names of those that are contractions.
    pub contractions: Vec<String>,
    /// The roles of the other units.
    pub kinds: BTreeSet<FusionKind>,
}

/// The kernels of a program that are still to be made, and the refusals so far.
pub(crate) struct Clusters {
    pub(super) waiting: VecDeque<Cluster>,
    /// The units of each state: a kernel that was made may need what another one computes, and the other way round.
    pub(super) units: Vec<UnitOrder>,
    pub(super) refused: Vec<Refusal>,
    /// Of neighbours that stay apart.
    pub(super) apart: Vec<Refusal>,
}

impl Clusters {
    /// Learns what a patch has replaced.
    pub(crate) fn changed(&mut self, program: &Sdfg, change: &Change) {
        if let (Some(units), Some(state)) = (self.units.iter_mut().find(|units| units.id == change.state), program.state(change.state)) {
            units.replace(program, state, &change.removed, &change.inserted);
        }
    }

    /// The patch that makes a kernel of a cluster that was found in the program as it was given.
    pub(super) fn patch(&self, program: &Sdfg, site: &Site) -> Result<Patch, Reason> {
        let units = self.units.iter().find(|units| units.id == site.state).zip(program.state(site.state));
        let (units, state) = units.ok_or_else(|| Reason::Unsupported("the state does not exist".into()))?;
        let slot = |node: &NodeId| units.slot(*node).ok_or_else(|| Reason::Unsupported(format!("there is no unit {node}")));
        let mut members = site.units.iter().map(slot).collect::<Result<Vec<_>, _>>()?;
        // Patches may have changed the order.
        members.sort_unstable_by_key(|member| units.place(*member));
        let nodes: Vec<NodeId> = members.iter().map(|member| units.unit(*member).node).collect();
        match units.first_outside(&members) {
            Some(between) => Err(Reason::Cycle { between: units.unit(between).name.clone() }),
            None => build(program, (site.state, state), &nodes),
        }
    }
}
