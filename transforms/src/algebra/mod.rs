//! Equal formulas: contractions over stacked operands, transposed convolutions, what is computed twice or never read, casts, normalization
//! with known statistics, and copies that nothing needs.

pub mod cast_bias;
pub mod common_subexpressions;
pub mod fold_batch_norm;
pub mod remove_copies;
pub mod stack;
pub mod transposed_windows;
pub mod unread_elements;
mod users;

use crate::pass_row::{PassRow, Takes};

/// The passes of this folder, in an order in which they can run one after the other.
pub(crate) const PASSES: &[PassRow] = &[
    PassRow::new(
        "transposed windows",
        Takes::Operators,
        "sum over the places of a kernel what is summed over those of an image",
        |_, _| Box::new(transposed_windows::TransposedWindows),
    ),
    PassRow::new("unread elements", Takes::Operators, "compute of each tensor the elements that are read", |_, _| {
        Box::new(unread_elements::UnreadElements)
    }),
    PassRow::new("common subexpressions", Takes::Operators, "compute once what several operations compute", |_, _| {
        Box::new(common_subexpressions::CommonSubexpressions)
    }),
    PassRow::new(
        "fold batch norm",
        Takes::Forward,
        "fold normalization with given statistics into a factor and an addend by channel",
        |_, _| Box::new(fold_batch_norm::FoldBatchNorm),
    ),
    PassRow::new("cast bias", Takes::Operators, "cast biases to the type of the sums that they enter", |_, _| {
        Box::new(cast_bias::CastBias)
    }),
    PassRow::new("remove copies", Takes::Operators, "write parts of joined tensors in place, and read slices where they lie", |_, _| {
        Box::new(remove_copies::RemoveCopies)
    }),
    PassRow::new("stack", Takes::Operators, "stack contractions that share an operand or a sum", |program, _| {
        Box::new(stack::Stack { weights: stack::groups(program).into_iter().flat_map(|group| group.weights).collect() })
    }),
];
