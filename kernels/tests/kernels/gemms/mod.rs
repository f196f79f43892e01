//! Scopes with matrix products, and what surrounds them.

use crate::common::*;
use sdfg::{Binary, Combine, Container, Dtype, IndexKind, Role, Scalar, Scope, Unary, Unit};

fn case(program: sdfg::Sdfg, label: &str, dims: &[&str], body: Vec<sdfg::Item>) -> Case {
    Case { program, unit: Unit::Scope(Scope::new(label, over(dims, IndexKind::Independent), body)) }
}

/// y[b,j,u] = Σi w[u,i] x[b,j,i]
pub fn plain(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    heap(&mut p, "w", &["u", "i"], Role::Parameter);
    heap(&mut p, "x", &["b", "j", "i"], Role::Input);
    heap(&mut p, "y", &["b", "j", "u"], Role::Output);
    let term = v("w") * v("x") * c(0.25);
    let sum = tasklet(wcr(at("y", &["b", "j", "u"]), Combine::Sum), term, vec![at("w", &["u", "i"]), at("x", &["b", "j", "i"])]);
    let mut indices = over(&["b", "j", "u"], IndexKind::Independent);
    indices.extend(over(&["i"], IndexKind::Reduction));
    Case { program: p, unit: Unit::Scope(Scope::new("plain", indices, vec![sum])) }
}

/// Bias, gelu, dropout on the tile of a product; the pre-activation is kept, and its column sums.
pub fn epilogue(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let full = ["b", "j", "u"];
    heap(&mut p, "w", &["u", "i"], Role::Parameter);
    heap(&mut p, "x", &["b", "j", "i"], Role::Input);
    heap(&mut p, "bias", &["u"], Role::Parameter);
    heap(&mut p, "a", &full, Role::Output);
    heap(&mut p, "y", &full, Role::Output);
    heap(&mut p, "sums", &["u"], Role::Gradient);
    local(&mut p, "t", &[]);
    let gelu = c(0.5) * v("a") * (c(1.0) + Scalar::unary(Unary::Erf, v("a") * c(std::f64::consts::FRAC_1_SQRT_2)));
    let body = vec![
        map(
            "dot",
            &["i"],
            vec![tasklet(wcr(at("t", &[]), Combine::Sum), v("w") * v("x"), vec![at("w", &["u", "i"]), at("x", &["b", "j", "i"])])],
        ),
        tasklet(at("a", &full), v("t") + v("bias"), vec![at("t", &[]), at("bias", &["u"])]),
        tasklet(at("y", &full), gelu * keep("y", &full, 0.1), vec![at("a", &full)]),
        tasklet(wcr(at("sums", &["u"]), Combine::Sum), v("a"), vec![at("a", &full)]),
    ];
    case(p, "epilogue", &full, body)
}

/// Residual and layernorm on the rows of a product.
pub fn rows(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let (full, row) = (["b", "j", "u"], ["b", "j"]);
    heap(&mut p, "w", &["u", "i"], Role::Parameter);
    heap(&mut p, "x", &["b", "j", "i"], Role::Input);
    heap(&mut p, "r", &full, Role::Input);
    heap(&mut p, "y", &full, Role::Output);
    heap(&mut p, "mean", &row, Role::Output);
    local(&mut p, "t", &["u"]);
    local(&mut p, "s", &["u"]);
    local(&mut p, "var", &[]);
    let share = c(1.0) / Scalar::Index(sdfg::Expr::sym("size_u"));
    let deviation = v("s") - v("mean");
    let body = vec![
        map(
            "dot",
            &["u", "i"],
            vec![tasklet(wcr(at("t", &["u"]), Combine::Sum), v("w") * v("x"), vec![at("w", &["u", "i"]), at("x", &["b", "j", "i"])])],
        ),
        map("add", &["u"], vec![tasklet(at("s", &["u"]), v("t") + v("r"), vec![at("t", &["u"]), at("r", &full)])]),
        map("mean", &["u"], vec![tasklet(wcr(at("mean", &row), Combine::Sum), v("s") * share.clone(), vec![at("s", &["u"])])]),
        map(
            "var",
            &["u"],
            vec![tasklet(
                wcr(at("var", &[]), Combine::Sum),
                deviation.clone() * deviation.clone() * share,
                vec![at("s", &["u"]), at("mean", &row)],
            )],
        ),
        map(
            "apply",
            &["u"],
            vec![tasklet(
                at("y", &full),
                deviation * Scalar::unary(Unary::Rsqrt, v("var") + c(1e-5)),
                vec![at("s", &["u"]), at("mean", &row), at("var", &[])],
            )],
        ),
    ];
    case(p, "rows", &row, body)
}

