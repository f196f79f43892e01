//! Compares programs with their recipe before any of their kernels is measured.
//!
//! A transform may have a fault. So every program is interpreted at small sizes and compared with the operators of its recipe. If results
//! differ, all programs are remade with each patch checked. A faulty patch is left out and named in a message. A program that stays wrong
//! is left out.

use super::programs::{Programs, programs_on};
use super::rewrite_options::RewriteOptions;
use super::variant::Variant;
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::{Expectation, with_sizes, with_small_sizes};
use crate::timings::{CommandPhase, during};
use kernels::device::Forms;
use rayon::prelude::*;
use sdfg::Sdfg;
use sdfg::validate::validate;
use transforms::DriverError;

/// The most attempts at making programs: each attempt leaves out one more faulty patch.
const ATTEMPTS: usize = 100;

/// The programs of a recipe, all of which compute the same results; `told` receives a message for everything that is left out.
///
/// # Errors
/// Programs that cannot be made; no program that computes the recipe's results.
pub fn checked_programs(
    recipe: &Recipe,
    options: impl Into<RewriteOptions>,
    epilogues: Option<Forms>,
    told: &mut dyn FnMut(&str),
) -> Result<Programs, PipelineError> {
    let mut options = options.into();
    for _ in 0..ATTEMPTS {
        let mut programs = match during(CommandPhase::Rewrite, || programs_on(recipe, &options, epilogues)) {
            Ok(programs) => programs,
            Err(error) => {
                bar(&mut options, error, told)?;
                continue;
            }
        };
        let wrong = during(CommandPhase::Check, || wrong(&programs.operators, &programs.variants));
        if wrong.iter().all(Option::is_none) {
            return Ok(programs);
        }
        if !options.verify_each {
            let which = programs.variants.iter().zip(&wrong).filter_map(|(v, why)| Some(format!("{}: {}", v.key, why.as_ref()?)));
            told(&format!(
                "a program computes something else than its recipe ({}): all programs are made again, every patch checked",
                which.collect::<Vec<_>>().join("; ")
            ));
            options.verify_each = true;
            continue;
        }
        // A program that is wrong as a whole, while no single patch is wrong at small sizes.
        let mut wrong = wrong.into_iter();
        let mut last = String::new();
        programs.variants.retain(|variant| match wrong.next().flatten() {
            None => true,
            Some(why) => {
                last = format!("{} computes something else than the recipe: {why}", variant.key);
                told(&format!("{last}; no single patch shows it, so the program is left out"));
                false
            }
        });
        return if programs.variants.is_empty() { Err(PipelineError::Mismatch(last)) } else { Ok(programs) };
    }
    Err(PipelineError::Internal("patch after patch changes what programs compute".into()))
}

/// How each program's results differ from those of its operators, or why it is not valid, so that its plan could not be read back; `None`
/// for a correct program.
pub fn wrong(operators: &Sdfg, variants: &[Variant]) -> Vec<Option<String>> {
    let operators = with_small_sizes(operators);
    let expected = Expectation::of(&operators);
    let wrong = |v: &Variant| match validate(&v.program).first() {
        Some(invalid) => Some(format!("it is not valid: {invalid}")),
        None => expected.difference(&with_sizes(&v.program, &operators.sizes)).map(|d| d.to_string()),
    };
    variants.par_iter().map(wrong).collect()
}

/// Leaves out the patch that an error names, and reports it to `told`.
///
/// # Errors
/// The same error if it names no patch, or a patch that programs need.
pub fn bar(options: &mut RewriteOptions, error: PipelineError, told: &mut dyn FnMut(&str)) -> Result<(), PipelineError> {
    match &error {
        PipelineError::Driver(DriverError::Verification { summary, difference, optional: true, .. }) if options.barred.bar(summary) => {
            told(&format!(
                "WRONG PATCH LEFT OUT: after `{summary}` the program computes something else: {difference}. This is a fault of Memlet's, \
                 please report it; the programs are made without it"
            ));
            Ok(())
        }
        _ => Err(error),
    }
}
