//! Attributes of a node, by name and type.

use super::error::UnsupportedNode;
use super::proto::{AttributeProto, NodeProto};

/// A node's attribute by name.
pub fn attribute<'a>(proto: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    proto.attribute.iter().find(|a| a.name == name)
}

pub fn int(proto: &NodeProto, name: &str) -> Option<i64> {
    attribute(proto, name).map(|a| a.i)
}

pub fn ints<'a>(proto: &'a NodeProto, name: &str) -> Option<&'a [i64]> {
    attribute(proto, name).map(|a| a.ints.as_slice())
}

pub fn float(proto: &NodeProto, name: &str) -> Option<f32> {
    attribute(proto, name).map(|a| a.f)
}

pub fn string<'a>(proto: &'a NodeProto, name: &str) -> Option<&'a str> {
    attribute(proto, name).and_then(|a| std::str::from_utf8(&a.s).ok())
}

/// An axis that may be counted from the end.
///
/// # Errors
/// An axis that is none.
pub fn axis(given: i64, rank: usize) -> Result<usize, UnsupportedNode> {
    let rank = rank as i64;
    match given {
        axis if (0..rank).contains(&axis) => Ok(axis as usize),
        axis if (-rank..0).contains(&axis) => Ok((axis + rank) as usize),
        axis => UnsupportedNode::form(format!("there is no axis {axis} of {rank}")),
    }
}
