//! `memlet optimize`: from a recipe to a plan and its report.

mod accelerator;
mod finalists;
mod messages;
mod race;
mod summary;
mod verification;

use super::out::outln;
use super::sweep::{INTERRUPTED, MeasureArgs, MeasurementSession, coverage};
use super::{duration, share};
use crate::analyze::analyze_made;
use crate::pipeline::PipelineError;
use crate::pipeline::choose::plan::Plan;
use crate::pipeline::choose::solve::{SolveRequest, decide};
use crate::pipeline::choose::sweep_all::{Choices, SweptPrograms, choose};
use crate::pipeline::report::{self, Finished};
use crate::pipeline::run::execute::Execution;
use crate::timings::{self, CommandPhase, Counts, PhaseRow, enter};
use bench::model::Certainty;
use bench::unit::significant;
use clap::Args;
use finalists::{Finalists, table_of_finalists};
use kernels::device::Device;
use layouts::Finish;
use layouts::candidates::Shard;
use layouts::exact::SearchLimits;
use race::{PlanRace, RaceResult, contenders, reserve};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use summary::RunSummary;

#[derive(Args)]
pub struct OptimizeArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Time for timing the best plans and the baselines as wholes [default: 20s, with a budget below 80s a quarter of it]
    #[arg(long, value_parser = duration)]
    timing: Option<Duration>,
    /// Take the plan that needs the least memory, and of these the fewest dispatches, among plans that take at most this much longer than
    /// the fastest
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "1%")]
    pub memory_slack: f64,
    /// Also write plans that take at most this much longer than the fastest and need less memory than every faster one, each checked at
    /// full size: finalists.json has their times and memory, for who runs several plans in one workspace
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub finalists: Option<f64>,
    /// Use all of --budget, also for programs of which more measuring promises to gain less than 1%
    #[arg(long)]
    pub whole_budget: bool,
    /// Print where the time went: wall-clock and processor seconds of each phase, and what was made and measured
    #[arg(long)]
    pub timings: bool,
}

/// The relative gain in time below which a program is measured no further.
const WORTH: f64 = 0.01;

/// Time for timing plans as wholes, if no option gives it.
const TIMING: Duration = Duration::from_secs(20);
/// The same at least, unless the budget is small.
const LEAST_TIMING: Duration = Duration::from_secs(3);
/// The same as a part of the budget. All timings of wholes together take two and a half times as long.
const TIMED: f64 = 0.25;

impl OptimizeArgs {
    /// Time for timing wholes, after a sweep that took so long.
    pub fn timing(&self, took: Duration) -> Duration {
        let own = || self.measure.bound().map_or(TIMING, |budget| TIMING.min(budget.mul_f64(TIMED)));
        // A sweep that ended early took less than its budget.
        let most = self.measure.bound().map_or(TIMING, |_| took.mul_f64(TIMED).max(LEAST_TIMING));
        self.timing.unwrap_or_else(|| own().min(most))
    }

