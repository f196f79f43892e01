//! The sweep: which configurations are measured, in which order, and when it stops.
//!
//! 1. Row-major with default knobs, of every kernel: from here on there is a valid choice.
//! 2. A few relayouts of every container, largest first: what racing and selection estimate the others from.
//! 3. The space. Half of the time goes to the kernel that has had the least time for its expected gain, its best time ×
//!    its recent relative improvement; the other half is shared equally, so that small kernels, whose configurations take
//!    next to nothing, are known well, or by the square root of their times where a configuration takes as long for all of
//!    them. Within a kernel see [`crate::measure::candidates`]. Each configuration is checked before it is timed, and raced
//!    ([`crate::measure::race`]).
//! 4. Twins: configurations with the same code and addresses as one that was looked at, in other layouts. They cost nothing
//!    and give selection more to choose from.
//! 5. Fresh samples for the fastest ones of every kernel, until the fastest is one that has them: the minimum of many noisy
//!    medians is too low, a fresh one is not.
//!
//! A kernel that differs from another one in names alone borrows the other's times ([`crate::KernelSpace::mark`]) and counts
//! them as identical. What a choice is made of gets fresh samples as far as the budget goes, borrowed or not.
//!
//! Every result goes to the store at once, and what the store knows is not measured again. Complexity: O(log n) a
//! configuration beside the bench itself, plus ranking by promise.

use crate::measure::candidates::Candidates;
use crate::measure::options::SweepOptions;
use crate::measure::race::{Limit, Race};
use crate::measure::record::{Measurement, Outcome};
use crate::measure::relayout::RelayoutCosts;
use crate::measure::settling::Settling;
use crate::measure::space::{Bench, Clock, Coming, Fault, KernelSpace, RelayoutSpace, TimingResult, relayout_config, relayout_name};
use crate::measure::store::{Store, StoreError};
use crate::measure::tally::Tally;
use crate::problem::{Kernel, SelectionProblem};
use sdfg::config::{KernelConfig, Relayout};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("kernel `{kernel}` in {config}: {fault}")]
    Device { kernel: String, config: KernelConfig, fault: Fault },
}

/// Why a sweep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Finish {
    Exhausted,
    Budget,
    Interrupted,
}

/// Reported after every configuration.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    pub kernel: &'a str,
    pub config: &'a KernelConfig,
    pub outcome: &'a Outcome,
    /// False if it was known from before.
    pub fresh: bool,
    pub best_ms: Option<f64>,
    /// Of this kernel.
    pub tally: &'a Tally,
    pub elapsed: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SweepReport {
    pub finish: Finish,
    /// By kernel.
    pub tallies: BTreeMap<String, Tally>,
    /// Runs of the bench in this sweep, relayouts and finalists included.
    pub timed: u64,
    /// Whether it ended before its budget did, because the rest promised too little.
    pub settled: bool,
}

impl SweepReport {
    pub fn total(&self) -> Tally {
        self.tallies.values().fold(Tally::default(), |mut sum, tally| {
            sum += *tally;
            sum
        })
    }
}

/// Expected gain that a kernel never falls below, relative to its best time: nothing is given up for good.
const LEAST_GAIN: f64 = 0.02;
/// Weight of the newest configuration in the running mean of improvements.
const NEWEST: f64 = 0.05;
/// Seconds counted for a configuration that took none, so that known ones do not hold up the others.
const LEAST_SPENT: f64 = 1e-5;

/// The part of the gain below which a sweep ends that kernels may give away which were hardly looked at.
const NEGLIGIBLE: f64 = 0.5;

/// Configurations of a kernel that are tried at first, for any budget.
const FIRST: usize = 32;

/// Configurations of a kernel that are looked at in one turn for twins.
const TURN: usize = 64;

/// The subject of a measurement: a configuration of a kernel or of a relayout, with the texts by which equal ones are found.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub kernel: &'a str,
    pub key: &'a str,
    pub config: &'a KernelConfig,
    pub identity: &'a str,
    pub mark: &'a str,
}

impl<'a> Subject<'a> {
    /// What was measured before, to be measured again for the kernel of this key.
    fn again(record: &'a Measurement, key: &'a str) -> Self {
        Subject { kernel: &record.kernel, key, config: &record.config, identity: &record.identity, mark: &record.mark }
    }
}

