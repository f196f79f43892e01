//! Values that f64 holds and kernels do not: where the oracle has a number, they have infinity, and what is made of it is no number.

use super::largest_finite::largest_finite;
use super::operators::operators;
use super::small_sizes::with_small_sizes;
use super::tensors;
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use sdfg::interpret::{Overflow, Run, Tensors, interpret_within};
use sdfg::{Container, Dtype, Sdfg};

/// What overflows where a program is run at small sizes on drawn inputs, as a sentence that says what to do.
pub fn overflow_message(program: &Sdfg) -> Option<String> {
    let small = with_small_sizes(program);
    overflow_on(&small, &tensors::random_inputs(&small, 1).ok()?)
}

/// What overflows where a program is run on these inputs.
pub fn overflow_on(program: &Sdfg, given: &Tensors) -> Option<String> {
    let run = Run { seed: 1, step: 0, dropout: true };
    let (made, found) = interpret_within(program, given, &run, largest_finite(program.containers.values())).ok()?;
    let found = found.map(|overflow| (overflow, Dtype::F32));
    // On the way everything is held in f32; what is stored may be narrower.
    let (overflow, dtype) = found.or_else(|| stored(program, &made))?;
    let at = overflow.origin.as_ref().map(|origin| format!(" ({origin})")).unwrap_or_default();
    let advice = if ranged(program) { "narrow the `range` of its inputs" } else { "give its inputs a `range` that holds what they are" };
    Some(format!(
        "overflows in {dtype} in step `{}`{at}: a value there is {:.3e}, and {dtype} ends at {:.3e}; {advice} (values without one are drawn from -2 \
         to 2), keep what is exponentiated or divided in bounds in that step, as `softmax`, `logsumexp` and `min` do, or give the recipe `dtype: {}`",
        overflow.operation,
        overflow.value,
        end(dtype),
        if dtype == Dtype::F16 { "f32" } else { "f64" },
    ))
}

/// The first container that stores less than one of its values.
fn stored(program: &Sdfg, made: &Tensors) -> Option<(Overflow, Dtype)> {
    program.containers.values().find_map(|c| {
        let beyond = |v: &&f64| v.is_finite() && c.dtype.is_floating() && c.dtype.rounded(**v).is_infinite();
        let value = *made.get(&c.name)?.iter().find(beyond)?;
        Some((Overflow { operation: c.name.clone(), origin: c.origin.clone(), value }, c.dtype))
    })
}

/// Where a type ends.
fn end(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => half::f16::MAX.to_f64(),
        Dtype::Bf16 => half::bf16::MAX.to_f64(),
        _ => f32::MAX.into(),
    }
}

/// Whether every tensor of numbers that the recipe declares has a range: gradients that come in have none.
fn ranged(program: &Sdfg) -> bool {
    let declared = |c: &&&Container| c.dtype.is_floating() && !c.name.starts_with("d_");
    tensors::given(program).iter().filter(declared).all(|c| c.range.is_some())
}

/// An error of a recipe's kernels, as what overflowed if something did.
pub fn explain_overflow(error: PipelineError, recipe: impl FnOnce() -> Result<Recipe, PipelineError>) -> PipelineError {
    if !matches!(error, PipelineError::Select(_)) {
        return error;
    }
    match recipe().and_then(|recipe| operators(&recipe)).ok().and_then(|(program, _)| overflow_message(&program)) {
        Some(what) => PipelineError::Overflow(format!("{what} (so {error})")),
        None => error,
    }
}
