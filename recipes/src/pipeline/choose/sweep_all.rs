//! The whole sweep of a recipe: all programs, selection, plan.

use super::partial_fusion_search::{PartialFusion, search_partial_fusion};
use super::plan::{FORMAT, Plan, place};
use crate::load::{Overrides, Recipe};
use crate::pipeline::PipelineError;
use crate::pipeline::measure::{
    BudgetPolicy, MarkedKernels, MemoryLimit, QUICK, SweepContext, SweepExtent, SweptProgram, build_problem, pytorch_order, sweep_posed,
    sweep_program,
};
use crate::pipeline::oracle::{Expectation, small_sizes_of_all, with_sizes};
use crate::pipeline::run::candidate::BESIDE;
use crate::pipeline::run::{Candidate, Target};
use crate::pipeline::variants::programs::stitched_by_times;
use crate::pipeline::variants::{
    KernelSource, PartialFusionLog, PatternTimes, Programs, Variant, VariantId, VariantKey, merge_variants, wrong,
};
use crate::timings::{CommandPhase, during, enter};
use bench::unit::significant;
use kernels::KernelSpecs;
use kernels::convolutions::convolves;
use kernels::device::Device;
use layouts::exact::SearchLimits;
use layouts::measure::space::KernelSpace;
use layouts::{Finish, Method, SelectError, Selection, Store};
use sdfg::Sdfg;
use sdfg::config::Configuration;
use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::time::Duration;

/// Every program of a recipe that fits into memory, swept; the unfused one is last.
pub struct SweptPrograms {
    pub variants: Vec<SweptProgram>,
    /// The variant of each program in `variants`, in their order.
    pub keys: Vec<VariantKey>,
    pub unfused: Option<SweptProgram>,
    /// Programs that do not fit or could not be made, and searches that were skipped, with reasons.
    pub left_out: Vec<String>,
    /// The decisions on fusions of contractions.
    pub partial_fusion: PartialFusionLog,
    /// Trials that were swept because they lend kernels to other programs.
    pub trials: Vec<SweptProgram>,
    /// Why the best kernels of all programs could not be merged, if that failed.
    pub apart: Option<String>,
    pub finish: Finish,
}

const POLICY: BudgetPolicy = BudgetPolicy::DEFAULT;

/// Each program's share of the budget, and the unfused program's, from 0 to 1: the programs of one variant divide its share in the table.
/// Where the rest of the budget goes to nothing else, as on the CPU, what the variants would have that a recipe has no programs of is
/// divided among those that it has.
struct Shares {
    each: Vec<f64>,
    unfused: f64,
}

fn shares(variants: &[Variant], on_gpu: bool) -> Shares {
    let programs = |id: VariantId| variants.iter().filter(|v| v.key.id == id).count() as f64;
    let share = |id: VariantId| if on_gpu { id.row().share.gpu } else { id.row().share.cpu };
    let each: Vec<f64> = variants.iter().map(|v| share(v.key.id) / programs(v.key.id)).collect();
    let unfused = share(VariantId::Unfused);
    // Fusions of contractions are undone, and kernels are merged, only where there are several programs.
    let undone = if variants.iter().any(|v| v.key.is(VariantId::GemmFused)) { POLICY.partial_fusion } else { 0.0 };
    let merged = if variants.len() > 1 { POLICY.merging } else { 0.0 };
    let stitched = if variants.iter().any(|v| v.plan.is_some()) { POLICY.stitching_by_times } else { 0.0 };
    let given = each.iter().sum::<f64>() + unfused;
    let more = if on_gpu { 1.0 } else { ((1.0 - undone - stitched - merged) / given).max(1.0) };
    Shares { each: each.iter().map(|share| share * more).collect(), unfused: unfused * more }
}

