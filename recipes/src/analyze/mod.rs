//! The computation and data movement of a recipe's program, known without running it: operators, kernels, movement, refused fusions.
//!
//! The unfused view is the baseline of the paper's Table III: its operators, without recomputation, with dropout masks stored (one
//! element each, written forward and read backward). The fused view is our program without stacked contractions, with masks recomputed.
//! In the gemm-fused view contractions are fused with their neighbours, and rows that a softmax normalizes are recomputed from their
//! statistics. `recipes/table-iii.md` compares the baseline with the printed table line by line.

mod apart;
mod covers;
mod display;
pub mod memory;
pub mod schedule_template;
pub mod stitching;

pub use apart::{COMPOSITION, Holders, RefusedPair, refusals};
pub use covers::{Occurrence, OccurrenceIndex, PaperKernel, occurrences};
pub use display::{BASELINE, Shown, text};

use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::variants::programs::{self, Programs};
use crate::pipeline::variants::rewrite_options::RewriteOptions;
use crate::pipeline::variants::table::VariantId;
use crate::pipeline::variants::variant::Variant;
use crate::timings::{CommandPhase, during};
use sdfg::movement::{Baselines, Definition, Movement, MovementError, OperatorMovement, movement, operators};
use sdfg::{Class, Direction, Sdfg};
use serde::Serialize;
use std::collections::HashSet;
use transforms::recompute::Saved;

/// An operator of the unfused program. Masks count as stored.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperatorEntry {
    /// Its operations, joined by `+`; each has the name of its result.
    pub name: String,
    pub class: Class,
    pub flop: u64,
    pub input_elements: u64,
    pub output_elements: u64,
    pub flop_per_byte: f64,
    /// A readable name.
    #[serde(skip)]
    pub label: String,
    #[serde(skip)]
    pub pass: Direction,
    #[serde(skip)]
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClassTotal {
    pub flop: u64,
    #[serde(skip)]
    pub bytes: u64,
}

/// Sums over the operators of each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pub contraction: ClassTotal,
    pub normalization: ClassTotal,
    pub elementwise: ClassTotal,
}

/// Bytes of a whole step under one definition of the unfused program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DefinitionRow {
    pub definition: String,
    pub unfused_bytes: u64,
    pub fused_bytes: u64,
    /// `1 − fused / unfused`.
    pub reduction: f64,
    /// Bytes of the gemm-fused program. `None` where contractions are counted separately, because its contractions hold other operators.
    pub composed_bytes: Option<u64>,
    /// `1 − composed / unfused`.
    pub composed_reduction: Option<f64>,
}

/// A kernel of the fused or gemm-fused program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelRow {
    pub name: String,
    pub operators: Vec<String>,
    /// The fused kernels of the paper of which it holds all operations.
    pub covers: Vec<PaperKernel>,
    pub class: Class,
    pub flop: u64,
    pub input_elements: u64,
    pub output_elements: u64,
    pub flop_per_byte: f64,
    #[serde(skip)]
    pub pass: Direction,
    #[serde(skip)]
    pub bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    pub operators: Vec<OperatorEntry>,
    pub totals: Totals,
    pub movement: Vec<DefinitionRow>,
    pub kernels: Vec<KernelRow>,
    /// Pairs of kernels that stayed separate, each with the reason, without pairs that composition fused or gave a reason of its own for.
    pub refusals: Vec<RefusedPair>,
    /// Kernels of the gemm-fused program that hold a contraction with its neighbours.
    pub compositions: Vec<KernelRow>,
    /// Neighbours of contractions that stayed separate in the gemm-fused program, each with the reason.
    pub composition_refusals: Vec<RefusedPair>,
    /// The tensors that backward of the fused program reads, each saved or recomputed.
    #[serde(skip)]
    pub fused_saved: Vec<Saved>,
    /// The same in the gemm-fused program.
    #[serde(skip)]
    pub composed_saved: Vec<Saved>,
    #[serde(skip)]
    pub program: String,
    #[serde(skip)]
    pub about: String,
    /// Where kernels of the paper occur, covered or not.
    #[serde(skip)]
    pub occurrences: Vec<Occurrence>,
    /// The fused program.
    #[serde(skip)]
    pub fused: Sdfg,
    /// Numbers of kernels of the unfused program, which has one for each operator, and of the gemm-fused one.
    #[serde(skip)]
    pub unfused_kernels: usize,
    #[serde(skip)]
    pub composed_kernels: usize,
}

/// Analyses a recipe; its programs are made with these options.
pub fn analyze(recipe: &Recipe, options: impl Into<RewriteOptions>) -> Result<Analysis, PipelineError> {
    let options = &options.into();
    let made = |id| programs::plain(recipe, id, options);
    let (variant, composed) = during(CommandPhase::Rewrite, || rayon::join(|| made(VariantId::Fused), || made(VariantId::GemmFused)));
    analysis(recipe, variant?, composed?)
}

/// The same with the programs that were made of a recipe, as far as they are there. Where time did not reach for fusing contractions, there
/// are no compositions.
///
/// # Errors
/// As [`analyze`].
pub fn analyze_made(recipe: &Recipe, made: &Programs) -> Result<Analysis, PipelineError> {
    let known = |id| made.variants.iter().find(|variant| variant.key.is(id)).cloned();
    let plain = |id| programs::plain(recipe, id, &made.options);
    let variant = known(VariantId::Fused).map_or_else(|| plain(VariantId::Fused), Ok)?;
    let composed = match known(VariantId::GemmFused) {
        Some(composed) => composed,
        None if made.unmade.iter().any(|title| title == VariantId::GemmFused.row().title) => variant.clone(),
        None => plain(VariantId::GemmFused)?,
    };
    analysis(recipe, variant, composed)
}

