//! Where kernels run.

pub mod cpu;
pub mod shim;
