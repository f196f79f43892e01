//! Classes of operators.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What an operator is to those around it. A program has no layout, so a reduction is not called a row or a column by the position of
/// what it sums over, but by what its readers share with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AccessClass {
    /// Every element of the result from elements at the same point.
    Elementwise,
    /// A reader goes over the reduced points again, and shares all other dims: softmax, layer normalization. A block that has a row goes on
    /// with it.
    RowReduction,
    /// Readers share the dims of the result and nothing else: the gradient of a bias.
    ColumnReduction,
    /// Readers share no dim: everything is summed into one element.
    ScalarReduction,
    /// A matrix product.
    Gemm,
    /// Many matrix products, one for each point of dims that all its tensors have.
    BatchedGemm,
    /// Anything else: it stays a kernel of its own.
    Opaque,
}

impl AccessClass {
    pub fn is_reduction(self) -> bool {
        matches!(self, AccessClass::RowReduction | AccessClass::ColumnReduction | AccessClass::ScalarReduction)
    }

    pub fn is_product(self) -> bool {
        matches!(self, AccessClass::Gemm | AccessClass::BatchedGemm)
    }
}

impl fmt::Display for AccessClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessClass::Elementwise => "element-wise",
            AccessClass::RowReduction => "row reduction",
            AccessClass::ColumnReduction => "column reduction",
            AccessClass::ScalarReduction => "scalar reduction",
            AccessClass::Gemm => "GEMM",
            AccessClass::BatchedGemm => "batched GEMM",
            AccessClass::Opaque => "other",
        })
    }
}
