//! The oracle against values worked out by hand or by formulas written out here.

use crate::build::*;
use indexmap::IndexMap;
use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::{InterpretError, Run, Tensors, interpret, interpret_unit};
use sdfg::scope::Unit;
use sdfg::*;

const RUN: Run = Run { seed: 7, step: 3, dropout: true };

fn assert_close(got: &ArrayD<f64>, want: &ArrayD<f64>, terms: f64) {
    assert_eq!(got.shape(), want.shape());
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= terms * f64::EPSILON * w.abs().max(1.0) * 4.0, "{g} is not {w}");
    }
}

#[test]
fn contraction_equals_its_expansion_and_the_triple_loop() {
    use Role::{Input, Output};
    let mut p = program(
        &[("b", 3), ("m", 4), ("n", 5), ("k", 6)],
        &[("x", &["b", "k", "m"], Input), ("w", &["n", "b", "k"], Input), ("y", &["m", "b", "n"], Output)],
    );
    let op = operation(
        Op::Contraction { scale: Scalar::Const(0.5) },
        &["m", "b", "n", "k"],
        &[("a", "x", &["b", "k", "m"]), ("b", "w", &["n", "b", "k"])],
        &[("out", "y", &["m", "b", "n"])],
    );
    let given = tensors(&[("x", tensor(&[3, 6, 4], 1)), ("w", tensor(&[5, 3, 6], 2))]);
    let mut by_loops = given.clone();
    for scope in op.expand(&p).unwrap().scopes {
        interpret_unit(&p, &Unit::Scope(scope), &mut by_loops, &RUN).unwrap();
    }
    p.insert_operation(state(&p), &op).unwrap();
    let by_product = interpret(&p, &given, &RUN).unwrap();
    let want = ArrayD::from_shape_fn(IxDyn(&[4, 3, 5]), |i| {
        (0..6).map(|k| given["x"][[i[1], k, i[0]]] * given["w"][[i[2], i[1], k]]).sum::<f64>() * 0.5
    });
    assert_close(&by_product["y"], &want, 6.0 * 4.0);
    assert_close(&by_loops["y"], &want, 6.0 * 4.0);
}

#[test]
fn softmax_and_normalization_are_their_formulas() {
    use Role::{Input, Output};
    let mut p = program(
        &[("i", 4), ("j", 5)],
        &[("x", &["i", "j"], Input), ("y", &["i", "j"], Output), ("z", &["i", "j"], Output), ("m", &["i"], Output), ("r", &["i"], Output)],
    );
    let ij: &[&str] = &["i", "j"];
    p.insert_operation(state(&p), &operation(Op::Softmax { over: vec!["j".into()] }, ij, &[("x", "x", ij)], &[("out", "y", ij)])).unwrap();
    let outputs: &[(&str, &str, &[&str])] = &[("out", "z", ij), ("mean", "m", &["i"]), ("rstd", "r", &["i"])];
    let normalize = Op::Normalize { over: vec!["j".into()], eps: 1e-5 };
    p.insert_operation(state(&p), &Operation { name: "norm".into(), ..operation(normalize, ij, &[("x", "x", ij)], outputs) }).unwrap();
    let x = tensor(&[4, 5], 3);
    let got = interpret(&p, &tensors(&[("x", x.clone())]), &RUN).unwrap();
    for i in 0..4 {
        let row: Vec<f64> = (0..5).map(|j| x[[i, j]]).collect();
        let total: f64 = row.iter().map(|v| v.exp()).sum();
        let mean = row.iter().sum::<f64>() / 5.0;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 5.0;
        for j in 0..5 {
            assert!((got["y"][[i, j]] - row[j].exp() / total).abs() < 20.0 * f64::EPSILON);
            assert!((got["z"][[i, j]] - (row[j] - mean) / (variance + 1e-5).sqrt()).abs() < 100.0 * f64::EPSILON);
        }
        assert!((got["m"][[i]] - mean).abs() < 10.0 * f64::EPSILON);
    }
}

