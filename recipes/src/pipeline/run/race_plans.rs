//! Times plans as wholes, interleaved in rounds.

use super::candidate::Candidate;
use super::execute::{Execution, StepTimes};
use super::memory::PeakMemory;
use super::once::DoneOnce;
use super::replaced::Replaced;
use super::shared_memory::{SharedMemory, SharingPlan};
use crate::pipeline::PipelineError;
use bench::memory::MemoryMap;
use bench::protocol::{Contender, Protocol, Timing};
use bench::stats::Samples;
use bench::{Load, Watch};
use kernels::device::Device;
use kernels::pool::Pool;
use layouts::record::median;
use sdfg::interpret::{Run, Tensors};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Measured times of whole programs.
pub struct Timed {
    pub name: String,
    pub step: Timing,
    pub forward_ms: Vec<f64>,
    pub backward_ms: Vec<f64>,
    pub launches: Vec<(String, sdfg::Direction, Vec<f64>)>,
    /// How often each launch, or each pack of a packed step, gave work to the pool or the GPU within one step, in order.
    pub dispatches: Vec<u64>,
    pub memory: PeakMemory,
    pub map: MemoryMap,
    /// What was done once for all steps.
    pub done_once: DoneOnce,
    /// The parameters that the step replaces, and how.
    pub replaced: Vec<Replaced>,
    /// The load that other processes put on the machine during the race, where the system reports it.
    pub load: Option<Load>,
    /// Whether these are times of the first of two races. They cannot be compared with those of the last race, since the machine may have
    /// been slower or faster then.
    pub earlier: bool,
}

/// Steps in which launches are timed by themselves if a step runs several of them together.
const APART: usize = 7;

/// Steps after which parameters that the step replaces are what they were at first: after hundreds of steps with the same inputs they may
/// be no numbers any more.
const RESTART: usize = 32;

/// A plan whose step takes so many times that of the fastest has lost a race that has used up its time.
const BEHIND: f64 = 1.15;

/// How long a race goes on.
#[derive(Clone, Copy)]
pub struct RaceLength<'a> {
    /// No round begins after this time, and who is far behind then runs no more.
    pub limit: Duration,
    /// Rounds that are run even so. A step of a large program takes a second, so that few rounds of all plans fill the limit.
    pub least: usize,
    /// Which plans are baselines: others are compared with these, which run in all rounds.
    pub baselines: &'a [bool],
}

/// Rounds of a race after which medians say something.
pub const LEAST: usize = 3;

