//! How each operator of ONNX is written: a file for each family.

mod contraction;
mod convolution;
mod gather;
mod layout;
mod normalization;
mod pointwise;
mod pooling;
mod reduction;

use super::error::Refusal;
use super::graph::Value;
use super::node::Node;

/// Writes a node's steps; its results.
pub type Operator = fn(&mut Node) -> Result<Vec<Value>, Refusal>;

const FAMILIES: &[&[(&str, Operator)]] =
    &[pointwise::ALL, layout::ALL, contraction::ALL, convolution::ALL, pooling::ALL, reduction::ALL, normalization::ALL];

/// Operators that are known at import alone.
pub const FOLDED_ONLY: &[&str] = &["Constant", "Shape", "Size", "Range", "NonZero", "EyeLike"];

/// The operator with this name.
pub fn find(name: &str) -> Option<Operator> {
    FAMILIES.iter().copied().flatten().find(|(own, _)| *own == name).map(|(_, operator)| *operator)
}

/// The names of all operators that are supported, in alphabetical order.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = FAMILIES.iter().copied().flatten().map(|(name, _)| *name).chain(FOLDED_ONLY.iter().copied()).collect();
    names.sort_unstable();
    names.dedup();
    names
}
