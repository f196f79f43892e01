//! The measuring protocol: warm up, interleave the contenders A B A B, repeat until a bound, keep every sample.
//!
//! The caller checks correctness first: only checked programs may be handed to this module.

use crate::stats::{Interval, Ratio, Samples, StatsError, Summary, paired_ratio};
use crate::unit::{Bytes, Measured, Milliseconds};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::{Duration, Instant};

#[derive(Debug, thiserror::Error)]
pub enum ProtocolError<E: std::error::Error + 'static> {
    #[error("{contender} failed in its run {run}")]
    Run {
        contender: String,
        run: usize,
        #[source]
        source: E,
    },
    #[error("no contender: name at least one thing to measure")]
    NoContender,
    #[error(transparent)]
    Stats(#[from] StatsError),
}

/// State of the caches before each timed run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cache {
    /// As the run before left them.
    Warm,
    /// Evicted by reading and writing a buffer of this size, which should be several times the last-level cache.
    Cold { evict: Bytes },
}

impl std::fmt::Display for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cache::Warm => f.write_str("warm"),
            Cache::Cold { .. } => f.write_str("cold"),
        }
    }
}

/// How long to measure. A round runs every contender once, in the given order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Protocol {
    /// Untimed rounds first.
    pub warmup: usize,
    /// Rounds taken even if they exceed `budget`; at least one is always taken.
    pub least: usize,
    pub most: usize,
    /// No new round is begun after this time, warm-up not counted.
    pub budget: Duration,
    /// A contender whose least time exceeds that of the fastest by this factor takes no part in further rounds once `budget` is used up:
    /// where a run takes seconds, the rounds that are taken anyway are for those that may win. Infinite if all are to take part.
    pub behind: f64,
    pub cache: Cache,
}

impl Default for Protocol {
    /// Two warm-up rounds, then 10 to 100 rounds or 5 seconds, warm cache.
    fn default() -> Self {
        Protocol { warmup: 2, least: 10, most: 100, budget: Duration::from_secs(5), behind: f64::INFINITY, cache: Cache::Warm }
    }
}

/// A closure that is run repeatedly. It may return the milliseconds that it took, by a more accurate clock than this process's.
type Run<'a, E> = Box<dyn FnMut() -> Result<Option<f64>, E> + 'a>;

/// A named closure that can be run repeatedly.
pub struct Contender<'a, E> {
    pub name: String,
    run: Run<'a, E>,
    /// Whether it takes part in all rounds, however slow it is.
    is_reference: bool,
}

impl<'a, E> Contender<'a, E> {
    pub fn new(name: impl Into<String>, mut run: impl FnMut() -> Result<(), E> + 'a) -> Self {
        Contender { name: name.into(), run: Box::new(move || run().map(|()| None)), is_reference: false }
    }

    /// A contender that returns its own milliseconds, as a device with a clock of its own does.
    pub fn timed(name: impl Into<String>, run: impl FnMut() -> Result<Option<f64>, E> + 'a) -> Self {
        Contender { name: name.into(), run: Box::new(run), is_reference: false }
    }

    /// The same as one that others are compared with, which takes part in all rounds.
    pub fn reference(self, is_reference: bool) -> Self {
        Contender { is_reference, ..self }
    }
}

/// The raw samples of one contender, one for each round that it took part in, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    pub name: String,
    pub cache: Cache,
    pub samples: Vec<f64>,
}

