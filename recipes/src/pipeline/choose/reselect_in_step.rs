//! Reselects layouts by the times that kernels take within the step.
//!
//! Times of kernels alone serve well for choosing among configurations of one kernel, but less well among layouts. In the step a kernel
//! finds less of its data in the caches, which costs more in some layouts than in others. Selection also favours configurations with lucky
//! timings. So times within the step replace times alone, and the selection is repeated. Newly selected configurations are timed within
//! the step in turn, until the selection repeats or the time is up. The best candidate that was run is taken.
//!
//! A configuration that no step has run is estimated by its time alone plus, for each byte of its tensors, the median excess that others
//! showed in the step. The machine's speed may change between rounds, so times of a round are scaled by the kernels that an earlier round
//! ran too.

use crate::pipeline::PipelineError;
use crate::pipeline::measure::SweptProgram;
use crate::pipeline::run::{Candidate, Exchange, Execution, Timed};
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::{KernelSpec, KernelSpecs};
use layouts::record::{Measurement, median};
use layouts::{Method, Store};
use sdfg::config::KernelConfig;
use sdfg::interpret::{Run, Tensors};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Timed steps of a round, and the least where steps are long. One untimed step precedes them: the first run of a kernel prepares its
/// memory.
const STEPS: usize = 5;
const LEAST: usize = 2;
/// The most rounds.
const ROUNDS: usize = 24;

/// The selection by times within the step.
pub struct Reselected {
    pub candidate: Candidate,
    /// Milliseconds of a step, expected by these times.
    pub step_ms: f64,
}

/// Samples within steps in milliseconds, by kernel key and by the identity of the configuration's code and layouts.
struct Seen<'a> {
    store: &'a Store,
    samples: BTreeMap<(String, String), Vec<f64>>,
}

/// The kernels of a candidate, each with its configuration and its time within a step.
type Lanes = Vec<(KernelSpec, KernelConfig, f64)>;

impl Seen<'_> {
    fn place(&self, key: &str, config: &KernelConfig) -> Option<(String, String)> {
        let record = self.store.get(key, config)?;
        let identity = if record.identity.is_empty() { config.to_string() } else { record.identity.clone() };
        Some((key.to_string(), identity))
    }

    fn ms(&self, key: &str, config: &KernelConfig) -> Option<f64> {
        median(self.samples.get(&self.place(key, config)?)?)
    }

    /// Adds the times of a step, scaled to the machine's earlier speed by the kernels that earlier steps ran as well.
    fn learn(&mut self, lanes: &Lanes) {
        let pace = |(spec, config, ms): &(KernelSpec, KernelConfig, f64)| Some(ms / self.ms(&spec.key(), config)?);
        let pace = median(&lanes.iter().filter_map(pace).collect::<Vec<_>>()).unwrap_or(1.0);
        for (spec, config, ms) in lanes {
            if let Some(place) = self.place(&spec.key(), config) {
                self.samples.entry(place).or_default().push(ms / pace);
            }
        }
    }

    /// The measurements with times within the step: observed ones, and estimates for other configurations of the program's kernels.
    fn store(&self, swept: &SweptProgram) -> Store {
        let sizes: BTreeMap<&str, u64> = swept.problem.tensors.iter().map(|t| (t.data.as_str(), t.bytes)).collect();
        let bytes: BTreeMap<&str, f64> = swept
            .problem
            .kernels
            .iter()
            .map(|k| (k.key.as_str(), k.tensors.iter().filter_map(|(data, _)| sizes.get(data.as_str())).sum::<u64>() as f64))
            .collect();
        let more = |m: &Measurement| -> Option<f64> {
            let (of, seen) = (bytes.get(m.key.as_str())?, self.ms(&m.key, &m.config)?);
            Some((seen - self.store.ms(m)?) / of)
        };
        let each = median(&self.store.all().filter_map(more).collect::<Vec<_>>()).unwrap_or(0.0).max(0.0);
        self.store.with_times(|m, alone| {
            let Some(of) = bytes.get(m.key.as_str()) else { return alone };
            self.ms(&m.key, &m.config).unwrap_or(alone + each * of)
        })
    }
}

/// The kernels of a candidate with their times by launch.
fn lanes(candidate: &Candidate, ms: &BTreeMap<String, f64>) -> Result<Lanes, PipelineError> {
    let mut found = Lanes::new();
    for (_, _, unit) in candidate.program.units() {
        let Some(config) = candidate.configuration.kernels.get(unit.name()) else { continue };
        if let Some(ms) = ms.get(unit.name()) {
            found.push((KernelSpec::new(&candidate.program, &unit)?, config.clone(), *ms));
        }
    }
    Ok(found)
}

