//! Positions of extrema: results of the interpreter and of kernels, and their gradients.

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::target::shim::ShimDevice;
use kernels::{KernelSpec, Toolchain};
use ndarray::{Array1, Array2};
use recipes::load::load_str;
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use sdfg::config::Configuration;
use sdfg::interpret::{Run, Tensors, interpret};
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

const RECIPE: &str = "model: m
dims: {b: 5, c: 13}
dtype: f32
inputs:
  x: [b, c]
steps:
  - \"high[b] = argmax(x, over: c)\"
  - \"low[b] = argmin(2 * x[b,c] + 1, over: c)\"
outputs: [high, low]
train: {upstream: [high, low]}
";

#[test]
fn places_are_the_first_of_equal_extrema_and_have_no_gradient() -> Result<(), Failure> {
    let programs = programs(&load_str("m.yaml", RECIPE, &[])?, false)?;
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    let cores: Arc<dyn Device> = Arc::new(Cores { toolchain: Toolchain { cache: cache.into(), ..Toolchain::system()? } });
    let shim: Arc<dyn Device> = Arc::new(ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into()));
    // The extrema of a row occur twice; the last row holds NaN, and one row is −∞ throughout.
    let mut x = Array2::from_shape_fn((5, 13), |(b, c)| ((b * 7 + c * 5) % 6) as f64 - 3.0);
    x.row_mut(3).fill(f64::NEG_INFINITY);
    x[[4, 6]] = f64::NAN;
    let place = |better: fn(f64, f64) -> bool| {
        Array1::from_iter(x.rows().into_iter().map(|row| {
            let mut best = 0;
            (1..row.len()).filter(|c| row.iter().all(|v| !v.is_nan()) && *c > 0).for_each(|c| {
                if better(row[c], row[best]) {
                    best = c;
                }
            });
            if row.iter().any(|v| v.is_nan()) { f64::INFINITY } else { best as f64 }
        }))
    };
    let (high, low) = (place(|a, b| a > b), place(|a, b| a < b));
    assert!(high.iter().any(|place| *place > 0.0) && high != low);
    let ones = Array1::<f64>::ones(5).into_dyn();
    let given: Tensors =
        [("x", x.clone().into_dyn()), ("d_high", ones.clone()), ("d_low", ones)].map(|(name, tensor)| (name.to_string(), tensor)).into();
    let all = [&programs.operators, &programs.unfused].into_iter().chain(programs.variants.iter().map(|variant| &variant.program));
    for program in all {
        let mut results = vec![interpret(program, &given, &Run { seed: 1, step: 0, dropout: true })?];
        // Kernels take expanded operators.
        for device in [&cores, &shim].into_iter().filter(|_| !std::ptr::eq(program, &programs.operators)) {
            let mut configuration = Configuration::default();
            for (_, _, unit) in program.units() {
                let spec = KernelSpec::new(program, &unit)?;
                configuration.kernels.insert(spec.name.clone(), device.space(&spec)?.config(0));
            }
            let mut execution = Execution::new(program, &configuration, device)?;
            execution.load(&given)?;
            execution.step(&Pool::new(2)?, 1, 0, true)?;
            results.push(execution.results()?);
        }
        for got in results {
            assert_eq!(got["high"], high.clone().into_dyn());
            assert_eq!(got["low"], low.clone().into_dyn());
            assert!(got["d_x"].iter().all(|d| *d == 0.0), "{}", got["d_x"]);
        }
    }
    Ok(())
}
