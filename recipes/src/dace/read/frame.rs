//! A program under way: an SDFG, what its containers hold, and what its symbols are.

use super::graph::DaceSdfg;
use super::integer::AffineInteger;
use super::slot::SlotRef;
use super::value::Value;
use indexmap::IndexMap;

#[derive(Clone, Debug)]
pub enum Symbol {
    Integer(AffineInteger),
    Value(Value),
}

pub struct SdfgFrame<'g> {
    pub sdfg: &'g DaceSdfg,
    pub slots: IndexMap<String, SlotRef>,
    pub symbols: IndexMap<String, Symbol>,
    /// Where the program stands, for messages: `state s0` or `nested SDFG f, state s1`.
    pub path: String,
}
