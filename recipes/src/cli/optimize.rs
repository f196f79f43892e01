//! `memlet optimize`: the whole way from a recipe to a plan and its report.

use super::sweep::{Coverage, MeasureArgs, Pace, Session, coverage, coverages};
use super::{cells, command_line, duration, share, table};
use crate::analyze::analyze;
use crate::pipeline::PipelineError;
use crate::pipeline::combined::COMBINED;
use crate::pipeline::decide::{Asked, decide};
use crate::pipeline::execute::Execution;
use crate::pipeline::in_step::{Exchange, in_step};
use crate::pipeline::mixture::Mixture;
use crate::pipeline::optimize::{Choices, Sweeps, Verification, baselines, choose, plainest, plan, verify_full, verify_small};
use crate::pipeline::plan::{Candidate, Plan};
use crate::pipeline::programs::{COMPOSED, EPILOGUES, SIGNS};
use crate::pipeline::report::{self, Finished};
use crate::pipeline::sweep::Swept;
use crate::pipeline::tensors::drawn;
use crate::pipeline::wholes::{Race, Timed, finals, time_whole, winner};
use bench::model::CompositionRow;
use bench::table::Table;
use bench::unit::significant;
use clap::Args;
use kernels::device::Device;
use layouts::exact::Limits;
use layouts::record::Cache;
use layouts::{Finish, Method, Selection};
use sdfg::interpret::{Run, Tensors};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Args)]
pub struct OptimizeArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Time for timing the best plans and the baselines as wholes
    #[arg(long, value_parser = duration, default_value = "20s")]
    pub timing: Duration,
    /// Of plans that take at most this much longer than the fastest, the one that needs the least memory is taken
    #[arg(long, value_name = "SHARE", value_parser = share, default_value = "1%")]
    pub memory_slack: f64,
}

/// What `memlet optimize --json` prints.
#[derive(Serialize)]
struct Outcome<'a> {
    finish: Finish,
    coverage: Vec<Coverage<'a>>,
    stored: usize,
    #[serde(flatten)]
    pace: Pace,
    /// Empty if the plan of an earlier run stands.
    choices: Vec<Choice<'a>>,
    verified: Vec<Verified>,
    timed: Vec<Whole>,
    /// Name of the fastest candidate.
    winner: Option<String>,
    plan: Option<PathBuf>,
    report: Option<PathBuf>,
}

#[derive(Serialize)]
struct Choice<'a> {
    program: &'a str,
    method: Method,
    predicted_ms: f64,
    sum_of_minima_ms: f64,
    above_minima: f64,
    proven: bool,
    gap: f64,
}

#[derive(Serialize)]
struct Verified {
    plan: String,
    against: String,
    /// Largest error ÷ derived tolerance.
    worst: f64,
}

#[derive(Serialize)]
struct Whole {
    plan: String,
    forward_ms: f64,
    backward_ms: f64,
    step_ms: f64,
    step_samples_ms: Vec<f64>,
    predicted_ms: f64,
    peak_bytes: u64,
}

fn median(samples: &[f64]) -> f64 {
    layouts::record::median(samples).unwrap_or(f64::NAN)
}

impl<'a> Choice<'a> {
    fn of(program: &'a str, s: &Selection) -> Self {
        Choice {
            program,
            method: s.method,
            predicted_ms: s.total_ms,
            sum_of_minima_ms: s.sum_of_minima_ms,
            above_minima: s.above_minima(),
            proven: s.proven,
            gap: s.gap,
        }
    }
}

impl Whole {
    fn of(timed: &Timed, candidate: &Candidate) -> Self {
        Whole {
            plan: timed.name.clone(),
            forward_ms: median(&timed.forward_ms),
            backward_ms: median(&timed.backward_ms),
            step_ms: median(&timed.step.samples),
            step_samples_ms: timed.step.samples.clone(),
            predicted_ms: candidate.predicted_ms,
            peak_bytes: timed.memory.actual_bytes,
        }
    }
}

