//! Times ours and the peers in turns: in every round, ours and then a peer, for each peer.

use super::contender::PeerContender;
use super::load::{Others, own};
use super::worker::{PeerStep, SETTLE, Worker};
use super::{CompareError, Ours, Setup, StepTime, interrupted};
use crate::pipeline::PipelineError;
use std::time::{Duration, Instant};

/// A peer that passed its check, and its samples.
pub struct Runner {
    pub contender: PeerContender,
    pub worker: Worker,
    /// One sample for each round; `ours` are our turns just before.
    pub theirs: Vec<PeerStep>,
    pub ours: Vec<StepTime>,
    pub others: Others,
    pub failed: Option<CompareError>,
}

impl Runner {
    pub fn new(contender: PeerContender, worker: Worker) -> Self {
        Runner { contender, worker, theirs: vec![], ours: vec![], others: Others::default(), failed: None }
    }
}

/// Runs all rounds; without dropout for a peer that has none. A peer that fails drops out; our failure ends the race. Returns the load of
/// other processes during our turns.
///
/// # Errors
/// Errors of our plan; [`CompareError::Interrupted`].
pub fn race(ours: &mut dyn Ours, runners: &mut [Runner], setup: &Setup, progress: &mut dyn FnMut(&str)) -> Result<Others, CompareError> {
    let mut besides = Others::default();
    for round in 0..setup.rounds {
        progress(&format!("round {} of {}", round + 1, setup.rounds));
        for runner in runners.iter_mut().filter(|r| r.failed.is_none()) {
            let dropout = setup.dropout && !runner.contender.variant.forward_only();
            let ours = our_turn(ours, dropout, &mut besides)?;
            match their_turn(runner, dropout) {
                Ok(theirs) => {
                    runner.ours.push(ours);
                    runner.theirs.push(theirs);
                }
                Err(error) => runner.failed = Some(error),
            }
            interrupted(setup)?;
        }
    }
    Ok(besides)
}

/// How long a contender steps untimed: caches, threads and clocks are in the state that another one left.
pub const WARM: Duration = Duration::from_millis(10);
/// How long it then steps on the clock. A step of few milliseconds is repeated, since a single one, behind a pause, tells more of clocks
/// and schedulers than of the step.
pub const TURN: Duration = Duration::from_millis(30);

fn our_turn(ours: &mut dyn Ours, dropout: bool, besides: &mut Others) -> Result<StepTime, CompareError> {
    std::thread::sleep(SETTLE);
    steps(ours, dropout, WARM)?;
    let before = own();
    let spent = |_: &StepTime| Some(own()? - before?);
    Ok(besides.during(|| steps(ours, dropout, TURN), spent)?)
}

/// Medians of the times of steps within some time, of one at least.
fn steps(ours: &mut dyn Ours, dropout: bool, time: Duration) -> Result<StepTime, PipelineError> {
    let (begin, mut found) = (Instant::now(), vec![ours.step(dropout)?]);
    while begin.elapsed() < time {
        found.push(ours.step(dropout)?);
    }
    let of = |part: fn(&StepTime) -> f64| layouts::record::median(&found.iter().map(part).collect::<Vec<_>>()).unwrap_or(f64::NAN);
    Ok(StepTime { forward_ms: of(|s| s.forward_ms), backward_ms: of(|s| s.backward_ms), step_ms: of(|s| s.step_ms) })
}

fn their_turn(runner: &mut Runner, dropout: bool) -> Result<PeerStep, CompareError> {
    std::thread::sleep(SETTLE);
    runner.worker.step(dropout, WARM)?;
    let worker = &mut runner.worker;
    runner.others.during(|| worker.step(dropout, TURN), |step| Some(step.cpu_s))
}