/// Sweeps all programs, including the partially fused and the merged one, which are added to `programs`. Later programs find kernels that
/// they share with earlier ones in the store.
pub fn sweep_all(
    recipe: &Recipe,
    programs: &mut Programs,
    budget: Option<Duration>,
    with: &mut SweepContext,
) -> Result<SweptPrograms, PipelineError> {
    let mut left_out = Vec::new();
    let mut held = |name: &str, program: &Sdfg| -> Result<bool, PipelineError> {
        let why = with.memory.too_small(program)?;
        left_out.extend(why.iter().map(|why| format!("{name} is left out: {why}")));
        Ok(why.is_none())
    };
    let fit = programs.variants.iter().map(|v| held(&v.key.to_string(), &v.program)).collect::<Result<Vec<_>, _>>()?;
    let unfused_fits = held(VariantId::Unfused.row().title, &programs.unfused)?;
    if fit.is_empty() {
        let only: Vec<String> = programs.options.only.iter().map(|id| id.text()).collect();
        let why =
            format!("this recipe has no program of the variants {}; `memlet variants RECIPE` lists those that it has", only.join(", "));
        return Err(PipelineError::Variants(why));
    }
    if !fit.contains(&true) {
        let all =
            programs.variants.iter().map(|v| Ok((with.memory.needed(&v.program)?, &v.key))).collect::<Result<Vec<_>, PipelineError>>()?;
        let least =
            all.into_iter().min().map(|(needed, name)| format!("{name} would need least, {needed}, and may have {}", with.memory.bytes()));
        return Err(PipelineError::Memory(least.unwrap_or_default()));
    }
    let mut fit = fit.into_iter();
    programs.variants.retain(|_| fit.next().unwrap_or(true));
    let whole_budget = budget;
    let goes_on = budget.is_some() && !with.device.is_host() && with.shard.of == 1;
    let shares = shares(&programs.variants, goes_on);
    // On a GPU, where compiling takes longest, the problems are built first, to see which programs earlier sweeps have measured enough.
    let mut posed = Vec::new();
    for variant in programs.variants.iter().filter(|_| goes_on) {
        posed.push(Some(build_problem(&variant.program, with.device)?));
    }
    posed.resize_with(programs.variants.len(), || None);
    // Milliseconds of each program by earlier sweeps, if they suffice for a selection.
    let known: Vec<Option<f64>> = posed.iter().map(|p| p.as_ref().and_then(|p| quick(&p.problem, with.store))).collect();
    let fastest = known.iter().flatten().copied().reduce(f64::min);
    let mut found: Vec<Option<SweptProgram>> = Vec::new();
    found.resize_with(programs.variants.len(), || None);
    let mut unaffordable: Vec<(usize, String)> = Vec::new();
    let mut finish = Finish::Exhausted;
    let budget = budget.map(|b| if goes_on { b.mul_f64(POLICY.gpu_first_round) } else { b });
    let of_unfused = MarkedKernels::of(&programs.unfused)?;
    let images = convolves(&programs.unfused);
    for n in order(&programs.variants, goes_on, images) {
        let variant = &programs.variants[n];
        if unfused_fits {
            let beside = with.budget.new_among(&of_unfused, with.store);
            with.budget.reserve(beside.len());
        }
        let new = with.budget.new_kernels(&variant.program, with.store)?;
        // Programs are swept whatever they cost until one has a plan: kernels of the first may have no configuration that can be made.
        let planned = || found.iter().flatten().any(|swept| quick(&swept.problem, with.store).is_some());
        if let Some(why) = with.budget.too_dear(new.len()).filter(|_| planned()) {
            unaffordable.push((n, why));
            continue;
        }
        let share = budget.map(|b| b.mul_f64(shares.each[n]));
        let posed = match posed[n].take() {
            Some(posed) => posed,
            None => build_problem(&variant.program, with.device)?,
        };
        let behind = known[n].zip(fastest).is_some_and(|(known, fastest)| known > POLICY.behind_ratio * fastest);
        let share = if behind && looked_at(&posed.problem, share, with) { Some(Duration::ZERO) } else { share };
        let swept = sweep_posed(&variant.key.to_string(), &variant.program, posed, share, SweepExtent::Whole, with)?;
        finish = worse(finish, swept.report.finish);
        if goes_on && let Some(ms) = quick(&swept.problem, with.store) {
            with.hopeless_ms = Some(with.hopeless_ms.unwrap_or(f64::INFINITY).min(POLICY.hopeless_ratio * ms));
        }
        found[n] = Some(swept);
    }
    left_out.extend(unreached(&programs.variants, &unaffordable));
    if !programs.unmade.is_empty() {
        left_out.push(format!("--budget does not reach for making these programs: {}", programs.unmade.join(", ")));
        finish = worse(finish, Finish::Budget);
    }
    if !unaffordable.is_empty() {
        finish = worse(finish, Finish::Budget);
    }
    let mut kept = found.iter().map(Option::is_some);
    programs.variants.retain(|_| kept.next().unwrap_or(true));
    let mut variants: Vec<SweptProgram> = found.into_iter().flatten().collect();
    // A part of the space does not suffice to decide on fusions.
    let whole = with.shard.of == 1 && finish != Finish::Interrupted;
    let share = budget.map(|b| b.mul_f64(POLICY.partial_fusion));
    let gemm_fused = programs.variants.iter().position(|v| v.key.is(VariantId::GemmFused));
    let composed = gemm_fused.and_then(|n| quick(&variants[n].problem, with.store));
    // If the gemm-fused program is far slower, undoing single fusions does not make up for it.
    let far = composed.zip(with.hopeless_ms).filter(|(ms, most)| ms > most);
    let wanted = programs.options.only.is_empty() || gemm_fused.is_some();
    let paid = wanted && (unaffordable.is_empty() || gemm_fused.is_some());
    let mut mixed = if whole && far.is_none() && paid {
        search_partial_fusion(recipe, programs, &variants, share, with)?
    } else {
        PartialFusion::default()
    };
    if let Some((ms, most)) = far.filter(|_| whole) {
        let fastest = significant(most / POLICY.hopeless_ratio);
        left_out.push(format!("no composition is undone alone: all of them take {} ms, the fastest program {fastest}", significant(ms)));
    }
    for (_, swept) in mixed.trials.iter().chain(&mixed.program) {
        finish = worse(finish, swept.report.finish);
    }
    if let Some((variant, swept)) = mixed.program {
        programs.variants.push(variant);
        variants.push(swept);
    }
    left_out.append(&mut mixed.left_out);
    if let Some(options) = mixed.options.take() {
        programs.options = options;
    }
    // The unfused program, which the others are compared with, is not given up for being slow.
    with.hopeless_ms = None;
    with.budget.reserve(0);
    // It is swept whatever it costs: it shows the worth of a plan, and it remains if all others are wrong.
    let unfused = if unfused_fits {
        let share = budget.map(|b| b.mul_f64(shares.unfused));
        let unfused = build_problem(&programs.unfused, with.device)?;
        let share = if goes_on && looked_at(&unfused.problem, share, with) { Some(Duration::ZERO) } else { share };
        Some(sweep_posed(VariantId::Unfused.row().title, &programs.unfused, unfused, share, SweepExtent::Baseline, with)?)
    } else {
        None
    };
    finish = unfused.iter().fold(finish, |finish, unfused| worse(finish, unfused.report.finish));
    // The times of a plan's patterns and of their units, which are the unfused program's kernels, make another plan.
    if with.shard.of == 1 && finish != Finish::Interrupted {
        let share = budget.map(|b| b.mul_f64(POLICY.stitching_by_times));
        let mut stitched = stitch_by_times(recipe, programs, &variants, share, with)?;
        left_out.extend(stitched.left_out.take());
        if let Some((variant, swept)) = stitched.program {
            finish = worse(finish, swept.report.finish);
            programs.variants.push(variant);
            variants.push(swept);
        }
    }
    // The rest of the budget goes to the fastest program so far: most of its kernels belong to others too.
    let goes_on = goes_on || !unaffordable.is_empty();
    let best = variants.iter().enumerate().filter_map(|(n, swept)| Some((n, quick(&swept.problem, with.store)?)));
    if goes_on
        && finish == Finish::Budget
        && let (Some(all), Some((n, _))) = (whole_budget, best.min_by(|a, b| a.1.total_cmp(&b.1)))
    {
        let swept = variants.iter().chain(mixed.trials.iter().map(|(_, trial)| trial)).chain(&unfused);
        let left = all.mul_f64(1.0 - POLICY.merging).saturating_sub(with.ledger.taken(swept.map(|s| &s.problem)));
        let left = with.budget.left().unwrap_or(left);
        let (variant, budget) = (&programs.variants[n], with.ledger.budget(&variants[n].problem, left));
        if left > POLICY.least {
            let again = sweep_program(&variant.key.to_string(), &variant.program, Some(budget), SweepExtent::Whole, with)?;
            finish = worse(finish, again.report.finish);
            variants[n] = again.after(&variants[n]);
        }
    }
    // Merging comes last, because later measurements could change the selection among all kernels.
    let mut apart = None;
    if whole && finish != Finish::Interrupted {
        let lent = (programs.variants.iter().zip(&variants)).chain(mixed.trials.iter().map(|(variant, swept)| (variant, swept)));
        let lent: Vec<(&Variant, &SweptProgram)> = lent.collect();
        match combine(&lent, programs.variants.len(), budget.map(|b| b.mul_f64(POLICY.merging)), with) {
            Ok(None) => {}
            Ok(Some((variant, swept))) => {
                finish = worse(finish, swept.report.finish);
                programs.variants.push(variant);
                variants.push(swept);
            }
            // The other programs stand without the merged one.
            Err(PipelineError::Combined(why)) => apart = Some(why),
            Err(error) => return Err(error),
        }
    }
    let trials = mixed.trials.into_iter().map(|(_, swept)| swept).collect();
    let keys = programs.variants.iter().map(|v| v.key.clone()).collect();
    Ok(SweptPrograms { variants, keys, unfused, left_out, partial_fusion: mixed.partial_fusion, trials, apart, finish })
}

