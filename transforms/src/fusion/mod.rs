//! Kernels: operations expanded into them, and several made one.

mod alignment;
pub mod composition;
pub mod cross_layer;
pub mod expand;
pub mod greedy;
pub mod grouped_gemm;
pub mod iteration_space;
mod local_copies;
mod once;
pub(crate) mod pairs;
mod single_point;

use crate::pass_row::{PassRow, Takes};

/// The passes of this folder, in an order in which they can run one after the other.
pub(crate) const PASSES: &[PassRow] = &[
    PassRow::new("grouped gemm", Takes::Operators, "run matrix products whose results nothing reads as one kernel", |_, _| {
        Box::new(grouped_gemm::GroupedGemm)
    }),
    PassRow::new("expand", Takes::Operators, "expand operators into maps", |_, _| Box::new(expand::Expand)),
    PassRow::new("cross-layer reuse", Takes::Maps, "hand intermediate results of layers over on chip", |_, _| {
        Box::new(cross_layer::CrossLayerReuse::default())
    }),
    PassRow::new("composition", Takes::Maps, "fuse contractions with their neighbours", |_, _| {
        Box::new(composition::Composition::default())
    }),
    PassRow::new("fusion", Takes::Maps, "fuse maps over compatible iteration spaces", |_, _| Box::new(greedy::Fusion::default())),
];
