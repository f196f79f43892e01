//! Kernels from map scopes: elementwise, reductions, normalisations, and whatever fusion made of them.

pub(crate) mod flatten;
pub(crate) mod lower;
pub(crate) mod relayout;
pub(crate) mod space;

pub use lower::lower;
pub use relayout::COPIES;
pub use space::MapSpace;
