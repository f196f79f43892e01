//! From a recipe to its programs: one for each row of the table of variants, and for each way of stacking that the row names.

use super::fusion_plan::FusionPlan;
use super::gemm_fusion::GemmFusion;
use super::planning::Planning;
use super::rewrite_options::RewriteOptions;
use super::rewriting::{Parameters, Rewriting};
use super::stacking::stackings;
use super::table::{PassStep, Stacking, VARIANTS, VariantId, VariantKey, VariantRow};
use super::variant::Variant;
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::parallel::in_order;
use kernels::device::Forms;
use rayon::prelude::*;
use sdfg::Sdfg;
use std::sync::Arc;
use transforms::moved_bytes;
use transforms::recompute::Saved;

/// Everything that is derived from a recipe before measurements.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Forward and, if the recipe trains, backward: one operation per operator.
    pub operators: Sdfg,
    /// The same, one kernel per operator.
    pub unfused: Sdfg,
    /// The other variants, in the order of the table.
    pub variants: Vec<Variant>,
    /// The tensors that backward reads, each either saved or recomputed, in programs without fused contractions.
    pub saved: Vec<Saved>,
    /// Titles of the programs for which there was no time.
    pub unmade: Vec<String>,
    /// The options that they were made with.
    pub options: RewriteOptions,
}

/// All programs of a recipe for CPUs; their kernels are all generated.
///
/// # Errors
/// As [`programs_on`].
pub fn programs(recipe: &Recipe, options: impl Into<RewriteOptions>) -> Result<Programs, PipelineError> {
    programs_on(recipe, options, None)
}

/// All programs of a recipe: for a CPU, or for a GPU with the fused kernels of a vendor's library.
///
/// # Errors
/// A recipe that cannot be differentiated; a rewrite that was found wrong.
pub fn programs_on(recipe: &Recipe, options: impl Into<RewriteOptions>, library: Option<Forms>) -> Result<Programs, PipelineError> {
    let rewriting = Arc::new(Rewriting::new(recipe, options, library));
    let unfused = VariantId::Unfused.row().passes;
    let operators = rewriting.after(before_expansion(unfused), Parameters::default())?;
    let (operators, saved) = (operators.program, operators.facts.saved);
    let unfused = rewriting.after(unfused, Parameters::default())?.program;
    let stackings = stackings(&operators);
    let wanted = |row: &&VariantRow| rewriting.options.only.is_empty() || rewriting.options.only.contains(&row.id);
    let rows = VARIANTS.iter().filter(|row| row.is_made_of_recipe() && row.devices.are(library.is_some())).filter(wanted);
    // The variants of each row, one for each way of stacking; `None` for a variant that there was no time to make.
    let mut made: Vec<(&VariantRow, Vec<Option<Variant>>)> = Vec::new();
    // There are many ways of stacking, and few of these win: where time is short, some are not made.
    let (each, others): (Vec<&'static VariantRow>, Vec<&'static VariantRow>) = rows.partition(|row| row.stacking == Stacking::Each);
    let mut unmade: Vec<String> = Vec::new();
    // The first program is made whatever it takes.
    let mut others = others.into_iter();
    let of_row = |row: &'static VariantRow| Ok::<_, PipelineError>((row, variants(&rewriting, row, stackings.first())?));
    let mut made_of: Vec<(&VariantRow, MadeVariants)> = Vec::new();
    if let Some(row) = others.next() {
        made_of.push(of_row(row)?);
    }
    let of_others = others.collect::<Vec<_>>().into_par_iter().map(|row| match rewriting.options.has_time() {
        true => of_row(row),
        false => Ok((row, (vec![], Some(row.id.into())))),
    });
    made_of.extend(in_order(of_others)?);
    for (row, (found, left)) in made_of {
        made.push((row, found));
        unmade.extend(left.map(|key| key.to_string()));
    }
    for row in each {
        let of_each = stackings.par_iter().map(|weights| match rewriting.options.goes_on() {
            true => variant(&rewriting, row, weights),
            false => Ok(None),
        });
        made.push((row, in_order(of_each)?));
    }
    made.sort_by_key(|(row, _)| VARIANTS.iter().position(|other| other.id == row.id));
    let of_each = made.iter().filter(|(row, _)| row.stacking == Stacking::Each).flat_map(|(row, found)| {
        let missing = stackings.iter().zip(found).filter(|(_, variant)| variant.is_none());
        missing.map(|(weights, _)| VariantKey::stacked(row.id, weights).to_string())
    });
    unmade.extend(of_each);
    let all: Vec<Variant> = made.into_iter().flat_map(|(_, found)| found.into_iter().flatten()).collect();
    let kept: Vec<bool> = all.iter().map(|variant| saves_bytes(variant, &all)).collect();
    let variants = all.into_iter().zip(kept).filter_map(|(variant, kept)| kept.then_some(variant)).collect();
    Ok(Programs { operators, unfused, variants, saved, unmade, options: rewriting.options.clone() })
}

