//! Searches partially fused programs. Fusions of contractions are undone one by one, which gives times to the kernels that would replace
//! the fused ones. Then the program with the fusions that seem to pay is measured. The final selection among all kernels at once follows
//! later ([`merge_variants()`](crate::pipeline::variants::merge_variants())).

use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::measure::{MemoryLimit, SweepContext, SweepEvent, SweepExtent, SweptKernel, SweptProgram, sweep_program};
use crate::pipeline::variants::{
    FusionChange, FusionSet, GemmFusion, PartialFusionLog, Programs, RewriteOptions, Trial, Variant, VariantKey, bar, best, mix, stackings,
    wrong,
};
use kernels::alpha_equivalence::KernelClass;
use kernels::{KernelSpec, KernelSpecs};
use layouts::measure::space::KernelSpace;
use layouts::{Finish, Store};
use rayon::prelude::*;
use sdfg::Sdfg;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use transforms::Reason;

/// Rounds of undoing: the second tries changes of the program that the first one found.
const ROUNDS: usize = 2;

/// Making more programs than this takes long enough to be reported.
const MANY: usize = 20;

/// More changes than this are more than one layer has: equivalent kernels are then changed together.
const LAYERS: usize = 64;

/// The result of the search.
#[derive(Default)]
pub struct PartialFusion {
    pub partial_fusion: PartialFusionLog,
    pub program: Option<(Variant, SweptProgram)>,
    /// Programs with one fusion undone; their new kernels were swept.
    pub trials: Vec<(Variant, SweptProgram)>,
    /// Programs that were left out, and why.
    pub left_out: Vec<String>,
    /// Options for later programs, if patches were found that change results.
    pub options: Option<RewriteOptions>,
}

/// The program of a fusion set, with the data that comparisons need.
pub fn trial(composing: &GemmFusion, fusion_set: &FusionSet) -> Result<(Variant, Trial), PipelineError> {
    let variant = composing.partly(fusion_set)?;
    let mut kernels = Vec::new();
    let specs = KernelSpecs::of(&variant.program);
    for (_, _, unit) in variant.program.units() {
        kernels.push((unit.name().to_string(), specs.spec(&unit)?.key()));
    }
    let compositions = variant.compositions.clone();
    Ok((variant, Trial { fusion_set: fusion_set.clone(), kernels, compositions }))
}

/// The programs of a recipe by fusion set.
struct Builder<'a> {
    recipe: &'a Recipe,
    operators: &'a Sdfg,
    options: RewriteOptions,
    /// Messages about patches and programs that were left out, since they compute other results than the recipe.
    wrong: Vec<String>,
    /// By stacked weights.
    composing: BTreeMap<Vec<String>, GemmFusion<'a>>,
    built: BTreeMap<FusionSet, (Variant, Trial)>,
}

impl<'a> Builder<'a> {
    fn new(recipe: &'a Recipe, programs: &'a Programs) -> Self {
        let (operators, options) = (&programs.operators, programs.options.clone());
        Builder { recipe, operators, options, wrong: vec![], composing: BTreeMap::new(), built: BTreeMap::new() }
    }

    /// Builds the missing programs of some fusion sets, on all cores.
    ///
    /// # Errors
    /// [`PipelineError::Mismatch`] if a program stays wrong although faulty patches are left out.
    fn build(&mut self, fusion_sets: &[FusionSet]) -> Result<(), PipelineError> {
        let new: BTreeSet<&FusionSet> = fusion_sets.iter().filter(|m| !self.built.contains_key(m)).collect();
        for fusion_set in &new {
            if !self.composing.contains_key(&fusion_set.weights) {
                let composing = GemmFusion::generated(self.recipe, &fusion_set.weights, &self.options)?;
                self.composing.insert(fusion_set.weights.clone(), composing);
            }
        }
        let one = |fusion_set: &&FusionSet| Ok(((*fusion_set).clone(), trial(&self.composing[&fusion_set.weights], fusion_set)?));
        let built: Vec<Result<_, PipelineError>> = new.into_par_iter().map(|fusion_set| one(&fusion_set)).collect();
        let built = built.into_iter().collect::<Result<Vec<(FusionSet, (Variant, Trial))>, _>>()?;
        let variants: Vec<Variant> = built.iter().map(|(_, (variant, _))| variant.clone()).collect();
        for ((fusion_set, made), wrong) in built.into_iter().zip(wrong(self.operators, &variants)) {
            let made = if wrong.is_some() { self.again(&fusion_set)? } else { made };
            self.built.insert(fusion_set, made);
        }
        Ok(())
    }

