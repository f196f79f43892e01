//! NVIDIA GPUs: libraries found at run time, kernels compiled by NVRTC.

pub mod driver;
pub mod libraries;
pub mod nvrtc;

pub use driver::{Driver, Gpu};
pub use libraries::Library;
pub use nvrtc::{Compiled, Nvrtc, Resources};
