//! A program in one configuration as launches over memory, on cores or a GPU.

pub mod assemble;
pub mod between_steps;
pub mod candidate;
pub mod default_config;
pub mod divide;
pub mod execute;
pub mod launch;
pub mod load;
pub mod memory;
pub mod once;
pub mod packs;
pub mod race_plans;
pub mod replaced;
pub mod restore;
pub mod shared_memory;
pub mod streams;
pub mod target;
pub mod thread_count;
pub mod tune_in_step;

pub use candidate::{Candidate, Exchange};
pub use default_config::default_config;
pub use execute::Execution;
pub use load::whole_tensors;
pub use memory::expected;
pub use once::{DoneOnce, Once};
pub use race_plans::Timed;
pub use target::Target;
