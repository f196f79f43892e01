//! Kernels from map scopes: elementwise, reductions, normalisations, and whatever fusion made of them.

mod cuda;
pub mod dropout;
mod executable;
pub(crate) mod flatten;
pub(crate) mod lower;
mod relayout;
mod space;
pub(crate) mod stream;

pub use cuda::{CudaSpace, cuda_source};
pub(crate) use executable::load;
pub use executable::{MapKernel, compile, source};
pub use lower::{lower, slope};
pub use relayout::{COPIES, cuda_relayout, relayout};
pub use space::MapSpace;
pub use stream::{first_cache_ways, largest_cache, second_cache};
