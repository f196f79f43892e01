//! `memlet import`: an ONNX model, or a program of DaCe's, as a recipe.

use super::out::outln;
use super::size;
use crate::import::{Imported, import, operator_names};
use crate::load::load_str;
use crate::pipeline::PipelineError;
use bench::unit::Bytes;
use clap::Args;
use std::path::{Path, PathBuf};

/// The recipe has one step or a few for each node, in index notation, under a comment with the node's name. Transpose, Reshape, Slice and
/// Expand move nothing: they are subscripts of the steps after them. What only depends on sizes is computed. docs/import.md lists the
/// operators.
#[derive(Args)]
pub struct ImportArgs {
    /// The model: an .onnx file of operator set 13 or newer, with its external data beside it, or an .sdfg file of DaCe 1.0.2 or 2.x
    #[arg(required_unless_present = "operators")]
    model: Option<PathBuf>,
    /// The folder for recipe.yaml and weights.safetensors
    #[arg(long, required_unless_present = "operators")]
    out: Option<PathBuf>,
    /// Give a size that the model leaves open, or a symbol of an SDFG, by its name there, e.g. --set batch=8
    #[arg(long = "set", value_name = "NAME=N", value_parser = size)]
    sizes: Vec<(String, i64)>,
    /// Print the names of the supported operators, and import nothing
    #[arg(long)]
    operators: bool,
    /// Print JSON: the files, and inputs and outputs with their names in the recipe
    #[arg(long)]
    json: bool,
}

impl ImportArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        if self.operators {
            operator_names().into_iter().for_each(|name| outln!("{name}"));
            return Ok(());
        }
        let (Some(model), Some(out)) = (&self.model, &self.out) else { return Ok(()) };
        let imported = import(model, &self.sizes)?;
        let (recipe, weights) = (out.join("recipe.yaml"), out.join("weights.safetensors"));
        // What was written is read: a recipe that does not hold is a fault of the import, and no file of it is left.
        load_str(&recipe.display().to_string(), &imported.recipe, &[])
            .map_err(|errors| PipelineError::Internal(format!("the recipe of the model does not hold: {errors}")))?;
        let fault = |path: &Path, why: String| PipelineError::Tensors { file: path.display().to_string(), why };
        std::fs::create_dir_all(out).map_err(|e| fault(out, e.to_string()))?;
        let bytes = imported.weights_as_bytes().map_err(|why| fault(&weights, why))?;
        std::fs::write(&weights, &bytes).map_err(|e| fault(&weights, e.to_string()))?;
        std::fs::write(&recipe, &imported.recipe).map_err(|e| fault(&recipe, e.to_string()))?;
        self.print(&imported, &recipe, &weights, Bytes(bytes.len() as u64));
        Ok(())
    }

    fn print(&self, imported: &Imported, recipe: &Path, weights: &Path, bytes: Bytes) {
        if self.json {
            let names = |pairs: &[(String, String)]| -> serde_json::Map<String, serde_json::Value> {
                pairs.iter().map(|(model, recipe)| (model.clone(), recipe.clone().into())).collect()
            };
            let value = serde_json::json!({
                "recipe": recipe, "weights": weights, "steps": imported.steps, "parameters": imported.weights.len(),
                "inputs": names(&imported.inputs), "outputs": names(&imported.outputs),
            });
            outln!("{value}");
            return;
        }
        outln!("{}: {} steps", recipe.display(), imported.steps);
        outln!("{}: {} parameters, {bytes}", weights.display(), imported.weights.len());
        let renamed = imported.inputs.iter().chain(&imported.outputs).filter(|(model, recipe)| model != recipe);
        for (model, recipe) in renamed {
            outln!("`{model}` is called `{recipe}` there");
        }
    }
}
