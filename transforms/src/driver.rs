//! Applies transforms until none applies, and says why it stopped.

use crate::boundary::kind_of;
use crate::known::Known;
use crate::patch::{Change, Patch, PatchError};
use crate::transform::{Barred, Refusal, Site, Transform};
use sdfg::{Memlet, NodeId, Sdfg, StateId};
use serde::Serialize;
use std::sync::LazyLock;

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
    /// Patches that are not applied.
    pub barred: &'a Barred,
}

static NONE: LazyLock<Barred> = LazyLock::new(Barred::default);

impl Default for Options<'_> {
    fn default() -> Self {
        Options { step_limit: 10_000, verify: None, barred: &NONE }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Patch(#[from] PatchError),
    #[error("after the patch `{summary}` the program computes something else: {difference}")]
    Verification { transform: &'static str, summary: String, difference: String },
}

/// Bytes that cross the boundary of top-level units: distinct elements per unit and container.
pub fn moved_bytes(program: &Sdfg) -> u64 {
    Cost::of(program).total()
}

/// What a step is judged by.
#[derive(Clone, Copy)]
struct Cost {
    /// Wide enough for the sum of all units, so that what a patch changes can be taken away and added.
    bytes: u128,
    launches: usize,
}

impl Cost {
    fn of(program: &Sdfg) -> Cost {
        let all = program.states().flat_map(|(id, state)| state.members(None).map(move |node| (id, node)));
        all.fold(Cost { bytes: 0, launches: 0 }, |cost, unit| cost.with(program, unit))
    }

    fn unit(program: &Sdfg, (state, node): (StateId, NodeId)) -> Cost {
        let Some(state) = program.state(state).filter(|state| kind_of(state, node).is_some()) else {
            return Cost { bytes: 0, launches: 0 };
        };
        let (reads, writes) = state.boundary(node);
        Cost { bytes: reads.into_iter().chain(writes).map(|memlet| u128::from(bytes(program, memlet))).sum(), launches: 1 }
    }

    fn with(self, program: &Sdfg, unit: (StateId, NodeId)) -> Cost {
        let unit = Cost::unit(program, unit);
        Cost { bytes: self.bytes + unit.bytes, launches: self.launches + unit.launches }
    }

    fn without(self, program: &Sdfg, unit: (StateId, NodeId)) -> Cost {
        let unit = Cost::unit(program, unit);
        Cost { bytes: self.bytes.saturating_sub(unit.bytes), launches: self.launches.saturating_sub(unit.launches) }
    }

    fn total(self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }
}

fn bytes(program: &Sdfg, memlet: &Memlet) -> u64 {
    let Some(container) = program.containers.get(&memlet.data) else { return 0 };
    let elements =
        memlet.subset.iter().try_fold(1u64, |n, r| r.count().eval(&program.sizes).ok().map(|c| n.saturating_mul(c.max(0) as u64)));
    container.dtype.bytes(elements.unwrap_or(0))
}

/// Applies a transform to each of these sites once. The sites have no unit in common.
pub fn apply(program: &Sdfg, transform: &dyn Transform, sites: &[Site], options: &Options) -> Result<Outcome, DriverError> {
    let mut log = Log::new(program);
    let mut refusals = Vec::new();
    for site in sites {
        match transform.plan(&log.program, site) {
            Ok(_) if log.steps.len() >= options.step_limit => return Ok(log.stopped(refusals, Stop::StepLimit(options.step_limit))),
            Ok(patch) if options.barred.has(&patch) => refusals.push(options.barred.refusal(transform.name(), &log.program, site)),
            Ok(patch) => _ = log.apply(transform.name(), patch, options)?,
            Err(refusal) => refusals.push(*refusal),
        }
    }
    Ok(log.stopped(refusals, Stop::Fixpoint))
}

/// A program on its way, and the patches applied so far.
struct Log {
    program: Sdfg,
    cost: Cost,
    steps: Vec<Step>,
}

impl Log {
    fn new(program: &Sdfg) -> Self {
        Log { program: program.clone(), cost: Cost::of(program), steps: vec![] }
    }

    fn apply(&mut self, transform: &'static str, patch: Patch, options: &Options) -> Result<Vec<Change>, DriverError> {
        let previous = options.verify.map(|verify| (verify, self.program.clone()));
        let removed = patch.edits.iter().flat_map(|e| e.remove.iter().map(|node| (e.state, *node)));
        let rest = removed.fold(self.cost, |cost, unit| cost.without(&self.program, unit));
        let summary = patch.summary.clone();
        let changes = patch.apply(&mut self.program)?;
        if let Some((verify, previous)) = previous {
            verify(&previous, &self.program).map_err(|difference| DriverError::Verification {
                transform,
                summary: summary.clone(),
                difference,
            })?;
        }
        let inserted = changes.iter().flat_map(|c| c.inserted.iter().map(|node| (c.state, *node)));
        let (before, after) = (self.cost, inserted.fold(rest, |cost, unit| cost.with(&self.program, unit)));
        self.steps.push(Step {
            transform,
            summary,
            bytes_before: before.total(),
            bytes_after: after.total(),
            launches_before: before.launches,
            launches_after: after.launches,
        });
        self.cost = after;
        Ok(changes)
    }

    fn stopped(self, refusals: Vec<Refusal>, stop: Stop) -> Outcome {
        Outcome { program: self.program, steps: self.steps, refusals, stop }
    }
}

/// Applies the transforms, in their order, to a fixed point: after each patch it starts again with the first transform.
pub fn fixpoint(program: &Sdfg, transforms: &[&dyn Transform], options: &Options) -> Result<Outcome, DriverError> {
    let mut log = Log::new(program);
    let mut known: Vec<Known> = transforms.iter().map(|_| Known::default()).collect();
    'again: loop {
        let mut refusals = Vec::new();
        for (n, transform) in transforms.iter().enumerate() {
            match transform.first(&log.program, &mut known[n], options.barred) {
                Ok(_) if log.steps.len() >= options.step_limit => return Ok(log.stopped(refusals, Stop::StepLimit(options.step_limit))),
                Ok(patch) => {
                    for change in log.apply(transform.name(), patch, options)? {
                        known.iter_mut().for_each(|known| known.forget(&change));
                    }
                    continue 'again;
                }
                Err(refused) => refusals.extend(refused),
            }
        }
        return Ok(log.stopped(refusals, Stop::Fixpoint));
    }
}
