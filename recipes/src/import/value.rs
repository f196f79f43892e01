//! Values of a graph: known at import, or views of tensors that the recipe has.

use super::constant::ConstantTensor;
use super::view::DigitView;
use indexmap::IndexMap;
use std::rc::Rc;

/// Elements up to which known values are computed with at import.
pub const FOLDED: usize = 1 << 16;

/// A value of the graph.
#[derive(Clone, Debug)]
pub enum GraphValue {
    Known(Rc<Known>),
    View(DigitView),
    /// An optional input or output that is left out.
    Absent,
    /// Of a node that was refused.
    Refused,
}

/// A constant with the name that a parameter made of it gets.
#[derive(Debug)]
pub struct Known {
    pub name: String,
    pub constant: ConstantTensor,
    /// Distinguishes constants of one name.
    pub(super) id: usize,
}

/// Values by their names in the graph.
pub type GraphValues = IndexMap<String, GraphValue>;