/// Attention over rows of scores that stay on chip.
pub fn attention(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let (q, k, row, all) = (["p", "h", "b", "j"], ["p", "h", "b", "k"], ["h", "b", "j"], ["h", "b", "j", "k"]);
    heap(&mut p, "q", &q, Role::Input);
    heap(&mut p, "kk", &k, Role::Input);
    heap(&mut p, "vv", &k, Role::Input);
    heap(&mut p, "o", &q, Role::Output);
    heap(&mut p, "top", &row, Role::Output);
    heap(&mut p, "sum", &row, Role::Output);
    for name in ["s", "e", "a"] {
        local(&mut p, name, &["k"]);
    }
    let body = vec![
        map(
            "score",
            &["k", "p"],
            vec![tasklet(wcr(at("s", &["k"]), Combine::Sum), v("q") * v("kk") * c(0.3), vec![at("q", &q), at("kk", &k)])],
        ),
        map("max", &["k"], vec![tasklet(wcr(at("top", &row), Combine::Max), v("s"), vec![at("s", &["k"])])]),
        map("exp", &["k"], vec![tasklet(at("e", &["k"]), exp(v("s") - v("top")), vec![at("s", &["k"]), at("top", &row)])]),
        map("sum", &["k"], vec![tasklet(wcr(at("sum", &row), Combine::Sum), v("e"), vec![at("e", &["k"])])]),
        map(
            "div",
            &["k"],
            vec![tasklet(at("a", &["k"]), v("e") / v("sum") * keep("a", &all, 0.2), vec![at("e", &["k"]), at("sum", &row)])],
        ),
        map("mix", &["p", "k"], vec![tasklet(wcr(at("o", &q), Combine::Sum), v("vv") * v("a"), vec![at("vv", &k), at("a", &["k"])])]),
    ];
    case(p, "attention", &row, body)
}

/// Gradients of the scores of attention: of each row's products with values, what the row's softmax has backward is a sum over the row
/// of products point by point.
pub fn scores_backward(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let (q, k, row, all) = (["p", "h", "b", "j"], ["p", "h", "b", "k"], ["h", "b", "j"], ["h", "b", "j", "k"]);
    heap(&mut p, "do", &q, Role::Input);
    heap(&mut p, "vv", &k, Role::Input);
    heap(&mut p, "a", &all, Role::Input);
    heap(&mut p, "ds", &all, Role::Gradient);
    local(&mut p, "da", &["k"]);
    local(&mut p, "t", &[]);
    let (a, da, t) = (at("a", &all), at("da", &["k"]), at("t", &[]));
    let gradient = v("a") * (v("da") - v("t"));
    let body = vec![
        map("mix", &["k", "p"], vec![tasklet(wcr(da.clone(), Combine::Sum), v("do") * v("vv"), vec![at("do", &q), at("vv", &k)])]),
        map("sum", &["k"], vec![tasklet(wcr(t.clone(), Combine::Sum), v("da") * v("a"), vec![da.clone(), a.clone()])]),
        map("scores", &["k"], vec![tasklet(at("ds", &all), gradient, vec![a, da, t])]),
    ];
    case(p, "scores_backward", &row, body)
}

/// What attention's backward pass adds up over rows: gradients of keys.
pub fn keys(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let (q, k, row) = (["p", "h", "b", "j"], ["p", "h", "b", "k"], ["h", "b", "j"]);
    heap(&mut p, "q", &q, Role::Input);
    heap(&mut p, "kk", &k, Role::Input);
    heap(&mut p, "dk", &k, Role::Gradient);
    heap(&mut p, "dq", &q, Role::Gradient);
    for name in ["s", "d"] {
        local(&mut p, name, &["k"]);
    }
    let relu = Scalar::binary(Binary::Max, v("s"), c(0.0));
    let body = vec![
        map("score", &["k", "p"], vec![tasklet(wcr(at("s", &["k"]), Combine::Sum), v("q") * v("kk"), vec![at("q", &q), at("kk", &k)])]),
        map("relu", &["k"], vec![tasklet(at("d", &["k"]), relu, vec![at("s", &["k"])])]),
        map("dq", &["p", "k"], vec![tasklet(wcr(at("dq", &q), Combine::Sum), v("kk") * v("d"), vec![at("kk", &k), at("d", &["k"])])]),
        map("dk", &["p", "k"], vec![tasklet(wcr(at("dk", &k), Combine::Sum), v("q") * v("d"), vec![at("q", &q), at("d", &["k"])])]),
    ];
    case(p, "keys", &row, body)
}

/// A value made for a product's factor, used nowhere else; the product is summed over outer indices.
pub fn prologue(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    heap(&mut p, "g", &["b", "j", "u"], Role::Input);
    heap(&mut p, "x", &["b", "j", "i"], Role::Input);
    heap(&mut p, "dw", &["u", "i"], Role::Gradient);
    local(&mut p, "t", &[]);
    let body = vec![
        tasklet(at("t", &[]), Scalar::binary(Binary::Max, v("g"), c(0.0)), vec![at("g", &["b", "j", "u"])]),
        map(
            "dw",
            &["i"],
            vec![tasklet(wcr(at("dw", &["u", "i"]), Combine::Sum), v("t") * v("x"), vec![at("t", &[]), at("x", &["b", "j", "i"])])],
        ),
    ];
    let mut indices = over(&["b", "j"], IndexKind::Reduction);
    indices.extend(over(&["u"], IndexKind::Independent));
    Case { program: p, unit: Unit::Scope(Scope::new("prologue", indices, body)) }
}

pub const TILES: [(&str, Make); 6] =
    [("plain", plain), ("epilogue", epilogue), ("rows", rows), ("attention", attention), ("keys", keys), ("prologue", prologue)];

/// The type of each container.
pub type Stored = fn(&Container) -> Dtype;

/// Everything in bf16 but what a program keeps wide: statistics, gradients of weights, and `y`, in which nothing but sums is
/// rounded.
pub fn narrow(container: &Container) -> Dtype {
    if ["mean", "top", "sum", "var", "dw", "sums", "y"].contains(&container.name.as_str()) { Dtype::F32 } else { Dtype::Bf16 }
}

/// One factor in bf16, the other one and what is on chip in f32.
pub fn mixed(container: &Container) -> Dtype {
    if ["x", "kk", "o"].contains(&container.name.as_str()) { Dtype::Bf16 } else { Dtype::F32 }
}
