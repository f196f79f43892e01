//! Loops over time: results against loops written out here, gradients against differences, errors with their places.

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::{KernelSpec, Toolchain};
use ndarray::{ArrayD, IxDyn};
use recipes::load::load_str;
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use sdfg::config::Configuration;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::recurrence::has_loops;
use sdfg::{Role, Sdfg};
use std::sync::Arc;
use transforms::autodiff::differentiate;
use transforms::verify::gradients::{Differences, check_gradients};

const RUN: Run = Run { seed: 1, step: 0, dropout: true };

/// A recurrent layer with an initial state.
const RNN: &str = "model: rnn
dims: {t: 7, b: 3, i: 4, u: 5, w: u}
dtype: f64
inputs: {x: [t, b, i], h0: [b, u]}
parameters: {v: [u, w], k: [u, i], c: [u]}
steps:
  - \"h[t,b,u] = tanh(v[u,w]*where(t == 0, h0[b,w], h[t-1,b,w else 0]) + x[t,b,i]*k[u,i] + c[u])\"
train: {upstream: h}
";

/// Long short-term memory whose sequences have lengths.
const LSTM: &str = "model: lstm
dims: {t: 6, b: 3, i: 2, u: 4, w: u}
dtype: f64
inputs: {x: [t, b, i], n: {dims: [b], dtype: i32, range: \"[1, size(t)]\"}}
parameters: {ki: [u, i], kj: [u, i], kf: [u, i], ko: [u, i], vi: [u, w], vj: [u, w], vf: [u, w], vo: [u, w], bf: [u]}
steps:
  - gi[t,b,u] = sigmoid(ki[u,i]*x[t,b,i] + vi[u,w]*h[t-1,b,w else 0])
  - gj[t,b,u] = tanh(kj[u,i]*x[t,b,i] + vj[u,w]*h[t-1,b,w else 0])
  - gf[t,b,u] = sigmoid(kf[u,i]*x[t,b,i] + vf[u,w]*h[t-1,b,w else 0] + bf[u])
  - go[t,b,u] = sigmoid(ko[u,i]*x[t,b,i] + vo[u,w]*h[t-1,b,w else 0])
  - c[t,b,u] = where(t < n[b], c[t-1,b,u else 0]*gf + gi*gj, c[t-1,b,u else 0])
  - h[t,b,u] = where(t < n[b], tanh(c[t,b,u])*go, h[t-1,b,u else 0])
  - y[t,b,u] = where(t < n[b], h[t,b,u], 0)
outputs: [y]
train: {upstream: y}
";

/// A gated recurrent unit that runs backwards in time.
const GRU: &str = "model: gru
dims: {t: 5, b: 3, i: 2, u: 4, w: u}
dtype: f64
inputs: {x: [t, b, i]}
parameters: {wz: [u, i], uz: [u, w], wr: [u, i], ur: [u, w], wn: [u, i], un: [u, w]}
steps:
  - z[t,b,u] = sigmoid(wz[u,i]*x[t,b,i] + uz[u,w]*h[t+1,b,w else 0])
  - r[t,b,u] = sigmoid(wr[u,i]*x[t,b,i] + ur[u,w]*h[t+1,b,w else 0])
  - rh[t,b,u] = r[t,b,u]*h[t+1,b,u else 0]
  - g[t,b,u] = tanh(wn[u,i]*x[t,b,i] + un[u,w]*rh[t,b,w])
  - h[t,b,u] = z*h[t+1,b,u else 0] + (1-z)*g
train: {upstream: h}
";

/// Equal layers as a recurrence, with a sum over what the last one makes as the loss.
const LAYERS: &str = "model: layers
dims: {l: 4, b: 3, u: 4, w: u}
dtype: f64
inputs: {x: [b, u]}
parameters: {v: [l, u, w]}
steps:
  - \"h[l,b,u] = tanh(v[l,u,w]*where(l == 0, x[b,w], h[l-1,b,w else 0]))\"
  - \"s = sum(h[size(l)-1,b,u], over: [b,u])\"
train: {loss: s}
";

/// Gates that are a dim: parts of one product, each read by one operation, whose gradients are parts too; the loss reads the last time.
const GATES: &str = "model: gates
dims: {t: 5, b: 3, i: 2, u: 4, w: u, g: 3}
dtype: f64
inputs: {x: [t, b, i]}
parameters: {k: [i, g, u], v: [w, g, u], o: [u]}
steps:
  - z[t,b,g,u] = k[i,g,u]*x[t,b,i] + v[w,g,u]*h[t-1,b,w else 0]
  - c[t,b,u] = c[t-1,b,u else 0]*sigmoid(z[t,b,1,u]) + tanh(z[t,b,0,u])
  - h[t,b,u] = tanh(c[t,b,u])*sigmoid(z[t,b,2,u])
  - \"y[b] = o[u]*h[size(t)-1,b,u]\"
train: {upstream: y}
";

/// Attention to all that came before: each time writes one place of the caches, and reads the row of a table that the time before it chose.
const CACHE: &str = "model: cache
dims: {t: 6, s: t, b: 3, p: 4, o: 7}
dtype: f64
inputs: {x: [t, b, p]}
parameters: {e: [o, p], wq: [o, p], wk: [o, p], wv: [o, p]}
steps:
  - \"last[t,b] = word[t-1,b else 0]\"
  - \"y[t,b,o] = x[t,b,p] * wq[o,p] + e[last[t,b],p] * wk[o,p]\"
  - \"key[t,b,p] = y[t,b,o] * wk[o,p]\"
  - \"keys[t,b,s,p] = where(s == t, key[t,b,p], keys[t-1,b,s,p else 0])\"
  - \"values[t,b,s,p] = where(s == t, y[t,b,o] * wv[o,p], values[t-1,b,s,p else 0])\"
  - \"score[t,b,s] = where(s <= t, key[t,b,p] * keys[t,b,s,p], -1e9)\"
  - \"weight[t,b,s] = softmax(score, over: s)\"
  - \"mixed[t,b,p] = weight[t,b,s] * values[t,b,s,p]\"
  - \"logit[t,b,o] = mixed[t,b,p] * wq[o,p]\"
  - \"word[t,b] = argmax(logit, over: o)\"
  - \"best[b] = sum(max(logit, over: o), over: t)\"
outputs: [word, best]
";

/// A state of which another step than its own reads what the time before left, so that it cannot be written in place.
const EXCHANGED: &str = "model: exchanged
dims: {t: 5, b: 3, u: 4, w: u}
dtype: f64
inputs: {x: [t, b, u]}
parameters: {v: [u, w]}
steps:
  - \"h[t,b,u] = tanh(v[u,w] * h[t-1,b,w else 0.5] + x[t,b,u])\"
  - \"y[t,b] = sum(h[t,b,u] * x[t,b,u], over: u)\"
outputs: [y]
";

fn drawn(program: &Sdfg) -> Tensors {
    let wanted = program.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter));
    let draw = |(n, name): (usize, &str)| {
        let shape = program.shape_of(name).unwrap();
        // Lengths are 2, 5, 3; other values differ in all places.
        let whole = name == "n";
        let value = |i: usize| if whole { [2.0, 5.0, 3.0][i % 3] } else { ((i * i + 7 * i + 3 * n) as f64).sin() };
        let values = (0..shape.iter().product::<usize>()).map(value);
        (name.to_string(), ArrayD::from_shape_vec(IxDyn(&shape), values.collect()).unwrap())
    };
    wanted.map(|c| c.name.as_str()).enumerate().map(draw).collect()
}