/// Times candidates as wholes, interleaved, with the same tensors and the same step number, in memory that they share.
pub fn time_plans(
    candidates: &[Candidate],
    RaceLength { limit, least, baselines }: RaceLength<'_>,
    tensors: &Tensors,
    run: &Run,
    pool: &Pool,
    device: &Arc<dyn Device>,
) -> Result<Vec<Timed>, PipelineError> {
    struct Lane {
        plan: RefCell<SharingPlan>,
        times: RefCell<Vec<StepTimes>>,
    }
    let executions = candidates.iter().map(|candidate| Execution::of(candidate, device)).collect::<Result<Vec<_>, _>>()?;
    // Declared before the plans, whose recordings refer to it, so that it is dropped after them.
    let shared = RefCell::new(SharedMemory::of(&executions, device)?);
    let mut lanes = Vec::new();
    for execution in executions {
        lanes.push(Lane { plan: RefCell::new(shared.borrow_mut().load(execution, tensors)?), times: RefCell::default() });
    }
    let protocol = Protocol { warmup: 1, least, budget: limit, behind: BEHIND, ..Protocol::default() };
    let watch = Watch::start();
    let timings = {
        let mut contenders: Vec<Contender<PipelineError>> = candidates
            .iter()
            .zip(&lanes)
            .enumerate()
            .map(|(n, (candidate, lane))| {
                let shared = &shared;
                let timed = Contender::timed(candidate.name.clone(), move || {
                    let done = lane.times.borrow().len();
                    lane.plan.borrow_mut().turn(&mut shared.borrow_mut(), |execution| {
                        if done.is_multiple_of(RESTART) {
                            execution.restart()?;
                        }
                        // Neither taking the memory nor putting parameters back is a part of the step.
                        let begin = Instant::now();
                        let times = execution.step(pool, run.seed, run.step, run.dropout)?;
                        let own = times.step_ms.unwrap_or(begin.elapsed().as_secs_f64() * 1e3);
                        lane.times.borrow_mut().push(times);
                        Ok(Some(own))
                    })
                });
                timed.reference(baselines.get(n) == Some(&true))
            })
            .collect();
        protocol.race(&mut contenders).map_err(|e| PipelineError::Measure(e.to_string()))?
    };
    let load = watch.load();
    let mut found = Vec::new();
    for ((candidate, lane), step) in candidates.iter().zip(lanes).zip(timings) {
        let times = lane.times.into_inner();
        let mut plan = lane.plan.into_inner();
        // Warm-up steps ran through the same closure; only the last steps were sampled.
        let sampled = &times[times.len().saturating_sub(step.samples.len())..];
        // Launches of a packed or recorded step have no times of their own: `time_launches` takes them for plans of which they are asked.
        let apart = match sampled.iter().all(|t| t.dispatches.is_empty()) {
            true => Some(plan.turn(&mut shared.borrow_mut(), |execution| execution.apart(pool, run, 0))?),
            false => None,
        };
        let execution = plan.execution();
        let launches = execution
            .launches()
            .enumerate()
            .map(|(n, (name, pass))| (name.to_string(), pass, sampled.iter().filter_map(|t| t.launches_ms.get(n).copied()).collect()))
            .collect();
        found.push(Timed {
            name: candidate.name.clone(),
            forward_ms: sampled.iter().map(|t| t.forward_ms).collect(),
            backward_ms: sampled.iter().map(|t| t.backward_ms).collect(),
            launches,
            dispatches: sampled.iter().chain(&apart).map(|t| t.dispatches.clone()).find(|d| !d.is_empty()).unwrap_or_default(),
            memory: PeakMemory { working_bytes: execution.working_bytes(pool.workers()), ..execution.memory },
            map: execution.map.clone(),
            done_once: execution.done_once(),
            replaced: execution.replaced.clone(),
            step,
            load,
            earlier: false,
        });
    }
    Ok(found)
}

/// Times the launches of a plan that runs several of them together, each by itself; those of other plans were timed within its steps. Of
/// steps that take longer than `limit` together fewer are timed, but three of them.
pub fn time_launches(
    candidate: &Candidate,
    timed: &mut Timed,
    (tensors, run): (&Tensors, &Run),
    pool: &Pool,
    device: &Arc<dyn Device>,
    limit: Duration,
) -> Result<(), PipelineError> {
    if timed.launches.iter().all(|(.., samples)| !samples.is_empty()) {
        return Ok(());
    }
    let mut execution = Execution::of(candidate, device)?;
    execution.load(tensors)?;
    let begin = Instant::now();
    // The first step prepares the memory of kernels.
    for step in 0..=APART {
        if step > LEAST && begin.elapsed() > limit {
            break;
        }
        let times = execution.apart(pool, run, 0)?;
        for ((.., samples), ms) in timed.launches.iter_mut().zip(times.launches_ms).filter(|_| step > 0) {
            samples.push(ms);
        }
    }
    Ok(())
}

/// The index of the plan to take: the fastest, or one that needs less memory or fewer dispatches at a bounded loss of time.
///
/// Among plans within `slack` (a share of time) of the least median, the smallest peak decides; among those with about that peak, the
/// fewest dispatches do, since each ends with a wait for the slowest worker, which takes longer on a busy machine; and then time. The
/// indices in `without` and plans with times of an earlier race do not compete.
pub fn winner(timed: &[Timed], slack: f64, without: &BTreeSet<usize>) -> Option<usize> {
    let costs: Vec<Cost> = timed.iter().map(Cost::of).collect();
    let earlier = (0..timed.len()).filter(|n| timed[*n].earlier);
    preferred(&costs, slack, &without.iter().copied().chain(earlier).collect())
}