impl OptimizeArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        // By reference: rustc 1.95 hands one memory for both empty strings to a closure that takes them by value and grows them.
        let say = |text: &str| self.measure.say(&format!("{text}\n"));
        let mut session = self.measure.open()?;
        let sweeps = self.measure.sweep(&mut session)?;
        self.measure.table(&coverage(&sweeps));
        let stored = session.store.all().count();
        say(&format!("{stored} configurations are stored; {}", session.pace));
        let mut outcome = Outcome {
            finish: sweeps.finish,
            coverage: coverages(&sweeps),
            stored,
            pace: session.pace,
            choices: vec![],
            verified: vec![],
            timed: vec![],
            winner: None,
            plan: None,
            report: None,
        };
        if sweeps.finish == Finish::Interrupted {
            say("interrupted; what was measured is kept, the same command goes on from here");
            return self.done(&outcome);
        }
        let path = session.out.join("plan.json");
        let learned = session.store.learned();
        if session.ledger.settled(learned)
            && let Ok(plan) = Plan::read(&path)
            && sweeps.variants.iter().any(|s| s.program == plan.chosen.program)
        {
            say(&format!("\nnothing new was measured within the budget: {} stands; a longer --budget measures more", path.display()));
            say(&format!("time it again with: memlet run {}", path.display()));
            outcome.winner = Some(plan.chosen.name);
            outcome.plan = Some(path);
            return self.done(&outcome);
        }
        let compositions = report::compositions(&sweeps);
        if !compositions.is_empty() {
            say("\ncompositions: measured");
            self.measure.table(&weighed(&compositions));
        }
        sweeps.too_large.iter().for_each(|why| say(why));
        if let Some(why) = &sweeps.apart {
            say(&format!("the best kernels of all programs could not be put together: {why}"));
        }
        let products = report::products(&sweeps, &session.store);
        if !products.is_empty() {
            say("\nmatrix products: the library's own choice of algorithms against the best");
            self.measure.table(&bench::report::tables::products(&products));
        }
        let (choices, left_out) = choose(&sweeps, &session.store)?;
        left_out.iter().for_each(|why| say(why));
        outcome.choices = choices.iter().flat_map(|c| c.selections.iter().map(|s| Choice::of(&sweeps.variants[c.swept].name, s))).collect();
        let mut rows = table(&["program", "method", "predicted ms", "above minima", "proven"]);
        for c in &outcome.choices {
            rows.row(cells(vec![
                c.program.to_string(),
                c.method.to_string(),
                significant(c.predicted_ms),
                format!("{:.1}%", 100.0 * c.above_minima),
                if c.proven { "yes".into() } else { format!("gap {:.1}%", 100.0 * c.gap) },
            ]));
        }
        say("");
        self.measure.table(&rows);
        say(&certify(&sweeps, &session)?);

        let candidates = contenders(&sweeps, &choices, &session)?;
        let baselines = baselines(&sweeps, &session.store)?;
        let tensors = drawn(&session.programs.operators, 1)?;
        // The program is the last that was added, if it was.
        let of_mixture = sweeps.mixing.mixture.as_ref().map(Mixture::name);
        let made = |s: &Swept| s.name == COMBINED || of_mixture.as_ref() == Some(&s.name);
        let made: Vec<&sdfg::Sdfg> = sweeps.variants.iter().filter(|s| made(s)).map(|s| &s.program).collect();
        let plan_of = |candidate: &Candidate| {
            plan(
                (&self.measure.recipe.recipe.display().to_string(), &session.recipe.text),
                &self.measure.recipe.overrides(),
                candidate.clone(),
                baselines.clone(),
                made.contains(&&candidate.program).then(|| sweeps.mixing.clone()),
                (self.measure.device.clone(), &*session.device, session.pool.workers()),
                command_line(),
            )
        };
        // Before anything is verified: what is wrong can then be looked at.
        let others = session.out.join("plans");
        fresh_folder(&others)?;
        let keep = |candidate: &Candidate| plan_of(candidate).write(&others.join(format!("{}.json", file_name(&candidate.name))));
        candidates.iter().try_for_each(keep)?;
        let small = |candidate: &Candidate| verify_small(candidate, &session.programs.operators, &session.pool, &session.device);
        // Where the unfused program does not fit into memory, another of the candidates has to do.
        let plainest = plainest(&sweeps, &*session.device)?;
        let full = |candidate: &Candidate, others: &[Candidate]| {
            let differences = |other: &&Candidate| candidate.differences(other);
            let other = others.iter().max_by_key(differences).filter(|other| differences(other) > 0);
            let reference = plainest.as_ref().or(other);
            let found = reference.map(|reference| verify_full(candidate, reference, &tensors, &session.pool, &session.device));
            if found.is_none() {
                say(&format!("{} is not compared at full size: there is nothing to compare it with that fits into memory", candidate.name));
            }
            found
        };
        let mut verdicts = Verdicts { say: &say, right: vec![], wrong: None };
        let mut right = Vec::new();
        for candidate in candidates {
            if verdicts.is_right(&candidate.name, small(&candidate))? {
                right.push(candidate);
            }
        }
        let mut candidates = right;
        for baseline in &baselines {
            verdicts.must_be_right(&baseline.name, small(baseline))?;
        }
        while let Some(first) = candidates.first()
            && let Some(found) = full(first, &candidates)
            && !verdicts.is_right(&first.name, found)?
        {
            candidates.remove(0);
        }
        if let (true, Some(wrong)) = (candidates.is_empty(), verdicts.wrong.take()) {
            return Err(wrong);
        }
        let run = Run { seed: 1, step: 0, dropout: true };
        // All of them first, to see which are worth more of the time.
        let time = |candidates: &[Candidate], limit| time_whole(candidates, &tensors, &run, &session.pool, &session.device, limit);
        let together = self.measure.together(&mut candidates, &say)?;
        let first = time(&candidates, self.timing / 2)?;
        if let Some(found) = self.within(&candidates, &first, &session, &tensors, &run)? {
            keep(&found)?;
            if verdicts.is_right(&found.name, small(&found))? {
                candidates.push(found);
            }
        }
        let contenders = candidates.len();
        if together {
            candidates.extend(baselines.iter().cloned());
            self.measure.together(&mut candidates, &say)?;
        }
        let race = finals(&candidates, contenders, first, self.memory_slack, |again| time(again, self.timing))?;
        let Some(Race { timed, mut taken, mut fastest }) = race else {
            outcome.verified = std::mem::take(&mut verdicts.right);
            return verdicts.end(self.done(&outcome));
        };
        // The first was compared at full size, and so is what takes its place: kernels that do not wait for what they need have the time
        // to come too early there.
        let mut wrong = BTreeSet::new();
        while taken > 0
            && let Some(found) = full(&candidates[taken], &candidates[..contenders])
            && !verdicts.is_right(&candidates[taken].name, found)?
        {
            wrong.insert(taken);
            let next = |slack| winner(&timed[..contenders], slack, &wrong).unwrap_or(0);
            (taken, fastest) = (next(self.memory_slack), next(0.0));
        }
        outcome.verified = std::mem::take(&mut verdicts.right);
        outcome.timed = timed.iter().zip(&candidates).map(|(t, c)| Whole::of(t, c)).collect();
        let mut rows = table(&["plan", "forward ms", "backward ms", "step ms", "predicted ms", "peak MB"]);
        for (n, t) in outcome.timed.iter().enumerate() {
            let mut row = vec![if wrong.contains(&n) { format!("{} (wrong)", t.plan) } else { t.plan.clone() }];
            row.extend([t.forward_ms, t.backward_ms, t.step_ms, t.predicted_ms, t.peak_bytes as f64 / 1e6].map(significant));
            rows.row(cells(row));
        }
        say("");
        self.measure.table(&rows);
        if fastest != taken {
            let (own, other) = (&outcome.timed[taken], &outcome.timed[fastest]);
            say(&format!(
                "{} is taken: it needs {} MB instead of {} MB and {:.1}% more time than {}; --memory-slack decides",
                own.plan,
                significant(own.peak_bytes as f64 / 1e6),
                significant(other.peak_bytes as f64 / 1e6),
                100.0 * (own.step_ms / other.step_ms - 1.0),
                other.plan,
            ));
        }
        let peak = |n: usize| outcome.timed[n].peak_bytes as f64;
        if let Some(lean) = winner(&timed[..contenders], LEAN, &wrong).filter(|n| peak(*n) < (1.0 - LEAN) * peak(taken)) {
            let (own, other) = (&outcome.timed[lean], &outcome.timed[taken]);
            let slack = 100.0 * (own.step_ms / outcome.timed[fastest].step_ms - 1.0);
            say(&format!(
                "{} needs {} MB instead of {} MB and {slack:.1}% more time than the fastest: --memory-slack {:.0}% takes it",
                own.plan,
                significant(own.peak_bytes as f64 / 1e6),
                significant(other.peak_bytes as f64 / 1e6),
                slack.ceil(),
            ));
        }
        self.measure.say(&agreement(&candidates[..contenders], &timed[..contenders], &choices[0].selections[0], session.store.cache()));
        for n in contenders..timed.len() {
            if let Ok(ratio) = timed[taken].step.speedup_over(&timed[n].step) {
                let (median, interval) = (ratio.median, ratio.interval);
                let (other, own) = (&timed[n].name, &timed[taken].name);
                say(&format!("{other} ÷ {own}: {median:.3} (95% interval {:.3} to {:.3})", interval.lower, interval.upper));
            }
        }
        let plan = plan_of(&candidates[taken]);
        plan.write(&path)?;
        write_kernels(&session.out.join("kernels"), &plan, &session.device)?;
        say(&format!("plan: {}", path.display()));
        let finished = Finished {
            analysis: &analyze(&session.recipe, false)?,
            programs: &session.programs,
            sweeps: &sweeps,
            store: &session.store,
            choices: &choices,
            candidates: &candidates,
            contenders,
            timed: &timed,
            winner: taken,
            pool: &session.pool,
            device: &*session.device,
        };
        report::write(&session.out, &report::build(&finished)?, &session.store)?;
        session.ledger.settle(learned)?;
        let page = session.out.join("report.html");
        say(&format!("report: {}", page.display()));
        outcome.winner = Some(candidates[taken].name.clone());
        (outcome.plan, outcome.report) = (Some(path), Some(page));
        verdicts.end(self.done(&outcome))
    }

    /// The fastest of the candidates as a whole, with every kernel in the configuration that is fastest in the step.
    fn within(
        &self,
        candidates: &[Candidate],
        timed: &[Timed],
        session: &Session,
        tensors: &Tensors,
        run: &Run,
    ) -> Result<Option<Candidate>, PipelineError> {
        let Some(fastest) = winner(timed, 0.0, &BTreeSet::new()) else { return Ok(None) };
        let found = in_step(&candidates[fastest], &session.store, (tensors, run), &session.pool, &session.device, self.timing / 2)?;
        if let Some(found) = &found {
            let mut rows = table(&["kernel", "chosen", "in the step ms", "instead", "ms"]);
            for Exchange { kernel, chosen, chosen_ms, taken_ms } in &found.exchanges {
                let taken = found.configuration.kernels.get(kernel).map(|c| c.knobs.to_string()).unwrap_or_default();
                rows.row(cells(vec![kernel.clone(), chosen.knobs.to_string(), significant(*chosen_ms), taken, significant(*taken_ms)]));
            }
            self.measure.say(&format!("\nkernels of {} that are faster otherwise within the step\n", candidates[fastest].name));
            self.measure.table(&rows);
        }
        Ok(found)
    }

    fn done(&self, outcome: &Outcome) -> Result<(), PipelineError> {
        if self.measure.json {
            println!("{}", serde_json::to_string(outcome).map_err(|e| PipelineError::Internal(e.to_string()))?);
        }
        Ok(())
    }
}

