//! A kernel that is ready to run: as a whole, or phase by phase beside others.

use crate::c_form::CForm;
use crate::error::KernelError;
use crate::phases::{PartitionIndex, Phase, PhaseRun, WorkerShare};
use crate::pool::Working;
use crate::run_context::{Completion, RunContext};
use serde::{Deserialize, Serialize};

/// A kernel under one configuration, ready to run.
pub trait Executable: Send + Sync {
    /// Runs on all workers of the context's pool.
    ///
    /// # Errors
    /// A wrong number of arguments; scratch memory that cannot be had.
    ///
    /// # Safety
    /// `arguments` are in the order of [`crate::KernelSpec::arguments`]; each points to a whole container, aligned to 64 bytes and
    /// laid out as the configuration says; those written overlap with no other, but for what the configuration says is
    /// written in place, which may start where the other does.
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError>;

    /// What a run consists of between its barriers, in order; `None` for kernels that give out their work by themselves.
    fn phases(&self) -> Option<Vec<Phase>> {
        None
    }

    /// How its points can be divided among workers by their positions along an index.
    fn partition(&self) -> Option<PartitionIndex> {
        None
    }

    /// Whether what a worker leaves in its own working memory is needed by a later phase.
    fn keeps_own_memory(&self) -> bool {
        false
    }

    /// Does a worker's share of a phase. False if it stopped at the deadline.
    ///
    /// # Safety
    /// As for [`Executable::run`]; the working memory is all that [`Executable::working`] asks for; all phases before this one are complete
    /// as far as this share needs them.
    unsafe fn work(&self, _phase: usize, _worker: usize, _share: WorkerShare, _run: &PhaseRun) -> bool {
        true
    }

    /// Runs the kernels that it is made of one by one, each with barriers of its own, and says what each of them took; `None` for what is
    /// one kernel, which then has not run.
    ///
    /// # Errors
    /// As for [`Executable::run`].
    ///
    /// # Safety
    /// As for [`Executable::run`].
    unsafe fn run_members(&self, _arguments: &[*mut u8], _context: &RunContext) -> Result<Option<Vec<MemberTimes>>, KernelError> {
        Ok(None)
    }

    /// Whether several plans may hold the same instance: it keeps nothing from one run to the next.
    fn is_shareable(&self) -> bool {
        false
    }

    /// What is wrong with the rows that elements of its arguments have named since this was last asked: a number that names none.
    fn missing_row(&self) -> Option<KernelError> {
        None
    }

    /// Memory that it takes from the pool while it runs, besides its arguments.
    fn working(&self) -> Working {
        Working::default()
    }

    /// Memory of one worker for values that stay within the kernel.
    fn on_chip(&self) -> OnChipMemory {
        OnChipMemory::default()
    }

    /// What code without this crate needs to run it; `None` where there is no C of it.
    fn as_c(&self) -> Option<CForm<'_>> {
        None
    }

    /// The generated code, if there is any.
    fn source(&self) -> Option<&str> {
        None
    }

    /// The generated library that the code calls, if there is any.
    fn library(&self) -> Option<&str> {
        None
    }

    /// What each of its functions needs on a GPU; empty elsewhere.
    fn resources(&self) -> &[Resources] {
        &[]
    }
}

/// Bytes of a worker's memory for values that stay within a kernel: tiles, rows and packed operands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnChipMemory {
    pub allocated: u64,
    /// If no value took over the place of an earlier one.
    pub requested: u64,
}

/// What a kernel of a loop's body took in one run of the loop, all times together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberTimes {
    pub name: String,
    /// How often it ran.
    pub runs: u64,
    /// How often it gave work to the pool, each time with a barrier.
    pub dispatches: u64,
    pub ms: f64,
    pub on_chip: OnChipMemory,
}

/// What one kernel function needs on the GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    pub function: String,
    /// Of one thread.
    pub registers: u32,
    /// Bytes of one thread's stack, and of it what registers were spilled to.
    pub stack: u32,
    pub spill_stores: u32,
    pub spill_loads: u32,
    /// Bytes of static shared memory of a block.
    pub shared: u32,
}