/// The cost of one plan, by which plans compete.
#[derive(Clone, Copy)]
struct Cost {
    ms: f64,
    /// The 95% interval of the median.
    bounds: (f64, f64),
    peak_bytes: u64,
    dispatches: u64,
}

impl Cost {
    fn of(timed: &Timed) -> Cost {
        let interval = Samples::new(timed.step.samples.clone()).ok().map(|samples| samples.interval());
        let ms = median(&timed.step.samples).unwrap_or(f64::INFINITY);
        let bounds = interval.map_or((ms, ms), |interval| (interval.lower, interval.upper));
        Cost { ms, bounds, peak_bytes: timed.memory.actual_bytes, dispatches: timed.dispatches.iter().sum() }
    }
}

/// Share of a peak by which a larger one still counts as equal, and bytes by which it does: a few less are worth no time.
const ALIKE: f64 = 0.01;
const ALIKE_BYTES: f64 = 1e6;

/// Share of time beyond which a plan is slower, however much its times vary.
const NOISE: f64 = 0.05;
/// A plan with this share of the dispatches may have so many times the peak.
const MUCH_FEWER: f64 = 1.0 / 3.0;
const LITTLE_MORE: f64 = 1.5;

/// The preferred plan. Where some time may be given away, a plan that makes fewer dispatches in about the same memory is preferred to it if
/// its times cannot be told from those of the preferred one; one that makes a third of them may need half as much memory again.
fn preferred(costs: &[Cost], slack: f64, without: &BTreeSet<usize>) -> Option<usize> {
    let competing = || (0..costs.len()).filter(|n| !without.contains(n));
    let least = competing().map(|n| costs[n].ms).fold(f64::INFINITY, f64::min);
    let near = || competing().filter(|n| costs[*n].ms <= least * (1.0 + slack));
    let peak = near().map(|n| costs[n].peak_bytes).min()? as f64;
    let most = (peak * (1.0 + ALIKE)).max(peak + ALIKE_BYTES);
    let lean = |n: &usize| costs[*n].peak_bytes as f64 <= most;
    let fewer = |a: &usize, b: &usize| costs[*a].dispatches.cmp(&costs[*b].dispatches).then(costs[*a].ms.total_cmp(&costs[*b].ms));
    let best = near().filter(lean).min_by(fewer)?;
    if slack == 0.0 {
        return Some(best);
    }
    let Cost { ms, bounds: (_, high), dispatches, .. } = costs[best];
    let as_fast = |n: &usize| costs[*n].bounds.0 <= high && costs[*n].ms <= ms * (1.0 + NOISE);
    let much_fewer =
        |n: &usize| costs[*n].dispatches as f64 <= dispatches as f64 * MUCH_FEWER && costs[*n].peak_bytes as f64 <= peak * LITTLE_MORE;
    competing().filter(|n| *n == best || (as_fast(n) && (lean(n) || much_fewer(n)))).min_by(fewer)
}

/// The result of the last race of plans.
pub struct RaceOutcome {
    /// In the order of the candidates; plans that were clearly slower in the first race keep its times.
    pub timed: Vec<Timed>,
    /// The index of the plan that is taken, and of the fastest.
    pub taken: usize,
    pub fastest: usize,
}

/// How much slower than the fastest a plan may be, as a share, to be timed in the last race; by so much where its times are few.
const NEAR: f64 = 0.03;
const NEAR_OF_FEW: f64 = 0.08;

/// The plans that may turn out to be the best by their times in a first race, medians in milliseconds and how many these are of: the
/// selected one, which is the first, and those within a few percent of the fastest.
fn near(first: &[(f64, usize)], slack: f64) -> Vec<usize> {
    let least = first.iter().map(|(ms, _)| *ms).fold(f64::INFINITY, f64::min);
    let most = |times: usize| least * (1.0 + slack.max(if times < LEAST { NEAR_OF_FEW } else { NEAR }));
    (0..first.len()).filter(|n| *n == 0 || first[*n].0 <= most(first[*n].1)).collect()
}

