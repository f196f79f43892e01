//! Parameters and state that the step replaces: optimizers against their formulas, over several steps, in the interpreter and in kernels.

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::target::shim::ShimDevice;
use kernels::{ArgumentAccess, KernelSpec, Toolchain};
use ndarray::{Array1, Array2, Axis};
use recipes::load::{load_str, operator_names};
use recipes::pipeline::oracle::tensors::next_step;
use recipes::pipeline::oracle::{ReferenceCache, with_small_sizes};
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use sdfg::config::Configuration;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Role, Sdfg};
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

const RUN: Run = Run { seed: 1, step: 0, dropout: true };
const STEPS: usize = 4;

fn recipe(update: &str) -> String {
    format!(
        "model: m\ndims: {{n: 6, i: 5, o: 3}}\ndtype: f64\ninputs:\n  x: {{dims: [n, i], grad: false}}\n  y: {{dims: [n, o], grad: false}}\n\
         parameters:\n  w: [o, i]\n  b: [o]\nsteps:\n  - \"z[n,o] = w[o,i] * x[n,i] + b[o] - y[n,o]\"\n  - \"loss[] = sum(z * z, over: [n, o])\"\n\
         train: {{loss: loss}}\nupdate: {update}\n"
    )
}

/// The loss of a step, and its gradients by hand.
struct Model {
    x: Array2<f64>,
    y: Array2<f64>,
}

impl Model {
    fn gradients(&self, w: &Array2<f64>, b: &Array1<f64>) -> (f64, Array2<f64>, Array1<f64>) {
        let z = self.x.dot(&w.t()) + b - &self.y;
        (z.mapv(|v| v * v).sum(), 2.0 * z.t().dot(&self.x), 2.0 * z.sum_axis(Axis(0)))
    }
}

/// What an optimizer makes of a parameter, its gradient and its state, in the step of this number (from 1).
type Rule = fn(&mut f64, f64, &mut [f64; 2], i32);

const RULES: [(&str, Rule); 4] = [
    ("sgd(rate: 0.01)", |p, g, _, _| *p -= 0.01 * g),
    ("momentum(rate: 0.01, decay: 0.8)", |p, g, [m, _], _| {
        *m = 0.8 * *m + g;
        *p -= 0.01 * *m;
    }),
    ("rmsprop(rate: 0.02, decay: 0.7, eps: 1e-6)", |p, g, [_, v], _| {
        *v = 0.7 * *v + 0.3 * g * g;
        *p -= 0.02 * g / (*v + 1e-6).sqrt();
    }),
    ("adam(rate: 0.05, beta1: 0.8, beta2: 0.95, eps: 1e-4)", |p, g, [m, v], t| {
        *m = 0.8 * *m + 0.2 * g;
        *v = 0.95 * *v + 0.05 * g * g;
        *p -= 0.05 * (1.0 - 0.95f64.powi(t)).sqrt() / (1.0 - 0.8f64.powi(t)) * *m / (v.sqrt() + 1e-4);
    }),
];

fn given() -> (Model, Array2<f64>, Array1<f64>, Tensors) {
    let draw = |name: &str, n: usize| sdfg::random::tensor(3, name, n);
    let matrix = |name: &str, rows, columns| Array2::from_shape_vec((rows, columns), draw(name, rows * columns)).expect("a matrix");
    let model = Model { x: matrix("x", 6, 5), y: matrix("y", 6, 3) };
    let (w, b) = (matrix("w", 3, 5), Array1::from(draw("b", 3)));
    let tensors =
        [("x", model.x.clone().into_dyn()), ("y", model.y.clone().into_dyn()), ("w", w.clone().into_dyn()), ("b", b.clone().into_dyn())];
    (model, w, b, tensors.map(|(name, tensor)| (name.to_string(), tensor)).into())
}

/// The inputs with state as it is before the first step.
fn begun(program: &Sdfg, tensors: &Tensors) -> Tensors {
    let mut tensors = tensors.clone();
    for container in program.containers.values() {
        if let Some(initial) = container.initial {
            let shape = program.shape_of(&container.name).expect("sizes");
            tensors.insert(container.name.clone(), ndarray::ArrayD::from_elem(shape, initial.0));
        }
    }
    tensors
}

