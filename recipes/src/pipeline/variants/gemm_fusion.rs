//! Programs whose contractions are fused with their neighbours, by the passes of a row of the table. An optional pass that does not pay
//! in the resulting program is left out.

use super::partial_fusion::FusionSet;
use super::rewrite_options::RewriteOptions;
use super::rewriting::{Parameters, Rewriting};
use super::table::{PassStep, VariantId, VariantKey, VariantRow};
use super::variant::Variant;
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use kernels::KernelSpec;
use kernels::device::Forms;
use sdfg::{Sdfg, Storage, Unit};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use transforms::relu_bitmask::SUFFIX;
use transforms::{Accept, Composition, CrossLayerReuse, Fusion, HasForm, Pass, Patch, PipelineOutcome, Reason, Verdicts, WantedKernels};

/// Bytes, 1 MiB: a kernel that moves fewer takes cores about as long as its launch does. In a program with fused contractions only
/// kernels below this are fused with kernels that they share no data with: longer ones keep loops, and so layouts, of their own.
const LAUNCH_BOUND_BYTES: u64 = 1 << 20;

/// Fuses contractions of a recipe's program with their neighbours; it may be asked several times, with other fusions accepted.
///
/// Backward recomputes rows from their statistics, unless a contraction would then run a second time in a kernel of its own: that moves
/// more than it saves. Forward saves local derivatives of activations in place of their arguments, unless a product behind such an
/// argument is stored anyway.
pub struct GemmFusion<'a> {
    rewriting: Arc<Rewriting<'a>>,
    row: &'static VariantRow,
    weights: Vec<String>,
    /// The optional passes that rewrite something; the last is given up first.
    optional: Vec<PassStep>,
    /// The program before contractions are fused, by the optional passes that it was made with.
    expanded: HashMap<Vec<PassStep>, ExpandedProgram>,
}

/// A program of maps and contractions, with the operators it was expanded from.
struct ExpandedProgram {
    operators: PipelineOutcome,
    expanded: PipelineOutcome,
    /// Verdicts on its fusions: most of them still hold when other fusions are accepted.
    verdicts: Verdicts,
}

impl<'a> GemmFusion<'a> {
    /// For rows whose fused kernels are all generated, on any device.
    ///
    /// # Errors
    /// A recipe that cannot be differentiated; a rewrite that was found wrong.
    pub fn generated(recipe: &'a Recipe, weights: &[String], options: impl Into<RewriteOptions>) -> Result<Self, PipelineError> {
        GemmFusion::of(&Arc::new(Rewriting::new(recipe, options, None)), VariantId::GemmFused, weights)
    }

    /// The fusion for a row of the table.
    /// For a row of the table.
    /// # Errors
    /// As [`GemmFusion::generated`].
    pub fn of(rewriting: &Arc<Rewriting<'a>>, id: VariantId, weights: &[String]) -> Result<Self, PipelineError> {
        let row = id.row();
        let mut found =
            GemmFusion { rewriting: Arc::clone(rewriting), row, weights: weights.to_vec(), optional: vec![], expanded: HashMap::new() };
        let optional: Vec<PassStep> = row.passes.iter().rev().copied().filter(|step| step.is_optional()).collect();
        for step in optional {
            let steps = found.before_expansion(&[step]);
            let until = steps.iter().position(|s| *s == step).map_or(0, |at| at + 1);
            let facts = found.rewriting.after(&steps[..until], found.parameters())?.facts;
            // A pass that rewrote nothing makes no other program.
            if !(if step == PassStep::SaveLocalDerivative { facts.products } else { facts.recomputed }).is_empty() {
                found.optional.push(step);
            }
        }
        for with in subsets(&found.optional) {
            let steps = found.before_expansion(&with);
            let operators = found.rewriting.after(&steps, found.parameters())?;
            let program = found.expanded(operators)?;
            found.expanded.insert(with, program);
        }
        Ok(found)
    }

