//! Packing: independent kernels in one dispatch (Long, Yang and Lin, "FusionStitching", arXiv:1911.11576, section 5.1).
//!
//! Kernels of any iteration spaces are packed: each worker does its share of the first one's phase, then of the second one's, and all meet
//! at one barrier where each kernel alone would have had one of its own.

use crate::error::KernelError;
use crate::kernel::{Completion, Executable, Phases, RunContext, WorkingMemory};
use crate::pool::Working;

/// Every kernel's part of working memory begins on a line of its own.
const LINE: usize = 64;

/// Working memory of kernels that run beside one another.
fn together(members: &[(&dyn Executable, Vec<*mut u8>)]) -> (Vec<Working>, Working) {
    let line = |bytes: usize| bytes.next_multiple_of(LINE);
    let (mut places, mut all) = (Vec::new(), Working::default());
    for (executable, _) in members {
        let needs = executable.working();
        places.push(all);
        all = Working { own: all.own + line(needs.own), shared: all.shared + line(needs.shared) };
    }
    (places, all)
}

/// Runs kernels that need nothing of one another, each with its arguments, in as many dispatches as the one with most phases has.
///
/// # Errors
/// As for [`Executable::phases`].
///
/// # Safety
/// As for [`Executable::run`]; and none of them writes what another one reads or writes.
pub unsafe fn run_packed(members: &[(&dyn Executable, Vec<*mut u8>)], context: &RunContext) -> Result<Completion, KernelError> {
    let (places, all) = together(members);
    let mut held = context.pool.scratch(all)?;
    let (own, stride, shared_at) = (held.as_mut_ptr(), held.stride(), held.shared_at());
    let mut runs: Vec<Box<dyn Phases + '_>> = Vec::new();
    for ((executable, arguments), place) in members.iter().zip(places) {
        // SAFETY: the buffer holds the parts of all workers, each as large as all kernels need, then what they share.
        let memory = unsafe { WorkingMemory { own: own.add(place.own), stride, shared: own.add(shared_at + place.shared) } };
        // SAFETY: as promised by the caller.
        runs.push(unsafe { executable.phases(arguments, context, memory)? });
    }
    for phase in 0..runs.iter().map(|run| run.count()).max().unwrap_or(0) {
        let present = || runs.iter().filter(|run| phase < run.count());
        if present().all(|run| run.is_serial(phase)) {
            present().for_each(|run| run.work(phase, 0));
            continue;
        }
        context.pool.broadcast(|worker| {
            for run in present().filter(|run| worker == 0 || !run.is_serial(phase)) {
                run.work(phase, worker);
            }
        });
    }
    Ok(Completion::Done)
}
