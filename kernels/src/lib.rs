//! From one scope plus one configuration to running code.

pub mod alpha_equivalence;
pub mod buffer;
pub mod caches;
mod cancel;
mod codegen_version;
mod collapsed_dims;
pub mod compile;
pub mod contraction;
pub mod device;
mod elements;
pub mod emit;
pub mod error;
pub mod in_place;
pub mod kernel;
pub mod loopnest;
pub mod maps;
mod mixed_radix;
pub mod pool;
pub mod processor;
pub mod runtime;
pub mod split_blocked_dims;
pub mod template;
pub mod tiles;

pub use alpha_equivalence::KernelClass;
pub use buffer::Buffer;
pub use cancel::CancelToken;
pub use compile::Toolchain;
pub use error::KernelError;
pub use in_place::InPlace;
pub use kernel::{Access, Argument, Completion, ConfigSpace, Executable, KernelSpec, RunContext, TensorChoice};
pub use template::{compile, relayout, space};
