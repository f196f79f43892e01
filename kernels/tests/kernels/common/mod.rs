//! Fused scopes written by hand, as fusion makes them.

use sdfg::{
    Binary, Combine, Computation, Container, Dtype, Expr, Index, IndexKind, Item, Memlet, Role, Scalar, Scope, Sdfg, Tasklet, Unary, Unit,
};

pub type Sizes<'a> = &'a [(&'a str, i64)];

/// A program with these dims; each dim's size is the symbol `size_<dim>`.
pub fn program(sizes: Sizes) -> Sdfg {
    let mut program = Sdfg::new("test");
    for (dim, size) in sizes {
        program.dims.insert(dim.to_string(), Expr::sym(format!("size_{dim}")));
        program.sizes.insert(format!("size_{dim}"), *size);
    }
    program
}

pub fn heap(program: &mut Sdfg, name: &str, dims: &[&str], role: Role) {
    program.add_container(Container::new(name, dims, Dtype::F32, role));
}

pub fn local(program: &mut Sdfg, name: &str, dims: &[&str]) {
    program.add_container(Container::local(name, dims.iter().map(|d| d.to_string()).collect(), Dtype::F32));
}

pub fn over(dims: &[&str], kind: IndexKind) -> Vec<Index> {
    dims.iter().map(|d| Index::over(*d, *d, Expr::sym(format!("size_{d}")), kind)).collect()
}

/// A map inside a scope. One that adds up is a reduction.
pub fn map(label: &str, dims: &[&str], body: Vec<Item>) -> Item {
    let adds = |item: &Item| matches!(item, Item::Tasklet(c) if c.writes.iter().any(|(_, m)| m.wcr.is_some()));
    let kind = if body.iter().any(adds) { IndexKind::Reduction } else { IndexKind::Independent };
    Item::Scope(Scope::new(label, over(dims, kind), body))
}

pub fn at(data: &str, dims: &[&str]) -> Memlet {
    Memlet::at(data, dims.iter().map(|d| Expr::sym(*d)))
}

/// `write = code(reads)`; connectors are the names of the containers read.
pub fn tasklet(write: Memlet, code: Scalar, reads: Vec<Memlet>) -> Item {
    let name = format!("{}.code", write.data);
    Item::Tasklet(Computation {
        tasklet: Tasklet { name: name.clone(), code: vec![("out".into(), code)], operator: name, origin: None },
        reads: reads.into_iter().map(|m| (m.data.clone(), m)).collect(),
        writes: vec![("out".into(), write)],
    })
}

pub fn wcr(memlet: Memlet, combine: Combine) -> Memlet {
    memlet.with_wcr(Some(combine))
}

pub fn v(name: &str) -> Scalar {
    Scalar::input(name)
}

pub fn c(value: f64) -> Scalar {
    Scalar::Const(value)
}

pub fn exp(a: Scalar) -> Scalar {
    Scalar::unary(Unary::Exp, a)
}

/// Linear index in the order of `dims`.
pub fn linear(dims: &[&str]) -> Expr {
    dims.iter().fold(Expr::Int(0), |e, d| e * Expr::sym(format!("size_{d}")) + Expr::sym(*d))
}

pub fn keep(stream: &str, dims: &[&str], rate: f64) -> Scalar {
    Scalar::Keep { stream: stream.into(), element: linear(dims), rate }
}

/// A kernel and the program that declares what it uses.
pub struct Case {
    pub program: Sdfg,
    pub unit: Unit,
}

fn case(program: Sdfg, label: &str, dims: &[&str], body: Vec<Item>) -> Case {
    Case { program, unit: Unit::Scope(Scope::new(label, over(dims, IndexKind::Independent), body)) }
}

const ROWS: [&str; 4] = ["h", "b", "j", "k"];

/// A program with softmax's rows along `k`, and the maps that make them: `x` to `y`.
fn normalized(sizes: Sizes) -> (Sdfg, Vec<Item>) {
    let mut p = program(sizes);
    let full = ROWS;
    heap(&mut p, "x", &full, Role::Input);
    heap(&mut p, "y", &full, Role::Output);
    local(&mut p, "t.max", &[]);
    local(&mut p, "t.sum", &[]);
    local(&mut p, "t.exp", &["k"]);
    let body = vec![
        map("max", &["k"], vec![tasklet(wcr(at("t.max", &[]), Combine::Max), v("x"), vec![at("x", &full)])]),
        map("exp", &["k"], vec![tasklet(at("t.exp", &["k"]), exp(v("x") - v("t.max")), vec![at("x", &full), at("t.max", &[])])]),
        map("sum", &["k"], vec![tasklet(wcr(at("t.sum", &[]), Combine::Sum), v("t.exp"), vec![at("t.exp", &["k"])])]),
        map("div", &["k"], vec![tasklet(at("y", &full), v("t.exp") / v("t.sum"), vec![at("t.exp", &["k"]), at("t.sum", &[])])]),
    ];
    (p, body)
}

/// The rows of which nobody reads the result.
pub fn softmax(sizes: Sizes) -> Case {
    let (p, body) = normalized(sizes);
    case(p, "softmax", &ROWS[..3], body)
}

pub fn softmax_dropout(sizes: Sizes) -> Case {
    let (mut p, mut body) = normalized(sizes);
    heap(&mut p, "alpha", &ROWS, Role::Output);
    body.push(map("drop", &["k"], vec![tasklet(at("alpha", &ROWS), v("y") * keep("alpha", &ROWS, 0.1), vec![at("y", &ROWS)])]));
    case(p, "softmax_dropout", &ROWS[..3], body)
}

pub fn bias_relu_dropout(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let full = ["b", "j", "u"];
    heap(&mut p, "x", &full, Role::Input);
    heap(&mut p, "bias", &["u"], Role::Parameter);
    heap(&mut p, "a", &full, Role::Output);
    heap(&mut p, "y", &full, Role::Output);
    let relu = Scalar::binary(Binary::Max, v("x") + v("bias"), c(0.0));
    let body = vec![
        tasklet(at("a", &full), relu, vec![at("x", &full), at("bias", &["u"])]),
        tasklet(at("y", &full), v("a") * keep("y", &full, 0.3), vec![at("a", &full)]),
    ];
    case(p, "bias_relu_dropout", &full, body)
}

/// A row's sum and a mask whose neighbours are rows.
pub fn dropout_across(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let (full, row) = (["b", "j", "i"], ["b", "j"]);
    heap(&mut p, "x", &full, Role::Input);
    heap(&mut p, "total", &row, Role::Output);
    heap(&mut p, "y", &full, Role::Output);
    let body = vec![
        map("total", &["i"], vec![tasklet(wcr(at("total", &row), Combine::Sum), v("x"), vec![at("x", &full)])]),
        map("drop", &["i"], vec![tasklet(at("y", &full), v("x") * keep("y", &["i", "b", "j"], 0.3), vec![at("x", &full)])]),
    ];
    case(p, "dropout_across", &row, body)
}

/// The same mask, and sums over all rows.
pub fn dropout_across_summed(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let full = ["b", "j", "i"];
    heap(&mut p, "x", &full, Role::Input);
    heap(&mut p, "y", &full, Role::Output);
    heap(&mut p, "d_s", &["i"], Role::Gradient);
    let body = vec![map(
        "drop",
        &["i"],
        vec![
            tasklet(at("y", &full), v("x") * keep("y", &["i", "b", "j"], 0.3), vec![at("x", &full)]),
            tasklet(wcr(at("d_s", &["i"]), Combine::Sum), v("x"), vec![at("x", &full)]),
        ],
    )];
    case(p, "dropout_across_summed", &["b", "j"], body)
}

pub fn layernorm(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let (full, row) = (["b", "j", "i"], ["b", "j"]);
    heap(&mut p, "x", &full, Role::Input);
    heap(&mut p, "gamma", &["i"], Role::Parameter);
    heap(&mut p, "y", &full, Role::Output);
    heap(&mut p, "mean", &row, Role::Output);
    heap(&mut p, "rstd", &row, Role::Output);
    local(&mut p, "t.var", &[]);
    let share = c(1.0) / Scalar::Index(Expr::sym("size_i"));
    let deviation = v("x") - v("mean");
    let body = vec![
        map("mean", &["i"], vec![tasklet(wcr(at("mean", &row), Combine::Sum), v("x") * share.clone(), vec![at("x", &full)])]),
        map(
            "var",
            &["i"],
            vec![tasklet(
                wcr(at("t.var", &[]), Combine::Sum),
                deviation.clone() * deviation.clone() * share,
                vec![at("x", &full), at("mean", &row)],
            )],
        ),
        tasklet(at("rstd", &row), Scalar::unary(Unary::Rsqrt, v("t.var") + c(1e-5)), vec![at("t.var", &[])]),
        map(
            "apply",
            &["i"],
            vec![tasklet(
                at("y", &full),
                deviation * v("rstd") * v("gamma"),
                vec![at("x", &full), at("mean", &row), at("rstd", &row), at("gamma", &["i"])],
            )],
        ),
    ];
    case(p, "layernorm", &row, body)
}

pub fn layernorm_weights(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let (full, row) = (["b", "j", "i"], ["b", "j"]);
    for (name, dims) in [("dy", &full[..]), ("x", &full), ("mean", &row), ("rstd", &row)] {
        heap(&mut p, name, dims, Role::Input);
    }
    heap(&mut p, "d_gamma", &["i"], Role::Gradient);
    heap(&mut p, "d_beta", &["i"], Role::Gradient);
    let hat = (v("x") - v("mean")) * v("rstd");
    let reads = vec![at("dy", &full), at("x", &full), at("mean", &row), at("rstd", &row)];
    let body = vec![map(
        "weights",
        &["i"],
        vec![
            tasklet(wcr(at("d_gamma", &["i"]), Combine::Sum), v("dy") * hat, reads),
            tasklet(wcr(at("d_beta", &["i"]), Combine::Sum), v("dy"), vec![at("dy", &full)]),
        ],
    )];
    case(p, "layernorm_weights", &row, body)
}

pub fn bias_gradient(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    heap(&mut p, "dy", &["b", "j", "i"], Role::Input);
    heap(&mut p, "d_bias", &["i"], Role::Gradient);
    let mut indices = over(&["b", "j"], IndexKind::Reduction);
    indices.extend(over(&["i"], IndexKind::Independent));
    let body = vec![tasklet(wcr(at("d_bias", &["i"]), Combine::Sum), v("dy"), vec![at("dy", &["b", "j", "i"])])];
    Case { program: p, unit: Unit::Scope(Scope::new("bias_gradient", indices, body)) }
}

/// Sums that other points make for each of them.
pub fn both_ways(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    heap(&mut p, "dy", &["b", "j", "i"], Role::Input);
    heap(&mut p, "d_i", &["i"], Role::Gradient);
    heap(&mut p, "d_j", &["j"], Role::Gradient);
    let sum = |data: &str, dim: &str| tasklet(wcr(at(data, &[dim]), Combine::Sum), v("dy"), vec![at("dy", &["b", "j", "i"])]);
    let indices = over(&["b", "j", "i"], IndexKind::Reduction);
    Case { program: p, unit: Unit::Scope(Scope::new("both_ways", indices, vec![sum("d_i", "i"), sum("d_j", "j")])) }
}

pub fn gelu(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let full = ["b", "j", "u"];
    heap(&mut p, "x", &full, Role::Input);
    heap(&mut p, "y", &full, Role::Output);
    let code = c(0.5) * v("x") * (c(1.0) + Scalar::unary(Unary::Erf, v("x") * c(std::f64::consts::FRAC_1_SQRT_2)));
    case(p, "gelu", &full, vec![tasklet(at("y", &full), code, vec![at("x", &full)])])
}

pub fn causal_softmax(sizes: Sizes) -> Case {
    let mut case = softmax_dropout(sizes);
    let full = ["h", "b", "j", "k"];
    let Unit::Scope(scope) = &mut case.unit else { unreachable!() };
    local(&mut case.program, "t.masked", &["k"]);
    let visible = Scalar::binary(Binary::Le, Scalar::Index(Expr::sym("k")), Scalar::Index(Expr::sym("j")));
    let masked = Scalar::select(visible, v("x"), c(f64::NEG_INFINITY));
    scope.map.label = "causal_softmax".into();
    scope.body.splice(
        0..2,
        [
            map("mask", &["k"], vec![tasklet(at("t.masked", &["k"]), masked, vec![at("x", &full)])]),
            map("max", &["k"], vec![tasklet(wcr(at("t.max", &[]), Combine::Max), v("t.masked"), vec![at("t.masked", &["k"])])]),
            map(
                "exp",
                &["k"],
                vec![tasklet(at("t.exp", &["k"]), exp(v("t.masked") - v("t.max")), vec![at("t.masked", &["k"]), at("t.max", &[])])],
            ),
        ],
    );
    case
}

/// Makes a case of the given sizes.
pub type Make = fn(Sizes) -> Case;

/// Every case by name.
pub const CASES: [(&str, Make); 11] = [
    ("softmax", softmax),
    ("softmax_dropout", softmax_dropout),
    ("bias_relu_dropout", bias_relu_dropout),
    ("dropout_across", dropout_across),
    ("dropout_across_summed", dropout_across_summed),
    ("layernorm", layernorm),
    ("layernorm_weights", layernorm_weights),
    ("bias_gradient", bias_gradient),
    ("both_ways", both_ways),
    ("gelu", gelu),
    ("causal_softmax", causal_softmax),
];
