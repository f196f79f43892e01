//! Why contractions are refused.

use crate::contraction::types::Types;
use sdfg::{Dtype, SymbolError};

/// Why a contraction cannot be run as matrix products.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ContractionError {
    #[error("`{operation}` is a {label}, not a contraction; ask the space of map kernels for it")]
    NotAContraction { operation: String, label: String },
    #[error("`{operation}` has no operand `{connector}`; a contraction has `a` and `b` and writes `out`")]
    MissingOperand { operation: String, connector: String },
    #[error("`{operation}` uses the container `{data}`, which the kernel does not declare")]
    UnknownContainer { operation: String, data: String },
    #[error("`{operation}`: `{data}` is subscripted by `{subscript}`; a contraction takes plain indices only, so copy the slice first")]
    Subscript { operation: String, data: String, subscript: String },
    #[error("`{operation}`: `{data}` has {dims} dims but {subscripts} subscripts")]
    Arity { operation: String, data: String, dims: usize, subscripts: usize },
    #[error("`{operation}`: the index `{index}` stands twice in the output `{data}`; the elements off the diagonal would never be written")]
    Diagonal { operation: String, data: String, index: String },
    #[error("`{operation}`: the index `{index}` is summed but stands in one operand only; sum that operand first: `sum(…, over: {index})`")]
    Unpaired { operation: String, index: String },
    #[error("`{operation}`: the index `{index}` stands in the output only; a contraction cannot repeat its result")]
    Unsourced { operation: String, index: String },
    #[error("`{operation}`: the index `{index}` runs over {extent} along one dim and {other} along another")]
    Extent { operation: String, index: String, extent: usize, other: usize },
    #[error("`{operation}`: a, b and out have the types {found}; matrix products exist for {known}", known = Types::KNOWN)]
    Dtype { operation: String, found: String },
    #[error(
        "`{operation}` multiplies {factor}, which is for GPUs; the cores of this machine multiply bf16, f32 and f64: take one of these as dtype"
    )]
    Cores { operation: String, factor: Dtype },
    #[error(
        "`{operation}`: the layout `{layout}` of `{data}` does not order exactly the dims {dims:?}; matrix products take unblocked layouts"
    )]
    Layout { operation: String, data: String, layout: String, dims: Vec<String> },
    #[error("`{operation}`: `{data}` is no valid part of `{of}`: as many dims, and offset plus size within each")]
    View { operation: String, data: String, of: String },
    #[error("`{operation}`: the scale must be a number known before the run, but it depends on this: {what}")]
    Scale { operation: String, what: sdfg::interpret::NotConstant },
    #[error("`{operation}`: {source}")]
    Size { operation: String, source: SymbolError },
    #[error("`{operation}`: the size {value} of `{dim}` is negative or too large")]
    BadSize { operation: String, dim: String, value: i64 },
    #[error("`{operation}` has no knob setting `{key}={value}`; it may be one of: {allowed}")]
    Knob { operation: String, key: String, value: String, allowed: String },
}
