//! Kernels of several layers against the interpreter: tiles whose windows overlap, smaller last tiles, borders with a bias, strides, splits
//! and merges, depthwise layers, and layouts with channels first, last and in blocks.

use crate::common::{self, c, v};
use crate::harness::{Failure, Reference, toolchain};
use indexmap::IndexMap;
use kernels::ConfigSpace;
use kernels::pool::Pool;
use kernels::target::cpu::templates;
use kernels::tiles::LayerSpace;
use sdfg::{Binary, Combine, Direction, Expr, Fill, IndexKind, Memlet, Op, Operand, Operation, Role, Scalar, Scope, Sdfg, StateId, Unit};
use transforms::{CrossLayerReuse, DriverOptions, Percent, run_pipeline};

/// A program of layers that is being written.
pub struct Layers {
    program: Sdfg,
    state: StateId,
}

fn operand(connector: &str, data: &str, subscripts: &str) -> Operand {
    let (subscripts, fill) = match subscripts.split_once(" else ") {
        Some((subscripts, fill)) => (subscripts, Some(Fill(fill.parse().expect("a fill")))),
        None => (subscripts, None),
    };
    let subscripts = subscripts.split(',').map(|s| s.parse::<Expr>().expect("a subscript")).collect();
    Operand { connector: connector.into(), data: data.into(), subscripts, fill }
}

impl Layers {
    pub fn new(sizes: &[(&str, i64)], inputs: &[(&str, &[&str])], transients: &[(&str, &[&str])], outputs: &[(&str, &[&str])]) -> Self {
        let mut program = common::program(sizes);
        for (role, all) in [(Role::Input, inputs), (Role::Transient, transients), (Role::Output, outputs)] {
            all.iter().for_each(|(name, dims)| common::heap(&mut program, name, dims, role));
        }
        let known = program.states().next().map(|(id, _)| id);
        let state = known.unwrap_or_else(|| program.add_state("forward"));
        Layers { program, state }
    }

    /// `out = Σ a · b`.
    pub fn product(mut self, name: &str, indices: &str, out: (&str, &str), a: (&str, &str), b: (&str, &str)) -> Self {
        let indices: IndexMap<String, String> = indices.split(',').map(|i| (i.to_string(), i.to_string())).collect();
        let op = Op::Contraction { scale: Scalar::Const(1.0) };
        let (inputs, outputs) = (vec![operand("a", a.0, a.1), operand("b", b.0, b.1)], vec![operand("out", out.0, out.1)]);
        let operation = Operation { name: name.into(), op, indices, inputs, outputs, pass: Direction::Forward, origin: None };
        self.program.insert_operation(self.state, &operation).expect("an operation");
        self
    }

    /// `out = relu(t + b)`, and plus `more`.
    pub fn relu(mut self, out: &str, dims: &[&str], t: &str, (b, of): (&str, &[&str]), more: Option<&str>) -> Self {
        let code = Scalar::binary(Binary::Max, v(t) + v(b), c(0.0));
        let mut reads = vec![common::at(t, dims), common::at(b, of)];
        reads.extend(more.map(|more| common::at(more, dims)));
        let code = more.map_or(code.clone(), |more| code + v(more));
        let tasklet = common::tasklet(common::at(out, dims), code, reads);
        let scope = Scope::new(out, common::over(dims, IndexKind::Independent), vec![tasklet]);
        self.program.insert_scope(self.state, &scope).expect("a scope");
        self
    }

    /// `out`, the greatest element under windows that `taps` walk.
    pub fn maximum(mut self, out: &str, dims: &[&str], taps: &[&str], (data, subscripts): (&str, &str)) -> Self {
        let read = operand(data, data, subscripts);
        let window = Memlet { fill: read.fill.map(|f| f.0), ..Memlet::at(data, read.subscripts) };
        let write = common::wcr(common::at(out, dims), Combine::Max);
        let body = common::map("window", taps, vec![common::tasklet(write, v(data), vec![window])]);
        self.program.insert_scope(self.state, &Scope::new(out, common::over(dims, IndexKind::Independent), vec![body])).expect("a scope");
        self
    }

