//! `memlet sweep`: measures only. `memlet optimize` begins with the same arguments and sweep.

use super::device_argument::DeviceArgument;
use super::measured_planning;
use super::out::{err, errln, out, outln};
use super::progress::{RunClock, SweepProgress};
use super::{INTERRUPT, RecipeArgs, default_out, duration};
use super::{cells, table};
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::choose::multi_device;
use crate::pipeline::choose::sweep_all::{SweptPrograms, sweep_all};
use crate::pipeline::measure::budget_ledger::BudgetLedger;
use crate::pipeline::measure::measurement_budget::MeasurementBudget;
use crate::pipeline::measure::memory_limit::MemoryLimit;
use crate::pipeline::measure::phase_times::PhaseTimes;
use crate::pipeline::measure::sweep::{SweepContext, SweepEvent, SweptProgram};
use crate::pipeline::run::candidate::Candidate;
use crate::pipeline::run::memory::expected;
use crate::pipeline::variants::checked_programs::checked_programs;
use crate::pipeline::variants::programs::Programs;
use crate::pipeline::variants::rewrite_options::RewriteOptions;
use crate::pipeline::variants::table::VariantId;
use crate::pipeline::variants::{Planning, candidate_set::CandidateSet};
use crate::timings::{CommandPhase, Counts, during};
use bench::table::{Cell, Table};
use bench::{Bytes, Load, Watch};
use clap::Args;
use kernels::device::Device;
use kernels::pool::Pool;
use layouts::candidates::Shard;
use layouts::record::CacheState;
use layouts::{Finish, Store, Tally};
use sdfg::{Role, Sdfg};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct MeasureArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Time for everything but checks and the final timing, which take at most as much once more: making programs, compiling and
    /// measuring, summed over all runs into one folder. The most promising configurations come first, and programs beyond the budget are
    /// left out; 0s measures every kernel of every program once
    #[arg(long, value_parser = duration, default_value = "3m")]
    pub budget: Duration,
    /// Measure the whole space, however long that takes; resumable
    #[arg(long, conflicts_with = "budget")]
    pub exhaustive: bool,
    /// Measure only a part of the space, e.g. 2/8; merge the records afterwards
    #[arg(long, value_parser = shard, default_value = "1/1")]
    pub shard: Shard,
    /// The device to measure and run on: cpu, cuda, or a GPU's number as in cuda:1; several share the sweep, as in cuda:0,1. With a file
    /// such as recipes/devices/deep-fusion.yaml, optimize plans for the accelerator that it describes and measures nothing
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub device: DeviceArgument,
    /// Time every run with caches that hold none of its tensors, as after neighbours that left nothing in them
    #[arg(long)]
    pub cold: bool,
    /// Leave out programs that need more memory, e.g. 8GB [default: this machine's memory, or the free memory of the GPU]
    #[arg(long, value_parser = super::bytes)]
    pub memory: Option<Bytes>,
    /// Worker threads; 0 is one for each core
    #[arg(long, value_parser = super::threads, default_value_t = 0)]
    pub threads: usize,
    /// Folder for all files that are written [default: target/memlet/MODEL, with --cold MODEL-cold]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Records of measurements [default: OUT/records.jsonl]
    #[arg(long)]
    pub records: Option<PathBuf>,
    /// Interpret a shrunken program before and after every patch; a wrong patch is saved under target/memlet
    #[arg(long)]
    pub verify_each: bool,
    /// Make only programs of these variants, and the unfused one: names as `memlet variants` lists them, separated by commas
    #[arg(long, value_delimiter = ',', value_name = "VARIANTS", value_parser = VariantId::named)]
    pub only: Vec<VariantId>,
    /// The patterns that the plan of the stitched program is chosen from
    #[arg(long, value_enum, default_value = "all", value_name = "SET")]
    pub candidates: CandidateSet,
    /// Print JSON when done; messages go to standard error
    #[arg(long)]
    pub json: bool,
    /// Messages go to standard error, because another command prints its own results.
    #[arg(skip)]
    pub quiet: bool,
}

#[derive(Args)]
pub struct SweepArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
}

fn shard(text: &str) -> Result<Shard, String> {
    let wrong = || "write PART/PARTS, e.g. 2/8".to_string();
    let (part, parts) = text.split_once('/').ok_or_else(wrong)?;
    let (part, parts): (u64, u64) = (part.parse().map_err(|_| wrong())?, parts.parse().map_err(|_| wrong())?);
    if part < 1 || part > parts {
        return Err(wrong());
    }
    Ok(Shard { index: part - 1, of: parts })
}

/// The part of a budget after which no further program is begun to be made.
const MAKING: f64 = 0.15;

