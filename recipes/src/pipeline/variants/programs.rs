//! From a recipe to programs: differentiated, unfused, fused, one program for each way of stacking contractions, and the
//! same with contractions that swallow their neighbours.

use super::partial_fusion::FusionSet;
use super::rewrite_options::RewriteOptions;
use super::stacking::stackings;
use super::table::{VariantId, VariantKey};
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::counterexample::{self, Counterexample};
use crate::pipeline::oracle::equivalence::Difference;
use crate::pipeline::oracle::operators::differentiation;
use crate::pipeline::oracle::tensors::random_inputs;
use crate::pipeline::oracle::{RUN, with_small_sizes};
use kernels::KernelSpec;
use kernels::device::Forms;
use rayon::prelude::*;
use sdfg::{Sdfg, Storage, Unit};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use transforms::driver::Verify;
use transforms::recompute::{Products, Saved};
use transforms::relu_bitmask::SUFFIX;
use transforms::verify::keeps_promise;
use transforms::{
    Accept, Barred, CastBias, Check, Cluster, Composition, Expand, Facts, Form, Fusion, GroupedGemm, Options, Outcome, Pass, Patch,
    Promise, Reason, Recompute, Refusal, ReluBitmask, ReluSignFromOutput, RowStatistics, SaveLocalDerivative, SoftmaxGradRowDot, Stack,
    Start, Step, Verdicts, Wanted, moved_bytes, run_pipeline,
};

/// Bytes, 1 MiB: a kernel that moves fewer takes cores about as long as its launch does. In a program with fused contractions only
/// kernels below this are fused with kernels that they share no data with: longer ones keep loops, and so layouts, of their own.
const LAUNCH_BOUND_BYTES: u64 = 1 << 20;

/// One way of stacking contractions, fused or composed.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its row of the table, and the weights that are stacked in it.
    pub key: VariantKey,
    /// The operations before expansion.
    pub operators: Sdfg,
    pub program: Sdfg,
    /// What each rewrite did and saved, from the recipe on or from the operators that were given.
    pub steps: Vec<Step>,
    /// Why kernels stay apart.
    pub refusals: Vec<Refusal>,
    /// The kernels that hold contractions with their neighbours.
    pub compositions: Vec<Cluster>,
    /// What backward reads from memory and what it computes again.
    pub saved: Vec<Saved>,
}

/// Everything that is derived from a recipe before anything is measured.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Forward and, if the recipe trains, backward: one operation per operator.
    pub operators: Sdfg,
    /// The same, one kernel per operator.
    pub unfused: Sdfg,
    /// Fused; the first is without stacking or composition.
    pub variants: Vec<Variant>,
    /// What backward reads from memory and what it computes again, unless the variant composes.
    pub saved: Vec<Saved>,
    /// Names of those for which there was no time.
    pub unmade: Vec<String>,
    /// How they were made.
    pub making: RewriteOptions,
}

/// All programs of a recipe, for processors whose compositions are all generated.
pub fn programs(recipe: &Recipe, making: impl Into<RewriteOptions>) -> Result<Programs, PipelineError> {
    programs_on(recipe, making, None)
}

