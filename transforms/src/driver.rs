//! Applies transforms until none applies, and says why it stopped.

use crate::patch::PatchError;
use crate::transform::{Refusal, Transform};
use sdfg::Sdfg;
use serde::Serialize;

/// Why the driver stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Stop {
    /// No transform applies anywhere.
    Fixpoint,
    StepLimit(usize),
}

/// One applied patch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    pub transform: &'static str,
    pub summary: String,
    /// Bytes moved by the whole program, distinct elements per unit and container, before and after.
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub launches_before: usize,
    pub launches_after: usize,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub program: Sdfg,
    pub steps: Vec<Step>,
    /// What was still refused in the final program.
    pub refusals: Vec<Refusal>,
    pub stop: Stop,
}

/// Compares the program before a patch with the one after it; the error says what differs.
pub type Verify<'a> = &'a dyn Fn(&Sdfg, &Sdfg) -> Result<(), String>;

pub struct Options<'a> {
    pub step_limit: usize,
    /// Called after every patch; an error stops the driver and names the patch.
    pub verify: Option<Verify<'a>>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options { step_limit: 10_000, verify: None }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Patch(#[from] PatchError),
    #[error("after the patch `{summary}` the program computes something else: {difference}")]
    Verification { summary: String, difference: String },
}

/// Bytes that cross the boundary of top-level units: distinct elements per unit and container.
pub fn moved_bytes(program: &Sdfg) -> u64 {
    let mut total = 0u64;
    for (_, state) in program.states() {
        for (node, _) in state.units() {
            let (reads, writes) = state.boundary(node);
            for memlet in reads.into_iter().chain(writes) {
                let Some(container) = program.containers.get(&memlet.data) else { continue };
                let elements = memlet
                    .subset
                    .iter()
                    .try_fold(1u64, |n, r| r.count().eval(&program.sizes).ok().map(|c| n.saturating_mul(c.max(0) as u64)));
                total = total.saturating_add(container.dtype.bytes(elements.unwrap_or(0)));
            }
        }
    }
    total
}

/// Applies the transforms, in their order, to a fixed point: after each patch it starts again with the first transform.
pub fn fixpoint(program: &Sdfg, transforms: &[&dyn Transform], options: &Options) -> Result<Outcome, DriverError> {
    let mut program = program.clone();
    let mut steps: Vec<Step> = Vec::new();
    'again: loop {
        let mut refusals = Vec::new();
        for transform in transforms {
            for site in transform.sites(&program) {
                let patch = match transform.plan(&program, &site) {
                    Ok(patch) => patch,
                    Err(refusal) => {
                        refusals.push(*refusal);
                        continue;
                    }
                };
                if steps.len() >= options.step_limit {
                    return Ok(Outcome { program, steps, refusals, stop: Stop::StepLimit(options.step_limit) });
                }
                let mut next = program.clone();
                patch.apply(&mut next)?;
                if let Some(verify) = options.verify {
                    verify(&program, &next)
                        .map_err(|difference| DriverError::Verification { summary: patch.summary.clone(), difference })?;
                }
                steps.push(Step {
                    transform: transform.name(),
                    summary: patch.summary,
                    bytes_before: moved_bytes(&program),
                    bytes_after: moved_bytes(&next),
                    launches_before: program.units().len(),
                    launches_after: next.units().len(),
                });
                program = next;
                continue 'again;
            }
        }
        return Ok(Outcome { program, steps, refusals, stop: Stop::Fixpoint });
    }
}