/// What was found of plans. One that is wrong is left out, and the command fails in the end; what is right about the others is not
/// lost with it.
struct Verdicts<'a> {
    say: &'a dyn Fn(&str),
    right: Vec<Verified>,
    wrong: Option<PipelineError>,
}

impl Verdicts<'_> {
    fn is_right(&mut self, name: &str, found: Result<Verification, PipelineError>) -> Result<bool, PipelineError> {
        match self.must_be_right(name, found) {
            Err(PipelineError::Mismatch(what)) => {
                (self.say)(&format!("{name} is left out, its result is wrong: {what}"));
                self.wrong.get_or_insert(PipelineError::Mismatch(format!("{name}: {what}")));
                Ok(false)
            }
            found => found.map(|()| true),
        }
    }

    fn must_be_right(&mut self, name: &str, found: Result<Verification, PipelineError>) -> Result<(), PipelineError> {
        let found = found?;
        (self.say)(&format!("verified {name} against {}: worst error {:.3} of tolerance", found.against, found.worst()));
        self.right.push(Verified { plan: name.to_string(), worst: found.worst(), against: found.against });
        Ok(())
    }

    /// What the command ends with.
    fn end(self, done: Result<(), PipelineError>) -> Result<(), PipelineError> {
        done.and(self.wrong.map_or(Ok(()), Err))
    }
}

