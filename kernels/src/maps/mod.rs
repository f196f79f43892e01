//! Kernels from map scopes: elementwise, reductions, normalisations, and whatever fusion made of them.

mod cuda;
pub(crate) mod dropout;
mod executable;
mod flatten;
mod lower;
mod relayout;
mod space;
pub(crate) mod stream;

pub use cuda::{CudaSpace, cuda_source};
pub use executable::{MapKernel, compile, text};
pub use lower::{lower, slope};
pub use relayout::relayout;
pub use space::MapSpace;
