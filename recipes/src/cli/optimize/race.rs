//! Races plans of a recipe as wholes: keeps, verifies and times them in turns, and takes one.

use super::OptimizeArgs;
use super::finalists::{Finalist, front};
use super::summary::{RefusedPlan, Verified};
use super::verification::PlanChecks;
use crate::cli::progress::{RunClock, Stage};
use crate::cli::sweep::MeasurementSession;
use crate::cli::{cells, command_line, table};
use crate::clibrary::LibraryWorkspace;
use crate::pipeline::PipelineError;
use crate::pipeline::check::plan::{SmallOracle, Verification, verify_full};
use crate::pipeline::choose::plan::{Plan, PlanChoice, PlanRefusal};
use crate::pipeline::choose::reselect_in_step::{Reselected, reselect_in_step};
use crate::pipeline::choose::sweep_all::{Choices, SweptPrograms, baselines, plainest, plan};
use crate::pipeline::measure::budget_policy::BudgetPolicy;
use crate::pipeline::oracle::tensors::inputs_to_compare;
use crate::pipeline::run::candidate::{BESIDE, Candidate, Exchange};
use crate::pipeline::run::divide::divided;
use crate::pipeline::run::execute::Execution;
use crate::pipeline::run::race_plans::{FinalsRules, LEAST, RaceLength, RaceOutcome, Timed, finals, time_launches, time_plans, winner};
use crate::pipeline::run::tune_in_step::tune_in_step;
use crate::pipeline::variants::table::{Contention, VariantId, VariantKey};
use crate::timings::{CommandPhase, enter};
use bench::Load;
use bench::unit::significant;
use layouts::Method;
use layouts::record::median;
use sdfg::config::KernelConfig;
use sdfg::interpret::{Run, Tensors};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The step in which all plans are timed.
const RUN: Run = Run { seed: 1, step: 0, dropout: true };

/// The least number of distinct selections that are timed as wholes.
const WHOLES: usize = 5;

/// Programs whose best selection is timed as a whole whatever their variant: the fastest by the times of their kernels.
const AMONG_BEST: usize = 3;

/// A selection whose kernel times sum to more than this ratio to the best one's is no contender.
const FAR: f64 = 2.0;

/// The plans to time as wholes: the best selection for each of the three best programs and for variants that contend unless far slower,
/// and the next best selections of the best program. The best of each program also runs on several streams, if the device has them and
/// the program work for them. The overall selection is the first. Where finalists are asked for, which trade time for memory, a selection
/// in which no large tensor is relaid out competes, if it takes at most so much longer.
pub fn contenders(
    sweeps: &SweptPrograms,
    choices: &[Choices],
    session: &MeasurementSession,
    (timing, finalists): (Duration, Option<f64>),
) -> Result<Vec<Candidate>, PipelineError> {
    let exact = |choice: &Choices| sweeps.variants[choice.swept].candidate(&choice.selections[0]);
    let contends = |choice: &Choices| sweeps.keys[choice.swept].id.row().contention == Contention::UnlessFar;
    let least = choices.first().map_or(f64::INFINITY, |best| best.selections[0].total_ms);
    let far = |choice: &Choices| choice.selections[0].total_ms > FAR * least;
    let mut candidates: Vec<Candidate> = choices
        .iter()
        .enumerate()
        .filter(|(n, choice)| *n < AMONG_BEST || (contends(choice) && !far(choice)))
        .map(|(_, choice)| exact(choice))
        .collect();
    let Some(best) = choices.first().map(|c| &sweeps.variants[c.swept]) else { return Ok(candidates) };
    let affordable = (timing.as_secs_f64() * 1e3 / 2.0 / least.max(1e-9)) as usize;
    let next = WHOLES.saturating_sub(candidates.len()).max(2).min(affordable);
    if session.device.streams().is_some() {
        for candidate in candidates.clone() {
            let streams = Execution::of(&candidate, &session.device)?.breadth();
            if streams > 1 {
                candidates.push(Candidate { name: format!("{} · {streams} streams", candidate.name), streams, ..candidate });
            }
        }
    }
    if let (Some(slower), Some(choice)) = (finalists, choices.first())
        && let Some(lean) = best.without_large_relayouts(&session.store, &choice.selections[0])?
        && lean.total_ms <= (1.0 + slower) * choice.selections[0].total_ms
    {
        candidates.push(Candidate { name: format!("{} · exact, no large relayouts", best.name), ..best.candidate(&lean) });
    }
    for (n, selection) in best.top(&session.store, 1 + next)?.iter().enumerate().skip(1) {
        let name = format!("{} · exact, choice {}", best.name, n + 1);
        candidates.push(Candidate { name, ..best.candidate(selection) });
    }
    Ok(candidates)
}

