//! Whether a rewrite keeps its promise, as the interpreter finds it: `--verify-each`.
//!
//! Both programs are interpreted on inputs drawn from a seed. The second has to compute all outputs and gradients of the first, with the
//! same values. Where the rewrite adds gradients, these are compared with differences of the interpreted forward program.

pub mod gradients;

use crate::driver::RewriteCheck;
use crate::pass::Promise;
use gradients::{Differences, check_gradients};
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::validate::validate;
use sdfg::{Role, Sdfg};

/// Draws all that a program is given from a seed.
pub type Draw<'a> = &'a dyn Fn(&Sdfg, u64) -> Result<Tensors, String>;

/// Points at which gradients are compared before they count as wrong. A function with kinks (a rectifier, a maximum) has no derivative
/// at one, and differences across one are no derivative: at random points that is rare, while a wrong gradient is wrong at all of them.
const POINTS: u64 = 3;

/// Whether a rewrite keeps its promise at the sizes of its programs.
///
/// # Errors
/// What differs, as a sentence.
pub fn keeps_promise(check: &RewriteCheck, draw: Draw, run: &Run) -> Result<(), String> {
    still_valid(check)?;
    let Promise::Gradients(options) = &check.promise else {
        return same_results(check.before, check.after, &draw(check.before, 1)?, run);
    };
    let mut first = None;
    for seed in 1..=POINTS {
        let given = draw(check.after, seed)?;
        same_results(check.before, check.after, &given, run)?;
        let results = interpret(check.after, &given, run).map_err(|e| e.to_string())?;
        match check_gradients(check.before, options, &given, &results, &Differences::default(), run) {
            Ok(_) => return Ok(()),
            Err(why) => first = first.or(Some(why)),
        }
    }
    first.map_or(Ok(()), Err)
}

/// Whether a rewrite of a valid program makes a valid program.
///
/// # Errors
/// The first fault of the second program.
pub fn still_valid(check: &RewriteCheck) -> Result<(), String> {
    match validate(check.after).first() {
        Some(fault) if validate(check.before).is_empty() => Err(format!("it is no longer valid: {fault}")),
        _ => Ok(()),
    }
}

/// Whether the second program computes all outputs and gradients of the first, with the same values.
///
/// # Errors
/// What differs, as a sentence, or why one of them cannot be interpreted.
pub fn same_results(before: &Sdfg, after: &Sdfg, given: &Tensors, run: &Run) -> Result<(), String> {
    let of = |program: &Sdfg| -> Tensors {
        let known = |(name, _): &(&String, _)| program.containers.contains_key(*name);
        given.iter().filter(known).map(|(name, tensor)| (name.clone(), tensor.clone())).collect()
    };
    let want = interpret(before, &of(before), run).map_err(|e| format!("it could not be interpreted before: {e}"))?;
    let got = interpret(after, given, run).map_err(|e| format!("it can no longer be interpreted: {e}"))?;
    let seen = before.containers.values().filter(|c| matches!(c.role, Role::Output | Role::Gradient));
    seen.map(|c| c.name.as_str()).try_for_each(|name| same_tensor(name, &want, &got))
}

/// Whether a tensor has the same values in both, but for the order of sums.
///
/// # Errors
/// The first element that differs.
pub fn same_tensor(name: &str, want: &Tensors, got: &Tensors) -> Result<(), String> {
    let (Some(want), Some(got)) = (want.get(name), got.get(name)) else { return Err(format!("`{name}` is no longer computed")) };
    let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    // Rewrites reorder f64 sums of at most a few thousand small terms.
    let bound = 1e4 * f64::EPSILON * scale;
    if want.len() != got.len() {
        return Err(format!("`{name}` had {} elements and has {}", want.len(), got.len()));
    }
    for (w, g) in want.iter().zip(got) {
        if (w - g).abs() > bound || w.is_nan() != g.is_nan() {
            return Err(format!("`{name}` was {w} and became {g}"));
        }
    }
    Ok(())
}
