//! Runs the passes of a row of the table, and checks each rewrite if the options ask for it.

use super::rewrite_options::RewriteOptions;
use super::table::PassStep;
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::counterexample::{self, Counterexample};
use crate::pipeline::oracle::equivalence::Difference;
use crate::pipeline::oracle::operators::differentiation;
use crate::pipeline::oracle::tensors::inputs_to_compare;
use crate::pipeline::oracle::{RUN, small_sizes_of_all, with_sizes};
use crate::timings::{CommandPhase, during};
use kernels::device::Forms;
use sdfg::Sdfg;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Mutex;
use transforms::driver::Verify;
use transforms::recompute::Products;
use transforms::verify::keeps_promise;
use transforms::{
    Barred, DriverOptions, Pass, PipelineOutcome, Promise, Recompute, RecomputeFrom, ReluBitmask, RewriteCheck, RowStatistics, Stack,
    differentiate, passes,
};

/// Parameters of passes, besides the program.
#[derive(Clone, Copy, Default)]
pub struct Parameters<'a> {
    /// The weights whose contractions are stacked.
    pub weights: &'a [String],
    /// Rectifiers that get no bitmask; `None` if all may get one.
    pub without_bits: Option<&'a BTreeSet<String>>,
}

/// A recipe and its programs, which share the work of the passes that they begin with.
pub struct Rewriting<'a> {
    pub recipe: &'a Recipe,
    pub options: RewriteOptions,
    /// The fused kernels of the device's vendor library; `None` without such a library.
    pub library: Option<Forms>,
    /// The program after each sequence of passes that depends on the recipe alone.
    known: Mutex<HashMap<Vec<PassStep>, PipelineOutcome>>,
}

impl<'a> Rewriting<'a> {
    pub fn new(recipe: &'a Recipe, options: impl Into<RewriteOptions>, library: Option<Forms>) -> Self {
        Rewriting { recipe, options: options.into(), library, known: Mutex::default() }
    }

    /// The program after these passes, none of which fuses contractions.
    ///
    /// # Errors
    /// A recipe that cannot be differentiated, or a rewrite that was found wrong.
    pub fn after(&self, steps: &[PassStep], parameters: Parameters) -> Result<PipelineOutcome, PipelineError> {
        // A sequence is known up to the first pass that has parameters.
        let shared = steps.iter().position(|step| step.has_parameters()).unwrap_or(steps.len());
        let longest = (0..=shared).rev().find_map(|n| Some((n, self.known.lock().ok()?.get(&steps[..n])?.clone())));
        let (done, mut outcome) = longest.unwrap_or_else(|| (0, PipelineOutcome::new(self.recipe.program.clone())));
        for (n, step) in steps.iter().enumerate().skip(done) {
            if let Some(pass) = self.pass(&outcome.program, *step, parameters) {
                outcome = self.run(outcome, &[&*pass])?;
            }
            if *step == PassStep::Expand {
                // The refusals of a variant are about its kernels.
                outcome.refusals.clear();
            }
            if n < shared
                && let Ok(mut known) = self.known.lock()
            {
                known.insert(steps[..=n].to_vec(), outcome.clone());
            }
        }
        Ok(outcome)
    }

    /// The pass of a step; `None` where it has nothing to do in this recipe, and for steps that look at the program first: those that fuse
    /// contractions or carry out a plan.
    fn pass(&self, program: &Sdfg, step: PassStep, parameters: Parameters) -> Option<Box<dyn Pass>> {
        let weights = parameters.weights;
        Some(match step {
            PassStep::Differentiate => Box::new(differentiation(self.recipe)?),
            PassStep::FoldBatchNorm | PassStep::UnreadElements if differentiation(self.recipe).is_some() => return None,
            PassStep::RowStatisticsOfProducts => Box::new(RowStatistics { start: RecomputeFrom::Products }),
            PassStep::RowStatisticsInMemory => Box::new(RowStatistics { start: RecomputeFrom::Memory }),
            PassStep::RecomputeOnChip => Box::new(Recompute { products: Products::OnChip }),
            PassStep::ReluBitmask => Box::new(ReluBitmask { except: parameters.without_bits.cloned().unwrap_or_default() }),
            PassStep::StackGemms if weights.is_empty() => return None,
            PassStep::StackGemms => Box::new(Stack { weights: weights.to_vec() }),
            PassStep::Stitch => return None,
            step if step.fuses_gemms() => return None,
            // Nothing of the recipe decides how it runs.
            step => (passes::named(step.pass()?)?.make)(program, differentiate::Options::default()),
        })
    }

    /// Runs passes under the options: without barred patches, and with every rewrite checked if asked for.
    pub(super) fn run(&self, program: PipelineOutcome, passes: &[&dyn Pass]) -> Result<PipelineOutcome, PipelineError> {
        let folder = self.options.folder(&program.program.name);
        let phase = passes.first().map_or(CommandPhase::Rewrite, |pass| match pass.name() {
            "differentiate" => CommandPhase::Differentiate,
            "fusion" => CommandPhase::Fuse,
            "composition" | transforms::stitch::pass::NAME => CommandPhase::Compose,
            _ => CommandPhase::Rewrite,
        });
        during(phase, || applied(passes, program, folder.as_deref(), &self.options.barred))
    }

    /// The passes, followed by the one that a test has planted.
    pub(super) fn with_planted<'p>(&self, passes: &[&'p dyn Pass]) -> Vec<&'p dyn Pass> {
        passes.iter().copied().chain(self.options.planted.map(|planted| planted as &dyn Pass)).collect()
    }
}

/// Runs passes. With a folder, a program with small sizes is interpreted before and after every rewrite; a wrong rewrite is saved there.
///
/// # Errors
/// The rewrite that is wrong, how results differ, and where the smallest program that shows it is saved.
pub fn rewritten(program: &Sdfg, passes: &[&dyn Pass], folder: Option<&Path>) -> Result<PipelineOutcome, PipelineError> {
    applied(passes, PipelineOutcome::new(program.clone()), folder, &Barred::default())
}

fn applied(
    passes: &[&dyn Pass],
    program: PipelineOutcome,
    folder: Option<&Path>,
    barred: &Barred,
) -> Result<PipelineOutcome, PipelineError> {
    let verify = |check: &RewriteCheck| folder.map_or(Ok(()), |folder| verified(check, folder));
    let verify = folder.is_some().then_some(&verify as Verify);
    Ok(program.then(passes, &DriverOptions { verify, barred, ..DriverOptions::default() })?)
}

/// Whether a rewrite kept its promise. A counterexample is made small and saved.
fn verified(check: &RewriteCheck, folder: &Path) -> Result<(), String> {
    let found = match &check.promise {
        Promise::SameResults => counterexample::find(check.before, check.after),
        Promise::Gradients(_) => {
            let sizes = small_sizes_of_all(&[check.before, check.after]);
            let (before, after) = (with_sizes(check.before, &sizes), with_sizes(check.after, &sizes));
            let small = RewriteCheck { before: &before, after: &after, promise: check.promise.clone() };
            let draw = |program: &Sdfg, seed| inputs_to_compare(program, seed).map_err(|e| e.to_string());
            let wrong = keeps_promise(&small, &draw, &RUN).err().map(Difference::Value);
            wrong.map(|difference| Counterexample { before, after, difference })
        }
    };
    let Some(found) = found else { return Ok(()) };
    Err(match found.save(folder) {
        Ok([before, after]) => format!("{}; see {} and {}", found.difference, before.display(), after.display()),
        Err(why) => format!("{}; the smallest program could not be saved in {}: {why}", found.difference, folder.display()),
    })
}