    fn parameters(&self) -> Parameters<'_> {
        Parameters { weights: &self.weights, without_bits: None }
    }

    /// The passes before expansion, with `with` as the only optional ones. Bitmasks are left out: their places are known after fusion.
    fn before_expansion(&self, with: &[PassStep]) -> Vec<PassStep> {
        let passes = self.row.passes.iter().copied().take_while(|step| *step != PassStep::Expand);
        passes.filter(|step| *step != PassStep::ReluBitmask && (!step.is_optional() || with.contains(step))).collect()
    }

    fn expanded(&self, operators: PipelineOutcome) -> Result<ExpandedProgram, PipelineError> {
        let mut expanded = self.rewriting.run(operators.clone(), &[&transforms::Expand])?;
        // The refusals of a variant are about its kernels.
        expanded.refusals.clear();
        Ok(ExpandedProgram { operators, expanded, verdicts: Verdicts::default() })
    }

    /// The program with accepted fusions of contractions, and with all other kernels fused by `Fusion`.
    ///
    /// # Errors
    /// A rewrite that was found wrong.
    pub fn fused(&self, accept: Accept) -> Result<Variant, PipelineError> {
        self.settled(&self.optional, &mut vec![], accept)
    }

    /// The program that a set of fusions accepts.
    ///
    /// # Errors
    /// As [`GemmFusion::fused`].
    pub fn partly(&self, set: &FusionSet) -> Result<Variant, PipelineError> {
        Ok(Variant { key: set.key(), ..self.fused(&|cluster| set.accepts(cluster))? })
    }

    /// The program with the optional passes of `open` that pay, on top of those in `with`.
    fn settled(&self, open: &[PassStep], with: &mut Vec<PassStep>, accept: Accept) -> Result<Variant, PipelineError> {
        let Some((step, open)) = open.split_first() else {
            let program = self.expanded.get(with).ok_or_else(|| PipelineError::Internal("a program was not expanded".into()))?;
            return self.under(program, accept);
        };
        with.push(*step);
        let found = self.settled(open, with, accept)?;
        let facts = &self.expanded.get(with).ok_or_else(|| PipelineError::Internal("a program was not expanded".into()))?.operators.facts;
        with.pop();
        let pays = match step {
            PassStep::SaveLocalDerivative => {
                let stored = |data: &String| found.program.containers.get(data).is_some_and(|c| c.storage == Storage::Heap);
                !facts.products.iter().any(stored)
            }
            _ => {
                let alone = |(_, _, unit): &(_, _, Unit)| matches!(unit, Unit::Operation(o) if facts.recomputed.contains(&o.name));
                !found.program.units().iter().any(alone)
            }
        };
        if pays { Ok(found) } else { self.settled(open, with, accept) }
    }

    /// The program in which gradients of rectifiers read bits. Only a library's kernels read and write bits, so a rectifier stays as it
    /// was if it or its gradient is in another kernel. `None` where no rectifier gets bits.
    ///
    /// # Errors
    /// As [`GemmFusion::fused`].
    pub fn with_bits(&self) -> Result<Option<Variant>, PipelineError> {
        let mut without_bits: BTreeSet<String> = BTreeSet::new();
        let steps = self.before_expansion(&[]).into_iter().chain([PassStep::ReluBitmask]).collect::<Vec<_>>();
        loop {
            let operators = self.rewriting.after(&steps, Parameters { without_bits: Some(&without_bits), ..self.parameters() })?;
            if !PassStep::ReluBitmask.rewrote(&operators.steps) {
                return Ok(None);
            }
            let variant = self.under(&self.expanded(operators)?, &|_| true)?;
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
            without_bits.extend(apart);
        }
    }

    /// The fused kernels that the row's pass may make; `None` if all generated kernels are allowed.
    fn forms(&self) -> Option<Forms> {
        if self.row.passes.contains(&PassStep::FuseGemmsLibrary) {
            return Some(self.rewriting.library.unwrap_or(|_| false));
        }
        let streamed = self.row.passes.contains(&PassStep::FuseGemmsStreamed);
        streamed.then_some(|spec: &KernelSpec| {
            kernels::target::cuda::streaming::is_streamable(spec) || kernels::target::cuda::tiles::is_plain_gemm(spec)
        })
    }

    fn under(&self, program: &ExpandedProgram, accept: Accept) -> Result<Variant, PipelineError> {
        let forms = self.forms();
        let form = |around: &Sdfg, patch: &Patch| forms.is_none_or(|forms| has_form(forms, around, patch));
        let chains = self.row.passes.contains(&PassStep::FuseGemmsStreamed);
        let wanted = WantedKernels { accept, form: forms.is_some().then_some(&form as HasForm), chains, known: Some(&program.verdicts) };
        let fusion = Fusion { beside_composed: if forms.is_some() { u64::MAX } else { LAUNCH_BOUND_BYTES }, ..Fusion::default() };
        let layers = CrossLayerReuse::default();
        let first = self.row.passes.contains(&PassStep::ReuseAcrossLayers).then_some(&layers as &dyn Pass);
        let composition = Composition { wanted };
        let passes: Vec<&dyn Pass> = first.into_iter().chain([&composition as &dyn Pass, &fusion]).collect();
        let mut outcome = self.rewriting.run(program.expanded.clone(), &self.rewriting.with_planted(&passes))?;
        // The composition pass reports why a contraction stays separate.
        outcome.refusals.retain(|r| r.transform != fusion.name() || !matches!(r.reason, Reason::Contraction { .. }));
        let key = VariantKey::stacked(self.row.id, &self.weights);
        Ok(Variant::of(key, program.operators.program.clone(), outcome))
    }
}

/// All subsets of optional passes, each in their order.
fn subsets(steps: &[PassStep]) -> Vec<Vec<PassStep>> {
    let Some((first, rest)) = steps.split_first() else { return vec![vec![]] };
    let without = subsets(rest);
    let with = without.iter().map(|rest| [&[*first], rest.as_slice()].concat()).collect::<Vec<_>>();
    with.into_iter().chain(without).collect()
}

/// Whether a library has the kernel that a patch would make.
fn has_form(forms: Forms, program: &Sdfg, patch: &Patch) -> bool {
    let mut around = Sdfg::new(&program.name);
    (around.sizes, around.dims, around.containers) = (program.sizes.clone(), program.dims.clone(), program.containers.clone());
    around.dims.extend(patch.dims.iter().cloned());
    around.containers.extend(patch.containers.iter().map(|c| (c.name.clone(), c.clone())));
    let mut units = patch.edits.iter().flat_map(|edit| &edit.insert);
    units.all(|unit| KernelSpec::new(&around, unit).is_ok_and(|spec| forms(&spec)))
}