/// Softmax and dropout in one kernel: local containers start anew for each row, also with a reduction.
fn fused_softmax(p: &mut Sdfg) -> Scope {
    p.add_container(Container::local("t.max", vec![], Dtype::F32));
    p.add_container(Container::local("t.sum", vec![], Dtype::F32));
    p.add_container(Container::local("t.exp", vec!["k".into()], Dtype::F32));
    let x = ("x", at("x", &["i", "k"]));
    let (top, sum, exp) = (at("t.max", &[]), at("t.sum", &[]), at("t.exp", &["k"]));
    let max = tasklet("max", &[("out", input("x"))], std::slice::from_ref(&x), &[("out", top.clone().with_wcr(Some(Combine::Max)))]);
    let power = Scalar::unary(Unary::Exp, input("x") - input("max"));
    let power = tasklet("exp", &[("out", power)], &[x, ("max", top)], &[("out", exp.clone())]);
    let add = tasklet("sum", &[("out", input("e"))], &[("e", exp.clone())], &[("out", sum.clone().with_wcr(Some(Combine::Sum)))]);
    let keep = Scalar::Keep { stream: "alpha".into(), element: "i*5+k".parse().unwrap(), rate: 0.25 };
    let share = tasklet("div", &[("out", input("e") / input("s") * keep)], &[("e", exp), ("s", sum)], &[("out", at("alpha", &["i", "k"]))]);
    let over = |kind, items| Item::Scope(Scope::new("k", vec![index("k", p, kind)], items));
    let body = vec![
        over(IndexKind::Reduction, vec![max]),
        over(IndexKind::Independent, vec![power]),
        over(IndexKind::Reduction, vec![add]),
        over(IndexKind::Independent, vec![share]),
    ];
    Scope::new("softmax", vec![index("i", p, IndexKind::Independent)], body)
}

#[test]
fn a_scope_means_the_same_after_a_round_trip_through_the_graph() {
    let mut p = program(&[("i", 3), ("k", 5)], &[("x", &["i", "k"], Role::Input), ("alpha", &["i", "k"], Role::Output)]);
    let scope = fused_softmax(&mut p);
    p.insert_scope(state(&p), &scope).unwrap();
    let given = tensors(&[("x", tensor(&[3, 5], 4))]);
    let mut direct = given.clone();
    interpret_unit(&p, &Unit::Scope(scope), &mut direct, &RUN).unwrap();
    assert_eq!(interpret(&p, &given, &RUN).unwrap()["alpha"], direct["alpha"]);
    let memlets: Vec<String> =
        p.state(state(&p)).unwrap().nodes().filter(|(_, v)| v.scope.is_none()).map(|(_, v)| format!("{:?}", v.node)).collect();
    assert!(!memlets.iter().any(|m| m.contains("t.exp")), "{memlets:?}");
}

#[test]
fn fused_softmax_with_dropout_is_its_formula() {
    let mut p = program(&[("i", 3), ("k", 5)], &[("x", &["i", "k"], Role::Input), ("alpha", &["i", "k"], Role::Output)]);
    let scope = fused_softmax(&mut p);
    let x = tensor(&[3, 5], 4);
    for dropout in [true, false] {
        let run = Run { dropout, ..RUN };
        let mut got = tensors(&[("x", x.clone())]);
        interpret_unit(&p, &Unit::Scope(scope.clone()), &mut got, &run).unwrap();
        let key = philox::key(run.seed, "alpha");
        let mut dropped = 0;
        for (i, row) in x.outer_iter().enumerate() {
            let total: f64 = row.iter().map(|v| v.exp()).sum();
            for (k, value) in row.iter().enumerate() {
                let keep = if dropout { philox::keep(key, run.step, (i * 5 + k) as u64, 0.25) } else { 1.0 };
                dropped += usize::from(keep == 0.0);
                assert!((got["alpha"][[i, k]] - value.exp() / total * keep).abs() < 30.0 * f64::EPSILON);
            }
        }
        assert_eq!(dropped > 0, dropout);
    }
}

