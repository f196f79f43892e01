//! Printing a loop nest in the language of a device.

mod address;
pub mod c;
pub mod cuda;
pub(crate) mod functions;
pub(crate) mod gemm;
mod group;
mod long_sum;
mod prefetch;
mod printer;
mod rows;
mod scalar;
