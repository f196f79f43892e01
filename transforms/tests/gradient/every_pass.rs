//! Every pass of the table keeps its promise, each rewrite checked, on random programs and on models; and every pass finds something to
//! rewrite in one of the models.

use crate::builder::Builder;
use crate::difference::RUN;
use crate::layers::encoder;
use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::Tensors;
use sdfg::{Dtype, Role, Scalar, Sdfg, Unary};
use std::collections::BTreeMap;
use transforms::verify::keeps_promise;
use transforms::{
    Differentiate, DriverError, DriverOptions, Expand, Pass, PassRow, PipelineOutcome, RewriteCheck, Takes, differentiate, passes,
    run_pipeline,
};

/// All that a program is given, from a seed: between −2 and 2, and nothing within 2⁻¹⁰ of 0, where rectifiers have their kink.
fn drawn(program: &Sdfg, seed: u64) -> Result<Tensors, String> {
    let viewed: Vec<&str> = program.containers.values().filter_map(|c| c.view.as_ref().map(|v| v.of.as_str())).collect();
    let given =
        program.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter) && !viewed.contains(&c.name.as_str()));
    let away = |v: f64| if v.abs() < 2f64.powi(-10) { v + 0.25f64.copysign(v) } else { v };
    given
        .map(|c| {
            let shape = program.shape_of(&c.name).map_err(|e| e.to_string())?;
            let values = sdfg::random::tensor(seed, &c.name, shape.iter().product()).into_iter().map(away).collect();
            Ok((c.name.clone(), ArrayD::from_shape_vec(IxDyn(&shape), values).map_err(|e| e.to_string())?))
        })
        .collect()
}

fn verify(check: &RewriteCheck) -> Result<(), String> {
    keeps_promise(check, &drawn, &RUN)
}

/// Runs passes, each rewrite verified.
pub fn verified(program: &Sdfg, passes: &[&dyn Pass]) -> Result<PipelineOutcome, DriverError> {
    run_pipeline(program, passes, &DriverOptions { verify: Some(&verify), ..DriverOptions::default() })
}

/// What to differentiate a program by: its first floating output.
fn upstream(program: &Sdfg) -> Option<differentiate::Options> {
    let output = program.containers.values().find(|c| c.role == Role::Output && c.dtype.roundoff() > 0.0)?;
    Some(differentiate::Options { upstream: vec![output.name.clone()], ..Default::default() })
}

/// A forward program as a pass of the table takes it; `None` if the program has no derivative.
pub fn prepared(row: &PassRow, forward: &Sdfg) -> Option<Sdfg> {
    if row.takes == Takes::Forward {
        return Some(forward.clone());
    }
    let differentiate = Differentiate { options: upstream(forward)? };
    let operators = run_pipeline(forward, &[&differentiate], &DriverOptions::default()).ok()?.program;
    match row.takes {
        Takes::Maps => run_pipeline(&operators, &[&Expand], &DriverOptions::default()).ok().map(|outcome| outcome.program),
        _ => Some(operators),
    }
}

/// A forward program with its derivative.
pub fn differentiated(forward: &Sdfg) -> Option<Sdfg> {
    prepared(passes::named("stack")?, forward)
}

/// The passes of the tables, each with the kind of program that it takes.
pub fn made(program: &Sdfg) -> Vec<(&'static PassRow, Box<dyn Pass>)> {
    let options = upstream(program).unwrap_or_default();
    passes::all().map(|row| (row, (row.make)(program, options.clone()))).collect()
}

/// Two layers with a tanh and a rectifier, stored in bf16 and with biases in f32.
fn narrow() -> Sdfg {
    let mut builder = Builder::new();
    builder.input("x", "ui");
    for (name, dims) in [("w", "uj"), ("c", "j"), ("v", "jp"), ("d", "p"), ("q", "ph")] {
        builder.parameter(name, dims);
    }
    builder.declare("y", "ih", Role::Output);
    builder.contraction(("dot", "ij"), ("x", "ui"), ("w", "uj"), 1.0);
    builder.add(("s", "ij"), ("dot", "ij"), ("c", "j"));
    builder.pointwise("tanh", ("r", "ij"), &[("s", "ij")], Scalar::unary(Unary::Tanh, Scalar::input("s")));
    builder.contraction(("more", "ip"), ("r", "ij"), ("v", "jp"), 1.0);
    builder.add(("t", "ip"), ("more", "ip"), ("d", "p"));
    builder.relu(("a", "ip"), "t");
    builder.contraction(("y", "ih"), ("a", "ip"), ("q", "ph"), 1.0);
    for container in builder.program.containers.values_mut() {
        container.dtype = if ["c", "d"].contains(&container.name.as_str()) { Dtype::F32 } else { Dtype::Bf16 };
    }
    builder.program
}

