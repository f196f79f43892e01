//! A program in one configuration as launches over memory, on cores or a GPU.

pub mod assemble;
pub mod candidate;
pub mod default_config;
pub mod dim_order;
pub mod execute;
pub mod launch;
pub mod memory;
pub mod restore;
pub mod streams;
pub mod target;