/// All programs of a recipe, for a device whose library has forms of some compositions: those that are made of these alone as well, and,
/// since such a device is large and its memory slow beside its units, the one whose weight gradients are launched together and the one
/// that normalizes rows again.
pub fn programs_on(recipe: &Recipe, making: impl Into<RewriteOptions>, epilogues: Option<Forms>) -> Result<Programs, PipelineError> {
    let making = &making.into();
    let base = run(differentiated_for(recipe, making)?, &[&ReluSignFromOutput, &Recompute::default()], making)?;
    let (operators, saved) = (base.program.clone(), base.facts.saved.clone());
    let unfused = run_pipeline(&operators, &[&Expand], &Options::default())?.program;
    let mut variants = vec![fuse(VariantId::Fused.into(), base.clone(), making)?];
    let stackings = stackings(&operators);
    let on_gpus = epilogues.map(|forms| [FusionPolicy::Library(forms), FusionPolicy::Streamed, FusionPolicy::StreamedRecompute]);
    let kinds: Vec<FusionPolicy> = [FusionPolicy::Generated].into_iter().chain(on_gpus.into_iter().flatten()).collect();
    let composed = kinds.into_par_iter().map(|policy| compositions(recipe, stackings.first(), making, policy));
    let composed = composed.collect::<Result<Vec<_>, PipelineError>>()?.into_iter().flatten();
    let composed: Vec<Variant> = composed.collect();
    // There are many, and fewer of them win: where time is short, they are what is not made.
    let with_stacks = stackings.par_iter().map(|weights| {
        if !making.goes_on() {
            return Ok(None);
        }
        let stacked = run(base.clone(), &[&Stack { weights: weights.clone() }], making)?;
        fuse(VariantKey::stacked(VariantId::Stacked, weights), stacked, making).map(Some)
    });
    let with_stacks = with_stacks.collect::<Result<Vec<_>, PipelineError>>()?;
    let unmade = stackings
        .iter()
        .zip(&with_stacks)
        .filter(|(_, made)| made.is_none())
        .map(|(weights, _)| VariantKey::stacked(VariantId::Stacked, weights).to_string())
        .collect();
    variants.extend(with_stacks.into_iter().flatten());
    variants.extend(composed);
    // Recomputing rows pays where fewer bytes move for it.
    let streamed = |v: &Variant| VariantKey { id: VariantId::Streamed, ..v.key.clone() };
    let bytes: BTreeMap<VariantKey, u64> = variants.iter().map(|v| (v.key.clone(), moved_bytes(&v.program))).collect();
    let fewer = |v: &Variant| bytes.get(&streamed(v)).is_none_or(|plain| moved_bytes(&v.program) < *plain);
    variants.retain(|v| v.key.id != VariantId::StreamedRecompute || fewer(v));
    if let Some(forms) = epilogues {
        variants.extend(with_signs(recipe, making, forms)?);
    }
    if epilogues.is_some() {
        variants.extend(with_statistics(recipe, stackings.first(), &variants, making)?);
    }
    if epilogues.is_some() {
        let grouped = run(Outcome::new(variants[0].program.clone()), &[&GroupedGemm], making)?;
        if !grouped.steps.is_empty() {
            let steps = variants[0].steps.iter().cloned().chain(grouped.steps).collect();
            variants.push(Variant { key: VariantId::GroupedGemm.into(), program: grouped.program, steps, ..variants[0].clone() });
        }
    }
    Ok(Programs { operators, unfused, variants, saved, unmade, making: making.clone() })
}

/// The composed program, and the one with the longest stacking if that moves fewer bytes: most of what stacking saves,
/// composition saves too.
fn compositions(
    recipe: &Recipe,
    stacking: Option<&Vec<String>>,
    making: &RewriteOptions,
    policy: FusionPolicy,
) -> Result<Vec<Variant>, PipelineError> {
    let composed = |weights: &[String]| Composing::on(recipe, weights, making, policy)?.composed(&|_| true);
    let (plain, stacked) = rayon::join(|| composed(&[]), || stacking.map(|weights| composed(weights)).transpose());
    let (plain, stacked) = (plain?, stacked?);
    if plain.compositions.is_empty() {
        return Ok(vec![]);
    }
    let bytes = moved_bytes(&plain.program);
    let stacked = stacked.filter(|v| moved_bytes(&v.program) < bytes);
    Ok([Some(plain), stacked].into_iter().flatten().collect())
}

