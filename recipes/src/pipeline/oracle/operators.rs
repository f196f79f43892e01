//! The operators of a recipe before any rewrite: forward and, if it trains, backward.

use crate::load::Recipe;
use crate::pipeline::PipelineError;
use sdfg::Sdfg;
use transforms::algebra::transposed_windows::TransposedWindows;
use transforms::recompute::Saved;
use transforms::{Differentiate, DriverOptions, PipelineOutcome, Recompute, ReluSignFromOutput};

/// The pass that differentiates a recipe; `None` if it does not train.
pub fn differentiation(recipe: &Recipe) -> Option<Differentiate> {
    let train = recipe.train.as_ref()?;
    let options = transforms::differentiate::Options {
        upstream: train.upstream.clone(),
        loss: train.loss.clone(),
        wanted: None,
        update: recipe.update.clone(),
    };
    Some(Differentiate { options })
}

/// The forward program of a recipe, differentiated if it trains; backward may read every tensor of forward.
pub fn differentiated(recipe: &Recipe) -> Result<Sdfg, PipelineError> {
    Ok(unoptimized(recipe)?.program)
}

/// The same with transposed convolutions summed over their kernels: what a step has to compute, which counts of operations are about.
pub fn counted(recipe: &Recipe) -> Result<Sdfg, PipelineError> {
    Ok(unoptimized(recipe)?.then(&[&TransposedWindows], &DriverOptions::default())?.program)
}

fn unoptimized(recipe: &Recipe) -> Result<PipelineOutcome, PipelineError> {
    let forward = PipelineOutcome::new(recipe.program.clone());
    match differentiation(recipe) {
        Some(differentiate) => Ok(forward.then(&[&differentiate], &DriverOptions::default())?),
        None => Ok(forward),
    }
}

/// The operators of a recipe, and for each tensor that backward reads whether it is saved or recomputed.
pub fn operators(recipe: &Recipe) -> Result<(Sdfg, Vec<Saved>), PipelineError> {
    let outcome = unoptimized(recipe)?.then(&[&ReluSignFromOutput, &Recompute::default()], &DriverOptions::default())?;
    Ok((outcome.program, outcome.facts.saved))
}
