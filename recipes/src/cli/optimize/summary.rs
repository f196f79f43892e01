//! The results of `memlet optimize`, as JSON and as tables.

use super::finalists::Finalist;
use crate::cli::sweep::{CoverageRow, SweepPace, coverages};
use crate::cli::{cells, table};
use crate::pipeline::choose::plan::PlanRefusal;
use crate::pipeline::choose::sweep_all::{Choices, SweptPrograms};
use crate::pipeline::run::candidate::Candidate;
use crate::pipeline::run::race_plans::Timed;
use crate::timings::{Counts, Timings};
use bench::model::Certainty;
use bench::stitching::StitchedProgram;
use bench::table::Table;
use bench::unit::significant;
use layouts::{Finish, Method, Selection};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// The output of `memlet optimize --json`.
#[derive(Serialize)]
pub struct RunSummary<'a> {
    pub finish: Finish,
    pub coverage: Vec<CoverageRow<'a>>,
    pub stored: usize,
    #[serde(flatten)]
    pub pace: SweepPace,
    /// Empty if the plan of an earlier run stands.
    pub choices: Vec<MethodChoice<'a>>,
    /// The robustness of the selection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certainty: Option<Certainty>,
    pub verified: Vec<Verified>,
    /// Plans that a check refused.
    pub refused: Vec<RefusedPlan>,
    pub timed: Vec<TimedPlan>,
    /// The plan that is taken: of those within `memory_slack` of the fastest the one with the least memory, and then the fewest dispatches.
    pub winner: Option<String>,
    pub fastest: Option<String>,
    pub memory_slack: Option<f64>,
    /// With `--finalists`: plans that need less memory than every faster one, fastest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalists: Vec<Finalist>,
    pub plan: Option<PathBuf>,
    pub report: Option<PathBuf>,
    /// The stitched program's plan beside measurements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stitched: Option<StitchedProgram>,
    /// Where the time went, with `--timings`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

#[derive(Serialize)]
pub struct MethodChoice<'a> {
    pub program: &'a str,
    pub method: Method,
    pub predicted_ms: f64,
    pub sum_of_minima_ms: f64,
    pub above_minima: f64,
    pub proven: bool,
    pub gap: f64,
}

#[derive(Serialize)]
pub struct Verified {
    pub plan: String,
    pub against: String,
    /// Largest error ÷ derived tolerance.
    pub worst: f64,
}

#[derive(Clone, Serialize)]
pub struct RefusedPlan {
    pub plan: String,
    #[serde(flatten)]
    pub why: PlanRefusal,
}

#[derive(Serialize)]
pub struct TimedPlan {
    pub plan: String,
    pub forward_ms: f64,
    pub backward_ms: f64,
    pub step_ms: f64,
    pub step_samples_ms: Vec<f64>,
    pub predicted_ms: f64,
    pub peak_bytes: u64,
    /// How often a step gives work to the pool or the GPU.
    pub dispatches: u64,
    /// Whether it was clearly slower in the first race and has only that race's times, which are not comparable with the others.
    pub first_race_only: bool,
}

/// Seconds of each phase, and of all.
pub fn table_of_timings(timings: &Timings) -> Table {
    let mut rows = table(&["phase", "wall s", "cpu s", "share of wall"]);
    let share = |wall: f64| format!("{:.1}%", 100.0 * wall / timings.wall_s.max(f64::MIN_POSITIVE));
    let seconds = |s: f64| format!("{s:.2}");
    for row in &timings.phases {
        rows.row(cells(vec![row.phase.name().to_string(), seconds(row.wall_s), seconds(row.cpu_s), share(row.wall_s)]));
    }
    rows.row(cells(vec!["all".into(), seconds(timings.wall_s), seconds(timings.cpu_s), share(timings.wall_s)]));
    rows
}

/// What was made and measured, as a line.
pub fn line_of_counts(counts: &Counts) -> String {
    let Counts { nodes, programs, kernels, configurations, compiled, compiler_runs, measurements } = counts;
    format!(
        "{nodes} nodes in the unfused program; {programs} programs with {kernels} kernels; {configurations} configurations in the records, \
         {measurements} measured now; {compiled} texts compiled in {compiler_runs} runs of the compiler"
    )
}

fn median(samples: &[f64]) -> f64 {
    layouts::record::median(samples).unwrap_or(f64::NAN)
}