/// The program of the longest stacking, or the separate one, in which backward makes normalized rows again from what was normalized and
/// their statistics, if that moves fewer bytes: a GPU's units are idle while its memory moves what they need.
fn with_statistics(
    recipe: &Recipe,
    stacking: Option<&Vec<String>>,
    variants: &[Variant],
    making: &RewriteOptions,
) -> Result<Option<Variant>, PipelineError> {
    let rows = run(differentiated_for(recipe, making)?, &[&RowStatistics { start: Start::Memory }], making)?;
    let base = stacking.map_or_else(|| VariantId::Fused.into(), |weights| VariantKey::stacked(VariantId::Stacked, weights));
    let recomputes = !rows.facts.recomputed.is_empty();
    let Some(base) = variants.iter().find(|v| v.key == base).filter(|_| recomputes) else { return Ok(None) };
    let (recompute, stack) = (Recompute::default(), stacking.map(|weights| Stack { weights: weights.clone() }));
    let passes = [&ReluSignFromOutput as &dyn Pass, &recompute].into_iter().chain(stack.iter().map(|stack| stack as &dyn Pass));
    let operators = run(rows, &passes.collect::<Vec<_>>(), making)?;
    let key = VariantKey::stacked(VariantId::RowStatistics, stacking.map_or(&[], Vec::as_slice));
    let made = fuse(key, operators, making)?;
    Ok((moved_bytes(&made.program) < moved_bytes(&base.program)).then_some(made))
}

/// The program with a library's compositions in which gradients of rectifiers read bits. Libraries alone write and read bits: a
/// rectifier stays as it was where it or its gradient is in a kernel of its own.
fn with_signs(recipe: &Recipe, making: &RewriteOptions, forms: Forms) -> Result<Option<Variant>, PipelineError> {
    let composing = Composing::on(recipe, &[], making, FusionPolicy::Library(forms))?;
    let mut refused: BTreeSet<String> = BTreeSet::new();
    loop {
        let plain = &composing.plain.apart.operators;
        let operators = run(plain.clone(), &[&ReluBitmask { except: refused.clone() }], making)?;
        if operators.steps.len() == plain.steps.len() {
            return Ok(None);
        }
        let variant = Variant { key: VariantId::LibReluBits.into(), ..composing.under(&Expanded::of(operators, making)?, &|_| true)? };
        let mut apart = BTreeSet::new();
        for (state, node, unit) in variant.program.units() {
            if !variant.compositions.iter().any(|c| c.name == unit.name()) {
                let (reads, writes) = variant.program.state(state).map(|s| s.boundary(node)).unwrap_or_default();
                apart.extend(reads.iter().chain(&writes).filter_map(|m| m.data.strip_suffix(SUFFIX)).map(String::from));
            }
        }
        if apart.is_empty() {
            return Ok(Some(variant));
        }
        refused.extend(apart);
    }
}

/// A program of operators, expanded and fused to a fixed point. A patch that is checked and found wrong is saved, made small,
/// under `target/memlet`.
pub fn fused(key: VariantKey, operators: Sdfg, saved: Vec<Saved>, making: impl Into<RewriteOptions>) -> Result<Variant, PipelineError> {
    let facts = Facts { saved, ..Facts::default() };
    fuse(key, Outcome { facts, ..Outcome::new(operators) }, &making.into())
}

/// A program of operators, expanded and fused.
fn fuse(key: VariantKey, operators: Outcome, making: &RewriteOptions) -> Result<Variant, PipelineError> {
    let expanded = Expanded::of(operators, making)?;
    let outcome = run(expanded.expanded.clone(), &with_planted(&[&Fusion::default()], making), making)?;
    Ok(expanded.variant(key, outcome))
}

/// Passes, and one that a test has planted behind them.
fn with_planted<'a>(passes: &[&'a dyn Pass], making: &RewriteOptions) -> Vec<&'a dyn Pass> {
    passes.iter().copied().chain(making.planted.map(|planted| planted as &dyn Pass)).collect()
}

