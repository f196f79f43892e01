//! NVIDIA GPUs: libraries found at run time, kernels compiled by NVRTC, launched on a stream.

mod algorithm_cache;
pub mod context;
pub mod device;
pub mod driver;
pub mod graph;
mod jit;
pub mod kernel;
pub mod libraries;
pub mod memory;
pub mod nvrtc;

pub use context::{Context, STREAMS};
pub use device::{CudaDevice, GemmCeiling};
pub use driver::{Driver, Gpu};
pub use graph::CudaGraph;
pub use jit::JitCompiler;
pub use kernel::{CudaKernel, Module};
pub use libraries::CudaLibrary;
pub use memory::GpuMemory;
pub use nvrtc::{Compiled, Nvrtc};
