//! A factor of a direct product, and where its elements are: in place or in a copy.

use super::clipped_dim::ClippedDim;
use crate::loopnest::Element;

/// The copy of an operand.
#[derive(Clone, Debug)]
pub enum Copied {
    /// All of it: where it starts among what is prepared, and the element at its beginning.
    Whole { at: String, lows: Vec<i64> },
    /// What one tile reads: a buffer of the worker, and the place in it of the tile's first iterations.
    Near { name: String, offset: i64 },
}

/// A factor of a direct product.
#[derive(Clone, Debug)]
pub struct DirectOperand {
    pub element: Element,
    /// Elements between neighbours along each dim.
    pub strides: Vec<i64>,
    pub(super) copy: Option<Copied>,
    /// The dims that windows leave, of a factor that is read in place all the same.
    pub(super) clipped: Vec<ClippedDim>,
}

impl DirectOperand {
    /// A factor that is read where it lies.
    pub fn in_place(element: Element, strides: Vec<i64>) -> Self {
        DirectOperand { element, strides, copy: None, clipped: Vec::new() }
    }

    pub fn is_copied(&self) -> bool {
        self.copy.is_some()
    }
}