/// The program of the new plan, or why it was left out.
#[derive(Default)]
struct StitchedByTimes {
    program: Option<(Variant, SweptProgram)>,
    left_out: Option<String>,
}

/// Plans fusion anew once patterns have times: *FusionStitching*'s score by execution (arXiv:1911.11576, section 4.3) in place of the
/// model's for all patterns of the plan that was carried out. Makes and sweeps the program of the new plan; none where there was no plan,
/// where nothing of it has a time, or where the new plan makes the same kernels.
///
/// # Errors
/// As [`sweep_program`].
fn stitch_by_times(
    recipe: &Recipe,
    programs: &Programs,
    swept: &[SweptProgram],
    budget: Option<Duration>,
    with: &mut SweepContext,
) -> Result<StitchedByTimes, PipelineError> {
    let planned = programs.variants.iter().zip(swept).find_map(|(variant, swept)| Some((variant, variant.plan.as_deref()?, swept)));
    let Some((before, plan, before_swept)) = planned else { return Ok(StitchedByTimes::default()) };
    let run = PatternTimes::of(plan, &before_swept.problem, with.store)?.run_patterns(plan);
    if run.is_empty() {
        return Ok(StitchedByTimes::default());
    }
    let planning = plan.planning.with_executed(plan.planning.executed.and(run));
    let Some(variant) = stitched_by_times(recipe, &planning, &programs.options)? else { return Ok(StitchedByTimes::default()) };
    if variant.program == before.program {
        return Ok(StitchedByTimes::default());
    }
    let name = variant.key.to_string();
    let out = |why: String| Ok(StitchedByTimes { program: None, left_out: Some(format!("{name} is left out: {why}")) });
    if let Some(why) = wrong(&programs.operators, std::slice::from_ref(&variant)).into_iter().flatten().next() {
        return out(format!("it computes something else than the recipe: {why}"));
    }
    if let Some(why) = with.memory.too_small(&variant.program)? {
        return out(why);
    }
    let new = with.budget.new_kernels(&variant.program, with.store)?;
    if let Some(why) = with.budget.too_dear(new.len()) {
        return out(why);
    }
    let known: BTreeSet<String> = swept.iter().flat_map(|s| &s.kernels).map(|kernel| kernel.key().to_string()).collect();
    let swept = sweep_program(&name, &variant.program, budget, SweepExtent::Beside(&known), with)?;
    Ok(StitchedByTimes { program: Some((variant, swept)), left_out: None })
}

