//! Steps in which kernels share dispatches.

use kernels::KernelSpec;
use kernels::Toolchain;
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use recipes::load::{Overrides, load};
use recipes::pipeline::oracle::small_sizes::with_small_sizes;
use recipes::pipeline::oracle::tensors::random_inputs;
use recipes::pipeline::run::candidate::Candidate;
use recipes::pipeline::run::divide::divided;
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use sdfg::config::Configuration;
use sdfg::interpret::Tensors;
use sdfg::{Layout, Sdfg};
use std::path::Path;
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

/// Sums whose terms workers share otherwise differ by this much of a tensor's largest element at most.
const CLOSE: f64 = 2e-5;

fn cores() -> Result<Arc<dyn Device>, Failure> {
    Ok(Arc::new(Cores { toolchain: Toolchain::system()? }))
}

/// The most fused program of a recipe.
fn program(name: &str) -> Result<Sdfg, Failure> {
    let recipe = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml")), Overrides::default())?;
    Ok(programs(&recipe, false)?.variants.remove(0).program)
}

/// A program with the first configuration of every kernel.
fn candidate(name: &str, program: Sdfg, device: &dyn Device) -> Result<Candidate, Failure> {
    let mut configuration = Configuration::default();
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(&program, &unit)?;
        configuration.kernels.insert(spec.name.clone(), device.space(&spec)?.config(0));
    }
    configuration.layouts = program.containers.values().map(|c| (c.name.clone(), Layout::row_major(c))).collect();
    Ok(Candidate {
        name: name.into(),
        program,
        configuration,
        predicted_ms: 0.0,
        streams: 1,
        packed: false,
        beside: recipes::pipeline::run::candidate::BESIDE,
        exchanges: vec![],
        measured_as: Default::default(),
    })
}

/// The results of three steps, and the dispatches of each.
fn steps(candidate: &Candidate, given: &Tensors, pool: &Pool, device: &Arc<dyn Device>) -> Result<Vec<(Tensors, u64)>, Failure> {
    let mut execution = Execution::of(candidate, device)?;
    execution.load(given)?;
    let mut seen = Vec::new();
    for step in 0..3 {
        let times = execution.step(pool, 7, step, true)?;
        seen.push((execution.results()?, times.dispatches.iter().sum::<u64>()));
    }
    Ok(seen)
}

/// The largest difference of any result, relative to its tensor's largest element; NaN counts as equal to NaN.
fn difference(right: &Tensors, found: &Tensors) -> f64 {
    assert_eq!(right.keys().collect::<Vec<_>>(), found.keys().collect::<Vec<_>>());
    let each = right.iter().map(|(name, right)| {
        let largest = right.iter().fold(1e-30, |most: f64, x| most.max(x.abs()));
        let apart = right.iter().zip(found[name].iter()).map(|(a, b)| if a.is_nan() && b.is_nan() { 0.0 } else { (a - b).abs() });
        apart.fold(0.0, |most: f64, x| if x.is_nan() { f64::INFINITY } else { most.max(x) }) / largest
    });
    each.fold(0.0, f64::max)
}

/// Holds a packed step, and one divided along a dim, against the step launch by launch.
fn hold(name: &str, program: Sdfg, workers: &[usize]) -> Result<(), Failure> {
    let device = cores()?;
    let alone = candidate(name, program, &*device)?;
    let given = random_inputs(&alone.program, 3)?;
    for workers in workers {
        let pool = Pool::new(*workers)?;
        let separate = steps(&alone, &given, &pool, &device)?;
        let packed = Candidate { packed: true, ..alone.clone() };
        for packed in [Some(packed), divided(&alone, &*device, *workers)?].into_iter().flatten() {
            let (launches, groups) = Execution::of(&packed, &device)?.packing(*workers).ok_or("the step is packed")?;
            assert!(groups < launches, "{}: {groups} groups of {launches} launches on {workers} threads", packed.name);
            let together = steps(&packed, &given, &pool, &device)?;
            for ((right, more), (found, fewer)) in separate.iter().zip(&together) {
                let error = difference(right, found);
                assert!(error < CLOSE, "{} on {workers} threads: {error}", packed.name);
                assert!(fewer < more, "{}: {fewer} dispatches, {more} without packing", packed.name);
            }
        }
    }
    Ok(())
}

/// A packed step computes what the same step computes launch by launch, in fewer dispatches.
#[test]
fn a_packed_step_has_the_same_results_in_fewer_dispatches() -> Result<(), Failure> {
    let names = ["mha", "resnet-18-block", "perceptron", "word2vec", "var-encoder", "multi-interests", "bi-rnn", "dyn-rnn", "speech"];
    for name in names {
        hold(name, with_small_sizes(&program(name)?), &[1, 2, 3])?;
    }
    Ok(())
}

/// The same at sizes at which workers have several tiles each and the end of a dim is none of a tile.
#[test]
fn a_packed_step_has_the_same_results_at_full_size() -> Result<(), Failure> {
    for name in ["logistic", "perceptron", "dyn-rnn"] {
        hold(name, program(name)?, &[2, 3])?;
    }
    Ok(())
}

