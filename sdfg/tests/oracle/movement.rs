//! Flop and bytes of programs small enough to count by hand.

use crate::build::*;
use sdfg::library::Class;
use sdfg::movement::{Movement, definitions, movement, operators, totals, unit_movement};
use sdfg::*;

fn named(operation: Operation, name: &str) -> Operation {
    Operation { name: name.into(), ..operation }
}

fn traffic(list: &[sdfg::movement::Traffic]) -> Vec<(&str, u64)> {
    list.iter().map(|t| (t.data.as_str(), t.elements)).collect()
}

fn only(program: &Sdfg, scope: Scope) -> Movement {
    unit_movement(program, &Unit::Scope(scope), Direction::Forward).unwrap().remove(0)
}

/// A product of 456×200 and 200×111 matrices: 2·m·n·k flop, each element once.
#[test]
fn a_matrix_product_by_operation_and_by_scope() {
    use Role::{Input, Output};
    let mut p =
        program(&[("m", 456), ("n", 111), ("k", 200)], &[("a", &["m", "k"], Input), ("b", &["k", "n"], Input), ("c", &["m", "n"], Output)]);
    let op = operation(
        Op::Contraction { scale: Scalar::Const(1.0) },
        &["m", "n", "k"],
        &[("a", "a", &["m", "k"]), ("b", "b", &["k", "n"])],
        &[("out", "c", &["m", "n"])],
    );
    let by_scope = only(&p, op.expand(&p).unwrap().scopes.remove(0));
    p.insert_operation(state(&p), &op).unwrap();
    let by_operation = movement(&p).unwrap().remove(0);
    assert_eq!(by_operation.class, Class::Contraction);
    assert_eq!(by_scope.class, Class::Contraction, "a sum of products is one without its operation, too");
    for kernel in [by_scope, by_operation] {
        assert_eq!(kernel.flop, 2 * 456 * 111 * 200);
        assert_eq!(traffic(&kernel.reads), [("a", 456 * 200), ("b", 200 * 111)]);
        assert_eq!(traffic(&kernel.writes), [("c", 456 * 111)]);
        assert_eq!(kernel.bytes(), 4 * (456 * 200 + 200 * 111 + 456 * 111));
    }
}

#[test]
fn a_reduction_of_456_elements_is_456_flop() {
    let mut p = program(&[("i", 456)], &[("x", &["i"], Role::Input), ("y", &[], Role::Output)]);
    let sum = Op::Reduce { label: "sum".into(), combine: Combine::Sum, code: input("x"), scale: Scalar::Const(1.0) };
    p.insert_operation(state(&p), &operation(sum, &["i"], &[("x", "x", &["i"])], &[("out", "y", &[])])).unwrap();
    let kernel = movement(&p).unwrap().remove(0);
    assert_eq!((kernel.flop, kernel.input_elements(), kernel.output_elements()), (456, 456, 1));
    assert_eq!(kernel.class, Class::Normalization);
}

/// One flop for 12 bytes; and the same tensor read twice is read once.
#[test]
fn intensity_of_a_vector_addition() {
    let mut p = program(&[("i", 100)], &[("x", &["i"], Role::Input), ("y", &["i"], Role::Input), ("z", &["i"], Role::Output)]);
    let add = |name: &str, second: &str, to: &str| {
        let code = input("a") + input("b");
        let inputs: &[(&str, &str, &[&str])] = &[("a", "x", &["i"]), ("b", second, &["i"])];
        named(operation(Op::Elementwise { label: "residual".into(), code }, &["i"], inputs, &[("out", to, &["i"])]), name)
    };
    p.add_container(Container::new("twice", &["i"], Dtype::F32, Role::Output));
    p.insert_operation(state(&p), &add("add", "y", "z")).unwrap();
    p.insert_operation(state(&p), &add("double", "x", "twice")).unwrap();
    let kernels = movement(&p).unwrap();
    assert_eq!(kernels[0].flop_per_byte(), 1.0 / 12.0);
    assert_eq!(kernels[1].flop_per_byte(), 1.0 / 8.0);
    let total = totals(&kernels)[&Class::Elementwise];
    assert_eq!((total.kernels, total.flop, total.bytes), (2, 200, 2000));
}

