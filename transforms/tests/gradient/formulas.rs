//! The encoder layer, forward and backward, as plain loops written from the formulas, against the program's.
//!
//! Nothing of the library stands here but the dropout factors. Tensors are row-major `Vec`s in the dims' order.
//!
//! *Tolerance.* Both sides are f64 and round differently only in the order of their sums. Every value and gradient is a
//! sum of products of a value and a gradient, whose magnitudes are at most `V` and `G`; with the `K` roundings of the
//! longest chain, a few for each of the 40 steps and one for each term summed, an entry differs by at most
//! `2·K·ε·max(V, 1)·max(G, 1)` times the number of normalizations' amplification, 1/σ, of which there are two in a row.

use crate::difference::{RUN, random_tensor, random_tensors};
use crate::layers::{RATE, encoder};
use sdfg::interpret::{Tensors, interpret};
use sdfg::philox;
use transforms::differentiate::{Options, differentiate};

const B: usize = 2;
const J: usize = 3;
const H: usize = 2;
const P: usize = 2;
const I: usize = 4;
const U: usize = 5;
const EPS: f64 = 1e-5;

fn mask(stream: &str, n: usize) -> Vec<f64> {
    let key = philox::key(RUN.seed, stream);
    (0..n).map(|e| philox::keep(key, RUN.step, e as u64, RATE)).collect()
}

fn times(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

fn plus(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// `out[m, n] = Σ_k a[m, k]·b[k, n]`.
fn matmul(a: &[f64], b: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    for r in 0..m {
        for c in 0..n {
            for t in 0..k {
                out[r * n + c] += a[r * k + t] * b[t * n + c];
            }
        }
    }
    out
}

fn transposed(a: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..rows * columns).map(|e| a[(e % rows) * columns + e / rows]).collect()
}

/// `a[m, n] + b[m]`.
fn with_bias(a: &[f64], b: &[f64]) -> Vec<f64> {
    let n = a.len() / b.len();
    a.iter().enumerate().map(|(e, v)| v + b[e / n]).collect()
}

fn row_sums(a: &[f64], m: usize) -> Vec<f64> {
    a.chunks(a.len() / m).map(|row| row.iter().sum()).collect()
}

/// Layer normalization of `x[i, t]` over `i`: result, normalized x, 1/σ for each `t`.
fn norm(x: &[f64], gamma: &[f64], beta: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let t = x.len() / I;
    let (mut y, mut hat, mut inverse) = (vec![0.0; x.len()], vec![0.0; x.len()], vec![0.0; t]);
    for c in 0..t {
        let mean = (0..I).map(|i| x[i * t + c]).sum::<f64>() / I as f64;
        let variance = (0..I).map(|i| (x[i * t + c] - mean).powi(2)).sum::<f64>() / I as f64;
        inverse[c] = 1.0 / (variance + EPS).sqrt();
        for i in 0..I {
            hat[i * t + c] = (x[i * t + c] - mean) * inverse[c];
            y[i * t + c] = gamma[i] * hat[i * t + c] + beta[i];
        }
    }
    (y, hat, inverse)
}

/// Gradients of [`norm`] by x, gamma and beta.
fn norm_backward(dy: &[f64], hat: &[f64], inverse: &[f64], gamma: &[f64]) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let t = inverse.len();
    let (mut dx, mut dgamma, mut dbeta) = (vec![0.0; dy.len()], vec![0.0; I], vec![0.0; I]);
    for (c, inverse) in inverse.iter().enumerate() {
        let (mut sum, mut weighted) = (0.0, 0.0);
        for (i, gamma) in gamma.iter().enumerate() {
            let e = i * t + c;
            dgamma[i] += dy[e] * hat[e];
            dbeta[i] += dy[e];
            sum += dy[e] * gamma;
            weighted += dy[e] * gamma * hat[e];
        }
        for (i, gamma) in gamma.iter().enumerate() {
            let e = i * t + c;
            dx[e] = inverse / I as f64 * (I as f64 * dy[e] * gamma - sum - hat[e] * weighted);
        }
    }
    (dx, dgamma, dbeta)
}

