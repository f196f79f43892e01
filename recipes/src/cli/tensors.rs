//! Tensors read and written by a command, and the seed and number of its step.

use crate::pipeline::PipelineError;
use crate::pipeline::oracle::tensors::{self, TensorSource};
use clap::Args;
use sdfg::Sdfg;
use sdfg::interpret::{Run, Tensors};
use std::path::PathBuf;

#[derive(Args)]
pub struct TensorArgs {
    /// Inputs and parameters, .safetensors or .npz; drawn from the seed otherwise
    #[arg(long)]
    pub inputs: Option<PathBuf>,
    /// Parameters beside `--inputs`, such as the weights.safetensors of `memlet import`; without `--inputs` the inputs are drawn
    #[arg(long)]
    pub weights: Option<PathBuf>,
    /// The file for outputs and gradients, .safetensors or .npz
    #[arg(long)]
    pub outputs: Option<PathBuf>,
    /// Seed of dropout masks and of drawn tensors
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Number of the step: other steps have other masks
    #[arg(long, default_value_t = 0)]
    pub step: u64,
    /// How many steps are run, each with the same inputs and with the parameters and state that the one before it left
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub steps: u64,
}

impl TensorArgs {
    /// The program's inputs and parameters.
    pub fn given(&self, program: &Sdfg) -> Result<Tensors, PipelineError> {
        self.given_with(program, None)
    }

    /// The same, where the recipe itself brings parameters, which files may replace.
    pub fn given_with(&self, program: &Sdfg, own: Option<TensorSource>) -> Result<Tensors, PipelineError> {
        let files = self.weights.iter().chain(&self.inputs).map(|path| TensorSource::File(path));
        let sources: Vec<TensorSource> = own.into_iter().chain(files).collect();
        match (sources.is_empty(), &self.inputs) {
            (true, _) => tensors::random_inputs(program, self.seed),
            (false, Some(_)) => tensors::read_all(&sources, program, None),
            (false, None) => tensors::read_all(&sources, program, Some(self.seed)),
        }
    }

    pub fn run(&self, dropout: bool) -> Run {
        Run { seed: self.seed, step: self.step, dropout }
    }

    /// The steps in order.
    pub fn runs(&self, dropout: bool) -> impl Iterator<Item = Run> {
        let first = self.run(dropout);
        (0..self.steps).map(move |n| Run { step: first.step.wrapping_add(n), ..first })
    }
}
