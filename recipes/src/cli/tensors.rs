//! Tensors read and written by a command, and the seed and number of its step.

use crate::pipeline::PipelineError;
use crate::pipeline::oracle::tensors;
use clap::Args;
use sdfg::Sdfg;
use sdfg::interpret::{Run, Tensors};
use std::path::PathBuf;

#[derive(Args)]
pub struct TensorArgs {
    /// Inputs and parameters, .safetensors or .npz; drawn from the seed otherwise
    #[arg(long)]
    pub inputs: Option<PathBuf>,
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
        match &self.inputs {
            Some(path) => tensors::read(path, program),
            None => tensors::random_inputs(program, self.seed),
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
