//! Results of recipes on NaN, infinities, zeros, subnormal and huge numbers and ties, forward and in gradients, as C and as CUDA on the
//! simulated device, in f32 and in bf16. The references are NumPy and PyTorch, whose answers `bench/peers/special_values.py` has written.
//!
//! `docs/special-values.md` shows the results; `MEMLET_BLESS=1` rewrites its tables.

mod long_sums;
mod page;
mod reasons;

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::target::shim::ShimDevice;
use kernels::{KernelSpec, Toolchain};
use ndarray::ArrayD;
use recipes::load::{Overrides, load_str};
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use sdfg::config::Configuration;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Dtype, Layout, Sdfg};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

/// A function with its inputs, and the results of NumPy and PyTorch. Gradients are those of the sum of the results; results that are rows
/// are represented by their first element.
#[derive(Deserialize)]
pub struct Case {
    kind: Kind,
    name: String,
    steps: Vec<String>,
    inputs: BTreeMap<String, Vec<String>>,
    /// Names of the rows that a reduction gets.
    #[serde(default)]
    rows: Vec<String>,
    numpy: Vec<String>,
    torch_f32: Vec<String>,
    torch_bf16: Vec<String>,
    gradient_f32: BTreeMap<String, Vec<String>>,
    gradient_bf16: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Unary,
    Binary,
    Rows,
}

/// Results, and gradients by input.
#[derive(Clone)]
pub struct Found {
    forward: Vec<f64>,
    gradients: BTreeMap<String, Vec<f64>>,
}

fn number(text: &str) -> f64 {
    text.parse().expect("a number")
}

impl Case {
    fn cases() -> Vec<Case> {
        serde_json::from_str(include_str!("known.json")).expect("what NumPy and PyTorch say")
    }

    /// Elements of an input, or rows.
    fn count(&self) -> usize {
        if self.kind == Kind::Rows { self.rows.len() } else { self.inputs.values().next().map_or(0, Vec::len) }
    }

    fn recipe(&self) -> String {
        let (n, all) = (self.count(), self.inputs.values().next().map_or(0, Vec::len));
        let (dims, of) = match self.kind {
            Kind::Rows => (format!("{{r: {n}, k: {}}}", all / n), "[r, k]"),
            _ => (format!("{{n: {n}}}"), "[n]"),
        };
        let inputs: String = self.inputs.keys().map(|name| format!("  {name}: {of}\n")).collect();
        let steps: String = self.steps.iter().map(|step| format!("  - \"{step}\"\n")).collect();
        format!("model: special\ndims: {dims}\ninputs:\n{inputs}steps:\n{steps}train: {{upstream: z}}\n")
    }

    /// PyTorch's results in a type.
    fn torch(&self, dtype: Dtype) -> Found {
        let (forward, gradients) =
            if dtype == Dtype::F32 { (&self.torch_f32, &self.gradient_f32) } else { (&self.torch_bf16, &self.gradient_bf16) };
        let numbers = |texts: &Vec<String>| texts.iter().map(|t| number(t)).collect();
        Found { forward: numbers(forward), gradients: gradients.iter().map(|(name, texts)| (name.clone(), numbers(texts))).collect() }
    }

    fn run(&self, dtype: Dtype, device: &Arc<dyn Device>, pool: &Pool) -> Result<Found, Failure> {
        let programs =
            programs(&load_str("special.yaml", &self.recipe(), Overrides { dtype: Some(dtype), ..Overrides::default() })?, false)?;
        self.run_as(&programs.unfused, dtype, device, pool)
    }

    fn run_as(&self, program: &Sdfg, dtype: Dtype, device: &Arc<dyn Device>, pool: &Pool) -> Result<Found, Failure> {
        let mut configuration = Configuration::default();
        for (_, _, unit) in program.units() {
            let spec = KernelSpec::new(program, &unit)?;
            configuration.kernels.insert(spec.name.clone(), device.space(&spec)?.config(0));
        }
        configuration.layouts = program.containers.values().map(|c| (c.name.clone(), Layout::row_major(c))).collect();
        let mut execution = Execution::new(program, &configuration, device)?;
        execution.load(&self.given(program, dtype)?)?;
        execution.step(pool, 1, 1, false)?;
        self.found(&execution.results()?)
    }