/// An empty folder: what an earlier run left there is of other measurements.
fn fresh_folder(path: &Path) -> Result<(), PipelineError> {
    let failed = |e: std::io::Error| PipelineError::Plan { file: path.display().to_string(), why: e.to_string() };
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(failed(e)),
        _ => std::fs::create_dir_all(path).map_err(failed),
    }
}

/// The name of a plan as a file: letters and digits, joined by `-`.
fn file_name(plan: &str) -> String {
    let words: Vec<&str> = plan.split(|c: char| !c.is_ascii_alphanumeric() && c != '+').filter(|w| !w.is_empty()).collect();
    words.join("-")
}

/// Each composition with the best that could be in its place, or that was put there.
fn weighed(rows: &[CompositionRow]) -> Table {
    let mut found = table(&["composition", "holds", "composed ms", "against", "instead ms", "chosen"]);
    let ms = |ms: Option<f64>| ms.map_or_else(|| "not measured".to_string(), significant);
    let mut seen: Vec<&str> = Vec::new();
    for row in rows {
        let others = rows.iter().filter(|r| r.subject == row.subject);
        let gain = |r: &CompositionRow| r.with_ms().zip(r.instead_ms()).map_or(f64::NEG_INFINITY, |(with, instead)| with - instead);
        let best = others.max_by(|a, b| a.changed.cmp(&b.changed).then(gain(a).total_cmp(&gain(b)))).unwrap_or(row);
        if seen.contains(&row.subject.as_str()) {
            continue;
        }
        seen.push(&row.subject);
        let chosen = if best.changed { best.change.clone() } else { "composed".to_string() };
        let chosen = if best.holds.is_empty() && !best.changed { "apart".to_string() } else { chosen };
        found.row(cells(vec![
            row.subject.clone(),
            row.holds.join(", "),
            ms(best.with_ms()),
            best.change.clone(),
            ms(best.instead_ms()),
            chosen,
        ]));
    }
    found
}

