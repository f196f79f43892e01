//! The user's side: recipes, and what connects the other crates.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo, clippy::unimplemented)
)]

pub mod accelerator;
pub mod analyze;
pub mod cli;
pub mod clibrary;
pub mod compare;
pub mod dace;
pub mod import;
pub mod load;
pub mod pipeline;
pub mod schema;
pub mod timings;
pub mod train;

// Programs and spaces make many small allocations; Cargo.toml states the gain.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