/// One kernel on its way through its space.
struct Track<'a> {
    space: &'a dyn KernelSpace,
    candidates: Candidates,
    race: Race,
    tally: Tally,
    /// Configurations counted so far.
    seen: BTreeSet<String>,
    identities: BTreeSet<String>,
    /// Seconds.
    spent: f64,
    gain: f64,
    /// Configurations that were looked at in this sweep.
    tried: u64,
    done: bool,
}

impl Track<'_> {
    /// Seconds had for each unit of expected gain.
    fn share(&self) -> f64 {
        self.spent / (self.race.best_ms().unwrap_or(1.0).max(f64::MIN_POSITIVE) * (LEAST_GAIN + self.gain))
    }
}

/// The next `count` configurations that kernels try, in turns; the kernel for which `due` is least comes first.
fn turns(tracks: &[&mut Track], count: usize, due: impl Fn(&Track) -> f64) -> Vec<(String, KernelConfig)> {
    let mut each: Vec<(&Track, Vec<u64>)> = tracks.iter().map(|track| (&**track, track.candidates.coming(count, track.space))).collect();
    each.sort_by(|(a, _), (b, _)| due(a).total_cmp(&due(b)));
    let turns = (0..count).flat_map(|turn| each.iter().filter_map(move |(track, numbers)| Some((track, *numbers.get(turn)?))));
    turns.map(|(track, n)| (track.space.name().to_string(), track.space.config(n))).take(count).collect()
}

/// How many configurations were looked at of the kernel that had the fewest. The fastest kernels, which together take less than
/// `negligible_ms`, do not count: whatever is found there, the sum hardly falls.
fn least_tried(tracks: &[Track], negligible_ms: f64) -> u64 {
    let mut open: Vec<(f64, u64)> = tracks.iter().filter(|t| !t.done).map(|t| (t.race.best_ms().unwrap_or(f64::MAX), t.tried)).collect();
    open.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut sum = 0.0;
    let counts = open.into_iter().skip_while(|(ms, _)| {
        sum += ms;
        sum <= negligible_ms
    });
    counts.map(|(_, tried)| tried).min().unwrap_or(u64::MAX)
}

/// Configurations of one kernel that may break the device before the kernel is measured no further: each costs a restart.
const BREAKS: usize = 3;
/// Prefix of the recorded reason of these.
const BROKE: &str = "it broke the device: ";

/// The outcome by which a known configuration is counted: a time that was borrowed from another kernel is no measurement.
fn counted(known: &Measurement) -> Outcome {
    if known.lender.is_some() { Outcome::Identical } else { known.outcome.clone() }
}

/// The state of a sweep and the interfaces that it uses.
pub struct Sweeper<'a> {
    pub bench: &'a mut dyn Bench,
    pub clock: &'a dyn Clock,
    pub store: &'a mut Store,
    pub options: SweepOptions,
    /// Set from outside (Ctrl-C): the sweep ends after the current measurement.
    pub interrupt: &'a AtomicBool,
    pub progress: &'a mut dyn FnMut(&Progress),
    /// Runs of the bench so far.
    pub timed: u64,
}

/// Measures the spaces; see the head of this file.
pub fn sweep(sweeper: &mut Sweeper, spaces: &[&dyn KernelSpace], relayouts: &[RelayoutSpace]) -> Result<SweepReport, SweepError> {
    let mut tracks: Vec<Track> = spaces.iter().map(|space| sweeper.track(*space)).collect();
    let mut settled = false;
    let finish = sweeper.run(&mut tracks, relayouts, &mut settled);
    let tallies = tracks.iter().map(|t| (t.space.name().to_string(), t.tally)).collect();
    Ok(SweepReport { finish: finish?, tallies, timed: sweeper.timed, settled })
}

