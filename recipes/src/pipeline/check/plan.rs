//! Verifies a plan: against the oracle at small sizes, and against another plan at full size.

use super::accuracy;
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::{
    common_sizes, compares_values, distance, kink_bound, overflow_on, tensors, with_sizes, with_small_sizes_for,
};
use crate::pipeline::run::candidate::BESIDE;
use crate::pipeline::run::{Candidate, Execution, default_config};
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::{KernelSpec, KernelSpecs};
use ndarray::ArrayD;
use rayon::prelude::*;
use sdfg::config::Configuration;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::tolerance;
use sdfg::{Dtype, Sdfg, Unit};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The distance of results from their reference.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Verification {
    pub against: String,
    /// By tensor: the largest error ÷ the derived tolerance; correct up to 1.
    pub ratios: BTreeMap<String, f64>,
}

impl Verification {
    pub fn worst(&self) -> f64 {
        worst(&self.ratios)
    }
}

/// The oracle for whole plans of a recipe: what its operators compute at small sizes, interpreted once for each choice of sizes.
pub struct SmallOracle<'a> {
    operators: &'a Sdfg,
    known: Mutex<Vec<Arc<SmallCase>>>,
}

/// The operators at small sizes, drawn inputs, and what the interpreter makes of them.
struct SmallCase {
    reference: Sdfg,
    inputs: Tensors,
    want: Tensors,
}

/// The step in which plans are compared with the oracle.
const STEP: Run = Run { seed: 1, step: 0, dropout: true };

impl<'a> SmallOracle<'a> {
    pub fn new(operators: &'a Sdfg) -> Self {
        SmallOracle { operators, known: Mutex::default() }
    }

    /// No lock is held while the interpreter runs: a thread that waits for a part of its work may take up another candidate.
    fn case(&self, reference: Sdfg) -> Result<Arc<SmallCase>, PipelineError> {
        let all = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(case) = all().iter().find(|case| case.reference.sizes == reference.sizes) {
            return Ok(case.clone());
        }
        let inputs = tensors::inputs_to_compare(&reference, 1)?;
        let want = interpret(&reference, &inputs, &STEP)?;
        let case = Arc::new(SmallCase { reference, inputs, want });
        all().push(case.clone());
        Ok(case)
    }

    /// A candidate with its program at small sizes, and what the interpreter says of these.
    fn small(&self, candidate: &Candidate, device: &Arc<dyn Device>) -> Result<(Candidate, Arc<SmallCase>), PipelineError> {
        let mut granules = Vec::new();
        let wholes = KernelSpecs::of(&candidate.program);
        let specs = candidate.program.units().iter().map(|(_, _, unit)| wholes.spec(unit)).collect::<Result<Vec<_>, _>>()?;
        for spec in &specs {
            granules.extend(device.granules(spec));
            if let Some(config) = candidate.configuration.kernels.get(&spec.name) {
                granules.extend(kernels::split_blocked_dims::granules(spec, config)?);
            }
        }
        let both = [&candidate.program, self.operators];
        let small = both.map(|p| with_small_sizes_for(p, candidate.configuration.all_layouts(), &granules, (&[], i64::MAX)).sizes);
        let sizes = common_sizes(&both, small.into_iter());
        let [program, reference] = both.map(|p| with_sizes(p, &sizes));
        let mut configuration = candidate.configuration.clone();
        for whole in &specs {
            if let Some(config) = configuration.kernels.get_mut(&whole.name) {
                *config = device.scaled(config, whole, &whole.with_sizes(&program.sizes)?);
            }
        }
        Ok((Candidate { program, configuration, ..candidate.clone() }, self.case(reference)?))
    }

