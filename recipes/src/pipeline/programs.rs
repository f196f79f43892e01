//! From a recipe to programs: differentiated, unfused, fused, and one program for each way of stacking contractions.

use super::PipelineError;
use crate::load::Recipe;
use sdfg::Sdfg;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Container, Role};
use transforms::algebraic::{groups, stacked};
use transforms::recompute::Saved;
use transforms::{Expand, Fusion, Options, Refusal, Step, fixpoint};

/// One way of stacking contractions, fused.
#[derive(Clone, Debug)]
pub struct Variant {
    /// `separate`, or the weights that are stacked, e.g. `wq+wk+wv`.
    pub name: String,
    /// The operations before expansion.
    pub operators: Sdfg,
    pub program: Sdfg,
    pub steps: Vec<Step>,
    pub refusals: Vec<Refusal>,
}

/// Everything that is derived from a recipe before anything is measured.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Forward and, if the recipe trains, backward: one operation per operator.
    pub operators: Sdfg,
    /// The same, one kernel per operator.
    pub unfused: Sdfg,
    /// Fused; the first is without stacking.
    pub variants: Vec<Variant>,
    /// What backward reads from memory and what it computes again.
    pub saved: Vec<Saved>,
}

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

/// All programs of a recipe. With `verify_each`, a shrunken program is interpreted before and after every patch.
pub fn programs(recipe: &Recipe, verify_each: bool) -> Result<Programs, PipelineError> {
    let (operators, saved) = operators(recipe)?;
    let unfused = fixpoint(&operators, &[&Expand], &Options::default())?.program;
    let mut variants = vec![fused("separate".into(), operators.clone(), verify_each)?];
    for weights in stackings(&operators) {
        let program = stacked(&operators, &weights)?;
        variants.push(fused(weights.join("+"), program, verify_each)?);
    }
    Ok(Programs { operators, unfused, variants, saved })
}

/// The choices of weights to stack: every run of at least two neighbours in a group, the longest first.
fn stackings(program: &Sdfg) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    for group in groups(program) {
        let n = group.weights.len();
        for length in (2..=n).rev() {
            for start in 0..=n - length {
                let weights = group.weights[start..start + length].to_vec();
                if !found.contains(&weights) {
                    found.push(weights);
                }
            }
        }
    }
    found
}

/// A program of operators, expanded and fused to a fixed point.
pub fn fused(name: String, operators: Sdfg, verify_each: bool) -> Result<Variant, PipelineError> {
    let verify = |before: &Sdfg, after: &Sdfg| equal_when_small(before, after);
    let options = Options { verify: verify_each.then_some(&verify as transforms::driver::Verify), ..Options::default() };
    let expanded = fixpoint(&operators, &[&Expand], &options)?;
    let outcome = fixpoint(&expanded.program, &[&Fusion::default()], &options)?;
    Ok(Variant { name, operators, program: outcome.program, steps: outcome.steps, refusals: outcome.refusals })
}

/// The same program with every size bound to a small odd number; sizes that were equal stay equal.
pub fn shrunken(program: &Sdfg) -> Sdfg {
    let mut small = program.clone();
    let distinct: std::collections::BTreeSet<i64> = program.sizes.values().copied().collect();
    for size in small.sizes.values_mut() {
        let rank = distinct.iter().position(|d| d == size).unwrap_or(0) as i64;
        *size = (*size).min(2 * rank + 3);
    }
    small
}

/// Interprets both at small sizes and compares what a person sees.
fn equal_when_small(before: &Sdfg, after: &Sdfg) -> Result<(), String> {
    let (before, after) = (shrunken(before), shrunken(after));
    let run = Run { seed: 1, step: 0, dropout: true };
    let tensors = super::tensors::drawn(&before, 1).map_err(|e| e.to_string())?;
    let want = interpret(&before, &tensors, &run).map_err(|e| e.to_string())?;
    let got = interpret(&after, &tensors, &run).map_err(|e| e.to_string())?;
    let seen = |c: &&Container| matches!(c.role, Role::Output | Role::Gradient);
    for container in before.containers.values().filter(seen) {
        compare(&container.name, &want, &got)?;
    }
    Ok(())
}

fn compare(name: &str, want: &Tensors, got: &Tensors) -> Result<(), String> {
    let (Some(want), Some(got)) = (want.get(name), got.get(name)) else { return Err(format!("`{name}` is no longer computed")) };
    let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    // Patches reorder f64 sums of at most a few thousand small terms.
    let bound = 1e4 * f64::EPSILON * scale;
    for (w, g) in want.iter().zip(got) {
        if (w - g).abs() > bound || w.is_nan() != g.is_nan() {
            return Err(format!("`{name}` was {w} and became {g}"));
        }
    }
    Ok(())
}
