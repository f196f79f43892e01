//! Windows: convolutions, pooling and joined tensors, against values that PyTorch computes in f64.
//!
//! Element `i` of every given tensor is `((7·i mod 11) − 5) / 4`, so all results are multiples of 1/16 and compared exactly: by the sum of
//! all elements, and by that of all elements times their places, as `torch.arange` numbers them.

use kernels::device::Device;
use kernels::target::cpu::Cores;
use kernels::{KernelSpec, Toolchain};
use ndarray::{ArrayD, IxDyn};
use recipes::load::load_str;
use recipes::pipeline::variants::programs::programs;
use sdfg::config::KernelConfig;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Bindings, Layout, Role, Sdfg};
use transforms::autodiff::differentiate;
use transforms::verify::gradients::{Differences, check_gradients};

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
        assert_eq!(sdfg::validate::validate(&program), [], "{text}");
        let wanted = program.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter));
        let inputs: Tensors = wanted.map(|c| (c.name.clone(), given(&program.shape_of(&c.name).unwrap()))).collect();
        let results = interpret(&program, &inputs, &RUN).unwrap_or_else(|error| panic!("{error} in\n{}", sdfg::text::print(&program)));
        for (name, expected) in expected {
            assert_eq!(sums(&results[*name]), *expected, "{name} in {text}\n{}", sdfg::text::print(&program));
        }
    }
}

const TRAIN: &str = "train: {upstream: y}\n";