    /// Makes the kernels of candidates ahead, at small sizes, and those of `whole` ones as they are: on all cores, and with many texts for
    /// the compiler at a time. What fails is reported where it is checked or timed.
    pub fn compile_ahead(&self, small: &[&Candidate], whole: &[&Candidate], device: &Arc<dyn Device>) {
        let tasks: Vec<(&Candidate, bool)> = small.iter().map(|c| (*c, true)).chain(whole.iter().map(|c| (*c, false))).collect();
        let requests = tasks.par_iter().flat_map(|(candidate, is_small)| {
            let found = match is_small {
                true => self.small(candidate, device).and_then(|(candidate, _)| Execution::requests(&candidate, device)),
                false => Execution::requests(candidate, device),
            };
            found.unwrap_or_default()
        });
        Execution::compile_ahead(&requests.collect::<Vec<_>>(), device);
    }

    /// Runs a candidate at small sizes and compares every result with the oracle.
    ///
    /// # Errors
    /// [`PipelineError::Mismatch`] if a result is off by more than its tolerance; a candidate that cannot be compiled or run.
    pub fn verify(&self, candidate: &Candidate, pool: &Pool, device: &Arc<dyn Device>) -> Result<Verification, PipelineError> {
        let (small, case) = self.small(candidate, device)?;
        let mut execution = Execution::of(&small, device)?;
        execution.load(&case.inputs)?;
        execution.step(pool, STEP.seed, STEP.step, STEP.dropout)?;
        let got = execution.results()?;
        let found = verdict("the oracle, at small sizes", ratios(&[&small.program], &got, &case.want)?);
        match found {
            Err(PipelineError::Mismatch(what)) => {
                let beyond = overflow_on(&case.reference, &case.inputs).map(|why| format!("{why} (so it is off {what})"));
                Err(PipelineError::Mismatch(beyond.unwrap_or(what)))
            }
            found => found,
        }
    }
}

/// Runs a candidate at small sizes and compares every result with the oracle.
///
/// # Errors
/// As [`SmallOracle::verify`].
pub fn verify_small(candidate: &Candidate, operators: &Sdfg, pool: &Pool, device: &Arc<dyn Device>) -> Result<Verification, PipelineError> {
    SmallOracle::new(operators).verify(candidate, pool, device)
}

/// Compares two candidates at full size. Where they differ by more than the bounds and storage is narrower than the accumulator, both are
/// compared with the same program in f32. A result whose terms cancel (the gradient of a bias before a normalization) consists of
/// rounding errors, and no bound relative to it holds. `known` keeps what the reference computes, for a next candidate that is compared
/// with the same one.
pub fn verify_full(
    candidate: &Candidate,
    (reference, known): (&Candidate, &mut Option<Tensors>),
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
    let want = match known {
        Some(want) => &*want,
        nothing => &*nothing.insert(results(reference)?),
    };
    let got = results(candidate)?;
    let sides = [&candidate.program, &reference.program];
    let mut ratios = ratios(&sides, &got, want)?;
    let coarsest = coarsest(&sides);
    if worst(&ratios) > 1.0
        && coarsest != coarsest.accumulator()
        && let Ok(finer) = finer(&reference.program, &**device)
        && let Ok(fine) = results(&finer)
    {
        let fault = |e: tolerance::ToleranceError| PipelineError::Measure(e.to_string());
        let tolerances = tolerance::program_tolerances(&finer.program).map_err(fault)?;
        for (name, ratio) in &mut ratios {
            if let (Some(got), Some(want), Some(exact), Some(own)) = (got.get(name), want.get(name), fine.get(name), tolerances.get(name)) {
                let known_to = own.bound(f64::max(1.0, accuracy::magnitude(name, exact, &fine)));
                *ratio = ratio.min(further(got, want, (exact, known_to)) / NO_WORSE);
            }
        }
    }
    match verdict(&format!("{}, at full size", reference.name), ratios) {
        Err(PipelineError::Mismatch(what)) => Err(PipelineError::Mismatch(what + &without_end(&reference.name, want))),
        found => found,
    }
}

