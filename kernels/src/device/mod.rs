//! Where kernels run.

pub mod cpu;