    pub fn run(&self) -> Result<(), PipelineError> {
        if let Some(description) = &self.measure.device.description {
            return accelerator::run(&self.measure.recipe, description, self.measure.json, self.measure.out.clone());
        }
        timings::start();
        let mut session = self.measure.open()?;
        let settle = (!self.whole_budget && !self.measure.exhaustive && self.measure.shard == Shard::WHOLE).then_some(WORTH);
        let sweeps = self.measure.sweep(&mut session, 1.0, settle)?;
        self.measure.table(&coverage(&sweeps));
        let stored = session.store.all().count();
        self.say(&format!("{stored} configurations are stored; {}", session.pace));
        let unused: Vec<Duration> = sweeps.variants.iter().chain(&sweeps.trials).chain(&sweeps.unfused).filter_map(|s| s.unused).collect();
        if !unused.is_empty() {
            let (programs, seconds) = (unused.len(), unused.iter().sum::<Duration>().as_secs_f64());
            self.say(&format!(
                "{programs} programs were measured no further: what the rest of their shares promised, {seconds:.0} s of the budget, was less \
                 than {:.0}% of their time. --whole-budget uses it",
                100.0 * WORTH
            ));
        }
        let mut outcome = RunSummary::of(&sweeps, stored, session.pace);
        if sweeps.finish == Finish::Interrupted {
            self.say(INTERRUPTED);
            return self.done(outcome, session.counts(&sweeps));
        }
        let path = session.out.join("plan.json");
        let learned = session.store.learned();
        let earlier = Plan::read(&path).ok();
        if session.ledger.settled(learned)
            && session.ledger.chosen_with(self.memory_slack, self.finalists)
            && let Some(plan) = &earlier
            && sweeps.variants.iter().chain(&sweeps.unfused).any(|s| s.program == plan.chosen.program)
        {
            self.say(&format!(
                "\nnothing new was measured: {} stands. --budget counts what earlier runs spent; a longer one measures more",
                path.display()
            ));
            self.say(&format!("time it again with: memlet run {}", path.display()));
            outcome.winner = Some(plan.chosen.name.clone());
            outcome.plan = Some(path);
            return self.done(outcome, session.counts(&sweeps));
        }
        let (choices, certainty) = self.choices(&sweeps, &session, &mut outcome)?;
        let say = |text: &str| self.say(text);
        let timing = self.timing(session.began.elapsed());
        let mut contest = PlanRace::new(self, &session, &sweeps, timing, &say)?;
        let contending = contenders(&sweeps, &choices, &session, (timing, self.finalists))?;
        let reserve = reserve(&sweeps, &choices, &session, &contending);
        let candidates = contest.right(contending, reserve)?;
        // However the races end, a correct plan is on disk.
        if let Some(first) = candidates.first() {
            contest.plan_of(first).write(&path)?;
        }
        let contested = contest.race(candidates)?;
        (outcome.verified, outcome.refused) = (contest.verified(), contest.refused());
        let Some(contested) = contested else { return self.done(outcome, session.counts(&sweeps)) };
        outcome.wholes(&contested.timed, &contested.candidates);
        self.tell(&outcome, &contested);
        self.measure.say(&messages::agreement(&contested, &choices[0].selections[0], session.store.cache(), session.pace.load));
        let choice = Some(contested.choice(self.memory_slack));
        let plan = Plan { choice, ..contest.plan_of(&contested.candidates[contested.taken]) };
        plan.write(&path)?;
        let (taken, memory_slack) = (&contested.candidates[contested.taken].name, self.memory_slack);
        match self.finalists {
            Some(slower) => {
                let (threads, finalists) = (session.pool.workers(), &contested.finalists);
                Finalists { slower, threads, taken, memory_slack, finalists }.write(&session.out)?;
            }
            // Those of an earlier run rest on other measurements.
            None => drop(std::fs::remove_file(session.out.join("finalists.json"))),
        }
        write_kernels(&session.out.join("kernels"), &plan, earlier.as_ref(), &session.device)?;
        let in_report = enter(CommandPhase::Report);
        let finished = Finished {
            analysis: &analyze_made(&session.recipe, &session.programs)?,
            programs: &session.programs,
            sweeps: &sweeps,
            store: &session.store,
            choices: &choices,
            candidates: &contested.candidates,
            contenders: contested.contenders,
            timed: &contested.timed,
            winner: contested.taken,
            certainty,
            pool: &session.pool,
            device: &*session.device,
            load: [("kernels", session.pace.load), ("plans", contested.load())],
        };
        let mut built = report::build(&finished)?;
        if self.timings {
            let phases = timings::so_far(Counts::default()).map(|timings| timings.phases).unwrap_or_default();
            let row = |row: PhaseRow| bench::model::PhaseSeconds { phase: row.phase.name().into(), wall_s: row.wall_s, cpu_s: row.cpu_s };
            built.phases = phases.into_iter().map(row).collect();
        }
        if let Some(stitched) = &built.stitched {
            self.say(&format!("\nstitched: {}", stitched.plan()));
            self.measure.table(&stitched.patterns_table());
            self.say(&stitched.ranks());
        }
        outcome.stitched = built.stitched.clone();
        report::write(&session.out, &built, &session.store)?;
        drop(in_report);
        let page = session.out.join("report.html");
        self.say(&messages::summary(&contested, &report::coverage(&sweeps)));
        self.say(&format!("report: {}", page.display()));
        self.say(&format!("plan:   {}; run it: memlet run {}", path.display(), path.display()));
        self.say(&format!("why:    memlet explain {}", session.out.display()));
        if let Some(warning) = contest.warning(taken) {
            self.say(&format!("\n{warning}"));
        }
        outcome.winner = Some(taken.clone());
        outcome.chosen(&contested.candidates[contested.fastest].name, self.memory_slack, &contested.finalists);
        (outcome.plan, outcome.report) = (Some(path), Some(page));
        drop(contest);
        session.ledger.settle(learned, self.memory_slack, self.finalists)?;
        let counts = session.counts(&sweeps);
        self.done(outcome, counts)
    }

