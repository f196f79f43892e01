//! All passes: those in the tables of the folders. The tests of this crate verify each of them.

use crate::pass_row::PassRow;
use crate::{algebra, autodiff, fusion, stitch};

/// Every pass, in an order in which they can run one after the other.
pub fn all() -> impl Iterator<Item = &'static PassRow> {
    [autodiff::PASSES, algebra::PASSES, stitch::PASSES, fusion::PASSES].into_iter().flatten()
}

/// The pass of a name.
pub fn named(name: &str) -> Option<&'static PassRow> {
    all().find(|row| row.name == name)
}