/// The order in which programs are swept, as indices. If the budget may not suffice for all, programs with fused contractions come right
/// after the first one, and the longest stackings before the others. Of a network that convolves images they come first: what follows a
/// convolution costs nothing behind its sums, and a budget that pays for one program alone is better spent on that one. On a GPU the order
/// of the table holds, in which frequent winners come first.
fn order(variants: &[Variant], goes_on: bool, images: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..variants.len()).collect();
    if !goes_on {
        order.sort_by_key(|n| (*n > 0 && !images, variants[*n].compositions.is_empty(), *n));
    }
    order
}

/// The message about programs that the budget did not suffice for.
fn unreached(variants: &[Variant], unaffordable: &[(usize, String)]) -> Option<String> {
    let names: Vec<String> = unaffordable.iter().map(|(n, _)| variants[*n].key.to_string()).collect();
    let (_, why) = unaffordable.first()?;
    let (first, rest) = names.split_first()?;
    let rest = if rest.is_empty() { String::new() } else { format!("; so are {} more: {}", rest.len(), rest.join(", ")) };
    Some(format!("{first} is left out: {why}{rest}. A longer --budget measures them"))
}

/// Milliseconds of a program's best selection, or of a good one where the best takes long to find.
fn quick(problem: &layouts::SelectionProblem, store: &Store) -> Option<f64> {
    during(CommandPhase::Select, || layouts::select(problem, store, Method::Exact, QUICK)).ok().map(|s| s.total_ms)
}