/// Without a barrier at each time, the whole of a loop whose kernels are divided along the batch is one dispatch, and one more for packing
/// the weights.
#[test]
fn a_loop_divided_along_the_batch_has_no_barrier_at_each_time() -> Result<(), Failure> {
    let (device, pool) = (cores()?, Pool::new(2)?);
    let alone = candidate("dyn-rnn", program("dyn-rnn")?, &*device)?;
    let given = random_inputs(&alone.program, 3)?;
    let mut fewest = alone.clone();
    for (_, _, unit) in alone.program.units() {
        let spec = KernelSpec::new(&alone.program, &unit)?;
        if kernels::loops::is_loop(&spec) {
            let space = device.space(&spec)?;
            let divisions = space.knobs()[0];
            assert!(divisions >= 2, "`{}` can be divided along the batch", spec.name);
            let each: u64 = space.knobs()[1..].iter().product();
            fewest.configuration.kernels.insert(spec.name.clone(), space.config(each));
        }
    }
    let dispatches = |of: &Candidate| -> Result<Vec<(String, u64)>, Failure> {
        let mut execution = Execution::of(of, &device)?;
        execution.load(&given)?;
        let times = execution.step(&pool, 7, 0, true)?;
        let names: Vec<String> = execution.launches().map(|(name, _)| name.to_string()).collect();
        Ok(names.into_iter().zip(times.dispatches).filter(|(name, _)| name.ends_with(".loop")).collect())
    };
    let (few, many) = (dispatches(&fewest)?, dispatches(&alone)?);
    assert!(few.iter().all(|(_, dispatches)| *dispatches <= 2), "{few:?}");
    assert!(many.iter().any(|(_, dispatches)| *dispatches > 20), "a barrier at each of 20 times: {many:?}");
    let right = steps(&alone, &given, &pool, &device)?;
    let found = steps(&fewest, &given, &pool, &device)?;
    for ((right, _), (found, _)) in right.iter().zip(&found) {
        assert!(difference(right, found) < CLOSE);
    }
    Ok(())
}

/// What is read at another time, with a value outside, is no window: products of recurrent programs have every layout, and generated code
/// competes with libraries in all of them.
#[test]
fn programs_that_recur_convolve_no_images() -> Result<(), Failure> {
    for (name, convolves) in [("dialog", false), ("bi-rnn", false), ("speech", false), ("squeezenet-1.1", true), ("resnet-18-block", true)]
    {
        let recipe = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml")), Overrides::default())?;
        assert_eq!(kernels::convolutions::convolves(&recipe.program), convolves, "{name}");
    }
    Ok(())
}

/// A decoder layer of a translator at each time: norm, projections to heads, attention to its own past, a projection, and a
/// feed-forward layer. Its kernels are divided in runs: barriers come before each product that reads what all workers have made, and
/// nowhere else.
#[test]
fn a_loop_divided_in_runs_meets_at_few_barriers() -> Result<(), Failure> {
    let text = "model: decoder\ndims: {b: 4, t: 3, c: t, h: 4, p: 8, i: 64, u: 128}\ninputs:\n  x: [t, b, i]\nparameters:\n  g: [i]\n  s: [i]\n  \
                wq: [i, h, p]\n  wk: [i, h, p]\n  wv: [i, h, p]\n  wo: [h, p, i]\n  w1: [i, u]\n  c1: [u]\n  w2: [u, i]\nsteps:\n  \
                - \"r[t,b,i] = x[t,b,i] + y[t-1,b,i else 0]\"\n  \
                - \"n[t,b,i] = layernorm(r[t,b,i], over: i, scale: g[i], shift: s[i])\"\n  \
                - query[t,b,h,p] = n[t,b,i] * wq[i,h,p]\n  - key[t,b,h,p] = n[t,b,i] * wk[i,h,p]\n  - value[t,b,h,p] = n[t,b,i] * wv[i,h,p]\n  \
                - \"keys[t,b,h,c,p] = where(c == t, key[t,b,h,p], keys[t-1,b,h,c,p else 0])\"\n  \
                - \"values[t,b,h,c,p] = where(c == t, value[t,b,h,p], values[t-1,b,h,c,p else 0])\"\n  \
                - \"score[t,b,h,c] = where(c <= t, query[t,b,h,p] * keys[t,b,h,c,p], -1e9)\"\n  \
                - \"weight[t,b,h,c] = softmax(score, over: c)\"\n  - mixed[t,b,h,p] = weight[t,b,h,c] * values[t,b,h,c,p]\n  \
                - mid[t,b,i] = r[t,b,i] + mixed[t,b,h,p] * wo[h,p,i]\n  - up[t,b,u] = relu(mid[t,b,i] * w1[i,u] + c1[u])\n  \
                - y[t,b,i] = mid[t,b,i] + up[t,b,u] * w2[u,i]\noutputs: [y]\n";
    let recipe = recipes::load::load_str("decoder.yaml", text, &[])?;
    let program = programs(&recipe, false)?.variants.remove(0).program;
    let (device, pool) = (cores()?, Pool::new(2)?);
    let alone = candidate("decoder", program, &*device)?;
    let given = random_inputs(&alone.program, 3)?;
    let mut in_runs = alone.clone();
    for (_, _, unit) in alone.program.units() {
        let spec = KernelSpec::new(&alone.program, &unit)?;
        if kernels::loops::is_loop(&spec) {
            let space = device.space(&spec)?;
            let (divisions, each): (u64, u64) = (space.knobs()[0], space.knobs()[1..].iter().product());
            in_runs.configuration.kernels.insert(spec.name.clone(), space.config(each * (divisions - 1)));
        }
    }
    let (separate, together) = (steps(&alone, &given, &pool, &device)?, steps(&in_runs, &given, &pool, &device)?);
    for ((right, more), (found, fewer)) in separate.iter().zip(&together) {
        let error = difference(right, found);
        assert!(error < CLOSE, "{error}");
        // Of a time: the projections with what attention makes of them, its output, the layer, and what comes of it.
        assert!(*fewer <= 3 * 6 && fewer < more, "{fewer} dispatches in runs, {more} without");
    }
    Ok(())
}