impl<'a> MethodChoice<'a> {
    fn of(program: &'a str, s: &Selection) -> Self {
        MethodChoice {
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

impl TimedPlan {
    fn of(timed: &Timed, candidate: &Candidate) -> Self {
        TimedPlan {
            plan: timed.name.clone(),
            forward_ms: median(&timed.forward_ms),
            backward_ms: median(&timed.backward_ms),
            step_ms: median(&timed.step.samples),
            step_samples_ms: timed.step.samples.clone(),
            predicted_ms: candidate.predicted_ms,
            peak_bytes: timed.memory.actual_bytes,
            dispatches: timed.dispatches.iter().sum(),
            first_race_only: timed.earlier,
        }
    }
}

impl<'a> RunSummary<'a> {
    pub fn of(sweeps: &'a SweptPrograms, stored: usize, pace: SweepPace) -> Self {
        RunSummary {
            finish: sweeps.finish,
            coverage: coverages(sweeps),
            stored,
            pace,
            choices: vec![],
            certainty: None,
            verified: vec![],
            refused: vec![],
            timed: vec![],
            winner: None,
            fastest: None,
            memory_slack: None,
            finalists: vec![],
            plan: None,
            report: None,
            stitched: None,
            timings: None,
        }
    }

    pub fn choices(&mut self, choices: &[Choices], sweeps: &'a SweptPrograms) {
        let each = choices.iter().flat_map(|c| c.selections.iter().map(|s| MethodChoice::of(&sweeps.variants[c.swept].name, s)));
        self.choices = each.collect();
    }

    pub fn wholes(&mut self, timed: &[Timed], candidates: &[Candidate]) {
        self.timed = timed.iter().zip(candidates).map(|(t, c)| TimedPlan::of(t, c)).collect();
    }

    /// What the choice among the timed plans rests on.
    pub fn chosen(&mut self, fastest: &str, memory_slack: f64, finalists: &[Finalist]) {
        (self.fastest, self.memory_slack, self.finalists) = (Some(fastest.to_string()), Some(memory_slack), finalists.to_vec());
    }

    /// The selections of each method for each program; methods with the same cost share a row.
    pub fn table_of_choices(&self) -> Table {
        let columns = ["program", "method", "predicted ms", "above minima", "least of what was measured"];
        let mut rows = table(&columns).words(&["method", "least of what was measured"]);
        let cost =
            |c: &MethodChoice| (significant(c.predicted_ms), if c.proven { "proven".into() } else { format!("gap {:.1}%", 100.0 * c.gap) });
        let mut groups: Vec<Vec<&MethodChoice>> = Vec::new();
        for choice in &self.choices {
            match groups.last_mut().filter(|group| group[0].program == choice.program && cost(group[0]) == cost(choice)) {
                Some(group) => group.push(choice),
                None => groups.push(vec![choice]),
            }
        }
        for group in &groups {
            let (program, (ms, proven)) = (group[0].program, cost(group[0]));
            let own = self.choices.iter().filter(|c| c.program == program).count();
            let method = match group.as_slice() {
                [first, _, ..] if group.len() == own => format!("{}, and all others", first.method),
                all => all.iter().map(|c| c.method.to_string()).collect::<Vec<_>>().join(", "),
            };
            rows.row(cells(vec![program.to_string(), method, ms, format!("{:.1}%", 100.0 * group[0].above_minima), proven]));
        }
        rows
    }

    /// Marks the plans in `wrong`, and plans that only have times of the first race.
    pub fn table_of_wholes(&self, wrong: &BTreeSet<usize>) -> Table {
        let mut rows = table(&["plan", "forward ms", "backward ms", "step ms", "predicted ms", "peak MB", "dispatches"]);
        for (n, t) in self.timed.iter().enumerate() {
            let marks = [(wrong.contains(&n), " (wrong)"), (t.first_race_only, " (first race)")];
            let marks: String = marks.into_iter().filter(|(holds, _)| *holds).map(|(_, mark)| mark).collect();
            let mut row = vec![format!("{}{marks}", t.plan)];
            row.extend([t.forward_ms, t.backward_ms, t.step_ms, t.predicted_ms, t.peak_bytes as f64 / 1e6].map(significant));
            row.push(t.dispatches.to_string());
            rows.row(cells(row));
        }
        rows
    }
}
