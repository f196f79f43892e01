//! What stands at the vertices of a state, and the edges between them.

use crate::data::{Container, Origin, Role, Storage};
use crate::graph::Sdfg;
use crate::library::Op;
use crate::memlet::{Combine, Fill, Memlet};
use crate::scalar::Scalar;
use crate::symbol::Expr;
use indexmap::{IndexMap, IndexSet};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Handle of a node within its state; prints as in the text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub u32);

/// Handle of an edge within its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EdgeId(pub u32);

/// Handle of a state within its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StateId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl fmt::Display for EdgeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}

impl fmt::Display for StateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

/// Which half of a training step something belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    Forward,
    Backward,
}

/// How the iterations of an index relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexKind {
    /// Any order, any number at once.
    Independent,
    /// Any order; every write under it has a write-conflict resolution.
    Reduction,
    /// In order; containers written in one iteration are read in the next.
    Sequential,
}

/// One index of a map: `start`, `start+step`, … below `stop`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Index {
    pub name: String,
    /// The dim it runs along.
    pub dim: String,
    pub start: Expr,
    pub stop: Expr,
    pub step: Expr,
    pub kind: IndexKind,
}

impl Index {
    /// The whole extent of a dim.
    pub fn over(name: impl Into<String>, dim: impl Into<String>, size: Expr, kind: IndexKind) -> Self {
        Index { name: name.into(), dim: dim.into(), start: Expr::Int(0), stop: size, step: Expr::Int(1), kind }
    }

    /// Number of iterations.
    pub fn count(&self) -> Expr {
        crate::memlet::Range::Span { start: self.start.clone(), stop: self.stop.clone(), step: self.step.clone() }.count()
    }
}

/// An iteration space. The order of indices carries no meaning unless one is sequential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// Name of the kernel when the map is at the top level of a state.
    pub label: String,
    pub indices: Vec<Index>,
}

/// Scalar code behind connectors: one expression for each output connector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tasklet {
    pub name: String,
    pub code: Vec<(String, Scalar)>,
    /// The operation (by name) that this tasklet is part of: what reports and refusals speak of.
    pub operator: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub origin: Option<Origin>,
}

/// One side of a library node: a connector and how it is subscripted by the node's own indices.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Port {
    pub connector: String,
    pub subscripts: Vec<Expr>,
    /// The value of an element that the subscripts place outside the container; only inputs have one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fill: Option<Fill>,
}

/// An operator with a name: meaning by expansion, implementation chosen later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Library {
    /// Unique in the program, e.g. `qq.dot`.
    pub name: String,
    pub op: Op,
    /// Index → dim it runs along.
    pub indices: IndexMap<String, String>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub pass: Direction,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub origin: Option<Origin>,
}

/// A program inside a program. Containers of the same name as a boundary edge's memlet are shared with the outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nested {
    pub name: String,
    pub program: Box<Sdfg>,
    /// Inner symbol → outer expression.
    pub symbols: IndexMap<String, Expr>,
    /// How often it runs and on what; once, on whole containers, without one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub repeat: Option<Loop>,
}

/// A nested program that runs once for each value of an index, one after the other: the body of a loop over time.
///
/// Inside, a container has no dim for the index. `h[t-1]` is the input `h.before` there, a slice of `h`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loop {
    /// The symbol that [`Slice::at`] is an expression of. The program inside does not mention it.
    pub index: String,
    /// The dim of the outside that it runs along, whole.
    pub dim: String,
    /// Whether it runs from the last value down to 0.
    pub reversed: bool,
    /// Inner container → the part of an outer one that it stands for. One that is not named here is an outer container as a whole, or
    /// a transient of the body.
    pub slices: IndexMap<String, Slice>,
}

/// The part of a container that the body of a loop sees in one iteration.
///
/// A whole container that the loop makes itself is a *state*: the body sees what the last iteration has left there, and in the first one
/// the fill. It is held for one time; what the body makes of it bears the outer container's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slice {
    pub data: String,
    /// The dimension that the body does not see, and the place along it; the whole container without one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub at: Option<(usize, Expr)>,
    /// The value of all elements where the place lies outside of the container, and of a state before the first iteration.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fill: Option<Fill>,
}

impl Slice {
    /// Whether it is what the last iteration has left in a container that is held for one time.
    pub fn is_state(&self) -> bool {
        self.at.is_none() && self.fill.is_some()
    }
}

impl Nested {
    /// The containers that a loop holds for one time: what the body reads of the last one, and the slice that it is.
    pub fn states(&self) -> impl Iterator<Item = (&String, &Slice)> {
        self.repeat.iter().flat_map(|repeat| &repeat.slices).filter(|(_, slice)| slice.is_state())
    }