fn before_expansion(passes: &'static [PassStep]) -> &'static [PassStep] {
    let until = passes.iter().position(|step| *step == PassStep::Expand).unwrap_or(passes.len());
    &passes[..until]
}

/// Whether a variant moves fewer bytes than the one that its row names, with the same weights stacked; with none stacked the fused
/// program stands for the stacked one.
fn saves_bytes(variant: &Variant, all: &[Variant]) -> bool {
    let Some(id) = variant.key.id.row().fewer_bytes_than else { return true };
    let id = if id == VariantId::Stacked && variant.key.stacked.is_empty() { VariantId::Fused } else { id };
    let other = all.iter().find(|other| other.key.id == id && other.key.stacked == variant.key.stacked);
    // Without a program to compare it with, a gain by row statistics is unknown; a recomputed streamed program stands on its own.
    other.map_or(id == VariantId::Streamed, |other| moved_bytes(&variant.program) < moved_bytes(&other.program))
}

/// The programs of a row, and that for which there was no time.
type MadeVariants = (Vec<Option<Variant>>, Option<VariantKey>);

/// The programs of a row that is stacked not at all, by the longest stacking, or both; and that for which there was no time.
fn variants(rewriting: &Arc<Rewriting>, row: &'static VariantRow, longest: Option<&Vec<String>>) -> Result<MadeVariants, PipelineError> {
    let made = |weights: &[String]| variant(rewriting, row, weights);
    match (row.stacking, longest) {
        (Stacking::Longest, Some(longest)) => Ok((vec![made(longest)?], None)),
        (Stacking::LongestIfFewerBytes, Some(longest)) => {
            let in_time = rewriting.options.goes_on();
            let (plain, stacked) = rayon::join(|| made(&[]), || if in_time { made(longest) } else { Ok(None) });
            let Some(plain) = plain? else { return Ok((vec![], None)) };
            let bytes = moved_bytes(&plain.program);
            // Fused contractions already save most bytes that stacking would save.
            let stacked = stacked?.filter(|v| moved_bytes(&v.program) < bytes);
            Ok((vec![Some(plain), stacked], (!in_time).then(|| VariantKey::stacked(row.id, longest))))
        }
        _ => Ok((vec![made(&[])?], None)),
    }
}

/// The program of a row with these weights stacked; `None` where the pass that defines the row rewrites nothing.
fn variant(rewriting: &Arc<Rewriting>, row: &'static VariantRow, weights: &[String]) -> Result<Option<Variant>, PipelineError> {
    if row.passes.iter().any(|step| step.fuses_gemms()) {
        let fusion = GemmFusion::of(rewriting, row.id, weights)?;
        if row.passes.contains(&PassStep::ReluBitmask) {
            return fusion.with_bits();
        }
        let is_made = |variant: &Variant| row.defining.map_or(!variant.compositions.is_empty(), |step| step.rewrote(&variant.steps));
        return Ok(Some(fusion.fused(&|_| true)?).filter(is_made));
    }
    if row.passes.contains(&PassStep::Stitch) {
        return stitched(rewriting, row, &rewriting.options.planning);
    }
    let parameters = Parameters { weights, ..Parameters::default() };
    let operators = rewriting.after(before_expansion(row.passes), parameters)?;
    let outcome = rewriting.run(rewriting.after(row.passes, parameters)?, &rewriting.with_planted(&[]))?;
    let made = row.defining.is_none_or(|step| step.rewrote(&outcome.steps));
    Ok(made.then(|| Variant::of(VariantKey::stacked(row.id, weights), operators.program, outcome)))
}

/// The program that a plan of fusion makes; `None` where nothing is worth being stitched.
fn stitched(rewriting: &Rewriting, row: &'static VariantRow, planning: &Planning) -> Result<Option<Variant>, PipelineError> {
    let operators = rewriting.after(before_expansion(row.passes), Parameters::default())?;
    let until = row.passes.iter().position(|step| *step == PassStep::Stitch).unwrap_or(row.passes.len());
    let separate = rewriting.after(&row.passes[..until], Parameters::default())?;
    let Some(plan) = FusionPlan::of(&separate.program, planning)? else { return Ok(None) };
    let pass = plan.pass();
    let outcome = rewriting.run(separate, &rewriting.with_planted(&[&pass]))?;
    if !PassStep::Stitch.rewrote(&outcome.steps) {
        return Ok(None);
    }
    let plan = plan.carried_out(&outcome.facts.stitched);
    let variant = Variant::of(VariantKey::stacked(row.id, &[]), operators.program, outcome);
    Ok(Some(Variant { plan: Some(Arc::new(plan)), ..variant }))
}

/// The program of a plan of fusion that is made anew, with the times of patterns among its scores; `None` where nothing is worth being
/// stitched.
///
/// # Errors
/// As [`programs_on`].
pub fn stitched_by_times(recipe: &Recipe, planning: &Planning, options: &RewriteOptions) -> Result<Option<Variant>, PipelineError> {
    let made = stitched(&Rewriting::new(recipe, options, None), VariantId::Stitched.row(), planning)?;
    Ok(made.map(|variant| Variant { key: VariantId::StitchedByTimes.into(), ..variant }))
}

/// The program of a row without stacking.
///
/// # Errors
/// As [`programs_on`]; a row that gives no program of this recipe.
pub fn plain(recipe: &Recipe, id: VariantId, options: impl Into<RewriteOptions>) -> Result<Variant, PipelineError> {
    let rewriting = Arc::new(Rewriting::new(recipe, options, None));
    if id.row().passes.iter().any(|step| step.fuses_gemms()) {
        return GemmFusion::of(&rewriting, id, &[])?.fused(&|_| true);
    }
    let none = || PipelineError::Internal(format!("there is no program {} of this recipe", id.row().title));
    variant(&rewriting, id.row(), &[])?.ok_or_else(none)
}
