//! `memlet compare`: a plan in comparison with PyTorch, JAX, ONNX Runtime and OpenVINO.

use super::INTERRUPT;
use super::out::{errln, out, outln};
use crate::compare::contender::PeerContender;
use crate::compare::environment::check_pythons;
use crate::compare::model::stored;
use crate::compare::worker::write_scripts;
use crate::compare::{
    CompareError, ComparisonReport, OurBytes, Ours, PeerModel, PeerVariant, Pythons, Setup, StepTime, TensorBytes, compare, contenders,
};
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::choose::plan::Plan;
use crate::pipeline::oracle::tensors::random_inputs;
use crate::pipeline::run::execute::Execution;
use clap::Args;
use indicatif::ProgressBar;
use kernels::peak::peak;
use kernels::pool::Pool;
use sdfg::interpret::Tensors;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// Each named environment needs numpy and safetensors besides its framework. Recipes that the peers know: bert-base-encoder.yaml,
/// bert-large-encoder.yaml and mha.yaml, at any size, dropout rate and epsilon, tensors in any order of dims; ONNX Runtime and OpenVINO
/// also the convolutional networks and recipes/cross-layer/*.yaml, at their sizes.
#[derive(Args)]
pub struct CompareArgs {
    /// plan.json of `memlet optimize`
    #[arg(required_unless_present = "peers_only")]
    plan: Option<PathBuf>,
    /// Only check that the named Pythons have the modules that the peers need
    #[arg(long)]
    peers_only: bool,
    /// The Python of an environment that has PyTorch
    #[arg(long, value_name = "PYTHON")]
    torch: Option<PathBuf>,
    /// The Python of an environment that has JAX
    #[arg(long, value_name = "PYTHON")]
    jax: Option<PathBuf>,
    /// The Python of an environment that has ONNX and ONNX Runtime: the forward pass alone, dropout off, compared with ours
    #[arg(long, value_name = "PYTHON")]
    onnx: Option<PathBuf>,
    /// The Python of an environment that has OpenVINO and ONNX: networks alone, as with --onnx
    #[arg(long, value_name = "PYTHON")]
    openvino: Option<PathBuf>,
    /// The peers to time; PyTorch's with float32 products in highest and in medium precision; for a plan stored in bf16, PyTorch's and
    /// JAX's with weights in f32 (under autocast) and with everything in bf16
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = PeerVariant::ALL)]
    variants: Vec<PeerVariant>,
    /// Threads for ours and every peer, by default those of the plan; `1,2` compares twice
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=super::MOST_THREADS as i64))]
    threads: Vec<u32>,
    /// Rounds; in each, every peer is timed once, and ours just before it
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Seed of inputs and parameters, and of our masks
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time with every element kept. Our kernels are the same and still draw random numbers, the peers' do not: for a fair
    /// figure, compare a plan of `optimize --no-dropout`
    #[arg(long)]
    no_dropout: bool,
    /// Also compare all results with the f64 oracle's, which is slow
    #[arg(long)]
    accuracy: bool,
    /// Print JSON with all samples: an array, one comparison for each number of threads
    #[arg(long)]
    json: bool,
    /// Write the same JSON to a file, and print tables
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    record: Option<PathBuf>,
}

/// A plan that is ready to run; every step has masks of its own.
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

    fn memory(&self) -> OurBytes {
        let planned = self.execution.memory;
        let tensors = TensorBytes { given_bytes: planned.given_bytes, peak_bytes: planned.actual_bytes };
        let boundary_bytes = self.execution.map.boundary_bytes();
        OurBytes { tensors, boundary_bytes, working_bytes: self.execution.working_bytes(self.pool.workers()) }
    }
}

impl CompareArgs {
    /// Prints the report; the code is 3 if a peer disagrees and 1 if one did not run.
    pub fn run(&self) -> ExitCode {
        if let Err(error) = check_pythons(&self.variants, &self.pythons()) {
            errln!("{error}");
            return ExitCode::from(error.exit_code());
        }
        let Some(plan) = self.plan.as_deref().filter(|_| !self.peers_only) else {
            outln!("the peers have what they need");
            return ExitCode::SUCCESS;
        };
        match self.reports(plan).and_then(|reports| self.show(&reports).map(|()| reports)) {
            Ok(reports) => ExitCode::from(reports.iter().map(ComparisonReport::exit_code).max().unwrap_or(0)),
            Err(error) => {
                errln!("{error}");
                ExitCode::from(error.exit_code())
            }
        }
    }