/// Substitutes if no contender is correct: the best selections of the other programs, then that of the unfused one.
pub fn reserve(sweeps: &SweptPrograms, choices: &[Choices], session: &MeasurementSession, contenders: &[Candidate]) -> Vec<Candidate> {
    let exact = |choice: &Choices| sweeps.variants[choice.swept].candidate(&choice.selections[0]);
    let others = choices.iter().map(exact).filter(|other| !contenders.iter().any(|c| c.name == other.name));
    let unfused = sweeps.unfused.as_ref().and_then(|swept| Some(swept.candidate(&swept.select(&session.store, Method::Exact).ok()?)));
    others.chain(unfused).collect()
}

/// The race of a recipe's candidates against each other and the baselines.
pub struct PlanRace<'a> {
    args: &'a OptimizeArgs,
    session: &'a MeasurementSession,
    sweeps: &'a SweptPrograms,
    baselines: Vec<Candidate>,
    tensors: Tensors,
    /// The reference for results at full size; `None` if it does not fit into memory.
    plainest: Option<Candidate>,
    /// What it computes, between checks that follow each other.
    results_of_plainest: RefCell<Option<Tensors>>,
    /// The reference for results at small sizes.
    oracle: SmallOracle<'a>,
    /// The folder for the plans of all candidates.
    folder: PathBuf,
    verdicts: PlanChecks<'a>,
    whole: RunClock,
    /// When the race began, and the command's budget.
    clock: (Instant, Option<Duration>),
    /// Time for timing wholes.
    timing: Duration,
}

const POLICY: BudgetPolicy = BudgetPolicy::DEFAULT;

/// The result of the race.
pub struct RaceResult {
    /// The contenders followed by the baselines, one of which may be taken too.
    pub candidates: Vec<Candidate>,
    pub contenders: usize,
    pub timed: Vec<Timed>,
    /// The index of the plan that is taken, and of the fastest.
    pub taken: usize,
    pub fastest: usize,
    /// Plans that were found wrong after they were timed.
    pub wrong: BTreeSet<usize>,
    /// With `--finalists`: plans that trade time for memory, all of them checked at full size.
    pub finalists: Vec<Finalist>,
}

/// The share by which a plan must need less memory, and by which its time may be longer, to be suggested.
const LEAN: f64 = 0.1;

impl RaceResult {
    /// The contenders without the baselines.
    pub fn competing(&self) -> (&[Candidate], &[Timed]) {
        (&self.candidates[..self.contenders], &self.timed[..self.contenders])
    }

    /// The load of other processes while the taken plan was timed.
    pub fn load(&self) -> Option<Load> {
        self.timed[self.taken].load
    }

    /// A plan that needs clearly less memory than the taken one, at little cost in time.
    pub fn lean(&self) -> Option<usize> {
        let peak = |n: usize| self.timed[n].memory.actual_bytes as f64;
        winner(self.competing().1, LEAN, &self.wrong).filter(|n| peak(*n) < (1.0 - LEAN) * peak(self.taken))
    }

