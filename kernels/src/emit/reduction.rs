//! Reductions of a loop nest while it is printed: where each is held, and how long sums are counted.

use crate::emit::scalar::reduction;
use crate::loopnest::NestStatement;
use sdfg::Combine;

/// How the terms of a sum into memory are counted.
#[derive(Clone, Debug)]
pub struct LongSum {
    /// The loop of the group at the end of whose body totals are added to; none if that is the end of the group.
    pub at: Option<usize>,
    /// Name of the totals.
    pub total: String,
    /// Name of the number that says whether there are any.
    pub long: String,
    /// C text of the number of the term that has just been added.
    pub(super) term: String,
}

/// Whether a loop has met NaN among the values whose extremum it computes: a separate flag takes no time, while asking
/// for NaN in every comparison of a chain takes three times as long.
pub fn nan_seen(variable: &str) -> String {
    format!("nan_in_{variable}")
}

/// A statement that reduces.
pub struct Reduction<'a> {
    pub statement: &'a NestStatement,
    pub combine: Combine,
    /// Loops around the target.
    pub level: usize,
    /// Whether the target is reached more than once.
    pub again: bool,
    /// Scalar that holds the reduction over the loops inside the target's.
    pub variable: Option<String>,
    /// Scalar of double precision that a sum in `variable` is moved to again and again.
    pub total: Option<String>,
    /// Totals of a sum in memory.
    pub long: Option<LongSum>,
}

impl Reduction<'_> {
    pub(super) fn is_extremum(&self) -> bool {
        matches!(self.combine, Combine::Max | Combine::Min)
    }

    /// The clause of OpenMP for the reduction into a scalar.
    pub(super) fn clause(&self, variable: &str) -> String {
        let nan = if self.is_extremum() { format!(" reduction(|:{})", nan_seen(variable)) } else { String::new() };
        format!(" reduction({}:{variable}){nan}", reduction(self.combine))
    }
}
