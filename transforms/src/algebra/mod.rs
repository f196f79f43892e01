//! Equal formulas: contractions over stacked operands, and casts.

pub mod cast_bias;
pub mod stack;