    /// What the choice of the taken plan rests on.
    pub fn choice(&self, memory_slack: f64) -> PlanChoice {
        let [own, fastest] = [self.taken, self.fastest].map(|n| &self.timed[n]);
        let ms = |timed: &Timed| median(&timed.step.samples).unwrap_or(f64::NAN);
        PlanChoice {
            memory_slack,
            step_ms: ms(own),
            peak_bytes: own.memory.actual_bytes,
            fastest: fastest.name.clone(),
            fastest_ms: ms(fastest),
            fastest_bytes: fastest.memory.actual_bytes,
        }
    }

    /// The speed of the taken plan relative to each baseline, in a line each.
    pub fn beside(&self) -> Vec<String> {
        let own = &self.timed[self.taken];
        let line = |other: &Timed| {
            let ratio = own.step.speedup_over(&other.step).ok()?;
            let (lower, upper) = (ratio.interval.lower, ratio.interval.upper);
            let sure = if lower <= 1.0 && upper >= 1.0 { ": no difference beyond the spread" } else { "" };
            Some(format!("{:.3} times as fast as {} (95% interval {lower:.3} to {upper:.3}){sure}", ratio.median, other.name))
        };
        let itself = (self.taken >= self.contenders)
            .then(|| format!("nothing that is fused is faster than {} here: the plan is the unfused program", own.name));
        let others = (self.contenders..self.timed.len()).filter(|n| *n != self.taken).map(|n| &self.timed[n]);
        itself.into_iter().chain(others.filter_map(line)).collect()
    }
}

impl<'a> PlanRace<'a> {
    pub fn new(
        args: &'a OptimizeArgs,
        session: &'a MeasurementSession,
        sweeps: &'a SweptPrograms,
        timing: Duration,
        say: &'a dyn Fn(&str),
    ) -> Result<Self, PipelineError> {
        let _phase = enter(CommandPhase::Check);
        let folder = session.out.join("plans");
        fresh_folder(&folder)?;
        let (baselines, left_out) = baselines(sweeps, &session.store)?;
        left_out.iter().for_each(|why| say(why));
        Ok(PlanRace {
            args,
            session,
            sweeps,
            plainest: plainest(&session.programs.unfused, &baselines, &*session.device, session.memory)?,
            results_of_plainest: RefCell::default(),
            baselines,
            tensors: inputs_to_compare(&session.programs.operators, 1)?,
            oracle: SmallOracle::new(&session.programs.operators),
            folder,
            verdicts: PlanChecks::new(say),
            whole: RunClock { began: session.began, expected: args.measure.bound().map(|bound| 2 * bound) },
            clock: (Instant::now(), args.measure.bound()),
            timing,
        })
    }

    /// Whether more than this part of the budget has passed since the race began.
    fn over(&self, part: f64) -> bool {
        self.clock.1.is_some_and(|budget| self.clock.0.elapsed() > budget.mul_f64(part))
    }

    pub fn plan_of(&self, candidate: &Candidate) -> Plan {
        let (args, session, partial_fusion) = (&self.args.measure, self.session, &self.sweeps.partial_fusion);
        let searched = |key: &VariantKey| matches!(key.id, VariantId::Merged | VariantId::PartiallyFused);
        let made = self.sweeps.keys.iter().zip(&self.sweeps.variants).any(|(key, s)| searched(key) && s.program == candidate.program);
        plan(
            (&args.recipe.recipe.display().to_string(), &session.recipe.text),
            &args.recipe.overrides(),
            candidate.clone(),
            self.baselines.clone(),
            (made.then(|| partial_fusion.clone()), session.programs.options.barred.summaries().map(String::from).collect()),
            ((*args.device).clone(), &*session.device, session.pool.workers()),
            command_line(),
        )
    }

    fn keep(&self, candidate: &Candidate, refused: Option<PlanRefusal>) -> Result<(), PipelineError> {
        let plan = Plan { refused, ..self.plan_of(candidate) };
        plan.write(&self.folder.join(format!("{}.json", file_name(&candidate.name))))
    }

