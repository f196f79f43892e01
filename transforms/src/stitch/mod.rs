//! Candidates for stitched kernels: which sets of operators may become one kernel, and what each would save.
//!
//! - [`graph`]: operators and tensors, of a program or of a graph from elsewhere; [`units`] makes it of a program.
//! - [`classes`]: what an operator is to those around it.
//! - [`mod@ladder`]: substitution fusion. Everything between two neighbouring partition operators is a pattern; the set of partition
//!   operators grows rung by rung.
//! - [`mod@explore`]: bounded growth of patterns around seeds.
//! - [`on_chip`]: how results within a pattern share a block's memory.
//! - [`pattern`]: bytes that a pattern saves, whether what it hands on fits on chip, and its structure.
//!
//! - [`mod@candidates`]: those patterns of a program of which composition or fusion makes one kernel ([`kernel`]).
//! - [`pass`]: makes it, and computes units [`mod@again`] for patterns that hold them beside others.
//!
//! Nothing is timed or chosen here.
//!
//! *Source*: "FusionStitching" (Long, Yang, Lin), §4.2 (Algorithms 1 and 2) and §4.3 (scores).

pub mod again;
pub mod candidates;
pub mod classes;
pub mod explore;
pub mod graph;
pub mod kernel;
pub mod ladder;
pub mod on_chip;
pub mod pass;
pub mod pattern;
pub mod units;

pub use candidates::{CandidateSource, FusionCandidates, candidates};
pub use classes::AccessClass;
pub use explore::{GrowthLimits, explore};
pub use graph::{GraphError, GraphOperator, GraphTensor, OperatorGraph};
pub use ladder::{Ladder, Sorting, ladder};
pub use pass::Stitch;
pub use pattern::{Saving, Savings, structure};
pub use units::{StateGraph, graphs};

use crate::pass_row::{PassRow, Takes};

/// The passes of this folder, in an order in which they can run one after the other.
pub(crate) const PASSES: &[PassRow] =
    &[PassRow::new(pass::NAME, Takes::Maps, "make one kernel of each pattern of a plan", |program, _| Box::new(Stitch::longest(program)))];