    /// The interpreter's results in f64.
    fn interpreted(&self, program: &Sdfg) -> Result<Found, Failure> {
        let run = Run { seed: 1, step: 1, dropout: false };
        self.found(&interpret(program, &self.given(program, Dtype::F32)?, &run)?)
    }

    /// Whether all values behind a result are of moderate size, zero, infinite or NaN: then f32 and f64 have the same range.
    fn is_moderate(&self, n: usize, values: usize) -> bool {
        let moderate = |text: &String| {
            let x = number(text);
            x == 0.0 || !x.is_finite() || (1e-9..=10.0).contains(&x.abs())
        };
        match self.kind {
            Kind::Rows => {
                let (row, each) = (n / (values / self.rows.len()), self.inputs["x"].len() / self.rows.len());
                self.inputs["x"][row * each..(row + 1) * each].iter().all(moderate)
            }
            _ => self.inputs.values().all(|texts| moderate(&texts[n])),
        }
    }

    fn given(&self, program: &Sdfg, dtype: Dtype) -> Result<Tensors, Failure> {
        let mut given = Tensors::new();
        for (name, texts) in &self.inputs {
            let values = texts.iter().map(|t| dtype.rounded(number(t))).collect();
            given.insert(name.clone(), ArrayD::from_shape_vec(program.shape_of(name)?, values)?);
        }
        let shape = program.shape_of("d_z")?;
        let row = shape.get(1).copied().unwrap_or(1);
        let upstream = (0..shape.iter().product()).map(|n| if n % row == 0 { 1.0 } else { 0.0 }).collect();
        given.insert("d_z".into(), ArrayD::from_shape_vec(shape, upstream)?);
        Ok(given)
    }

    fn found(&self, results: &Tensors) -> Result<Found, Failure> {
        let values = |name: &str| results.get(name).map(|t| t.iter().copied().collect()).ok_or(format!("no `{name}`"));
        let gradients = self.inputs.keys().map(|name| Ok((name.clone(), values(&format!("d_{name}"))?)));
        Ok(Found { forward: values("z")?, gradients: gradients.collect::<Result<_, String>>()? })
    }
}

/// How a recipe is run, in the order of the page.
pub const WAYS: [&str; 4] = ["C, f32", "CUDA, f32", "C, bf16", "CUDA, bf16"];

fn dtype_of(way: usize) -> Dtype {
    if way < 2 { Dtype::F32 } else { Dtype::Bf16 }
}

/// Whether a result agrees with the reference within rounding. The sign of a zero is not compared.
fn agrees(got: f64, want: f64, dtype: Dtype) -> bool {
    let share = 32.0 * dtype.roundoff() * if dtype == Dtype::F32 { 4.0 } else { 0.25 };
    got == want || got.is_nan() && want.is_nan() || if want == 0.0 { got.abs() <= 1e-6 } else { (got - want).abs() <= share * want.abs() }
}

/// One place where a way of running differs from NumPy or PyTorch.
pub struct Difference {
    case: String,
    /// Input value or row.
    given: String,
    /// `forward`, or the gradient of an input.
    what: String,
    way: usize,
    peer: &'static str,
    got: f64,
    want: f64,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Difference { case, given, what, way, peer, got, want } = self;
        write!(f, "{case} | {given} | {what} | {} | {got:e}, {peer} {want:e}", WAYS[*way])
    }
}