    /// Whether a candidate passes a check. If not, its plan is kept as refused.
    fn passes(&mut self, candidate: &Candidate, found: Result<Verification, PipelineError>) -> Result<bool, PipelineError> {
        match self.verdicts.refusal(&candidate.name, found)? {
            None => Ok(true),
            refusal => self.keep(candidate, refusal).map(|()| false),
        }
    }

    fn small(&self, candidate: &Candidate) -> Result<Verification, PipelineError> {
        let _phase = enter(CommandPhase::Check);
        self.oracle.verify(candidate, &self.session.pool, &self.session.device)
    }

    /// Makes the kernels of plans that are about to be checked at small sizes, and of those that are about to run as a whole, where that is
    /// the compiler's work on these cores.
    fn compile_ahead(&self, small: &[&Candidate], whole: &[&Candidate]) {
        if self.session.device.is_host() {
            self.oracle.compile_ahead(small, whole, &self.session.device);
        }
    }

    /// Verifies a candidate at full size, against the plainest plan or, where that does not fit into memory, against another candidate.
    fn full(&self, candidate: &Candidate, others: &[Candidate]) -> Option<Result<Verification, PipelineError>> {
        let _phase = enter(CommandPhase::Check);
        let differences = |other: &&Candidate| candidate.differences(other);
        let other = others.iter().max_by_key(differences).filter(|other| differences(other) > 0);
        let (pool, device) = (&self.session.pool, &self.session.device);
        if let Some(reference) = &self.plainest {
            let mut known = self.results_of_plainest.borrow_mut();
            return Some(verify_full(candidate, (reference, &mut known), &self.tensors, pool, device));
        }
        let Some(reference) = other else {
            let why = "there is nothing to compare it with that fits into memory";
            (self.verdicts.say)(&format!("{} is not compared at full size: {why}", candidate.name));
            return None;
        };
        Some(verify_full(candidate, (reference, &mut None), &self.tensors, pool, device))
    }

    fn time(&self, candidates: &[Candidate], length: RaceLength<'_>) -> Result<Vec<Timed>, PipelineError> {
        // All plans share the memory.
        self.results_of_plainest.take();
        time_plans(candidates, length, &self.tensors, &RUN, &self.session.pool, &self.session.device)
    }

    /// The correct candidates, the first of these also at full size; if there is none, the first correct one of the `reserve`. Each plan
    /// is written before it is verified, so that a wrong one can be inspected.
    ///
    /// # Errors
    /// No candidate is correct.
    pub fn right(&mut self, candidates: Vec<Candidate>, reserve: Vec<Candidate>) -> Result<Vec<Candidate>, PipelineError> {
        let (whole, all) = (self.whole, candidates.len());
        let _stage = Stage::new(&whole, "checking plans");
        let mut right = Vec::new();
        if let [first, others @ ..] = &candidates[..] {
            let phase = enter(CommandPhase::Compile);
            let whole: Vec<&Candidate> = [first].into_iter().chain(&self.plainest).collect();
            self.compile_ahead(&[first], &whole);
            // As long as they are going to be checked at all.
            if !self.over(POLICY.checking_plans) {
                let others: Vec<&Candidate> = others.iter().chain(&self.baselines).collect();
                self.compile_ahead(&others, &others);
            }
            drop(phase);
        }
        for (n, candidate) in candidates.into_iter().enumerate() {
            if !right.is_empty() && self.over(POLICY.checking_plans) {
                (self.verdicts.say)(&format!("--budget leaves no time to check {} more plans: they do not compete", all - n));
                break;
            }
            self.keep(&candidate, None)?;
            let found = self.small(&candidate);
            if self.passes(&candidate, found)? {
                right.push(candidate);
            }
        }
        for baseline in std::mem::take(&mut self.baselines) {
            let found = self.small(&baseline);
            if self.verdicts.refusal(&baseline.name, found)?.is_none() {
                self.baselines.push(baseline);
            }
        }
        while let Some(first) = right.first()
            && !self.passes_full(first, &right)?
        {
            right.remove(0);
        }
        for candidate in reserve {
            if !right.is_empty() {
                break;
            }
            self.keep(&candidate, None)?;
            let found = self.small(&candidate);
            if self.passes(&candidate, found)? && self.passes_full(&candidate, &[])? {
                right.push(candidate);
            }
        }
        if right.is_empty() { Err(self.verdicts.nothing_is_right()) } else { Ok(right) }
    }

