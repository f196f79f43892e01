//! Times of each kernel of a program in its configurations.

pub mod budget_ledger;
pub mod device_bench;
pub mod kernel_space;
pub mod measurement_budget;
pub mod phase_times;
pub mod scratch_operands;
pub mod sweep;
