//! Logarithms of sums of exponentials in f32 kernels, far from 0, against the same computation in f64.

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::target::shim::ShimDevice;
use kernels::{KernelSpec, Toolchain};
use ndarray::{Array1, Array2};
use recipes::load::load_str;
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use sdfg::Sdfg;
use sdfg::config::Configuration;
use sdfg::interpret::{Run, Tensors, interpret};
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

const RECIPE: &str = "model: m
dims: {b: 7, c: 13}
dtype: f32
inputs:
  x: [b, c]
  label: {dims: [b], dtype: i32}
steps:
  - \"lse[b] = logsumexp(x, over: c)\"
  - \"ls[b,c] = log_softmax(x, over: c)\"
  - \"ce[b] = cross_entropy(x, label, over: c)\"
outputs: [lse, ls, ce]
train: {upstream: [lse, ls, ce]}
";

/// A program in configurations of its kernels' spaces.
fn run(program: &Sdfg, device: &Arc<dyn Device>, given: &Tensors, seed: u64) -> Result<Tensors, Failure> {
    let mut configuration = Configuration::default();
    for (n, (_, _, unit)) in program.units().iter().enumerate() {
        let spec = KernelSpec::new(program, unit)?;
        let space = device.space(&spec)?;
        configuration.kernels.insert(spec.name.clone(), space.config((seed * 1_000_003 + n as u64 * 7919 * seed) % space.count()));
    }
    let mut execution = Execution::new(program, &configuration, device)?;
    execution.load(given)?;
    execution.step(&Pool::new(2)?, 1, 0, true)?;
    Ok(execution.results()?)
}

/// Rows of scores around an offset, all f32 numbers; two scores are masked.
fn scores(offset: f64) -> Array2<f64> {
    Array2::from_shape_fn((7, 13), |(b, c)| match (b, c) {
        (2, 4) | (5, 0) => f64::NEG_INFINITY,
        _ => f64::from((offset + ((b * 31 + c * 17) % 23) as f64 * 0.25 * (b + 1) as f64 - 4.0) as f32),
    })
}

/// The largest distance between two arrays.
fn apart<'a>(got: impl Iterator<Item = &'a f64>, want: impl Iterator<Item = &'a f64>) -> f64 {
    got.zip(want).map(|(g, w)| if g == w { 0.0 } else { (g - w).abs() }).fold(0.0, |most, d| if d > most || d.is_nan() { d } else { most })
}

#[test]
fn values_and_gradients_are_right_far_from_zero() -> Result<(), Failure> {
    let programs = programs(&load_str("m.yaml", RECIPE, &[])?, false)?;
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    let cores: Arc<dyn Device> = Arc::new(Cores { toolchain: Toolchain { cache: cache.into(), ..Toolchain::system()? } });
    let shim: Arc<dyn Device> = Arc::new(ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into()));
    let label = Array1::from_shape_fn(7, |b| ((b * 5 + 1) % 13) as f64);
    let (d_lse, d_ce) = (Array1::from_shape_fn(7, |b| 0.5 + b as f64 / 8.0), Array1::from_shape_fn(7, |b| 1.0 - b as f64 / 4.0));
    let d_ls = Array2::from_shape_fn((7, 13), |(b, c)| ((b * 3 + c * 5) % 7) as f64 / 8.0 - 0.25);
    for offset in [0.0, 1e4, -1e4, 3e5] {
        let x = scores(offset);
        let most = x.map_axis(ndarray::Axis(1), |row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max)).insert_axis(ndarray::Axis(1));
        let total = (&x - &most).exp().sum_axis(ndarray::Axis(1)).insert_axis(ndarray::Axis(1));
        let ls = &x - &most - total.ln();
        let p = ls.exp();
        let want_lse = (&most + total.ln()).remove_axis(ndarray::Axis(1));
        let want_ce = Array1::from_shape_fn(7, |b| -ls[[b, label[b] as usize]]);
        let d_x = Array2::from_shape_fn((7, 13), |(b, c)| {
            let one = f64::from(label[b] as usize == c);
            d_lse[b] * p[[b, c]] + d_ls[[b, c]] - p[[b, c]] * d_ls.row(b).sum() + d_ce[b] * (p[[b, c]] - one)
        });
        let given: Tensors = [
            ("x", x.clone().into_dyn()),
            ("label", label.clone().into_dyn()),
            ("d_lse", d_lse.clone().into_dyn()),
            ("d_ls", d_ls.clone().into_dyn()),
            ("d_ce", d_ce.clone().into_dyn()),
        ]
        .map(|(name, tensor)| (name.to_string(), tensor))
        .into();
        let oracle = interpret(&programs.operators, &given, &Run { seed: 1, step: 0, dropout: true })?;
        let mut found = vec![("oracle".to_string(), oracle)];
        for variant in &programs.variants {
            for seed in [0, 1, 5] {
                found.push((format!("{} {seed}", variant.key), run(&variant.program, &cores, &given, seed)?));
            }
        }
        found.push(("unfused".into(), run(&programs.unfused, &cores, &given, 0)?));
        found.push(("on a GPU, simulated".into(), run(&programs.variants[0].program, &shim, &given, 0)?));
        for (name, got) in &found {
            // Only the logarithm of the sum is as large as the scores, and its rounding is relative to that.
            let lse = apart(got["lse"].iter(), want_lse.iter()) / want_lse.iter().fold(1.0, |most: f64, v| most.max(v.abs()));
            assert!(lse < 3e-7, "{name}, {offset}: logsumexp is off by {lse:e} of it");
            let scale = ls.iter().filter(|v| v.is_finite()).fold(1.0, |most: f64, v| most.max(v.abs()));
            for (data, want) in [("ls", ls.iter().collect::<Vec<_>>()), ("ce", want_ce.iter().collect())] {
                let off = apart(got[data].iter(), want.into_iter()) / scale;
                assert!(off < 3e-7, "{name}, {offset}: {data} is off by {off:e} of {scale}");
            }
            let off = apart(got["d_x"].iter(), d_x.iter());
            assert!(off < 3e-6, "{name}, {offset}: d_x is off by {off:e}");
        }
    }
    Ok(())
}

