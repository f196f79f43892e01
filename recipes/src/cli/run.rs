//! `memlet run`: a plan on real tensors.

use super::kernel_times::{KernelPattern, KernelTimes, MemberRow, bodies, needs};
use super::out::{err, errln, out, outln};
use super::progress::CheckProgress;
use super::schedule_template::tell;
use super::tensors::TensorArgs;
use super::{cells, table};
use crate::analyze::schedule_template::{self, AskedTemplate};
use crate::pipeline::PipelineError;
use crate::pipeline::check::accuracy::{self, accuracy, oracle_after};
use crate::pipeline::check::each_kernel::{self, Compared, compare_with_cores, compare_with_interpreter};
use crate::pipeline::choose::plan::Plan;
use crate::pipeline::oracle::mask_compatibility::draws_alike;
use crate::pipeline::oracle::tensors;
use crate::pipeline::run::execute::Execution;
use crate::pipeline::run::race_plans::{LEAST, RaceLength, time_launches, time_plans};
use crate::pipeline::run::replaced::summary;
use crate::pipeline::run::target::Target;
use crate::pipeline::run::thread_count::fewer_threads;
use bench::unit::significant;
use bench::{Load, Watch};
use clap::Args;
use kernels::Toolchain;
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use sdfg::interpret::{Run, Tensors};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
pub struct RunArgs {
    /// plan.json of `memlet optimize`
    plan: PathBuf,
    #[command(flatten)]
    tensors: TensorArgs,
    /// Keep every element. The kernels are the same and still draw random numbers: `optimize --no-dropout` makes a plan without them
    #[arg(long)]
    no_dropout: bool,
    /// Run it although `optimize` refused it: its results are wrong, or it does not run
    #[arg(long)]
    force: bool,
    /// The device to run on [default: the plan's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<Target>,
    /// Worker threads; 0 is one for each core
    #[arg(long, value_parser = super::threads, default_value_t = 0)]
    threads: usize,
    /// Also time the unfused program in its layouts
    #[arg(long)]
    baselines: bool,
    /// Time for timing plans
    #[arg(long, value_parser = super::duration, default_value = "5s")]
    timing: Duration,
    /// Also compare every output and gradient with the f64 oracle at full size, which is slow
    #[arg(long)]
    accuracy: bool,
    /// Also print the time of each kernel within the step and alone, run repeatedly as in a sweep, and on a GPU its registers, spills and
    /// shared memory
    #[arg(long)]
    kernels: bool,
    /// Let kernels share dispatches where they can, also in a plan that was faster without
    #[arg(long)]
    packed: bool,
    /// First run every kernel on its own at full size and compare its results with a reference on the same tensors: the f64 interpreter,
    /// which is slow, or for a GPU's plan a plain kernel of this machine's cores, which needs a C compiler
    #[arg(long)]
    check: bool,
    /// Run a kernel of the plan as a schedule template says, KERNEL='y[GRID,WARP];': in the most promising configuration that means it,
    /// after a comparison with the f64 interpreter at small sizes, and beside the plan as it is. Can be given for several kernels
    #[arg(long = "template", value_name = "KERNEL=TEMPLATE")]
    templates: Vec<AskedTemplate>,
    /// Also print the tensors that are alive at the peak of the step, with their lifetimes
    #[arg(long)]
    memory: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Timed runs of a kernel alone.
const ALONE: usize = 7;

impl RunArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let mut plan = Plan::read(&self.plan)?;
        plan.chosen.packed |= self.packed;
        if !self.force {
            plan.usable(&self.plan)?;
        } else if let Some(refusal) = &plan.refused {
            errln!("this plan was refused, {refusal}; it runs because of --force");
        }
        let target = &self.device.clone().unwrap_or_else(|| plan.target.clone());
        if target.kind() != plan.target.kind() {
            let why = format!("its kernels are made for {}, not for {}; optimize the recipe with --device {target}", plan.target, target);
            return Err(PipelineError::Plan { file: self.plan.display().to_string(), why });
        }
        let watch = Watch::start();
        let (mut pool, device) = (super::workers(self.threads)?, target.open()?);
        if let Some(why) = plan.moved(&*device) {
            errln!("{why}");
        }
        let own = plan.chosen.clone();
        let mut templated = Vec::new();
        for (n, asked) in self.templates.iter().enumerate() {
            let bad = |why: String| PipelineError::Plan { file: self.plan.display().to_string(), why };
            if self.templates[..n].iter().any(|other| other.kernel == asked.kernel) {
                return Err(bad(format!("two templates are given for `{}`; give one", asked.kernel)));
            }
            templated.push(schedule_template::put(&mut plan.chosen, asked, target, (&*device, &pool), &bad)?);
        }
        if !templated.is_empty() {
            plan.chosen.name = format!("{} · as templates say", own.name);
        }
        let program = &plan.chosen.program;
        let given = self.tensors.given(program)?;
        let run = self.tensors.run(!self.no_dropout);
        // Loaded before anything takes time, so that errors show at once.
        let recipe = if self.accuracy { Some(plan.recipe()?) } else { None };
        if let Some(recipe) = &recipe
            && run.dropout
            && !draws_alike(recipe, program)?
        {
            let why = format!("`{}` draws its dropouts' masks otherwise by now than when the plan was made; optimize again", plan.recipe);
            return Err(PipelineError::Plan { file: self.plan.display().to_string(), why });
        }
        let checked = if self.check { self.checked(&plan, &given, &run, &pool, &*device)? } else { vec![] };
        let mut errors = None;
        if self.tensors.outputs.is_some() || self.accuracy {
            let mut execution = Execution::of(&plan.chosen, &device)?;
            execution.load(&given)?;
            for run in self.tensors.runs(!self.no_dropout) {
                execution.step(&pool, run.seed, run.step, run.dropout)?;
            }
            let results = execution.results()?;
            if let Some(path) = &self.tensors.outputs {
                tensors::write(path, &tensors::named(program, results.clone()), program)?;
            }
            if let Some(recipe) = &recipe {
                errors = Some(accuracy(&results, &oracle_after(recipe, &given, self.tensors.runs(!self.no_dropout))?));
            }
        }
        let mut candidates = vec![plan.chosen.clone()];
        candidates.extend((!templated.is_empty()).then_some(own));
        if self.baselines {
            candidates.extend(plan.baselines.iter().cloned());
        }
        let asked = pool.workers();
        if asked > 1
            && target.is_cpu()
            && let Some(load) = watch.settled().filter(Load::busy)
            && let Some(found) = fewer_threads(&plan.chosen, (&given, &run), &pool, &device, self.timing / 4)?
        {
            let times = [found.ms, found.all_ms].map(significant);
            let threads = |n: usize| if n == 1 { "1 thread".to_string() } else { format!("{n} threads") };
            let (fewer, all) = (threads(found.pool.workers()), threads(asked));
            errln!("{load}: {all} take {} ms a step, {fewer} {} ms; {fewer} used", times[1], times[0]);
            pool = found.pool;
        }
        let baselines = vec![true; candidates.len()];
        let length = RaceLength { limit: self.timing, least: LEAST, baselines: &baselines };
        let mut timed = time_plans(&candidates, length, &given, &run, &pool, &device)?;
        let median = |v: &[f64]| layouts::record::median(v).unwrap_or(f64::NAN);
        let (mut kernels, mut groups) = (Vec::new(), Vec::new());
        if let Some(timed) = timed.first_mut().filter(|_| self.kernels) {
            time_launches(&plan.chosen, timed, (&given, &run), &pool, &device, Duration::MAX)?;
            let patterns = KernelPattern::of(program)?;
            let mut execution = Execution::new(program, &plan.chosen.configuration, &device)?;
            execution.load(&given)?;
            let on_chip = execution.on_chip();
            let alone = execution.alone(&pool, &run, ALONE)?;
            let times = timed.launches.iter().zip(alone);
            let times = times.zip(execution.resources()).zip(on_chip);
            kernels.extend(times.map(|((((name, pass, samples), alone_ms), resources), on_chip)| KernelTimes {
                name: name.clone(),
                pass: *pass,
                pattern: patterns.get(name).copied(),
                on_chip,
                dispatches: 0,
                in_step_ms: median(samples),
                alone_ms,
                body: vec![],
                resources: resources.to_vec(),
            }));
            // A packed step has dispatches in common.
            groups = Execution::of(&plan.chosen, &device)?.groups(pool.workers());
            let own = execution.apart(&pool, &run, 0)?.dispatches;
            for (kernel, dispatches) in kernels.iter_mut().zip(own) {
                kernel.dispatches = dispatches;
            }
            for (kernel, body) in kernels.iter_mut().zip(execution.members(&pool, &run, ALONE)?) {
                kernel.body = body.into_iter().map(|times| MemberRow { pattern: patterns.get(&times.name).copied(), times }).collect();
            }
        }
        if self.json {
            let rows: Vec<serde_json::Value> = timed
                .iter()
                .map(|t| {
                    serde_json::json!({
                        "name": t.name,
                        "forward_ms": median(&t.forward_ms),
                        "backward_ms": median(&t.backward_ms),
                        "step_ms": median(&t.step.samples),
                        "samples": {"forward_ms": t.forward_ms, "backward_ms": t.backward_ms, "step_ms": t.step.samples},
                        "planned_peak_bytes": t.memory.planned_bytes,
                        "actual_peak_bytes": t.memory.actual_bytes,
                        "least_peak_bytes": t.memory.lower_bound_bytes,
                        "working_bytes": t.memory.working_bytes,
                        "launches": t.launches.len(),
                        "dispatches": t.dispatches.iter().sum::<u64>(),
                    })
                })
                .collect();
            let mut object = rows.first().cloned().unwrap_or_default();
            if let Some(timed) = timed.first().filter(|t| !t.replaced.is_empty()) {
                let how = timed.replaced.iter().map(|r| (r.parameter.clone(), r.how)).collect::<std::collections::BTreeMap<_, _>>();
                object["replaced"] = serde_json::to_value(how).map_err(|e| PipelineError::Internal(e.to_string()))?;
            }
            if let Some(errors) = errors {
                object["accuracy"] = serde_json::to_value(errors).map_err(|e| PipelineError::Internal(e.to_string()))?;
            }
            if self.kernels {
                object["kernels"] = serde_json::to_value(&kernels).map_err(|e| PipelineError::Internal(e.to_string()))?;
                if !groups.is_empty() {
                    object["groups"] = serde_json::to_value(&groups).map_err(|e| PipelineError::Internal(e.to_string()))?;
                }
            }
            if self.check {
                object["checked"] = serde_json::to_value(&checked).map_err(|e| PipelineError::Internal(e.to_string()))?;
            }
            if let Some(timed) = timed.first().filter(|_| self.memory) {
                object["memory"] = serde_json::to_value(&timed.map).map_err(|e| PipelineError::Internal(e.to_string()))?;
            }
            if let Some(once) = timed.first().map(|t| t.done_once).filter(|once| !once.is_nothing()) {
                object["done_once"] = serde_json::to_value(once).map_err(|e| PipelineError::Internal(e.to_string()))?;
            }
            object["threads"] = pool.workers().into();
            object["threads_asked"] = asked.into();
            if let Some(load) = timed.first().and_then(|t| t.load) {
                object["load"] = serde_json::to_value(load).map_err(|e| PipelineError::Internal(e.to_string()))?;
            }
            let mut others = rows[1..].to_vec();
            if !templated.is_empty() {
                object["plan"] = others.remove(0);
                object["templates"] = serde_json::to_value(&templated).map_err(|e| PipelineError::Internal(e.to_string()))?;
            }
            object["baselines"] = others.into();
            outln!("{object}");
            return Ok(());
        }
        templated.iter().for_each(tell);
        let mut rows =
            table(&["plan", "forward ms", "backward ms", "step ms", "planned peak MB", "actual peak MB", "kernels' own MB", "dispatches"]);
        for t in &timed {
            let megabytes = |bytes: u64| significant(bytes as f64 / 1e6);
            rows.row(cells(vec![
                t.name.clone(),
                significant(median(&t.forward_ms)),
                significant(median(&t.backward_ms)),
                significant(median(&t.step.samples)),
                megabytes(t.memory.planned_bytes),
                megabytes(t.memory.actual_bytes),
                megabytes(t.memory.working_bytes),
                t.dispatches.iter().sum::<u64>().to_string(),
            ]));
        }
        out!("{}", rows.text(bench::table::colour()));
        if let Some(once) = timed.first().map(|t| t.done_once).filter(|once| !once.is_nothing()) {
            outln!("{once}");
        }
        if let Some(how) = timed.first().and_then(|t| summary(&t.replaced)) {
            outln!("{how}");
        }
        if let Some(load) = timed.first().and_then(|t| t.load).filter(Load::busy) {
            outln!("{load} while this was timed");
        }
        if !kernels.is_empty() {
            let mut rows = table(&["kernel", "pass", "dispatches", "in the step ms", "alone ms"]).words(&["pass"]);
            let row = |name: &str, pass: String, dispatches: u64, times: [f64; 2]| {
                cells([name.to_string(), pass, dispatches.to_string()].into_iter().chain(times.map(significant)).collect())
            };
            for k in &kernels {
                rows.row(row(&k.name, format!("{:?}", k.pass).to_lowercase(), k.dispatches, [k.in_step_ms, k.alone_ms]));
            }
            let sum = |of: fn(&KernelTimes) -> f64| kernels.iter().map(of).sum();
            let dispatches = kernels.iter().map(|k| k.dispatches).sum();
            rows.row(row("all", String::new(), dispatches, [sum(|k| k.in_step_ms), sum(|k| k.alone_ms)]));
            outln!("\n{}", rows.text(bench::table::colour()));
            if kernels.iter().any(|k| !k.body.is_empty()) {
                outln!("{}", bodies(&kernels).text(bench::table::colour()));
            }
            if kernels.iter().any(|k| !k.resources.is_empty()) {
                outln!("{}", needs(&kernels).text(bench::table::colour()));
            }
        }
        if !groups.is_empty() {
            let mut rows = table(&["group", "kernels that all workers go through before they wait for one another"]);
            for (n, kernels) in groups.iter().enumerate() {
                rows.row(cells(vec![(n + 1).to_string(), kernels.join(", ")]));
            }
            outln!("\n{}", rows.text(bench::table::colour()));
        }
        if let Some(timed) = timed.first().filter(|_| self.memory) {
            outln!("\n{}\n\n{}", timed.map.summary(), timed.map.table().text(bench::table::colour()));
        }
        if let Some(errors) = errors {
            outln!("\nErrors against the f64 oracle, relative to each tensor:");
            out!("{}", accuracy::table(&[("plan", errors)]).text(bench::table::colour()));
        }
        Ok(())
    }

    /// Compares every result of every kernel with a reference.
    ///
    /// # Errors
    /// Results that differ.
    fn checked(&self, plan: &Plan, given: &Tensors, run: &Run, pool: &Pool, device: &dyn Device) -> Result<Vec<Compared>, PipelineError> {
        let progress = CheckProgress::new();
        let mut told = |p: &each_kernel::KernelCheckProgress| progress.told(p);
        let (compared, reference) = match plan.target.is_cpu() {
            // A comparison of the cores with themselves would run the same code.
            true => (compare_with_interpreter(&plan.chosen, given, run, pool, device, &mut told), "the f64 interpreter"),
            false => {
                let cores = Cores { toolchain: Toolchain::system()? };
                (compare_with_cores(&plan.chosen, given, run, pool, (device, &cores), &mut told), "a plain kernel of the cores")
            }
        };
        progress.finish();
        let compared = compared?;
        let said = format!("every kernel at full size beside {reference}, on the same tensors");
        if self.json {
            errln!("{said}\n")
        } else {
            outln!("{said}\n")
        }
        let mut rows = table(&["kernel", "result", "elements", "largest difference", "÷ tolerance"]).words(&["result"]);
        for c in &compared {
            let row = [c.kernel.clone(), c.data.clone(), c.elements.to_string(), format!("{:.1e}", c.max_error), format!("{:.3}", c.ratio)];
            rows.row(cells(row.into()));
        }
        let text = rows.text(!self.json && bench::table::colour());
        if self.json {
            err!("{text}")
        } else {
            outln!("{text}")
        }
        for c in compared.iter().filter(|c| c.no_numbers > 0) {
            errln!(
                "`{}` of `{}`: {} of {} elements are no number (NaN), here and in the reference",
                c.data,
                c.kernel,
                c.no_numbers,
                c.elements
            );
        }
        let wrong = |c: &&Compared| c.ratio > 1.0;
        match compared.iter().find(wrong) {
            None => Ok(compared),
            Some(Compared { kernel, data, ratio, .. }) => {
                let count = compared.iter().filter(wrong).count();
                let first = format!("`{data}` of `{kernel}` by {ratio:.3} times the tolerance, of {} results {count}", compared.len());
                Err(PipelineError::Mismatch(format!("beside {reference}, at full size: {first}")))
            }
        }
    }
}