    /// The selections from the measurements, best first; prints the tables of fusions, products and selections.
    fn choices<'a>(
        &self,
        sweeps: &'a SweptPrograms,
        session: &MeasurementSession,
        outcome: &mut RunSummary<'a>,
    ) -> Result<(Vec<Choices>, Option<Certainty>), PipelineError> {
        let compositions = report::compositions(sweeps);
        if !compositions.is_empty() {
            self.say("\ncompositions: measured");
            self.measure.table(&messages::weighed(&compositions));
        }
        sweeps.left_out.iter().for_each(|why| self.say(why));
        if let Some(why) = &sweeps.apart {
            self.say(&format!("the best kernels of all programs could not be put together: {why}"));
        }
        let products = report::products(sweeps, &session.store);
        if !products.is_empty() {
            self.say("\nmatrix products: the library's own choice of algorithms against the best");
            self.measure.table(&bench::report::tables::products(&products));
        }
        let (choices, left_out) = choose(sweeps, &session.store)?;
        left_out.iter().for_each(|why| self.say(why));
        outcome.choices(&choices, sweeps);
        self.say("");
        self.measure.table(&outcome.table_of_choices());
        let (certified, certainty) = certify(sweeps, session, self.measure.bound())?;
        self.say(&certified);
        outcome.certainty = certainty;
        Ok((choices, certainty))
    }

    /// Prints the times of all plans, and the influence of memory on the result.
    fn tell(&self, outcome: &RunSummary, contested: &RaceResult) {
        self.say("");
        self.measure.table(&outcome.table_of_wholes(&contested.wrong));
        let (taken, fastest) = (&outcome.timed[contested.taken], &outcome.timed[contested.fastest]);
        if contested.fastest != contested.taken {
            self.say(&messages::why_not_the_fastest(taken, fastest));
        }
        if let Some(lean) = contested.lean() {
            self.say(&messages::lean(&outcome.timed[lean], taken, fastest));
        }
        if !contested.finalists.is_empty() {
            self.say("\nfinalists: less memory than every faster plan");
            self.measure.table(&table_of_finalists(&contested.finalists));
        }
    }

    fn say(&self, text: &str) {
        self.measure.say(&format!("{text}\n"));
    }

    fn done(&self, mut outcome: RunSummary, counts: Counts) -> Result<(), PipelineError> {
        if self.timings {
            outcome.timings = timings::so_far(counts);
            self.say("");
            if let Some(timings) = &outcome.timings {
                self.measure.table(&summary::table_of_timings(timings));
                self.say(&summary::line_of_counts(&timings.counts));
            }
        }
        if self.measure.json {
            outln!("{}", serde_json::to_string(&outcome).map_err(|e| PipelineError::Internal(e.to_string()))?);
        }
        Ok(())
    }
}

/// The number of resamplings of all times, and the longest time that they may take.
const REDRAWS: usize = 50;
const REDRAWING: Duration = Duration::from_secs(2);
/// The same as a part of the budget, and the least of it.
const REDRAWN: f64 = 0.05;
const LEAST_REDRAWING: Duration = Duration::from_millis(500);