#[test]
fn a_sequential_index_carries_and_a_fill_stands_outside() {
    let p = program(&[("t", 5), ("i", 2)], &[("x", &["t", "i"], Role::Input), ("h", &["t", "i"], Role::Output)]);
    let mut before = at("h", &["t-1", "1-i"]);
    before.fill = Some(10.0);
    let step = tasklet(
        "step",
        &[("out", input("h") + input("x"))],
        &[("h", before.clone()), ("x", at("x", &["t", "i"]))],
        &[("out", at("h", &["t", "i"]))],
    );
    // The independent index is listed first: the whole of one step must still precede the next.
    let map = vec![index("i", &p, IndexKind::Independent), index("t", &p, IndexKind::Sequential)];
    let unit = Unit::Scope(Scope::new("scan", map, vec![step]));
    let x = tensor(&[5, 2], 5);
    let mut got = tensors(&[("x", x.clone())]);
    interpret_unit(&p, &unit, &mut got, &RUN).unwrap();
    let mut h = [10.0, 10.0];
    for t in 0..5 {
        h = [h[1] + x[[t, 0]], h[0] + x[[t, 1]]];
        assert_eq!([got["h"][[t, 0]], got["h"][[t, 1]]], h);
    }
}

#[test]
fn a_scope_that_writes_what_it_reads_from_memory_is_refused_and_leaves_no_trace() {
    let mut p = program(&[("i", 4)], &[("x", &["i"], Role::Input), ("y", &["i"], Role::Output)]);
    let double = tasklet("double", &[("out", input("x") * Scalar::Const(2.0))], &[("x", at("x", &["i"]))], &[("out", at("x", &["i"]))]);
    let scope = Scope::new("double", vec![index("i", &p, IndexKind::Independent)], vec![double]);
    let before = p.clone();
    let error = p.insert_scope(state(&p), &scope).unwrap_err().to_string();
    assert!(error.starts_with("`double` reads `x` from memory and writes it too"), "{error}");
    assert_eq!(p, before);
    // Handed on within the scope it is no cycle: written first, read by the next item.
    let half = tasklet("half", &[("out", input("x"))], &[("x", at("x", &["i"]))], &[("out", at("y", &["i"]))]);
    let again = tasklet("again", &[("out", input("y"))], &[("y", at("y", &["i"]))], &[("out", at("z", &["i"]))]);
    p.add_container(Container::new("z", &["i"], Dtype::F32, Role::Output));
    p.insert_scope(state(&p), &Scope::new("pair", vec![index("i", &p, IndexKind::Independent)], vec![half, again])).unwrap();
}

#[test]
fn reading_outside_without_a_fill_is_a_located_error() {
    let mut p = program(&[("i", 4)], &[("x", &["i"], Role::Input), ("y", &["i"], Role::Output)]);
    let shift = tasklet("shift", &[("out", input("x"))], &[("x", at("x", &["i+1"]))], &[("out", at("y", &["i"]))]);
    p.insert_scope(state(&p), &Scope::new("shift", vec![index("i", &p, IndexKind::Independent)], vec![shift])).unwrap();
    let error = interpret(&p, &tensors(&[("x", tensor(&[4], 1))]), &RUN).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("`shift`") && text.contains("(i=3)") && text.contains("x[i+1]"), "{text}");
}

