//! The whole way: programs, sweep, choice, verification, timing, plan.

use super::combined::{COMBINED, Lender, combined};
use super::execute::Execution;
use super::mixed::{Mixed, Mixing, mixed};
use super::plan::{Candidate, FORMAT, Plan};
use super::programs::{Programs, Variant, difference, shrunken, shrunken_for};
use super::sweep::{Extent, METHODS, Sweeping, Swept, sweep_program};
use super::target::Target;
use super::{PipelineError, accuracy, memory, tensors};
use crate::load::{Overrides, Recipe};
use kernels::KernelSpec;
use kernels::device::Device;
use kernels::device::cpu::Pool;
use layouts::exact::Limits;
use layouts::{Finish, Method, SelectError, Selection, Store};
use ndarray::ArrayD;
use sdfg::config::Configuration;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::tolerance;
use sdfg::{Binary, Dtype, Scalar, Sdfg, Unit};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Name under which the unfused program is swept.
pub const UNFUSED: &str = "unfused";

/// Every program of a recipe that fits into memory, swept; the unfused one is last.
pub struct Sweeps {
    pub variants: Vec<Swept>,
    pub unfused: Option<Swept>,
    /// Programs that do not fit, and why.
    pub too_large: Vec<String>,
    /// Which compositions pay.
    pub mixing: Mixing,
    /// Programs that were swept for what they lend to others.
    pub trials: Vec<Swept>,
    /// Why the best kernels of all programs could not be put together, if that is so.
    pub apart: Option<String>,
    pub finish: Finish,
}

/// Share of the budget for finding out which compositions pay, and for confirming what is chosen of all programs.
const MIXING: f64 = 0.12;
const COMBINING: f64 = 0.03;
/// How often that choice is made again with fresh samples, before another one may stand.
const CHOICES: usize = 3;

/// Sweeps all programs, the mixed one among them, which is added to the programs. Later ones find the kernels that they
/// share with earlier ones in the store.
pub fn sweep_all(
    (recipe, verify_each): (&Recipe, bool),
    programs: &mut Programs,
    budget: Option<Duration>,
    with: &mut Sweeping,
) -> Result<Sweeps, PipelineError> {
    // Composed programs win most often, and have kernels of their own; stacked ones share most with the separate one.
    let kind = |variant: &Variant, n: usize| match () {
        () if !variant.compositions.is_empty() => 0.35,
        () if n == 0 => 0.2,
        () => 0.1,
    };
    let mut too_large = Vec::new();
    let mut held = |name: &str, program: &Sdfg| -> Result<bool, PipelineError> {
        let why = memory::too_large(program, with.memory)?;
        too_large.extend(why.iter().map(|why| format!("{name} is left out: {why}")));
        Ok(why.is_none())
    };
    let fit = programs.variants.iter().map(|v| held(&v.name, &v.program)).collect::<Result<Vec<_>, _>>()?;
    let unfused_fits = held(UNFUSED, &programs.unfused)?;
    if !fit.contains(&true) {
        let all =
            programs.variants.iter().map(|v| Ok((memory::needed(&v.program)?, &v.name))).collect::<Result<Vec<_>, PipelineError>>()?;
        let least = all.into_iter().min().map(|(needed, name)| format!("{name} would need least, {needed}, and may have {}", with.memory));
        return Err(PipelineError::Memory(least.unwrap_or_default()));
    }
    let mut fit = fit.into_iter();
    programs.variants.retain(|_| fit.next().unwrap_or(true));
    let kinds: Vec<f64> = programs.variants.iter().enumerate().map(|(n, v)| kind(v, n)).collect();
    let mut variants = Vec::new();
    let mut finish = Finish::Exhausted;
    for (variant, share) in programs.variants.iter().zip(&kinds) {
        let alike = kinds.iter().filter(|k| *k == share).count() as f64;
        let swept = sweep_program(&variant.name, &variant.program, budget.map(|b| b.mul_f64(share / alike)), Extent::Whole, with)?;
        finish = worse(finish, swept.report.finish);
        variants.push(swept);
    }
    // A part of the space says nothing on which compositions pay.
    let whole = with.shard.of == 1 && finish != Finish::Interrupted;
    let share = budget.map(|b| b.mul_f64(MIXING));
    let mut mixed = if whole { mixed((recipe, verify_each), programs, &variants, share, with)? } else { Mixed::default() };
    for (_, swept) in mixed.trials.iter().chain(&mixed.program) {
        finish = worse(finish, swept.report.finish);
    }
    if let Some((variant, swept)) = mixed.program {
        programs.variants.push(variant);
        variants.push(swept);
    }
    too_large.append(&mut mixed.too_large);
    let unfused = match unfused_fits {
        true => Some(sweep_program(UNFUSED, &programs.unfused, budget.map(|b| b.mul_f64(0.2)), Extent::Whole, with)?),
        false => None,
    };
    finish = unfused.iter().fold(finish, |finish, unfused| worse(finish, unfused.report.finish));
    // Last: what is measured later could change what is chosen of all kernels.
    let mut apart = None;
    if whole && finish != Finish::Interrupted {
        let lent = (programs.variants.iter().zip(&variants)).chain(mixed.trials.iter().map(|(variant, swept)| (variant, swept)));
        let lent: Vec<(&Variant, &Swept)> = lent.collect();
        match combine(&lent, programs.variants.len(), budget.map(|b| b.mul_f64(COMBINING)), with) {
            Ok(None) => {}
            Ok(Some((variant, swept))) => {
                finish = worse(finish, swept.report.finish);
                programs.variants.push(variant);
                variants.push(swept);
            }
            // The programs stand without it.
            Err(PipelineError::Combined(why)) => apart = Some(why),
            Err(error) => return Err(error),
        }
    }
    let trials = mixed.trials.into_iter().map(|(_, swept)| swept).collect();
    Ok(Sweeps { variants, unfused, too_large, mixing: mixed.mixing, trials, apart, finish })
}