/// Of a plan that needs this share less memory, and takes at most this share more time, people are told.
const LEAN: f64 = 0.1;

/// Distinct choices that are timed as wholes, at least.
const WHOLES: usize = 5;

/// What is timed as wholes: the best choice for each of the three best programs and for the composed ones, and what comes
/// next for the best of them; of the best of each program also with its launches on several streams, where the device has
/// them and the program work for them. The choice is the first.
fn contenders(sweeps: &Sweeps, choices: &[Choices], session: &Session) -> Result<Vec<Candidate>, PipelineError> {
    let exact = |choice: &Choices| sweeps.variants[choice.swept].candidate(&choice.selections[0]);
    let of_mixture = sweeps.mixing.mixture.as_ref().map(Mixture::name);
    // What is composed moves least, which shows in a whole and not in kernels that are timed alone, their tensors in the caches.
    let is_composed = |choice: &Choices| {
        let name = &sweeps.variants[choice.swept].name;
        [COMPOSED, EPILOGUES, SIGNS, COMBINED].contains(&name.as_str()) || of_mixture.as_ref() == Some(name)
    };
    let mut candidates: Vec<Candidate> =
        choices.iter().enumerate().filter(|(n, choice)| *n < 3 || is_composed(choice)).map(|(_, choice)| exact(choice)).collect();
    let Some(best) = choices.first().map(|c| &sweeps.variants[c.swept]) else { return Ok(candidates) };
    let next = WHOLES.saturating_sub(candidates.len()).max(2);
    if session.device.streams().is_some() {
        for candidate in candidates.clone() {
            let streams = Execution::of(&candidate, &session.device)?.breadth();
            if streams > 1 {
                candidates.push(Candidate { name: format!("{} · {streams} streams", candidate.name), streams, ..candidate });
            }
        }
    }
    for (n, selection) in best.top(&session.store, 1 + next)?.iter().enumerate().skip(1) {
        let name = format!("{} · exact, choice {}", best.name, n + 1);
        candidates.push(Candidate { name, ..best.candidate(selection) });
    }
    Ok(candidates)
}