/// The forward program of a recipe, differentiated if it trains, with the log of that.
fn differentiated_for(recipe: &Recipe, making: &RewriteOptions) -> Result<Outcome, PipelineError> {
    let forward = Outcome::new(recipe.program.clone());
    match differentiation(recipe) {
        Some(differentiate) => run(forward, &[&differentiate], making),
        None => Ok(forward),
    }
}

/// Runs passes as programs are to be made: without what is barred, and with every rewrite checked if that is asked for.
fn run(program: Outcome, passes: &[&dyn Pass], making: &RewriteOptions) -> Result<Outcome, PipelineError> {
    let folder = making.folder(&program.program.name);
    applied(passes, program, folder.as_deref(), &making.barred)
}

/// A recipe's program with these weights stacked, in which contractions swallow their neighbours where that is accepted.
pub fn composed(recipe: &Recipe, weights: &[String], accept: Accept, making: impl Into<RewriteOptions>) -> Result<Variant, PipelineError> {
    Composing::new(recipe, weights, making)?.composed(accept)
}

/// A recipe's program with some weights stacked, before anything is composed: for composing it again and again.
///
/// Forward saves the slopes of activations in the place of their arguments, unless a product that one of them follows from ends up in
/// memory: then none. Backward computes rows again from their statistics. Where a contraction that it would run again does not end up
/// inside a kernel, whether refused or not accepted, that would move more than it saves: the program saves those rows then.
///
/// With the chains alone whose tiles are walked in sweeps, backward reads whatever forward made, or makes rows again where a sweep needs
/// them, and the sums that gradients of softmaxes need of their rows come from results: else each row would be made once more.
///
/// With the compositions of a library alone, all of them around a single product, rows are always saved; what backward reads of a
/// product is what follows from it in the same kernel, and biases have the type of their sums.
pub struct Composing {
    key: VariantKey,
    policy: FusionPolicy,
    /// With slopes; `None` if there are none.
    sloped: Option<Kept>,
    plain: Kept,
    making: RewriteOptions,
}

/// Which kernels there are of those that hold contractions with their neighbours.
#[derive(Clone, Copy)]
pub enum FusionPolicy {
    /// All that templates generate.
    Generated,
    /// Those of a library.
    Library(Forms),
    /// Chains of two contractions whose tiles are walked in sweeps; batches of products alone that memory limits.
    Streamed,
    /// The same, in which backward makes what softmaxes handed it again, from their factors and statistics.
    StreamedRecompute,
}

impl FusionPolicy {
    fn id(self) -> VariantId {
        match self {
            FusionPolicy::Generated => VariantId::GemmFused,
            FusionPolicy::Library(_) => VariantId::LibEpilogue,
            FusionPolicy::Streamed => VariantId::Streamed,
            FusionPolicy::StreamedRecompute => VariantId::StreamedRecompute,
        }
    }

    fn forms(self) -> Option<Forms> {
        match self {
            FusionPolicy::Generated => None,
            FusionPolicy::Library(forms) => Some(forms),
            FusionPolicy::Streamed | FusionPolicy::StreamedRecompute => {
                Some(|spec| kernels::tiles::is_streamable(spec) || kernels::tiles::is_plain_gemm(spec))
            }
        }
    }

    fn streamed(self) -> bool {
        matches!(self, FusionPolicy::Streamed | FusionPolicy::StreamedRecompute)
    }

    fn library(self) -> bool {
        matches!(self, FusionPolicy::Library(_))
    }
}

/// The programs that differ in what backward does with rows.
struct Kept {
    /// Backward reads whatever forward made.
    apart: Expanded,
    /// Backward computes rows again; `None` if there are none.
    streamed: Option<Expanded>,
}

/// A program under one policy of what backward saves.
struct Expanded {
    operators: Outcome,
    /// The same with maps in the place of operators.
    expanded: Outcome,
    /// Of the program's kernels that hold contractions.
    verdicts: Verdicts,
}