#[test]
fn tuple_combines_fold_three_values_at_once() {
    let mut p = program(
        &[("i", 2), ("k", 6)],
        &[
            ("x", &["i", "k"], Role::Input),
            ("n", &["i"], Role::Output),
            ("mean", &["i"], Role::Output),
            ("m2", &["i"], Role::Output),
            ("top", &["i"], Role::Output),
            ("sum", &["i"], Role::Output),
            ("acc", &["i"], Role::Output),
        ],
    );
    let map = || vec![index("i", &p, IndexKind::Independent), index("k", &p, IndexKind::Reduction)];
    let fold = |name: &str, combine, code: [(&str, Scalar); 3], into: [&str; 3]| {
        let writes: Vec<_> = code.iter().zip(into).map(|((c, _), d)| (*c, at(d, &["i"]).with_wcr(Some(combine)))).collect();
        Scope::new(name, map(), vec![tasklet(name, &code, &[("x", at("x", &["i", "k"]))], &writes)])
    };
    let one = || Scalar::Const(1.0);
    let moments = fold("moments", Combine::Moments, [("a", one()), ("b", input("x")), ("c", Scalar::Const(0.0))], ["n", "mean", "m2"]);
    let online = fold("online", Combine::OnlineSoftmax, [("a", input("x")), ("b", one()), ("c", input("x"))], ["top", "sum", "acc"]);
    p.insert_scope(state(&p), &moments).unwrap();
    p.insert_scope(state(&p), &online).unwrap();
    let x = tensor(&[2, 6], 6);
    let got = interpret(&p, &tensors(&[("x", x.clone())]), &RUN).unwrap();
    for (i, row) in x.outer_iter().enumerate() {
        let mean = row.sum() / 6.0;
        let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|v| (v - top).exp()).sum();
        let acc: f64 = row.iter().map(|v| (v - top).exp() * v).sum();
        let want =
            [("n", 6.0), ("mean", mean), ("m2", row.iter().map(|v| (v - mean).powi(2)).sum()), ("top", top), ("sum", sum), ("acc", acc)];
        for (name, want) in want {
            assert!((got[name][[i]] - want).abs() < 50.0 * f64::EPSILON, "{name}: {} is not {want}", got[name][[i]]);
        }
    }
}

#[test]
fn views_share_the_storage_of_their_parent() {
    let mut p = program(&[("s", 6), ("h", 3)], &[("x", &["s"], Role::Input), ("y", &["s"], Role::Output)]);
    for (name, of, role) in [("x.low", "x", Role::Input), ("y.high", "y", Role::Output), ("y.low", "y", Role::Output)] {
        let mut view = Container::new(name, &["h"], Dtype::F32, role);
        view.view = Some(View { of: of.into(), offsets: vec![Expr::Int(if name.ends_with("low") { 0 } else { 3 })] });
        p.add_container(view);
    }
    for (to, factor) in [("y.high", 2.0), ("y.low", 3.0)] {
        let code = input("x") * Scalar::Const(factor);
        let item = tasklet(to, &[("out", code)], &[("x", at("x.low", &["h"]))], &[("out", at(to, &["h"]).with_wcr(Some(Combine::Sum)))]);
        p.insert_scope(state(&p), &Scope::new(to, vec![index("h", &p, IndexKind::Independent)], vec![item])).unwrap();
    }
    let got = interpret(&p, &tensors(&[("x", values(&[6], &[1., 2., 3., 4., 5., 6.]))]), &RUN).unwrap();
    assert_eq!(got["y"], values(&[6], &[3., 6., 9., 2., 4., 6.]));
    assert_eq!(got["y.high"], values(&[3], &[2., 4., 6.]));
}

/// s0: acc += x; back to it while n < 3, then to the end.
#[test]
fn transitions_loop_under_their_conditions() {
    let mut p = program(&[("i", 2)], &[("x", &["i"], Role::Input), ("acc", &["i"], Role::Output)]);
    let add = tasklet("add", &[("out", input("x"))], &[("x", at("x", &["i"]))], &[("out", at("acc", &["i"]).with_wcr(Some(Combine::Sum)))]);
    let s0 = state(&p);
    p.insert_scope(s0, &Scope::new("add", vec![index("i", &p, IndexKind::Independent)], vec![add])).unwrap();
    p.sizes.insert("n".into(), 1);
    let again = Condition { left: Expr::sym("n"), relation: Relation::Lt, right: Expr::Int(3) };
    p.add_transition(s0, s0, Transition { condition: Some(again), assignments: vec![("n".into(), "n+1".parse().unwrap())] });
    let got = interpret(&p, &tensors(&[("x", values(&[2], &[1., 5.]))]), &RUN).unwrap();
    assert_eq!(got["acc"], values(&[2], &[3., 15.]));
    let mut p = program(&[], &[]);
    p.add_transition(state(&p), state(&p), Transition::default());
    let error = interpret(&p, &Tensors::new(), &RUN).unwrap_err();
    assert!(matches!(error, InterpretError::StepLimit { .. }), "{error}");
}

