//! Printing a loop nest in the language of a device.

pub(crate) mod address;
pub(crate) mod dialect;
pub(crate) mod functions;
pub(crate) mod gemm;
pub(crate) mod group;
pub(crate) mod long_sum;
pub(crate) mod printer;
pub(crate) mod reduction;
pub(crate) mod rows;
pub(crate) mod scalar;
