//! A variant of a recipe: its program, and how it came about.

use super::fusion_plan::FusionPlan;
use super::table::VariantKey;
use sdfg::Sdfg;
use std::sync::Arc;
use transforms::recompute::Saved;
use transforms::{Cluster, PipelineOutcome, Refusal};

/// One program of a recipe.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Its row of the table, and the weights that are stacked.
    pub key: VariantKey,
    /// The operations before expansion.
    pub operators: Sdfg,
    pub program: Sdfg,
    /// The effect and the savings of each rewrite, beginning with the recipe or the given operators.
    pub steps: Vec<transforms::AppliedRewrite>,
    /// Why neighbouring kernels stay separate.
    pub refusals: Vec<Refusal>,
    /// The kernels that hold contractions with their neighbours.
    pub compositions: Vec<Cluster>,
    /// The tensors that backward reads, each either saved or recomputed.
    pub saved: Vec<Saved>,
    /// The plan of fusion that it carries out, if it is stitched.
    pub plan: Option<Arc<FusionPlan>>,
}

impl Variant {
    /// A program that passes have made of operators.
    pub(super) fn of(key: VariantKey, operators: Sdfg, outcome: PipelineOutcome) -> Self {
        let PipelineOutcome { program, steps, refusals, facts, .. } = outcome;
        let refusals = refusals.into_iter().filter(|r| !r.site.units.is_empty()).collect();
        Variant { key, operators, program, steps, refusals, compositions: facts.kernels, saved: facts.saved, plan: None }
    }
}
