//! The operators of a recipe before any rewrite: forward and, if it trains, backward.

use crate::load::Recipe;
use crate::pipeline::PipelineError;
use sdfg::Sdfg;
use transforms::recompute::Saved;

/// The forward program of a recipe, differentiated if it trains; backward reads whatever forward made.
pub fn differentiated(recipe: &Recipe) -> Result<Sdfg, PipelineError> {
    let Some(train) = &recipe.train else { return Ok(recipe.program.clone()) };
    let options = transforms::differentiate::Options { upstream: train.upstream.clone(), loss: train.loss.clone(), wanted: None };
    Ok(transforms::differentiate(&recipe.program, &options)?)
}

/// The operators of a recipe, and for what backward reads whether it is saved or computed again.
pub fn operators(recipe: &Recipe) -> Result<(Sdfg, Vec<Saved>), PipelineError> {
    Ok(transforms::recompute::recompute(&differentiated(recipe)?)?)
}