/// Kernels that a difference of totals is told by.
const BLAMED: usize = 3;

/// Whether the order that sums of kernel times predict is the order that whole plans have, and by how much totals differ;
/// and where. Kernels are timed alone, each over and over; in a plan each finds what its neighbours left.
fn agreement(candidates: &[Candidate], timed: &[Timed], choice: &Selection, cache: Cache) -> String {
    let measured: Vec<f64> = timed.iter().map(|t| layouts::record::median(&t.step.samples).unwrap_or(f64::NAN)).collect();
    let order = |times: &dyn Fn(usize) -> f64| {
        let mut places: Vec<usize> = (0..candidates.len()).collect();
        places.sort_by(|a, b| times(*a).total_cmp(&times(*b)));
        places
    };
    let (expected, found) = (order(&|n| candidates[n].predicted_ms), order(&|n| measured[n]));
    let (Some(best), Some(first)) = (found.first().copied(), expected.first().copied()) else { return String::new() };
    let mut text = String::new();
    let off = 100.0 * (measured[first] / candidates[first].predicted_ms - 1.0);
    let samples = &timed[first].step.samples;
    let extreme = |pick: fn(f64, f64) -> f64| samples.iter().copied().reduce(pick).unwrap_or(f64::NAN);
    let predicted = candidates[first].predicted_ms;
    if !(extreme(f64::min)..=extreme(f64::max)).contains(&predicted) {
        let why = if off > 0.0 {
            format!("kernels were timed alone, with {cache} caches")
        } else {
            "the machine was slower while kernels were timed".into()
        };
        text += &format!("predicted and measured total differ by {off:+.1}%, more than the spread: {why}\n");
        // The first candidate is the choice; a kernel is launched once in a step.
        let alone = |name: &str| choice.kernels.iter().find(|k| k.kernel == name).map(|k| k.ms);
        let launches = timed[0].launches.iter();
        let mut apart: Vec<(f64, &str, f64, f64)> = launches
            .filter_map(|(name, _, samples)| {
                let (alone, within) = (alone(name)?, layouts::record::median(samples)?);
                Some((within - alone, name.as_str(), alone, within))
            })
            .collect();
        apart.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()).then(a.1.cmp(b.1)));
        for (_, name, alone, within) in apart.into_iter().take(if first == 0 { BLAMED } else { 0 }) {
            text += &format!("  {name}: {} ms alone, {} ms in the plan\n", significant(alone), significant(within));
        }
    }
    if best != first {
        let gain = 100.0 * (1.0 - measured[best] / measured[first]);
        text +=
            &format!("timed as wholes the order changes: {} is {gain:.1}% faster than {}\n", candidates[best].name, candidates[first].name);
    }
    text
}