/// The plans of a first race that need less memory than every faster one, of those that take at most `slower` longer than the fastest:
/// times in milliseconds and peak bytes.
fn lean(first: &[(f64, u64)], slower: f64) -> Vec<usize> {
    let least = first.iter().map(|(ms, _)| *ms).fold(f64::INFINITY, f64::min);
    let is_lean = |n: &usize| {
        let (ms, bytes) = first[*n];
        ms <= least * (1.0 + slower) && first.iter().all(|(other, need)| *other >= ms || *need > bytes)
    };
    (0..first.len()).filter(is_lean).collect()
}

/// Plans that run once more, at most, where times do not tell them apart.
const UNDECIDED: usize = 6;
/// Times of each plan that decide, whatever their intervals say.
const ENOUGH: usize = 20;
/// Share of time by which a plan's median is too far behind that of the fastest to be in doubt.
const FAR_BEHIND: f64 = 0.1;

/// The plans of a race among which its few times do not decide: intervals that reach below the end of that of the fastest, and plans that
/// are no slower than `slack` allows; the least medians first, and the plan with the fewest dispatches in any case. None if one plan is the
/// fastest beyond doubt.
fn undecided(timed: &[Timed], slack: f64) -> Vec<usize> {
    let costs: Vec<Cost> = timed.iter().map(Cost::of).collect();
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by(|a, b| costs[*a].ms.total_cmp(&costs[*b].ms));
    let Some(fastest) = order.first().copied() else { return vec![] };
    let Cost { ms, bounds: (_, end), .. } = costs[fastest];
    // Three times tell little of an interval: a plan whose median is far behind is not in doubt for that.
    let doubt = |of: &Cost| of.bounds.0 <= end && of.ms <= ms * (1.0 + slack.max(FAR_BEHIND));
    if costs.iter().filter(|of| doubt(of)).count() < 2 || timed[fastest].step.samples.len() >= ENOUGH {
        return vec![];
    }
    order.retain(|n| doubt(&costs[*n]) || costs[*n].ms <= ms * (1.0 + slack));
    let fewest = order.iter().copied().min_by_key(|n| costs[*n].dispatches);
    let last = order.iter().copied().skip(UNDECIDED - 1);
    let more: Option<usize> = fewest.filter(|fewest| last.clone().any(|n| n == *fewest)).or(last.clone().next());
    order.truncate(UNDECIDED - 1);
    order.into_iter().chain(more).collect()
}

impl Timed {
    /// The times of the same plan in two races that the same plans ran.
    fn add(&mut self, more: Timed) {
        self.step.samples.extend(more.step.samples);
        self.forward_ms.extend(more.forward_ms);
        self.backward_ms.extend(more.backward_ms);
        for ((.., times), (.., of_more)) in self.launches.iter_mut().zip(more.launches) {
            times.extend(of_more);
        }
    }
}

/// By what the last race decides.
#[derive(Clone, Copy)]
pub struct FinalsRules {
    /// The share by which the plan that is taken may be slower than the fastest, for less memory or fewer dispatches.
    pub slack: f64,
    /// The share by which lean plans that run as well may be slower.
    pub slower: Option<f64>,
    /// Plans that few times do not tell apart run once more if each of them runs once within this time.
    pub round: Duration,
}