    /// Remakes a program that was found wrong, without the faulty patch. Later programs do without the patch, too.
    fn again(&mut self, fusion_set: &FusionSet) -> Result<(Variant, Trial), PipelineError> {
        self.options.verify_each = true;
        self.composing.clear();
        loop {
            match GemmFusion::generated(self.recipe, &fusion_set.weights, &self.options).and_then(|composing| trial(&composing, fusion_set))
            {
                Err(error) => bar(&mut self.options, error, &mut |told| self.wrong.push(told.to_string()))?,
                Ok((variant, made)) => {
                    return match wrong(self.operators, std::slice::from_ref(&variant)).into_iter().flatten().next() {
                        Some(why) => {
                            Err(PipelineError::Mismatch(format!("{} computes something else than the recipe: {why}", variant.key)))
                        }
                        None => Ok((variant, made)),
                    };
                }
            }
        }
    }

    fn variant(&mut self, fusion_set: &FusionSet) -> Result<&(Variant, Trial), PipelineError> {
        self.build(std::slice::from_ref(fusion_set))?;
        Ok(&self.built[fusion_set])
    }

    /// Merges changes of kernels that differ only in names.
    fn together(&mut self, from: &Trial, changes: Vec<FusionChange>) -> Result<Vec<FusionChange>, PipelineError> {
        let program = &self.variant(&from.fusion_set)?.0.program;
        let subjects: BTreeSet<&str> = changes.iter().map(|change| change.subject.as_str()).collect();
        let mut families = BTreeMap::new();
        for (_, _, unit) in program.units().iter().filter(|(_, _, unit)| subjects.contains(unit.name())) {
            let family = KernelClass::of(&KernelSpec::new(program, unit)?);
            families.extend(family.map(|family| (unit.name().to_string(), family.fingerprint(""))));
        }
        Ok(FusionChange::together(changes, &|name| families.get(name).cloned()))
    }

    fn made(&mut self, fusion_set: &FusionSet) -> Result<Trial, PipelineError> {
        Ok(self.variant(fusion_set)?.1.clone())
    }
}

/// Content hashes of the kernels of programs.
fn keys<'a>(swept: impl IntoIterator<Item = &'a SweptProgram>) -> BTreeSet<String> {
    swept.into_iter().flat_map(|s| &s.kernels).map(|k: &SweptKernel| k.key().to_string()).collect()
}

/// Judges every fusion of contractions in a recipe whose programs were swept, and sweeps the program with those that pay.
///
/// Half of the budget goes to trials, which are programs with one fusion undone and with new kernels; the slowest fused kernels come
/// first. The other half goes to the partially fused program. The decision stands as long as nothing new is measured.
pub fn search_partial_fusion(
    recipe: &Recipe,
    programs: &Programs,
    swept: &[SweptProgram],
    budget: Option<Duration>,
    with: &mut SweepContext,
) -> Result<PartialFusion, PipelineError> {
    if programs.variants.iter().all(|v| v.compositions.is_empty()) {
        return Ok(PartialFusion::default());
    }
    let (mut builder, mut found) = (Builder::new(recipe, programs), PartialFusion::default());
    let mixed = weigh(&mut builder, programs, swept, budget, with, &mut found);
    if !builder.wrong.is_empty() {
        found.left_out.append(&mut builder.wrong);
        found.options = Some(RewriteOptions { verify_each: programs.options.verify_each, ..builder.options.clone() });
    }
    match mixed {
        // The programs that were swept before stand without it.
        Err(PipelineError::Mismatch(why)) => found.left_out.push(format!("{why}; no single patch shows it, so the program is left out")),
        mixed => mixed?,
    }
    Ok(found)
}