/// A picture, a 1×1 layer with a bias, and a 3×3 layer that reads its windows. Weights stay as they are, so that backward reads nothing
/// between the layers.
fn pictures() -> Sdfg {
    let mut builder = Builder::new();
    let program = &mut builder.program;
    for (dim, size) in [("ch", 3), ("row", 12), ("col", 10), ("mid", 2), ("out", 4), ("dr", 3), ("dc", 3)] {
        program.dims.insert(dim.into(), sdfg::Expr::sym(dim.to_uppercase()));
        program.sizes.insert(dim.to_uppercase(), size);
    }
    let image = ["ch", "row", "col"];
    let all: [(&str, &[&str], Role); 7] = [
        ("x", &image, Role::Input),
        ("w", &["mid", "ch"], Role::Parameter),
        ("c", &["mid"], Role::Parameter),
        ("v", &["out", "mid", "dr", "dc"], Role::Parameter),
        ("t", &["mid", "row", "col"], Role::Transient),
        ("u", &["mid", "row", "col"], Role::Transient),
        ("y", &["out", "row", "col"], Role::Output),
    ];
    for (name, dims, role) in all {
        let grad = ["x", "c"].contains(&name);
        program.add_container(sdfg::Container { grad, ..sdfg::Container::new(name, dims, Dtype::F64, role) });
    }
    let operand = |connector: &str, data: &str, subscripts: &[&str], fill: Option<f64>| sdfg::Operand {
        connector: connector.into(),
        data: data.into(),
        subscripts: subscripts.iter().map(|s| s.parse().expect("a subscript")).collect(),
        fill: fill.map(sdfg::Fill),
    };
    let mut add = |name: &str, op: sdfg::Op, indices: &[&str], inputs: Vec<sdfg::Operand>, out: sdfg::Operand| {
        let indices = indices.iter().map(|i| (i.to_string(), i.to_string())).collect();
        let (name, pass) = (name.to_string(), sdfg::Direction::Forward);
        let operation = sdfg::Operation { name, op, indices, inputs, outputs: vec![out], pass, origin: None };
        let state = builder.program.states().next().map(|(id, _)| id).expect("a state");
        builder.program.insert_operation(state, &operation).expect("an operation");
    };
    let product = || sdfg::Op::Contraction { scale: Scalar::Const(1.0) };
    let pointwise = |label: &str, code: Scalar| sdfg::Op::Elementwise { label: label.into(), code };
    let mid = ["mid", "row", "col"];
    let given = vec![operand("a", "w", &["mid", "ch"], None), operand("b", "x", &image, None)];
    add("one", product(), &["mid", "row", "col", "ch"], given, operand("out", "t", &mid, None));
    let sum = Scalar::input("t") + Scalar::input("c");
    let given = vec![operand("t", "t", &mid, None), operand("c", "c", &["mid"], None)];
    add("bias", pointwise("add", sum), &mid, given, operand("out", "u", &mid, None));
    let windows = ["mid", "row + dr - 1", "col + dc - 1"];
    let given = vec![operand("a", "v", &["out", "mid", "dr", "dc"], None), operand("b", "u", &windows, Some(0.0))];
    add("two", product(), &["out", "row", "col", "mid", "dr", "dc"], given, operand("out", "y", &["out", "row", "col"], None));
    builder.program
}

/// A product, normalized with given statistics, scaled and shifted.
fn normalized() -> Sdfg {
    let mut builder = Builder::new();
    builder.input("x", "ui");
    for (name, dims) in [("w", "uj"), ("m", "j"), ("v", "j"), ("g", "j"), ("c", "j")] {
        builder.parameter(name, dims);
    }
    builder.declare("y", "ij", Role::Output);
    builder.contraction(("dot", "ij"), ("x", "ui"), ("w", "uj"), 1.0);
    let read = |name: &str| Scalar::input(name);
    let deviation = Scalar::unary(Unary::Rsqrt, read("v") * read("v") + Scalar::Const(0.5));
    let inputs = [("dot", "ij"), ("m", "j"), ("v", "j")];
    builder.pointwise("map", ("n", "ij"), &inputs, (read("dot") - read("m")) * deviation);
    builder.pointwise("map", ("y", "ij"), &[("n", "ij"), ("g", "j"), ("c", "j")], read("g") * read("n") + read("c"));
    builder.program
}