/// Result and all gradients of the encoder layer.
fn by_hand(t: &Tensors) -> Tensors {
    let get = |name: &str| t[name].iter().copied().collect::<Vec<f64>>();
    let (time, heads) = (B * J, P * H);
    let x = get("x");
    // [ph, i] · [i, bj] + [ph]
    let project = |w: &str, b: &str| with_bias(&matmul(&get(w), &x, heads, I, time), &get(b));
    let (q, k, v) = (project("wq", "bq"), project("wk", "bk"), project("wv", "bv"));
    let at = |p: usize, h: usize, b: usize, j: usize| ((p * H + h) * B + b) * J + j;
    let score = |h: usize, b: usize, j: usize, k: usize| ((h * B + b) * J + j) * J + k;
    let every = || (0..H).flat_map(|h| (0..B).flat_map(move |b| (0..J).map(move |j| (h, b, j))));
    let scale = 0.5f64.sqrt();
    let mut soft = vec![0.0; H * B * J * J];
    for (h, b, j) in every() {
        let beta: Vec<f64> = (0..J).map(|m| scale * (0..P).map(|p| k[at(p, h, b, m)] * q[at(p, h, b, j)]).sum::<f64>()).collect();
        let total: f64 = beta.iter().map(|s| s.exp()).sum();
        for m in 0..J {
            soft[score(h, b, j, m)] = beta[m].exp() / total;
        }
    }
    let drop_alpha = mask("alpha", soft.len());
    let alpha = times(&soft, &drop_alpha);
    let mut gamma = vec![0.0; heads * time];
    for (h, b, j) in every() {
        for p in 0..P {
            gamma[at(p, h, b, j)] = (0..J).map(|m| v[at(p, h, b, m)] * alpha[score(h, b, j, m)]).sum();
        }
    }
    // wo is [ph, i]: its transpose is [i, ph].
    let att = with_bias(&matmul(&transposed(&get("wo"), heads, I), &gamma, I, heads, time), &get("bo"));
    let drop_att = mask("att.drop", att.len());
    let (n1, hat1, inverse1) = norm(&plus(&times(&att, &drop_att), &x), &get("g1"), &get("c1"));
    let s = with_bias(&matmul(&get("w1"), &n1, U, I, time), &get("b1"));
    let drop_a = mask("a", s.len());
    let r: Vec<f64> = s.iter().map(|v| if *v > 0.0 { *v } else { 0.0 }).collect();
    let a = times(&r, &drop_a);
    let f = with_bias(&matmul(&get("w2"), &a, I, U, time), &get("b2"));
    let drop_f = mask("f.drop", f.len());
    let (y, hat2, inverse2) = norm(&plus(&times(&f, &drop_f), &n1), &get("g2"), &get("c2"));

    let (d_res2, d_g2, d_c2) = norm_backward(&get("d_y"), &hat2, &inverse2, &get("g2"));
    let d_f = times(&d_res2, &drop_f);
    let d_w2 = matmul(&d_f, &transposed(&a, U, time), I, time, U);
    let d_a = matmul(&transposed(&get("w2"), I, U), &d_f, U, I, time);
    let d_r = times(&d_a, &drop_a);
    let d_s: Vec<f64> = d_r.iter().zip(&s).map(|(d, s)| if *s > 0.0 { *d } else { 0.0 }).collect();
    let d_w1 = matmul(&d_s, &transposed(&n1, I, time), U, time, I);
    let d_n1 = plus(&d_res2, &matmul(&transposed(&get("w1"), U, I), &d_s, I, U, time));
    let (d_res1, d_g1, d_c1) = norm_backward(&d_n1, &hat1, &inverse1, &get("g1"));
    let d_att = times(&d_res1, &drop_att);
    let d_wo = matmul(&gamma, &transposed(&d_att, I, time), heads, time, I);
    let d_gamma = matmul(&get("wo"), &d_att, heads, I, time);
    let (mut d_q, mut d_k, mut d_v) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for (h, b, j) in every() {
        let d_alpha = |m: usize| (0..P).map(|p| v[at(p, h, b, m)] * d_gamma[at(p, h, b, j)]).sum::<f64>();
        let d_soft: Vec<f64> = (0..J).map(|m| d_alpha(m) * drop_alpha[score(h, b, j, m)]).collect();
        // The Jacobian of softmax is diag(s) − s·sᵀ.
        for m in 0..J {
            let row = (0..J).map(|n| {
                let same = if m == n { 1.0 } else { 0.0 };
                d_soft[n] * soft[score(h, b, j, n)] * (same - soft[score(h, b, j, m)])
            });
            let d_beta: f64 = row.sum();
            for p in 0..P {
                d_q[at(p, h, b, j)] += scale * d_beta * k[at(p, h, b, m)];
                d_k[at(p, h, b, m)] += scale * d_beta * q[at(p, h, b, j)];
                d_v[at(p, h, b, m)] += d_gamma[at(p, h, b, j)] * alpha[score(h, b, j, m)];
            }
        }
    }
    let mut d_x = d_res1;
    let mut found = vec![
        ("y", y),
        ("d_g2", d_g2),
        ("d_c2", d_c2),
        ("d_b2", row_sums(&d_f, I)),
        ("d_w2", d_w2),
        ("d_b1", row_sums(&d_s, U)),
        ("d_w1", d_w1),
        ("d_g1", d_g1),
        ("d_c1", d_c1),
        ("d_bo", row_sums(&d_att, I)),
        ("d_wo", d_wo),
    ];
    for (w, d_w, d_b, d) in [("wq", "d_wq", "d_bq", d_q), ("wk", "d_wk", "d_bk", d_k), ("wv", "d_wv", "d_bv", d_v)] {
        d_x = plus(&d_x, &matmul(&transposed(&get(w), heads, I), &d, I, heads, time));
        found.push((d_w, matmul(&d, &transposed(&x, I, time), heads, time, I)));
        found.push((d_b, row_sums(&d, heads)));
    }
    found.push(("d_x", d_x));
    let shape = |name: &str| t[name.strip_prefix("d_").unwrap_or("x")].shape().to_vec();
    let tensor = |name: &str, values| ndarray::ArrayD::from_shape_vec(shape(name), values).unwrap();
    found.into_iter().map(|(name, values)| (name.to_string(), tensor(name, values))).collect()
}