/// All differences between the results of a case and the peers'.
fn differences(case: &Case, found: &[Found]) -> Vec<Difference> {
    let mut all = Vec::new();
    let named = |n: usize, values: usize| match case.kind {
        Kind::Rows => case.rows[n / (values / case.rows.len())].clone(),
        _ => case.inputs.values().map(|texts| texts[n].as_str()).collect::<Vec<_>>().join(", "),
    };
    for (way, found) in found.iter().enumerate() {
        let (dtype, torch) = (dtype_of(way), case.torch(dtype_of(way)));
        let mut compare = |what: &str, peer, got: &[f64], want: &[f64]| {
            let count = want.len();
            assert_eq!(got.len(), count, "{}", case.name);
            for (n, (got, want)) in got.iter().zip(want).enumerate().filter(|(_, (g, w))| !agrees(**g, **w, dtype)) {
                let (case, given) = (case.name.clone(), named(n, count));
                all.push(Difference { case, given, what: what.into(), way, peer, got: *got, want: *want });
            }
        };
        compare("forward", "PyTorch", &found.forward, &torch.forward);
        if dtype == Dtype::F32 {
            compare("forward", "NumPy", &found.forward, &case.numpy.iter().map(|t| number(t)).collect::<Vec<_>>());
        }
        for (name, gradient) in &found.gradients {
            compare(&format!("d_{name}"), "PyTorch", gradient, &torch.gradients[name]);
        }
    }
    all
}

fn cores() -> Result<Arc<dyn Device>, Failure> {
    let toolchain = Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..Toolchain::system()? };
    Ok(Arc::new(Cores { toolchain }))
}

/// Fusion, recomputation and saved slopes change no special value.
#[test]
fn every_program_of_a_recipe_has_the_same_special_values() -> Result<(), Failure> {
    let (cores, pool) = (cores()?, Pool::new(1)?);
    for case in Case::cases() {
        let programs = programs(&load_str("special.yaml", &case.recipe(), &[])?, false)?;
        let want = case.run_as(&programs.unfused, Dtype::F32, &cores, &pool)?;
        for variant in &programs.variants {
            let got = case.run_as(&variant.program, Dtype::F32, &cores, &pool)?;
            let pairs = [(&got.forward, &want.forward)].into_iter().chain(got.gradients.values().zip(want.gradients.values()));
            for (got, want) in pairs {
                let same = got.iter().zip(want).all(|(g, w)| agrees(*g, *w, Dtype::F32));
                assert!(same, "{} of {}: {got:?}, unfused {want:?}", variant.key, case.name);
            }
        }
    }
    Ok(())
}

/// The interpreter, the reference for kernels, has the same special values.
#[test]
fn the_interpreter_has_the_same_special_values() -> Result<(), Failure> {
    let (cores, pool) = (cores()?, Pool::new(1)?);
    for case in Case::cases() {
        let programs = programs(&load_str("special.yaml", &case.recipe(), &[])?, false)?;
        let (got, want) = (case.run_as(&programs.unfused, Dtype::F32, &cores, &pool)?, case.interpreted(&programs.unfused)?);
        let pairs = [(&got.forward, &want.forward)].into_iter().chain(got.gradients.values().zip(want.gradients.values()));
        for (got, want) in pairs {
            for n in (0..got.len()).filter(|n| case.is_moderate(*n, got.len())) {
                let same = agrees(got[n], want[n], Dtype::F32);
                assert!(same, "{}, number {n}: {:e}, the interpreter has {:e}", case.name, got[n], want[n]);
            }
        }
    }
    Ok(())
}

#[test]
fn special_values_agree_with_the_page() -> Result<(), Failure> {
    let (cores, shim): (_, Arc<dyn Device>) =
        (cores()?, Arc::new(ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into())));
    let (pool, cases) = (Pool::new(1)?, Case::cases());
    let mut all = Vec::new();
    for case in &cases {
        let run = |dtype, device| case.run(dtype, device, &pool).map_err(|e| format!("{}: {e}", case.name));
        let found = vec![run(Dtype::F32, &cores)?, run(Dtype::F32, &shim)?, run(Dtype::Bf16, &cores)?, run(Dtype::Bf16, &shim)?];
        all.push((case, found));
    }
    let differences: Vec<Difference> = all.iter().flat_map(|(case, found)| differences(case, found)).collect();
    let unexplained: Vec<String> = differences.iter().filter(|d| reasons::of(d).is_none()).map(|d| d.to_string()).collect();
    for line in &unexplained {
        println!("{line}");
    }
    assert!(unexplained.is_empty(), "{} differences have no reason", unexplained.len());
    let idle = reasons::idle(&differences);
    assert!(idle.is_empty(), "reasons without a difference: {idle:?}");
    page::check(&all, &differences)
}
