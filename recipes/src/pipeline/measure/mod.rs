//! Times of each kernel of a program in its configurations.

pub mod budget_ledger;
pub mod budget_policy;
pub mod device_bench;
pub mod dim_order;
pub mod launch_and_copy;
pub mod measurement_budget;
pub mod memory_limit;
pub mod phase_times;
pub mod scratch_operands;
pub mod sweep;
pub mod swept_kernel;

pub use budget_ledger::BudgetLedger;
pub use budget_policy::BudgetPolicy;
pub use dim_order::pytorch_order;
pub use measurement_budget::{MarkedKernels, MeasurementBudget};
pub use memory_limit::MemoryLimit;
pub use sweep::{QUICK, SweepContext, SweepEvent, SweepExtent, SweptProgram, build_problem, sweep_posed, sweep_program};
pub use swept_kernel::SweptKernel;