    /// The outer container that an inner one is, or is a slice of.
    pub fn outer<'a>(&'a self, inner: &'a str) -> &'a str {
        self.repeat.as_ref().and_then(|repeat| repeat.slices.get(inner)).map_or(inner, |slice| &slice.data)
    }

    /// Outer containers that it is given and that it makes, each once, by the roles inside. What a loop makes itself and reads at another
    /// time is not given.
    pub fn boundary(&self) -> (IndexSet<String>, IndexSet<String>) {
        let heap = || self.program.containers.values().filter(|c| c.storage == Storage::Heap);
        let named = |c: &Container| self.outer(&c.name).to_string();
        let made: IndexSet<String> = heap().filter(|c| matches!(c.role, Role::Output | Role::Gradient)).map(named).collect();
        let given = heap().filter(|c| matches!(c.role, Role::Input | Role::Parameter)).map(named);
        (given.filter(|data| !made.contains(data)).collect(), made)
    }

    /// Whether nothing inside is handed on: its units need nothing of one another and can be one kernel.
    pub fn is_group(&self) -> bool {
        let given = |c: &Container| c.role != Role::Transient;
        self.repeat.is_none() && self.program.states().count() == 1 && self.program.containers.values().all(given)
    }
}

// Programs have few nodes; boxing the large variants would cost every pattern more than it saves.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Node {
    /// Names a container.
    Access(String),
    Tasklet(Tasklet),
    MapEntry(Map),
    MapExit {
        entry: NodeId,
    },
    Library(Library),
    Nested(Nested),
}

/// A node and the map entry that directly holds it.
#[derive(Clone, Debug, PartialEq)]
pub struct Vertex {
    pub node: Node,
    pub scope: Option<NodeId>,
}

/// Data movement between two connectors. Access nodes have no connectors (empty string).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    pub from: String,
    pub to: String,
    pub memlet: Memlet,
}

/// One operand of an operation, bound to a container.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Operand {
    pub connector: String,
    pub data: String,
    /// One for each dim of the container, over the indices of the operation: affine, as in `2*p + r - 1`.
    pub subscripts: Vec<Expr>,
    /// The value of an element that the subscripts place outside the container; without it every element must lie inside.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fill: Option<Fill>,
}

impl Operand {
    /// An operand subscripted by plain indices.
    pub fn new(connector: &str, data: &str, indices: &[&str]) -> Self {
        Operand { connector: connector.into(), data: data.into(), subscripts: indices.iter().map(|i| Expr::sym(*i)).collect(), fill: None }
    }

    /// An operand that reads or writes what another one does, under another connector and of another container.
    pub fn like(&self, connector: &str, data: &str) -> Self {
        Operand { connector: connector.into(), data: data.into(), ..self.clone() }
    }

    /// What it moves at one point of the operation's iteration space.
    pub fn memlet(&self) -> Memlet {
        Memlet::at(&self.data, self.subscripts.iter().cloned()).with_fill(self.fill)
    }

    /// The subscripts as plain index names, if they all are and no element lies outside the container.
    pub fn index_names(&self) -> Option<Vec<&str>> {
        if self.fill.is_some() {
            return None;
        }
        self.subscripts.iter().map(Expr::as_sym).collect()
    }
}

/// A library node together with the containers it is bound to: the view that operators are written against.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    pub name: String,
    pub op: Op,
    pub indices: IndexMap<String, String>,
    pub inputs: Vec<Operand>,
    pub outputs: Vec<Operand>,
    pub pass: Direction,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub origin: Option<Origin>,
}

impl Operation {
    pub fn input(&self, connector: &str) -> Option<&Operand> {
        self.inputs.iter().find(|o| o.connector == connector)
    }

    pub fn output(&self, connector: &str) -> Option<&Operand> {
        self.outputs.iter().find(|o| o.connector == connector)
    }
}

/// A tasklet together with its memlets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Computation {
    pub tasklet: Tasklet,
    /// (input connector, memlet)
    pub reads: Vec<(String, Memlet)>,
    /// (output connector, memlet)
    pub writes: Vec<(String, Memlet)>,
}

impl Computation {
    /// The combine of its writes, if it has one.
    pub fn combine(&self) -> Option<Combine> {
        self.writes.first().and_then(|(_, m)| m.wcr)
    }
}

impl From<&Operation> for Library {
    fn from(operation: &Operation) -> Self {
        let port = |o: &Operand| Port { connector: o.connector.clone(), subscripts: o.subscripts.clone(), fill: o.fill };
        Library {
            name: operation.name.clone(),
            op: operation.op.clone(),
            indices: operation.indices.clone(),
            inputs: operation.inputs.iter().map(port).collect(),
            outputs: operation.outputs.iter().map(port).collect(),
            pass: operation.pass,
            origin: operation.origin.clone(),
        }
    }
}