#[test]
fn the_encoder_layer_agrees_with_formulas_written_out() {
    let program = encoder(false).program;
    let mut given = random_tensors(&program, 31);
    given.insert("d_y".into(), random_tensor(&program, 31, "y"));
    let options = Options { upstream: vec!["y".into()], ..Options::default() };
    let results = interpret(&differentiate(&program, &options).unwrap(), &given, &RUN).unwrap();
    let expected = by_hand(&given);
    let largest =
        |of: &dyn Fn(&str) -> bool| results.iter().filter(|(n, _)| of(n)).flat_map(|(_, t)| t.iter()).fold(1.0, |m: f64, v| m.max(v.abs()));
    let (values, gradients) = (largest(&|n| !n.starts_with("d_")), largest(&|n| n.starts_with("d_")));
    let amplified =
        results.iter().filter(|(n, _)| n.ends_with(".rstd")).fold(1.0, |m: f64, (_, t)| m * t.iter().fold(1.0, |m: f64, v| m.max(*v)));
    let roundings = (40 * 4 + 4 * B * J + I + U + P * H + 2 * J) as f64;
    let tolerance = 2.0 * roundings * f64::EPSILON * values * gradients * amplified;
    assert_eq!(expected.len(), 18);
    for (name, tensor) in expected {
        for (n, (ours, theirs)) in results[&name].iter().zip(&tensor).enumerate() {
            assert!((ours - theirs).abs() <= tolerance, "{name}, element {n}: {ours} but by hand {theirs}, tolerance {tolerance:e}");
        }
    }
}
