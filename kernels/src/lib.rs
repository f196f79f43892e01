//! From one scope plus one configuration to running code.

pub mod buffer;
pub mod contraction;
pub mod device;
pub mod error;
pub mod kernel;

pub use buffer::Buffer;
pub use error::KernelError;
pub use kernel::{Access, Argument, Completion, Executable, KernelSpec, RunContext, Space, TensorChoice};
