//! `rmsnorm` and its gradients, in the interpreter and in kernels, against the formula and its derivative in f64.

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::{KernelSpec, Toolchain};
use ndarray::{Array1, Array2, Axis};
use recipes::load::load_str;
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use sdfg::Sdfg;
use sdfg::config::Configuration;
use sdfg::interpret::{Run, Tensors, interpret};
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

const RECIPE: &str = "model: m
dims: {b: 6, i: 20}
dtype: f32
inputs:
  x: [b, i]
parameters:
  g: [i]
steps:
  - \"y[b,i] = rmsnorm(x, over: i, scale: g[i], eps: 0.25)\"
  - \"z[b,i] = rmsnorm(2 * y, over: [i])\"
outputs: [y, z]
train: {upstream: [y, z]}
";

fn run(program: &Sdfg, device: &Arc<dyn Device>, given: &Tensors) -> Result<Tensors, Failure> {
    let mut configuration = Configuration::default();
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(program, &unit)?;
        let space = device.space(&spec)?;
        configuration.kernels.insert(spec.name.clone(), space.config(space.count() / 3));
    }
    let mut execution = Execution::new(program, &configuration, device)?;
    execution.load(given)?;
    execution.step(&Pool::new(2)?, 1, 0, true)?;
    Ok(execution.results()?)
}

/// `x · g / √(mean x² + eps)` of each row, and the derivatives by `x` and `g` for a derivative of the result.
fn normalized(x: &Array2<f64>, g: &Array1<f64>, eps: f64, d_y: &Array2<f64>) -> (Array2<f64>, Array2<f64>, Array1<f64>) {
    let columns = x.ncols() as f64;
    let root = (x.mapv(|v| v * v).sum_axis(Axis(1)) / columns + eps).mapv(|v| v.powf(-0.5)).insert_axis(Axis(1));
    let weighed = d_y * g;
    let along = (&weighed * x).sum_axis(Axis(1)).insert_axis(Axis(1));
    let d_x = &weighed * &root - x * &(root.mapv(|v| v.powi(3)) * along / columns);
    (x * &root * g, d_x, (d_y * x * &root).sum_axis(Axis(0)))
}

#[test]
fn values_and_gradients_are_those_of_the_formula() -> Result<(), Failure> {
    let programs = programs(&load_str("m.yaml", RECIPE, &[])?, false)?;
    // A row of zeros has a root because of eps alone.
    let x =
        Array2::from_shape_fn((6, 20), |(b, i)| if b == 3 { 0.0 } else { ((b * 31 + i * 17) % 23) as f64 * 0.25 * (b + 1) as f64 - 3.0 });
    let g = Array1::from_shape_fn(20, |i| 0.5 + (i % 7) as f64 / 4.0);
    let (d_y, d_z) = (
        Array2::from_shape_fn((6, 20), |(b, i)| ((b * 3 + i * 5) % 7) as f64 / 8.0 - 0.25),
        Array2::from_shape_fn((6, 20), |(b, i)| ((b * 5 + i * 3) % 11) as f64 / 8.0 - 0.5),
    );
    let (y, ..) = normalized(&x, &g, 0.25, &d_y);
    let (z, d_double, _) = normalized(&(2.0 * &y), &Array1::ones(20), 1e-5, &d_z);
    let (_, d_x, d_g) = normalized(&x, &g, 0.25, &(&d_y + 2.0 * d_double));
    let want: [(&str, _); 4] = [("y", y.into_dyn()), ("z", z.into_dyn()), ("d_x", d_x.into_dyn()), ("d_g", d_g.into_dyn())];
    let given: Tensors = [("x", x.into_dyn()), ("g", g.into_dyn()), ("d_y", d_y.into_dyn()), ("d_z", d_z.into_dyn())]
        .map(|(n, t)| (n.to_string(), t))
        .into();
    let device: Arc<dyn Device> =
        Arc::new(Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..Toolchain::system()? } });
    let mut found = vec![("oracle".to_string(), interpret(&programs.operators, &given, &Run { seed: 1, step: 0, dropout: true })?, 1e-12)];
    for variant in &programs.variants {
        found.push((variant.key.to_string(), run(&variant.program, &device, &given)?, 2e-6));
    }
    found.push(("unfused".into(), run(&programs.unfused, &device, &given)?, 2e-6));
    for (name, got, bound) in &found {
        for (data, want) in &want {
            // Of the largest element: the row of zeros is divided by a root of 1e-5 in z, and so are its gradients.
            let most = want.iter().fold(1.0, |most: f64, v| most.max(v.abs()));
            let off = got[*data].iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max) / most;
            assert!(off < *bound, "{name}: {data} is off by {off:e} of {most}");
        }
    }
    Ok(())
}

#[test]
fn weights_are_along_the_operand() {
    let text = RECIPE.replace("scale: g[i], eps: 0.25", "scale: g[i], eps: -1");
    let error = load_str("m.yaml", &text, &[]).expect_err("a negative eps").to_string();
    assert!(error.contains("eps"), "{error}");
    let text =
        RECIPE.replace("x: [b, i]", "x: [b, i]\n  h: [b, i]").replace("rmsnorm(2 * y, over: [i])", "rmsnorm(2 * y, over: b, shift: g)");
    let error = load_str("m.yaml", &text, &[]).expect_err("an option that there is not").to_string();
    assert!(error.contains("rmsnorm"), "{error}");
}