#[test]
fn distinct_elements_of_halos_strides_views_and_triangles() {
    let mut p = program(&[("i", 10), ("h", 5)], &[("x", &["i"], Role::Input), ("y", &["i"], Role::Output), ("z", &["h"], Role::Output)]);
    let mut left = at("x", &["i-1"]);
    left.fill = Some(0.0);
    let over = |name: &str| index(name, &p, IndexKind::Independent);
    // A halo that hangs over the edge is read from the fill, not from memory.
    let stencil = tasklet("t", &[("out", input("l") + input("c"))], &[("l", left), ("c", at("x", &["i"]))], &[("out", at("y", &["i"]))]);
    let halo = only(&p, Scope::new("halo", vec![over("i")], vec![stencil]));
    assert_eq!((traffic(&halo.reads), halo.flop), (vec![("x", 10)], 10));
    let even = tasklet("t", &[("out", input("x"))], &[("x", at("x", &["2*h"]))], &[("out", at("z", &["h"]))]);
    assert_eq!(traffic(&only(&p, Scope::new("even", vec![over("h")], vec![even])).reads), [("x", 5)]);
    let upto = Index { stop: "i+1".parse().unwrap(), ..Index::over("j", "i", Expr::Int(10), IndexKind::Reduction) };
    let sum = tasklet("t", &[("out", input("x"))], &[("x", at("x", &["j"]))], &[("out", at("y", &["i"]).with_wcr(Some(Combine::Sum)))]);
    let triangle = only(&p, Scope::new("triangle", vec![over("i"), upto], vec![sum]));
    assert_eq!((triangle.flop, traffic(&triangle.reads)), (55, vec![("x", 10)]));
    let high = tasklet("t", &[("out", input("x"))], &[("x", at("x.high", &["h"]))], &[("out", at("z", &["h"]))]);
    let high = Scope::new("high", vec![over("h")], vec![high]);
    let mut view = Container::new("x.high", &["h"], Dtype::F32, Role::Input);
    view.view = Some(View { of: "x".into(), offsets: vec![Expr::Int(5)] });
    p.add_container(view);
    assert_eq!(traffic(&only(&p, high).reads), [("x.high", 5)]);
}

/// x → a (written) → b, with a local in between: a is written but not read, the local moves nothing.
#[test]
fn what_a_kernel_makes_it_does_not_read() {
    let mut p = program(&[("i", 8)], &[("x", &["i"], Role::Input), ("a", &["i"], Role::Output), ("b", &["i"], Role::Output)]);
    p.add_container(Container::local("t", vec![], Dtype::F32));
    let copy = |from: &str, to: &str| {
        let at = |data: &str| if data == "t" { at("t", &[]) } else { at(data, &["i"]) };
        tasklet(to, &[("out", input("v"))], &[("v", at(from))], &[("out", at(to))])
    };
    let body = vec![copy("x", "t"), copy("t", "a"), copy("a", "b")];
    let kernel = only(&p, Scope::new("chain", vec![index("i", &p, IndexKind::Independent)], body));
    assert_eq!((traffic(&kernel.reads), traffic(&kernel.writes)), (vec![("x", 8)], vec![("a", 8), ("b", 8)]));
    assert_eq!((kernel.class, kernel.flop), (Class::Elementwise, 0));
}