    /// Whether a candidate is correct at full size, as far as there is a reference.
    fn passes_full(&mut self, candidate: &Candidate, others: &[Candidate]) -> Result<bool, PipelineError> {
        self.full(candidate, others).map_or(Ok(true), |found| self.passes(candidate, found))
    }

    /// Times the candidates in turns; `None` without candidates.
    pub fn race(&mut self, mut candidates: Vec<Candidate>) -> Result<Option<RaceResult>, PipelineError> {
        let _phase = enter(CommandPhase::Race);
        let (session, say) = (self.session, self.verdicts.say);
        // A first race of all candidates shows which are worth more time.
        let together = session.together(&mut candidates, say)?;
        let stage = Stage::new(&self.whole, "timing plans as wholes");
        // A single one runs no longer than the times of its kernels within the step are known.
        let limit = if candidates.len() > 1 { self.timing / 2 } else { Duration::ZERO };
        let first = self.time(&candidates, RaceLength { limit, least: 1, baselines: &[] })?;
        drop(stage);
        let again = if self.over(POLICY.reselecting) { vec![] } else { self.again(&candidates, &first)? };
        let fastest = winner(&first, 0.0, &BTreeSet::new());
        let of = again.first().or_else(|| candidates.get(fastest?)).cloned();
        let of = of.filter(|_| !self.over(POLICY.reselecting));
        let within = of.map(|candidate| self.within(&candidate)).transpose()?.flatten();
        let found: Vec<Candidate> = again.into_iter().chain(within).collect();
        // Those tuned within the step first, which were so for the fastest of the others.
        let mut best: Vec<&Candidate> = fastest.iter().filter_map(|n| candidates.get(*n)).chain(&found).rev().collect();
        let step_ms = first.iter().filter_map(|t| median(&t.step.samples)).fold(f64::INFINITY, f64::min);
        best.truncate(affordable(self.timing, step_ms));
        let mut packed = self.packed(&best)?;
        // The form in the same memory is the first.
        packed.truncate(affordable(self.timing, step_ms));
        let ahead: Vec<&Candidate> = found.iter().chain(&packed).collect();
        self.compile_ahead(&ahead, &ahead);
        for found in found.into_iter().chain(packed) {
            self.keep(&found, None)?;
            let verified = self.small(&found);
            if self.passes(&found, verified)? {
                candidates.push(found);
            }
        }
        let contenders = candidates.len();
        if together {
            candidates.extend(self.baselines.iter().cloned());
            session.together(&mut candidates, say)?;
        }
        let slack = self.args.memory_slack;
        let _stage = Stage::new(&self.whole, "timing the best plans and the baselines");
        // Baselines compete: a plan that is slower than the unfused program is not taken.
        // Plans that must run once more are few.
        let mut limit = self.timing;
        let rules = FinalsRules { slack, slower: self.args.finalists, round: self.timing };
        let race = finals((&candidates, contenders), first, rules, |again, baselines| {
            let timed = self.time(again, RaceLength { limit, least: LEAST, baselines });
            limit = self.timing / 2;
            timed
        })?;
        let Some(RaceOutcome { mut timed, mut taken, mut fastest }) = race else { return Ok(None) };
        // The first plan was compared at full size, so its successor must be too: kernels with a missing synchronization fail only there,
        // where runs are long.
        let mut wrong = BTreeSet::new();
        while taken > 0 && !self.passes_full(&candidates[taken], &candidates[..contenders])? {
            wrong.insert(taken);
            let next = |slack| winner(&timed, slack, &wrong).unwrap_or(0);
            (taken, fastest) = (next(slack), next(0.0));
        }
        // What the report says of kernels within a step: those of the plan, of the first choice and of the baselines.
        for n in [0, taken].into_iter().chain(contenders..candidates.len()) {
            time_launches(&candidates[n], &mut timed[n], (&self.tensors, &RUN), &session.pool, &session.device, self.timing)?;
        }
        let finalists = match self.args.finalists {
            Some(slower) => self.finalists(&candidates, &timed, slower, (taken, &mut wrong))?,
            None => vec![],
        };
        Ok(Some(RaceResult { candidates, contenders, timed, taken, fastest, wrong, finalists }))
    }