/// Runs the last race: candidates that may turn out to be the best, and candidates after those in `first`, which have no times yet. Many
/// plans share its time, so that each may have few: those that these do not tell apart run once more. With `slower`, lean plans that take
/// at most this much longer run as well. `time` is given plans and where the baselines are among them, which follow the `contenders`.
pub fn finals(
    (candidates, contenders): (&[Candidate], usize),
    first: Vec<Timed>,
    FinalsRules { slack, slower, round }: FinalsRules,
    mut time: impl FnMut(&[Candidate], &[bool]) -> Result<Vec<Timed>, PipelineError>,
) -> Result<Option<RaceOutcome>, PipelineError> {
    let times = |t: &Timed| (median(&t.step.samples).unwrap_or(f64::INFINITY), t.step.samples.len());
    let costs: Vec<(f64, u64)> = first.iter().map(|t| (times(t).0, t.memory.actual_bytes)).collect();
    let lean = slower.map(|slower| lean(&costs, slower)).unwrap_or_default();
    let again = near(&first.iter().map(times).collect::<Vec<_>>(), slack).into_iter().chain(lean);
    let places: BTreeSet<usize> = again.chain(first.len()..candidates.len()).collect();
    let places: Vec<usize> = places.into_iter().collect();
    let again: Vec<Candidate> = places.iter().map(|n| candidates[*n].clone()).collect();
    let baselines: Vec<bool> = places.iter().map(|n| *n >= contenders).collect();
    let mut latest = time(&again, &baselines)?;
    let open = undecided(&latest, slack);
    let once: f64 = open.iter().map(|n| times(&latest[*n]).0).sum();
    let open = if once > round.as_secs_f64() * 1e3 { vec![] } else { open };
    if !open.is_empty() {
        let once_more: Vec<Candidate> = open.iter().map(|n| again[*n].clone()).collect();
        let baselines: Vec<bool> = open.iter().map(|n| baselines[*n]).collect();
        for (n, more) in open.iter().zip(time(&once_more, &baselines)?) {
            latest[*n].add(more);
        }
    }
    // What did not run once more does not win by fewer times.
    let out: BTreeSet<usize> = (0..latest.len()).filter(|n| !open.is_empty() && !open.contains(n)).collect();
    let (Some(taken), Some(fastest)) = (winner(&latest, slack, &out), winner(&latest, 0.0, &out)) else {
        return Ok(None);
    };
    let (taken, fastest) = (places[taken], places[fastest]);
    let mut timed: Vec<Option<Timed>> = first.into_iter().map(|t| Some(Timed { earlier: true, ..t })).collect();
    timed.resize_with(candidates.len(), || None);
    for (place, found) in places.into_iter().zip(latest) {
        timed[place] = Some(found);
    }
    Ok(Some(RaceOutcome { timed: timed.into_iter().flatten().collect(), taken, fastest }))
}

#[cfg(test)]
mod tests {
    use super::super::candidate::BESIDE;
    use super::*;

    fn candidate(name: &str) -> Candidate {
        Candidate {
            name: name.into(),
            program: sdfg::Sdfg::new("program"),
            configuration: Default::default(),
            predicted_ms: 0.0,
            streams: 1,
            packed: false,
            beside: BESIDE,
            exchanges: vec![],
            measured_as: Default::default(),
        }
    }

    fn timed(name: &str, ms: f64) -> Timed {
        Timed {
            name: name.into(),
            step: Timing { name: name.into(), cache: bench::Cache::Warm, samples: vec![ms] },
            forward_ms: vec![ms],
            backward_ms: vec![0.0],
            dispatches: vec![],
            launches: vec![],
            memory: PeakMemory { given_bytes: 0, planned_bytes: 0, actual_bytes: 0, working_bytes: 0, lower_bound_bytes: 0 },
            map: MemoryMap::default(),
            done_once: DoneOnce::default(),
            replaced: vec![],
            load: None,
            earlier: false,
        }
    }

    fn rules(slower: Option<f64>) -> FinalsRules {
        FinalsRules { slack: 0.0, slower, round: Duration::from_secs(1) }
    }