/// Sum of the times of a candidate's kernels, without relayouts.
fn total(candidate: &Candidate, store: &Store) -> Result<f64, PipelineError> {
    let mut sum = 0.0;
    let specs = KernelSpecs::of(&candidate.program);
    for (_, _, unit) in candidate.program.units() {
        let Some(config) = candidate.configuration.kernels.get(unit.name()) else { continue };
        let key = specs.spec(&unit)?.key();
        sum += store.get(&key, config).and_then(|record| store.ms(record)).unwrap_or(0.0);
    }
    Ok(sum)
}

/// The best selection for a program by times within the step, if it is not among those that were timed already. `known` are candidates
/// with their times from one race, including the first selection for the program.
pub fn reselect_in_step(
    swept: &SweptProgram,
    known: &[(&Candidate, &Timed)],
    store: &Store,
    (tensors, run): (&Tensors, &Run),
    pool: &Pool,
    device: &Arc<dyn Device>,
    limit: Duration,
) -> Result<Option<Reselected>, PipelineError> {
    // A device that runs a step as one recording cannot time single kernels within it.
    if device.records() {
        return Ok(None);
    }
    let mut seen = Seen { store, samples: BTreeMap::new() };
    for (candidate, timed) in known {
        let ms = timed.launches.iter().filter_map(|(name, _, ms)| Some((name.clone(), median(ms)?))).collect();
        // The candidates took turns, so they all met the same machine speed.
        for (spec, config, ms) in lanes(candidate, &ms)? {
            if let Some(place) = seen.place(&spec.key(), &config) {
                seen.samples.entry(place).or_default().push(ms);
            }
        }
    }
    // Two rounds at least, where the time allows that.
    let step_ms = known.iter().filter_map(|(_, timed)| median(&timed.step.samples)).fold(f64::INFINITY, f64::min);
    let steps = (limit.as_secs_f64() * 1e3 / 2.0 / step_ms) as usize;
    let steps = steps.saturating_sub(1).clamp(LEAST, STEPS);
    let mut tried: Vec<Candidate> = Vec::new();
    let begin = Instant::now();
    for round in 0..ROUNDS {
        let times = seen.store(swept);
        let candidate = swept.candidate(&swept.select(&times, Method::Exact)?);
        let same = |other: &Candidate| other.configuration == candidate.configuration;
        let settled = known.iter().any(|(other, _)| same(other)) || tried.iter().any(same);
        if settled || (round > 0 && begin.elapsed() >= limit) {
            break;
        }
        let mut execution = Execution::of(&candidate, device)?;
        execution.load(tensors)?;
        let mut samples: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for step in 0..=steps {
            let times = execution.apart(pool, run, 0)?;
            for ((name, _), ms) in execution.launches().zip(times.launches_ms).filter(|_| step > 0) {
                samples.entry(name.to_string()).or_default().push(ms);
            }
        }
        let ms = samples.into_iter().filter_map(|(name, ms)| Some((name, median(&ms)?))).collect();
        seen.learn(&lanes(&candidate, &ms)?);
        // The time of relayouts alone; kernel times are added after all rounds.
        let predicted_ms = candidate.predicted_ms - total(&candidate, &times)?;
        tried.push(Candidate { predicted_ms, ..candidate });
    }
    let times = seen.store(swept);
    let mut best: Option<Reselected> = None;
    for candidate in tried {
        let step_ms = candidate.predicted_ms + total(&candidate, &times)?;
        if best.as_ref().is_none_or(|best| step_ms < best.step_ms) {
            best = Some(Reselected { candidate, step_ms });
        }
    }
    let first = known.iter().map(|(candidate, _)| *candidate).find(|candidate| candidate.program == swept.program);
    let (Some(mut best), Some(first)) = (best, first) else { return Ok(None) };
    let taken_again = &mut best.candidate;
    // The sum of times alone, as in other candidates.
    taken_again.predicted_ms += total(taken_again, store)?;
    taken_again.name = format!("{}, chosen again", taken_again.name);
    for (_, _, unit) in first.program.units() {
        let name = unit.name();
        let (Some(chosen), Some(taken)) = (first.configuration.kernels.get(name), taken_again.configuration.kernels.get(name)) else {
            continue;
        };
        let key = KernelSpec::new(&first.program, &unit)?.key();
        if let (true, Some(chosen_ms), Some(taken_ms)) = (chosen != taken, seen.ms(&key, chosen), seen.ms(&key, taken)) {
            taken_again.exchanges.push(Exchange { kernel: name.to_string(), chosen: chosen.clone(), chosen_ms, taken_ms });
        }
    }
    Ok(Some(best).filter(|best| !best.candidate.exchanges.is_empty()))
}