/// What explains a difference at full size: results of the reference that are not finite, of which no plan can be held right. Empty
/// without such results.
fn without_end(reference: &str, want: &Tensors) -> String {
    let names: Vec<&String> = want.iter().filter(|(_, values)| values.iter().any(|v| !v.is_finite())).map(|(name, _)| name).collect();
    let Some(first) = names.first() else { return String::new() };
    format!(
        "; `{first}` is not finite in {reference} either: what inputs are drawn from overflows at full size, so give them a smaller `range:`"
    )
}

/// The largest ratio of a plan's distance from exact results to the reference plan's distance, where no bound is known: both round
/// differently, and sums of few rounding errors scatter.
const NO_WORSE: f64 = 4.0;

/// The program with all 16-bit storage in f32, in default configurations.
fn finer(program: &Sdfg, device: &dyn Device) -> Result<Candidate, PipelineError> {
    let mut program = program.clone();
    for container in program.containers.values_mut() {
        container.dtype = container.dtype.accumulator();
    }
    let mut configuration = Configuration::default();
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(&program, &unit)?;
        configuration.kernels.insert(spec.name.clone(), default_config(device, &spec)?);
    }
    Ok(Candidate {
        name: "the same in f32".into(),
        program,
        configuration,
        predicted_ms: f64::NAN,
        streams: 1,
        packed: false,
        beside: BESIDE,
        exchanges: vec![],
        measured_as: Default::default(),
    })
}

/// The ratio of two results' distances from a third that is exact up to `known_to` in each element: the larger of the ratios by norm and
/// by worst element.
fn further(got: &ArrayD<f64>, other: &ArrayD<f64>, (exact, known_to): (&ArrayD<f64>, f64)) -> f64 {
    let apart = |of: &ArrayD<f64>| {
        let each = || of.iter().zip(exact).map(|(v, e)| (v - e).abs());
        [each().map(|v| v * v).sum::<f64>().sqrt(), each().fold(0.0, |m: f64, v| if v.is_nan() { f64::INFINITY } else { m.max(v) })]
    };
    let [ours, theirs] = [got, other].map(apart);
    let times = |ours: f64, theirs: f64, least: f64| if ours == 0.0 { 0.0 } else { ours / theirs.max(least) };
    let ratio = f64::max(times(ours[0], theirs[0], known_to * (exact.len() as f64).sqrt()), times(ours[1], theirs[1], known_to));
    if ratio.is_nan() { f64::INFINITY } else { ratio }
}

/// The stored type with the largest roundoff among all programs.
fn coarsest(programs: &[&Sdfg]) -> Dtype {
    let containers = programs.iter().flat_map(|p| p.containers.values());
    containers.filter(|c| c.storage == sdfg::Storage::Heap).map(|c| c.dtype).reduce(coarser).unwrap_or(Dtype::F32)
}

/// The type with the larger roundoff.
fn coarser(a: Dtype, b: Dtype) -> Dtype {
    if b.roundoff() > a.roundoff() { b } else { a }
}

/// The bound on the relative Euclidean distance where storage rounds more than sums do. Each of `steps` operators stores a result with
/// independent errors of at most u, whose standard deviation is at most u/√3. Single elements may be off by more, but the norm of many
/// elements hardly: the bound is √3 times the deviation of their sum.
fn norm_bound(dtype: Dtype, steps: u64) -> f64 {
    dtype.roundoff() * (steps as f64).sqrt()
}