/// The programs as one with alternatives: program and layouts are one decision, with its certificate beside the records.
fn certify(sweeps: &Sweeps, session: &Session) -> Result<String, PipelineError> {
    // What `memlet solve` would choose from.
    let keys = |p: &layouts::Program| p.kernels.iter().map(|k| k.key.clone()).collect::<BTreeSet<String>>();
    let swept: BTreeSet<String> = sweeps.variants.iter().flat_map(|s| keys(&s.problem)).collect();
    let all = layouts::Program::of_records(&session.store);
    let Some((_, program)) = all.into_iter().find(|(_, p)| keys(p).is_superset(&swept)) else { return Ok(String::new()) };
    let decision = decide(&session.programs.operators.name, &program, &session.store, &Asked::default(), Limits::default(), &mut |_| true)?;
    let records = session.out.join("records.jsonl");
    let path = session.out.join("certificate.json");
    if records.exists() {
        let fault = |why: String| PipelineError::Plan { file: path.display().to_string(), why };
        let text = decision.certificate.about(vec!["records.jsonl".into()]).text().map_err(|e| fault(e.to_string()))?;
        bench::atomic::write(&path, text.as_bytes()).map_err(|e| fault(e.to_string()))?;
    }
    let Some(exact) = decision.selections.first() else { return Ok(String::new()) };
    let program =
        if program.programs.is_empty() { String::new() } else { format!(", program {}", program.called(&exact.configuration.variants)) };
    Ok(format!(
        "chosen of all programs: {} ms{program}; {}",
        significant(exact.total_ms),
        if exact.proven {
            "proven: nothing measured is cheaper".into()
        } else {
            format!("at most {:.2}% above the best", 100.0 * exact.gap)
        }
    ))
}

/// The generated code of a plan, one file for each kernel.
fn write_kernels(folder: &Path, plan: &Plan, device: &Arc<dyn Device>) -> Result<(), PipelineError> {
    let fault = |e: std::io::Error| PipelineError::Plan { file: folder.display().to_string(), why: e.to_string() };
    std::fs::create_dir_all(folder).map_err(fault)?;
    let execution = Execution::of(&plan.chosen, device)?;
    for (name, source) in execution.sources() {
        let file: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        bench::atomic::write(&folder.join(format!("{file}.{}", device.extension())), source.as_bytes()).map_err(fault)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_plan_is_left_out_and_said_in_the_end() {
        let said = std::cell::RefCell::new(String::new());
        let say = |text: &str| said.borrow_mut().push_str(text);
        let mut verdicts = Verdicts { say: &say, right: vec![], wrong: None };
        let wrong = |what: &str| Err(PipelineError::Mismatch(what.into()));
        assert!(!verdicts.is_right("mixed", wrong("d_w1 is off")).unwrap_or(true));
        assert!(!verdicts.is_right("composed", wrong("y is off")).unwrap_or(true));
        // What a device cannot do is no verdict.
        assert!(verdicts.is_right("fused", Err(PipelineError::Internal("lost".into()))).is_err());
        assert!(verdicts.must_be_right("unfused", wrong("y is off")).is_err());
        assert!(said.borrow().contains("mixed is left out, its result is wrong: d_w1 is off"));
        let ended = verdicts.end(Ok(()));
        assert!(ended.as_ref().is_err_and(|e| e.exit_code() == 3 && e.to_string().contains("mixed: d_w1 is off")), "{ended:?}");
    }
}
