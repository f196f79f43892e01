//! From a recipe to programs: differentiated, unfused, fused, one program for each way of stacking contractions, and the
//! same with contractions that swallow their neighbours.

use super::partial_fusion::FusionSet;
use super::rewrite_options::RewriteOptions;
use super::stacking::stackings;
use super::table::{VariantId, VariantKey};
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::{counterexample, differentiated, operators};
use kernels::KernelSpec;
use kernels::device::Forms;
use rayon::prelude::*;
use sdfg::{Sdfg, Storage, Unit};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use transforms::algebraic::stacked;
use transforms::cast_bias::narrowed;
use transforms::recompute::{Products, RecomputeError, Saved, recompute_with};
use transforms::relu_bitmask::{SUFFIX, signs};
use transforms::{
    Accept, Barred, Cluster, Expand, Form, Fusion, Options, Outcome, Patch, Reason, Refusal, Sloped, Start, Step, Transform, Verdicts,
    Wanted, compose, dots, fixpoint, grouped, moved_bytes, row_statistics, slopes,
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
    pub steps: Vec<Step>,
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
    let (operators, saved) = operators(recipe)?;
    let unfused = fixpoint(&operators, &[&Expand], &Options::default())?.program;
    let mut variants = vec![fused(VariantId::Fused.into(), operators.clone(), saved.clone(), making)?];
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
        let program = stacked(&operators, weights)?;
        fused(VariantKey::stacked(VariantId::Stacked, weights), program, saved.clone(), making).map(Some)
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
    if epilogues.is_some()
        && let Some(program) = grouped(&variants[0].program).map_err(transforms::DriverError::from)?
    {
        variants.push(Variant { key: VariantId::GroupedGemm.into(), program, ..variants[0].clone() });
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
    let rows = row_statistics(&differentiated(recipe)?, Start::Memory)?;
    let base = stacking.map_or_else(|| VariantId::Fused.into(), |weights| VariantKey::stacked(VariantId::Stacked, weights));
    let Some(base) = variants.iter().find(|v| v.key == base).filter(|_| !rows.again.is_empty()) else { return Ok(None) };
    let (operators, saved) = recompute_with(&rows.program, Products::InMemory, rows.saved)?;
    let operators = if let Some(weights) = stacking { stacked(&operators, weights)? } else { operators };
    let key = VariantKey::stacked(VariantId::RowStatistics, stacking.map_or(&[], Vec::as_slice));
    let made = fused(key, operators, saved, making)?;
    Ok((moved_bytes(&made.program) < moved_bytes(&base.program)).then_some(made))
}

/// The program with a library's compositions in which gradients of rectifiers read bits. Libraries alone write and read bits: a
/// rectifier stays as it was where it or its gradient is in a kernel of its own.
fn with_signs(recipe: &Recipe, making: &RewriteOptions, forms: Forms) -> Result<Option<Variant>, PipelineError> {
    let composing = Composing::on(recipe, &[], making, FusionPolicy::Library(forms))?;
    let mut refused: BTreeSet<String> = BTreeSet::new();
    loop {
        let wanted = |rectifier: &str| !refused.contains(rectifier);
        let Some(operators) = signs(&composing.plain.apart.operators, &wanted).map_err(RecomputeError::from)? else { return Ok(None) };
        let program = made(&operators, &[&Expand], &composing.making)?.program;
        let saved = composing.plain.apart.saved.clone();
        let expanded = Expanded { operators, program, saved, verdicts: Verdicts::default() };
        let variant = Variant { key: VariantId::LibReluBits.into(), ..composing.under(&expanded, &|_| true)? };
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
    let making = making.into();
    let expanded = made(&operators, &[&Expand], &making)?;
    let outcome = made(&expanded.program, &planted(&Fusion::default(), &making), &making)?;
    let Outcome { program, steps, refusals, .. } = outcome;
    Ok(Variant { key, operators, program, steps, refusals, compositions: vec![], saved })
}

/// Fusion, and what a test has planted beside it.
fn planted<'a>(fusion: &'a Fusion, making: &RewriteOptions) -> Vec<&'a dyn Transform> {
    [fusion as &dyn Transform].into_iter().chain(making.planted.map(|planted| planted as &dyn Transform)).collect()
}

/// Transforms applied to a fixed point, as programs are to be made.
fn made(program: &Sdfg, transforms: &[&dyn Transform], making: &RewriteOptions) -> Result<Outcome, PipelineError> {
    let folder = making.folder(&program.name);
    applied(transforms, program, folder.as_deref(), &making.barred)
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
    /// With slopes, and the products that they follow from; `None` if there are none.
    sloped: Option<(Kept, Vec<String>)>,
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
    /// Backward computes rows again, by the operations named here; `None` if there are none.
    streamed: Option<(Expanded, Vec<String>)>,
}

/// A program under one policy of what backward saves.
struct Expanded {
    operators: Sdfg,
    program: Sdfg,
    saved: Vec<Saved>,
    /// Of the program's kernels that hold contractions.
    verdicts: Verdicts,
}

impl Composing {
    pub fn new(recipe: &Recipe, weights: &[String], making: impl Into<RewriteOptions>) -> Result<Self, PipelineError> {
        Composing::on(recipe, weights, making, FusionPolicy::Generated)
    }