/// The ratio of error to tolerance of every result. The tolerance is that of the chain of units that the result depends on
/// ([`tolerance::program_tolerances`]), relative to the magnitude of its terms ([`accuracy::magnitude`]). If the reference is another
/// program, both sides may be off: a fused program rounds less often than an unfused one. Where a program compares values and single
/// elements jumped, [`kink_bound`] applies. Against another program, narrow storage is also held to [`norm_bound`], which needs large
/// sizes.
fn ratios(sides: &[&Sdfg], got: &Tensors, want: &Tensors) -> Result<BTreeMap<String, f64>, PipelineError> {
    let fault = |e: tolerance::ToleranceError| PipelineError::Measure(e.to_string());
    let tolerances = sides.iter().map(|program| tolerance::program_tolerances(program)).collect::<Result<Vec<_>, _>>().map_err(fault)?;
    let units: Vec<(&Sdfg, Unit)> = sides.iter().flat_map(|p| p.units().into_iter().map(|(_, _, unit)| (*p, unit))).collect();
    let mut longest = 1u64;
    for (program, unit) in &units {
        let own = tolerance::unit_tolerance(program, unit).map_err(fault)?;
        longest = longest.max(own.values().map(|t| t.length).max().unwrap_or(1));
    }
    let coarsest = coarsest(sides);
    let branches = units.iter().any(|(_, unit)| compares_values(unit));
    // Sums round at every term, in the accumulator; storage rounds the sum once.
    let kinks = |dtype: Dtype| f64::max(kink_bound(dtype.accumulator(), longest), kink_bound(dtype, 1));
    let mut ratios = BTreeMap::new();
    let references = want;
    for (name, got) in got {
        let Some(want) = references.get(name) else { continue };
        let missing = || PipelineError::Internal(format!("`{name}` is a result that no kernel writes"));
        let magnitude = f64::max(1.0, accuracy::magnitude(name, want, references));
        let (mut shares, mut widest) = (vec![], Dtype::F64);
        for side in &tolerances {
            let own = side.get(name).ok_or_else(missing)?;
            shares.push(own.relative());
            widest = coarser(widest, own.dtype);
        }
        let mut ratio = tolerance::compare_within(got, want, magnitude, shares.iter().sum()).ratio;
        if ratio > 1.0 && branches {
            ratio = ratio.min(distance(got, want) / kinks(widest));
        }
        ratios.insert(name.clone(), if ratio.is_nan() { f64::INFINITY } else { ratio });
    }
    if coarsest != coarsest.accumulator() && sides.len() > 1 {
        let bound = norm_bound(coarsest, units.len() as u64);
        let bound = if branches { bound.max(kinks(coarsest)) } else { bound };
        for found in accuracy::accuracy(got, references) {
            let ratio = found.norm / bound;
            ratios.entry(found.name).and_modify(|r: &mut f64| *r = f64::max(*r, ratio)).or_insert(ratio);
        }
    }
    Ok(ratios)
}

fn worst(ratios: &BTreeMap<String, f64>) -> f64 {
    ratios.values().copied().fold(0.0, f64::max)
}

