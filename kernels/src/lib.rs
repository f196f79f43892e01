//! From one scope plus one configuration to running code.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo, clippy::unimplemented)
)]

pub mod alpha_equivalence;
pub mod buffer;
pub mod c_form;
pub mod caches;
mod cancel;
mod codegen_version;
mod collapsed_dims;
pub mod config_space;
pub mod constant;
pub mod contraction;
pub mod convolutions;
pub mod device;
mod elements;
pub mod emit;
pub mod error;
pub mod executable;
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
mod register_block;
pub mod run_context;
pub mod runtime;
mod single_flight;
pub mod split_blocked_dims;
pub mod target;
pub mod template;
pub mod tiles;
mod unit_containers;

pub use alpha_equivalence::KernelClass;
pub use buffer::AlignedBuffer;
pub use cancel::CancelToken;
pub use config_space::{ConfigSpace, TensorChoice};
pub use error::KernelError;
pub use executable::{Executable, MemberTimes, OnChipMemory};
pub use in_place::InPlace;
pub use instruction_set::InstructionSet;
pub use kernel::{ArgumentAccess, KernelArgument, KernelSpec, KernelSpecs};
pub use run_context::{Completion, RunContext};
pub use target::cpu::Toolchain;
pub use target::cpu::templates::{compile, relayout, space};
