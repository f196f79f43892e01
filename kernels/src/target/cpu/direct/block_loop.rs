//! The loops around micro-kernels of a direct product.

/// A loop around micro-kernels: iterations, its step, and how far one iteration moves in each tensor and along each dim that windows leave.
#[derive(Clone)]
pub struct BlockLoop {
    pub count: String,
    pub step: i64,
    pub strides: Vec<i64>,
    pub moves: Vec<i64>,
}
