//! `memlet train`: many steps of a plan in one process, on batches from files.

mod plan;
mod progress;

use super::out::{errln, outln};
use super::{INTERRUPT, RecipeArgs, duration};
use crate::pipeline::PipelineError;
use crate::pipeline::run::target::Target;
use crate::train::checkpoint::Folder;
use crate::train::log::Log;
use crate::train::schedule::InputSchedule;
use crate::train::{TrainRequest, Training};
use bench::unit::significant;
use clap::Args;
use plan::TrainedPlan;
use progress::{Pace, TrainProgress};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The recipe needs `train: {loss: …}` and an `update`. In its place stands a plan that `memlet optimize` wrote, plan.json or its folder. A
/// recipe's plan is taken from OUT if it is there, and made first otherwise. docs/training.md says how data files, checkpoints and logs
/// look.
#[derive(Args)]
pub struct TrainArgs {
    #[command(flatten)]
    recipe: RecipeArgs,
    /// Samples of the inputs under the inputs' names, .safetensors, .npz or .npy, whose first axis counts samples; tensors of one name in
    /// several files are joined
    #[arg(long, num_args = 1.., value_name = "FILE")]
    data: Vec<PathBuf>,
    /// How many steps there are in all, those of earlier commands included
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    steps: u64,
    /// The dim that counts samples [default: the one that all inputs have and no parameter has]
    #[arg(long, value_name = "DIM")]
    batch: Option<String>,
    /// Take samples in another order in each epoch, by --seed, and not as they lie in the files
    #[arg(long)]
    shuffle: bool,
    /// Set an input that no file has: a number, or cosine(0.001, warmup: 20, end: 0.0001) over all steps, e.g. --set-input lr=0.001
    #[arg(long = "set-input", value_name = "INPUT=VALUE", value_parser = setting)]
    set: Vec<(String, InputSchedule)>,
    /// Parameters to begin with, .safetensors or .npz; those that it lacks are drawn from the seed
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Seed of dropout masks, of drawn parameters, and of --shuffle
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The folder for checkpoints; a run goes on from the newest one there
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Steps between two checkpoints; the last step has one, too
    #[arg(long, value_name = "STEPS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    every: u64,
    /// How many checkpoints are kept, the newest ones
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    keep: u64,
    /// The checkpoint to go on from, in place of the newest one in the folder
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// A CSV file with a line for each step: its number, its loss, other results that are one number, set inputs, milliseconds
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// The picture of the loss over the steps, an SVG file [default: beside the log, else among the checkpoints]
    #[arg(long, value_name = "FILE")]
    curve: Option<PathBuf>,
    /// The device to run on, and to optimize for where there is no plan [default: the plan's]
    #[arg(long, value_name = "DEVICE")]
    device: Option<Target>,
    /// Worker threads; 0 is one for each core
    #[arg(long, value_parser = super::threads, default_value_t = 0)]
    threads: usize,
    /// Time for measuring, where there is no plan; see `memlet optimize --help`
    #[arg(long, value_parser = duration, default_value = "30s")]
    budget: Duration,
    /// The folder of the plan, if a recipe is given [default: target/memlet/MODEL]
    #[arg(long)]
    out: Option<PathBuf>,
    /// Run the plan although `optimize` refused it: its results are wrong, or it does not run
    #[arg(long)]
    force: bool,
    /// Print a line of JSON for each step, and one for the run
    #[arg(long)]
    json: bool,
}

fn setting(text: &str) -> Result<(String, InputSchedule), String> {
    let (name, value) = text.split_once('=').ok_or("write INPUT=VALUE, e.g. lr=0.001")?;
    Ok((name.trim().to_string(), value.parse()?))
}

