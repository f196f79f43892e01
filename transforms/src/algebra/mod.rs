//! Equal formulas: contractions over stacked operands, casts, normalization with known statistics, and copies that nothing needs.

pub mod cast_bias;
pub mod fold_batch_norm;
pub mod remove_copies;
pub mod stack;
mod users;