    /// Plans with few times that overlap run once more, and all their times decide; but not if that would take too long.
    #[test]
    fn plans_that_few_times_do_not_tell_apart_run_once_more() -> Result<(), PipelineError> {
        let candidates = ["lucky", "steady", "slow"].map(candidate);
        let of = |name: &str, samples: &[f64]| {
            let mut found = timed(name, 0.0);
            found.step.samples = samples.to_vec();
            found
        };
        let mut races = 0;
        let again = |asked: &[Candidate], _: &[bool]| {
            races += 1;
            let names: Vec<&str> = asked.iter().map(|c| c.name.as_str()).collect();
            Ok(match races {
                1 => vec![of("lucky", &[100.0, 101.0, 190.0]), of("steady", &[102.0, 103.0, 104.0]), of("slow", &[300.0; 3])],
                _ => {
                    assert_eq!(names, ["lucky", "steady"]);
                    vec![of("lucky", &[188.0, 190.0, 191.0, 187.0]), of("steady", &[101.0, 102.0, 103.0, 104.0])]
                }
            })
        };
        let race = finals((&candidates, 3), vec![], rules(None), again)?.expect("a winner");
        assert_eq!((race.taken, race.fastest, races), (1, 1, 2));
        assert_eq!(race.timed.iter().map(|t| t.step.samples.len()).collect::<Vec<_>>(), [7, 7, 3]);
        let long =
            |_: &[Candidate], _: &[bool]| Ok(vec![of("lucky", &[600.0, 610.0]), of("steady", &[605.0, 615.0]), of("slow", &[900.0; 2])]);
        let race = finals((&candidates, 3), vec![], rules(None), long)?.expect("a winner");
        assert_eq!(race.timed.iter().map(|t| t.step.samples.len()).collect::<Vec<_>>(), [2, 2, 2]);
        Ok(())
    }

    fn costs<const N: usize>(of: [(f64, u64, u64); N]) -> [Cost; N] {
        of.map(|(ms, peak_bytes, dispatches)| Cost { ms, bounds: (ms, ms), peak_bytes, dispatches })
    }

    #[test]
    fn memory_decides_among_the_fastest_alone() {
        let of = costs([(100.0, 500 << 20, 9), (101.5, 300 << 20, 9), (101.0, 300 << 20, 9), (103.0, 10 << 20, 9)]);
        let all = BTreeSet::new();
        assert_eq!([0.0, 0.012, 0.02, 0.03].map(|slack| preferred(&of, slack, &all)), [Some(0), Some(2), Some(2), Some(3)]);
        assert_eq!(preferred(&[], 0.02, &all), None);
        // A few bytes less are worth no time.
        assert_eq!(preferred(&costs([(100.0, 30_100, 9), (100.5, 30_000, 9)]), 0.02, &all), Some(0));
    }

    #[test]
    fn the_fewest_dispatches_decide_among_plans_with_about_the_least_peak() {
        let of = costs([(100.0, 5_000_000, 16), (100.5, 5_500_000, 9), (100.7, 5_500_000, 9), (100.2, 9_000_000, 2)]);
        let all = BTreeSet::new();
        assert_eq!(preferred(&of, 0.01, &all), Some(1));
        assert_eq!(preferred(&of, 0.004, &all), Some(0), "it takes longer than is allowed");
    }

    #[test]
    fn fewer_dispatches_are_taken_where_times_cannot_be_told_apart() {
        let all = BTreeSet::new();
        let mut of = costs([(100.0, 33_200_000, 29), (103.0, 33_200_000, 15), (103.0, 46_000_000, 10)]);
        assert_eq!(preferred(&of, 0.01, &all), Some(0));
        of[0].bounds = (98.0, 102.0);
        of[1].bounds = (101.5, 105.0);
        of[2].bounds = (101.5, 105.0);
        assert_eq!(preferred(&of, 0.01, &all), Some(1));
        assert_eq!(preferred(&of, 0.0, &all), Some(0), "no time may be given away");
        of[1].ms = 106.0;
        assert_eq!(preferred(&of, 0.01, &all), Some(0), "however much its times vary");
        of[2].dispatches = 9;
        assert_eq!(preferred(&of, 0.01, &all), Some(2), "a third of the dispatches is worth some memory");
        of[2].peak_bytes = 66_000_000;
        assert_eq!(preferred(&of, 0.01, &all), Some(0), "but not twice as much");
    }