fn weigh(
    builder: &mut Builder,
    programs: &Programs,
    swept: &[SweptProgram],
    budget: Option<Duration>,
    with: &mut SweepContext,
    found: &mut PartialFusion,
) -> Result<(), PipelineError> {
    let known = keys(swept);
    let half = budget.map(|b| b / 2);
    let settled = with.ledger.settled(with.store.learned());
    match with.ledger.partial_fusion().filter(|_| settled) {
        Some(partial_fusion) => {
            found.partial_fusion = partial_fusion.clone();
            let mut known = known.clone();
            builder.build(&found.partial_fusion.trials.iter().map(|(_, fusion_set)| fusion_set.clone()).collect::<Vec<_>>())?;
            for (name, fusion_set) in found.partial_fusion.trials.clone() {
                let variant = Variant { key: VariantKey::trial(name), ..builder.variant(&fusion_set)?.0.clone() };
                let swept =
                    sweep_program(&variant.key.to_string(), &variant.program, Some(Duration::ZERO), SweepExtent::Trial(&known), with)?;
                known.extend(keys([&swept]));
                found.trials.push((variant, swept));
            }
        }
        None => {
            let earlier = with.ledger.partial_fusion().and_then(|m| m.fusion_set.clone());
            let began = Instant::now();
            let mut current = builder.made(&FusionSet::default())?;
            let build_time = began.elapsed();
            let mut seen: Vec<FusionChange> = Vec::new();
            for round in 0..ROUNDS {
                let mut changes = current.undoings();
                if round == 0 {
                    changes.extend(stackings(&programs.operators).first().map(|weights| FusionChange::stacking(weights)));
                }
                if changes.len() > LAYERS {
                    changes = builder.together(&current, changes)?;
                }
                changes.retain(|change| !seen.contains(change));
                seen.extend(changes.iter().cloned());
                // Making programs may take half of the remaining time.
                if let Some(left) = with.budget.left() {
                    let each = build_time.as_secs_f64().max(1e-3) / rayon::current_num_threads() as f64;
                    let many = (left.as_secs_f64() / 2.0 / each) as usize;
                    if many < changes.len() {
                        let all = changes.len();
                        changes.sort_by(|a, b| cost(&current, with.store, b).total_cmp(&cost(&current, with.store, a)));
                        changes.truncate(many);
                        found.left_out.push(format!(
                            "--budget reaches for {many} of {all} programs that each have a composition undone; a longer one measures them"
                        ));
                    }
                }
                if changes.len() > MANY {
                    (with.progress)(SweepEvent::Planning(format!("making {} programs that each have a composition undone", changes.len())));
                }
                let trials = trials(builder, &current, changes, with.memory, &mut found.left_out)?;
                // Each later round gets half of the previous one's time.
                let time = half.map(|h| h / (1 << round));
                sweep_trials(builder, &current, &trials, &known, time, with, found)?;
                if found.trials.last().is_some_and(|(_, t)| t.report.finish == Finish::Interrupted) {
                    return Ok(());
                }
                let (next, mut weighed) = mix(&current, &trials, &mut |m| builder.made(m), &|key| best(with.store, key))?;
                for (row, (change, made)) in weighed.iter_mut().zip(&trials) {
                    row.note = impossible(builder, change, made);
                }
                found.partial_fusion.weighed.extend(weighed);
                if next.fusion_set == current.fusion_set {
                    break;
                }
                current = next;
            }
            let same = |s: &SweptProgram| keys([s]) == current.kernels.iter().map(|(_, key)| key.clone()).collect();
            let new = current.fusion_set != FusionSet::default() && !swept.iter().any(same);
            // A partially fused program that was measured once goes on competing.
            found.partial_fusion.fusion_set = if new { Some(current.fusion_set) } else { earlier };
            with.ledger.decide(&found.partial_fusion)?;
        }
    }
    if let Some(fusion_set) = &found.partial_fusion.fusion_set {
        let new = with.budget.new_kernels(&builder.variant(fusion_set)?.0.program, with.store)?;
        if let Some(why) = with.budget.too_dear(new.len()) {
            found.left_out.push(format!("{} is left out: {why}", fusion_set.key()));
            found.partial_fusion.fusion_set = None;
            return Ok(());
        }
        let (mut variant, _) = builder.variant(fusion_set)?.clone();
        if let Some(why) = with.memory.too_small(&variant.program)? {
            found.left_out.push(format!("{} is left out: {why}", variant.key));
            found.partial_fusion.fusion_set = None;
            return Ok(());
        }
        found.partial_fusion.tell(&mut variant);
        let swept = sweep_program(&variant.key.to_string(), &variant.program, half, SweepExtent::Beside(&known), with)?;
        found.program = Some((variant, swept));
    }
    Ok(())
}