fn analysis(recipe: &Recipe, variant: Variant, composed: Variant) -> Result<Analysis, PipelineError> {
    let unfused = crate::pipeline::oracle::operators::counted(recipe)?;
    let operators: Vec<OperatorEntry> = operators(&unfused).map_err(fault)?.into_iter().map(operator).collect();
    let occurrences = occurrences(&variant.operators);
    let places = OccurrenceIndex::of(&occurrences);
    let kernels = movement(&variant.program).map_err(fault)?.into_iter().map(|m| kernel(m, &places)).collect();
    let composed_kernels = movement(&composed.program).map_err(fault)?;
    let kernel_count = composed_kernels.len();
    let holders = Holders::of(&composed.program);
    let composed_names: HashSet<&str> = composed.compositions.iter().map(|cluster| cluster.name.as_str()).collect();
    let compositions = composed_kernels.into_iter().filter(|m| composed_names.contains(m.name.as_str()));
    let composition_refusals: Vec<RefusedPair> = refusals(&composed).into_iter().filter(|r| r.transform == COMPOSITION).collect();
    let refused_pairs: HashSet<(&str, &str)> = composition_refusals.iter().map(|r| (r.first.as_str(), r.second.as_str())).collect();
    // Pairs that composition fused, or refused with a reason of its own, are not repeated as refused fusions.
    let answered = |r: &RefusedPair| {
        let (Some(first), Some(second)) = (holders.of_name(&r.first), holders.of_name(&r.second)) else { return false };
        first == second || refused_pairs.contains(&(first, second)) || refused_pairs.contains(&(second, first))
    };
    let refusals: Vec<RefusedPair> = refusals(&variant).into_iter().filter(|r| !answered(r)).collect();
    let baselines = Baselines::of(&unfused).map_err(fault)?;
    let by_fusion = baselines.definitions(&variant.program).map_err(fault)?;
    let by_composition = baselines.definitions(&composed.program).map_err(fault)?;
    Ok(Analysis {
        totals: totals(&operators),
        movement: by_fusion.into_iter().zip(by_composition).flat_map(|(fused, composed)| movement_rows(fused, &composed)).collect(),
        refusals,
        compositions: compositions.map(|m| kernel(m, &places)).collect(),
        composition_refusals,
        fused_saved: variant.saved,
        composed_saved: composed.saved,
        operators,
        kernels,
        program: recipe.program.name.clone(),
        about: recipe.program.about.clone(),
        occurrences,
        fused: variant.program,
        unfused_kernels: movement(&unfused).map_err(fault)?.len(),
        composed_kernels: kernel_count,
    })
}

fn fault(error: MovementError) -> PipelineError {
    PipelineError::Internal(error.to_string())
}

fn ratio(flop: u64, bytes: u64) -> f64 {
    if bytes == 0 { 0.0 } else { flop as f64 / bytes as f64 }
}

fn operator(OperatorMovement { label, movement }: OperatorMovement) -> OperatorEntry {
    let masks: u64 = movement.masks.iter().map(|m| m.elements).sum();
    let (read, written) = if movement.pass == Direction::Forward { (0, masks) } else { (masks, 0) };
    let bytes = movement.bytes() + movement.mask_bytes();
    OperatorEntry {
        class: movement.class,
        flop: movement.flop,
        input_elements: movement.input_elements() + read,
        output_elements: movement.output_elements() + written,
        flop_per_byte: ratio(movement.flop, bytes),
        pass: movement.pass,
        name: movement.name,
        label,
        bytes,
    }
}

fn kernel(movement: Movement, places: &OccurrenceIndex) -> KernelRow {
    KernelRow {
        covers: places.covered(&movement.operators),
        class: movement.class,
        flop: movement.flop,
        input_elements: movement.input_elements(),
        output_elements: movement.output_elements(),
        flop_per_byte: movement.flop_per_byte(),
        pass: movement.pass,
        bytes: movement.bytes(),
        name: movement.name,
        operators: movement.operators,
    }
}

fn totals(operators: &[OperatorEntry]) -> Totals {
    let mut totals = Totals::default();
    for operator in operators {
        let total = match operator.class {
            Class::Contraction => &mut totals.contraction,
            Class::Normalization => &mut totals.normalization,
            Class::Elementwise => &mut totals.elementwise,
        };
        total.flop = total.flop.saturating_add(operator.flop);
        total.bytes = total.bytes.saturating_add(operator.bytes);
    }
    totals
}

/// A definition with contractions, and the same without them.
fn movement_rows(found: Definition, composed: &Definition) -> [DefinitionRow; 2] {
    [
        DefinitionRow {
            definition: format!("{}, contractions included", found.definition),
            unfused_bytes: found.unfused_bytes,
            fused_bytes: found.fused_bytes,
            reduction: found.reduction,
            composed_bytes: Some(composed.fused_bytes),
            composed_reduction: Some(composed.reduction),
        },
        DefinitionRow {
            definition: format!("{}, contractions apart", found.definition),
            unfused_bytes: found.unfused_bytes.saturating_sub(found.unfused_contraction_bytes),
            fused_bytes: found.fused_bytes.saturating_sub(found.fused_contraction_bytes),
            reduction: found.reduction_without_contractions,
            composed_bytes: None,
            composed_reduction: None,
        },
    ]
}
