//! Finds values that f64 holds and kernels do not: kernels get infinity there, and results computed from it may be NaN.

use super::largest_finite::largest_finite;
use super::operators::operators;
use super::small_sizes::with_small_sizes;
use super::tensors;
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use sdfg::interpret::{Overflow, Run, Tensors, interpret_within};
use sdfg::{Container, Dtype, Sdfg};

/// The first overflow of a program at small sizes on drawn inputs, as a sentence with advice.
pub fn overflow_message(program: &Sdfg) -> Option<String> {
    let small = with_small_sizes(program);
    overflow_on(&small, &tensors::inputs_to_compare(&small, 1).ok()?)
}

/// The first overflow of a program on these inputs.
pub fn overflow_on(program: &Sdfg, given: &Tensors) -> Option<String> {
    let run = Run { seed: 1, step: 0, dropout: true };
    let (made, found) = interpret_within(program, given, &run, largest_finite(program.containers.values())).ok()?;
    let found = found.map(|overflow| (overflow, Dtype::F32));
    // Kernels compute in f32; containers may store a narrower type.
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

/// The first container whose type cannot hold one of its values.
fn stored(program: &Sdfg, made: &Tensors) -> Option<(Overflow, Dtype)> {
    program.containers.values().find_map(|c| {
        let beyond = |v: &&f64| v.is_finite() && c.dtype.is_floating() && c.dtype.rounded(**v).is_infinite();
        let value = *made.get(&c.name)?.iter().find(beyond)?;
        Some((Overflow { operation: c.name.clone(), origin: c.origin.clone(), value }, c.dtype))
    })
}

/// The largest finite number of a type.
fn end(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => half::f16::MAX.to_f64(),
        Dtype::Bf16 => half::bf16::MAX.to_f64(),
        _ => f32::MAX.into(),
    }
}

/// Whether every floating-point input that the recipe declares has a range; upstream gradients are not declared.
fn ranged(program: &Sdfg) -> bool {
    let declared = |c: &&&Container| c.dtype.is_floating() && !c.name.starts_with("d_");
    tensors::given(program).iter().filter(declared).all(|c| c.range.is_some())
}

/// Replaces a selection error by the overflow that caused it, if there is one.
pub fn explain_overflow(error: PipelineError, recipe: impl FnOnce() -> Result<Recipe, PipelineError>) -> PipelineError {
    if !matches!(error, PipelineError::Select(_)) {
        return error;
    }
    match recipe().and_then(|recipe| operators(&recipe)).ok().and_then(|(program, _)| overflow_message(&program)) {
        Some(what) => PipelineError::Overflow(format!("{what} (so {error})")),
        None => error,
    }
}
