//! From one scope plus one configuration to running code.

pub mod alpha_equivalence;
pub mod buffer;
pub mod c_form;
pub mod caches;
mod cancel;
mod codegen_version;
mod collapsed_dims;
pub mod contraction;
pub mod device;
mod elements;
pub mod emit;
pub mod error;
pub mod images;
pub mod in_place;
mod instruction_set;
pub mod kernel;
pub mod loopnest;
pub mod loops;
pub mod maps;
mod mixed_radix;
mod named_rows;
pub mod packing;
pub mod peak;
pub mod phases;
pub mod pool;
pub mod processor;
pub mod runtime;
mod single_flight;
pub mod split_blocked_dims;
pub mod target;
pub mod tiles;

pub use alpha_equivalence::KernelClass;
pub use buffer::AlignedBuffer;
pub use cancel::CancelToken;
pub use error::KernelError;
pub use in_place::InPlace;
pub use instruction_set::InstructionSet;
pub use kernel::{
    ArgumentAccess, Completion, ConfigSpace, Executable, KernelArgument, KernelSpec, KernelSpecs, MemberTimes, RunContext, TensorChoice,
};
pub use target::cpu::Toolchain;
pub use target::cpu::templates::{compile, relayout, space};