impl TrainArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let Some(TrainedPlan { plan, file, target }) = plan::of(self)? else { return Ok(()) };
        let (pool, device) = (super::workers(self.threads)?, target.open()?);
        if let Some(why) = plan.moved(&*device) {
            errln!("{why}");
        }
        let folder = self.checkpoint.as_ref().map(|path| Folder { path: path.clone(), keep: self.keep as usize });
        let newest = folder.as_ref().map(Folder::all).transpose()?.and_then(|all| all.last().cloned());
        let resumed = self.resume.clone().or(newest.map(|(_, path)| path));
        let asked = self.asked();
        let mut training = Training::open((&plan, &file), &asked, resumed.as_deref(), &pool, &device)?;
        self.introduce(&training, resumed.as_deref());
        if let Some(folder) = &folder {
            folder.open()?;
        }
        let scalars = training.scalars().iter().cloned().chain(self.set.iter().map(|(name, _)| name.clone())).collect::<Vec<_>>();
        let mut log = self.log.as_ref().map(|path| Log::open(path, &scalars, training.done())).transpose()?;
        let mut losses = log.as_ref().map_or(vec![], |log| log.losses.clone());
        let mut progress = TrainProgress::new(training.done(), self.steps, training.data());
        let mut saved = None;
        let mut stopped = None;
        while training.done() < self.steps && !INTERRUPT.load(Ordering::SeqCst) {
            let began = Instant::now();
            let set = training.set(training.done());
            let mut values = training.step(&pool)?;
            values.extend(set);
            let (step, ms) = (training.done(), began.elapsed().as_secs_f64() * 1e3);
            let loss = values.first().map_or(f64::NAN, |(_, loss)| *loss);
            if !loss.is_finite() {
                stopped = Some(PipelineError::Measure(diverged(step, loss, saved.as_deref().or(resumed.as_deref()))));
                break;
            }
            losses.push((step, loss));
            if let Some(log) = &mut log {
                log.line(step, &values.iter().map(|(_, value)| *value).collect::<Vec<_>>(), ms)?;
            }
            let pace = progress.told(step, loss, ms, self.json);
            if self.json {
                let mut line = serde_json::json!({"step": step, "ms": ms});
                values.iter().for_each(|(name, value)| line[name] = (*value).into());
                pace.into_json(&mut line);
                outln!("{line}");
            }
            if let Some(folder) = folder.as_ref().filter(|_| step % self.every == 0 && step < self.steps) {
                saved = Some(folder.write(training.execution(), step, &training.identity)?);
            }
        }
        progress.finish();
        let new = progress.steps();
        if let Some(folder) = folder.as_ref().filter(|_| new > 0 && stopped.is_none()) {
            saved = Some(folder.write(training.execution(), training.done(), &training.identity)?);
        }
        let curve = self.draw(&plan.chosen.program.name, &losses)?;
        if let Some(error) = stopped {
            return Err(error);
        }
        self.conclude(&training, &progress, &losses, [saved.or(resumed), self.log.clone(), curve]);
        Ok(())
    }

    fn asked(&self) -> TrainRequest {
        TrainRequest {
            data: self.data.clone(),
            set: self.set.clone(),
            batch: self.batch.clone(),
            shuffle: self.shuffle,
            seed: self.seed,
            dropout: !self.recipe.no_dropout,
            weights: self.weights.clone(),
            steps: self.steps,
        }
    }

    /// Says what the data are and where the run begins.
    fn introduce(&self, training: &Training, resumed: Option<&Path>) {
        let data = training.data();
        let (samples, batch, dim) = (data.samples, data.batch, &data.dim);
        let epochs = significant((self.steps * batch as u64) as f64 / samples as f64);
        let order = if self.shuffle { "shuffled" } else { "in their order" };
        errln!("{samples} samples, {order}, {batch} a step along `{dim}`: {} steps are {epochs} epochs", self.steps);
        if let Some(path) = resumed {
            errln!("going on after step {} from {}", training.done(), path.display());
        }
        if training.done() >= self.steps {
            errln!("all {} steps are done; a larger --steps goes on", self.steps);
        }
    }

    /// Draws the loss over the steps. Returns the file.
    fn draw(&self, program: &str, losses: &[(u64, f64)]) -> Result<Option<PathBuf>, PipelineError> {
        let beside = || self.log.as_ref().map(|log| log.with_extension("svg"));
        let among = || self.checkpoint.as_ref().map(|folder| folder.join("loss.svg"));
        let Some(path) = self.curve.clone().or_else(beside).or_else(among).filter(|_| !losses.is_empty()) else { return Ok(None) };
        let fault = |why: String| PipelineError::Tensors { file: path.display().to_string(), why };
        let svg = bench::plot::losses(program, losses).map_err(|e| fault(e.to_string()))?;
        bench::atomic::write(&path, svg.as_bytes()).map_err(|e| fault(e.to_string()))?;
        Ok(Some(path))
    }

    fn conclude(&self, training: &Training, progress: &TrainProgress, losses: &[(u64, f64)], files: [Option<PathBuf>; 3]) {
        let Pace { step_ms, samples_per_second, tokens_per_second, .. } = progress.pace();
        let ends = losses.first().zip(losses.last());
        if self.json {
            let [checkpoint, log, curve] = &files;
            let mut line = serde_json::json!({
                "done": training.done(), "steps": progress.steps(), "checkpoint": checkpoint, "log": log, "curve": curve,
            });
            if let Some((first, last)) = ends {
                (line["first_loss"], line["last_loss"]) = (first.1.into(), last.1.into());
            }
            progress.pace().into_json(&mut line);
            line["step_ms"] = step_ms.into();
            outln!("{line}");
            return;
        }
        if let Some(((from, first), (to, last))) = ends.filter(|_| progress.steps() > 0) {
            let tokens = tokens_per_second.map(|n| format!(", {} tokens", significant(n))).unwrap_or_default();
            outln!(
                "loss {} after step {to}, {} in step {from}; a step takes {} ms (median), in a second {} samples{tokens}",
                significant(*last),
                significant(*first),
                significant(step_ms),
                significant(samples_per_second)
            );
        }
        for (what, path) in ["checkpoint", "log", "curve"].iter().zip(&files) {
            if let Some(path) = path {
                outln!("{:<12}{}", format!("{what}:"), path.display());
            }
        }
    }
}

/// Says what a loss that is no number leaves to do.
fn diverged(step: u64, loss: f64, saved: Option<&Path>) -> String {
    let from = saved.map_or("there is no checkpoint".to_string(), |path| format!("the last checkpoint is {}", path.display()));
    format!("the loss of step {step} is {loss}, so the run ends; a lower rate or `clip:` in `update` may help, and {from}")
}
