//! NVIDIA GPUs: libraries found at run time, kernels compiled by NVRTC, launched on a stream.

pub mod context;
pub mod device;
pub mod driver;
pub mod kernel;
pub mod libraries;
pub mod nvrtc;

pub use context::{Context, Graph, Memory};
pub use device::{Ceiling, CudaDevice};
pub use driver::{Driver, Gpu};
pub use kernel::{CudaKernel, CudaRun, Module};
pub use libraries::Library;
pub use nvrtc::{Compiled, Nvrtc, Resources};