    /// The plans that take at most `slower` longer than the fastest and need less memory than every faster one. Each is checked at full
    /// size, as the plan that is taken was; a wrong one is refused, and others take its place.
    fn finalists(
        &mut self,
        candidates: &[Candidate],
        timed: &[Timed],
        slower: f64,
        (taken, wrong): (usize, &mut BTreeSet<usize>),
    ) -> Result<Vec<Finalist>, PipelineError> {
        let (session, mut right) = (self.session, BTreeSet::from([taken]));
        // No library is built for other devices.
        let library =
            |n: usize| LibraryWorkspace::of(&candidates[n], &session.out, session.pool.workers()).ok().filter(|_| session.device.is_host());
        let of = |n: usize| Finalist::of(&timed[n], format!("plans/{}.json", file_name(&candidates[n].name)), library(n));
        let all: Vec<(usize, Finalist)> = (0..timed.len()).filter(|n| !timed[*n].earlier).map(|n| (n, of(n))).collect();
        let libraries = all.iter().all(|(_, finalist)| finalist.library.is_some());
        loop {
            let competing: Vec<&(usize, Finalist)> = all.iter().filter(|(n, _)| !wrong.contains(n)).collect();
            let costs: Vec<(f64, u64)> = competing.iter().map(|(_, f)| (f.step_ms, f.bytes(libraries))).collect();
            let found: Vec<&(usize, Finalist)> = front(&costs, slower).into_iter().map(|n| competing[n]).collect();
            // Baselines were kept within other plans alone.
            found.iter().try_for_each(|(n, _)| self.keep(&candidates[*n], None))?;
            let Some((n, _)) = found.iter().find(|(n, _)| !right.contains(n)) else {
                return Ok(found.into_iter().map(|(_, finalist)| finalist.clone()).collect());
            };
            let set = if self.passes_full(&candidates[*n], candidates)? { &mut right } else { &mut *wrong };
            set.insert(*n);
        }
    }

    /// Reselections by times within the step, for the selected program and for the fastest one; the better one first.
    fn again(&self, candidates: &[Candidate], timed: &[Timed]) -> Result<Vec<Candidate>, PipelineError> {
        let known: Vec<_> = candidates.iter().zip(timed).collect();
        let fastest = winner(timed, 0.0, &BTreeSet::new()).unwrap_or(0);
        let mut found: Vec<Reselected> = Vec::new();
        for (n, swept) in self.sweeps.variants.iter().enumerate() {
            let is_it = |at: usize| candidates.get(at).is_some_and(|c| c.program == swept.program);
            let first = self.sweeps.variants.iter().position(|s| s.program == swept.program) == Some(n);
            if first && (is_it(0) || is_it(fastest)) {
                let (session, of, limit) = (self.session, (&self.tensors, &RUN), self.timing / 4);
                found.extend(reselect_in_step(swept, &known, &session.store, of, &session.pool, &session.device, limit)?);
            }
        }
        found.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
        for Reselected { candidate, .. } in &found {
            let said = format!("\nkernels that {} runs otherwise than the choice by times alone\n", candidate.name);
            self.tell(&said, candidate, None, |c| c.to_string());
        }
        Ok(found.into_iter().map(|again| again.candidate).collect())
    }

