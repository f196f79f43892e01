//! Gradients where tensors are stored in different types: of f32 master weights, of which a bf16 copy is multiplied.

use crate::builder::{Builder, operand};
use crate::structure::{backward, upstream};
use sdfg::{Dtype, Op, Scalar, Sdfg};
use transforms::differentiate::differentiate;

/// `y = w.bf16 · x`, or the same followed by an f32 sum, with `w` in f32 and `x` in bf16.
fn cast(wide_output: bool) -> Sdfg {
    let mut builder = Builder::new();
    builder.input("x", "ij");
    builder.parameter("w", "ui");
    builder.pointwise("cast", ("w.bf16", "ui"), &[("w", "ui")], Scalar::input("w"));
    builder.contraction(("y", "uj"), ("w.bf16", "ui"), ("x", "ij"), 1.0);
    for (name, dtype) in [("x", Dtype::Bf16), ("w", Dtype::F32), ("w.bf16", Dtype::Bf16)] {
        builder.program.containers[name].dtype = dtype;
    }
    builder.program.containers["y"].dtype = if wide_output { Dtype::F32 } else { Dtype::Bf16 };
    builder.program.containers["y"].role = sdfg::Role::Output;
    builder.program
}

#[test]
fn the_gradient_of_a_master_weight_is_written_by_the_contraction() {
    let program = differentiate(&cast(false), &upstream("y")).unwrap();
    let operations = backward(&program);
    let names: Vec<&str> = operations.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["d_w", "d_x"]);
    assert!(operations.iter().all(|o| matches!(o.op, Op::Contraction { .. })));
    assert!(!program.containers.contains_key("d_w.bf16"), "it never passes through bf16");
    let types = ["d_w", "d_x", "d_y"].map(|name| program.containers[name].dtype);
    assert_eq!(types, [Dtype::F32, Dtype::Bf16, Dtype::Bf16]);
}

#[test]
fn a_wider_upstream_gradient_is_cast_once() {
    let program = differentiate(&cast(true), &upstream("y")).unwrap();
    let operations = backward(&program);
    let names: Vec<&str> = operations.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["d_y.bf16", "d_w", "d_x"]);
    assert!(operations[1..].iter().all(|o| o.inputs[1].data == "d_y.bf16"));
    assert_eq!(program.containers["d_y.bf16"].dtype, Dtype::Bf16);
}

/// A weight that is read twice, once through its copy: both contributions are added up in f32.
#[test]
fn contributions_through_a_cast_and_around_it_meet() {
    let mut builder = Builder::new();
    builder.input("x", "ij");
    builder.parameter("w", "ui");
    builder.pointwise("cast", ("w.bf16", "ui"), &[("w", "ui")], Scalar::input("w"));
    builder.contraction(("y", "uj"), ("w.bf16", "ui"), ("x", "ij"), 1.0);
    builder.reduce(("s", "u"), sdfg::Combine::Sum, &[("w", "ui")], Scalar::input("w"), 1.0);
    let inputs = vec![operand("a", "y", "uj"), operand("b", "s", "u")];
    let op = Op::Elementwise { label: "bias".into(), code: Scalar::input("a") + Scalar::input("b") };
    builder.operation("z", op, inputs, vec![operand("out", "z", "uj")]);
    for (name, dtype) in [("x", Dtype::Bf16), ("w", Dtype::F32), ("w.bf16", Dtype::Bf16), ("y", Dtype::Bf16), ("s", Dtype::F32)] {
        builder.program.containers[name].dtype = dtype;
    }
    builder.program.containers["z"].dtype = Dtype::Bf16;
    let program = differentiate(&builder.program, &upstream("z")).unwrap();
    let sum = backward(&program).into_iter().find(|o| o.name == "d_w").unwrap();
    assert_eq!((sum.label(), sum.inputs.len()), ("residual", 2));
    for input in &sum.inputs {
        assert_eq!(program.containers[&input.data].dtype, Dtype::F32, "{}", input.data);
    }
}
