//! Equal formulas: contractions over stacked operands, casts, and normalization with known statistics.

pub mod cast_bias;
pub mod fold_batch_norm;
pub mod stack;
