//! Times ours and the peers in turns: in every round, ours and then a peer, for each peer.

use super::contender::PeerContender;
use super::load::{Others, own};
use super::worker::{PeerStep, SETTLE, Worker};
use super::{CompareError, Ours, Setup, StepTime, interrupted};

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

/// The caches and threads are in the state that another contender left, so an untimed step warms up first.
fn our_turn(ours: &mut dyn Ours, dropout: bool, besides: &mut Others) -> Result<StepTime, CompareError> {
    std::thread::sleep(SETTLE);
    ours.step(dropout)?;
    let before = own();
    let spent = |_: &StepTime| Some(own()? - before?);
    Ok(besides.during(|| ours.step(dropout), spent)?)
}

fn their_turn(runner: &mut Runner, dropout: bool) -> Result<PeerStep, CompareError> {
    std::thread::sleep(SETTLE);
    runner.worker.step(dropout)?;
    let worker = &mut runner.worker;
    runner.others.during(|| worker.step(dropout), |step| Some(step.cpu_s))
}
