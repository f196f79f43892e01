//! Runs passes over a program, in order: the one place where programs are rewritten.
//!
//! Each rewrite is logged with the bytes and launches that it saves, left out where it is barred, and checked where that is asked for.

use crate::pass::{Context, Facts, Loops, Pass, PassError, Promise, Rewrite, Search, Stopped};
use crate::patch::{Change, PatchError};
use crate::refusal::{Barred, Reason, Refusal, Site};
use crate::unit_graph::kind_of;
use sdfg::recurrence::has_loops;
use sdfg::{Memlet, Node, NodeId, Sdfg, StateId, Unit};
use serde::Serialize;
use std::sync::LazyLock;

/// Why the driver stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Stop {
    /// No pass has anything left to rewrite.
    Fixpoint,
    StepLimit(usize),
}

/// One applied rewrite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AppliedRewrite {
    pub transform: &'static str,
    pub summary: String,
    /// Bytes moved by the whole program, distinct elements per unit and container, before and after.
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub launches_before: usize,
    pub launches_after: usize,
}

/// A program on its way through passes, and the log of them.
#[derive(Clone, Debug)]
pub struct PipelineOutcome {
    pub program: Sdfg,
    pub steps: Vec<AppliedRewrite>,
    /// The refusals that each pass ended with.
    pub refusals: Vec<Refusal>,
    pub stop: Stop,
    /// Results of passes that later ones use.
    pub facts: Facts,
}

/// A program before a rewrite and after it, and what has to hold between them.
pub struct RewriteCheck<'a> {
    pub before: &'a Sdfg,
    pub after: &'a Sdfg,
    pub promise: Promise,
}

/// Whether a rewrite keeps its promise; the error says what differs.
pub type Verify<'a> = &'a dyn Fn(&RewriteCheck) -> Result<(), String>;

pub struct DriverOptions<'a> {
    /// Rewrites of one pass.
    pub step_limit: usize,
    /// Called after every rewrite; an error stops the driver and names the rewrite.
    pub verify: Option<Verify<'a>>,
    /// Rewrites that are not applied.
    pub barred: &'a Barred,
}

static NONE: LazyLock<Barred> = LazyLock::new(Barred::default);

