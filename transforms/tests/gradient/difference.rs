//! Gradients of test programs, compared with differences and with one another.

use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Role, Sdfg};
use transforms::differentiate::{Options, differentiate};
use transforms::verify::gradients::{Differences, check_gradients};
use transforms::{Recompute, ReluSignFromOutput, recompute::Saved, run_pipeline};

pub const RUN: Run = Run { seed: 11, step: 3, dropout: true };

/// Every tensor is differenced along two random directions, and up to so many elements one by one.
const DIFFERENCES: Differences = Differences { random: 2, single: 16 };

/// Random values in (−2, 2) for every input and parameter, none within 2⁻¹⁰ of 0, where rectifiers have their kink.
pub fn random_tensors(program: &Sdfg, seed: u64) -> Tensors {
    let given = program.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter));
    given.map(|c| (c.name.clone(), random_tensor(program, seed, &c.name))).collect()
}

pub fn random_tensor(program: &Sdfg, seed: u64, name: &str) -> ArrayD<f64> {
    random_like(&program.shape_of(name).unwrap(), seed, name)
}

fn random_like(shape: &[usize], seed: u64, name: &str) -> ArrayD<f64> {
    let values = sdfg::random::tensor(seed, name, shape.iter().product());
    let away = |v: f64| if v.abs() < 2f64.powi(-10) { v + 0.25f64.copysign(v) } else { v };
    ArrayD::from_shape_vec(IxDyn(shape), values.into_iter().map(away).collect()).unwrap()
}

/// Checks the gradients of all inputs and parameters by `output`, and prints the largest error ÷ tolerance.
pub fn check(program: &Sdfg, output: &str, seed: u64) {
    let (inputs, upstream) = (random_tensors(program, seed), random_tensor(program, seed, output));
    let options = Options { upstream: vec![output.into()], ..Options::default() };
    let differentiated = differentiate(program, &options).unwrap_or_else(|e| panic!("{}: {e}", program.name));
    let mut given = inputs.clone();
    given.insert(format!("d_{output}"), upstream.clone());
    let gradients = interpret(&differentiated, &given, &RUN).unwrap_or_else(|e| panic!("{}: {e}", program.name));
    compare(program, output, inputs, upstream, &gradients);
}

/// As [`check`], for gradients computed elsewhere.
pub fn compare(program: &Sdfg, output: &str, mut given: Tensors, upstream: ArrayD<f64>, gradients: &Tensors) {
    for name in given.keys() {
        assert!(gradients.contains_key(&format!("d_{name}")), "{}: no d_{name}", program.name);
    }
    given.insert(format!("d_{output}"), upstream);
    let options = Options { upstream: vec![output.into()], ..Options::default() };
    let worst = check_gradients(program, &options, &given, gradients, &DIFFERENCES, &RUN);
    let worst = worst.unwrap_or_else(|why| panic!("{}: {why}", program.name));
    println!("{}: largest error ÷ tolerance {worst:.3}", program.name);
}

/// A differentiated program in which backward recomputes what pays, and what was decided.
pub fn recompute(program: &Sdfg) -> (Sdfg, Vec<Saved>) {
    let passes: [&dyn transforms::Pass; 2] = [&ReluSignFromOutput, &Recompute::default()];
    let outcome = run_pipeline(program, &passes, &transforms::DriverOptions::default()).unwrap();
    (outcome.program, outcome.facts.saved)
}

/// Compares the gradients and outputs of two differentiated programs of `forward` whose result is `y`.
pub fn same_gradients(forward: &Sdfg, one: &Sdfg, other: &Sdfg, seeds: u64) {
    for seed in 0..seeds {
        let mut given = random_tensors(forward, seed);
        given.insert("d_y".into(), random_tensor(forward, seed, "y"));
        let (want, got) = (interpret(one, &given, &RUN).unwrap(), interpret(other, &given, &RUN).unwrap());
        for container in one.containers.values().filter(|c| matches!(c.role, Role::Gradient | Role::Output)) {
            for (got, want) in got[&container.name].iter().zip(&want[&container.name]) {
                assert!((got - want).abs() <= 1e-12 * want.abs().max(1.0), "{}: {got} instead of {want}", container.name);
            }
        }
    }
}
