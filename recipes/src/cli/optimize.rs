//! `memlet optimize` and `memlet sweep`.

use super::progress::SweepProgress;
use super::{INTERRUPT, RecipeArgs, command_line, default_out, device, duration};
use super::{cells, table};
use crate::analyze::analyze;
use crate::pipeline::PipelineError;
use crate::pipeline::ledger::Ledger;
use crate::pipeline::optimize::{Sweeps, baselines, choose, plan, sweep_all, time_whole, verify_full, verify_small};
use crate::pipeline::plan::Plan;
use crate::pipeline::programs::{Programs, programs};
use crate::pipeline::report::{self, Finished};
use crate::pipeline::sweep::Sweeping;
use crate::pipeline::tensors::drawn;
use bench::table::Table;
use bench::unit::significant;
use clap::Args;
use kernels::Toolchain;
use kernels::device::cpu::Pool;
use layouts::candidates::Shard;
use layouts::{Finish, Store};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Args)]
pub struct MeasureArgs {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Time for measuring; the most promising configurations come first
    #[arg(long, value_parser = duration, default_value = "3m")]
    pub budget: Duration,
    /// Measure the whole space, however long that takes; resumable
    #[arg(long, conflicts_with = "budget")]
    pub exhaustive: bool,
    /// Measure only a part of the space, e.g. 2/8; merge the records afterwards
    #[arg(long, value_parser = shard, default_value = "1/1")]
    pub shard: Shard,
    /// Worker threads; 0 is one for each core
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Folder for everything that is written [default: target/memlet/MODEL]
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Records of measurements [default: OUT/records.jsonl]
    #[arg(long)]
    pub records: Option<PathBuf>,
    /// Interpret a shrunken program before and after every patch
    #[arg(long)]
    pub verify_each: bool,
}

#[derive(Args)]
pub struct SweepArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
}

#[derive(Args)]
pub struct OptimizeArgs {
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Time for timing the best plans and the baselines as wholes
    #[arg(long, value_parser = duration, default_value = "20s")]
    pub timing: Duration,
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

/// A recipe that was swept, and what for.
pub struct Session {
    pub programs: Programs,
    pub pool: Pool,
    pub toolchain: Toolchain,
    pub store: Store,
    pub out: PathBuf,
}

impl MeasureArgs {
    fn budget(&self) -> Option<Duration> {
        (!self.exhaustive).then_some(self.budget)
    }

    pub fn open(&self) -> Result<Session, PipelineError> {
        let recipe = self.recipe.load()?;
        let programs = programs(&recipe, self.verify_each)?;
        let (pool, toolchain) = device(self.threads)?;
        let out = self.out.clone().unwrap_or_else(|| default_out(&recipe, &self.recipe));
        std::fs::create_dir_all(&out).map_err(|e| PipelineError::Plan { file: out.display().to_string(), why: e.to_string() })?;
        let records = self.records.clone().unwrap_or_else(|| out.join("records.jsonl"));
        let store = Store::open(&records)?;
        Ok(Session { programs, pool, toolchain, store, out })
    }

    pub fn sweep(&self, session: &mut Session) -> Result<Sweeps, PipelineError> {
        let mut bar = SweepProgress::new(self.budget());
        let mut ledger = Ledger::open(&session.out);
        let sweeps = {
            let mut progress = |program: &str, p: &layouts::Progress| bar.told(program, p);
            let mut with = Sweeping {
                pool: &session.pool,
                toolchain: &session.toolchain,
                store: &mut session.store,
                interrupt: &INTERRUPT,
                shard: self.shard,
                ledger: &mut ledger,
                progress: &mut progress,
            };
            sweep_all(&session.programs, self.budget(), &mut with)?
        };
        bar.finish();
        Ok(sweeps)
    }
}

/// What came of every configuration, by program.
fn coverage(sweeps: &Sweeps) -> Table {
    let mut rows =
        table(&["program", "kernels", "enumerated", "identical", "bounded out", "raced", "full", "wrong", "failed", "not reached"]);
    for swept in sweeps.variants.iter().chain([&sweeps.unfused]) {
        let t = swept.report.total();
        let counts = [t.enumerated, t.identical, t.bounded, t.raced, t.full, t.mismatch, t.failed, t.not_reached];
        let mut row = vec![swept.name.clone(), swept.kernels.len().to_string()];
        row.extend(counts.iter().map(u64::to_string));
        rows.row(cells(row));
    }
    rows
}

impl SweepArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let mut session = self.measure.open()?;
        let sweeps = self.measure.sweep(&mut session)?;
        print!("{}", coverage(&sweeps).text(bench::table::colour()));
        println!("{} measurements in {}", session.store.all().count(), session.out.display());
        Ok(())
    }
}