#[test]
fn a_recurrent_layer_computes_what_a_loop_does() {
    let program = load_str("rnn.yaml", RNN, &[]).unwrap_or_else(|errors| panic!("{errors}")).program;
    assert!(has_loops(&program));
    let given = drawn(&program);
    let found = interpret(&program, &given, &RUN).unwrap();
    let mut before = given["h0"].clone();
    for t in 0..7 {
        let mut now = before.clone();
        for (b, u) in (0..3).flat_map(|b| (0..5).map(move |u| (b, u))) {
            let state: f64 = (0..5).map(|w| given["v"][[u, w]] * before[[b, w]]).sum();
            let input: f64 = (0..4).map(|i| given["k"][[u, i]] * given["x"][[t, b, i]]).sum();
            now[[b, u]] = (state + input + given["c"][[u]]).tanh();
            assert!((found["h"][[t, b, u]] - now[[b, u]]).abs() < 1e-14);
        }
        before = now;
    }
}

#[test]
fn a_cache_is_written_one_place_at_a_time_and_read_whole() {
    let program = load_str("cache.yaml", CACHE, &[]).unwrap_or_else(|errors| panic!("{errors}")).program;
    assert_eq!(sdfg::validate::validate(&program), [], "{}", sdfg::text::print(&program));
    assert_eq!(sdfg::text::parse(&sdfg::text::print(&program)).unwrap(), program);
    let held = |name: &str| program.containers[name].dims.join(",");
    assert_eq!((held("keys").as_str(), held("values").as_str()), ("b,s,p", "b,s,p"), "caches are held for one time");
    let given = drawn(&program);
    let found = interpret(&program, &given, &RUN).unwrap();
    let matrix = |name: &str| given[name].clone().into_dimensionality::<ndarray::Ix2>().unwrap();
    let (e, wq, wk, wv) = (matrix("e"), matrix("wq"), matrix("wk"), matrix("wv"));
    let x = given["x"].clone().into_dimensionality::<ndarray::Ix3>().unwrap();
    for b in 0..3 {
        let (mut last, mut best, mut keys, mut values) = (0, 0.0, vec![], vec![]);
        for t in 0..6 {
            let y = wq.dot(&x.slice(ndarray::s![t, b, ..])) + wk.dot(&e.row(last));
            let key: ndarray::Array1<f64> = wk.t().dot(&y);
            keys.push(key.clone());
            values.push(wv.t().dot(&y));
            let scores: Vec<f64> = keys.iter().map(|k| key.dot(k)).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let all: f64 = weights.iter().sum();
            let mixed = weights.iter().zip(&values).fold(ndarray::Array1::zeros(4), |sum, (w, v)| sum + v * (w / all));
            let logit = wq.dot(&mixed);
            last = (0..7).fold(0, |best, o| if logit[o] > logit[best] { o } else { best });
            best += logit[last];
            assert_eq!(found["word"][[t, b]], last as f64);
        }
        assert!((found["best"][[b]] - best).abs() < 1e-12 * best.abs().max(1.0));
    }
}

