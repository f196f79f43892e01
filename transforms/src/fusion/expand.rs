//! Expansion: an operation that is no contraction becomes the maps that it means, as one kernel where its iteration
//! spaces allow.
//!
//! ```text
//! y[i,k] = softmax x[i,k] over k      →      map i=0:n { map k: y.max max= x[i,k]; map k: …; map k: y[i,k] = … }
//! ```
//!
//! *Legal* always: an operation means its expansion.
//! *Moves less because* intermediates of the expansion become local to the kernel. One operation, one kernel: this is
//! the unfused program that fusion is compared with.
//! *Not handled*: contractions and scatters stay, they have kernels of their own.
//! *Source*: "Data Movement Is All You Need", §IV-A.

use crate::fusion::greedy::fuse_within;
use crate::pass::{Loops, Pattern};
use crate::patch::{Edit, Patch};
use crate::refusal::{Reason, Refusal, Site};
use crate::unit_graph::needed_outside;
use sdfg::{Class, Node, NodeId, Op, Sdfg, State, StateId, Unit};

pub struct Expand;

impl Pattern for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn is_optional(&self) -> bool {
        false
    }

    fn loops(&self) -> Loops {
        Loops::Inside
    }

    fn sites_stay(&self) -> bool {
        true
    }

    fn sites(&self, program: &Sdfg) -> Vec<Site> {
        let expandable = |node: &Node| matches!(node, Node::Library(l) if !matches!(l.op, Op::Contraction { .. } | Op::Scatter { .. }));
        let of = |(state, s): (StateId, &State)| -> Vec<Site> {
            let nodes = s.topological(None).unwrap_or_default();
            nodes.into_iter().filter(|n| s.node(*n).is_some_and(expandable)).map(|n| Site { state, units: vec![n] }).collect()
        };
        program.states().flat_map(of).collect()
    }

    fn plan(&self, program: &Sdfg, site: &Site) -> Result<Patch, Box<Refusal>> {
        let refuse = |reason: Reason| Box::new(Refusal { transform: "expand", site: site.clone(), units: vec![], reason, origin: None });
        let found = program.state(site.state).zip(site.units.first()).and_then(|(s, node)| Some((node, s.operation(*node)?)));
        let Some((node, operation)) = found else {
            return Err(refuse(Reason::Unsupported("there is no operation here".into())));
        };
        if operation.class() == Class::Contraction {
            return Err(refuse(Reason::Contraction { unit: operation.name.clone() }));
        }
        let expansion = operation.expand(program).map_err(|e| refuse(Reason::Unsupported(e.to_string())))?;
        let summary = format!("expand `{}`", operation.name);
        let edit = |insert: Vec<Unit>| vec![Edit { state: site.state, remove: vec![*node], insert }];
        let apart = || Patch {
            summary: summary.clone(),
            edits: edit(expansion.scopes.iter().cloned().map(Unit::Scope).collect()),
            containers: expansion.containers.clone(),
            drop: vec![],
            dims: vec![],
        };
        if expansion.scopes.len() < 2 {
            return Ok(apart());
        }
        // The operation's surroundings: what it touches, with the scopes in its place.
        let mut around = Sdfg::new(&program.name);
        (around.sizes, around.dims) = (program.sizes.clone(), program.dims.clone());
        let touched = operation.inputs.iter().chain(&operation.outputs).map(|operand| operand.data.as_str());
        for container in touched.filter_map(|data| program.containers.get(data)) {
            around.add_container(container.clone());
        }
        expansion.containers.iter().for_each(|container| around.add_container(container.clone()));
        let state = around.add_state("expanded");
        let mut scopes = Vec::new();
        for scope in &expansion.scopes {
            let made = around.insert_scope(state, scope).map_err(|e| refuse(Reason::Unsupported(e.to_string())))?;
            scopes.push((made, scope.clone()));
        }
        let needed = |data: &str| needed_outside(program, site.state, std::slice::from_ref(node), data);
        let own = |data: &str| expansion.containers.iter().any(|container| container.name == data);
        let nodes: Vec<NodeId> = scopes.iter().map(|(node, _)| *node).collect();
        let kept = |data: &str| needed_outside(&around, state, &nodes, data) || (!own(data) && needed(data));
        match fuse_within(&around, state, &scopes, &kept) {
            Ok(patch) => {
                let mut insert: Vec<Unit> = patch.edits.into_iter().flat_map(|e| e.insert).collect();
                for unit in &mut insert {
                    if let Unit::Scope(scope) = unit {
                        scope.map.label = operation.name.clone();
                    }
                }
                // Containers of the expansion that the fusion left alone must exist as well.
                let replaced: Vec<String> = patch.containers.iter().map(|c| c.name.clone()).collect();
                let untouched = expansion.containers.iter().filter(|c| !replaced.contains(&c.name)).cloned();
                let containers = untouched.chain(patch.containers).collect();
                Ok(Patch { summary, edits: edit(insert), containers, drop: vec![], dims: vec![] })
            }
            Err(_) => Ok(apart()),
        }
    }
}
