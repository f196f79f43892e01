//! From a recipe to programs: differentiated, unfused, fused, and one program for each way of stacking contractions.

use super::{PipelineError, counterexample};
use crate::load::Recipe;
use sdfg::Sdfg;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Container, Role};
use std::path::Path;
use transforms::algebraic::{groups, stacked};
use transforms::recompute::Saved;
use transforms::{Expand, Fusion, Options, Outcome, Refusal, Step, Transform, fixpoint};

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

/// A program of operators, expanded and fused to a fixed point. A patch that `verify_each` finds wrong is saved, made small,
/// under `target/memlet`.
pub fn fused(name: String, operators: Sdfg, verify_each: bool) -> Result<Variant, PipelineError> {
    let folder = Path::new("target").join("memlet").join(&operators.name);
    let folder = verify_each.then_some(folder.as_path());
    let expanded = rewritten(&operators, &[&Expand], folder)?;
    let outcome = rewritten(&expanded.program, &[&Fusion::default()], folder)?;
    Ok(Variant { name, operators, program: outcome.program, steps: outcome.steps, refusals: outcome.refusals })
}

/// Transforms applied to a fixed point. With a folder, a shrunken program is interpreted before and after every patch; one
/// that goes wrong is saved there.
///
/// # Errors
/// The patch that went wrong, how results differ, and where the smallest program is that shows it.
pub fn rewritten(program: &Sdfg, transforms: &[&dyn Transform], folder: Option<&Path>) -> Result<Outcome, PipelineError> {
    let verify = |before: &Sdfg, after: &Sdfg| match (counterexample::find(before, after), folder) {
        (Some(found), Some(folder)) => Err(match found.save(folder) {
            Ok([before, after]) => {
                format!("{}; see {} and {}", found.difference, before.display(), after.display())
            }
            Err(why) => format!("{}; the smallest program could not be saved in {}: {why}", found.difference, folder.display()),
        }),
        _ => Ok(()),
    };
    let options = Options { verify: folder.is_some().then_some(&verify as transforms::driver::Verify), ..Options::default() };
    Ok(fixpoint(program, transforms, &options)?)
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

/// How two programs that should compute the same differ.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Difference {
    #[error("{0}")]
    Value(String),
    #[error("it can no longer be interpreted: {0}")]
    Fails(String),
    #[error("it could not be interpreted before: {0}")]
    Failed(String),
}

/// Interprets both and compares what a person sees; what differs first.
pub(super) fn difference(before: &Sdfg, after: &Sdfg) -> Option<Difference> {
    let run = |program: &Sdfg| {
        let tensors = super::tensors::drawn(before, 1).map_err(|e| e.to_string())?;
        interpret(program, &tensors, &Run { seed: 1, step: 0, dropout: true }).map_err(|e| e.to_string())
    };
    let want = match run(before) {
        Ok(want) => want,
        Err(why) => return Some(Difference::Failed(why)),
    };
    let got = match run(after) {
        Ok(got) => got,
        Err(why) => return Some(Difference::Fails(why)),
    };
    let seen = |c: &&Container| matches!(c.role, Role::Output | Role::Gradient);
    let unequal = |c: &Container| compare(&c.name, &want, &got).err();
    before.containers.values().filter(seen).find_map(unequal).map(Difference::Value)
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
