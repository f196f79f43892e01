//! `memlet interpret`: a recipe through the f64 oracle.

use super::RecipeArgs;
use crate::pipeline::{PipelineError, programs, tensors};
use clap::Args;
use sdfg::Dtype;
use sdfg::interpret::{Run, interpret};
use std::path::PathBuf;

#[derive(Args)]
pub struct InterpretArgs {
    #[command(flatten)]
    recipe: RecipeArgs,
    /// Inputs and parameters, .safetensors or .npz; drawn from the seed otherwise
    #[arg(long)]
    inputs: Option<PathBuf>,
    /// Where outputs and gradients go, .safetensors or .npz
    #[arg(long)]
    outputs: Option<PathBuf>,
    /// Seed of dropout's masks, and of tensors that are drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of the step: other steps have other masks
    #[arg(long, default_value_t = 0)]
    step: u64,
    /// Keep every element
    #[arg(long)]
    no_dropout: bool,
}

impl InterpretArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let (program, _) = programs::operators(&self.recipe.load()?)?;
        let given = match &self.inputs {
            Some(path) => tensors::read(path, &program)?,
            None => tensors::drawn(&program, self.seed)?,
        };
        let mut all = interpret(&program, &given, &Run { seed: self.seed, step: self.step, dropout: !self.no_dropout })?;
        let wanted: Vec<String> = tensors::results(&program).iter().map(|c| c.name.clone()).collect();
        all.retain(|name, _| wanted.contains(name));
        match &self.outputs {
            // The oracle rounds nothing: what it found is written in the accumulator's type, not in the storage's.
            Some(path) => tensors::write_as(path, &all, &|name| program.containers.get(name).map_or(Dtype::F32, |c| c.dtype.accumulator())),
            None => {
                for (name, tensor) in &all {
                    let norm = tensor.iter().map(|v| v * v).sum::<f64>().sqrt();
                    println!("{name} {:?}: norm {}", tensor.shape(), bench::unit::significant(norm));
                }
                Ok(())
            }
        }
    }
}
