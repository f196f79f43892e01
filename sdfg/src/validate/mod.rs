//! Validation: everything that is wrong with a program, at once, each error located.
//!
//! # Checked
//! - **Names**: dims, containers, indices and symbols that are used are declared or bound; units have distinct names.
//! - **Sizes**: bound sizes are not negative and fit in 64 bits. Zero is a size like any other.
//! - **Views**: as many dims as the container viewed, inside it, and not a view of themselves.
//! - **Scopes**: entries and exits come in pairs, every node stands in a map entry that exists, no edge crosses a scope.
//! - **Order**: states and scopes have no cycle of edges.
//! - **Connectors**: those of tasklets, library nodes and maps are the ends of their edges, each where it must be.
//! - **Memlets**: as many ranges as the container has dims; in bounds for all iterations unless there is a fill, where
//!   the subscripts are affine in the indices and the sizes are bound.
//! - **Conflicts**: a write that lacks an index around it has a combine.
//! - **Dataflow**: what is read was given or written before; a heap container has one writer; what is given is not written.
//! - **Boundaries**: nested programs have all symbols bound.
//!
//! # Not checked
//! Overlap of views written by different units; bounds of subscripts that are not affine (floor division, modulo,
//! minimum, maximum) and of sizes not yet bound; that volumes and outer memlets are those that propagation gives; that
//! an operator's operands have the shapes it wants beyond their bounds; order between states that form a loop; order
//! within a sequential map, which may read what an earlier iteration wrote.

mod connectors;
mod dataflow;
mod declarations;
mod memlets;
mod structure;

use crate::data::Origin;
use crate::graph::Sdfg;
use crate::node::{EdgeId, Node, NodeId, StateId};
use crate::state::State;
use std::collections::BTreeSet;
use std::fmt;

/// The kind of an error: the headings above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Name,
    Size,
    View,
    Scope,
    Cycle,
    Connector,
    Rank,
    Bounds,
    Conflict,
    Dataflow,
    Boundary,
}

/// A node or an edge of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphElement {
    Node(NodeId),
    Edge(EdgeId),
}

/// One error: where it is and what to do about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Diagnostic {
    pub kind: Kind,
    /// Name of the program; of a nested one, with the names of those around it.
    pub program: String,
    pub state: Option<StateId>,
    pub place: Option<GraphElement>,
    /// The container concerned.
    pub data: Option<String>,
    /// Where the recipe asked for it, if it did.
    pub origin: Option<Origin>,
    /// A full sentence.
    pub message: String,
}

/// `mha, s0, e3 (x): sentence`, with the place in the recipe on a second line.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        if let Some(state) = self.state {
            write!(f, ", {state}")?;
        }
        match self.place {
            Some(GraphElement::Node(node)) => write!(f, ", {node}")?,
            Some(GraphElement::Edge(edge)) => write!(f, ", {edge}")?,
            None => {}
        }
        if let Some(data) = &self.data {
            write!(f, " ({data})")?;
        }
        write!(f, ": {}", self.message)?;
        if let Some(origin) = &self.origin {
            write!(f, "\n  from: {origin}")?;
        }
        Ok(())
    }
}

/// All errors of a program; none means that it is valid.
pub fn validate(program: &Sdfg) -> Vec<Diagnostic> {
    validate_inside(program, String::new(), &BTreeSet::new())
}

/// A nested program: `given` are the symbols that the outside binds, whose values are not known here.
fn validate_inside(program: &Sdfg, path: String, given: &BTreeSet<String>) -> Vec<Diagnostic> {
    let mut bound: BTreeSet<String> = program.sizes.keys().chain(given).cloned().collect();
    bound.extend(program.transitions().flat_map(|(_, _, t)| t.assignments.iter().map(|(symbol, _)| symbol.clone())));
    let mut report = Report { program, path: path + &program.name, bound, found: Vec::new() };
    declarations::check(&mut report);
    for (id, state) in program.states() {
        // Scopes that do not hold together would give follow-up errors in everything that walks them.
        if structure::check(&mut report, id, state) {
            connectors::check(&mut report, id, state);
            memlets::check(&mut report, id, state);
        }
    }
    dataflow::check(&mut report);
    report.found
}

struct Report<'a> {
    program: &'a Sdfg,
    path: String,
    /// Symbols that have or will have a value in the whole program.
    bound: BTreeSet<String>,
    found: Vec<Diagnostic>,
}

impl Report<'_> {
    /// An error in a declaration.
    fn declaration(&mut self, kind: Kind, data: Option<&str>, message: String) {
        let origin = data.and_then(|d| self.program.containers.get(d)).and_then(|c| c.origin.clone());
        let (program, data) = (self.path.clone(), data.map(String::from));
        self.found.push(Diagnostic { kind, program, state: None, place: None, data, origin, message });
    }

    fn node(&mut self, kind: Kind, at: (StateId, &State), node: NodeId, message: String) {
        let origin = origin(at.1, node);
        let program = self.path.clone();
        self.found.push(Diagnostic {
            kind,
            program,
            state: Some(at.0),
            place: Some(GraphElement::Node(node)),
            data: None,
            origin,
            message,
        });
    }

    fn edge(&mut self, kind: Kind, at: (StateId, &State), edge: EdgeId, message: String) {
        let found = at.1.edges().find(|(e, ..)| *e == edge);
        let origin = found.and_then(|(_, from, to, _)| origin(at.1, to).or_else(|| origin(at.1, from)));
        let data = found.map(|(.., e)| e.memlet.data.clone());
        let program = self.path.clone();
        self.found.push(Diagnostic { kind, program, state: Some(at.0), place: Some(GraphElement::Edge(edge)), data, origin, message });
    }
}

fn origin(state: &State, node: NodeId) -> Option<Origin> {
    match state.node(node) {
        Some(Node::Tasklet(tasklet)) => tasklet.origin.clone(),
        Some(Node::Library(library)) => library.origin.clone(),
        _ => None,
    }
}

/// Maps around a point of a state from the innermost to the outermost. Ends where a malformed chain repeats.
fn around(state: &State, scope: Option<NodeId>) -> Vec<NodeId> {
    let mut chain = Vec::new();
    let mut next = scope;
    while let Some(entry) = next
        && !chain.contains(&entry)
    {
        chain.push(entry);
        next = state.vertex(entry).and_then(|v| v.scope);
    }
    chain
}

/// The scope that an edge out of a node runs in.
fn scope_after(state: &State, node: NodeId) -> Option<NodeId> {
    match state.vertex(node) {
        Some(v) if matches!(v.node, Node::MapEntry(_)) => Some(node),
        found => found.and_then(|v| v.scope),
    }
}

/// The scope that an edge into a node runs in.
fn scope_before(state: &State, node: NodeId) -> Option<NodeId> {
    match state.vertex(node) {
        Some(crate::node::Vertex { node: Node::MapExit { entry }, .. }) => Some(*entry),
        found => found.and_then(|v| v.scope),
    }
}