    /// The one kernel that all layers become, with what it refers to.
    pub fn fused(&self) -> (Sdfg, Unit) {
        let pass = CrossLayerReuse { recompute: Percent(10_000_000), ..CrossLayerReuse::default() };
        let outcome = run_pipeline(&self.program, &[&pass], &DriverOptions::default()).expect("a pass");
        let units = outcome.program.units();
        assert_eq!(units.len(), 1, "{:?}", outcome.refusals.iter().map(ToString::to_string).collect::<Vec<_>>());
        let unit = units[0].2.clone();
        (outcome.program, unit)
    }
}

pub const IMAGE: [&str; 4] = ["n", "o", "h", "w"];
pub const RESULT: [&str; 4] = ["n", "f", "p", "q"];

/// 1×1 or 3×3, then a window; bias and rectifier after each.
pub fn straight(sizes: &[(&str, i64)], first: &str, rows: &str, columns: &str, residual: bool) -> Layers {
    let mut all =
        vec![("n", 2), ("c", 5), ("h", 9), ("w", 11), ("o", 8), ("f", 16), ("p", 9), ("q", 11), ("r", 3), ("s", 3), ("a", 1), ("b", 1)];
    all.retain(|(dim, _)| sizes.iter().all(|(other, _)| other != dim));
    all.extend(sizes);
    Layers::new(
        &all,
        &[
            ("x", &["n", "c", "h", "w"]),
            ("k1", &["o", "c", "a", "b"]),
            ("b1", &["o"]),
            ("k2", &["f", "o", "r", "s"]),
            ("b2", &["f"]),
            ("skip", &IMAGE),
        ],
        &[("t", &IMAGE), ("u", &IMAGE), ("z", &RESULT)],
        &[("y", &RESULT)],
    )
    .product("one", "n,o,h,w,c,a,b", ("t", "n,o,h,w"), ("k1", "o,c,a,b"), ("x", first))
    .relu("u", &IMAGE, "t", ("b1", &["o"]), residual.then_some("skip"))
    .product("two", "n,f,p,q,o,r,s", ("z", "n,f,p,q"), ("k2", "f,o,r,s"), ("u", &format!("n,o,{rows},{columns} else 0")))
    .relu("y", &RESULT, "z", ("b2", &["f"]), None)
}

pub fn cases() -> Vec<(&'static str, Layers)> {
    let near = "n,c,h+a-1,w+b-1 else 0";
    let three: &[(&str, i64)] = &[("a", 3), ("b", 3)];
    vec![
        ("1x1 and 3x3", straight(&[], "n,c,h+a,w+b", "p+r-1", "q+s-1", false)),
        ("3x3 and 3x3 with a skip", straight(three, near, "p+r-1", "q+s-1", true)),
        ("stride 2", straight(&[("p", 5), ("q", 6), ("a", 3), ("b", 3)], near, "2*p+r-1", "2*q+s-1", false)),
        ("prime sizes", straight(&[("h", 13), ("w", 7), ("p", 13), ("q", 7), ("r", 5), ("s", 1)], "n,c,h+a,w+b", "p+r-2", "q+s", false)),
        ("few channels", straight(&[("o", 3), ("f", 5)], "n,c,h+a,w+b", "p+r-1", "q+s-1", false)),
        ("small picture", straight(&[("h", 2), ("w", 2), ("p", 2), ("q", 2), ("r", 5), ("s", 5)], "n,c,h+a,w+b", "p+r-2", "q+s-2", false)),
        ("depthwise and 1x1", depthwise()),
        ("split", split()),
        ("merge", merge()),
    ]
}

fn depthwise() -> Layers {
    let (image, result) = (["n", "c", "h", "w"], ["n", "f", "h", "w"]);
    Layers::new(
        &[("n", 1), ("c", 16), ("h", 10), ("w", 13), ("f", 8), ("r", 3), ("s", 3)],
        &[("x", &image), ("k1", &["c", "r", "s"]), ("b1", &["c"]), ("k2", &["f", "c"]), ("b2", &["f"])],
        &[("t", &image), ("u", &image), ("z", &result)],
        &[("y", &result)],
    )
    .product("one", "n,c,h,w,r,s", ("t", "n,c,h,w"), ("k1", "c,r,s"), ("x", "n,c,h+r-1,w+s-1 else 0"))
    .relu("u", &image, "t", ("b1", &["c"]), None)
    .product("two", "n,f,h,w,c", ("z", "n,f,h,w"), ("k2", "f,c"), ("u", "n,c,h,w"))
    .relu("y", &result, "z", ("b2", &["f"]), None)
}