impl Expanded {
    fn of(operators: Outcome, making: &RewriteOptions) -> Result<Self, PipelineError> {
        let mut expanded = run(operators.clone(), &[&Expand], making)?;
        // Refusals of a variant are about its kernels.
        expanded.refusals.clear();
        Ok(Expanded { operators, expanded, verdicts: Verdicts::default() })
    }

    /// A variant whose kernels were made of these maps.
    fn variant(&self, key: VariantKey, outcome: Outcome) -> Variant {
        let Outcome { program, steps, refusals, facts, .. } = outcome;
        let refusals = refusals.into_iter().filter(|r| !r.site.units.is_empty()).collect();
        let operators = self.operators.program.clone();
        Variant { key, operators, program, steps, refusals, compositions: facts.kernels, saved: facts.saved }
    }
}

impl Composing {
    pub fn new(recipe: &Recipe, weights: &[String], making: impl Into<RewriteOptions>) -> Result<Self, PipelineError> {
        Composing::on(recipe, weights, making, FusionPolicy::Generated)
    }

    pub fn on(recipe: &Recipe, weights: &[String], making: impl Into<RewriteOptions>, policy: FusionPolicy) -> Result<Self, PipelineError> {
        let making = making.into();
        let differentiated = differentiated_for(recipe, &making)?;
        let (key, library) = (VariantKey::stacked(policy.id(), weights), policy.library());
        // Rows that are made again would be another composition's.
        let (generated, streamed) = (matches!(policy, FusionPolicy::Generated), policy.streamed());
        let recompute = Recompute { products: if library { Products::OnChip } else { Products::InMemory } };
        let stack = Stack { weights: weights.to_vec() };
        let mut passes: Vec<&dyn Pass> = vec![&ReluSignFromOutput, &recompute];
        passes.extend(library.then_some(&CastBias as &dyn Pass));
        passes.extend(streamed.then_some(&SoftmaxGradRowDot as &dyn Pass));
        passes.extend((!weights.is_empty()).then_some(&stack as &dyn Pass));
        let expanded = |program: Outcome| Expanded::of(run(program, &passes, &making)?, &making);
        let again = matches!(policy, FusionPolicy::StreamedRecompute);
        let start = if again { Start::Products } else { Start::Contraction };
        // Sums of rows are taken from results before rows are made again.
        let statistics = RowStatistics { start };
        let on_rows: &[&dyn Pass] = match (generated, again) {
            (_, true) => &[&SoftmaxGradRowDot, &statistics],
            (true, false) => &[&statistics],
            (false, false) => &[],
        };
        let rows = Some(run(differentiated.clone(), on_rows, &making)?).filter(|rows| !rows.facts.recomputed.is_empty());
        let plain = Kept { apart: expanded(differentiated.clone())?, streamed: rows.clone().map(expanded).transpose()? };
        let slopes = |program: Outcome| run(program, &[&SaveLocalDerivative], &making);
        let sloped = if generated { Some(slopes(differentiated)?).filter(|s| !s.facts.products.is_empty()) } else { None };
        let sloped = match sloped {
            Some(sloped) => Some(Kept { apart: expanded(sloped)?, streamed: rows.map(slopes).transpose()?.map(expanded).transpose()? }),
            None => None,
        };
        Ok(Composing { key, policy, sloped, plain, making })
    }

    /// The program with what is accepted composed, and all else fused.
    pub fn composed(&self, accept: Accept) -> Result<Variant, PipelineError> {
        if let Some(sloped) = &self.sloped {
            let found = self.of(sloped, accept)?;
            let stored = |data: &str| found.program.containers.get(data).is_some_and(|c| c.storage == Storage::Heap);
            if !sloped.apart.operators.facts.products.iter().any(|product| stored(product)) {
                return Ok(found);
            }
        }
        self.of(&self.plain, accept)
    }

