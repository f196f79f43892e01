//! Measures how PyTorch's threads wait for work best: spinning, the default, or asleep.
//!
//! The faster way depends on the machine and its load, and a process can only set it in its environment at the start. So it is measured
//! once, in turns, on the first contender, and every contender gets the faster way.

use super::contender::{Framework, PeerContender, PeerVariant};
use super::race::{TURN, WARM};
use super::worker::{SETTLE, Wait, Worker};
use super::{CompareError, Setup};
use bench::stats::Samples;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// Timed steps of each way.
const ROUNDS: usize = 7;

/// The measured milliseconds of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Probe {
    pub chosen: Wait,
    pub default_ms: Vec<f64>,
    pub passive_ms: Vec<f64>,
}

/// Measures both ways with the first contender of PyTorch, preferably one without compilation.
///
/// # Errors
/// [`CompareError::Start`]. A contender that fails decides nothing: its own check reports the failure.
pub fn probe(setup: &Setup, model: &Value, given: &Path) -> Result<Probe, CompareError> {
    let torch = || setup.contenders.iter().filter(|c| c.variant.framework() == Framework::Torch);
    let plain = torch().find(|c| matches!(c.variant, PeerVariant::Eager | PeerVariant::Sdpa));
    let Some(contender) = plain.or_else(|| torch().next()) else { return Ok(Probe::default()) };
    match both(setup, contender, model, given) {
        Err(error @ CompareError::Start { .. }) => Err(error),
        other => Ok(other.unwrap_or_default()),
    }
}

fn both(setup: &Setup, contender: &PeerContender, model: &Value, given: &Path) -> Result<Probe, CompareError> {
    let ready = |wait: Wait| {
        let mut worker = Worker::start(contender, setup.threads, setup.folder, wait)?;
        worker.load(model, given)?;
        Ok::<Worker, CompareError>(worker)
    };
    let (mut default, mut passive) = (ready(Wait::Default)?, ready(Wait::Passive)?);
    let mut probe = Probe::default();
    for _ in 0..ROUNDS {
        for (worker, samples) in [(&mut default, &mut probe.default_ms), (&mut passive, &mut probe.passive_ms)] {
            std::thread::sleep(SETTLE);
            worker.step(setup.dropout, WARM)?;
            samples.push(worker.step(setup.dropout, TURN)?.step_ms);
        }
    }
    if Samples::new(probe.passive_ms.clone())?.median() < Samples::new(probe.default_ms.clone())?.median() {
        probe.chosen = Wait::Passive;
    }
    Ok(probe)
}