fn close(got: &Tensors, name: &str, want: &[f64], what: &str) {
    let off = got[name].iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(got[name].len() == want.len() && off < 1e-12, "`{name}` of {what} is off by {off:e}");
}

/// The parameters after [`STEPS`] steps by hand, and the last loss.
fn by_hand(rule: Rule, scale: impl Fn(f64) -> f64) -> (Vec<f64>, Vec<f64>, f64) {
    let (model, mut w, mut b, _) = given();
    let mut state = vec![[0.0; 2]; w.len() + b.len()];
    let mut last = 0.0;
    for t in 1..=STEPS as i32 {
        let (loss, dw, db) = model.gradients(&w, &b);
        let norm = dw.iter().chain(&db).map(|g| g * g).sum::<f64>().sqrt();
        let all = w.iter_mut().zip(&dw).chain(b.iter_mut().zip(&db));
        all.zip(&mut state).for_each(|((p, g), state)| rule(p, g * scale(norm), state, t));
        last = loss;
    }
    (w.iter().copied().collect(), b.iter().copied().collect(), last)
}

#[test]
fn optimizers_follow_their_formulas_in_every_program_and_on_every_device() -> Result<(), Failure> {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    let cores: Arc<dyn Device> = Arc::new(Cores { toolchain: Toolchain { cache: cache.into(), ..Toolchain::system()? } });
    let shim: Arc<dyn Device> = Arc::new(ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into()));
    let (_, _, _, tensors) = given();
    for (n, (update, rule)) in RULES.into_iter().enumerate() {
        let (w, b, loss) = by_hand(rule, |_| 1.0);
        let programs = programs(&load_str("m.yaml", &recipe(&format!("\"{update}\"")), &[])?, false)?;
        let mut at = begun(&programs.operators, &tensors);
        let mut results = Tensors::new();
        for _ in 0..STEPS {
            results = interpret(&programs.operators, &at, &RUN)?;
            at = next_step(&programs.operators, &at, &results);
        }
        close(&results, "w.new", w.as_slice(), update);
        close(&results, "b.new", b.as_slice(), update);
        close(&results, "loss", &[loss], update);
        assert_eq!(programs.operators.containers["d_w"].role, Role::Transient, "a gradient that is used up is no result");
        let variants = programs.variants.iter().map(|variant| &variant.program);
        for program in [&programs.unfused].into_iter().chain(variants) {
            // The simulator is slow: one optimizer shows how it replaces parameters.
            for device in [&cores, &shim].into_iter().take(if n == 3 { 2 } else { 1 }) {
                let mut configuration = Configuration::default();
                for (_, _, unit) in program.units() {
                    let spec = KernelSpec::new(program, &unit)?;
                    configuration.kernels.insert(spec.name.clone(), device.space(&spec)?.config(0));
                }
                let mut execution = Execution::new(program, &configuration, device)?;
                execution.load(&begun(program, &tensors))?;
                let pool = Pool::new(2)?;
                // From the beginning twice: what was loaded comes back.
                for _ in 0..2 {
                    assert!(execution.restart()?);
                    for _ in 0..STEPS {
                        execution.step(&pool, 1, 0, true)?;
                    }
                    let got = execution.results()?;
                    close(&got, "w.new", w.as_slice(), update);
                    close(&got, "b.new", b.as_slice(), update);
                    close(&got, "loss", &[loss], update);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_are_clipped_by_the_norm_of_all() -> Result<(), Failure> {
    let (w, b, _) = by_hand(RULES[0].1, |norm| f64::min(1.0, 0.5 / (norm + 1e-12)));
    let recipe = load_str("m.yaml", &recipe("\"sgd(rate: 0.01, clip: 0.5)\""), &[])?;
    let program = programs(&recipe, false)?.operators;
    let (mut at, mut results) = (given().3, Tensors::new());
    for _ in 0..STEPS {
        results = interpret(&program, &at, &RUN)?;
        at = next_step(&program, &at, &results);
    }
    close(&results, "w.new", w.as_slice(), "clipped sgd");
    close(&results, "b.new", b.as_slice(), "clipped sgd");
    Ok(())
}

/// Right sides read the values of this step, whatever lines above assign.
#[test]
fn new_values_take_their_places_together() -> Result<(), Failure> {
    let text = "model: m\ndims: {i: 4}\ndtype: f64\ninputs: {x: [i]}\nstate:\n  a: [i]\n  b: {dims: [i], initial: 2}\n  count: []\nsteps:\n  - \
                y[i] = x[i] + a[i]\nupdate:\n  - a[i] = b\n  - b[i] = a + x\n  - count[] = count + 1\n";
    let program = load_str("m.yaml", text, &[])?.program;
    let mut at: Tensors = [("x".to_string(), ndarray::arr1(&[1.0, 2.0, 3.0, 4.0]).into_dyn())].into();
    at = begun(&program, &at);
    for _ in 0..3 {
        let results = interpret(&program, &at, &RUN)?;
        at = next_step(&program, &at, &results);
    }
    // (a, b): (0, 2), (2, x), (x, 2 + x), (2 + x, 2x).
    assert_eq!(at["a"], ndarray::arr1(&[3.0, 4.0, 5.0, 6.0]).into_dyn());
    assert_eq!(at["b"], ndarray::arr1(&[2.0, 4.0, 6.0, 8.0]).into_dyn());
    assert_eq!(at["count"].sum(), 3.0);
    Ok(())
}

#[test]
fn updates_that_fail_say_what_to_do() {
    let errors = |update: &str| load_str("t.yaml", &recipe(update), &[]).expect_err(update).to_string();
    let cases = [
        ("\"sdg(rate: 0.1)\"", "t.yaml:14:10: unknown optimizer `sdg`; did you mean `sgd`?"),
        ("\"sgd()\"", "t.yaml:14:10: `sgd` takes `rate:`, as in `sgd(rate: 0.01)`"),
        ("\"sgd(rat: 1, rate: 1)\"", "t.yaml:14:14: `sgd` has no option `rat`; did you mean `rate`?"),
        ("\"sgd(x, rate: 1)\"", "t.yaml:14:14: `x` is no parameter that has a gradient; valid: `w`, `b`"),
        ("[\"sgd(rate: 1)\", \"sgd(rate: 2)\"]", "`sgd` has nothing to update: no parameter has a gradient that another line does not use"),
        (
            "\"x[n,i] = x\"",
            "t.yaml:14:10: `x` is given anew each step, so no line of `update` can assign it; only parameters and state are kept",
        ),
        ("\"w[i,o] = w\"", "`w` is updated as a whole: write `w[o, i] = …`"),
        ("\"w[o,i] = w - d_x[n,i]\"", "t.yaml:14:23: there is no `d_x`: `x` says `grad: false`"),
        ("[\"b[o] = b\", \"b[o] = d_b\"]", "`b` is already assigned at line 14"),
        ("\"z[n,o] = w\"", "`z` is already assigned at line 11"),
        ("\"w\"", "a line of `update` reads `name[index, …] = expression`, or is an optimizer, as in `sgd(rate: 0.01)`"),
        ("3", "`update` must be a line or a list of lines, such as `sgd(rate: 0.01)` or `w[o,i] = w - 0.01 * d_w`"),
        ("\"w[o,i] = dropout(w, rate: 0.5)\"", "a line of `update` cannot drop anything"),
    ];
    for (update, expected) in cases {
        let found = errors(update);
        assert!(found.contains(expected), "{update}: {found}");
    }
    let without = recipe("\"sgd(rate: 0.1)\"").replace("train: {loss: loss}\n", "");
    let found = load_str("t.yaml", &without, &[]).expect_err("no gradients").to_string();
    assert!(found.contains("`sgd` has nothing to update"), "{found}");
    assert!(operator_names().all(|name| name != "sgd"), "optimizers are no operators of steps");
}

#[test]
fn a_program_with_updates_is_read_back_from_its_text() -> Result<(), Failure> {
    let recipe = load_str("m.yaml", &recipe("\"adam(rate: 0.1)\""), &[])?;
    let program = programs(&recipe, false)?.operators;
    let text = sdfg::text::print(&program);
    assert!(text.contains("initially 0") && text.contains("replaces w"), "{text}");
    assert_eq!(sdfg::text::parse(&text)?, program);
    assert!(sdfg::validate::validate(&program).is_empty());
    let mut wrong = program.clone();
    for (name, of, expected) in [("w.new", "x", "which is no parameter"), ("w.new", "b", "other dims"), ("w.new", "q", "not declared")] {
        wrong.containers[name].replaces = Some(of.into());
        let faults: Vec<String> = sdfg::validate::validate(&wrong).iter().map(ToString::to_string).collect();
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{faults:?}");
    }
    Ok(())
}

/// The gradient of a bias of keys is 0 but for rounding errors, which Adam's first step would make as large as any other: programs are
/// compared in a later one.
#[test]
fn a_gradient_of_rounding_errors_accuses_no_program() -> Result<(), Failure> {
    let text = "model: keys\ndims: {b: 4, j: 6, k: j, p: 8, i: 16}\ninputs:\n  x: {dims: [b, j, i], grad: false}\n  lr: {dims: [], grad: false, \
                range: [0, 1]}\nparameters: {wq: [p, i], wk: [p, i], bk: [p]}\nsteps:\n  - q[b,j,p] = wq[p,i] * x[b,j,i]\n  \
                - s[b,k,p] = wk[p,i] * x[b,k,i] + bk[p]\n  - \"a[b,j,k] = softmax(q[b,j,p] * s[b,k,p], over: k)\"\n  \
                - \"loss[] = mean(sum(a[b,j,k] * x[b,k,i], over: k) * x[b,j,i], over: [b, j, i])\"\ntrain: {loss: loss}\nupdate: \"adam(rate: lr)\"\n";
    let mut told = String::new();
    let recipe = load_str("keys.yaml", text, &[])?;
    let programs = recipes::pipeline::variants::checked_programs::checked_programs(&recipe, false, None, &mut |text| told += text)?;
    assert!(told.is_empty() && programs.variants.len() > 1, "{told}");
    let at_first = recipes::pipeline::oracle::tensors::random_inputs(&programs.operators, 1)?;
    let compared = recipes::pipeline::oracle::tensors::inputs_to_compare(&programs.operators, 1)?;
    assert!(at_first["bk_v"].iter().all(|v| *v == 0.0) && compared["bk_v"].iter().all(|v| *v > 0.0));
    let spread = |given: &Tensors| -> Result<f64, Failure> {
        let updates = programs.variants.iter().map(|variant| Ok(interpret(&variant.program, given, &RUN)?["bk.new"].clone()));
        let updates: Vec<ndarray::ArrayD<f64>> = updates.collect::<Result<_, Failure>>()?;
        let apart = |other: &ndarray::ArrayD<f64>| (other - &updates[0]).iter().fold(0.0, |most, d| f64::max(most, d.abs()));
        Ok(updates.iter().map(apart).fold(0.0, f64::max))
    };
    // In units of what one step changes at most, the rate.
    let rate = compared["lr"].sum();
    assert!(spread(&compared)? < 1e-14 * rate.max(1e-3), "{:e}", spread(&compared)?);
    Ok(())
}

#[test]
fn kernels_are_checked_with_single_numbers_of_the_program_itself() -> Result<(), Failure> {
    let text = recipe("\n  - \"eps[] = 1e-8 * sqrt(1 - pow(0.999, adam_t + 1))\"\n  - \"adam(rate: 0.01, eps: eps)\"");
    let small = with_small_sizes(&programs(&load_str("m.yaml", &text, &[])?, true)?.variants[0].program);
    let mut readers = 0;
    for (_, _, unit) in small.units() {
        let spec = KernelSpec::new(&small, &unit)?;
        if spec.arguments().iter().any(|a| a.data == "eps" && a.access == ArgumentAccess::Read) {
            let mut cache = ReferenceCache::default();
            cache.run(&spec, &small)?;
            let reference = cache.says(&spec.name, &small.sizes).ok_or("no reference")?;
            let eps = reference.inputs["eps"].iter().copied().next().ok_or("no number")?;
            // A number drawn for the kernel alone would lie in −2..2, and a negative one may cancel the root of the second moment.
            assert!(eps > 0.0 && eps <= 1e-8, "{eps}");
            readers += 1;
        }
    }
    assert!(readers > 0);
    Ok(())
}