/// Whether earlier sweeps have spent a first look's share of the budget on a program.
fn looked_at(problem: &layouts::SelectionProblem, share: Option<Duration>, with: &SweepContext) -> bool {
    let left = with.ledger.left(problem, share);
    share.zip(left).is_some_and(|(share, left)| share.saturating_sub(left) >= share.mul_f64(POLICY.first_look))
}

/// The merged program of the best kernels of all programs, unless it equals one of the first `competing` ones, which compete anyway. Its
/// kernels get fresh samples, and the selection is repeated until it is stable.
fn combine(
    lent: &[(&Variant, &SweptProgram)],
    competing: usize,
    budget: Option<Duration>,
    with: &mut SweepContext,
) -> Result<Option<(Variant, SweptProgram)>, PipelineError> {
    // A merge of one program would be that program.
    if lent.len() < 2 {
        return Ok(None);
    }
    let labels: Vec<String> = lent.iter().map(|(variant, _)| variant.key.to_string()).collect();
    let problems: Vec<(String, layouts::SelectionProblem)> =
        labels.iter().cloned().zip(lent.iter().map(|(_, swept)| swept.problem.clone())).collect();
    let among = layouts::SelectionProblem::among(&problems);
    let lenders: Vec<KernelSource> = labels.iter().zip(lent).map(|(name, (variant, _))| KernelSource { name, variant }).collect();
    let known = lent.iter().flat_map(|(_, swept)| &swept.problem.kernels).map(|k| k.key.clone()).collect();
    let programs: Vec<&Sdfg> = lent.iter().map(|(variant, _)| &variant.program).collect();
    let first = with_sizes(programs[0], &small_sizes_of_all(&programs));
    let expected: OnceCell<Expectation> = OnceCell::new();
    let mut found: Option<(Variant, SweptProgram)> = None;
    for round in 1..=POLICY.merging_rounds {
        let variants = during(CommandPhase::Select, || layouts::select(&among, with.store, Method::Exact, SearchLimits::default()))?
            .configuration
            .variants;
        if labels[..competing].iter().any(|label| among.programs.get(label) == Some(&variants)) {
            return Ok(None);
        }
        let variant = merge_variants(&among, &variants, &lenders)?;
        if found.as_ref().is_some_and(|(known, _)| known.program == variant.program) {
            break;
        }
        if let Some(why) = with.memory.too_small(&variant.program)? {
            return Err(PipelineError::Combined(why));
        }
        // The program is checked before it is timed: the same name could stand for different values in two programs.
        let computed = || expected.get_or_init(|| Expectation::of(&first)).difference(&with_sizes(&variant.program, &first.sizes));
        if let Some(wrong) = during(CommandPhase::Check, computed) {
            return Err(PipelineError::Combined(format!("they would compute something else: {wrong}")));
        }
        // The last round measures nothing new, so that its selection stands.
        let share = if round < POLICY.merging_rounds { budget.map(|b| b / POLICY.merging_rounds) } else { Some(Duration::ZERO) };
        let swept = sweep_program(VariantId::Merged.row().title, &variant.program, share, SweepExtent::Beside(&known), with)?;
        let finish = swept.report.finish;
        found = Some((variant, swept));
        if finish == Finish::Interrupted {
            break;
        }
    }
    Ok(found)
}

fn worse(a: Finish, b: Finish) -> Finish {
    match (a, b) {
        (Finish::Interrupted, _) | (_, Finish::Interrupted) => Finish::Interrupted,
        (Finish::Budget, _) | (_, Finish::Budget) => Finish::Budget,
        _ => Finish::Exhausted,
    }
}

/// The selections of every method for one program.
pub struct Choices {
    pub swept: usize,
    pub selections: Vec<Selection>,
}

