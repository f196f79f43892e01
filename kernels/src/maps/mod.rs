//! Kernels from map scopes: elementwise, reductions, normalisations, and whatever fusion made of them.

mod cuda;
mod executable;
pub(crate) mod flatten;
pub(crate) mod lower;
mod relayout;
mod space;

pub use cuda::{CudaSpace, cuda_source, cuda_written};
pub(crate) use executable::load;
pub use executable::{MapKernel, compile, source};
pub use lower::lower;
pub use relayout::{COPIES, cuda_copy, cuda_relayout, relayout};
pub use space::MapSpace;
