//! What keeps a model from being imported.

use thiserror::Error;

/// Why one node cannot be written as steps.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UnsupportedNode {
    #[error("the operator is not supported")]
    Operator,
    #[error("{0}")]
    Form(String),
    /// The name of the value in the graph, and the graph's inputs that it is computed from.
    #[error("the value of `{value}` must be known at import{}", from(value, inputs))]
    Unknown { value: String, inputs: Vec<String> },
    #[error("a result has the size 0, and a recipe has no empty tensors")]
    Empty,
    /// A node before it was refused; that one is reported.
    #[error("a node before it is refused")]
    Earlier,
}

impl UnsupportedNode {
    pub fn form<T>(why: impl Into<String>) -> Result<T, UnsupportedNode> {
        Err(UnsupportedNode::Form(why.into()))
    }
}

fn from(value: &str, inputs: &[String]) -> String {
    let names: Vec<String> = inputs.iter().map(|name| format!("`{name}`")).collect();
    match inputs {
        [] => ": make it an initializer or a constant of the model".into(),
        [input] if input == value => ", and it is an input: make it an initializer of the model".into(),
        _ => format!(", and it depends on the inputs {}: make them initializers of the model", names.join(", ")),
    }
}

/// One thing that is wrong with a model.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ImportProblem {
    #[error("{0}")]
    File(String),
    #[error("the tensor `{name}`: {why}")]
    Tensor { name: String, why: String },
    #[error("the input `{input}` leaves its size `{size}` open; give it, as --set {size}=8")]
    Open { input: String, size: String },
    #[error("the model has no size `{size}` to --set; it has {has}")]
    NoSuchSize { size: String, has: String },
    #[error("node {node} ({operator}): {why}")]
    Node { node: String, operator: String, why: UnsupportedNode },
    /// A node of a state; a state as a whole has none.
    #[error("{}: {why}", placed(state, node))]
    Part { state: String, node: String, why: String },
    #[error("the output `{name}`: {why}")]
    Output { name: String, why: String },
}

fn placed(state: &str, node: &str) -> String {
    if node.is_empty() { state.to_string() } else { format!("state {state}: node `{node}`") }
}

/// Everything that is wrong with a model.
#[derive(Clone, Debug, Error)]
#[error("{}", said(file, problems))]
pub struct ImportErrors {
    pub file: String,
    pub problems: Vec<ImportProblem>,
}

fn said(file: &str, problems: &[ImportProblem]) -> String {
    let mut lines: Vec<String> = problems.iter().map(|problem| format!("{file}: {problem}")).collect();
    if problems.iter().any(|p| matches!(p, ImportProblem::Node { .. })) {
        lines.push(
            "docs/import.md lists what is supported; nodes that are refused can be left to the program around the model, or be written \
                    with supported operators (onnxsim and torch.onnx.export with constant shapes remove most)"
                .into(),
        );
    }
    if problems.iter().any(|p| matches!(p, ImportProblem::Part { .. })) {
        lines.push(
            "docs/dace.md lists what is read; sdfg.simplify() removes most nested SDFGs, and sdfg.expand_library_nodes() writes library \
                    nodes as maps"
                .into(),
        );
    }
    lines.join("\n")
}