impl Timing {
    fn least(&self) -> f64 {
        self.samples.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// # Errors
    /// [`StatsError`] when there are no samples or one is not finite, as can happen in a file that was edited.
    pub fn summary(&self) -> Result<Summary, StatsError> {
        Ok(Samples::new(self.samples.clone())?.summary())
    }

    /// # Errors
    /// As [`Timing::summary`].
    pub fn median(&self) -> Result<Measured<Milliseconds>, StatsError> {
        Ok(Measured(Milliseconds(Samples::new(self.samples.clone())?.median())))
    }

    /// How many times faster this contender is than `other`; the lower end of the interval is the claim.
    ///
    /// Rounds are paired where both have equally many, as [`Protocol::race`] makes them. Otherwise the intervals of the
    /// two medians are divided crosswise, which is wider than 95% and therefore still safe to claim from.
    ///
    /// # Errors
    /// [`StatsError`] for empty, non-finite or zero times.
    pub fn speedup_over(&self, other: &Timing) -> Result<Ratio, StatsError> {
        let (theirs, ours) = (Samples::new(other.samples.clone())?, Samples::new(self.samples.clone())?);
        match paired_ratio(&theirs, &ours) {
            Err(StatsError::Unpaired { .. }) => {
                let (above, below) = (theirs.interval(), ours.interval());
                if below.lower <= 0.0 {
                    return Err(StatsError::NotPositive { index: 0, value: below.lower });
                }
                let interval = Interval { lower: above.lower / below.upper, upper: above.upper / below.lower };
                Ok(Ratio { median: theirs.median() / ours.median(), interval })
            }
            paired => paired,
        }
    }
}

impl Protocol {
    /// Times one contender.
    ///
    /// # Errors
    /// [`ProtocolError::Run`] as soon as a run fails.
    pub fn measure<E: std::error::Error + 'static>(
        &self,
        name: &str,
        run: impl FnMut() -> Result<(), E>,
    ) -> Result<Timing, ProtocolError<E>> {
        let mut timings = self.race(&mut [Contender::new(name, run)])?;
        timings.pop().ok_or(ProtocolError::NoContender)
    }

    /// Times several contenders in the same run, A B A B, so that drift of the machine affects all alike.
    ///
    /// # Errors
    /// [`ProtocolError::NoContender`]; [`ProtocolError::Run`] as soon as a run fails.
    pub fn race<E: std::error::Error + 'static>(&self, contenders: &mut [Contender<'_, E>]) -> Result<Vec<Timing>, ProtocolError<E>> {
        if contenders.is_empty() {
            return Err(ProtocolError::NoContender);
        }
        let mut timings: Vec<Timing> =
            contenders.iter().map(|c| Timing { name: c.name.clone(), cache: self.cache, samples: Vec::new() }).collect();
        let mut eviction = match self.cache {
            Cache::Warm => Vec::new(),
            Cache::Cold { evict } => vec![0u64; evict.0.div_ceil(8) as usize],
        };
        for run in 0..self.warmup {
            for contender in contenders.iter_mut() {
                timed(contender, run)?;
            }
        }
        let begin = Instant::now();
        let mut round = 0;
        while round < self.least.max(1) || (round < self.most && begin.elapsed() < self.budget) {
            let least = timings.iter().map(Timing::least).fold(f64::INFINITY, f64::min);
            let most = if begin.elapsed() < self.budget { f64::INFINITY } else { least * self.behind };
            for (contender, timing) in contenders.iter_mut().zip(&mut timings) {
                if round > 0 && !contender.is_reference && timing.least() > most {
                    continue;
                }
                evict(&mut eviction);
                timing.samples.push(timed(contender, self.warmup + round)?);
            }
            round += 1;
        }
        Ok(timings)
    }
}

fn timed<E: std::error::Error + 'static>(contender: &mut Contender<'_, E>, run: usize) -> Result<f64, ProtocolError<E>> {
    let begin = Instant::now();
    let outcome = (contender.run)();
    let elapsed = begin.elapsed();
    let own = outcome.map_err(|source| ProtocolError::Run { contender: contender.name.clone(), run, source })?;
    Ok(own.unwrap_or(elapsed.as_secs_f64() * 1e3))
}

