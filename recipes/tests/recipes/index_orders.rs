//! Tensors that one step reads in several index orders: fused kernels pass on each element to every reader.

use crate::memory::{Failure, candidate, checked, device, with_gradients};
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::shim::ShimDevice;
use recipes::load::load_str;
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use std::sync::Arc;
use transforms::{Composition, DriverOptions, Expand, Fusion, Pass, WantedKernels, run_pipeline};

/// `exp(x)` less its transpose, computed by the test: the fused kernel of Memlet 0.1 gave zeros.
#[test]
fn an_antisymmetric_part_is_not_zero() -> Result<(), Failure> {
    let text = "
model: antisymmetric
dims: {b: 3, i: 7, j: i}
dtype: f32
inputs:
  x: [b, i, j]
steps:
  - a[b,i,j] = exp(x[b,i,j])
  - z[b,i,j] = a[b,i,j] - a[b,j,i]
  - s[b,i] = sum(a[b,i,j] * a[b,j,i], over: j)
  - p[b,i,j] = softmax(a[b,i,j] + a[b,j,i], over: j)
";
    let recipe = load_str("antisymmetric.yaml", text, &[]).map_err(|e| e.to_string())?;
    let (device, pool) = (device()?, Pool::new(2)?);
    for variant in programs(&recipe, false)?.variants {
        let mut execution = Execution::new(&variant.program, &candidate(&variant.program, &*device, None)?.configuration, &device)?;
        let given = recipes::pipeline::oracle::tensors::random_inputs(&variant.program, 5)?;
        let a = given["x"].mapv(f64::exp);
        execution.load(&given)?;
        execution.step(&pool, 5, 0, true)?;
        let results = execution.results()?;
        for (at, z) in results["z"].indexed_iter() {
            let (b, i, j) = (at[0], at[1], at[2]);
            let want = a[[b, i, j]] - a[[b, j, i]];
            assert!((z - want).abs() <= 4e-6, "z[{b},{i},{j}] is {z}, not {want}");
            let row = |i: usize| (0..7).map(move |j| (i, j));
            let s: f64 = row(i).map(|(i, j)| a[[b, i, j]] * a[[b, j, i]]).sum();
            assert!((results["s"][[b, i]] - s).abs() <= 1e-6 * s, "s[{b},{i}] is {}, not {s}", results["s"][[b, i]]);
            let sum: f64 = row(i).map(|(i, j)| (a[[b, i, j]] + a[[b, j, i]]).exp()).sum();
            let p = (a[[b, i, j]] + a[[b, j, i]]).exp() / sum;
            assert!((results["p"][at.clone()] - p).abs() <= 1e-5, "p[{b},{i},{j}] is {}, not {p}", results["p"][at.clone()]);
        }
    }
    Ok(())
}

/// Compiled kernels of random programs, in C and in simulated CUDA, fused and gemm-fused, forward and backward, against the interpreter
/// on their operators. `MEMLET_CASES` sets the number of cases.
#[test]
fn compiled_kernels_keep_the_meaning_of_permuted_reads() -> Result<(), Failure> {
    let cases = std::env::var("MEMLET_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(12);
    let (cores, pool) = (device()?, Pool::new(2)?);
    let shim: Arc<dyn Device> = Arc::new(ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into()));
    for seed in 0..cases {
        // The shim compiles for seconds, so it runs fewer cases.
        let device = if seed % 6 == 5 { &shim } else { &cores };
        let forward = sdfg::random::permuted_program(seed, seed % 2 == 0);
        let program = with_gradients(&forward).unwrap_or(forward);
        let all = seed % 3 == 1;
        let wanted = WantedKernels { accept: &|_| all, ..WantedKernels::default() };
        let passes: [&dyn Pass; 3] = [&Expand, &Composition { wanted }, &Fusion::default()];
        let fused = run_pipeline(&program, &passes, &DriverOptions::default())?.program;
        let drawn = (seed % 2 == 1 && seed % 6 != 5).then_some(seed);
        checked(&candidate(&fused, &**device, drawn)?, &program, device, &pool).map_err(|e| format!("seed {seed}: {e}"))?;
    }
    Ok(())
}
