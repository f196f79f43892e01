//! Retimes the best configurations of each kernel within the step, in turns.
//!
//! A sweep times a kernel alone and repeatedly, so that its tensors are in the caches. In a step the kernel runs on caches that its
//! neighbours have left, and one of several configurations that are equally fast alone may be faster. So the best configurations of each
//! kernel take turns within the step, in the layouts of the plan: one step is a sample of one configuration of every kernel.

use super::{Candidate, Exchange, Execution};
use crate::pipeline::PipelineError;
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::{Executable, KernelSpecs};
use layouts::Store;
use layouts::record::{Outcome, median};
use sdfg::config::KernelConfig;
use sdfg::interpret::{Run, Tensors};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Configurations of a kernel that take turns, including the selected one: the most, and the least where steps are long.
const TURNS: usize = 6;
const FEWEST: usize = 2;
/// The largest ratio of a configuration's time alone to that of the selected one.
const SLOWER: f64 = 1.1;
/// Samples of each configuration: the least, and the most.
const LEAST: usize = 3;
const MOST: usize = 15;

/// How many times the limit the fewest samples may take, and how long in any case.
const FAR_BEYOND: u32 = 8;
const SHORT: Duration = Duration::from_secs(1);

/// A configuration that takes its turns.
struct Turn {
    config: KernelConfig,
    alone_ms: f64,
    executable: Arc<dyn Executable>,
    samples: Vec<f64>,
}

/// The candidate with every kernel in the configuration that is fastest within the step. `None` if nothing changes, or if the device runs
/// a step as one recording, so that single kernels cannot be timed.
pub fn tune_in_step(
    candidate: &Candidate,
    store: &Store,
    (tensors, run): (&Tensors, &Run),
    pool: &Pool,
    device: &Arc<dyn Device>,
    limit: Duration,
) -> Result<Option<Candidate>, PipelineError> {
    if device.records() {
        return Ok(None);
    }
    let mut execution = Execution::of(candidate, device)?;
    execution.load(tensors)?;
    // As many configurations take turns as have their samples within the time; a step of a large program takes a second.
    let begin = Instant::now();
    execution.apart(pool, run, 0)?;
    let most = turns(limit, begin.elapsed());
    // Of long steps it would take far longer than that, and kernels that run so long begin with caches of their own making.
    if begin.elapsed() * (FEWEST * (LEAST + 1)) as u32 > (FAR_BEYOND * limit).max(SHORT) {
        return Ok(None);
    }
    let mut lanes: Vec<(usize, Vec<Turn>)> = Vec::new();
    let names: Vec<String> = execution.launches().map(|(name, _)| name.to_string()).collect();
    let specs = KernelSpecs::of(&candidate.program);
    for (_, _, unit) in candidate.program.units() {
        let spec = specs.spec(&unit)?;
        let (Some(launch), Some(chosen)) =
            (names.iter().position(|name| *name == spec.name), candidate.configuration.kernels.get(&spec.name))
        else {
            continue;
        };
        let mut options = Vec::new();
        for (config, alone_ms) in alike(store, &spec.key(), chosen, most) {
            if let Some(executable) = execution.instead(launch, &spec, &config)? {
                options.push(Turn { config, alone_ms, executable, samples: vec![] });
            }
        }
        if options.len() > 1 {
            lanes.push((launch, options));
        }
    }
    let Some(most) = lanes.iter().map(|(_, options)| options.len()).max() else { return Ok(None) };
    let begin = Instant::now();
    for turn in 0.. {
        // The first round of turns is no sample: the first run of a kernel prepares its memory.
        let (round, enough) = (turn / most, begin.elapsed() >= limit);
        if round > MOST || (round > LEAST && enough) {
            break;
        }
        // Each kernel starts at another turn, so that neighbours do not always change together.
        let now = |lane: usize, options: &[Turn]| (turn + lane) % options.len();
        for (lane, (launch, options)) in lanes.iter().enumerate() {
            execution.exchange(*launch, options[now(lane, options)].executable.clone());
        }
        let times = execution.apart(pool, run, 0)?;
        for (lane, (launch, options)) in lanes.iter_mut().enumerate().filter(|_| round > 0) {
            let now = now(lane, options);
            options[now].samples.extend(times.launches_ms.get(*launch));
        }
    }
    let mut found = candidate.clone();
    for (launch, options) in &lanes {
        let ms = |option: &Turn| median(&option.samples).unwrap_or(f64::INFINITY);
        let Some(best) = options.iter().min_by(|a, b| ms(a).total_cmp(&ms(b))) else { continue };
        if best.config == options[0].config {
            continue;
        }
        found.predicted_ms += best.alone_ms - options[0].alone_ms;
        let kernel = names[*launch].clone();
        let chosen = found.configuration.kernels.insert(kernel.clone(), best.config.clone());
        let chosen = chosen.unwrap_or_else(|| options[0].config.clone());
        match found.exchanges.iter_mut().find(|e| e.kernel == kernel) {
            Some(exchange) => exchange.taken_ms = ms(best),
            None => found.exchanges.push(Exchange { kernel, chosen, chosen_ms: ms(&options[0]), taken_ms: ms(best) }),
        }
    }
    // A later exchange may return to the configuration that was selected at first.
    let taken = &found.configuration.kernels;
    found.exchanges.retain(|e| taken.get(&e.kernel) != Some(&e.chosen));
    if found.exchanges.is_empty() || found.configuration == candidate.configuration {
        return Ok(None);
    }
    found.name = format!("{} · in the step", candidate.name);
    Ok(Some(found))
}

/// How many configurations of a kernel take turns within a time, of steps that take so long.
fn turns(limit: Duration, step: Duration) -> usize {
    let steps = limit.as_secs_f64() / step.as_secs_f64().max(1e-9);
    ((steps / (1 + LEAST) as f64) as usize).clamp(FEWEST, TURNS)
}

/// The selected configuration of a kernel and the fastest others in the same layouts, with their times alone in milliseconds.
fn alike(store: &Store, key: &str, chosen: &KernelConfig, most: usize) -> Vec<(KernelConfig, f64)> {
    let Some(own) = store.get(key, chosen).and_then(|record| store.ms(record)) else { return vec![] };
    let mut others: Vec<(KernelConfig, f64)> = store
        .of(key)
        // Configurations recorded as identical to another one add nothing.
        .filter(|m| matches!(m.outcome, Outcome::Measured { .. }) && m.config != *chosen && m.config.layouts == chosen.layouts)
        .filter_map(|m| Some((m.config.clone(), store.ms(m).filter(|ms| *ms <= own * SLOWER)?)))
        .collect();
    others.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    others.truncate(most - 1);
    std::iter::once((chosen.clone(), own)).chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_configurations_take_turns_where_steps_are_long() {
        let of = |limit, step| turns(Duration::from_millis(limit), Duration::from_millis(step));
        assert_eq!([of(1000, 1), of(1000, 60), of(1000, 500), of(1000, 0), of(0, 5)], [6, 4, 2, 6, 2]);
    }
}
