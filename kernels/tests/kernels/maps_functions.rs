//! Accuracy of the functions of generated code, and what they make of infinities and NaN.

use crate::common::{self, at, heap, program, tasklet, v};
use crate::harness::{self, Failure, Reference, toolchain};
use kernels::pool::Pool;
use kernels::target::cpu;
use ndarray::ArrayD;
use sdfg::config::KernelConfig;
use sdfg::interpret::Tensors;
use sdfg::tolerance::FUNCTION;
use sdfg::{Role, Scalar, Scope, Unary, Unit};

const POINTS: usize = 40_000;

/// f over these values: of the kernel, and of the interpreter in double precision.
fn values(function: Unary, inputs: &[f32]) -> Result<(Vec<f64>, Vec<f64>), Failure> {
    values_of(Scalar::unary(function, v("x")), inputs)
}

fn values_of(code: Scalar, inputs: &[f32]) -> Result<(Vec<f64>, Vec<f64>), Failure> {
    let sizes = [("n", inputs.len() as i64)];
    let mut p = program(&sizes);
    heap(&mut p, "x", &["n"], Role::Input);
    heap(&mut p, "y", &["n"], Role::Output);
    let body = vec![tasklet(at("y", &["n"]), code, vec![at("x", &["n"])])];
    let unit = Unit::Scope(Scope::new("function", common::over(&["n"], sdfg::IndexKind::Independent), body));
    let given = ArrayD::from_shape_vec(vec![inputs.len()], inputs.iter().map(|x| f64::from(*x)).collect())?;
    let mut want = Tensors::from([("x".to_string(), given.clone())]);
    sdfg::interpret::interpret_unit(&p, &unit, &mut want, &harness::RUN)?;
    let reference = Reference::of(&p, &unit, Tensors::from([("x".to_string(), given)]))?;
    let config = KernelConfig::default();
    let kernel = cpu::maps::compile(&reference.spec, &config, &toolchain()?)?;
    let got = reference.run(&kernel, &config, &Pool::new(1)?)?;
    Ok((got["y"].iter().copied().collect(), want["y"].iter().copied().collect()))
}

/// The worst error, in unit roundoffs of the value that it should have; for subnormal values of the smallest normal one.
fn roundoffs(got: &[f64], want: &[f64]) -> f64 {
    let unit = |w: f64| sdfg::Dtype::F32.roundoff() * w.abs().max(f64::from(f32::MIN_POSITIVE));
    got.iter().zip(want).map(|(g, w)| (g - w).abs() / unit(*w)).fold(0.0, f64::max)
}

/// Evenly spaced values, ends included.
fn between(from: f64, to: f64) -> Vec<f32> {
    (0..POINTS).map(|n| (from + (to - from) * n as f64 / (POINTS - 1) as f64) as f32).collect()
}

#[test]
fn functions_are_within_what_tolerances_count_for_them() -> Result<(), Failure> {
    let powers: Vec<f32> = between(-126.0, 127.9).into_iter().map(f32::exp2).collect();
    let near_zero = [
        (Unary::Exp, between(-1.0, 1.0)),
        (Unary::Log, powers.clone()),
        (Unary::Tanh, between(-0.7, 0.7)),
        (Unary::Erf, between(-0.1, 0.1)),
        (Unary::Sqrt, powers.clone()),
        (Unary::Rsqrt, powers),
    ];
    let all = Unary::ALL.iter().map(|op| (*op, between(op.row().domain.0, op.row().domain.1)));
    let cases: Vec<(Unary, Vec<f32>)> = all.chain(near_zero).collect();
    for (function, inputs) in cases {
        let (got, want) = values(function, &inputs)?;
        let worst = roundoffs(&got, &want);
        println!("{function:?} in {} to {}: {worst:.2} roundoffs", inputs[0], inputs[POINTS - 1]);
        let allowed = function.row().roundings;
        assert!(worst <= allowed as f64, "{function:?}: {worst} roundoffs, {allowed} are allowed for");
    }
    Ok(())
}

