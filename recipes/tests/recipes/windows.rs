//! Windows: convolutions, pooling and joined tensors, against values that PyTorch computes in f64.
//!
//! Element `i` of every given tensor is `((7·i mod 11) − 5) / 4`, so all results are multiples of 1/16 and compared exactly: by the sum of
//! all elements, and by that of all elements times their places, as `torch.arange` numbers them.

use ndarray::{ArrayD, IxDyn};
use recipes::load::load_str;
use recipes::pipeline::variants::programs::programs;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Role, Sdfg};

const RUN: Run = Run { seed: 1, step: 0, dropout: true };

fn given(shape: &[usize]) -> ArrayD<f64> {
    let values = (0..shape.iter().product::<usize>()).map(|i| ((7 * i % 11) as f64 - 5.0) / 4.0);
    ArrayD::from_shape_vec(IxDyn(shape), values.collect()).unwrap()
}

/// The sum of a tensor, and that of its elements times their places.
fn sums(tensor: &ArrayD<f64>) -> [f64; 2] {
    [tensor.sum(), tensor.iter().enumerate().map(|(place, value)| place as f64 * value).sum()]
}

/// The programs of a recipe with the dims, tensors and steps given: operators, unfused and all variants.
fn built(text: &str) -> Vec<Sdfg> {
    let recipe = load_str("windows.yaml", text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let programs = programs(&recipe, false).unwrap();
    let variants = programs.variants.into_iter().map(|variant| variant.program);
    [programs.operators, programs.unfused].into_iter().chain(variants).collect()
}

/// Every program of a recipe computes tensors with these sums.
fn computes(dims: &str, tensors: &str, steps: &[&str], train: &str, expected: &[(&str, [f64; 2])]) {
    let steps: String = steps.iter().map(|step| format!("  - \"{step}\"\n")).collect();
    let text = format!("model: windows\ndims: {{{dims}}}\ndtype: f64\n{tensors}\nsteps:\n{steps}{train}");
    for program in built(&text) {
        let wanted = program.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter));
        let inputs: Tensors = wanted.map(|c| (c.name.clone(), given(&program.shape_of(&c.name).unwrap()))).collect();
        let results = interpret(&program, &inputs, &RUN).unwrap_or_else(|error| panic!("{error} in\n{}", sdfg::text::print(&program)));
        for (name, expected) in expected {
            assert_eq!(sums(&results[*name]), *expected, "{name} in {text}");
        }
    }
}

#[test]
fn convolutions_of_any_rank_stride_dilation_and_group() {
    for (dims, tensors, step, expected) in [
        (
            "n: 2, c: 3, h: 7, w: 6, o: 4, r: 3, s: 3, p: 4, q: 3",
            "inputs: {x: [n, c, h, w], k: [o, c, r, s]}",
            "y[n,o,p,q] = k[o,c,r,s] * x[n,c,2*p+r-1,2*q+s-1 else 0]",
            [-14.4375, -1221.625],
        ),
        (
            "n: 2, c: 3, w: 13, o: 4, s: 5, q: 9",
            "inputs: {x: [n, c, w], k: [o, c, s]}",
            "y[n,o,q] = k[o,c,s] * x[n,c,q+3*s-4 else 0]",
            [-0.5625, -316.6875],
        ),
        (
            "n: 1, c: 2, g: 5, h: 4, w: 6, o: 3, t: 2, r: 3, s: 3, z: 3, p: 2, q: 3",
            "inputs: {x: [n, c, g, h, w], k: [o, c, t, r, s]}",
            "y[n,o,z,p,q] = k[o,c,t,r,s] * x[n,c,2*z+t-1,p+r,3*q+s-2 else 0]",
            [-15.1875, 37.0625],
        ),
        (
            "n: 2, c: 4, h: 7, w: 5, f: 2, e: 3, i: 2, r: 3, s: 2, p: 7, q: 6",
            "inputs: {x: [n, c, h, w], k: [f, e, i, r, s]}",
            "y[n,f,e,p,q] = k[f,e,i,r,s] * x[n,size(i)*f+i,p+r-1,q+s-1 else 0]",
            [2.1875, 1194.3125],
        ),
        (
            "n: 2, c: 5, h: 6, w: 7, r: 3, s: 3, p: 3, q: 4",
            "inputs: {x: [n, c, h, w], k: [c, r, s]}",
            "y[n,c,p,q] = k[c,r,s] * x[n,c,2*p+r-1,2*q+s-1 else 0]",
            [5.375, -249.0625],
        ),
        (
            "n: 1, c: 2, h: 9, w: 9, o: 3, s: 7",
            "inputs: {x: [n, c, h, w], k: [o, c, s]}",
            "y[n,o,h,w] = k[o,c,s] * x[n,c,h,w+s-3 else 0]",
            [-0.0625, -373.625],
        ),
        (
            "n: 1, c: 2, h: 2, w: 2, o: 3, r: 5, s: 5",
            "inputs: {x: [n, c, h, w], k: [o, c, r, s]}",
            "y[n,o,h,w] = k[o,c,r,s] * x[n,c,h+r-2,w+s-2 else 0]",
            [4.6875, 14.6875],
        ),
    ] {
        computes(dims, tensors, &[step], "", &[("y", expected)]);
    }
}