    fn of(&self, kept: &Kept, accept: Accept) -> Result<Variant, PipelineError> {
        if let Some(streamed) = &kept.streamed {
            let found = self.under(streamed, accept)?;
            let again = &streamed.operators.facts.recomputed;
            let alone = |(_, _, unit): &(_, _, Unit)| matches!(unit, Unit::Operation(o) if again.contains(&o.name));
            if !found.program.units().iter().any(alone) {
                return Ok(found);
            }
        }
        self.under(&kept.apart, accept)
    }

    /// The program with what a mixture accepts composed.
    pub fn mixed(&self, mixture: &FusionSet) -> Result<Variant, PipelineError> {
        Ok(Variant { key: mixture.key(), ..self.composed(&|cluster| mixture.accepts(cluster))? })
    }

    fn under(&self, expanded: &Expanded, accept: Accept) -> Result<Variant, PipelineError> {
        let forms = self.policy.forms();
        let form = |program: &Sdfg, patch: &Patch| forms.is_none_or(|forms| has_form(forms, program, patch));
        let chains = self.policy.streamed();
        let wanted = Wanted { accept, form: forms.is_some().then_some(&form as Form), chains, known: Some(&expanded.verdicts) };
        let fusion = Fusion { beside_composed: if forms.is_some() { u64::MAX } else { LAUNCH_BOUND_BYTES }, ..Fusion::default() };
        let passes = [&Composition { wanted } as &dyn Pass, &fusion];
        let mut outcome = run(expanded.expanded.clone(), &with_planted(&passes, &self.making), &self.making)?;
        // Why a contraction stays apart is said by composition.
        outcome.refusals.retain(|r| r.transform != fusion.name() || !matches!(r.reason, Reason::Contraction { .. }));
        Ok(expanded.variant(self.key.clone(), outcome))
    }
}

/// Whether the kernel that a patch would make has a form.
fn has_form(forms: Forms, program: &Sdfg, patch: &Patch) -> bool {
    let mut around = Sdfg::new(&program.name);
    (around.sizes, around.dims, around.containers) = (program.sizes.clone(), program.dims.clone(), program.containers.clone());
    around.dims.extend(patch.dims.iter().cloned());
    around.containers.extend(patch.containers.iter().map(|c| (c.name.clone(), c.clone())));
    let mut units = patch.edits.iter().flat_map(|edit| &edit.insert);
    units.all(|unit| KernelSpec::new(&around, unit).is_ok_and(|spec| forms(&spec)))
}

/// Runs passes. With a folder, a program with small sizes is interpreted before and after every rewrite; one that goes wrong is saved
/// there.
///
/// # Errors
/// The rewrite that went wrong, how results differ, and where the smallest program is that shows it.
pub fn rewritten(program: &Sdfg, passes: &[&dyn Pass], folder: Option<&Path>) -> Result<Outcome, PipelineError> {
    applied(passes, Outcome::new(program.clone()), folder, &Barred::default())
}

fn applied(passes: &[&dyn Pass], program: Outcome, folder: Option<&Path>, barred: &Barred) -> Result<Outcome, PipelineError> {
    let verify = |check: &Check| folder.map_or(Ok(()), |folder| verified(check, folder));
    let verify = folder.is_some().then_some(&verify as Verify);
    Ok(program.then(passes, &Options { verify, barred, ..Options::default() })?)
}

/// Whether a rewrite kept its promise. One that did not is saved, made small.
fn verified(check: &Check, folder: &Path) -> Result<(), String> {
    let found = match &check.promise {
        Promise::SameResults => counterexample::find(check.before, check.after),
        Promise::Gradients(_) => {
            let (before, after) = (with_small_sizes(check.before), with_small_sizes(check.after));
            let small = Check { before: &before, after: &after, promise: check.promise.clone() };
            let draw = |program: &Sdfg, seed| random_inputs(program, seed).map_err(|e| e.to_string());
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
