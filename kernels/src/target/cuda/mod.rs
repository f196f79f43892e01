//! NVIDIA GPUs: libraries found at run time, kernels compiled by NVRTC, launched on a stream.

mod algorithm_cache;
pub mod context;
pub mod cublaslt;
pub mod device;
pub mod driver;
pub mod emit;
pub mod graph;
pub mod group;
mod jit;
pub mod kernel;
pub mod libraries;
pub mod maps;
pub mod memory;
pub mod nvrtc;
pub mod relayout;
pub mod streaming;
pub mod template;
pub mod templates;
pub mod tiles;

pub use context::{CudaContext, STREAMS};
pub use device::{CudaDevice, GemmCeiling};
pub use driver::{Driver, Gpu};
pub use graph::CudaGraph;
pub use jit::JitCompiler;
pub use kernel::{CudaKernel, Module};
pub use libraries::CudaLibrary;
pub use memory::GpuMemory;
pub use nvrtc::{Compiled, Nvrtc};

use super::TargetInfo;
use crate::contraction::is_windowed;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::target::cpu::Toolchain;
use cublaslt::FusedContraction;
use emit::Chip;
use sdfg::Unit;
use sdfg::config::KernelConfig;
use std::sync::Arc;

/// NVIDIA GPUs in the registry.
pub static TARGET: TargetInfo = TargetInfo {
    id: "cuda",
    title: "NVIDIA GPUs, CUDA by NVRTC and products by cuBLASLt",
    is_numbered: true,
    is_for_tests: false,
    open: |number| Ok(Arc::new(CudaDevice::new(number, Toolchain::cache())?)),
    epilogues: Some(FusedContraction::has),
    code: assumed_code,
    template: template::template_of,
    generated: |spec| templates::space(spec, Chip::HOPPER),
};

/// The text for a GPU that need not be here: it counts as an H200.
pub(in crate::target) fn assumed_code(spec: &KernelSpec, config: &KernelConfig) -> Result<Option<String>, KernelError> {
    let library = matches!(&spec.unit, Unit::Operation(o) if !is_windowed(o)) || FusedContraction::has(spec);
    if library { Ok(None) } else { Ok(Some(templates::source(spec, config, Chip::HOPPER)?.text)) }
}
