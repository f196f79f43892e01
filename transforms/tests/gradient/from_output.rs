//! Derivatives that backward takes from the results of functions instead of their arguments.

use crate::builder::Builder;
use crate::difference::check;
use crate::structure::{backward, upstream};
use sdfg::{Dtype, Operation, Role, Scalar, Sdfg, Unary};
use transforms::differentiate::differentiate;

/// `h = f(s)` with `s = w · x`, and `y = v · h`, which needs `h` for the gradient of `v`.
fn layer(functions: &[Unary]) -> Sdfg {
    let mut builder = Builder::new();
    builder.input("x", "ij");
    builder.parameter("w", "ui");
    builder.contraction(("s", "uj"), ("w", "ui"), ("x", "ij"), 1.0);
    let mut value = Scalar::input("s");
    for function in functions {
        value = Scalar::unary(*function, value);
    }
    builder.pointwise("activation", ("h", "uj"), &[("s", "uj")], value);
    builder.parameter("v", "ku");
    builder.contraction(("y", "kj"), ("v", "ku"), ("h", "uj"), 1.0);
    builder.program.containers["y"].role = Role::Output;
    builder.program
}

fn reads<'a>(operations: &'a [Operation], data: &str) -> Vec<&'a str> {
    operations.iter().filter(|o| o.inputs.iter().any(|i| i.data == data)).map(|o| o.name.as_str()).collect()
}

#[test]
fn slopes_of_bounded_functions_are_read_from_results() {
    for function in [Unary::Tanh, Unary::Sigmoid] {
        let program = layer(&[function]);
        let operations = backward(&differentiate(&program, &upstream("y")).unwrap());
        assert!(reads(&operations, "s").is_empty(), "{function:?}: {operations:?}");
        assert_eq!(reads(&operations, "h").len(), 2, "the gradient of `v` and the slope: {operations:?}");
        check(&program, "y", 5);
    }
}

#[test]
fn other_uses_of_the_argument_keep_it() {
    // The slope of exp(tanh(s)) needs tanh(s), which no container holds.
    let program = layer(&[Unary::Tanh, Unary::Exp]);
    let operations = backward(&differentiate(&program, &upstream("y")).unwrap());
    assert_eq!(reads(&operations, "s").len(), 1, "{operations:?}");
    check(&program, "y", 5);
}

/// Without a contraction that reads the result, a recomputation of it may be cheaper than its memory.
#[test]
fn a_result_that_nothing_else_needs_stays_out_of_memory() {
    let mut builder = Builder::new();
    builder.input("x", "ij");
    builder.pointwise("activation", ("y", "ij"), &[("x", "ij")], Scalar::unary(Unary::Tanh, Scalar::input("x")));
    builder.pointwise("double", ("z", "ij"), &[("y", "ij")], Scalar::input("y") + Scalar::input("y"));
    builder.program.containers["z"].role = Role::Output;
    let operations = backward(&differentiate(&builder.program, &upstream("z")).unwrap());
    assert!(reads(&operations, "y").is_empty(), "{operations:?}");
}

/// A result in bf16 is rounded: 1 − y² of it is inexact where y is near 1.
#[test]
fn rounded_results_are_not_read() {
    let mut program = layer(&[Unary::Tanh]);
    program.containers.values_mut().for_each(|c| c.dtype = Dtype::Bf16);
    let operations = backward(&differentiate(&program, &upstream("y")).unwrap());
    assert_eq!(reads(&operations, "s").len(), 1, "{operations:?}");
}