impl Default for DriverOptions<'_> {
    fn default() -> Self {
        DriverOptions { step_limit: 10_000, verify: None, barred: &NONE }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum DriverError {
    #[error(transparent)]
    Pass(#[from] PassError),
    #[error("after the patch `{summary}` the program computes something else: {difference}")]
    Verification {
        transform: &'static str,
        summary: String,
        difference: String,
        /// Whether programs can do without the rewrite.
        optional: bool,
    },
}

impl From<PatchError> for DriverError {
    fn from(error: PatchError) -> Self {
        DriverError::Pass(error.into())
    }
}

/// Bytes that cross the boundary of top-level units: distinct elements per unit and container.
pub fn moved_bytes(program: &Sdfg) -> u64 {
    Cost::of(program).total()
}

/// Cost of a program in bytes and launches, as the log reports it.
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

/// Runs passes over a program, in order; a pass that repeats runs until it is refused.
///
/// # Errors
/// A program that a pass cannot rewrite; with [`DriverOptions::verify`], the rewrite that broke its promise.
pub fn run_pipeline(program: &Sdfg, passes: &[&dyn Pass], options: &DriverOptions) -> Result<PipelineOutcome, DriverError> {
    PipelineOutcome::new(program.clone()).then(passes, options)
}

impl PipelineOutcome {
    /// A program before any pass.
    pub fn new(program: Sdfg) -> Self {
        PipelineOutcome { program, steps: vec![], refusals: vec![], stop: Stop::Fixpoint, facts: Facts::default() }
    }

    /// Runs further passes, which know what earlier ones found out.
    ///
    /// # Errors
    /// As [`run_pipeline`].
    pub fn then(mut self, passes: &[&dyn Pass], options: &DriverOptions) -> Result<Self, DriverError> {
        let mut cost = Cost::of(&self.program);
        for pass in passes {
            self.run(*pass, &mut cost, options)?;
        }
        Ok(self)
    }

    /// Runs one pass until it is refused, or once if it does not repeat.
    fn run(&mut self, pass: &dyn Pass, cost: &mut Cost, options: &DriverOptions) -> Result<(), DriverError> {
        let loops = has_loops(&self.program);
        if loops && pass.loops() == Loops::Refused {
            let why = "the program has loops over time, into which this pass does not look".to_string();
            self.refusals.push(at_program(pass, Reason::Unsupported(why)));
            return Ok(());
        }
        if loops && pass.loops() == Loops::Inside {
            self.run_in_bodies(pass, options)?;
            *cost = Cost::of(&self.program);
        }
        let mut search = Search::default();
        let mut applied = 0;
        loop {
            let context = &mut Context { facts: &self.facts, barred: options.barred, search: &mut search };
            let rewritten = match pass.run(&self.program, context) {
                Ok(rewritten) => rewritten,
                Err(Stopped::Refused { refusals, facts }) => {
                    if refusals.is_empty() && applied == 0 {
                        self.refusals.push(at_program(pass, Reason::NothingToRewrite));
                    }
                    self.refusals.extend(refusals);
                    self.facts.extend(*facts);
                    return Ok(());
                }
                Err(Stopped::Failed(error)) => return Err(error.into()),
            };
            if applied == options.step_limit {
                self.stop = Stop::StepLimit(options.step_limit);
                return Ok(());
            }
            if options.barred.has(rewritten.summary()) {
                self.refusals.push(at_program(pass, Reason::FoundWrong));
                return Ok(());
            }
            self.facts.extend(rewritten.facts);
            for change in self.apply(pass, rewritten.rewrite, cost, options)? {
                search.changed(&self.program, &change);
            }
            applied += 1;
            if !pass.repeats() {
                return Ok(());
            }
        }
    }

    /// Runs one pass on the body of each loop.
    fn run_in_bodies(&mut self, pass: &dyn Pass, options: &DriverOptions) -> Result<(), DriverError> {
        let is_loop = |unit: &Unit| matches!(unit, Unit::Nested(nested) if nested.repeat.is_some());
        let found = self.program.units().into_iter().filter(|(_, _, unit)| is_loop(unit));
        for (state, node, unit) in found.collect::<Vec<_>>() {
            let Unit::Nested(nested) = unit else { continue };
            let inside = DriverOptions { verify: None, ..*options };
            let mut body = PipelineOutcome::new(*nested.program);
            body.run(pass, &mut Cost::of(&body.program), &inside)?;
            let summary = |step: AppliedRewrite| AppliedRewrite { summary: format!("in `{}`: {}", nested.name, step.summary), ..step };
            self.steps.extend(body.steps.into_iter().map(summary));
            let previous = options.verify.map(|verify| (verify, self.program.clone()));
            if let Some(Node::Nested(held)) = self.program.state_mut(state).and_then(|s| s.node_mut(node)) {
                *held.program = body.program;
            }
            if let Some((verify, previous)) = previous {
                let check = RewriteCheck { before: &previous, after: &self.program, promise: pass.promise() };
                let (transform, optional) = (pass.name(), pass.is_optional());
                let summary = format!("{} in `{}`", pass.name(), nested.name);
                verify(&check).map_err(|difference| DriverError::Verification { transform, summary, difference, optional })?;
            }
        }
        Ok(())
    }

    /// Applies a rewrite, checks and logs it.
    fn apply(&mut self, pass: &dyn Pass, rewrite: Rewrite, cost: &mut Cost, options: &DriverOptions) -> Result<Vec<Change>, DriverError> {
        let before = *cost;
        let previous = options.verify.map(|verify| (verify, self.program.clone()));
        let (summary, changes) = match rewrite {
            Rewrite::Patch(patch) => {
                let removed = patch.edits.iter().flat_map(|e| e.remove.iter().map(|node| (e.state, *node)));
                let rest = removed.fold(*cost, |cost, unit| cost.without(&self.program, unit));
                let summary = patch.summary.clone();
                let changes = patch.apply(&mut self.program)?;
                let inserted = changes.iter().flat_map(|c| c.inserted.iter().map(|node| (c.state, *node)));
                *cost = inserted.fold(rest, |cost, unit| cost.with(&self.program, unit));
                (summary, changes)
            }
            Rewrite::Program { summary, program } => {
                self.program = *program;
                *cost = Cost::of(&self.program);
                (summary, vec![])
            }
        };
        if let Some((verify, previous)) = previous {
            let check = RewriteCheck { before: &previous, after: &self.program, promise: pass.promise() };
            verify(&check).map_err(|difference| DriverError::Verification {
                transform: pass.name(),
                summary: summary.clone(),
                difference,
                optional: pass.is_optional(),
            })?;
        }
        self.steps.push(AppliedRewrite {
            transform: pass.name(),
            summary,
            bytes_before: before.total(),
            bytes_after: cost.total(),
            launches_before: before.launches,
            launches_after: cost.launches,
        });
        Ok(changes)
    }
}

/// A refusal that is about the whole program.
fn at_program(pass: &dyn Pass, reason: Reason) -> Refusal {
    let site = Site { state: StateId(0), units: vec![] };
    Refusal { transform: pass.name(), site, units: vec![], reason, origin: None }
}
