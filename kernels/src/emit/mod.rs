//! Printing a loop nest in the language of a device.

mod address;
pub mod c;
pub mod cuda;
mod functions;
mod group;
mod long_sum;
mod prefetch;
mod printer;
pub(crate) mod product;
mod rows;
mod scalar;
