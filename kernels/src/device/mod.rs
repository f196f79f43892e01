//! Where kernels run.

pub mod cpu;
pub mod cuda;
pub mod shim;
