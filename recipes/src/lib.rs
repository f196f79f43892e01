//! The user's side: recipes, and what connects the other crates.

pub mod analyze;
pub mod cli;
pub mod compare;
pub mod load;
pub mod pipeline;
pub mod schema;

// Programs and spaces are many small allocations; what it brings stands beside the dependency.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
