//! NVIDIA GPUs: libraries found at run time, kernels compiled by NVRTC, launched on a stream.

pub mod context;
pub mod device;
pub mod driver;
pub mod graph;
mod jit;
pub mod kernel;
pub mod libraries;
pub mod memory;
pub mod nvrtc;
mod products;

pub use context::{Context, STREAMS};
pub use device::{Ceiling, CudaDevice};
pub use driver::{Driver, Gpu};
pub use graph::Graph;
pub use jit::JitCompiler;
pub use kernel::{CudaKernel, Module};
pub use libraries::Library;
pub use memory::Memory;
pub use nvrtc::{Compiled, Nvrtc};
