//! `memlet interpret`: a recipe through the f64 oracle.

use super::RecipeArgs;
use super::out::outln;
use super::tensors::TensorArgs;
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::{operators, tensors};
use bench::machine::Machine;
use bench::unit::Bytes;
use clap::Args;
use sdfg::interpret::interpret;
use sdfg::{Container, Dtype, Sdfg};

#[derive(Args)]
pub struct InterpretArgs {
    #[command(flatten)]
    recipe: RecipeArgs,
    #[command(flatten)]
    tensors: TensorArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl InterpretArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let (program, _) = operators::operators(&self.recipe.load()?)?;
        fits(&program).map_err(|why| PipelineError::Tensors { file: self.recipe.recipe.display().to_string(), why })?;
        let weights = self.recipe.model()?.map(|model| model.weights_as_bytes()).transpose();
        let weights = weights.map_err(|why| PipelineError::Tensors { file: self.recipe.recipe.display().to_string(), why })?;
        let own = weights.as_ref().map(|bytes| tensors::TensorSource::Bytes(&self.recipe.recipe, bytes));
        let (mut given, mut all) = (self.tensors.given_with(&program, own)?, sdfg::interpret::Tensors::new());
        for run in self.tensors.runs(true) {
            all = interpret(&program, &given, &run)?;
            given = tensors::next_step(&program, &given, &all);
        }
        let wanted: Vec<String> = tensors::results(&program).iter().map(|c| c.name.clone()).collect();
        all.retain(|name, _| wanted.contains(name));
        let all = tensors::named(&program, all);
        if let Some(path) = &self.tensors.outputs {
            // The oracle rounds nothing, so its results are written in the accumulator's type, not in the storage type.
            tensors::write_as(path, &all, &|name| program.containers.get(name).map_or(Dtype::F32, |c| c.dtype.accumulator()))?;
        }
        let norms = all.iter().map(|(name, tensor)| (name, tensor.shape(), tensor.iter().map(|v| v * v).sum::<f64>().sqrt()));
        if self.json {
            let rows: Vec<serde_json::Value> =
                norms.map(|(name, shape, norm)| serde_json::json!({"name": name, "shape": shape, "norm": norm})).collect();
            outln!("{}", serde_json::json!({"tensors": rows}));
        } else if self.tensors.outputs.is_none() {
            for (name, shape, norm) in norms {
                outln!("{name} {shape:?}: norm {}", bench::unit::significant(norm));
            }
        }
        Ok(())
    }
}

/// Whether the machine's memory can hold every tensor in f64, as the oracle does.
fn fits(program: &Sdfg) -> Result<(), String> {
    let memory = Machine::here().memory;
    let elements = |c: &Container| program.shape_of(&c.name).map_or(f64::INFINITY, |shape| shape.iter().map(|n| *n as f64).product());
    let bytes = program.containers.values().filter(|c| c.view.is_none()).map(elements).sum::<f64>() * size_of::<f64>() as f64;
    if memory == Bytes(0) || bytes <= memory.0 as f64 {
        return Ok(());
    }
    let all = Bytes(bytes.min(u64::MAX as f64) as u64);
    Err(format!("as f64 all tensors have {all} under these sizes, and this machine has {memory} of memory; use smaller sizes"))
}