/// A row in which all elements are masked: the logarithm of an empty sum.
#[test]
fn a_row_of_masks_has_no_probability() -> Result<(), Failure> {
    let text = "model: m\ndims: {b: 2, c: 3}\ninputs:\n  x: [b, c]\nsteps:\n  - \"y[b] = logsumexp(x, over: c)\"\n";
    let programs = programs(&load_str("m.yaml", text, &[])?, false)?;
    let x = ndarray::arr2(&[[f64::NEG_INFINITY; 3], [0.0, f64::INFINITY, 1.0]]).into_dyn();
    let given: Tensors = [("x".to_string(), x)].into();
    let cores: Arc<dyn Device> = Arc::new(Cores { toolchain: Toolchain::system()? });
    for variant in &programs.variants {
        assert_eq!(run(&variant.program, &cores, &given, 0)?["y"], ndarray::arr1(&[f64::NEG_INFINITY, f64::INFINITY]).into_dyn());
    }
    Ok(())
}

/// A label that is no class, computed in a step so that no range is checked, shows in the loss.
#[test]
fn a_label_of_no_class_gives_an_infinite_loss() -> Result<(), Box<dyn std::error::Error>> {
    let text = "
model: labels
dims: {n: 5, c: 4}
dtype: f32
inputs:
  score: [n, c]
  label: [n]
steps:
  - y[n] = cross_entropy(score, label, over: c)
";
    let recipe = recipes::load::load_str("labels.yaml", text, &[]).map_err(|e| e.to_string())?;
    let labels = [2.0, 4.0, -1.0, 0.5, 0.0];
    let tensor = |shape: &[usize], values: Vec<f64>| ndarray::ArrayD::from_shape_vec(shape.to_vec(), values);
    let given = sdfg::interpret::Tensors::from([
        ("score".to_string(), tensor(&[5, 4], (0..20).map(f64::from).collect())?),
        ("label".to_string(), tensor(&[5], labels.to_vec())?),
    ]);
    let run = sdfg::interpret::Run { seed: 1, step: 0, dropout: true };
    let y = sdfg::interpret::interpret(&recipe.program, &given, &run)?["y"].clone();
    let total = (0..4).map(|c| f64::exp(f64::from(c) - 3.0)).sum::<f64>().ln() + 3.0;
    for (n, want) in [total - 2.0, f64::INFINITY, f64::INFINITY, f64::INFINITY, total].into_iter().enumerate() {
        assert!(y[n] == want || (y[n] - want).abs() < 1e-12, "label {}: {} and not {want}", labels[n], y[n]);
    }
    Ok(())
}