#[test]
fn nested_programs_share_their_boundary() {
    let double = |factor: f64| {
        let mut p = program(&[("i", 0)], &[("x", &["i"], Role::Input), ("y", &["i"], Role::Output)]);
        p.dims.insert("i".into(), Expr::sym("N"));
        let code = input("x") * Scalar::Const(factor);
        let item = tasklet("double", &[("out", code)], &[("x", at("x", &["i"]))], &[("out", at("y", &["i"]))]);
        p.insert_scope(state(&p), &Scope::new("double", vec![index("i", &p, IndexKind::Independent)], vec![item])).unwrap();
        p
    };
    let mut outer = program(&[("i", 3)], &[("x", &["i"], Role::Input), ("y", &["i"], Role::Output)]);
    outer.sizes.insert("N".into(), 3);
    let nested = Nested {
        name: "inner".into(),
        program: Box::new(double(2.0)),
        symbols: IndexMap::from([("N".into(), Expr::Int(3))]),
        repeat: None,
    };
    let mut got = tensors(&[("x", values(&[3], &[1., 2., 3.]))]);
    interpret_unit(&outer, &Unit::Nested(nested), &mut got, &RUN).unwrap();
    assert_eq!(got["y"], values(&[3], &[2., 4., 6.]));
}

#[test]
fn wrong_inputs_are_located_errors() {
    let p = program(&[("i", 3)], &[("x", &["i"], Role::Input)]);
    let missing = interpret(&p, &Tensors::new(), &RUN).unwrap_err();
    assert_eq!(missing, InterpretError::Missing { program: "test".into(), data: "x".into() });
    let shape = interpret(&p, &tensors(&[("x", tensor(&[2], 1))]), &RUN).unwrap_err();
    assert_eq!(shape, InterpretError::Shape { data: "x".into(), expected: vec![3], given: vec![2] });
    let unknown = interpret(&p, &tensors(&[("x", tensor(&[3], 1)), ("z", tensor(&[3], 1))]), &RUN).unwrap_err();
    assert_eq!(unknown, InterpretError::UnknownTensor { program: "test".into(), data: "z".into() });
}

/// Rewrites give the handles of removed edges to new ones, so a row may be asked for by an edge before that of its number.
#[test]
fn the_number_of_a_row_is_read_before_the_row_whatever_the_order_of_edges() {
    let text = "program rows {
  sizes B=2, D=2, O=3
  dims b=B, d=D, o=O
  input x[b] i32 nograd within [0.0, [O])
  parameter e[o, d] f32
  output y[b, d] f32
  state s0 forward {
    n0 = access x
    n1 = access e
    n2 = access y
    n3 = exit n4
    n4 = map y [b=0:B, d=0:D]
      n5 in n4 = tasklet y { out = x }
    e0 = n4:OUT_e -> n5:x moves e[x[b], d]
    e1 = n5:out -> n3:IN_y moves y[b, d]
    e2 = n4:OUT_x -> n5:at0 moves x[b]
    e3 = n0 -> n4:IN_x moves x[0:B] volume D*B
    e4 = n1 -> n4:IN_e moves e[0:O, 0:D] volume D*B dynamic
    e5 = n3:OUT_y -> n2 moves y[0:B, 0:D] volume D*B
  }
}
";
    let p = sdfg::text::parse(text).unwrap_or_else(|e| panic!("{e}"));
    let x = ArrayD::from_shape_vec(IxDyn(&[2]), vec![2.0, 0.0]).unwrap();
    let e = ArrayD::from_shape_vec(IxDyn(&[3, 2]), vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let got = interpret(&p, &tensors(&[("x", x), ("e", e)]), &RUN).unwrap();
    assert_eq!(got["y"], ArrayD::from_shape_vec(IxDyn(&[2, 2]), vec![5.0, 6.0, 1.0, 2.0]).unwrap());
}