    /// A wrong plan neither wins nor sets the time that others are compared with.
    #[test]
    fn wrong_plans_do_not_compete() {
        let of = costs([(100.0, 500 << 20, 9), (90.0, 300 << 20, 9), (101.0, 300 << 20, 9), (103.0, 10 << 20, 9)]);
        let without = |wrong: &[usize], slack| preferred(&of, slack, &wrong.iter().copied().collect());
        assert_eq!(
            [without(&[], 0.0), without(&[1], 0.0), without(&[1], 0.02), without(&[1, 2], 0.02)],
            [Some(1), Some(0), Some(2), Some(0)]
        );
        assert_eq!(without(&[0, 1, 2, 3], 0.02), None);
    }

    /// A plan with times of the first race, when the machine was faster, does not win against plans of the last race.
    #[test]
    fn times_of_two_races_are_not_compared() -> Result<(), PipelineError> {
        let candidates = ["choice", "near", "far"].map(candidate);
        let first = vec![timed("choice", 33.8), timed("near", 33.5), timed("far", 37.0)];
        let again = |asked: &[Candidate], _: &[bool]| {
            assert_eq!(asked.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), ["choice", "near"]);
            Ok(vec![timed("choice", 37.5), timed("near", 36.6)])
        };
        let race = finals((&candidates, 3), first, rules(None), again)?.expect("a winner");
        assert_eq!((race.taken, race.fastest), (1, 1));
        assert_eq!(race.timed.iter().map(|t| t.earlier).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(winner(&race.timed, 0.1, &BTreeSet::from([1])), Some(0));
        Ok(())
    }

    /// A baseline, which is timed only in the last race, is taken if it is faster than every plan.
    #[test]
    fn a_baseline_that_is_faster_is_taken() -> Result<(), PipelineError> {
        let candidates = ["choice", "unfused, PyTorch's", "unfused, uniform"].map(candidate);
        let race = |uniform: f64| {
            let times = move |_: &[Candidate], baselines: &[bool]| {
                assert_eq!(baselines, [false, true, true]);
                Ok(vec![timed("choice", 2.1), timed("unfused, PyTorch's", 2.4), timed("unfused, uniform", uniform)])
            };
            finals((&candidates, 1), vec![timed("choice", 2.0)], rules(None), times)
        };
        assert_eq!(race(2.05)?.map(|race| race.taken), Some(2));
        assert_eq!(race(2.2)?.map(|race| race.taken), Some(0));
        Ok(())
    }

    /// A plan that is clearly slower runs in the last race only if it needs less memory than all faster ones and that was asked for.
    #[test]
    fn lean_plans_are_retimed_where_finalists_are_asked_for() -> Result<(), PipelineError> {
        let of = [(100.0, 9), (112.0, 5), (110.0, 9), (115.0, 5), (140.0, 1)];
        assert_eq!([lean(&of, 0.25), lean(&of, 0.5), lean(&[], 0.5)], [vec![0, 1], vec![0, 1, 4], vec![]]);
        let candidates = ["choice", "lean"].map(candidate);
        for (slower, names) in [(None, &["choice"][..]), (Some(0.2), &["choice", "lean"])] {
            let mut first = vec![timed("choice", 100.0), timed("lean", 115.0)];
            first[0].memory.actual_bytes = 7;
            let again = |asked: &[Candidate], _: &[bool]| {
                assert_eq!(asked.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), names);
                Ok(asked.iter().map(|c| timed(&c.name, 100.0)).collect())
            };
            assert!(finals((&candidates, 2), first, rules(slower), again)?.is_some());
        }
        Ok(())
    }

    #[test]
    fn the_choice_and_plans_near_the_fastest_are_retimed() {
        let first = [110.0, 100.0, 102.9, 103.1].map(|ms| (ms, LEAST));
        assert_eq!(near(&first, 0.01), [0, 1, 2]);
        assert_eq!(near(&first, 0.05), [0, 1, 2, 3]);
        assert_eq!(near(&first.map(|(ms, _)| (ms, 1)), 0.01), [0, 1, 2, 3], "a single time says less");
        assert_eq!(near(&[], 0.01), [0usize; 0]);
    }
}
