//! Printing a loop nest in the language of a device.

pub mod c;
mod cell;
mod scalar;