impl OptimizeArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let mut session = self.measure.open()?;
        let known = session.store.all().count();
        let sweeps = self.measure.sweep(&mut session)?;
        print!("{}", coverage(&sweeps).text(bench::table::colour()));
        if sweeps.finish == Finish::Interrupted {
            println!("interrupted; what was measured is kept, the same command goes on from here");
            return Ok(());
        }
        let choices = choose(&sweeps, &session.store)?;
        let mut rows = table(&["program", "method", "predicted ms", "above minima", "proven"]);
        for choice in &choices {
            for s in &choice.selections {
                let above = format!("{:.1}%", 100.0 * s.above_minima());
                rows.row(cells(vec![
                    sweeps.variants[choice.swept].name.clone(),
                    s.method.to_string(),
                    significant(s.total_ms),
                    above,
                    if s.proven { "yes".into() } else { format!("gap {:.1}%", 100.0 * s.gap) },
                ]));
            }
        }
        print!("\n{}", rows.text(bench::table::colour()));

        // The best choices and the baselines, as wholes.
        let mut candidates = Vec::new();
        for choice in &choices {
            let swept = &sweeps.variants[choice.swept];
            candidates.push(swept.candidate(&choice.selections[0]));
        }
        let best = &sweeps.variants[choices[0].swept];
        for (n, selection) in best.top(&session.store, 3)?.iter().enumerate().skip(1) {
            let mut candidate = best.candidate(selection);
            candidate.name = format!("{} · exact, choice {}", best.name, n + 1);
            candidates.push(candidate);
        }
        candidates.truncate(5);
        let path = session.out.join("plan.json");
        if session.store.all().count() == known
            && let Ok(plan) = Plan::read(&path)
            && candidates.iter().any(|c| c.configuration == plan.chosen.configuration)
        {
            println!("\nnothing new was measured within the budget: {} stands; --budget with a longer time measures more", path.display());
            println!("time it again with: memlet run {}", path.display());
            return Ok(());
        }
        let contenders = candidates.len();
        let baselines = baselines(&sweeps, &session.store)?;
        let tensors = drawn(&session.programs.operators, 1)?;
        for candidate in candidates.iter().chain(&baselines) {
            let small = verify_small(candidate, &session.programs.operators, &session.pool, &session.toolchain)?;
            println!("verified {} against {}: worst error {:.3} of tolerance", candidate.name, small.against, small.worst());
        }
        let full = verify_full(&candidates[0], &baselines[0], &tensors, &session.pool, &session.toolchain)?;
        println!("verified {} against {}: worst error {:.3} of tolerance", candidates[0].name, full.against, full.worst());
        candidates.extend(baselines.iter().cloned());
        let timed = time_whole(&candidates, &tensors, &session.pool, &session.toolchain, self.timing)?;
        let mut rows = table(&["plan", "forward ms", "backward ms", "step ms", "predicted ms", "peak MB"]);
        let median = |v: &[f64]| layouts::record::median(v).unwrap_or(f64::NAN);
        for (t, c) in timed.iter().zip(&candidates) {
            rows.row(cells(vec![
                t.name.clone(),
                significant(median(&t.forward_ms)),
                significant(median(&t.backward_ms)),
                significant(median(&t.step.samples)),
                significant(c.predicted_ms),
                significant(t.memory.actual_bytes as f64 / 1e6),
            ]));
        }
        print!("\n{}", rows.text(bench::table::colour()));
        let measured = |n: &usize| median(&timed[*n].step.samples);
        let Some(winner) = (0..contenders).min_by(|a, b| measured(a).total_cmp(&measured(b))) else { return Ok(()) };
        for n in contenders..timed.len() {
            if let Ok(ratio) = timed[winner].step.speedup_over(&timed[n].step) {
                println!(
                    "{} ÷ {}: {:.3} (95% interval {:.3} to {:.3})",
                    timed[n].name, timed[winner].name, ratio.median, ratio.interval.lower, ratio.interval.upper
                );
            }
        }
        let overrides = self.measure.recipe.sizes.iter().cloned().collect();
        let plan = plan(
            &self.measure.recipe.recipe.display().to_string(),
            (overrides, self.measure.recipe.dtype),
            candidates[winner].clone(),
            baselines,
            session.pool.workers(),
            command_line(),
        );
        plan.write(&path)?;
        write_kernels(&session.out.join("kernels"), &plan, &session.toolchain)?;
        println!("plan: {}", path.display());
        let finished = Finished {
            analysis: &analyze(&self.measure.recipe.load()?, false)?,
            programs: &session.programs,
            sweeps: &sweeps,
            store: &session.store,
            choices: &choices,
            candidates: &candidates,
            timed: &timed,
            winner,
            pool: &session.pool,
            toolchain: &session.toolchain,
        };
        report::write(&session.out, &report::build(&finished)?, &session.store)?;
        println!("report: {}", session.out.join("report.html").display());
        Ok(())
    }
}

/// The generated code of a plan, one file for each kernel.
fn write_kernels(folder: &Path, plan: &Plan, toolchain: &Toolchain) -> Result<(), PipelineError> {
    let fault = |e: std::io::Error| PipelineError::Plan { file: folder.display().to_string(), why: e.to_string() };
    std::fs::create_dir_all(folder).map_err(fault)?;
    let execution = crate::pipeline::execute::Execution::new(&plan.chosen.program, &plan.chosen.configuration, toolchain)?;
    for (name, source) in execution.sources() {
        let file: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        bench::atomic::write(&folder.join(format!("{file}.c")), source.as_bytes()).map_err(fault)?;
    }
    Ok(())
}