/// The programs of some changes, without those that change nothing, equal another one, or do not fit into memory.
fn trials(
    builder: &mut Builder,
    from: &Trial,
    changes: Vec<FusionChange>,
    memory: MemoryLimit,
    left_out: &mut Vec<String>,
) -> Result<Vec<(FusionChange, Trial)>, PipelineError> {
    let mut found: Vec<(FusionChange, Trial)> = Vec::new();
    builder.build(&changes.iter().map(|change| change.of(&from.fusion_set)).collect::<Vec<_>>())?;
    for change in changes {
        let made = builder.made(&change.of(&from.fusion_set))?;
        if let Some(why) = memory.too_small(&builder.variant(&made.fusion_set)?.0.program)? {
            left_out.push(format!("{change} is left out: {why}"));
            continue;
        }
        if made.kernels != from.kernels && !found.iter().any(|(_, m)| m.kernels == made.kernels) {
            found.push((change, made));
        }
    }
    Ok(found)
}

/// Milliseconds of the kernels that a change replaces, with all equivalent ones.
fn cost(from: &Trial, store: &Store, change: &FusionChange) -> f64 {
    let kernel = from.kernels.iter().find(|(name, _)| *name == change.subject);
    let ms = kernel.and_then(|(_, key)| best(store, key)).unwrap_or(f64::INFINITY);
    ms * (change.alike.len() + 1) as f64
}

/// Sweeps the new kernels of trials as long as there is time.
fn sweep_trials(
    builder: &mut Builder,
    from: &Trial,
    trials: &[(FusionChange, Trial)],
    known: &BTreeSet<String>,
    budget: Option<Duration>,
    with: &mut SweepContext,
    found: &mut PartialFusion,
) -> Result<(), PipelineError> {
    let began = Instant::now();
    let mut order: Vec<(f64, usize)> = trials.iter().enumerate().map(|(n, (change, _))| (cost(from, with.store, change), n)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut known: BTreeSet<String> = known.union(&keys(found.trials.iter().map(|(_, swept)| swept))).cloned().collect();
    let new = |made: &Trial, known: &BTreeSet<String>| made.kernels.iter().any(|(_, key)| !known.contains(key));
    let share = order.iter().filter(|(_, n)| new(&trials[*n].1, &known)).count().max(1) as u32;
    for (_, n) in order {
        let (change, made) = &trials[n];
        if !new(made, &known) {
            continue;
        }
        // A small budget ends before the last trials: those have no times, and the table reports it.
        if budget.is_some_and(|b| began.elapsed() > b) {
            break;
        }
        let taken = |name: &String| found.trials.iter().any(|(variant, _)| variant.key.trial.as_ref() == Some(name));
        // In a later round the same change may mean another program.
        let name = (1..).map(|n| if n == 1 { change.to_string() } else { format!("{change} ({n})") }).find(|name| !taken(name));
        let variant = Variant { key: VariantKey::trial(name.unwrap_or_default()), ..builder.variant(&made.fusion_set)?.0.clone() };
        let dear = with.budget.new_kernels(&variant.program, with.store)?;
        if with.budget.too_dear(dear.len()).is_some() {
            continue;
        }
        let trial = sweep_program(&variant.key.to_string(), &variant.program, budget.map(|b| b / share), SweepExtent::Trial(&known), with)?;
        known.extend(keys([&trial]));
        let finish = trial.report.finish;
        found.partial_fusion.trials.push((variant.key.to_string(), made.fusion_set.clone()));
        found.trials.push((variant, trial));
        if finish == Finish::Interrupted {
            break;
        }
    }
    Ok(())
}

/// The fusion that stacking prevents: the first refusal about parts of one container.
fn impossible(builder: &Builder, change: &FusionChange, made: &Trial) -> String {
    if change.weights.is_none() {
        return String::new();
    }
    let refusals = builder.built.get(&made.fusion_set).map(|(variant, _)| variant.refusals.as_slice()).unwrap_or_default();
    let parts = refusals.iter().find(|r| matches!(r.reason, Reason::SeveralWriters { .. } | Reason::WritesPart { .. }));
    parts.map(|r| format!("{} stay apart: {}", r.units.join(" and "), r.reason)).unwrap_or_default()
}
