//! `memlet export`: a program as an SDFG of DaCe's.

use super::RecipeArgs;
use super::out::outln;
use crate::dace;
use crate::pipeline::PipelineError;
use crate::pipeline::choose::plan::Plan;
use crate::pipeline::oracle::operators;
use crate::pipeline::oracle::small_sizes::with_small_sizes;
use crate::pipeline::variants::programs::plain;
use crate::pipeline::variants::table::VariantId;
use clap::{Args, ValueEnum};
use sdfg::Sdfg;
use std::path::PathBuf;

/// Sizes stay symbols; inputs, parameters and results are the arguments. docs/dace.md says how what DaCe lacks is written.
#[derive(Args)]
pub struct ExportArgs {
    /// A recipe, or plan.json of `memlet optimize`, whose program is written then
    #[command(flatten)]
    recipe: RecipeArgs,
    /// Which program of the recipe
    #[arg(long, value_enum, default_value = "operators")]
    stage: Stage,
    /// Name small sizes in the file, for checks; sizes are symbols in any case
    #[arg(long)]
    small: bool,
    /// The file to write
    #[arg(long, value_name = "FILE.sdfg")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Stage {
    /// One operator after the other, forward and backward
    Operators,
    /// One kernel for each operator
    Unfused,
    /// Operators fused where one reads what another writes
    Fused,
}

impl ExportArgs {
    /// # Errors
    /// Errors of the recipe; what DaCe lacks.
    pub fn run(&self) -> Result<(), PipelineError> {
        let mut program = self.program()?;
        if self.small {
            program = with_small_sizes(&program);
        }
        let written = dace::write(&program)?;
        let text = written.to_string();
        let fault = |e: std::io::Error| PipelineError::Tensors { file: self.out.display().to_string(), why: e.to_string() };
        std::fs::write(&self.out, &text).map_err(fault)?;
        let count = |what: &str| written[what].as_array().map_or(0, Vec::len);
        outln!("{}: {} states, {} bytes", self.out.display(), count("nodes"), text.len());
        Ok(())
    }

    fn program(&self) -> Result<Sdfg, PipelineError> {
        if self.recipe.recipe.extension().is_some_and(|e| e == "json") {
            return Ok(Plan::read(&self.recipe.recipe)?.chosen.program);
        }
        let recipe = self.recipe.load()?;
        match self.stage {
            Stage::Operators => Ok(operators::operators(&recipe)?.0),
            Stage::Unfused => Ok(plain(&recipe, VariantId::Unfused, false)?.program),
            Stage::Fused => Ok(plain(&recipe, VariantId::Fused, false)?.program),
        }
    }
}