/// A recipe of given tensors and steps, and the sums of its result and gradients.
type Case<'a> = (&'a str, &'a str, &'a [&'a str], &'a [(&'a str, [f64; 2])]);

fn all_compute(cases: &[Case]) {
    for (dims, tensors, steps, expected) in cases {
        computes(dims, tensors, steps, TRAIN, expected);
    }
}

#[test]
fn convolutions_of_any_rank_stride_dilation_and_group() {
    all_compute(&[
        (
            "n: 2, c: 3, h: 7, w: 6, o: 4, r: 3, s: 3, p: 4, q: 3",
            "inputs: {x: [n, c, h, w], k: [o, c, r, s]}",
            &["y[n,o,p,q] = k[o,c,r,s] * x[n,c,2*p+r-1,2*q+s-1 else 0]"],
            &[("y", [-14.4375, -1221.625]), ("d_x", [-3.6875, -184.5625]), ("d_k", [11.5, 507.5])],
        ),
        (
            "n: 2, c: 3, w: 13, o: 4, s: 5, q: 9",
            "inputs: {x: [n, c, w], k: [o, c, s]}",
            &["y[n,o,q] = k[o,c,s] * x[n,c,q+3*s-4 else 0]"],
            &[("y", [-0.5625, -316.6875]), ("d_x", [5.5625, 263.8125]), ("d_k", [-5.0625, 236.875])],
        ),
        (
            "n: 1, c: 2, g: 5, h: 4, w: 6, o: 3, t: 2, r: 3, s: 3, z: 3, p: 2, q: 3",
            "inputs: {x: [n, c, g, h, w], k: [o, c, t, r, s]}",
            &["y[n,o,z,p,q] = k[o,c,t,r,s] * x[n,c,2*z+t-1,p+r,3*q+s-2 else 0]"],
            &[("y", [-15.1875, 37.0625]), ("d_x", [5.0625, 288.8125]), ("d_k", [-15.1875, -579.625])],
        ),
        (
            "n: 2, c: 4, h: 7, w: 5, f: 2, e: 3, i: 2, r: 3, s: 2, p: 7, q: 6",
            "inputs: {x: [n, c, h, w], k: [f, e, i, r, s]}",
            &["y[n,f,e,p,q] = k[f,e,i,r,s] * x[n,size(i)*f+i,p+r-1,q+s-1 else 0]"],
            &[("y", [2.1875, 1194.3125]), ("d_x", [9.75, 1509.875]), ("d_k", [-8.8125, -523.75])],
        ),
        (
            "n: 2, c: 5, h: 6, w: 7, r: 3, s: 3, p: 3, q: 4",
            "inputs: {x: [n, c, h, w], k: [c, r, s]}",
            &["y[n,c,p,q] = k[c,r,s] * x[n,c,2*p+r-1,2*q+s-1 else 0]"],
            &[("y", [5.375, -249.0625]), ("d_x", [-9.6875, -4133.6875]), ("d_k", [23.0, 499.25])],
        ),
        (
            "n: 1, c: 2, h: 9, w: 9, o: 3, s: 7",
            "inputs: {x: [n, c, h, w], k: [o, c, s]}",
            &["y[n,o,h,w] = k[o,c,s] * x[n,c,h,w+s-3 else 0]"],
            &[("y", [-0.0625, -373.625]), ("d_x", [-5.75, -421.0]), ("d_k", [-13.75, -660.5625])],
        ),
        (
            "n: 1, c: 2, h: 2, w: 2, o: 3, r: 5, s: 5",
            "inputs: {x: [n, c, h, w], k: [o, c, r, s]}",
            &["y[n,o,h,w] = k[o,c,r,s] * x[n,c,h+r-2,w+s-2 else 0]"],
            &[("y", [4.6875, 14.6875]), ("d_x", [5.5, 25.875]), ("d_k", [-0.625, -111.1875])],
        ),
    ]);
}

#[test]
fn strides_and_dilations_with_and_without_common_divisors() {
    all_compute(&[
        (
            "n: 2, c: 3, h: 7, w: 6, o: 4, p: 4, q: 3",
            "inputs: {x: [n, c, h, w], k: [o, c]}",
            &["y[n,o,p,q] = k[o,c] * x[n,c,2*p,2*q]"],
            &[("y", [-7.1875, -763.6875]), ("d_x", [0.125, -306.875]), ("d_k", [-9.25, -52.125])],
        ),
        (
            "n: 2, c: 3, w: 17, o: 4, s: 5, q: 5",
            "inputs: {x: [n, c, w], k: [o, c, s]}",
            &["y[n,o,q] = k[o,c,s] * x[n,c,3*q+2*s-3 else 0]"],
            &[("y", [-2.375, -28.75]), ("d_x", [3.5625, 449.375]), ("d_k", [-3.0, -231.125])],
        ),
        (
            "n: 2, c: 3, w: 17, o: 4, s: 3, q: 9",
            "inputs: {x: [n, c, w], k: [o, c, s]}",
            &["y[n,o,q] = k[o,c,s] * x[n,c,2*q+2*s-2 else 0]"],
            &[("y", [1.6875, 22.1875]), ("d_x", [-8.9375, -558.875]), ("d_k", [4.125, 66.75])],
        ),
        (
            "n: 1, c: 2, w: 31, o: 3, s: 4, q: 6",
            "inputs: {x: [n, c, w], k: [o, c, s]}",
            &["y[n,o,q] = k[o,c,s] * x[n,c,4*q+6*s-5 else 0]"],
            &[("y", [2.4375, -17.0625]), ("d_x", [-1.875, -108.4375]), ("d_k", [-1.6875, -48.0])],
        ),
        (
            "n: 1, c: 2, h: 7, w: 6, o: 3, r: 3, s: 3, p: 4, q: 3",
            "inputs: {x: [n, c, h, w], k: [o, c, r, s]}",
            &["y[n,o,p,q] = k[o,c,r,s] * x[n,c,2*p+r-2,2*q+s else 0]"],
            &[("y", [-1.0, -36.625]), ("d_x", [-7.875, 85.0625]), ("d_k", [0.8125, 79.875])],
        ),
        // The gradient of a convolution as a layer: zeros between the elements, then a window of the kernel turned round.
        (
            "n: 1, c: 3, h: 4, w: 3, o: 2, r: 3, s: 3, u: 2*h, v: 2*w",
            "inputs: {x: [n, c, h, w], k: [c, o, r, s]}",
            &[
                "z[n,c,u,v] = where(u == 2*floor(u/2), where(v == 2*floor(v/2), x[n,c,floor(u/2),floor(v/2)], 0), 0)",
                "y[n,o,u,v] = k[c,o,r,s] * z[n,c,u-r+1,v-s+1 else 0]",
            ],
            &[("y", [3.25, -216.75]), ("d_x", [-1.625, -70.75]), ("d_k", [1.125, 22.0625])],
        ),
    ]);
}

/// Written as kernels at the places of an image, and summed over the kernels' own places in every program but the operators'.
#[test]
fn transposed_convolutions_with_and_without_strides() {
    all_compute(&[
        (
            "n: 2, c: 3, h: 4, w: 5, o: 2, r: 3, s: 4, p: 8, q: 16",
            "inputs: {x: [n, c, h, w], k: [c, o, r, s]}",
            &["y[n,o,p,q] = conv_transpose(x, k, stride: [2, 3], pad: [1, 0])"],
            &[("y", [-1.0, -1057.1875]), ("d_x", [-37.4375, -3131.375]), ("d_k", [-9.8125, -36.75])],
        ),
        (
            "n: 2, c: 3, h: 7, o: 4, r: 3, p: 7",
            "inputs: {x: [n, c, h], k: [c, o, r]}",
            &["y[n,o,p] = conv_transpose(x, k, pad: 1)"],
            &[("y", [3.9375, -86.5625]), ("d_x", [4.6875, 80.25]), ("d_k", [7.8125, 110.375])],
        ),
    ]);
}

/// Products have rows at equal distances: a factor that is read at rounded places is copied.
#[test]
fn factors_that_are_stretched_are_multiplied() {
    let cases: [Case; 2] = [
        (
            "a: 5, p: 10, k: 6, o: 4",
            "inputs: {x: [a, k], w: [k, o]}",
            &["y[p,o] = x[floor(p/2),k] * w[k,o]"],
            &[("y", [3.125, -163.875]), ("d_x", [0.5, -42.6875]), ("d_w", [-2.75, -25.5625])],
        ),
        (
            "p: 5, b: 3, k: 6, o: 4",
            "inputs: {x: [p, k], w: [b, o]}",
            &["y[p,o] = x[p,k] * w[floor(k/2),o]"],
            &[("y", [3.625, 7.0]), ("d_x", [10.75, 144.875]), ("d_w", [-6.25, -45.625])],
        ),
    ];
    all_compute(&cases);
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    let cores = Cores { toolchain: Toolchain { cache: cache.into(), ..Toolchain::system().unwrap() } };
    // Sums of what a rounded place selects are no products either.
    let selected = "s[k] = sum(where(x[floor((p+1)/2)-t,k else -1] == t, x[floor((p+1)/2)-t,k else 0], 0) * v, over: [p, t])";
    let texts = [
        "dims: {a: 5, p: 10, k: 6, o: 4}\ninputs: {x: [a, k], w: [k, o]}\nsteps:\n  - \"y[p,o] = x[floor(p/2),k] * w[k,o]\"\n".to_string(),
        format!("dims: {{a: 5, p: 10, k: 6, t: 2}}\ninputs: {{x: [a, k], v: [p]}}\nsteps:\n  - \"{selected}\"\n"),
    ];
    for text in texts {
        for program in built(&format!("model: m\ndtype: f32\n{text}")).into_iter().skip(1) {
            for (_, _, unit) in program.units() {
                let spec = KernelSpec::new(&program, &unit).unwrap();
                let space = cores.space(&spec).unwrap();
                for config in (0..3.min(space.count())).map(|n| space.config(n * space.count() / 3)) {
                    cores.compile(&spec, &config).unwrap_or_else(|error| panic!("{config}: {error} in {text}"));
                }
            }
        }
    }
}

#[test]
fn pooling_hands_gradients_to_the_first_maximum() {
    all_compute(&[
        (
            "n: 2, c: 3, h: 7, w: 6, r: 3, s: 3, p: 4, q: 3",
            "inputs: {x: [n, c, h, w]}",
            &["y[n,c,p,q] = max(x[n,c,2*p+r-1,2*q+s-1 else -inf], over: [r,s])"],
            &[("y", [79.75, 2824.75]), ("d_x", [-0.5, -77.25])],
        ),
        (
            "n: 2, c: 3, h: 7, w: 6, r: 2, s: 2, p: 4, q: 3",
            "inputs: {x: [n, c, h, w]}",
            &["y[n,c,p,q] = max(x[n,c,2*p+r,2*q+s else -inf], over: [r,s])"],
            &[("y", [62.75, 2211.5]), ("d_x", [-0.5, -73.75])],
        ),
        (
            "n: 2, c: 3, h: 6, w: 6, r: 2, s: 2, p: 3, q: 3",
            "inputs: {x: [n, c, h, w]}",
            &["y[n,c,p,q] = mean(x[n,c,2*p+r,2*q+s], over: [r,s])"],
            &[("y", [0.125, 10.6875]), ("d_x", [0.25, 115.375])],
        ),
        (
            "n: 2, c: 3, h: 6, w: 6, r: 2, s: 2, p: 4, q: 4",
            "inputs: {x: [n, c, h, w]}",
            &["y[n,c,p,q] = mean(x[n,c,2*p+r-1,2*q+s-1 else 0], over: [r,s])"],
            &[("y", [0.125, 18.6875]), ("d_x", [0.625, 71.6875])],
        ),
        (
            "n: 2, c: 3, h: 6, w: 6, r: 2, s: 2, p: 7, q: 7",
            "inputs: {x: [n, c, h, w]}",
            &["y[n,c,p,q] = sum(x[n,c,p+r-1,q+s-1 else 0], over: [r,s]) / sum(where(p+r-1 >= 0, where(p+r-1 < size(h), \
                 where(q+s-1 >= 0, where(q+s-1 < size(w), 1, 0), 0), 0), 0), over: [r,s])"],
            &[("y", [1.75, 1072.5625]), ("d_x", [0.5, 161.125])],
        ),
    ]);
}

/// Parts are written in place and slices read where they lie: between layers, and backward.
#[test]
fn layers_write_parts_and_read_slices() {
    all_compute(&[
        (
            "n: 1, c: 3, h: 5, w: 4, m: 2, e: 3, o: 2*e, r: 3, s: r",
            "inputs: {x: [n, c, h, w], k: [m, c], l: [e, m], m3: [e, m, r, s]}",
            &[
                "t[n,m,h,w] = relu(k[m,c] * x[n,c,h,w])",
                "a[n,e,h,w] = relu(l[e,m] * t[n,m,h,w])",
                "b[n,e,h,w] = relu(m3[e,m,r,s] * t[n,m,h+r-1,w+s-1 else 0])",
                "y[n,o,h,w] = concat(a, b, along: o)",
            ],
            &[
                ("y", [73.28125, 4978.203125]),
                ("d_x", [-11.71875, -162.71875]),
                ("d_k", [11.03125, 45.515625]),
                ("d_l", [14.09375, 22.25]),
                ("d_m3", [20.25, 712.734375]),
            ],
        ),
        (
            "n: 2, c: 3, h: 6, w: 5, a: 2, b: 4, d: 1, o: 10, r: 3, s: r, t: 5, u: t",
            "inputs: {x: [n, c, h, w], k: [a, c], l: [b, c, r, s], m: [d, c, t, u]}",
            &[
                "one[n,a,h,w] = k[a,c] * x[n,c,h,w]",
                "three[n,b,h,w] = relu(l[b,c,r,s] * x[n,c,h+r-1,w+s-1 else 0])",
                "five[n,d,h,w] = relu(m[d,c,t,u] * x[n,c,h+t-2,w+u-2 else 0])",
                "pool[n,c,h,w] = maxpool(x, over: [r, s], pad: 1)",
                "y[n,o,h,w] = concat(one, three, five, pool, along: o)",
            ],
            &[
                ("y", [639.3125, 212343.4375]),
                ("d_x", [-11.25, -1820.3125]),
                ("d_k", [18.9375, 43.1875]),
                ("d_l", [7.0625, 119.3125]),
                ("d_m", [13.625, 455.0]),
            ],
        ),
        (
            "n: 1, c: 3, h: 5, w: 4, a: 2, b: 4, o: a + b, g: 2, f: 3, r: 3, s: r",
            "inputs: {x: [n, c, h, w], k: [a, c], l: [b, c], m: [f, a, r, s], v: [g, o], z: [g, f]}",
            &[
                "one[n,a,h,w] = relu(k[a,c] * x[n,c,h,w])",
                "two[n,b,h,w] = relu(l[b,c] * x[n,c,h,w])",
                "three[n,f,h,w] = m[f,a,r,s] * one[n,a,h+r-1,w+s-1 else 0]",
                "both[n,o,h,w] = concat(two, one, along: o)",
                "y[n,g,h,w] = v[g,o] * both[n,o,h,w] + z[g,f] * three[n,f,h,w]",
            ],
            &[
                ("y", [-41.2734375, -677.9765625]),
                ("d_x", [-26.37109375, -912.59765625]),
                ("d_k", [0.9375, 30.6796875]),
                ("d_l", [9.375, 55.40625]),
                ("d_m", [-3.37890625, -147.83203125]),
            ],
        ),
        (
            "n: 1, c: 3, h: 5, w: 4, a: 2, b: 4, d: 3, e: a + b, o: e + d",
            "inputs: {x: [n, c, h, w], k: [a, c], l: [b, c], m: [d, c]}",
            &[
                "one[n,a,h,w] = relu(k[a,c] * x[n,c,h,w])",
                "two[n,b,h,w] = relu(l[b,c] * x[n,c,h,w])",
                "three[n,d,h,w] = relu(m[d,c] * x[n,c,h,w])",
                "both[n,e,h,w] = concat(one, two, along: e)",
                "y[n,o,h,w] = concat(both, three, along: o)",
            ],
            &[
                ("y", [110.625, 10153.0625]),
                ("d_x", [9.5, -123.4375]),
                ("d_k", [2.25, 5.25]),
                ("d_l", [3.75, 36.0]),
                ("d_m", [-3.75, -7.125]),
            ],
        ),
        (
            "n: 1, c: 5, h: 9, w: 8, d: 3, p: 6, q: 4, o: 2, r: 3, s: r",
            "inputs: {x: [n, c, h, w], k: [o, d, r, s]}",
            &["t[n,d,p,q] = slice(x, along: [c, h, w], from: [1, 2, 1], step: [1, 1, 2])", "y[n,o,p,q] = conv(t, k, pad: 1)"],
            &[("y", [8.75, 389.625]), ("d_x", [1.8125, -206.1875]), ("d_k", [0.6875, 433.5625])],
        ),
        (
            "n: 1, c: 3, h: 6, w: 5, i: h + 3, j: w + 3, p: 4, q: 3, o: 2, r: 3, s: r",
            "inputs: {x: [n, c, h, w], k: [o, c, r, s]}",
            &["u[n,c,h,w] = relu(x[n,c,h,w])", "t[n,c,i,j] = pad(u, along: [h, w], before: [1, 2])", "y[n,o,p,q] = conv(t, k, stride: 2)"],
            &[("y", [-2.125, -22.75]), ("d_x", [5.0625, 506.0625]), ("d_k", [-6.375, 81.5625])],
        ),
        (
            "n: 1, c: 3, h: 4, w: 5, o: 2, i: 2, j: 2*h + i",
            "inputs: {x: [n, c, h, w], k: [o, c], l: [o, c]}",
            &[
                "a[n,o,h,w] = relu(k[o,c] * x[n,c,h,w])",
                "b[n,o,h,w] = relu(l[o,c] * x[n,c,h,w])",
                "m[n,o,i,w] = slice(b, along: h, from: 1)",
                "y[n,o,j,w] = concat(a, m, a, along: j)",
            ],
            &[("y", [58.0, 3078.375]), ("d_x", [11.8125, 106.8125]), ("d_k", [4.125, 1.125]), ("d_l", [0.375, 6.375])],
        ),
    ]);
}

#[test]
fn tensors_are_joined_cut_turned_and_stretched() {
    all_compute(&[
        (
            "n: 2, a: 3, b: 5, c: a + b, w: 4",
            "inputs: {s: [n, a, w], t: [n, b, w]}",
            &["y[n,c,w] = where(c < size(a), s[n,c,w else 0], t[n,c-size(a),w else 0])"],
            &[("y", [-0.25, 48.75]), ("d_s", [-1.5, -11.25]), ("d_t", [1.0, -5.0])],
        ),
        (
            "c: 6, w: 9, p: 3, q: 4, n: 2",
            "inputs: {x: [n, c, w]}",
            &["y[n,p,q] = x[n,p+2,2*q+1]"],
            &[("y", [-0.25, -7.25]), ("d_x", [-0.75, -24.5])],
        ),
        ("n: 2, w: 6", "inputs: {x: [n, w]}", &["y[n,w] = x[n,size(w)-1-w]"], &[("y", [-1.25, -4.25]), ("d_x", [-1.25, -4.25])]),
        ("n: 2, w: 6, u: w + 3", "inputs: {x: [n, w]}", &["y[n,u] = x[n,u-2 else 0.5]"], &[("y", [1.75, 6.75]), ("d_x", [0.75, 1.0])]),
        (
            "n: 2, c: 3, h: 4, w: 3, p: 2*h, q: 2*w",
            "inputs: {x: [n, c, h, w]}",
            &["y[n,c,p,q] = x[n,c,floor(p/2),floor(q/2)]"],
            &[("y", [-2.0, -249.0]), ("d_x", [-0.75, -34.0])],
        ),
        ("i: 4, h: 5, w: h", "inputs: {x: [h, w]}", &["y[i] = 2 * x[i+0,i+1]"], &[("y", [-2.0, -8.0]), ("d_x", [0.0, 39.0])]),
        ("h: 5, w: h", "inputs: {x: [h, w]}", &["y[h] = x[h,h]"], &[("y", [-0.25, 0.0]), ("d_x", [0.25, 25.5])]),
    ]);
}

/// What lies outside of the picture is the fill, not what the first layer makes of nothing: its bias is not 0.
#[test]
fn borders_read_the_fill_and_not_the_layer_below() {
    let program = &built(
        "model: borders\ndims: {n: 1, c: 1, h: 4, w: 5, o: 1, r: 3, s: 3, e: 1}\ndtype: f64\n\
         inputs: {x: [n, c, h, w], k: [o, c, r, s], b: [o], l: [e, o, r, s]}\nsteps:\n  \
         - \"t[n,o,h,w] = relu(k[o,c,r,s] * x[n,c,h+r-1,w+s-1 else 0] + b[o])\"\n  \
         - \"y[n,e,h,w] = l[e,o,r,s] * t[n,o,h+r-1,w+s-1 else 0]\"\n",
    );
    let filled = |shape: &[usize], value: f64| ArrayD::from_elem(IxDyn(shape), value);
    let inputs: Tensors =
        [("x", filled(&[1, 1, 4, 5], 0.0)), ("k", filled(&[1, 1, 3, 3], 1.0)), ("b", filled(&[1], 2.0)), ("l", filled(&[1, 1, 3, 3], 1.0))]
            .map(|(name, tensor)| (name.to_string(), tensor))
            .into();
    for program in program {
        let results = interpret(program, &inputs, &RUN).unwrap();
        // Twice the number of places of the window that lie in the picture.
        let places = |at: usize, last: usize| if at == 0 || at == last { 2.0 } else { 3.0 };
        let expected = ArrayD::from_shape_fn(IxDyn(&[1, 1, 4, 5]), |at| 2.0 * places(at[2], 3) * places(at[3], 4));
        assert_eq!(results["y"], expected);
    }
}

#[test]
fn gradients_of_windows_are_their_differences() {
    for (dims, tensors, steps) in [
        (
            "n: 2, c: 3, h: 7, w: 8, o: 4, r: 3, s: 2, p: 3, q: 4, u: 2, v: 2, e: 2",
            "inputs: {x: [n, c, h, w], k: [o, c, r, s], l: [o, r], b: [o]}",
            vec![
                "t[n,o,p,q] = tanh(k[o,c,r,s] * x[n,c,3*p+2*r-2,2*q+s-1 else 0] + b[o])",
                "m[n,o,u,v] = max(t[n,o,2*u+e-1,2*v+s else -inf], over: [e,s])",
                "y[n,o,u,v] = l[o,r] * m[n,o,u+r-1,v else 0]",
            ],
        ),
        // Products of two windows, a window whose fill is not 0, and a sum over an index that only a window has.
        (
            "i: 9, j: 5, r: 3, d: 4",
            "inputs: {x: [i], z: [i], k: [r]}",
            vec![
                "a[j] = x[2*j+r-1 else 0.5] * z[j-r else 2]",
                "c[j,d] = sum(x[2*j+d-1 else 0] * z[i], over: i)",
                "y[j,d] = a[j] * c[j,d] + x[j+d+0] * exp(z[size(i)-1-2*d])",
            ],
        ),
        // Elements of the diagonal, and repeated ones.
        (
            "i: 6, j: i, u: 11",
            "inputs: {x: [i, j], z: [i]}",
            vec!["a[i] = x[i,i] * z[j] * x[i,j] * z[i]", "y[u] = a[floor(u/2)] * sin(a[floor((u+1)/3) else 0])"],
        ),
    ] {
        let steps: String = steps.iter().map(|step| format!("  - \"{step}\"\n")).collect();
        let text = format!("model: windows\ndims: {{{dims}}}\ndtype: f64\n{tensors}\nsteps:\n{steps}");
        let forward = load_str("windows.yaml", &text, &[]).unwrap_or_else(|errors| panic!("{errors}")).program;
        let options = differentiate::Options { upstream: vec!["y".into()], ..Default::default() };
        let both = differentiate::differentiate(&forward, &options).unwrap();
        assert_eq!(sdfg::validate::validate(&both), [], "{}", sdfg::text::print(&both));
        let wanted = both.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter));
        // No two elements are equal.
        let drawn = |(n, name): (usize, &str)| {
            let shape = both.shape_of(name).unwrap();
            let values = (0..shape.iter().product::<usize>()).map(|i| ((i * i + 7 * i + 3 * n) as f64).sin() + 0.1);
            (name.to_string(), ArrayD::from_shape_vec(IxDyn(&shape), values.collect()).unwrap())
        };
        let inputs: Tensors = wanted.map(|c| c.name.as_str()).enumerate().map(drawn).collect();
        let gradients = interpret(&both, &inputs, &RUN).unwrap();
        let differences = Differences { random: 2, single: 9 };
        check_gradients(&forward, &options, &inputs, &gradients, &differences, &RUN).unwrap_or_else(|why| panic!("{why} in {text}"));
    }
}

/// Programs that are large at small sizes, too, are checked with all sizes 1: a direct product has then no axis of more than one step.
#[test]
fn direct_products_have_code_where_all_sizes_are_1() {
    let text = "model: m\ndims: {n: 1, c: 3, o: 64, r: 3, h: 30, p: 28}\ndtype: f32\ninputs: {x: [n, c, h]}\nparameters: {k: [o, c, r]}\n\
                steps:\n  - \"y[n,o,p] = k[o,c,r] * x[n,c,p+r]\"\n";
    let recipe = load_str("windows.yaml", text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
    let program = programs(&recipe, false).unwrap().unfused;
    let cache = concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels");
    let cores = Cores { toolchain: Toolchain { cache: cache.into(), ..Toolchain::system().unwrap() } };
    let (_, _, unit) = program.units().into_iter().next().expect("a product");
    let spec = KernelSpec::new(&program, &unit).unwrap();
    let space = cores.space(&spec).unwrap();
    let direct = |config: &KernelConfig| config.knobs.get("form") == Some("direct") && config.layouts.values().all(Layout::is_plain);
    let mut tried = 0;
    for config in (0..space.count()).map(|n| space.config(n)).filter(direct).take(3) {
        let ones: Bindings = program.sizes.keys().map(|size| (size.clone(), 1)).collect();
        let small = spec.with_sizes(&ones).unwrap();
        cores.compile(&small, &config).unwrap_or_else(|error| panic!("{config}: {error}"));
        tried += 1;
    }
    assert!(tried > 0, "no direct product");
}