fn split() -> Layers {
    let (e1, e3) = (["n", "f", "h", "w"], ["n", "g", "h", "w"]);
    Layers::new(
        &[("n", 1), ("c", 12), ("h", 10), ("w", 9), ("o", 8), ("f", 8), ("g", 16), ("r", 3), ("s", 3)],
        &[
            ("x", &["n", "c", "h", "w"]),
            ("k", &["o", "c"]),
            ("b", &["o"]),
            ("l", &["f", "o"]),
            ("d", &["f"]),
            ("m", &["g", "o", "r", "s"]),
            ("e", &["g"]),
        ],
        &[("t", &IMAGE), ("u", &IMAGE), ("z1", &e1), ("z3", &e3)],
        &[("y1", &e1), ("y3", &e3)],
    )
    .product("squeeze", "n,o,h,w,c", ("t", "n,o,h,w"), ("k", "o,c"), ("x", "n,c,h,w"))
    .relu("u", &IMAGE, "t", ("b", &["o"]), None)
    .product("one", "n,f,h,w,o", ("z1", "n,f,h,w"), ("l", "f,o"), ("u", "n,o,h,w"))
    .relu("y1", &e1, "z1", ("d", &["f"]), None)
    .product("three", "n,g,h,w,o,r,s", ("z3", "n,g,h,w"), ("m", "g,o,r,s"), ("u", "n,o,h+r-1,w+s-1 else 0"))
    .relu("y3", &e3, "z3", ("e", &["g"]), None)
}

fn merge() -> Layers {
    Layers::new(
        &[("n", 1), ("c", 6), ("h", 8), ("w", 9), ("o", 8), ("f", 16), ("p", 8), ("q", 9), ("r", 3), ("s", 3)],
        &[
            ("x", &["n", "c", "h", "w"]),
            ("v", &["n", "c", "h", "w"]),
            ("k", &["o", "c"]),
            ("m", &["o", "c", "r", "s"]),
            ("b", &["o"]),
            ("l", &["f", "o", "r", "s"]),
            ("d", &["f"]),
        ],
        &[("t", &IMAGE), ("t2", &IMAGE), ("u", &IMAGE), ("z", &RESULT)],
        &[("y", &RESULT)],
    )
    .product("left", "n,o,h,w,c", ("t", "n,o,h,w"), ("k", "o,c"), ("x", "n,c,h,w"))
    .product("right", "n,o,h,w,c,r,s", ("t2", "n,o,h,w"), ("m", "o,c,r,s"), ("v", "n,c,h+r-1,w+s-1 else 0"))
    .relu("u", &IMAGE, "t", ("b", &["o"]), Some("t2"))
    .product("last", "n,f,p,q,o,r,s", ("z", "n,f,p,q"), ("l", "f,o,r,s"), ("u", "n,o,p+r-1,q+s-1 else 0"))
    .relu("y", &RESULT, "z", ("d", &["f"]), None)
}

#[test]
fn layers_in_tiles_equal_the_interpreter() -> Result<(), Failure> {
    let (pools, toolchain) = ([Pool::new(1)?, Pool::new(3)?], toolchain()?);
    let (mut all, mut kernels) = (Vec::new(), Vec::new());
    for (name, layers) in cases() {
        let (program, unit) = layers.fused();
        let reference = Reference::new(&program, &unit)?;
        let space = LayerSpace::new(&reference.spec).map_err(|e| format!("{name}: {e}"))?;
        let count = space.count();
        let configs: Vec<_> = (0..4u64).map(|n| space.config((n * 1_000_003 + n * n * 7919) % count)).collect();
        kernels.extend(configs.iter().map(|config| (reference.spec.clone(), config.clone())));
        all.push((name, reference, configs));
    }
    templates::precompile(&kernels, &toolchain, kernels::CancelToken::default());
    for (name, reference, configs) in all {
        for (n, config) in configs.into_iter().enumerate() {
            let kernel = templates::compile(&reference.spec, &config, &toolchain).map_err(|e| format!("{name} under {config}: {e}"))?;
            let (ratio, place) = reference.ratio(&reference.run(kernel.as_ref(), &config, &pools[n % 2])?);
            assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
        }
    }
    Ok(())
}
