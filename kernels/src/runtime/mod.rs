//! What generated C calls while it runs, through pointers: compiled once for the processor at hand, and not with each kernel.

pub mod dropout;
pub(crate) mod stream;
