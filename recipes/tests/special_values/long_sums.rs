//! Long sums, means and normalizations, which a plain sum in f32 rounds at every term; and quotients by row values without a reciprocal.

use crate::{Failure, cores};
use kernels::KernelSpec;
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::shim::ShimDevice;
use ndarray::ArrayD;
use recipes::load::load_str;
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use sdfg::config::Configuration;
use sdfg::interpret::Tensors;
use sdfg::{Dtype, Layout};
use std::collections::BTreeSet;
use std::sync::Arc;

fn shim() -> Arc<dyn Device> {
    Arc::new(ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into()))
}

/// `y` of a one-step recipe with one configuration index for all kernels. Functions of the element index give `x` and other inputs.
fn results(text: &str, given: &[(&str, &dyn Fn(usize) -> f64)], device: &Arc<dyn Device>, config: u64) -> Result<Vec<f64>, Failure> {
    let program = programs(&load_str("long.yaml", text, &[])?, false)?.unfused;
    let mut configuration = Configuration::default();
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(&program, &unit)?;
        let space = device.space(&spec)?;
        configuration.kernels.insert(spec.name.clone(), space.config(config % space.count()));
    }
    configuration.layouts = program.containers.values().map(|c| (c.name.clone(), Layout::row_major(c))).collect();
    for kernel in configuration.kernels.values_mut() {
        kernel.layouts.clear();
    }
    let mut execution = Execution::new(&program, &configuration, device)?;
    let mut tensors = Tensors::new();
    for (name, value) in given {
        let shape = program.shape_of(name)?;
        let values = (0..shape.iter().product()).map(|n| Dtype::F32.rounded(value(n))).collect();
        tensors.insert((*name).to_string(), ArrayD::from_shape_vec(shape, values)?);
    }
    execution.load(&tensors)?;
    execution.step(&Pool::new(2)?, 1, 1, false)?;
    Ok(execution.results()?["y"].iter().copied().collect())
}

fn recipe(dims: &str, x: &str, step: &str) -> String {
    format!("model: long\ndims: {{{dims}}}\ninputs:\n  x: {x}\nsteps:\n  - \"{step}\"\n")
}

/// The worst relative error.
fn off(got: &[f64], want: f64) -> f64 {
    got.iter().map(|g| ((g - want) / want).abs()).fold(0.0, f64::max)
}

/// 2²² times 0.1: NumPy's pairwise sum is off by 1.5e-7, and a sum one after the other by 1e-3.
#[test]
fn long_sums_are_as_good_as_pairwise_ones() -> Result<(), Failure> {
    const ALLOWED: f64 = 4e-7;
    let (cores, tenth) = (cores()?, f64::from(0.1f32));
    let cases = [
        ("n: 4194304", "[n]", "y = sum(x[n], over: n)", 4194304.0),
        ("r: 4, n: 1048576", "[r, n]", "y[r] = sum(x[r,n], over: n)", 1048576.0),
        // Over an outer dim: elements next to each other are sums, and rows are added to them.
        ("n: 1048576, c: 4", "[n, c]", "y[c] = sum(x[n,c], over: n)", 1048576.0),
        ("n: 16384, c: 48", "[n, c]", "y[c] = sum(x[n,c], over: n)", 16384.0),
        ("m: 64, c: 24, n: 512", "[m, c, n]", "y[c] = sum(x[m,c,n], over: [m, n])", 32768.0),
    ];
    for (dims, x, step, terms) in cases {
        for config in (0..6).map(|n| n * 1_000_003) {
            let got = results(&recipe(dims, x, step), &[("x", &|_| 0.1)], &cores, config)?;
            assert!(off(&got, terms * tenth) <= ALLOWED, "{step} of {dims}, configuration {config}: {:e}", off(&got, terms * tenth));
        }
    }
    // Few threads, long rows: the simulated device is slow.
    let got = results(&recipe("r: 2, n: 40000", "[r, n]", "y[r] = sum(x[r,n], over: n)"), &[("x", &|_| 0.1)], &shim(), 0)?;
    assert!(off(&got, 40000.0 * tenth) <= ALLOWED, "CUDA: {:e}", off(&got, 40000.0 * tenth));
    Ok(())
}

#[test]
fn a_mean_is_divided_once() -> Result<(), Failure> {
    let text = recipe("n: 70001", "[n]", "y = mean(x[n], over: n)");
    for device in [cores()?, shim()] {
        assert_eq!(results(&text, &[("x", &|_| 0.5)], &device, 0)?, [0.5]);
    }
    Ok(())
}

/// A tiny `eps` does not magnify the rounding error of a row's mean: PyTorch gives 0.
#[test]
fn a_constant_row_is_normalized_to_zero() -> Result<(), Failure> {
    let text = recipe("r: 6, k: 768", "[r, k]", "y[r,k] = layernorm(x[r,k], over: k, eps: 1e-12)");
    let constant = [0.1, 1.0 / 3.0, 100.3, -7.7e5, 1e15, 3e-20];
    for device in [cores()?, shim()] {
        let got = results(&text, &[("x", &|n| constant[n / 768])], &device, 0)?;
        let worst = got.iter().fold(0.0f64, |m, v| m.max(v.abs()));
        assert!(got.iter().all(|v| v.abs() <= 1e-6), "{worst:e}");
    }
    Ok(())
}

/// Rows with a large mean: the statistics of 65,536 numbers, half of which are 1000 and half 1001.
#[test]
fn statistics_of_long_rows() -> Result<(), Failure> {
    let text = recipe("r: 2, k: 65536", "[r, k]", "y[r,k] = layernorm(x[r,k], over: k, eps: 1e-12)");
    let got = results(&text, &[("x", &|n| 1000.0 + (n % 2) as f64)], &cores()?, 0)?;
    let found: BTreeSet<String> = got.iter().map(|v| format!("{v:.4}")).collect();
    assert_eq!(found, BTreeSet::from(["-1.0000".to_string(), "1.0000".to_string()]));
    Ok(())
}

/// 1/d is infinite for subnormal d, and subnormal for huge ones.
#[test]
fn rows_are_divided_by_values_without_a_reciprocal() -> Result<(), Failure> {
    let text = "model: rows\ndims: {r: 6, k: 40}\ninputs:\n  x: [r, k]\n  d: [r]\nsteps:\n  - \"y[r,k] = x[r,k] / d[r]\"\n";
    let divisors = [1e-40, -3e-45, 3e38, 2.0, f64::INFINITY, 1e-30];
    let x = |n: usize| [2e-40, 3e-45, 3e38, 1.0, 1.0, 1e-30][n / 40];
    for device in [cores()?, shim()] {
        for config in 0..4 {
            let got = results(text, &[("x", &x), ("d", &|n| divisors[n])], &device, config * 7919)?;
            for (n, got) in got.iter().enumerate() {
                let want = Dtype::F32.rounded(x(n)) / Dtype::F32.rounded(divisors[n / 40]);
                assert!((got - want).abs() <= 1e-6 * want.abs(), "{:e} / {:e} is {got:e}", x(n), divisors[n / 40]);
            }
        }
    }
    Ok(())
}