#[test]
fn gradients_of_loops_are_differences_and_all_programs_agree() {
    for text in [RNN, LSTM, GRU, LAYERS, GATES] {
        let recipe = load_str("m.yaml", text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
        let train = recipe.train.clone().unwrap();
        let options = differentiate::Options { upstream: train.upstream, loss: train.loss, ..Default::default() };
        let both = differentiate::differentiate(&recipe.program, &options).unwrap();
        assert_eq!(sdfg::validate::validate(&both), [], "{}", sdfg::text::print(&both));
        assert_eq!(sdfg::text::parse(&sdfg::text::print(&both)).unwrap(), both);
        let loops = both.units().iter().filter(|(_, _, u)| matches!(u, sdfg::Unit::Nested(_))).count();
        assert_eq!(loops, 2, "one loop forward and one backward");
        let given = drawn(&both);
        let expected = interpret(&both, &given, &RUN).unwrap();
        let differences = Differences { random: 2, single: 5 };
        check_gradients(&recipe.program, &options, &given, &expected, &differences, &RUN).unwrap_or_else(|why| panic!("{why} in {text}"));
        let programs = programs(&recipe, false).unwrap();
        for program in [&programs.unfused].into_iter().chain(programs.variants.iter().map(|v| &v.program)) {
            assert_eq!(sdfg::validate::validate(program), []);
            let found = interpret(program, &given, &RUN).unwrap();
            for c in program.containers.values().filter(|c| matches!(c.role, Role::Output | Role::Gradient)) {
                transforms::verify::same_tensor(&c.name, &expected, &found).unwrap();
            }
        }
    }
}

#[test]
fn kernels_of_loops_compute_what_the_interpreter_does() {
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    let cores: Arc<dyn Device> = Arc::new(Cores { toolchain: Toolchain { cache: cache.into(), ..Toolchain::system().unwrap() } });
    let pool = Pool::new(2).unwrap();
    for text in [LSTM, LAYERS, GATES, CACHE, EXCHANGED] {
        let programs = programs(&load_str("m.yaml", text, &[]).unwrap(), false).unwrap();
        let stitched = programs.variants.iter().filter(|v| v.plan.is_some());
        for program in [&programs.unfused].into_iter().chain(programs.variants.iter().take(1).chain(stitched).map(|v| &v.program)) {
            let given = drawn(program);
            let expected = interpret(program, &given, &RUN).unwrap();
            // Numbers spread over the space: other layouts of weights, other configurations of the body's kernels, other divisions of
            // these.
            for place in [0, 1, 2] {
                let mut configuration = Configuration::default();
                for (_, _, unit) in program.units() {
                    let spec = KernelSpec::new(program, &unit).unwrap();
                    let space = cores.space(&spec).unwrap();
                    configuration.kernels.insert(spec.name.clone(), space.config(space.count() / 3 * place));
                }
                let mut execution = Execution::new(program, &configuration, &cores).unwrap();
                execution.load(&given).unwrap();
                // The second step finds the memory that the first has left.
                for _ in 0..2 {
                    execution.step(&pool, 1, 0, true).unwrap();
                }
                let found = execution.results().unwrap();
                for c in program.containers.values().filter(|c| matches!(c.role, Role::Output | Role::Gradient)) {
                    transforms::verify::same_tensor(&c.name, &expected, &found).unwrap_or_else(|why| panic!("{why} in {text}"));
                }
            }
        }
    }
}

#[test]
fn weight_gradients_and_projections_lie_outside_of_loops() {
    let recipe = load_str("m.yaml", RNN, &[]).unwrap();
    let options = differentiate::Options { upstream: vec!["h".into()], ..Default::default() };
    let both = differentiate::differentiate(&recipe.program, &options).unwrap();
    let outside: Vec<String> =
        both.units().iter().filter(|(_, _, u)| matches!(u, sdfg::Unit::Operation(_))).map(|(_, _, u)| u.name().to_string()).collect();
    for name in ["h.dot2", "d_v", "d_k", "d_c", "d_x", "d_h0"] {
        assert!(outside.iter().any(|o| o == name), "{name} is not among {outside:?}");
    }
}

#[test]
fn faults_of_loops_have_their_places() {
    let step = |step: &str| {
        format!(
            "model: m\ndims: {{t: 7, s: t, b: 3, u: 5, w: u}}\ninputs: {{x: [t, b, u]}}\nparameters: {{v: [u, w]}}\nsteps:\n  \
             - \"{step}\"\n  - \"y[t,b,u] = h[t,b,u]\"\noutputs: [y]\n"
        )
    };
    for (text, place, fault) in [
        ("h[t,b,u] = v[u,w]*h[t,b,w] + x", "6:24", "this is a cycle"),
        ("h[t,b,u] = v[u,w]*h[t-1,b,w else 0] + h[t+1,b,u else 0] + x", "6:6", "is read at `t-1` and at `t+1`"),
        ("h[t,b,u] = v[u,w]*h[t-1,b,w] + x", "6:26", "reaches from -1 to 5"),
        ("h[t,b,u] = v[u,w]*h[6-t,b,w] + x", "6:6", "reads `h` at `6-t` and makes it too"),
        ("h[t,b,u] = 0.1*h[t-1,b,u else 0] + sum(h[s,b,u], over: s) + x", "6:6", "this is a cycle"),
        ("h[t,b,u] = dropout(v[u,w]*h[t-1,b,w else 0] + x, rate: 0.1)", "6:6", "has a dropout in a loop over `t`"),
    ] {
        let errors = load_str("m.yaml", &step(text), &[]).map(|_| ()).unwrap_err().to_string();
        assert!(errors.contains(&format!("m.yaml:{place}: ")) && errors.contains(fault), "{text}: {errors}");
    }
}
