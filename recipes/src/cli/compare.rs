//! `memlet compare`: a plan beside PyTorch and JAX.

use crate::compare::model::stored;
use crate::compare::worker::write_scripts;
use crate::compare::{CompareError, Model, Ours, Report, Setup, StepTime, Variant, compare, contenders};
use crate::pipeline::PipelineError;
use crate::pipeline::execute::Execution;
use crate::pipeline::plan::Plan;
use crate::pipeline::tensors::drawn;
use clap::Args;
use indicatif::ProgressBar;
use kernels::device::cpu::Pool;
use sdfg::interpret::Tensors;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// Each environment that is named needs numpy and safetensors beside its framework. Recipes that the peers know:
/// bert-base-encoder.yaml, bert-large-encoder.yaml and mha.yaml, at any size, dropout rate and epsilon.
#[derive(Args)]
pub struct CompareArgs {
    /// plan.json of `memlet optimize`
    plan: PathBuf,
    /// The Python of an environment that has PyTorch
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,
    /// The Python of an environment that has JAX
    #[arg(long, value_name = "PYTHON")]
    jax: Option<PathBuf>,
    /// Whom to time; PyTorch's with float32 products in highest and in medium precision; of a plan stored in bf16, under
    /// autocast
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Variant::ALL)]
    variants: Vec<Variant>,
    /// Threads for everyone; by default those of the plan
    #[arg(long)]
    threads: Option<usize>,
    /// Rounds, in each of which every peer, and ours just before it, is timed once
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Seed of inputs and parameters, and of our masks
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time with every element kept
    #[arg(long)]
    no_dropout: bool,
    /// Also compare everyone's results with the f64 oracle's, which takes its time
    #[arg(long)]
    accuracy: bool,
    /// Print JSON with all samples
    #[arg(long)]
    json: bool,
}

/// A plan ready to run; every step has masks of its own.
struct Prepared {
    execution: Execution,
    pool: Pool,
    seed: u64,
    step: u64,
}

impl Ours for Prepared {
    fn load(&mut self, tensors: &Tensors) -> Result<(), PipelineError> {
        self.execution.load(tensors)
    }

    fn step(&mut self, dropout: bool) -> Result<StepTime, PipelineError> {
        self.step += 1;
        let begin = Instant::now();
        let times = self.execution.step(&self.pool, self.seed, self.step, dropout)?;
        let step_ms = begin.elapsed().as_secs_f64() * 1e3;
        Ok(StepTime { forward_ms: times.forward_ms, backward_ms: times.backward_ms, step_ms })
    }

    fn results(&mut self) -> Result<Tensors, PipelineError> {
        self.execution.results()
    }
}

impl CompareArgs {
    /// Prints the report; the code is 3 if a peer disagrees and 1 if one did not run.
    pub fn run(&self) -> ExitCode {
        match self.report().and_then(|report| Ok((self.shown(&report)?, report.exit_code()))) {
            Ok((text, code)) => {
                print!("{text}");
                ExitCode::from(code)
            }
            Err(error) => {
                eprintln!("{error}");
                ExitCode::from(error.exit_code())
            }
        }
    }

    fn report(&self) -> Result<Report, CompareError> {
        if self.torch.is_none() && self.jax.is_none() {
            return Err(CompareError::NoPeer);
        }
        let plan = Plan::read(&self.plan)?;
        let recipe = plan.recipe()?;
        let model = Model::of(&recipe)?;
        let contenders = contenders(&self.variants, stored(&recipe.program), self.torch.as_ref(), self.jax.as_ref());
        let threads = self.threads.unwrap_or(plan.threads).max(1);
        let tensors = drawn(&plan.chosen.program, self.seed)?;
        if !plan.target.is_cpu() {
            let why = format!("it was made for {}; plans are compared on the CPU only, bench/gpu.sh compares on a GPU", plan.target);
            return Err(PipelineError::Plan { file: self.plan.display().to_string(), why }.into());
        }
        let (pool, device) = (Pool::new(threads).map_err(PipelineError::from)?, plan.target.open()?);
        let execution = Execution::new(&plan.chosen.program, &plan.chosen.configuration, &device)?;
        let mut ours = Prepared { execution, pool, seed: self.seed, step: 0 };
        let folder = tempfile::tempdir().map_err(|source| CompareError::Folder { path: std::env::temp_dir(), source })?;
        write_scripts(folder.path())?;
        let setup = Setup {
            recipe: &recipe,
            tensors: &tensors,
            seed: self.seed,
            contenders: &contenders,
            threads,
            rounds: self.rounds,
            dropout: model.has_dropout() && !self.no_dropout,
            accuracy: self.accuracy,
            folder: folder.path(),
        };
        // A spinner that ticked by itself would compute beside the measurements.
        let bar = ProgressBar::new_spinner();
        bar.disable_steady_tick();
        let report = compare(&setup, &mut ours, &mut |stage| {
            bar.set_message(stage.to_string());
            bar.tick();
        });
        bar.finish_and_clear();
        report
    }

    fn shown(&self, report: &Report) -> Result<String, CompareError> {
        if !self.json {
            return Ok(report.text(bench::table::colour()));
        }
        let text = serde_json::to_string_pretty(report).map_err(|e| PipelineError::Internal(e.to_string()))?;
        Ok(text + "\n")
    }
}