/// The part of a budget in which several devices measure at once; in the rest one of these confirms the results.
const TOGETHER: f64 = 0.8;
fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// A recipe with everything that its sweep needs.
pub struct MeasurementSession {
    pub recipe: Recipe,
    pub programs: Programs,
    pub pool: Pool,
    pub device: Arc<dyn Device>,
    /// How much memory programs may fill on the device.
    pub memory: MemoryLimit,
    pub store: Store,
    pub records: PathBuf,
    pub ledger: BudgetLedger,
    pub out: PathBuf,
    pub pace: SweepPace,
    /// When the command began: the budget bounds all from there on.
    pub began: Instant,
    /// Measures the load of other processes.
    pub watch: Watch,
}

impl MeasurementSession {
    /// What was made and measured so far.
    pub fn counts(&self, sweeps: &SweptPrograms) -> Counts {
        let programs: Vec<&SweptProgram> = sweeps.variants.iter().chain(&sweeps.trials).chain(&sweeps.unfused).collect();
        let (compiled, compiler_runs) = kernels::target::cpu::compile::compiled_so_far();
        Counts {
            nodes: self.programs.unfused.states().map(|(_, state)| state.nodes().count()).sum(),
            programs: programs.len(),
            kernels: programs.iter().map(|swept| swept.kernels.len()).sum(),
            configurations: self.store.all().count(),
            compiled,
            compiler_runs,
            measurements: programs.iter().map(|swept| swept.spent.measured as usize).sum(),
        }
    }

    /// Keeps the first candidates that fit into memory when they are timed in turns: one arena serves all, while each may have inputs and
    /// parameters in layouts of its own. Returns whether all fit.
    pub fn together(&self, candidates: &mut Vec<Candidate>, say: &dyn Fn(&str)) -> Result<bool, PipelineError> {
        let (mut given, mut arena, mut all) = (Bytes(0), Bytes(0), Bytes(0));
        let mut fit = 0;
        for candidate in candidates.iter() {
            let step = expected(&candidate.program)?;
            (given, arena) = (given + Bytes(step.given_bytes()), arena.max(Bytes(step.arena_bytes())));
            all = given + arena;
            fit += usize::from(fit == 0 || self.memory.holds(all));
        }
        if fit == candidates.len() {
            return Ok(true);
        }
        for left in candidates.drain(fit..) {
            say(&format!("{} is not timed: all plans in turns would need {all} of memory and may have {}", left.name, self.memory.bytes()));
        }
        Ok(false)
    }
}

/// The message after Ctrl-C.
pub const INTERRUPTED: &str = "interrupted; what was measured is kept, the same command goes on from here";

/// The measurements that a sweep has added to the records, and their rate.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct SweepPace {
    new: usize,
    seconds: f64,
    new_per_second: f64,
    #[serde(flatten)]
    spent: PhaseTimes,
    /// The budget in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<f64>,
    /// The load of other processes during the sweep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

impl std::fmt::Display for SweepPace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} new in {:.1} s: {:.1} in a second", self.new, self.seconds, self.new_per_second)?;
        let PhaseTimes { making, checking, timing, .. } = self.spent;
        write!(f, "; {}", self.spent)?;
        write!(f, ", {:.1} s finding what to measure", (self.seconds - making - checking - timing).max(0.0))?;
        if let Some(load) = self.load {
            write!(f, "; {load}")?;
        }
        match self.budget {
            // A small excess by the last configuration is not reported.
            Some(budget) if budget > 0.0 && self.seconds > budget + 1.0 + budget / 10.0 => {
                write!(
                    f,
                    ". The budget of {budget:.0} s is exceeded: the first program and the unfused one are measured once whatever that takes"
                )
            }
            _ => Ok(()),
        }
    }
}

impl MeasureArgs {
    /// The budget; `None` for the whole space.
    pub fn budget(&self) -> Option<Duration> {
        (!self.exhaustive).then_some(self.budget)
    }

    /// The budget as a bound; `None` if it is empty, which means that every kernel is measured once.
    pub fn bound(&self) -> Option<Duration> {
        self.budget().filter(|budget| !budget.is_zero())
    }

