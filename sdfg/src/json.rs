//! The JSON form of a program: for plans, stores and other tools. Reading gives back exactly what was written, handles
//! included.
//!
//! Symbolic integers and scalar code are strings in the notation of the text form ([`crate::text`]), which JSON's
//! numbers could not replace: they have no infinity. Handles are plain numbers. Nested programs have the same shape as
//! outer ones.

use crate::assemble;
use crate::data::Container;
use crate::graph::{Sdfg, Transition};
use crate::memlet::Memlet;
use crate::node::{Edge, EdgeId, Node, NodeId, StateId, Vertex};
use crate::scalar::Scalar;
use crate::symbol::{Bindings, Expr};
use crate::text;
use indexmap::IndexMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use serde_json::Value;

/// Of the form, not of the program. A change that old readers misread raises it.
pub const VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    #[error("the program has version {found}, but this Memlet reads version {VERSION}; write it again with the same Memlet")]
    Version { found: String },
    #[error("this is not a program in JSON: {0}")]
    Form(#[from] serde_json::Error),
}

/// The program as a JSON value. It cannot fail on a program that can be built; `Null` stands for one that cannot.
pub fn to_json(program: &Sdfg) -> Value {
    serde_json::to_value(program).unwrap_or_default()
}

/// Reads a program from a JSON value. It is not validated.
pub fn from_json(value: &Value) -> Result<Sdfg, JsonError> {
    // The version first: another version may well have another form.
    match value.get("version") {
        Some(version) if version.as_u64() != Some(u64::from(VERSION)) => Err(JsonError::Version { found: version.to_string() }),
        _ => Ok(Sdfg::deserialize(value)?),
    }
}

#[derive(Serialize, Deserialize)]
struct Program {
    version: u32,
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    about: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    tf32: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    winograd: bool,
    sizes: Bindings,
    dims: IndexMap<String, Expr>,
    containers: Vec<Container>,
    states: Vec<StateRecord>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    transitions: Vec<TransitionRecord>,
}

#[derive(Serialize, Deserialize)]
struct StateRecord {
    id: StateId,
    name: String,
    nodes: Vec<NodeRecord>,
    edges: Vec<EdgeRecord>,
}

#[derive(Serialize, Deserialize)]
struct NodeRecord {
    id: NodeId,
    /// The map entry that directly holds the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scope: Option<NodeId>,
    node: Node,
}

#[derive(Serialize, Deserialize)]
struct EdgeRecord {
    id: EdgeId,
    from: NodeId,
    to: NodeId,
    /// Connectors; access nodes have none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    output: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    input: String,
    memlet: Memlet,
}

#[derive(Serialize, Deserialize)]
struct TransitionRecord {
    from: StateId,
    to: StateId,
    #[serde(flatten)]
    transition: Transition,
}

impl From<&Sdfg> for Program {
    fn from(program: &Sdfg) -> Self {
        let state = |(id, state): (StateId, &crate::state::State)| StateRecord {
            id,
            name: state.name.clone(),
            nodes: state.nodes().map(|(id, v)| NodeRecord { id, scope: v.scope, node: v.node.clone() }).collect(),
            edges: state
                .edges()
                .map(|(id, from, to, e)| EdgeRecord { id, from, to, output: e.from.clone(), input: e.to.clone(), memlet: e.memlet.clone() })
                .collect(),
        };
        let transition = |(from, to, t): (StateId, StateId, &Transition)| TransitionRecord { from, to, transition: t.clone() };
        Program {
            version: VERSION,
            name: program.name.clone(),
            about: program.about.clone(),
            tf32: program.tf32,
            winograd: program.winograd,
            sizes: program.sizes.clone(),
            dims: program.dims.clone(),
            containers: program.containers.values().cloned().collect(),
            states: program.states().map(state).collect(),
            transitions: program.transitions().map(transition).collect(),
        }
    }
}

impl Program {
    fn build(self) -> Result<Sdfg, String> {
        if self.version != VERSION {
            return Err(JsonError::Version { found: self.version.to_string() }.to_string());
        }
        let (tf32, winograd, sizes, dims) = (self.tf32, self.winograd, self.sizes, self.dims);
        let mut program = Sdfg { name: self.name, about: self.about, tf32, winograd, sizes, dims, ..Sdfg::default() };
        for container in self.containers {
            if program.containers.contains_key(&container.name) {
                return Err(format!("the container `{}` is declared twice; rename one", container.name));
            }
            program.add_container(container);
        }
        let mut states = Vec::new();
        for record in self.states {
            let nodes = record.nodes.into_iter().map(|n| (n.id, Vertex { node: n.node, scope: n.scope })).collect();
            let edge = |e: EdgeRecord| (e.id, e.from, e.to, Edge { from: e.output, to: e.input, memlet: e.memlet });
            let edges = record.edges.into_iter().map(edge).collect();
            let state = assemble::state(record.name, nodes, edges).map_err(|e| format!("in state {}: {e}", record.id))?;
            states.push((record.id, state));
        }
        let transitions = self.transitions.into_iter().map(|t| (t.from, t.to, t.transition)).collect();
        assemble::states(&mut program, states, transitions).map_err(|e| e.to_string())?;
        Ok(program)
    }
}

impl Serialize for Sdfg {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Program::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Sdfg {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Program::deserialize(deserializer)?.build().map_err(de::Error::custom)
    }
}

impl Serialize for Scalar {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&text::print_scalar(self))
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text::parse_scalar(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// A number that may be infinite: JSON has none, so `inf`, `-inf` and `nan` are strings.
pub(crate) mod number {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Number {
        Finite(f64),
        Special(String),
    }

    pub fn serialize<S: ser::Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        let shown = value.map(|v| if v.is_finite() { Number::Finite(v) } else { Number::Special(text::print_scalar(&Scalar::Const(v))) });
        shown.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Ok(match Option::<Number>::deserialize(deserializer)? {
            None => None,
            Some(Number::Finite(value)) => Some(value),
            Some(Number::Special(name)) => match text::parse_scalar(&name) {
                Ok(Scalar::Const(value)) => Some(value),
                _ => return Err(de::Error::custom(format!("`{name}` is not a number, `inf`, `-inf` or `nan`"))),
            },
        })
    }
}

/// A number that is always there, infinities included.
pub(crate) mod float {
    use super::*;

    pub fn serialize<S: ser::Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        number::serialize(&Some(*value), serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        number::deserialize(deserializer)?.ok_or_else(|| de::Error::custom("a number, `inf`, `-inf` or `nan` is missing"))
    }
}
