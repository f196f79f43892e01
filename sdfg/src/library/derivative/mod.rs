//! Reverse-mode derivatives, one file per operator.
//!
//! Each operation of a derivative is named after the container it writes and reads the forward containers it needs;
//! whether those were saved or are computed again is not decided here.

pub(super) mod contraction;
pub(super) mod elementwise;
pub(super) mod normalize;
mod polyphase;
mod readers;
pub(super) mod reduce;
pub(super) mod softmax;

use super::{Derivative, Op, OperatorError, WantedGradients};
use crate::data::Container;
use crate::graph::Sdfg;
use crate::memlet::Fill;
use crate::node::{Direction, Operand, Operation};
use crate::symbol::Expr;
use readers::Readers;
use std::borrow::Cow;

/// Why an operator of a backward pass has no derivative.
pub(super) fn second_derivative(forward: &Operation) -> OperatorError {
    not_differentiable(forward, "out", "second derivatives are not defined; differentiate the forward program once")
}

/// A backward operation over the given indices of the forward one.
fn operation(forward: &Operation, op: Op, inputs: Vec<Operand>, outputs: Vec<Operand>, keep: &dyn Fn(&str) -> bool) -> Operation {
    Operation {
        name: outputs.first().map(|o| o.data.clone()).unwrap_or_default(),
        op,
        indices: forward.indices.iter().filter(|(name, _)| keep(name)).map(|(n, d)| (n.clone(), d.clone())).collect(),
        inputs,
        outputs,
        pass: Direction::Backward,
        origin: forward.origin.clone(),
    }
}

/// An operand under another connector, bound to another container.
fn operand(connector: &str, data: &str, subscripts: &[Expr]) -> Operand {
    Operand { connector: connector.into(), data: data.into(), subscripts: subscripts.to_vec(), fill: None }
}

/// The indices that subscript an operand, if they are plain and distinct: then each element of its gradient is written
/// by exactly one point of the space of those indices.
fn plain<'a>(forward: &Operation, operand: &'a Operand) -> Result<Vec<&'a str>, OperatorError> {
    let names = operand.index_names().ok_or_else(|| {
        not_differentiable(
            forward,
            &operand.connector,
            "its subscripts are not plain indices; copy the elements read into a tensor of their own first",
        )
    })?;
    for (n, name) in names.iter().enumerate() {
        if names[..n].contains(name) {
            let why = format!("the index `{name}` subscripts it twice; copy the diagonal into a tensor of its own first");
            return Err(not_differentiable(forward, &operand.connector, &why));
        }
    }
    Ok(names)
}

/// A transient over the dims of the given indices, with the element type of `like`.
fn transient(forward: &Operation, program: &Sdfg, name: String, indices: &[&str], like: &Operand) -> Result<Container, OperatorError> {
    let like = declared(forward, program, &like.data)?;
    Ok(Container {
        dims: indices.iter().filter_map(|i| forward.indices.get(*i).cloned()).collect(),
        origin: forward.origin.clone(),
        ..like.like(program.fresh_name(&name))
    })
}

/// Declares the dims of one gradient for the next one.
fn declare(program: &mut Cow<'_, Sdfg>, dims: &[(String, Expr)]) {
    if !dims.is_empty() {
        program.to_mut().dims.extend(dims.iter().cloned());
    }
}

fn declared<'a>(forward: &Operation, program: &'a Sdfg, data: &str) -> Result<&'a Container, OperatorError> {
    program.containers.get(data).ok_or_else(|| OperatorError::UnknownContainer { operation: forward.name.clone(), data: data.to_string() })
}

fn not_differentiable(forward: &Operation, connector: &str, why: &str) -> OperatorError {
    OperatorError::NotDifferentiable { operation: forward.name.clone(), connector: connector.into(), why: why.into() }
}
