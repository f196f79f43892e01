//! How each operator of ONNX is written: a file for each family.

mod attention;
mod contraction;
mod control;
mod convolution;
mod gather;
mod layout;
mod loss;
mod normalization;
mod places;
mod pointwise;
mod pooling;
mod quantization;
mod recurrent;
mod reduction;
mod resize;
mod rotary;
mod sampling;
mod spectrum;

use super::error::UnsupportedNode;
use super::node::OperatorWriter;

const FAMILIES: &[&[(&str, OperatorWriter)]] = &[
    attention::ALL,
    quantization::ALL,
    recurrent::ALL,
    rotary::ALL,
    sampling::ALL,
    spectrum::ALL,
    resize::ALL,
    pointwise::ALL,
    layout::ALL,
    contraction::ALL,
    control::ALL,
    loss::ALL,
    places::ALL,
    convolution::ALL,
    pooling::ALL,
    reduction::ALL,
    normalization::ALL,
];

/// Operators that are known at import alone.
const FOLDED_ONLY: &[&str] = &["Constant", "Shape", "Size"];

/// Operators that had another form before some operator set: its number, and what was different.
const CHANGED: &[(&str, i64, &str)] = &[
    ("BatchNormalization", 9, "`spatial` may be 0"),
    ("Clip", 11, "its bounds were attributes"),
    ("Dropout", 12, "its ratio was an attribute"),
    ("Hardmax", 13, "it joined all axes from one on"),
    ("LogSoftmax", 13, "it joined all axes from one on"),
    ("Pad", 11, "its paddings were attributes"),
    ("Resize", 11, "places were mapped in another way"),
    ("Scan", 9, "it walked along batches, too"),
    ("Slice", 10, "its bounds were attributes"),
    ("Softmax", 13, "it joined all axes from one on"),
    ("Split", 13, "its sizes were an attribute"),
    ("TopK", 10, "its number was an attribute"),
];

/// Why an operator has another form in this operator set than what is read.
pub fn changed(name: &str, opset: i64) -> Option<UnsupportedNode> {
    let (_, since, what) = CHANGED.iter().find(|(own, since, _)| *own == name && opset < *since)?;
    Some(UnsupportedNode::Form(format!(
        "before operator set {since} {what}, which is not read; onnx.version_converter.convert_version(model, 21) writes it anew"
    )))
}

/// The operator with this name.
pub fn find(name: &str) -> Option<OperatorWriter> {
    FAMILIES.iter().copied().flatten().find(|(own, _)| *own == name).map(|(_, operator)| *operator)
}

/// The names of all operators that are supported, in alphabetical order.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = FAMILIES.iter().copied().flatten().map(|(name, _)| *name).chain(FOLDED_ONLY.iter().copied()).collect();
    names.sort_unstable();
    names.dedup();
    names
}