    fn pythons(&self) -> Pythons {
        Pythons { torch: self.torch.clone(), jax: self.jax.clone(), onnx: self.onnx.clone(), openvino: self.openvino.clone() }
    }

    /// One report for each number of threads.
    fn reports(&self, file: &Path) -> Result<Vec<ComparisonReport>, CompareError> {
        let pythons = self.pythons();
        let plan = Plan::read(file)?;
        let recipe = plan.recipe()?;
        let model = PeerModel::of(&recipe)?;
        let variants: Vec<PeerVariant> = self.variants.iter().copied().filter(|variant| variant.knows(&model)).collect();
        let contenders = contenders(&variants, stored(&recipe.program), &pythons);
        if contenders.is_empty() {
            return Err(CompareError::NoPeer);
        }
        let mut threads: Vec<usize> = self.threads.iter().map(|n| *n as usize).collect();
        if threads.is_empty() {
            threads.push(plan.threads.max(1));
        }
        threads.into_iter().map(|threads| self.report((file, &plan), &recipe, &model, &contenders, threads)).collect()
    }

    fn report(
        &self,
        (file, plan): (&Path, &Plan),
        recipe: &Recipe,
        model: &PeerModel,
        contenders: &[PeerContender],
        threads: usize,
    ) -> Result<ComparisonReport, CompareError> {
        let tensors = random_inputs(&plan.chosen.program, self.seed)?;
        if !plan.target.is_cpu() {
            let why = format!("it was made for {}; plans are compared on the CPU only, bench/gpu.sh compares on a GPU", plan.target);
            return Err(PipelineError::Plan { file: file.display().to_string(), why }.into());
        }
        let (pool, device) = (Pool::new(threads).map_err(PipelineError::from)?, plan.target.open()?);
        let first = peak(&pool);
        let execution = Execution::new(&plan.chosen.program, &plan.chosen.configuration, &device)?;
        let mut ours = Prepared { execution, pool, seed: self.seed, step: 0 };
        let folder = tempfile::tempdir().map_err(|source| CompareError::Folder { path: std::env::temp_dir(), source })?;
        write_scripts(folder.path())?;
        let setup = Setup {
            recipe,
            tensors: &tensors,
            seed: self.seed,
            contenders,
            origin: format!("{} ({}, for {} threads)", plan.command, plan.chosen.name, plan.threads),
            threads,
            peak: first,
            rounds: self.rounds,
            dropout: model.has_dropout() && !self.no_dropout,
            accuracy: self.accuracy,
            interrupt: &INTERRUPT,
            folder: folder.path(),
        };
        // A spinner that ticks by itself would compute during the measurements.
        let bar = ProgressBar::new_spinner();
        bar.disable_steady_tick();
        let report = compare(&setup, &mut ours, &mut |stage| {
            bar.set_message(stage.to_string());
            bar.tick();
        });
        bar.finish_and_clear();
        let mut report = report?;
        // Other processes may have disturbed the first measurement, and a peak is the best attainable rate.
        report.peak = report.peak.into_iter().chain(peak(&ours.pool)).reduce(f64::max);
        Ok(report)
    }

    fn show(&self, reports: &[ComparisonReport]) -> Result<(), CompareError> {
        let json = || serde_json::to_string_pretty(reports).map(|t| t + "\n").map_err(|e| PipelineError::Internal(e.to_string()));
        if self.json {
            out!("{}", json()?);
            return Ok(());
        }
        let texts: Vec<String> = reports.iter().map(|r| r.text(bench::table::colour())).collect();
        out!("{}", texts.join("\n"));
        if let Some(path) = &self.record {
            bench::atomic::write(path, json()?.as_bytes()).map_err(|source| CompareError::Folder { path: path.clone(), source })?;
        }
        Ok(())
    }
}