impl Sweeper<'_> {
    fn track<'s>(&self, space: &'s dyn KernelSpace) -> Track<'s> {
        let known = self.store.of(space.key()).filter(|m| !matches!(m.outcome, Outcome::Bounded { .. }));
        Track {
            space,
            candidates: Candidates::new(space, self.options.shard),
            race: Race::of(space.key(), self.store),
            tally: Tally::of(self.options.shard.share(space.count())),
            seen: BTreeSet::new(),
            identities: known.map(|m| m.identity.clone()).collect(),
            spent: 0.0,
            gain: 1.0,
            tried: 0,
            done: self.breaks(space.key()) >= BREAKS,
        }
    }

    /// Configurations of a kernel that broke the device.
    fn breaks(&self, key: &str) -> usize {
        let broke = |outcome: &Outcome| matches!(outcome, Outcome::Failed { reason } if reason.starts_with(BROKE));
        self.store.of(key).filter(|m| broke(&m.outcome)).count()
    }

    pub(crate) fn stopped(&self, share: f64) -> Option<Finish> {
        if self.interrupt.load(Ordering::Relaxed) {
            return Some(Finish::Interrupted);
        }
        let over = self.options.budget.is_some_and(|budget| self.clock.elapsed() >= budget.mul_f64(share.clamp(0.0, 1.0)));
        over.then_some(Finish::Budget)
    }

    fn run(&mut self, tracks: &mut [Track], relayouts: &[RelayoutSpace], settled: &mut bool) -> Result<Finish, SweepError> {
        let mut settling = Settling::new(self.clock.elapsed());
        let spaces: Vec<&dyn KernelSpace> = tracks.iter().map(|t| t.space).collect();
        let tensors = SelectionProblem::of(&spaces, relayouts, BTreeMap::new(), Vec::new()).tensors;
        let mut costs = RelayoutCosts::default();
        for track in tracks.iter_mut() {
            // Not even an empty budget leaves a kernel without a time.
            if self.interrupt.load(Ordering::Relaxed) {
                return Ok(Finish::Interrupted);
            }
            if track.done {
                continue;
            }
            self.advance(track, &costs, &|_| vec![])?;
            // Nor does a device that has no words for row-major.
            for _ in 1..FIRST {
                if track.done || track.race.best_ms().is_some() || self.interrupt.load(Ordering::Relaxed) {
                    break;
                }
                self.advance(track, &costs, &|_| vec![])?;
            }
            track.done |= track.space.runs_once() && track.race.best_ms().is_some();
        }
        let share = 1.0 - self.options.finalist_share - self.options.twin_share;
        self.sample_relayouts(relayouts, share)?;
        costs = RelayoutCosts::of(&tensors, self.store);
        let mut finish = Finish::Exhausted;
        // Seconds spent for gain, and equally.
        let (mut gainful, mut equal) = (0.0, 0.0);
        let sum = |tracks: &[Track]| tracks.iter().map(|t| t.race.best_ms()).sum::<Option<f64>>();
        let mut best = sum(tracks);
        best.iter().for_each(|ms| settling.reached(self.clock.elapsed(), *ms));
        loop {
            let for_gain = gainful <= equal;
            let costly = self.options.costly;
            let due = |track: &Track| match (for_gain, costly) {
                (true, _) => track.share(),
                (false, false) => track.spent,
                (false, true) => track.spent / track.race.best_ms().unwrap_or(1.0).max(f64::MIN_POSITIVE).sqrt(),
            };
            let mut open: Vec<&mut Track> = tracks.iter_mut().filter(|t| !t.done).collect();
            let Some(next) = (0..open.len()).min_by(|a, b| due(open[*a]).total_cmp(&due(open[*b]))) else { break };
            let track = open.swap_remove(next);
            if let Some(reason) = self.stopped(share) {
                finish = reason;
                break;
            }
            let before = track.spent;
            self.advance(track, &costs, &|count| turns(&open, count, due))?;
            *(if for_gain { &mut gainful } else { &mut equal }) += track.spent - before;
            let Some((goal, budget)) = self.options.settle.zip(self.options.budget) else { continue };
            let now = sum(tracks);
            if now != best {
                best = now;
                best.iter().for_each(|ms| settling.reached(self.clock.elapsed(), *ms));
            }
            let least = least_tried(tracks, goal * NEGLIGIBLE * now.unwrap_or(0.0));
            if settling.promised(self.clock.elapsed(), budget, least).is_some_and(|promised| promised < goal) {
                (finish, *settled) = (Finish::Budget, true);
                break;
            }
        }
        if finish == Finish::Budget {
            self.find_twins(tracks)?;
        }
        if finish != Finish::Interrupted {
            finish = self.finals(tracks)?.unwrap_or(finish);
        }
        Ok(finish)
    }

    /// Files configurations that equal one that was looked at, without running anything; kernels take turns.
    fn find_twins(&mut self, tracks: &mut [Track]) -> Result<(), SweepError> {
        let mut left = vec![self.options.twins; tracks.len()];
        let share = 1.0 - self.options.finalist_share;
        while left.iter().any(|n| *n > 0) {
            for (track, left) in tracks.iter_mut().zip(&mut left) {
                for _ in 0..TURN {
                    if *left == 0 || self.stopped(share).is_some() {
                        *left = 0;
                        break;
                    }
                    let Some(n) = track.candidates.next(track.space) else {
                        *left = 0;
                        break;
                    };
                    let (space, config) = (track.space, track.space.config(n));
                    let outcome = match self.store.get(space.key(), &config) {
                        Some(known) => counted(known),
                        None => {
                            let identity = space.identity(n);
                            if !track.identities.contains(&identity) {
                                continue;
                            }
                            *left -= 1;
                            let mark = space.mark(n);
                            let subject =
                                Subject { kernel: space.name(), key: space.key(), config: &config, identity: &identity, mark: &mark };
                            self.keep(subject, 0, None, Outcome::Identical)?
                        }
                    };
                    track.tally.count(&outcome);
                }
            }
        }
        Ok(())
    }

    /// Measures the next configuration of a kernel. `after(count)` lists those of other kernels whose turns come next.
    fn advance(
        &mut self,
        track: &mut Track,
        costs: &RelayoutCosts,
        after: &dyn Fn(usize) -> Vec<(String, KernelConfig)>,
    ) -> Result<(), SweepError> {
        let Some(n) = track.candidates.next(track.space) else {
            track.done = true;
            return Ok(());
        };
        track.tried += 1;
        let began = self.clock.elapsed();
        let (space, config) = (track.space, track.space.config(n));
        let known = self.store.get(space.key(), &config).map(counted);
        let fresh = known.is_none();
        // Spaces may number one configuration twice, as where tiles of several sizes hold a small dim whole.
        let again = !track.seen.insert(config.to_string());
        let outcome = match known {
            Some(_) if again => Outcome::Identical,
            Some(outcome) => outcome,
            None => {
                let (identity, mark) = (space.identity(n), space.mark(n));
                let subject = Subject { kernel: space.name(), key: space.key(), config: &config, identity: &identity, mark: &mark };
                let limit = track.race.limit(space, &config, costs);
                let ruled_out = limit.clone().filter(|l| space.lower_bound_ms(n) > l.ms);
                let outcome = if track.identities.contains(&identity) {
                    self.keep(subject, 0, None, Outcome::Identical)?
                } else if self.borrow(subject, 0, limit.as_ref())? {
                    Outcome::Identical
                } else if let Some(limit) = ruled_out {
                    let outcome = Outcome::Bounded { bound_ms: space.lower_bound_ms(n), reason: limit.reason };
                    self.keep(subject, 0, None, outcome)?
                } else {
                    let same_kernel = |count: usize| track.candidates.coming(count, space).into_iter().map(|n| space.config(n)).collect();
                    self.bench.ahead(space.name(), &config, &Coming { same_kernel: &same_kernel, in_turns: after });
                    self.measure(subject, 0, limit)?
                };
                // A configuration that was only bounded says nothing of its twins in other layouts.
                if !matches!(outcome, Outcome::Bounded { .. }) {
                    track.identities.insert(identity);
                }
                outcome
            }
        };
        track.tally.count(&outcome);
        let ms = self.store.get(space.key(), &config).and_then(|m| self.store.ms(m));
        let gain = ms.and_then(|ms| track.race.enter(ms, &config));
        if gain.is_some() {
            track.candidates.improved(n);
        }
        track.gain += NEWEST * (gain.unwrap_or(0.0) - track.gain);
        let elapsed = self.clock.elapsed();
        track.spent += elapsed.saturating_sub(began).as_secs_f64().max(LEAST_SPENT);
        let (best_ms, tally) = (track.race.best_ms(), &track.tally);
        (self.progress)(&Progress { kernel: space.name(), config: &config, outcome: &outcome, fresh, best_ms, tally, elapsed });
        Ok(())
    }

    /// Takes over the records of a kernel that differs in names alone; false if there are none, or not enough.
    pub(crate) fn borrow(&mut self, subject: Subject, round: u32, limit: Option<&Limit>) -> Result<bool, SweepError> {
        let other = self.store.marked(subject.mark).filter(|m| m.key != subject.key && m.round >= round);
        let Some((kernel, outcome, round)) = other.map(|m| (m.kernel.clone(), m.outcome.clone(), m.round)) else { return Ok(false) };
        let enough = match &outcome {
            Outcome::Measured { .. } => true,
            // It was given up for being slower than what that kernel needs; here that may be more.
            Outcome::Raced { bound_ms, .. } => limit.is_some_and(|l| *bound_ms >= l.ms),
            _ => false,
        };
        if enough {
            self.file(subject, round, None, outcome, Some(kernel))?;
        }
        Ok(enough)
    }

    /// Checks, times and keeps one configuration.
    pub(crate) fn measure(&mut self, subject: Subject, round: u32, limit: Option<Limit>) -> Result<Outcome, SweepError> {
        let Subject { kernel, config, .. } = subject;
        let ratio = match self.bench.check(kernel, config) {
            Ok(check) if check.passed() => check.ratio,
            // JSON has no infinities: a result that is not a number is kept as the largest one.
            Ok(check) => {
                let ratio = if check.ratio.is_finite() { check.ratio } else { f64::MAX };
                return self.keep(subject, round, Some(ratio), Outcome::Mismatch);
            }
            Err(Fault::Configuration(reason)) => return self.keep(subject, round, None, Outcome::Failed { reason }),
            Err(fault) => return Err(self.broken(subject, round, fault)?),
        };
        let give_up = limit
            .as_ref()
            .map_or(Duration::MAX, |l| Duration::try_from_secs_f64((l.ms * self.options.margin / 1e3).max(0.0)).unwrap_or(Duration::MAX));
        self.timed += 1;
        let outcome = match self.bench.time(kernel, config, give_up) {
            Ok(TimingResult::Samples(samples)) if crate::measure::record::median(&samples).is_some() => Outcome::Measured { samples },
            Ok(TimingResult::Samples(_)) => Outcome::Failed { reason: "the bench gave no finite samples".into() },
            Ok(TimingResult::ExceededAfter(bound_ms)) => {
                let reason = limit.map_or_else(|| "given up by the bench".into(), |l| l.reason);
                Outcome::Raced { bound_ms, reason }
            }
            Err(Fault::Configuration(reason)) => Outcome::Failed { reason },
            Err(fault) => return Err(self.broken(subject, round, fault)?),
        };
        self.keep(subject, round, Some(ratio), outcome)
    }

    /// The error that ends a sweep. A configuration that broke the device is kept as failed, so that it is not tried again.
    fn broken(&mut self, subject: Subject, round: u32, fault: Fault) -> Result<SweepError, SweepError> {
        if let Fault::Crash(reason) = &fault {
            let outcome = Outcome::Failed { reason: format!("{BROKE}{reason}") };
            self.keep(subject, round, None, outcome)?;
        }
        Ok(SweepError::Device { kernel: subject.kernel.to_string(), config: subject.config.clone(), fault })
    }

    fn keep(&mut self, subject: Subject, round: u32, check: Option<f64>, outcome: Outcome) -> Result<Outcome, SweepError> {
        self.file(subject, round, check, outcome, None)
    }

    fn file(
        &mut self,
        subject: Subject,
        round: u32,
        check: Option<f64>,
        outcome: Outcome,
        lender: Option<String>,
    ) -> Result<Outcome, SweepError> {
        let outcome = match outcome {
            // JSON has no infinities.
            Outcome::Raced { bound_ms, reason } if !bound_ms.is_finite() => Outcome::Raced { bound_ms: f64::MAX, reason },
            Outcome::Bounded { bound_ms, reason } if !bound_ms.is_finite() => Outcome::Bounded { bound_ms: f64::MAX, reason },
            outcome => outcome,
        };
        let Subject { kernel, key, config, identity, mark } = subject;
        self.store.append(Measurement {
            session: String::new(),
            kernel: kernel.to_string(),
            key: key.to_string(),
            config: config.clone(),
            identity: identity.to_string(),
            mark: mark.to_string(),
            lender,
            round,
            check,
            outcome: outcome.clone(),
        })?;
        Ok(outcome)
    }

    fn sample_relayouts(&mut self, relayouts: &[RelayoutSpace], share: f64) -> Result<(), SweepError> {
        let mut spaces: Vec<&RelayoutSpace> = relayouts.iter().filter(|r| r.count() > 0).collect();
        spaces.sort_by_key(|r| (std::cmp::Reverse(r.bytes), r.data.clone()));
        let mut keys = BTreeSet::new();
        for space in spaces.into_iter().filter(|r| keys.insert(r.key().to_string())) {
            let wanted = self.options.relayouts.min(space.count());
            for n in 0..wanted {
                // Spread over the pairs; the last one is among them.
                let config = space.config((n + 1) * space.count() / wanted - 1);
                if self.store.get(space.key(), &config).is_none() {
                    if self.stopped(share).is_some() {
                        return Ok(());
                    }
                    let identity = config.to_string();
                    let subject = Subject { kernel: space.name(), key: space.key(), config: &config, identity: &identity, mark: "" };
                    self.measure(subject, 0, None)?;
                }
            }
        }
        Ok(())
    }

    /// Fresh samples for the fastest; kernels take turns.
    fn finals(&mut self, tracks: &[Track]) -> Result<Option<Finish>, SweepError> {
        for _ in 0..self.options.finalists {
            for track in tracks {
                let mut fastest: Vec<&Measurement> = self.store.of(track.space.key()).filter(|m| m.ms().is_some()).collect();
                fastest.sort_by(|a, b| a.ms().unwrap_or(f64::MAX).total_cmp(&b.ms().unwrap_or(f64::MAX)));
                let next = fastest.into_iter().take(self.options.finalists).find(|m| m.round == 0).cloned();
                let Some(next) = next else { continue };
                if let Some(reason) = self.stopped(1.0) {
                    return Ok(Some(reason));
                }
                let subject = Subject::again(&next, &next.key);
                if !self.borrow(subject, 1, None)? {
                    self.measure(subject, 1, None)?;
                }
            }
        }
        Ok(None)
    }

    /// Gives fresh samples to configurations of kernels (by name), and times relayouts, as far as the budget goes: those that some
    /// selections are made of. Returns how many measurements that took: 0 means that they stand on fresh samples only, or that the time is
    /// up. Otherwise select again, and repeat.
    pub fn confirm(
        &mut self,
        program: &SelectionProblem,
        kernels: Vec<(String, KernelConfig)>,
        relayouts: Vec<Relayout>,
    ) -> Result<usize, SweepError> {
        let mut taken = 0;
        for (name, config) in kernels {
            let Some(Kernel { key, .. }) = program.kernel(&name) else { continue };
            let own = self.store.get(key, &config);
            let record = own.and_then(|m| if m.ms().is_some() { Some(m) } else { self.store.twin(key, &m.identity) });
            let Some(record) = record.filter(|m| m.round == 0).cloned() else { continue };
            if self.stopped(1.0).is_some() {
                return Ok(taken);
            }
            let subject = Subject::again(&record, key);
            if self.borrow(subject, 1, None)? {
                taken += 1;
                continue;
            }
            let outcome = self.measure(subject, 1, None)?;
            // Another outcome does not outweigh the time that is known: it would be tried forever.
            taken += usize::from(matches!(outcome, Outcome::Measured { .. } | Outcome::Mismatch));
        }
        for relayout in relayouts {
            let Some(tensor) = program.tensor(&relayout.data).filter(|t| !t.relayout_key.is_empty()) else { continue };
            let config = relayout_config(&relayout.from, &relayout.to);
            if self.store.get(&tensor.relayout_key, &config).is_none() && self.stopped(1.0).is_none() {
                let (kernel, identity) = (relayout_name(&relayout.data), config.to_string());
                let subject = Subject { kernel: &kernel, key: &tensor.relayout_key, config: &config, identity: &identity, mark: "" };
                self.measure(subject, 0, None)?;
                taken += 1;
            }
        }
        Ok(taken)
    }
}