    /// The same plans with independent kernels in common dispatches, on devices and for plans where that makes a difference.
    fn packed(&self, candidates: &[&Candidate]) -> Result<Vec<Candidate>, PipelineError> {
        let mut found = Vec::new();
        for candidate in candidates.iter().filter(|c| !c.packed) {
            // With the memory of independent launches apart more of them share dispatches, and a step needs more memory: both compete.
            let mut fewest = usize::MAX;
            for (beside, how) in [(1, "packed in the same memory"), (BESIDE, "packed")] {
                let packed = Candidate { name: format!("{} · {how}", candidate.name), packed: true, beside, ..(*candidate).clone() };
                let packing = Execution::of(&packed, &self.session.device)?.packing(self.session.pool.workers());
                if let Some((launches, packs)) = packing
                    && packs < launches.min(fewest)
                {
                    fewest = packs;
                    found.push(packed);
                }
            }
            found.extend(divided(candidate, &*self.session.device, self.session.pool.workers())?);
        }
        Ok(found)
    }

    /// The candidate with every kernel in the configuration that is fastest within the step.
    fn within(&self, candidate: &Candidate) -> Result<Option<Candidate>, PipelineError> {
        let (session, of, limit) = (self.session, (&self.tensors, &RUN), self.timing / 2);
        let found = tune_in_step(candidate, &session.store, of, &session.pool, &session.device, limit)?;
        if let Some(found) = &found {
            let said = format!("\nkernels of {} that are faster otherwise within the step\n", candidate.name);
            self.tell(&said, found, Some(candidate), |c| c.knobs.to_string());
        }
        Ok(found)
    }

    /// Prints the kernels that a candidate runs in another configuration than the selected one, and than another candidate.
    fn tell(&self, what: &str, candidate: &Candidate, than: Option<&Candidate>, config: impl Fn(&KernelConfig) -> String) {
        let mut rows = table(&["kernel", "chosen", "in the step ms", "instead", "ms"]);
        let runs = |of: &Candidate, kernel: &str| of.configuration.kernels.get(kernel).cloned();
        for Exchange { kernel, chosen, chosen_ms, taken_ms } in &candidate.exchanges {
            if than.is_some_and(|than| runs(than, kernel) == runs(candidate, kernel)) {
                continue;
            }
            let taken = candidate.configuration.kernels.get(kernel).map(&config).unwrap_or_default();
            rows.row(cells(vec![kernel.clone(), config(chosen), significant(*chosen_ms), taken, significant(*taken_ms)]));
        }
        self.args.measure.say(what);
        self.args.measure.table(&rows);
    }

    /// Verifications since the last call.
    pub fn verified(&mut self) -> Vec<Verified> {
        std::mem::take(&mut self.verdicts.right)
    }

    /// All refused plans so far.
    pub fn refused(&self) -> Vec<RefusedPlan> {
        self.verdicts.refused.clone()
    }

    /// The closing warning if plans were refused.
    pub fn warning(&self, taken: &str) -> Option<String> {
        self.verdicts.warning(taken)
    }
}

/// How many more plans fit into the time for whole plans, at least one: each runs a few times in the last race.
fn affordable(timing: Duration, step_ms: f64) -> usize {
    ((timing.as_secs_f64() * 1e3 / ((LEAST + 1) as f64 * step_ms.max(1e-9))) as usize).max(1)
}

/// Removes the plans of earlier runs from a folder, since they rest on other measurements; other files stay.
fn fresh_folder(path: &Path) -> Result<(), PipelineError> {
    let failed = |e: std::io::Error| PipelineError::Plan { file: path.display().to_string(), why: e.to_string() };
    std::fs::create_dir_all(path).map_err(failed)?;
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        if file.extension().is_some_and(|e| e == "json") {
            std::fs::remove_file(file).map_err(failed)?;
        }
    }
    Ok(())
}

/// The name of a plan as a file: letters and digits, joined by `-`.
fn file_name(plan: &str) -> String {
    let words: Vec<&str> = plan.split(|c: char| !c.is_ascii_alphanumeric() && c != '+').filter(|w| !w.is_empty()).collect();
    words.join("-")
}

#[cfg(test)]
mod tests;
