//! Finds whether a plan is faster on fewer threads than there are workers, as it may be where other processes use the cores: every kernel
//! ends with its slowest worker, so one that waits for a core delays all.

use super::candidate::Candidate;
use super::execute::Execution;
use crate::pipeline::PipelineError;
use bench::protocol::{Contender, Protocol};
use kernels::device::Device;
use kernels::pool::Pool;
use layouts::record::median;
use sdfg::interpret::{Run, Tensors};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

/// Fewer workers are taken only if their time is below this share of the time of all workers.
const CLEARLY: f64 = 0.97;

/// A smaller pool on which a plan is faster.
pub struct FewerThreads {
    pub pool: Pool,
    /// Median milliseconds of a step, on this pool and on all workers.
    pub ms: f64,
    pub all_ms: f64,
}

/// Repeated halves of a number, down to one.
fn halves(workers: usize) -> Vec<usize> {
    std::iter::successors(Some(workers / 2), |n| Some(n / 2)).take_while(|n| *n > 0).collect()
}

/// Times a plan on all workers and on half of them, a quarter and so on in turns; `None` if no smaller number is clearly faster.
///
/// # Errors
/// A plan that does not run; a system that refuses threads.
pub fn fewer_threads(
    candidate: &Candidate,
    (tensors, run): (&Tensors, &Run),
    pool: &Pool,
    device: &Arc<dyn Device>,
    limit: Duration,
) -> Result<Option<FewerThreads>, PipelineError> {
    let mut pools = halves(pool.workers()).into_iter().map(Pool::new).collect::<Result<Vec<_>, _>>()?;
    let mut execution = Execution::of(candidate, device)?;
    execution.load(tensors)?;
    let execution = RefCell::new(execution);
    let timings = {
        let lane = |pool| {
            let execution = &execution;
            let step = move || execution.borrow_mut().step(pool, run.seed, run.step, run.dropout).map(|times| times.step_ms);
            Contender::timed("", step)
        };
        let mut contenders: Vec<Contender<PipelineError>> = [pool].into_iter().chain(&pools).map(lane).collect();
        let protocol = Protocol { warmup: 1, least: 5, budget: limit, ..Protocol::default() };
        protocol.race(&mut contenders).map_err(|e| PipelineError::Measure(e.to_string()))?
    };
    let ms: Vec<f64> = timings.iter().map(|t| median(&t.samples).unwrap_or(f64::INFINITY)).collect();
    let Some(best) = (1..ms.len()).min_by(|a, b| ms[*a].total_cmp(&ms[*b])) else { return Ok(None) };
    let (ms, all_ms) = (ms[best], ms[0]);
    Ok((ms < CLEARLY * all_ms).then(|| FewerThreads { pool: pools.swap_remove(best - 1), ms, all_ms }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_halved_down_to_one() {
        assert_eq!(halves(12), [6, 3, 1]);
        assert_eq!((halves(2), halves(1)), (vec![1], vec![]));
    }
}
