//! Printing a loop nest in the language of a device.

mod address;
pub mod c;
mod group;
mod printer;
pub(crate) mod product;
mod rows;
mod scalar;