/// q = wq·x, k = wk·x, s = softmax(q·k/2), y = dropout(s): the groups of Table III, and every definition by hand.
#[test]
fn operators_are_grouped_and_definitions_add_up() {
    use Role::{Input, Output, Parameter, Transient};
    let mut p = program(
        &[("c", 6), ("i", 4), ("j", 5), ("k", 5)],
        &[
            ("x", &["i", "j"], Input),
            ("wq", &["c", "i"], Parameter),
            ("wk", &["c", "i"], Parameter),
            ("q", &["c", "j"], Transient),
            ("kk", &["c", "k"], Transient),
            ("beta", &["j", "k"], Transient),
            ("s", &["j", "k"], Transient),
            ("y", &["j", "k"], Output),
        ],
    );
    let contraction = |scale: f64, indices: &[&str], a: (&str, &[&str]), b: (&str, &[&str]), out: (&str, &[&str])| {
        let op = Op::Contraction { scale: Scalar::Const(scale) };
        named(operation(op, indices, &[("a", a.0, a.1), ("b", b.0, b.1)], &[("out", out.0, out.1)]), out.0)
    };
    let jk: &[&str] = &["j", "k"];
    let keep = Scalar::Keep { stream: "y".into(), element: "j*5+k".parse().unwrap(), rate: 0.1 };
    let dropout = Op::Elementwise { label: "dropout".into(), code: input("x") * keep };
    for op in [
        contraction(1.0, &["c", "j", "i"], ("wq", &["c", "i"]), ("x", &["i", "j"]), ("q", &["c", "j"])),
        contraction(1.0, &["c", "k", "i"], ("wk", &["c", "i"]), ("x", &["i", "k"]), ("kk", &["c", "k"])),
        contraction(0.5, &["c", "j", "k"], ("q", &["c", "j"]), ("kk", &["c", "k"]), ("beta", jk)),
        named(operation(Op::Softmax { over: vec!["k".into()] }, jk, &[("x", "beta", jk)], &[("out", "s", jk)]), "softmax"),
        named(operation(dropout, jk, &[("x", "s", jk)], &[("out", "y", jk)]), "y"),
    ] {
        p.insert_operation(state(&p), &op).unwrap();
    }
    let rows = operators(&p).unwrap();
    let shown: Vec<_> = rows
        .iter()
        .map(|r| (r.label.as_str(), r.movement.name.as_str(), r.movement.flop, r.movement.input_elements(), r.movement.output_elements()))
        .collect();
    assert_eq!(
        shown,
        [
            ("contraction", "q+kk", 2 * 2 * 6 * 5 * 4, 20 + 24 + 24, 30 + 30),
            ("contraction", "beta", 2 * 6 * 5 * 5, 60, 25),
            ("scaled softmax", "softmax+y", 6 * 25, 25, 25),
        ]
    );
    // The product and the softmax are left as they are, so that only the baselines differ.
    let grouped = 4 * (68 + 60 + 60 + 25 + 50);
    let single = 4 * (2 * (20 + 24 + 30) + 60 + 25 + 50 + 50);
    let (mask, softmax, scaling) = (4 * 25, 4 * 50, 4 * 50);
    let all = definitions(&p, &p).unwrap();
    let unfused: Vec<u64> = all.iter().map(|d| d.unfused_bytes).collect();
    // Maximum: 25 → 5; exponentials: 25 + 5 → 25; sum: 25 → 5; quotient: 25 + 5 → 25; instead of 25 → 25 at once.
    let passes = single + 4 * (30 + 55 + 30 + 55 - 50) + scaling;
    assert_eq!(unfused, [grouped + mask, grouped, grouped + mask, grouped + softmax + scaling, single + scaling, single, passes]);
    let fused: Vec<u64> = all.iter().map(|d| d.fused_bytes).collect();
    assert_eq!(fused, [single + mask, single, single, single, single, single, single]);
    assert_eq!(all[5].reduction, 0.0);
    assert_eq!(all[1].unfused_contraction_bytes, 4 * (68 + 60 + 60 + 25));
}

/// Two contractions that are only added up, and a third term: the contractions write one sum, the addition reads two.
#[test]
fn contractions_that_are_added_up_write_their_sum() {
    use Role::{Input, Output, Transient};
    let mut p = program(
        &[("i", 4), ("j", 3)],
        &[
            ("u", &["i", "j"], Input),
            ("v", &["i", "j"], Input),
            ("du", &["j"], Input),
            ("dv", &["j"], Input),
            ("r", &["i"], Input),
            ("d_x.u", &["i"], Transient),
            ("d_x.v", &["i"], Transient),
            ("d_x", &["i"], Output),
        ],
    );
    let product = |a: &str, b: &str, out: &str| {
        let op = Op::Contraction { scale: Scalar::Const(1.0) };
        let made = operation(op, &["i", "j"], &[("a", a, &["i", "j"]), ("b", b, &["j"])], &[("out", out, &["i"])]);
        Operation { pass: Direction::Backward, ..named(made, out) }
    };
    let inputs: &[(&str, &str, &[&str])] = &[("a", "d_x.u", &["i"]), ("b", "d_x.v", &["i"]), ("c", "r", &["i"])];
    let code = input("a") + input("b") + input("c");
    let sum = operation(Op::Elementwise { label: "residual".into(), code }, &["i"], inputs, &[("out", "d_x", &["i"])]);
    for op in [product("u", "du", "d_x.u"), product("v", "dv", "d_x.v"), named(sum, "sum")] {
        p.insert_operation(state(&p), &op).unwrap();
    }
    let rows = operators(&p).unwrap();
    let shown: Vec<_> = rows
        .iter()
        .map(|r| (r.movement.name.as_str(), r.movement.flop, r.movement.input_elements(), r.movement.output_elements()))
        .collect();
    assert_eq!(shown, [("d_x.u+d_x.v", 2 * 24, 2 * (12 + 3), 4), ("sum", 4, 8, 4)]);
}