/// Selects among all programs as one problem with alternatives, in which the program and its layouts are one decision, and writes its
/// certificate to the output folder. Returns a message and the robustness of the selection.
fn certify(
    sweeps: &SweptPrograms,
    session: &MeasurementSession,
    budget: Option<Duration>,
) -> Result<(String, Option<Certainty>), PipelineError> {
    let _phase = enter(CommandPhase::Select);
    // The problem that `memlet solve` reads from the records.
    let keys = |p: &layouts::SelectionProblem| p.kernels.iter().map(|k| k.key.clone()).collect::<BTreeSet<String>>();
    let swept: BTreeSet<String> = sweeps.variants.iter().flat_map(|s| keys(&s.problem)).collect();
    let all = layouts::SelectionProblem::of_records(&session.store);
    let Some((_, program)) = all.into_iter().find(|(_, p)| keys(p).is_superset(&swept)) else { return Ok((String::new(), None)) };
    let began = Instant::now();
    let redrawing = budget.map_or(REDRAWING, |budget| budget.mul_f64(REDRAWN).clamp(LEAST_REDRAWING, REDRAWING));
    let in_time = |_| began.elapsed() < redrawing;
    let asked = SolveRequest { resamples: REDRAWS, resampled: Some(&in_time), ..SolveRequest::default() };
    let decision = decide(&session.programs.operators.name, &program, &session.store, &asked, SearchLimits::default(), &mut |_| true)?;
    let path = session.out.join("certificate.json");
    let fault = |why: String| PipelineError::Plan { file: path.display().to_string(), why };
    let records = match session.records.strip_prefix(&session.out) {
        Ok(beside) => beside.to_path_buf(),
        Err(_) => std::path::absolute(&session.records).map_err(|e| fault(e.to_string()))?,
    };
    let once = decision.certificate.once.clone();
    // Only a plan whose program was swept takes part in the choice.
    let plans = session.programs.variants.iter().filter(|variant| sweeps.keys.contains(&variant.key)).filter_map(|v| v.plan.as_ref());
    let fusion = plans.map(|plan| plan.relative()).collect::<Vec<_>>().join("; another one: ");
    let certificate = decision.certificate.about(vec![records.display().to_string()]).relative_to(fusion.clone());
    let text = certificate.text().map_err(|e| fault(e.to_string()))?;
    bench::atomic::write(&path, text.as_bytes()).map_err(|e| fault(e.to_string()))?;
    let certainty =
        decision.robustness.as_ref().map(|r| Certainty { redraws: r.resamples as u64, best: r.optimal, worst_regret: r.worst_regret });
    let Some(exact) = decision.selections.first() else { return Ok((String::new(), certainty)) };
    let program =
        if program.programs.is_empty() { String::new() } else { format!(", program {}", program.called(&exact.configuration.variants)) };
    let proof = match exact.proven {
        true => "proven: nothing measured is cheaper".into(),
        false => format!("at most {:.2}% above the best that was measured", 100.0 * exact.gap),
    };
    let once = if once.is_empty() { String::new() } else { format!("\n  {once}") };
    let fusion = if fusion.is_empty() { fusion } else { format!("\n  {fusion}") };
    let sure = certainty.map(|c| format!("{once}{fusion}\n  {c}")).unwrap_or(format!("{once}{fusion}"));
    let (ms, relative) = (significant(exact.total_ms), report::coverage(sweeps).relative());
    Ok((format!("chosen of all programs: {ms} ms{program}\n  {proof}; {relative}{sure}"), certainty))
}

/// Writes the generated code of a plan, one file for each kernel. Files of the earlier plan's other kernels are deleted; unknown files
/// stay.
fn write_kernels(folder: &Path, plan: &Plan, earlier: Option<&Plan>, device: &Arc<dyn Device>) -> Result<(), PipelineError> {
    let fault = |e: std::io::Error| PipelineError::Plan { file: folder.display().to_string(), why: e.to_string() };
    std::fs::create_dir_all(folder).map_err(fault)?;
    let file = |name: &str, extension: &str| {
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        folder.join(format!("{plain}.{extension}"))
    };
    if let Some(plan) = earlier {
        for name in plan.chosen.configuration.kernels.keys() {
            let file = file(name, if plan.target.is_cpu() { "c" } else { "cu" });
            if file.is_file() {
                std::fs::remove_file(file).map_err(fault)?;
            }
        }
    }
    let execution = Execution::of(&plan.chosen, device)?;
    for (name, source) in execution.sources() {
        bench::atomic::write(&file(&name, device.extension()), source.as_bytes()).map_err(fault)?;
    }
    Ok(())
}
