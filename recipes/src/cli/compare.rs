//! `memlet compare`: a plan beside PyTorch and JAX.

use crate::compare::worker::write_scripts;
use crate::compare::{CompareError, Model, Ours, Report, Setup, Variant, compare, contenders};
use crate::load::load;
use crate::pipeline::PipelineError;
use crate::pipeline::plan::Plan;
use crate::pipeline::tensors::drawn;
use std::path::{Path, PathBuf};

/// Times a plan next to PyTorch and JAX on the same recipe and data, interleaved, after checking that all agree.
///
/// Each environment that is named needs numpy and safetensors beside its framework. Recipes that the peers know:
/// bert-base-encoder.yaml, bert-large-encoder.yaml, mha.yaml, at any size, dropout rate and epsilon.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// A plan that `memlet optimize` made.
    pub plan: PathBuf,
    /// The Python of an environment that has PyTorch.
    #[arg(long, value_name = "PYTHON")]
    pub torch: Option<PathBuf>,
    /// The Python of an environment that has JAX.
    #[arg(long, value_name = "PYTHON")]
    pub jax: Option<PathBuf>,
    /// Variants to time; those of PyTorch with float32 products in full and in medium precision.
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Variant::ALL)]
    pub variants: Vec<Variant>,
    /// Threads for everyone; by default those of the plan.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Rounds, in each of which every peer and ours beside it run once.
    #[arg(long, default_value_t = 15)]
    pub rounds: usize,
    /// Draws inputs and parameters.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Time without dropout.
    #[arg(long)]
    pub no_dropout: bool,
    /// The report with all samples as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Makes a plan ready to run with this many threads.
pub type Prepare<'a> = &'a mut dyn FnMut(&Plan, usize) -> Result<Box<dyn Ours>, PipelineError>;

/// Compares; `folder` is an empty folder for tensors and logs of this run alone, an absolute path.
///
/// # Errors
/// See [`compare`]; also a plan or recipe that cannot be read.
pub fn run(args: &Args, folder: &Path, prepare: Prepare, progress: &mut dyn FnMut(&str)) -> Result<Report, CompareError> {
    let contenders = contenders(&args.variants, args.torch.as_ref(), args.jax.as_ref());
    if contenders.is_empty() {
        return Err(CompareError::NoPeer);
    }
    let plan = Plan::read(&args.plan)?;
    let overrides: Vec<(String, i64)> = plan.overrides.iter().map(|(dim, size)| (dim.clone(), *size)).collect();
    let recipe = load(Path::new(&plan.recipe), &overrides).map_err(PipelineError::from)?;
    let model = Model::of(&recipe)?;
    let threads = args.threads.unwrap_or(plan.threads).max(1);
    let tensors = drawn(&plan.chosen.program, args.seed)?;
    let mut ours = prepare(&plan, threads)?;
    write_scripts(folder)?;
    let setup = Setup {
        recipe: &recipe,
        tensors: &tensors,
        seed: args.seed,
        contenders: &contenders,
        threads,
        rounds: args.rounds,
        dropout: model.has_dropout() && !args.no_dropout,
        folder,
    };
    compare(&setup, ours.as_mut(), progress)
}

/// The report as the user asked for it.
pub fn shown(args: &Args, report: &Report) -> Result<String, CompareError> {
    match args.json {
        true => serde_json::to_string_pretty(report).map_err(|e| PipelineError::Internal(e.to_string()).into()),
        false => Ok(report.text(bench::table::colour())),
    }
}
