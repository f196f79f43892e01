//! Why a kernel could not be made, compiled or run.

use crate::contraction::ContractionError;
use sdfg::SymbolError;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(transparent)]
    Contraction(#[from] ContractionError),
    #[error("`{kernel}` uses the container `{data}`, which the program does not declare")]
    UnknownContainer { kernel: String, data: String },
    #[error("`{kernel}`: {source}")]
    Size { kernel: String, source: SymbolError },
    #[error("`{kernel}`: the size {value} of `{dim}` must be at least 1")]
    BadSize { kernel: String, dim: String, value: i64 },
    #[error("`{kernel}`: `{data}` is no valid part of `{of}`: as many dims, and offset plus size within each")]
    View { kernel: String, data: String, of: String },
    #[error("`{kernel}`: the layout `{layout}` of `{data}` does not order exactly the dims {dims:?}, each in blocks of one size at most")]
    Layout { kernel: String, data: String, layout: String, dims: Vec<String> },
    #[error("`{kernel}` has no knob setting `{key}={value}`; it may be one of: {allowed}")]
    Knob { kernel: String, key: String, value: String, allowed: String },
    #[error("`{kernel}` cannot be generated: {what}")]
    Unsupported { kernel: String, what: String },
    #[error(
        "`{kernel}`: `{data}`[{}] is {number}, which names no row of `{table}`; its rows are 0 to {last}",
        at.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
    )]
    MissingRow { kernel: String, data: String, at: Vec<i64>, number: f64, table: String, last: usize },
    #[error("`{kernel}` takes {expected} arguments, but {given} were given")]
    Arguments { kernel: String, expected: usize, given: usize },
    #[error("no C compiler: `{command}` could not be started ({source}); install gcc or clang, or name one in the environment variable CC")]
    NoCompiler { command: String, source: std::io::Error },
    #[error("MEMLET_INSTRUCTIONS is `{asked}`, which names no instructions; it is one of {known}, or not set")]
    Instructions { asked: String, known: String },
    #[error("the C compiler refused `{kernel}` (source: {source_file}):\n{message}")]
    Compile { kernel: String, source_file: PathBuf, message: String },
    #[error("the C compiler was stopped while it was at `{kernel}` ({status}); nothing is wrong with the kernel, begin again")]
    CompilerStopped { kernel: String, status: std::process::ExitStatus },
    #[error("{library} was not found ({}); {advice}", tried.join(", "))]
    NoLibrary { library: &'static str, tried: Vec<String>, advice: &'static str },
    #[error("no NVIDIA GPU can be used here: {what}; `memlet devices` says what is there")]
    NoGpu { what: String },
    #[error("CUDA: {what}")]
    Cuda { what: String },
    #[error("the driver of this machine runs CUDA {}.{} at most, and CUDA {}.{} is needed; {advice}", has.0, has.1, needs.0, needs.1)]
    OldDriver { has: (i32, i32), needs: (i32, i32), advice: &'static str },
    #[error("{bytes} bytes of memory could not be had on {gpu}, which has {free} bytes free of {total}; use smaller sizes")]
    GpuMemory { gpu: String, bytes: usize, free: usize, total: usize },
    #[error("`{kernel}` keeps {bytes} bytes of partial results between its passes in this configuration, and {free} bytes are free")]
    Scratch { kernel: String, bytes: usize, free: usize },
    #[error(
        "a kernel broke the GPU's context: {what}; nothing more runs there in this process, the same command goes on without that kernel"
    )]
    Crash { what: String },
    #[error("the GPU can no longer be used: {what}")]
    GpuLost { what: String },
    #[error("NVRTC refused `{kernel}` for compute capability {}.{}:\n{message}", capability / 10, capability % 10)]
    Nvrtc { kernel: String, capability: u32, message: String },
    #[error("the CPU shim stopped `{kernel}`: {what}")]
    Shim { kernel: String, what: String },
    #[error("`{path}`: {source}; the cache of kernels must have room and be writable, see MEMLET_CACHE_DIR")]
    Cache { path: PathBuf, source: std::io::Error },
    #[error("the compiled kernel `{path}` could not be loaded: {message}; remove it and try again")]
    Load { path: PathBuf, message: String },
    #[error("{bytes} bytes of memory could not be had; use smaller sizes")]
    Memory { bytes: usize },
    #[error("memory of {len} bytes has no {bytes} bytes from byte {at} on")]
    Beyond { at: usize, bytes: usize, len: usize },
    #[error("the workers could not be started: {0}")]
    Workers(String),
    #[error("`{data}` of shape {expected:?} was given an array of shape {given:?}")]
    Shape { data: String, expected: Vec<usize>, given: Vec<usize> },
}

/// What a failure says about what comes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// This configuration alone does not work.
    Configuration,
    /// This configuration does not work, and the device does not any more either.
    Crash,
    /// The device does not work any more, whatever it is given.
    Device,
}

impl KernelError {
    pub fn blame(&self) -> Blame {
        match self {
            KernelError::Crash { .. } => Blame::Crash,
            KernelError::GpuLost { .. } | KernelError::GpuMemory { .. } => Blame::Device,
            // What another configuration would need as well, and what may be there the next time.
            KernelError::NoCompiler { .. }
            | KernelError::Instructions { .. }
            | KernelError::CompilerStopped { .. }
            | KernelError::Cache { .. } => Blame::Device,
            _ => Blame::Configuration,
        }
    }

    /// Whether something is missing on this machine that no other input would make up for.
    pub fn missing(&self) -> bool {
        use KernelError::{Instructions, NoCompiler, NoGpu, NoLibrary, OldDriver};
        matches!(self, Instructions { .. } | NoCompiler { .. } | NoLibrary { .. } | NoGpu { .. } | OldDriver { .. })
    }
}