/// Powers that are products of roots: as near as the library's are taken to be, and what IEEE 754 has of zeros and infinities.
#[test]
fn powers_by_quarters_are_powers() -> Result<(), Failure> {
    let inputs: Vec<f32> = between(-126.0, 127.9).into_iter().map(f32::exp2).chain(between(0.5, 3.0)).collect();
    let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0, -0.0, 1.0, -1.0, -1e30];
    let special: Vec<f32> = special.iter().flat_map(|x| [*x; 17]).collect();
    for exponent in [0.25, 0.5, 0.75, 1.5, -0.25, -0.5, -0.75, -1.5] {
        let power = || Scalar::binary(sdfg::Binary::Pow, v("x"), Scalar::Const(exponent));
        // Where the power is no number of f32, or is subnormal, so is the kernel's.
        let within: Vec<f32> = inputs.iter().copied().filter(|x| (-125.0..127.0).contains(&(f64::from(*x).log2() * exponent))).collect();
        let (got, want) = values_of(power(), &within)?;
        let worst = roundoffs(&got, &want);
        assert!(worst <= FUNCTION as f64, "to the {exponent}: {worst} roundoffs");
        let (got, want) = values_of(power(), &special)?;
        for ((x, got), want) in special.iter().zip(got).zip(want) {
            let same = got == want && got.is_sign_negative() == want.is_sign_negative();
            assert!(same || got.is_nan() && want.is_nan(), "{x} to the {exponent} is {got}, not {want}");
        }
    }
    Ok(())
}

#[test]
fn the_exponential_is_0_below_the_normal_numbers() -> Result<(), Failure> {
    let (got, want) = values(Unary::Exp, &between(-110.0, -87.0))?;
    let smallest = f64::from(f32::MIN_POSITIVE);
    let (below, normal): (Vec<_>, Vec<_>) = got.into_iter().zip(want).partition(|(_, w)| *w < smallest);
    assert!(below.iter().all(|(g, w)| *g == 0.0 || (g - w).abs() <= smallest * 1e-6), "{below:?}");
    let (got, want): (Vec<f64>, Vec<f64>) = normal.into_iter().unzip();
    let worst = roundoffs(&got, &want);
    assert!(!got.is_empty() && worst <= FUNCTION as f64, "{worst} roundoffs");
    Ok(())
}

/// Kernels make of infinities, NaN and 0 what the interpreter makes of them, whatever the function.
#[test]
fn special_values_are_those_of_the_interpreter() -> Result<(), Failure> {
    let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0, 1.0, -1.0];
    let inputs: Vec<f32> = special.iter().flat_map(|x| [*x; 17]).collect();
    for function in Unary::ALL {
        let (got, want) = values(*function, &inputs)?;
        for ((x, got), want) in inputs.iter().zip(got).zip(want) {
            let near = (got - want).abs() <= sdfg::Dtype::F32.roundoff() * function.row().roundings as f64 * want.abs();
            assert!(got == want || near || got.is_nan() && want.is_nan(), "{function:?} of {x} is {got}, not {want}");
        }
    }
    Ok(())
}

#[test]
fn infinities_and_nan_come_through() -> Result<(), Failure> {
    let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 0.0];
    let (zero, one, nan, infinity) = (0.0, 1.0, f64::NAN, f64::INFINITY);
    for (function, wanted) in [
        (Unary::Exp, [zero, infinity, nan, one]),
        (Unary::Log, [nan, infinity, nan, -infinity]),
        (Unary::Tanh, [-one, one, nan, zero]),
        (Unary::Erf, [-one, one, nan, zero]),
        (Unary::Sigmoid, [zero, one, nan, 0.5]),
        (Unary::Sqrt, [nan, infinity, nan, zero]),
        (Unary::Abs, [infinity, infinity, nan, zero]),
    ] {
        // As many as a vector holds and one more: both the vector loop and the rest see each of them.
        let inputs: Vec<f32> = special.iter().flat_map(|x| [*x; 17]).collect();
        let (got, _) = values(function, &inputs)?;
        for (n, value) in got.iter().enumerate() {
            let want = wanted[n / 17];
            assert!(*value == want || value.is_nan() && want.is_nan(), "{function:?} of {} is {value}", inputs[n]);
        }
    }
    Ok(())
}
