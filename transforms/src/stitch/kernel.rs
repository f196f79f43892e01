//! Whether units of a program may become one kernel, by the passes that would make it.

use crate::fusion::composition::{Cluster, Composable, Composition};
use crate::fusion::greedy::fuse;
use crate::patch::Patch;
use crate::refusal::{Reason, Site};
use crate::unit_graph::{Kind, Members, kind_of};
use sdfg::{Sdfg, State, StateId};
use std::cell::OnceCell;
use std::collections::BTreeSet;

/// The units of a state, and which of them may become one kernel.
pub struct Kernels<'a> {
    program: &'a Sdfg,
    id: StateId,
    state: &'a State,
    nodes: Vec<sdfg::NodeId>,
    is_contraction: Vec<bool>,
    composable: OnceCell<Composable<'a>>,
}

impl<'a> Kernels<'a> {
    /// `nodes` are the units in execution order.
    pub fn new(program: &'a Sdfg, (id, state): (StateId, &'a State), nodes: &[sdfg::NodeId]) -> Self {
        let is_contraction = nodes.iter().map(|n| matches!(kind_of(state, *n), Some((_, Kind::Contraction)))).collect();
        Kernels { program, id, state, nodes: nodes.to_vec(), is_contraction, composable: OnceCell::new() }
    }

    fn composable(&self) -> &Composable<'a> {
        self.composable.get_or_init(|| Composable::new(self.program, (self.id, self.state)))
    }

    /// # Errors
    /// Why units, by their positions, cannot be one kernel.
    pub fn admits(&self, members: &[u32]) -> Result<(), Reason> {
        foreign_indices(self.state, &self.site(members))?;
        if self.holds_contraction(members) {
            return self.composable().admits(&members.iter().map(|m| *m as usize).collect());
        }
        scopes(self.program, &self.site(members)).map(drop)
    }

    /// The site of units, by their positions.
    pub fn site(&self, members: &[u32]) -> Site {
        Site { state: self.id, units: members.iter().map(|m| self.nodes[*m as usize]).collect() }
    }

    fn holds_contraction(&self, members: &[u32]) -> bool {
        members.iter().any(|m| self.is_contraction[*m as usize])
    }
}

/// The patch that makes one kernel of the units of a site; with the kernel's description if it holds a contraction.
///
/// # Errors
/// Why they cannot be one kernel.
pub fn kernel(program: &Sdfg, site: &Site) -> Result<(Patch, Option<Cluster>), Reason> {
    let state = program.state(site.state).ok_or_else(|| Reason::Unsupported("the state does not exist".into()))?;
    foreign_indices(state, site)?;
    if !site.units.iter().any(|n| matches!(kind_of(state, *n), Some((_, Kind::Contraction)))) {
        return scopes(program, site).map(|patch| (patch, None));
    }
    let patch = Composition::default().plan(program, site).map_err(|refusal| refusal.reason)?;
    let all: Vec<sdfg::NodeId> = crate::unit_graph::boundaries(state).iter().map(|unit| unit.node).collect();
    let members: Members = site.units.iter().filter_map(|n| all.iter().position(|node| node == n)).collect();
    Ok((patch, Some(Composable::new(program, (site.state, state)).describe(&members))))
}

/// Whether no unit of a site takes a subscript from a tensor that another one of them makes: such a tensor would lie within the kernel,
/// where subscripts do not find it.
fn foreign_indices(state: &State, site: &Site) -> Result<(), Reason> {
    let mut indices: BTreeSet<String> = BTreeSet::new();
    for node in &site.units {
        if let Some(operation) = state.operation(*node) {
            let operands = operation.inputs.iter().chain(&operation.outputs);
            operands.flat_map(|operand| &operand.subscripts).for_each(|e| e.collect_indexing_containers(&mut indices));
        } else if let Some(scope) = state.scope(*node) {
            for (_, computation) in scope.computations() {
                let memlets = computation.reads.iter().chain(&computation.writes);
                memlets.flat_map(|(_, m)| m.point().into_iter().flatten()).for_each(|e| e.collect_indexing_containers(&mut indices));
            }
        }
    }
    let made = site.units.iter().flat_map(|node| state.boundary(*node).1).find(|memlet| indices.contains(&memlet.data));
    made.map_or(Ok(()), |m| Err(Reason::Unsupported(format!("`{}` is an index that the kernel would make itself", m.data))))
}

/// The patch that fuses scopes.
fn scopes(program: &Sdfg, site: &Site) -> Result<Patch, Reason> {
    let state = program.state(site.state).ok_or_else(|| Reason::Unsupported("the state does not exist".into()))?;
    let scope = |node: &sdfg::NodeId| {
        let scope = state.scope(*node).ok_or_else(|| Reason::Unsupported(format!("{node} is no scope")))?;
        Ok((*node, scope))
    };
    let found = site.units.iter().map(scope).collect::<Result<Vec<_>, Reason>>()?;
    fuse(program, site.state, &found)
}