    pub fn on(recipe: &Recipe, weights: &[String], making: impl Into<RewriteOptions>, policy: FusionPolicy) -> Result<Self, PipelineError> {
        let making = making.into();
        let differentiated = differentiated(recipe)?;
        let (key, library) = (VariantKey::stacked(policy.id(), weights), policy.library());
        // Rows that are made again would be another composition's.
        let (generated, swept) = (matches!(policy, FusionPolicy::Generated), policy.streamed());
        let expanded = |program: &Sdfg, saved: Vec<Saved>| -> Result<Expanded, PipelineError> {
            let products = if library { Products::OnChip } else { Products::InMemory };
            let (operators, saved) = recompute_with(program, products, saved)?;
            let operators = if library { narrowed(&operators).map_err(RecomputeError::from)? } else { operators };
            let summed = if swept { dots(&operators).map_err(RecomputeError::from)? } else { None };
            let operators = summed.unwrap_or(operators);
            let operators = if weights.is_empty() { operators } else { stacked(&operators, weights)? };
            let program = made(&operators, &[&Expand], &making)?.program;
            Ok(Expanded { operators, program, saved, verdicts: Verdicts::default() })
        };
        let again = matches!(policy, FusionPolicy::StreamedRecompute);
        // Sums of rows are taken from results before rows are made again.
        let summed = if again { dots(&differentiated).map_err(RecomputeError::from)? } else { None };
        let start = if again { Start::Products } else { Start::Contraction };
        let rows = row_statistics(summed.as_ref().unwrap_or(&differentiated), start)?;
        let streams = !rows.again.is_empty() && (generated || again);
        let plain = Kept {
            apart: expanded(&differentiated, vec![])?,
            streamed: if streams { Some((expanded(&rows.program, rows.saved.clone())?, rows.again.clone())) } else { None },
        };
        let Sloped { program, saved, products } = slopes(&differentiated)?;
        let sloped = if saved.is_empty() || !generated {
            None
        } else {
            let apart = expanded(&program, saved)?;
            let streamed = if streams {
                let Sloped { program, saved, .. } = slopes(&rows.program)?;
                Some((expanded(&program, rows.saved.into_iter().chain(saved).collect())?, rows.again))
            } else {
                None
            };
            Some((Kept { apart, streamed }, products))
        };
        Ok(Composing { key, policy, sloped, plain, making })
    }

    /// The program with what is accepted composed, and all else fused.
    pub fn composed(&self, accept: Accept) -> Result<Variant, PipelineError> {
        if let Some((sloped, products)) = &self.sloped {
            let found = self.of(sloped, accept)?;
            let stored = |data: &str| found.program.containers.get(data).is_some_and(|c| c.storage == Storage::Heap);
            if !products.iter().any(|product| stored(product)) {
                return Ok(found);
            }
        }
        self.of(&self.plain, accept)
    }

    fn of(&self, kept: &Kept, accept: Accept) -> Result<Variant, PipelineError> {
        if let Some((streamed, again)) = &kept.streamed {
            let found = self.under(streamed, accept)?;
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
        let folder = self.making.folder(&expanded.program.name);
        let verify = |before: &Sdfg, after: &Sdfg| verified(before, after, folder.as_deref());
        let verify = folder.is_some().then_some(&verify as transforms::driver::Verify);
        let options = Options { verify, barred: &self.making.barred, ..Options::default() };
        let forms = self.policy.forms();
        let form = |program: &Sdfg, patch: &Patch| forms.is_none_or(|forms| has_form(forms, program, patch));
        let chains = self.policy.streamed();
        let wanted = Wanted { accept, form: forms.is_some().then_some(&form as Form), chains, known: Some(&expanded.verdicts) };
        let composed = compose(&expanded.program, wanted, &options)?;
        // With nothing composed it is the separate program, kernel for kernel.
        let independent = if forms.is_some() || composed.kernels.is_empty() { u64::MAX } else { LAUNCH_BOUND_BYTES };
        let fusion = Fusion { apart: composed.kernels.iter().map(|c| c.name.clone()).collect(), independent };
        let fused = made(&composed.outcome.program, &planted(&fusion, &self.making), &self.making)?;
        // Why a contraction stays apart is said by composition.
        let others = fused.refusals.into_iter().filter(|r| !matches!(r.reason, Reason::Contraction { .. }));
        Ok(Variant {
            key: self.key.clone(),
            operators: expanded.operators.clone(),
            program: fused.program,
            steps: composed.outcome.steps.into_iter().chain(fused.steps).collect(),
            refusals: composed.outcome.refusals.into_iter().chain(others).collect(),
            compositions: composed.kernels,
            saved: expanded.saved.clone(),
        })
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

/// Transforms applied to a fixed point. With a folder, a shrunken program is interpreted before and after every patch; one
/// that goes wrong is saved there.
///
/// # Errors
/// The patch that went wrong, how results differ, and where the smallest program is that shows it.
pub fn rewritten(program: &Sdfg, transforms: &[&dyn Transform], folder: Option<&Path>) -> Result<Outcome, PipelineError> {
    applied(transforms, program, folder, &Barred::default())
}

fn applied(transforms: &[&dyn Transform], program: &Sdfg, folder: Option<&Path>, barred: &Barred) -> Result<Outcome, PipelineError> {
    let verify = |before: &Sdfg, after: &Sdfg| verified(before, after, folder);
    let verify = folder.is_some().then_some(&verify as transforms::driver::Verify);
    Ok(fixpoint(program, transforms, &Options { verify, barred, ..Options::default() })?)
}

/// Whether a patch left the results as they were. One that did not is saved, made small.
fn verified(before: &Sdfg, after: &Sdfg, folder: Option<&Path>) -> Result<(), String> {
    match (counterexample::find(before, after), folder) {
        (Some(found), Some(folder)) => Err(match found.save(folder) {
            Ok([before, after]) => format!("{}; see {} and {}", found.difference, before.display(), after.display()),
            Err(why) => format!("{}; the smallest program could not be saved in {}: {why}", found.difference, folder.display()),
        }),
        _ => Ok(()),
    }
}