/// Selections for every variant, the best exact one first; and messages about variants without one, because all configurations of a
/// kernel failed or were wrong.
///
/// # Errors
/// No variant with a selection.
pub fn choose(sweeps: &SweptPrograms, store: &Store) -> Result<(Vec<Choices>, Vec<String>), PipelineError> {
    let _phase = enter(CommandPhase::Select);
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    let mut none = None;
    for (n, swept) in sweeps.variants.iter().enumerate() {
        match swept.select_each(store) {
            Ok(selections) => found.push(Choices { swept: n, selections }),
            Err(error @ PipelineError::Select(SelectError::Unmeasured { .. })) => {
                left_out.push(format!("{} is left out: {error}", swept.name));
                none.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    if let (true, Some(error)) = (found.is_empty(), none) {
        return Err(error);
    }
    found.sort_by(|a, b| a.selections[0].total_ms.total_cmp(&b.selections[0].total_ms).then(a.swept.cmp(&b.swept)));
    Ok((found, left_out))
}

/// The unfused program in PyTorch's layout and in its best uniform layout; none if it does not fit into memory. If all configurations of
/// one of its kernels failed or were wrong, the reason is returned.
pub fn baselines(sweeps: &SweptPrograms, store: &Store) -> Result<(Vec<Candidate>, Option<String>), PipelineError> {
    let Some(unfused) = &sweeps.unfused else { return Ok((vec![], None)) };
    let selected = || Ok([unfused.in_order(store, &pytorch_order(&unfused.program))?, unfused.select(store, Method::Uniform)?]);
    match selected() {
        Ok(selections) => {
            let names = ["unfused · PyTorch's layout", "unfused · best uniform layout"];
            let named = names.iter().zip(&selections).map(|(name, s)| Candidate { name: name.to_string(), ..unfused.candidate(s) });
            Ok((named.collect(), None))
        }
        Err(error @ PipelineError::Select(SelectError::Unmeasured { .. })) => {
            Ok((vec![], Some(format!("{} is left out: {error}", VariantId::Unfused.row().title))))
        }
        Err(error) => Err(error),
    }
}

/// The reference for results at full size: the unfused program in the plainest configuration of every kernel, with GEMMs by a library. It
/// shares hardly any code with the chosen plan. A kernel whose plainest configuration the library does not support takes that of a
/// baseline. `None` if the program does not fit into memory.
pub fn plainest(
    unfused: &Sdfg,
    baselines: &[Candidate],
    device: &dyn Device,
    memory: MemoryLimit,
) -> Result<Option<Candidate>, PipelineError> {
    if memory.too_small(unfused)?.is_some() {
        return Ok(None);
    }
    let mut configuration = Configuration::default();
    let specs = KernelSpecs::of(unfused);
    for (_, _, unit) in unfused.units() {
        let spec = specs.spec(&unit)?;
        let space = device.space(&spec)?;
        let measured = || baselines.iter().find_map(|baseline| baseline.configuration.kernels.get(&spec.name)).cloned();
        let config = Some(space.config(0)).filter(|_| space.predicted_cost(0).is_finite()).or_else(measured);
        configuration.kernels.insert(spec.name.clone(), config.unwrap_or_else(|| space.config(0)));
    }
    let (name, program) = ("the plainest unfused plan".to_string(), unfused.clone());
    Ok(Some(Candidate {
        name,
        program,
        configuration,
        predicted_ms: f64::NAN,
        streams: 1,
        packed: false,
        beside: BESIDE,
        exchanges: vec![],
        measured_as: Default::default(),
    }))
}

/// Assembles a plan from its parts.
pub fn plan(
    (recipe, text): (&str, &str),
    overrides: &Overrides,
    chosen: Candidate,
    baselines: Vec<Candidate>,
    (partial_fusion, barred): (Option<PartialFusionLog>, Vec<String>),
    (target, device, threads): (Target, &dyn Device, usize),
    command: String,
) -> Plan {
    let (device, toolchain) = (place(device), device.toolchain());
    let Overrides { sizes, dtype, no_dropout, narrow } = overrides.clone();
    let (format, recipe, text, overrides) = (FORMAT, recipe.to_string(), text.to_string(), sizes.into_iter().collect());
    Plan {
        format,
        recipe,
        text,
        overrides,
        dtype,
        no_dropout,
        narrow,
        target,
        device,
        toolchain,
        threads,
        command,
        partial_fusion,
        barred,
        refused: None,
        choice: None,
        chosen,
        baselines,
    }
}