/// Two layers whose results are joined, rows of the joined tensor, and these rows with zeros around.
fn joined() -> Sdfg {
    let mut builder = Builder::new();
    builder.input("x", "ui");
    builder.parameter("w", "uj");
    builder.parameter("v", "ub");
    builder.declare("z", "ip", Role::Output);
    builder.declare("sums", "i", Role::Output);
    builder.parameter("q", "hp");
    builder.contraction(("s", "ij"), ("x", "ui"), ("w", "uj"), 1.0);
    builder.relu(("a", "ij"), "s");
    builder.contraction(("t", "ib"), ("x", "ui"), ("v", "ub"), 1.0);
    builder.relu(("c", "ib"), "t");
    for (dim, size) in [("e", "J + B"), ("g", "H + 2")] {
        builder.program.dims.insert(dim.into(), size.parse().expect("a size"));
    }
    builder.declare("y", "ie", Role::Transient);
    builder.declare("rows", "ih", Role::Transient);
    builder.declare("padded", "ig", Role::Transient);
    let operand = |connector: &str, data: &str, subscripts: [&str; 2], fill: Option<f64>| sdfg::Operand {
        connector: connector.into(),
        data: data.into(),
        subscripts: subscripts.iter().map(|s| s.parse().expect("a subscript")).collect(),
        fill: fill.map(sdfg::Fill),
    };
    let mut add = |name: &str, code: Scalar, index: &str, inputs: Vec<sdfg::Operand>| {
        let indices = ["i", index].iter().map(|i| (i.to_string(), i.to_string())).collect();
        let (op, pass) = (sdfg::Op::Elementwise { label: "map".into(), code }, sdfg::Direction::Forward);
        let outputs = vec![operand("out", name, ["i", index], None)];
        let operation = sdfg::Operation { name: name.into(), op, indices, inputs, outputs, pass, origin: None };
        let state = builder.program.states().next().map(|(id, _)| id).expect("a state");
        builder.program.insert_operation(state, &operation).expect("an operation");
    };
    let index = |text: &str| Scalar::Index(text.parse().expect("a size"));
    let below = Scalar::binary(sdfg::Binary::Lt, index("e"), index("J"));
    let parts = vec![operand("a", "a", ["i", "e"], Some(0.0)), operand("b", "c", ["i", "e - J"], Some(0.0))];
    add("y", Scalar::select(below, Scalar::input("a"), Scalar::input("b")), "e", parts);
    add("rows", Scalar::input("x"), "h", vec![operand("x", "y", ["i", "h + 2"], None)]);
    add("padded", Scalar::input("x"), "g", vec![operand("x", "rows", ["i", "g - 1"], Some(0.0))]);
    builder.pointwise("map", ("turned", "ig"), &[("padded", "ig")], Scalar::input("padded") * Scalar::Const(2.0));
    builder.reduce(("sums", "i"), sdfg::Combine::Sum, &[("turned", "ig")], Scalar::input("turned"), 1.0);
    builder.contraction(("z", "ip"), ("rows", "ih"), ("q", "hp"), 1.0);
    builder.program
}

/// A sum that two operations compute, under other names and with other indices.
pub fn repeated() -> Builder {
    let mut builder = Builder::new();
    builder.input("x", "ij");
    builder.parameter("c", "j");
    builder.declare("y", "ij", Role::Output);
    for name in ["s", "t"] {
        builder.add((name, "ij"), ("x", "ij"), ("c", "j"));
    }
    builder.pointwise("product", ("y", "ij"), &[("s", "ij"), ("t", "ij")], Scalar::input("s") * Scalar::input("t"));
    builder
}

pub fn models() -> Vec<Sdfg> {
    let mut all = vec![repeated().program, encoder(false).program, encoder(true).program, narrow(), pictures(), normalized(), joined()];
    all.extend(crate::transposed_windows::models());
    all.extend(crate::unread_elements::models());
    all
}

/// Runs each pass on a program, every rewrite verified, and counts the rewrites of each.
fn run_all(what: &str, forward: &Sdfg, rewrites: &mut BTreeMap<&'static str, usize>) {
    let Some(operators) = upstream(forward).and_then(|_| differentiated(forward)) else { return };
    for (row, pass) in made(&operators) {
        let Some(program) = prepared(row, forward) else { continue };
        let name = pass.name();
        assert_eq!(name, row.name);
        match verified(&program, &[pass.as_ref()]) {
            Ok(outcome) => {
                assert!(!outcome.steps.is_empty() || !outcome.refusals.is_empty(), "{what}, {name}: neither a rewrite nor a reason");
                *rewrites.entry(name).or_default() += outcome.steps.len();
            }
            Err(error) => panic!("{what}, {name}: {error}"),
        }
    }
}

#[test]
fn every_pass_keeps_its_promise_on_models() {
    let mut rewrites = BTreeMap::new();
    for model in models() {
        run_all(&model.name.clone(), &model, &mut rewrites);
    }
    println!("{rewrites:?}");
    assert_eq!(rewrites.len(), passes::all().count(), "each pass has a name of its own");
    assert!(rewrites.values().all(|n| *n > 0), "every pass has something to rewrite: {rewrites:?}");
}

#[test]
fn every_pass_keeps_its_promise_on_random_programs() {
    let mut rewrites = BTreeMap::new();
    for seed in 0..60 {
        run_all(&format!("seed {seed}"), &sdfg::random::program(seed), &mut rewrites);
    }
    println!("{rewrites:?}");
}

/// All passes one after the other.
#[test]
fn the_whole_table_is_a_pipeline() {
    for model in models() {
        let all = made(&differentiated(&model).expect("a derivative"));
        let all: Vec<&dyn Pass> = all.iter().map(|(_, pass)| pass.as_ref()).collect();
        let outcome = verified(&model, &all).unwrap_or_else(|error| panic!("{}: {error}", model.name));
        assert_eq!(sdfg::validate::validate(&outcome.program), vec![], "{}", model.name);
    }
}