/// The program that runs the best kernels of all programs together, if it is none of the first ones, which compete as they
/// are. What it is made of gets fresh samples; where that changes the choice, it is made again.
fn combine(
    lent: &[(&Variant, &Swept)],
    competing: usize,
    budget: Option<Duration>,
    with: &mut Sweeping,
) -> Result<Option<(Variant, Swept)>, PipelineError> {
    let problems: Vec<(String, layouts::Program)> = lent.iter().map(|(v, swept)| (v.name.clone(), swept.problem.clone())).collect();
    let among = layouts::Program::among(&problems);
    let lenders: Vec<Lender> = lent.iter().map(|(variant, _)| Lender { name: &variant.name, variant }).collect();
    let known = lent.iter().flat_map(|(_, swept)| &swept.problem.kernels).map(|k| k.key.clone()).collect();
    let mut found: Option<(Variant, Swept)> = None;
    for round in 1..=CHOICES {
        let variants = layouts::select(&among, with.store, Method::Exact, Limits::default())?.configuration.variants;
        if lent[..competing].iter().any(|(variant, _)| among.programs.get(&variant.name) == Some(&variants)) {
            return Ok(None);
        }
        let variant = combined(&among, &variants, &lenders)?;
        if found.as_ref().is_some_and(|(known, _)| known.program == variant.program) {
            break;
        }
        if let Some(why) = memory::too_large(&variant.program, with.memory)? {
            return Err(PipelineError::Combined(why));
        }
        // Nothing is timed before it is checked: the same names could mean different things in two programs.
        if let Some(wrong) = difference(&shrunken(&lent[0].0.program), &shrunken(&variant.program)) {
            return Err(PipelineError::Combined(format!("they would compute something else: {wrong}")));
        }
        // Nothing new in the last round: the choice stays what it is.
        let share = if round < CHOICES { budget.map(|b| b / CHOICES as u32) } else { Some(Duration::ZERO) };
        let swept = sweep_program(COMBINED, &variant.program, share, Extent::Beside(&known), with)?;
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

/// What each method chooses for one program.
pub struct Choices {
    pub swept: usize,
    pub selections: Vec<Selection>,
}

/// Choices for every variant, the best exact one first; and which variants cannot be chosen, because all configurations of a kernel
/// failed or were wrong.
///
/// # Errors
/// No variant that can be chosen.
pub fn choose(sweeps: &Sweeps, store: &Store) -> Result<(Vec<Choices>, Vec<String>), PipelineError> {
    let (mut found, mut left_out) = (Vec::new(), Vec::new());
    let mut none = None;
    for (n, swept) in sweeps.variants.iter().enumerate() {
        match METHODS.iter().map(|m| swept.select(store, *m)).collect::<Result<Vec<_>, _>>() {
            Ok(selections) => found.push(Choices { swept: n, selections }),
            Err(error @ PipelineError::Select(SelectError::Unmeasured(_))) => {
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

/// The order of dims that PyTorch's modules imply: batch and sequence first, then heads and keys, features last.
///
/// Derived from the boundary, not from names: a dim that the recipe's inputs share with activations and that no
/// parameter has is a batch or sequence dim; dims of parameters are features.
pub fn pytorch_order(program: &Sdfg) -> Vec<String> {
    let feature = |dim: &String| program.containers.values().any(|c| c.role == sdfg::Role::Parameter && c.dims.contains(dim));
    let (features, batch_like): (Vec<String>, Vec<String>) = program.dims.keys().cloned().partition(feature);
    let activations = |dim: &String| {
        let of = program
            .containers
            .values()
            .filter(|c| c.role != sdfg::Role::Parameter && c.dims.iter().filter(|d| batch_like.contains(d)).count() >= 2);
        of.filter(|c| c.dims.contains(dim)).map(|c| c.dims.iter().filter(|d| features.contains(d)).count()).collect::<Vec<_>>()
    };
    // A feature that activations have beside another one (queries) and also alone (scores, or their statistics) is a head: it
    // stands before the sequences.
    let head = |dim: &&String| {
        let beside = activations(dim);
        beside.contains(&1) && beside.iter().any(|n| *n > 1)
    };
    let mut order: Vec<String> = batch_like.first().into_iter().chain(features.iter().filter(head)).cloned().collect();
    let rest: Vec<String> = batch_like.iter().chain(features.iter().rev()).filter(|d| !order.contains(d)).cloned().collect();
    order.extend(rest);
    order
}

/// The same with heads first among the features: what a projection writes row by row.
pub fn flat_order(program: &Sdfg) -> Vec<String> {
    let feature = |dim: &String| program.containers.values().any(|c| c.role == sdfg::Role::Parameter && c.dims.contains(dim));
    let (features, batch_like): (Vec<String>, Vec<String>) = pytorch_order(program).into_iter().partition(feature);
    batch_like.into_iter().chain(features).collect()
}

/// How far a result is from its reference.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Verification {
    pub against: String,
    /// By tensor: largest error ÷ derived tolerance. Right up to 1.
    pub ratios: BTreeMap<String, f64>,
}

impl Verification {
    pub fn worst(&self) -> f64 {
        self.ratios.values().copied().fold(0.0, f64::max)
    }
}

/// Runs a candidate at small sizes and compares every result with the oracle.
pub fn verify_small(candidate: &Candidate, operators: &Sdfg, pool: &Pool, device: &Arc<dyn Device>) -> Result<Verification, PipelineError> {
    let mut granules = Vec::new();
    for (_, _, unit) in candidate.program.units() {
        granules.extend(device.granules(&KernelSpec::new(&candidate.program, &unit)?));
    }
    let [program, reference] = [&candidate.program, operators].map(|p| shrunken_for(p, candidate.configuration.all_layouts(), &granules));
    let tensors = tensors::drawn(&reference, 1)?;
    let mut configuration = candidate.configuration.clone();
    for ((_, _, whole), (_, _, small)) in candidate.program.units().iter().zip(program.units().iter()) {
        if let Some(config) = configuration.kernels.get_mut(whole.name()) {
            let (whole, small) = (KernelSpec::new(&candidate.program, whole)?, KernelSpec::new(&program, small)?);
            *config = device.scaled(config, &whole, &small);
        }
    }
    let mut execution = Execution::of(&Candidate { program: program.clone(), configuration, ..candidate.clone() }, device)?;
    execution.load(&tensors)?;
    execution.step(pool, 1, 0, true)?;
    let got = execution.results()?;
    let want = interpret(&reference, &tensors, &Run { seed: 1, step: 0, dropout: true })?;
    compare("the oracle, at small sizes", false, &program, &got, &want)
}

/// Compares two candidates at full size.
pub fn verify_full(
    candidate: &Candidate,
    reference: &Candidate,
    tensors: &Tensors,
    pool: &Pool,
    device: &Arc<dyn Device>,
) -> Result<Verification, PipelineError> {
    let results = |candidate: &Candidate| -> Result<Tensors, PipelineError> {
        let mut execution = Execution::of(candidate, device)?;
        execution.load(tensors)?;
        execution.step(pool, 1, 0, true)?;
        execution.results()
    };
    let (want, got) = (results(reference)?, results(candidate)?);
    compare(&format!("{}, at full size", reference.name), true, &candidate.program, &got, &want)
}

/// Whether a kernel decides by comparing computed values, as the derivative of a rectifier does: its results jump where a
/// value lies within rounding of the threshold.
fn compares_values(unit: &Unit) -> bool {
    let Unit::Scope(scope) = unit else { return false };
    let mut found = false;
    for (_, code) in scope.computations().iter().flat_map(|(_, c)| &c.tasklet.code) {
        code.walk(&mut |s| found |= matches!(s, Scalar::Select(condition, ..) if !condition.inputs().is_empty()));
        // Of a sign that is kept, the comparison is the result.
        found |= matches!(code, Scalar::Binary(Binary::Gt, x, _) if !x.inputs().is_empty());
    }
    found
}

/// Relative distance in the Euclidean norm that jumps may cause. A sum of n terms is off by about u·√n of its magnitude;
/// of values spread evenly around the threshold, a share of four times that lies close enough to be decided otherwise
/// (two standard deviations on either side), and each of them changes its term altogether: the root of the share.
fn kink_bound(dtype: Dtype, length: u64) -> f64 {
    (4.0 * dtype.roundoff() * (length as f64).sqrt()).sqrt()
}

/// A ratio of error to tolerance of one unit's result: where the unit decides by comparing values and single elements jumped, that
/// of the whole result's distance to what jumps may make of it.
pub(super) fn excused(unit: &Unit, tolerance: &tolerance::Tolerance, got: &ArrayD<f64>, want: &ArrayD<f64>, ratio: f64) -> f64 {
    if ratio <= 1.0 || !compares_values(unit) {
        return ratio;
    }
    let bound = match tolerance.dtype {
        // Bits round nothing; of few of them, any one may have been close.
        Dtype::Bit => f64::max(kink_bound(Dtype::F32, tolerance.length), (2.0 / got.len() as f64).sqrt()),
        dtype => f64::max(kink_bound(dtype.accumulator(), tolerance.length), kink_bound(dtype, 1)),
    };
    ratio.min(distance(got, want) / bound)
}

/// |got − want| ÷ |want| in the Euclidean norm.
fn distance(got: &ArrayD<f64>, want: &ArrayD<f64>) -> f64 {
    let square = |v: f64| v * v;
    let apart: f64 = got.iter().zip(want).map(|(g, w)| square(g - w)).sum();
    let size: f64 = want.iter().map(|w| square(*w)).sum();
    if apart == 0.0 { 0.0 } else { (apart / size).sqrt() }
}

/// The type that rounds most of all that the program stores.
fn coarsest(program: &Sdfg) -> Dtype {
    let stored = program.containers.values().filter(|c| c.storage == sdfg::Storage::Heap).map(|c| c.dtype);
    stored.max_by(|a, b| a.roundoff().total_cmp(&b.roundoff())).unwrap_or(Dtype::F32)
}

/// What the Euclidean distance of a whole result may be where storage rounds more than sums do: each of `steps` operators
/// stores a result with independent errors of at most u, whose deviation is u/√3 at most; both sides round. Single
/// elements may be off by more, the norm of many hardly: the bound is √3 of their deviations.
fn norm_bound(dtype: Dtype, steps: u64) -> f64 {
    dtype.roundoff() * (2.0 * steps as f64).sqrt()
}

/// Every result against its reference, within the tolerance of the chain of units that it depends on
/// ([`tolerance::program_tolerances`]), relative to the magnitude of its terms ([`accuracy::magnitude`]). Programs that decide
/// by comparing values are held to [`kink_bound`] where single elements jumped; those that store in less than they sum in are
/// held to [`norm_bound`] besides, at sizes that are large enough for it.
fn compare(against: &str, large: bool, program: &Sdfg, got: &Tensors, want: &Tensors) -> Result<Verification, PipelineError> {
    let fault = |e: tolerance::ToleranceError| PipelineError::Measure(e.to_string());
    let tolerances = tolerance::program_tolerances(program).map_err(fault)?;
    let mut longest = 1u64;
    for (_, _, unit) in program.units() {
        let own = tolerance::unit_tolerance(program, &unit).map_err(fault)?;
        longest = longest.max(own.values().map(|t| t.length).max().unwrap_or(1));
    }
    let coarsest = coarsest(program);
    let branches = program.units().iter().any(|(_, _, unit)| compares_values(unit));
    // Sums round at every term, in the accumulator; storage rounds what they are.
    let kinks = |dtype: Dtype| f64::max(kink_bound(dtype.accumulator(), longest), kink_bound(dtype, 1));
    let mut ratios = BTreeMap::new();
    let references = want;
    for (name, got) in got {
        let Some(want) = references.get(name) else { continue };
        let missing = || PipelineError::Internal(format!("`{name}` is a result that no kernel writes"));
        let bound = tolerances.get(name).ok_or_else(missing)?;
        let magnitude = f64::max(1.0, accuracy::magnitude(name, want, references));
        let mut ratio = tolerance::compare(got, want, magnitude, bound).ratio;
        if ratio > 1.0 && branches {
            ratio = ratio.min(distance(got, want) / kinks(bound.dtype));
        }
        ratios.insert(name.clone(), if ratio.is_nan() { f64::INFINITY } else { ratio });
    }
    if coarsest != coarsest.accumulator() && large {
        let bound = norm_bound(coarsest, program.units().len() as u64);
        let bound = if branches { bound.max(kinks(coarsest)) } else { bound };
        for found in accuracy::accuracy(got, references) {
            let ratio = found.norm / bound;
            ratios.entry(found.name).and_modify(|r: &mut f64| *r = f64::max(*r, ratio)).or_insert(ratio);
        }
    }
    let verification = Verification { against: against.to_string(), ratios };
    if verification.worst() > 1.0 {
        let wrong: Vec<String> =
            verification.ratios.iter().filter(|(_, r)| **r > 1.0).map(|(n, r)| format!("`{n}` {r:.3} × tolerance")).collect();
        return Err(PipelineError::Mismatch(format!("against {against}: {}", wrong.join(", "))));
    }
    Ok(verification)
}

/// The unfused program in PyTorch's layout and in its best uniform layout; nothing if it does not fit into memory.
pub fn baselines(sweeps: &Sweeps, store: &Store) -> Result<Vec<Candidate>, PipelineError> {
    let Some(unfused) = &sweeps.unfused else { return Ok(vec![]) };
    let order = pytorch_order(&unfused.program);
    let pytorch = unfused.in_order(store, &order)?;
    let uniform = unfused.select(store, Method::Uniform)?;
    Ok(vec![
        Candidate { name: "unfused · PyTorch's layout".into(), ..unfused.candidate(&pytorch) },
        Candidate { name: "unfused · best uniform layout".into(), ..unfused.candidate(&uniform) },
    ])
}

/// What results are compared with at full size: the unfused program under the plainest configuration of every kernel, products by a
/// library. It shares hardly any code with what is chosen. `None` if it does not fit into memory.
pub fn plainest(sweeps: &Sweeps, device: &dyn Device) -> Result<Option<Candidate>, PipelineError> {
    let Some(unfused) = &sweeps.unfused else { return Ok(None) };
    let mut configuration = Configuration::default();
    for (_, _, unit) in unfused.program.units() {
        let spec = KernelSpec::new(&unfused.program, &unit)?;
        configuration.kernels.insert(spec.name.clone(), device.space(&spec)?.config(0));
    }
    let (name, program) = ("the plainest unfused plan".to_string(), unfused.program.clone());
    Ok(Some(Candidate { name, program, configuration, predicted_ms: f64::NAN, streams: 1, exchanges: vec![] }))
}

/// Puts a plan together.
pub fn plan(
    (recipe, text): (&str, &str),
    overrides: &Overrides,
    chosen: Candidate,
    baselines: Vec<Candidate>,
    mixing: Option<Mixing>,
    (target, device, threads): (Target, &dyn Device, usize),
    command: String,
) -> Plan {
    let device = device.name().unwrap_or_else(|| bench::machine::Machine::here().line());
    let Overrides { sizes, dtype, no_dropout } = overrides.clone();
    let (format, recipe, text, overrides) = (FORMAT, recipe.to_string(), text.to_string(), sizes.into_iter().collect());
    Plan { format, recipe, text, overrides, dtype, no_dropout, target, device, threads, command, mixing, chosen, baselines }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{ArrayD, IxDyn};

    /// Scores are no tensor of the composed program, whose heads are found all the same.
    #[test]
    fn heads_are_found_in_every_program() -> Result<(), Box<dyn std::error::Error>> {
        let recipe = crate::load::load(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml"), &[])?;
        let programs = crate::pipeline::programs::programs(&recipe, false)?;
        assert!(programs.variants.iter().any(|v| v.name == "composed"));
        for variant in &programs.variants {
            let order = |of: fn(&Sdfg) -> Vec<String>| -> Vec<String> {
                let mine = of(&variant.program).into_iter();
                mine.filter(|d| ["b", "j", "k", "h", "p"].contains(&d.as_str())).collect()
            };
            assert_eq!(order(pytorch_order), ["b", "h", "j", "k", "p"], "{}", variant.name);
            assert_eq!(order(flat_order), ["b", "j", "k", "h", "p"], "{}", variant.name);
        }
        Ok(())
    }

    /// Errors that a mistake in one element makes are refused for every result of a layer without rectifiers, at full size.
    #[test]
    fn a_planted_error_is_refused_in_every_result() -> Result<(), Box<dyn std::error::Error>> {
        let recipe = crate::load::load(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml"), &[])?;
        let program = crate::pipeline::programs::programs(&recipe, false)?.variants.remove(0).program;
        // As many elements as there are results, not as the layer has: only their number of dims and the program matter.
        let want: Tensors = tensors::results(&program)
            .iter()
            .map(|c| (c.name.clone(), ArrayD::from_shape_fn(IxDyn(&vec![5; c.dims.len()]), |i| 1.0 - 0.3 * i[0] as f64)))
            .collect();
        assert!(compare("itself", true, &program, &want, &want)?.worst() == 0.0 && want.len() > 5);
        for name in want.keys() {
            for wrong in [1.002, 0.0, -1.0, f64::NAN] {
                let mut got = want.clone();
                got.get_mut(name).into_iter().flat_map(|t| t.iter_mut().take(1)).for_each(|v| *v *= wrong);
                let refused = compare("itself", true, &program, &got, &want).err().map(|e| e.to_string());
                assert!(refused.is_some_and(|why| why.contains(&format!("`{name}`"))), "`{name}` times {wrong} passes");
            }
        }
        Ok(())
    }

    /// The gradient of the keys' bias is zero: what is left of it are roundings of its terms, which are as large as those of the
    /// other biases' gradients.
    #[test]
    fn roundings_of_what_cancels_are_relative_to_its_terms() -> Result<(), Box<dyn std::error::Error>> {
        let recipe = crate::load::load(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml"), &[])?;
        let program = crate::pipeline::programs::programs(&recipe, false)?.variants.remove(0).program;
        let large = ArrayD::from_shape_fn(IxDyn(&[5, 5]), |i| 100.0 - 30.0 * i[0] as f64);
        let with = |left: f64| Tensors::from([("d_bv".to_string(), large.clone()), ("d_bk".to_string(), large.mapv(|v| v * left))]);
        let allowed = tolerance::program_tolerances(&program)?["d_bk"].bound(100.0);
        let check = |off: f64| compare("itself", true, &program, &with(off * allowed / 100.0), &with(0.0)).is_ok();
        assert!(allowed < 1.0 && check(0.5) && check(0.99) && !check(1.01));
        Ok(())
    }

    /// A flipped element among many passes; a wrong scale, a wrong block or a NaN does not.
    #[test]
    fn jumps_are_told_from_mistakes() {
        let want = ArrayD::from_shape_fn(IxDyn(&[2000, 1000]), |i| ((i[0] * 7 + i[1] * 13) % 29) as f64 - 14.0);
        let bound = kink_bound(Dtype::F32, 1024);
        let mut flipped = want.clone();
        flipped[[3, 5]] = 0.0;
        assert!(distance(&flipped, &want) < bound);
        assert!(distance(&want.mapv(|v| v * 1.01), &want) > bound);
        let mut missing = want.clone();
        missing.slice_mut(ndarray::s![0, ..]).fill(0.0);
        assert!(distance(&missing, &want) > bound);
        let mut lost = want.clone();
        lost[[0, 0]] = f64::NAN;
        // Infinity stays infinite beside it: a NaN is never excused.
        assert!(f64::INFINITY.min(distance(&lost, &want)).is_infinite());
    }
}