/// Touches one word of every cache line; `black_box` keeps the stores alive.
fn evict(buffer: &mut [u64]) {
    for word in buffer.iter_mut().step_by(8) {
        *word = word.wrapping_add(1);
    }
    black_box(buffer);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::convert::Infallible;
    use std::io;

    const SHORT: Protocol = Protocol { warmup: 1, least: 3, most: 3, budget: Duration::ZERO, behind: f64::INFINITY, cache: Cache::Warm };

    #[test]
    fn contenders_alternate_and_every_sample_is_kept() {
        let order = RefCell::new(String::new());
        let mut contenders = [
            Contender::<Infallible>::new("a", || {
                order.borrow_mut().push('a');
                Ok(())
            }),
            Contender::new("b", || {
                order.borrow_mut().push('b');
                Ok(())
            }),
        ];
        let timings = SHORT.race(&mut contenders).unwrap();
        assert_eq!(*order.borrow(), "abababab", "one warm-up round and three timed ones");
        assert!(timings.iter().all(|t| t.samples.len() == 3));
    }

    #[test]
    fn who_is_far_behind_takes_no_part_in_what_exceeds_the_budget() {
        let contender = |name: &str, ms: f64| Contender::<Infallible>::timed(name, move || Ok(Some(ms)));
        let counts = |protocol: Protocol| {
            let mut all =
                [contender("best", 10.0), contender("near", 11.0), contender("far", 12.0), contender("given", 50.0).reference(true)];
            protocol.race(&mut all).unwrap().iter().map(|t| t.samples.len()).collect::<Vec<_>>()
        };
        assert_eq!(counts(Protocol { behind: 1.15, ..SHORT }), [3, 3, 1, 3]);
        assert_eq!(counts(Protocol { behind: 1.15, budget: Duration::from_secs(60), ..SHORT }), [3; 4], "there is time for all");
        assert_eq!(counts(SHORT), [3; 4]);
    }

    #[test]
    fn the_budget_ends_a_run_only_after_the_least_rounds() {
        let bounded = Protocol { most: 1000, ..SHORT };
        assert_eq!(bounded.measure("nothing", || Ok::<(), Infallible>(())).unwrap().samples.len(), 3);
        let zero = Protocol { least: 0, most: 0, warmup: 0, ..SHORT };
        assert_eq!(zero.measure("nothing", || Ok::<(), Infallible>(())).unwrap().samples.len(), 1);
    }

    #[test]
    fn a_failing_run_is_named() {
        let mut left = 2;
        let error = SHORT
            .measure("flaky", || {
                left -= 1;
                if left == 0 { Err(io::Error::other("broke")) } else { Ok(()) }
            })
            .unwrap_err();
        assert_eq!(error.to_string(), "flaky failed in its run 1");
    }

    #[test]
    fn a_clock_of_its_own_counts() {
        let mut contenders = [Contender::<Infallible>::timed("own", || Ok(Some(42.0))), Contender::timed("none", || Ok(None))];
        let timings = SHORT.race(&mut contenders).unwrap();
        assert_eq!(timings[0].samples, [42.0; 3]);
        assert!(timings[1].samples.iter().all(|ms| *ms < 42.0));
    }

    #[test]
    fn cold_runs_say_so() {
        let cold = Protocol { cache: Cache::Cold { evict: Bytes(1 << 16) }, ..SHORT };
        assert_eq!(cold.measure("nothing", || Ok::<(), Infallible>(())).unwrap().cache.to_string(), "cold");
    }

    #[test]
    fn unpaired_speedups_fall_back_to_the_wider_interval() {
        let timing = |samples: &[f64]| Timing { name: "t".into(), cache: Cache::Warm, samples: samples.to_vec() };
        let ratio = timing(&[1.0, 1.0]).speedup_over(&timing(&[3.0, 3.0, 3.0])).unwrap();
        assert_eq!((ratio.median, ratio.interval.lower, ratio.interval.upper), (3.0, 3.0, 3.0));
        assert!(timing(&[0.0, 0.0]).speedup_over(&timing(&[1.0; 3])).is_err());
    }
}