    pub fn open(&self) -> Result<MeasurementSession, PipelineError> {
        let (began, watch) = (Instant::now(), Watch::start());
        if let Some(path) = &self.device.description {
            let why = "an accelerator is planned for and not measured; use `memlet optimize RECIPE --device FILE`".to_string();
            return Err(PipelineError::Plan { file: path.display().to_string(), why });
        }
        let recipe = during(CommandPhase::Load, || self.recipe.load())?;
        // Missing devices are reported before anything takes time.
        let device = self.device.open()?;
        for other in self.device.each().iter().skip(1) {
            other.open()?;
        }
        let until = self.bound().and_then(|bound| began.checked_add(bound.mul_f64(MAKING)));
        let ends = self.bound().and_then(|bound| began.checked_add(bound));
        let planning = Planning { candidates: self.candidates, ..measured_planning() };
        let options =
            RewriteOptions { verify_each: self.verify_each, until, ends, planning, only: self.only.clone(), ..RewriteOptions::default() };
        let programs = checked_programs(&recipe, options, device.epilogues(), &mut |text| errln!("{text}"))?;
        let memory = MemoryLimit::on(&*device, self.memory)?;
        let file = self.recipe.recipe.display().to_string();
        fits(&programs.operators, memory, self.memory.is_some()).map_err(|why| PipelineError::Tensors { file, why })?;
        let pool = super::workers(self.threads)?;
        let own = |out: PathBuf| if self.cold { out.with_file_name(format!("{}-cold", file_name(&out))) } else { out };
        let out = self.out.clone().unwrap_or_else(|| own(default_out(&recipe, &self.recipe, &self.device)));
        std::fs::create_dir_all(&out).map_err(|e| PipelineError::Plan { file: out.display().to_string(), why: e.to_string() })?;
        let records = self.records.clone().unwrap_or_else(|| out.join("records.jsonl"));
        let store = Store::open(&records)?;
        let ledger = BudgetLedger::open(&out);
        Ok(MeasurementSession {
            recipe,
            programs,
            pool,
            device,
            store,
            records,
            ledger,
            out,
            pace: SweepPace::default(),
            memory,
            began,
            watch,
        })
    }

    /// Measures as long as there is time. The rest of the command is expected to take `later` times as long.
    pub fn sweep(&self, session: &mut MeasurementSession, later: f64, settle: Option<f64>) -> Result<SweptPrograms, PipelineError> {
        let (known, began) = (session.store.all().count(), session.began);
        if let Some(load) = session.watch.settled().filter(Load::busy) {
            errln!("this machine is busy, {load}: times vary, and those that are disturbed are taken again");
        }
        let whole = RunClock { began, expected: self.bound().map(|bound| bound.mul_f64(1.0 + later)) };
        let mut budget = self.budget();
        let targets = self.device.each();
        if targets.len() > 1 {
            // Records are closed while the parts are gathered into them.
            session.store = Store::in_memory();
            let bar = Mutex::new(SweepProgress::new(whole));
            let shared = multi_device::Shared {
                recipe: &session.recipe,
                programs: &session.programs,
                targets,
                out: &session.out,
                records: &session.records,
                budget: budget.map(|b| b.mul_f64(TOGETHER)),
                shard: self.shard,
                interrupt: &INTERRUPT,
                cache: if self.cold { CacheState::Cold } else { CacheState::Warm },
                memory: self.memory,
                progress: &|told| {
                    if let Ok(mut bar) = bar.lock() {
                        bar.told(told);
                    }
                },
                failed: &|target, error| errln!("{target} is lost: {error}"),
            };
            let outcome = multi_device::sweep(&shared);
            if let Ok(bar) = bar.lock() {
                bar.finish();
            }
            session.store = Store::open(&session.records)?;
            outcome?;
            // The first device continues from the records of all.
            budget = budget.map(|b| b.mul_f64(1.0 - TOGETHER));
        }
        let mut bar = SweepProgress::new(whole);
        let left = self.bound().map(|bound| bound.saturating_sub(session.ledger.commands()));
        let sweeps = {
            let mut progress = |told: SweepEvent| bar.told(told);
            let mut with = SweepContext {
                pool: &session.pool,
                device: &*session.device,
                store: &mut session.store,
                interrupt: &INTERRUPT,
                shard: self.shard,
                cache: if self.cold { CacheState::Cold } else { CacheState::Warm },
                memory: session.memory,
                ledger: &mut session.ledger,
                hopeless_ms: None,
                settle,
                budget: MeasurementBudget::until(left.and_then(|left| began.checked_add(left))),
                progress: &mut progress,
            };
            sweep_all(&session.recipe, &mut session.programs, budget, &mut with)?
        };
        bar.finish();
        session.ledger.command(began.elapsed())?;
        let (new, seconds) = (session.store.all().count().saturating_sub(known), began.elapsed().as_secs_f64());
        let mut spent = PhaseTimes::default();
        sweeps.variants.iter().chain(&sweeps.trials).chain(&sweeps.unfused).for_each(|swept| spent += swept.spent);
        session.pace = SweepPace {
            new,
            seconds,
            new_per_second: new as f64 / seconds.max(1e-3),
            spent,
            budget: self.budget().map(|b| b.as_secs_f64()),
            load: session.watch.load(),
        };
        Ok(sweeps)
    }

