//! Operators and layers, forward and backward, against vectors that PyTorch made in f64.
//!
//! `bench/peers/vectors.py` documents how each file in `tests/data/` was made. Kernels and their reference come from one definition of
//! each operator; these vectors come from outside.

use crate::pytorch_support::{self, Vectors, chain, check};
use recipes::load::{Recipe, load, load_str};
use recipes::pipeline::oracle::operators::operators;
use std::path::Path;
use transforms::{DriverOptions, Expand, Fusion, run_pipeline};

/// Interprets the operators and the fused kernels of a recipe on the vectors' inputs and compares all results.
fn agrees(vectors: &Vectors, recipe: &Recipe) {
    let (program, _) = operators(recipe).unwrap();
    let length = chain(&program);
    check(vectors, &program, length, "operators");
    let expanded = run_pipeline(&program, &[&Expand], &DriverOptions::default()).unwrap().program;
    let fused = run_pipeline(&expanded, &[&Fusion::default()], &DriverOptions::default()).unwrap().program;
    check(vectors, &fused, length, "fused");
}

fn shipped(name: &str) {
    let vectors = Vectors::read(name);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml"));
    agrees(&vectors, &load(&path, &vectors.sizes).unwrap());
}

fn operator(name: &str, dims: &str, tensors: &str, step: &str) {
    let vectors = Vectors::read(name);
    let text = format!("model: one\ndims: {{{dims}}}\ndtype: f64\n{tensors}\nsteps:\n  - \"{step}\"\ntrain: {{upstream: y}}\n");
    agrees(&vectors, &load_str(name, &text, &vectors.sizes).unwrap());
}

const POINTS: &str = "n: 1, c: 1, s: 1";

#[test]
fn bert_base_encoder() {
    shipped("bert-base-encoder");
}

#[test]
fn bert_large_encoder() {
    shipped("bert-large-encoder");
}

#[test]
fn mha() {
    shipped("mha");
}

#[test]
fn gpt2_decoder() {
    shipped("gpt2-decoder");
}

#[test]
fn llama_decoder() {
    shipped("llama-decoder");
}

#[test]
fn mlp() {
    shipped("mlp");
}

#[test]
fn softmax() {
    operator("softmax", POINTS, "inputs: {x: [n, c, s]}", "y[n,c,s] = softmax(x[n,c,s], over: c)");
}

#[test]
fn causal_mask() {
    let step = "y[h,j,k] = softmax(where(k <= j, x[h,j,k], -inf), over: k)";
    operator("causal", "h: 1, j: 1, k: j", "inputs: {x: [h, j, k]}", step);
}

#[test]
fn layernorm() {
    let tensors = "inputs: {x: [n, c, s]}\nparameters: {scale: [c, s], shift: [c, s]}";
    let step = "y[n,c,s] = layernorm(x[n,c,s], over: [c, s], scale: scale[c,s], shift: shift[c,s], eps: 1e-5)";
    operator("layernorm", POINTS, tensors, step);
}

#[test]
fn batchnorm() {
    let tensors = "inputs: {x: [n, c, s]}\nparameters: {scale: [c], shift: [c]}";
    let step = "y[n,c,s] = batchnorm(x[n,c,s], over: [n, s], scale: scale[c], shift: shift[c], eps: 1e-5)";
    operator("batchnorm", POINTS, tensors, step);
}

#[test]
fn instancenorm() {
    let tensors = "inputs: {x: [n, c, s]}\nparameters: {scale: [c], shift: [c]}";
    let step = "y[n,c,s] = instancenorm(x[n,c,s], over: s, scale: scale[c], shift: shift[c], eps: 1e-5)";
    operator("instancenorm", POINTS, tensors, step);
}

#[test]
fn groupnorm() {
    let tensors = "inputs: {x: [n, g, m, s]}\nparameters: {scale: [g, m], shift: [g, m]}";
    let step = "y[n,g,m,s] = groupnorm(x[n,g,m,s], over: [m, s], scale: scale[g,m], shift: shift[g,m], eps: 1e-5)";
    operator("groupnorm", "n: 1, g: 1, m: 1, s: 1", tensors, step);
}

#[test]
fn gelu_by_the_error_function() {
    operator("gelu-erf", POINTS, "inputs: {x: [n, c, s]}", "y[n,c,s] = gelu(x[n,c,s])");
}

#[test]
fn gelu_by_tanh() {
    operator("gelu-tanh", POINTS, "inputs: {x: [n, c, s]}", "y[n,c,s] = gelu(x[n,c,s], form: tanh)");
}

#[test]
fn contraction_with_bias() {
    let tensors = "inputs: {x: [i, b, j]}\nparameters: {w: [u, i], c: [u]}";
    operator("linear", "i: 1, b: 1, j: 1, u: 1", tensors, "y[u,b,j] = w[u,i] * x[i,b,j] + c[u]");
}

/// The tolerance is narrow enough to find errors: ReLU in place of GELU, another epsilon, a lost scale.
#[test]
fn another_model_is_refused_by_the_tolerance() {
    let vectors = Vectors::read("bert-base-encoder");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("bert-base-encoder.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    for (from, to) in [("gelu(", "relu("), ("eps: 1e-12", "eps: 1e-9"), ("(1 / sqrt(size(p))) * ", "")] {
        assert!(text.contains(from));
        let recipe = load_str("changed.yaml", &text.replace(from, to), &vectors.sizes).unwrap();
        let (program, _) = operators(&recipe).unwrap();
        let worst = pytorch_support::worst(&vectors, &program, chain(&program));
        assert!(worst.1.ratio > 1.0, "`{to}` in place of `{from}` was not noticed: {worst:?}");
    }
}
