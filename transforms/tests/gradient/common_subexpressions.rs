//! What two operations compute is computed once.

use crate::builder::Builder;
use crate::every_pass::{repeated, verified};
use sdfg::{Role, Scalar, Sdfg, Unit};
use transforms::algebra::common_subexpressions::CommonSubexpressions;
use transforms::{Pass, moved_bytes};

fn operations(program: &Sdfg) -> Vec<String> {
    program.units().into_iter().filter_map(|(_, _, unit)| if let Unit::Operation(o) = unit { Some(o.name) } else { None }).collect()
}

/// The names of what is left, and why what is left is.
fn after(program: &Sdfg) -> (Vec<String>, Vec<String>) {
    let outcome = verified(program, &[&CommonSubexpressions as &dyn Pass]).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(sdfg::validate::validate(&outcome.program), vec![]);
    (operations(&outcome.program), outcome.refusals.iter().map(|refusal| refusal.reason.to_string()).collect())
}

#[test]
fn equal_sums_are_one() {
    let program = repeated().program;
    let outcome = verified(&program, &[&CommonSubexpressions as &dyn Pass]).unwrap_or_else(|error| panic!("{error}"));
    let before = operations(&program);
    assert_eq!((before.len(), operations(&outcome.program)), (3, vec![before[0].clone(), before[2].clone()]));
    assert!(!outcome.program.containers.contains_key("t"));
    // A sum less: x, c and its result. The product reads one operand less.
    let (i, j) = (4, 3);
    assert_eq!(moved_bytes(&program) - moved_bytes(&outcome.program), 8 * (i * j + j + i * j + i * j));
}

#[test]
fn what_follows_from_equal_results_is_equal() {
    let mut builder = Builder::new();
    builder.input("x", "ij");
    builder.declare("y", "ij", Role::Output);
    for (root, square) in [("a", "b"), ("c", "d")] {
        builder.pointwise("map", (root, "ij"), &[("x", "ij")], Scalar::input("x") * Scalar::Const(0.5));
        builder.pointwise("map", (square, "ij"), &[(root, "ij")], Scalar::input(root) * Scalar::input(root));
    }
    builder.pointwise("sum", ("y", "ij"), &[("b", "ij"), ("d", "ij")], Scalar::input("b") + Scalar::input("d"));
    let (left, _) = after(&builder.program);
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn what_the_program_returns_stays() {
    let mut builder = Builder::new();
    builder.input("x", "ij");
    for name in ["y", "z"] {
        builder.declare(name, "ij", Role::Output);
        builder.pointwise("map", (name, "ij"), &[("x", "ij")], Scalar::input("x") * Scalar::Const(0.5));
    }
    let (left, why) = after(&builder.program);
    assert_eq!(left.len(), 2);
    assert!(why.iter().any(|why| why.contains("but the program returns `z`")), "{why:?}");
}

#[test]
fn dropouts_are_equal_where_their_streams_are() {
    for (streams, wanted) in [(["m", "m"], 2), (["m", "n"], 3)] {
        let mut builder = Builder::new();
        builder.input("x", "ij");
        builder.declare("y", "ij", Role::Output);
        for (name, stream) in ["s", "t"].into_iter().zip(streams) {
            let element = "i * J + j".parse().expect("a place");
            let keep = Scalar::Keep { stream: stream.into(), element, rate: 0.5 };
            builder.pointwise("dropout", (name, "ij"), &[("x", "ij")], Scalar::input("x") * keep);
        }
        builder.pointwise("sum", ("y", "ij"), &[("s", "ij"), ("t", "ij")], Scalar::input("s") + Scalar::input("t"));
        assert_eq!(after(&builder.program).0.len(), wanted, "{streams:?}");
    }
}