    /// Prints a message: to standard output, or to standard error if something else is printed there.
    pub fn say(&self, text: &str) {
        if self.json || self.quiet { err!("{text}") } else { out!("{text}") }
    }

    pub fn table(&self, table: &Table) {
        if self.json || self.quiet { err!("{}", table.text(false)) } else { out!("{}", table.text(bench::table::colour())) }
    }
}

/// Whether the inputs and results of a step fit into memory.
fn fits(program: &Sdfg, memory: MemoryLimit, asked: bool) -> Result<(), String> {
    let seen = program.containers.values().filter(|c| c.role != Role::Transient && c.view.is_none());
    let sizes: Vec<(&str, u64)> = seen.map(|c| (c.name.as_str(), program.bytes(&c.name).unwrap_or(0))).collect();
    let all = Bytes(sizes.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes)));
    let Some((largest, bytes)) = sizes.into_iter().max_by_key(|(_, bytes)| *bytes) else { return Ok(()) };
    if memory.holds(all) {
        return Ok(());
    }
    let (whose, free) = if matches!(memory, MemoryLimit::Device(_)) { ("the GPU", "free ") } else { ("this machine", "") };
    let bytes_there = memory.bytes();
    let may = if asked { format!("--memory is {bytes_there}") } else { format!("{whose} has {bytes_there} of {free}memory") };
    Err(format!(
        "what a step is given and hands back has {all} under these sizes, `{largest}` alone {}, and {may}; use smaller sizes",
        Bytes(bytes)
    ))
}

/// The outcomes of the configurations of one program.
#[derive(Serialize)]
pub struct CoverageRow<'a> {
    program: &'a str,
    kernels: usize,
    #[serde(flatten)]
    tally: Tally,
}

/// The same for every program; the unfused one is last.
pub fn coverages(sweeps: &SweptPrograms) -> Vec<CoverageRow<'_>> {
    fn row(s: &SweptProgram) -> CoverageRow<'_> {
        CoverageRow { program: &s.name, kernels: s.kernels.len(), tally: s.report.total() }
    }
    let mut rows: Vec<CoverageRow> = sweeps.variants.iter().map(row).collect();
    if !sweeps.trials.is_empty() {
        let mut trials = CoverageRow { program: TRIALS, kernels: 0, tally: Tally::default() };
        for trial in &sweeps.trials {
            trials.kernels += trial.report.tallies.len();
            trials.tally += trial.report.total();
        }
        rows.push(trials);
    }
    rows.extend(sweeps.unfused.iter().map(row));
    rows
}

/// The name for all trials together; their kernels are those that no other program runs.
const TRIALS: &str = "compositions undone";

/// The output of `memlet sweep --json`.
#[derive(Serialize)]
struct Outcome<'a> {
    finish: Finish,
    coverage: Vec<CoverageRow<'a>>,
    /// Configurations with an entry in the records.
    stored: usize,
    #[serde(flatten)]
    pace: SweepPace,
    records: PathBuf,
}

/// The outcomes of all configurations, by program.
pub fn coverage(sweeps: &SweptPrograms) -> Table {
    let mut rows =
        table(&["program", "kernels", "enumerated", "identical", "bounded out", "raced", "full", "wrong", "failed", "not reached"]);
    for CoverageRow { program, kernels, tally: t } in coverages(sweeps) {
        let counts = [t.enumerated, t.identical, t.bounded, t.raced, t.full, t.mismatch, t.failed, t.not_reached];
        let mut row = cells(vec![program.to_string(), kernels.to_string()]);
        row.extend(counts.map(Cell::count));
        rows.row(row);
    }
    rows
}

impl SweepArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let mut session = self.measure.open()?;
        let sweeps = self.measure.sweep(&mut session, 0.0, None)?;
        self.measure.table(&coverage(&sweeps));
        sweeps.left_out.iter().for_each(|why| self.measure.say(&format!("{why}\n")));
        self.measure.say(&format!(
            "{} measurements with {} caches in {}; {}\n",
            session.store.all().count(),
            session.store.cache(),
            session.records.display(),
            session.pace
        ));
        if sweeps.finish == Finish::Interrupted {
            self.measure.say(&format!("{INTERRUPTED}\n"));
        }
        if self.measure.json {
            let outcome = Outcome {
                finish: sweeps.finish,
                coverage: coverages(&sweeps),
                stored: session.store.all().count(),
                pace: session.pace,
                records: session.records.clone(),
            };
            outln!("{}", serde_json::to_string(&outcome).map_err(|e| PipelineError::Internal(e.to_string()))?);
        }
        Ok(())
    }
}