/// Accepts ratios up to 1, and reports the results beyond.
fn verdict(against: &str, ratios: BTreeMap<String, f64>) -> Result<Verification, PipelineError> {
    if worst(&ratios) > 1.0 {
        let wrong: Vec<String> = ratios.iter().filter(|(_, r)| **r > 1.0).map(|(n, r)| format!("`{n}` {r:.3} × tolerance")).collect();
        return Err(PipelineError::Mismatch(format!("against {against}: {}", wrong.join(", "))));
    }
    Ok(Verification { against: against.to_string(), ratios })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{ArrayD, IxDyn};

    fn compare(sides: &[&Sdfg], got: &Tensors, want: &Tensors) -> Result<Verification, PipelineError> {
        verdict("itself", ratios(sides, got, want)?)
    }

    /// A reference without finite results is named as the reason.
    #[test]
    fn results_that_are_not_finite_are_explained() {
        let tensors = |value: f64| Tensors::from([("y".to_string(), ArrayD::from_elem(IxDyn(&[2]), value))]);
        assert_eq!(without_end("the plainest plan", &tensors(1.0)), "");
        for value in [f64::INFINITY, f64::NAN] {
            let said = without_end("the plainest plan", &tensors(value));
            assert!(said.contains("`y` is not finite in the plainest plan either") && said.contains("`range:`"), "{said}");
        }
    }

    /// An error in one element is refused for every result of a layer without rectifiers, at full size.
    #[test]
    fn a_planted_error_is_refused_in_every_result() -> Result<(), Box<dyn std::error::Error>> {
        let recipe = crate::load::load(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml"), &[])?;
        let program = crate::pipeline::variants::programs::programs(&recipe, false)?.variants.remove(0).program;
        // Five elements along each dim: only the number of dims and the program matter here.
        let want: Tensors = tensors::results(&program)
            .iter()
            .map(|c| (c.name.clone(), ArrayD::from_shape_fn(IxDyn(&vec![5; c.dims.len()]), |i| 1.0 - 0.3 * i[0] as f64)))
            .collect();
        assert!(compare(&[&program, &program], &want, &want)?.worst() == 0.0 && want.len() > 5);
        for name in want.keys() {
            for wrong in [1.002, 0.0, -1.0, f64::NAN] {
                let mut got = want.clone();
                got.get_mut(name).into_iter().flat_map(|t| t.iter_mut().take(1)).for_each(|v| *v *= wrong);
                let refused = compare(&[&program, &program], &got, &want).err().map(|e| e.to_string());
                assert!(refused.is_some_and(|why| why.contains(&format!("`{name}`"))), "`{name}` times {wrong} passes");
            }
        }
        Ok(())
    }

    /// The gradient of the keys' bias is zero. Its computed value consists of rounding errors of its terms, which are as large as those
    /// of the other biases' gradients.
    #[test]
    fn roundings_after_cancellation_are_relative_to_the_terms() -> Result<(), Box<dyn std::error::Error>> {
        let recipe = crate::load::load(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml"), &[])?;
        let program = crate::pipeline::variants::programs::programs(&recipe, false)?.variants.remove(0).program;
        let large = ArrayD::from_shape_fn(IxDyn(&[5, 5]), |i| 100.0 - 30.0 * i[0] as f64);
        let with = |left: f64| Tensors::from([("d_bv".to_string(), large.clone()), ("d_bk".to_string(), large.mapv(|v| v * left))]);
        let allowed = tolerance::program_tolerances(&program)?["d_bk"].bound(100.0);
        let check = |off: f64| compare(&[&program], &with(off * allowed / 100.0), &with(0.0)).is_ok();
        assert!(allowed < 1.0 && check(0.5) && check(0.99) && !check(1.01));
        // Results of another program may be off as well.
        let check = |off: f64| compare(&[&program, &program], &with(off * allowed / 100.0), &with(0.0)).is_ok();
        assert!(check(1.01) && check(1.98) && !check(2.02));
        Ok(())
    }

    /// Two results that consist of rounding errors are equally far from exact; a wrong element is much farther.
    #[test]
    fn no_plan_is_further_from_exact_than_another() {
        let of = |f: &dyn Fn(f64) -> f64| ArrayD::from_shape_fn(IxDyn(&[100]), |i| f(i[0] as f64));
        let (exact, other) = (of(&|_| 0.0), of(&|n| 1e-3 * (n % 7.0 - 3.0)));
        let ours = of(&|n| 1e-3 * (n % 5.0 - 2.0));
        assert!(further(&ours, &other, (&exact, 0.0)) < 1.0 && further(&exact, &other, (&exact, 0.0)) == 0.0);
        // The distance is compared with no less than the known error of the exact result.
        assert!(further(&ours, &exact, (&exact, 0.0)).is_infinite() && further(&ours, &exact, (&exact, 1e-3)) < NO_WORSE);
        for wrong in [0.1, f64::NAN, f64::INFINITY] {
            let mut wrongly = ours.clone();
            wrongly[[50]] = wrong;
            assert!(further(&wrongly, &other, (&exact, 1e-6)) > NO_WORSE, "{wrong}");
        }
    }
}
