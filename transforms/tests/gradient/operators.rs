//! Every operator, by every input.

use crate::builder::{Builder, operand};
use crate::difference::check;
use sdfg::{Binary, Combine, Expr, Op, Role, Scalar, Unary};

fn x() -> Scalar {
    Scalar::input("x")
}

fn z() -> Scalar {
    Scalar::input("z")
}

/// `y[bj] = code(x[bj], z[bj])`.
fn check_code(code: Scalar) {
    let mut builder = Builder::new();
    builder.input("x", "bj");
    let mut inputs = vec![("x", "bj")];
    if code.inputs().contains("z") {
        builder.parameter("z", "bj");
        inputs.push(("z", "bj"));
    }
    builder.program.name = format!("{code:?}");
    builder.pointwise("code", ("y", "bj"), &inputs, code);
    check(&builder.program, "y", 5);
}

#[test]
fn unary_functions() {
    // Arguments of logarithm and roots are kept in [1, 5).
    let positive = || x() * x() + Scalar::Const(1.0);
    for op in Unary::ALL {
        if op.row().domain.0 > 0.0 {
            check_code(Scalar::unary(*op, positive()));
        } else {
            check_code(Scalar::unary(*op, x()));
            check_code(Scalar::unary(*op, x() * x() * Scalar::Const(0.5)));
        }
    }
}

#[test]
fn binary_functions() {
    let away = || z() * z() + Scalar::Const(1.0);
    for op in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min, Binary::Lt, Binary::Ge, Binary::And] {
        check_code(Scalar::binary(op, x(), z()));
        check_code(Scalar::binary(op, z() * Scalar::Const(3.0), x() * z()));
    }
    check_code(x() / away());
    check_code(away() / (x() * x() + Scalar::Const(1.0)));
    check_code(Scalar::binary(Binary::Pow, away(), x()));
    check_code(Scalar::binary(Binary::Pow, x(), Scalar::Const(3.0)));
    check_code(Scalar::binary(Binary::Pow, x(), Scalar::Const(2.0)));
    for bound in [Binary::Max, Binary::Min] {
        check_code(Scalar::binary(bound, x(), Scalar::Const(0.0)));
        check_code(Scalar::binary(bound, Scalar::Const(0.5), x()));
    }
}

#[test]
fn selections_and_composites() {
    check_code(Scalar::select(Scalar::binary(Binary::Lt, x(), z()), x() * z(), Scalar::unary(Unary::Exp, z())));
    let causal = Scalar::binary(Binary::Le, Scalar::Index(Expr::sym("j")), Scalar::Index(Expr::sym("b")));
    check_code(Scalar::select(causal, x(), Scalar::Const(-3.0)));
    let cube = x() * x() * x() * Scalar::Const(0.044_715);
    let inner = Scalar::unary(Unary::Tanh, (x() + cube) * Scalar::Const((2.0 / std::f64::consts::PI).sqrt()));
    check_code(Scalar::Const(0.5) * x() * (Scalar::Const(1.0) + inner));
}

#[test]
fn ties_of_two_varying_values_are_halved() {
    use sdfg::library::calculus::derivative;
    let code = Scalar::binary(Binary::Max, x(), z());
    let both = derivative(&code, "x") + derivative(&code, "z");
    let mut builder = Builder::new();
    builder.input("x", "b");
    builder.input("z", "b");
    builder.pointwise("both", ("y", "b"), &[("x", "b"), ("z", "b")], both);
    let same = ndarray::arr1(&[1.5, -2.0]).into_dyn();
    let given = [("x".to_string(), same.clone()), ("z".to_string(), same)].into();
    let results = sdfg::interpret::interpret(&builder.program, &given, &crate::difference::RUN).unwrap();
    assert!(results["y"].iter().all(|v| *v == 1.0), "{}", results["y"]);
}

#[test]
fn broadcasts_and_transpositions() {
    for (x_dims, z_dims) in [("bj", "j"), ("bj", "b"), ("jb", "bj"), ("j", "b"), ("bj", "")] {
        for code in [x() + z(), x() * z() + z()] {
            let mut builder = Builder::new();
            builder.program.name = format!("x[{x_dims}], z[{z_dims}]: {code:?}");
            builder.input("x", x_dims);
            builder.parameter("z", z_dims);
            builder.pointwise("bias", ("y", "bj"), &[("x", x_dims), ("z", z_dims)], code);
            check(&builder.program, "y", 6);
        }
    }
}

/// The dims are those of the result, the elements are not: the gradient must not be taken for the same tensor.
#[test]
fn a_square_transposition() {
    let mut builder = Builder::new();
    builder.input("x", "jk");
    builder.parameter("z", "jk");
    builder.add(("y", "jk"), ("x", "kj"), ("z", "jk"));
    check(&builder.program, "y", 6);
}

#[test]
fn dropout_has_the_same_mask_in_both_passes() {
    let mut builder = Builder::new();
    builder.input("x", "ubi");
    builder.dropout(("y", "ubi"), "x", 0.4);
    check(&builder.program, "y", 7);
}

#[test]
fn contractions() {
    for (a, b, out) in [
        ("ui", "ij", "uj"),
        ("ui", "ij", "ju"),
        ("biu", "bij", "buj"),
        ("phi", "ibj", "phbj"),
        ("phbk", "phbj", "hbjk"),
        // Outer product, dot product, and sums of one factor alone (j of the first, then j of both, then all of it).
        ("u", "j", "uj"),
        ("u", "u", ""),
        ("uj", "u", "u"),
        ("uj", "uij", "u"),
        ("ujb", "ui", "u"),
        ("jb", "u", "u"),
    ] {
        let mut builder = Builder::new();
        builder.program.name = format!("{a},{b}->{out}");
        builder.input("a", a);
        builder.parameter("b", b);
        builder.contraction(("y", out), ("a", a), ("b", b), 0.75);
        check(&builder.program, "y", 8);
    }
}

#[test]
fn a_contraction_of_a_tensor_with_itself() {
    let mut builder = Builder::new();
    builder.input("x", "ij");
    builder.contraction(("y", "jk"), ("x", "ij"), ("x", "ik"), 0.5);
    check(&builder.program, "y", 9);
}

#[test]
fn reductions() {
    for combine in [Combine::Sum, Combine::Max, Combine::Min] {
        for scale in [1.0, 0.3] {
            for (z_dims, code) in [("", x()), ("uj", x() * z()), ("j", x() * z() + z())] {
                for out in ["u", "j", "", "uj"] {
                    let mut builder = Builder::new();
                    builder.program.name = format!("{scale}·{combine} {code:?} → [{out}]");
                    builder.input("x", "uj");
                    let mut inputs = vec![("x", "uj")];
                    if code.inputs().contains("z") {
                        builder.parameter("z", z_dims);
                        inputs.push(("z", z_dims));
                    }
                    builder.reduce(("y", out), combine, &inputs, code.clone(), scale);
                    check(&builder.program, "y", 10);
                }
            }
        }
    }
}

#[test]
fn terms_that_tie_for_the_maximum_share_its_gradient() {
    let mut builder = Builder::new();
    builder.input("x", "bj");
    builder.reduce(("y", "b"), Combine::Max, &[("x", "bj")], x(), 1.0);
    let options = transforms::differentiate::Options { upstream: vec!["y".into()], ..Default::default() };
    let program = transforms::differentiate::differentiate(&builder.program, &options).unwrap();
    let given = [
        ("x".to_string(), ndarray::arr2(&[[2.0, 1.0, 2.0], [0.0, 3.0, -1.0]]).into_dyn()),
        ("d_y".to_string(), ndarray::arr1(&[4.0, 5.0]).into_dyn()),
    ];
    let results = sdfg::interpret::interpret(&program, &given.into(), &crate::difference::RUN).unwrap();
    assert_eq!(results["d_x"], ndarray::arr2(&[[2.0, 0.0, 2.0], [0.0, 5.0, 0.0]]).into_dyn());
}

#[test]
fn softmax_over_one_dim_and_several() {
    for over in ["u", "j", "ju", "bju"] {
        let mut builder = Builder::new();
        builder.program.name = format!("softmax over {over}");
        builder.input("x", "bju");
        builder.softmax(("y", "bju"), "x", over);
        check(&builder.program, "y", 12);
    }
}

#[test]
fn normalizations_with_and_without_scale_and_shift() {
    for over in ["u", "b", "bj", "ju"] {
        for (gamma, beta) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut builder = Builder::new();
            builder.program.name = format!("norm over {over}, gamma {gamma}, beta {beta}");
            builder.input("x", "bju");
            for (name, given) in [("gamma", gamma), ("beta", beta)] {
                if given {
                    builder.parameter(name, over);
                }
            }
            builder.norm(("y", "bju"), "x", over, gamma.then_some("gamma"), beta.then_some("beta"));
            check(&builder.program, "y", 13);
        }
    }
}

#[test]
fn a_diagonal_hands_its_gradient_to_the_diagonal() {
    let mut builder = Builder::new();
    builder.input("x", "jk");
    builder.declare("y", "j", Role::Output);
    let square = Op::Elementwise { label: "diagonal".into(), code: x() * x() };
    builder.operation("y", square, vec![operand("x", "x", "jj")], vec![operand("out", "y", "j")]);
    check(&builder.program, "y", 14);
}

#[test]
fn what_has_no_derivative_says_so() {
    let mut quotient = Builder::new();
    quotient.input("x", "jk");
    quotient.declare("y", "j", Role::Output);
    let remainder = Op::Elementwise { label: "remainder".into(), code: x() };
    quotient.operation("y", remainder, vec![operand("x", "x", "jj")], vec![operand("out", "y", "j")]);
    let state = quotient.program.states().next().expect("a state").0;
    quotient
        .program
        .map_operations(state, |_, mut operation| {
            operation.inputs[0].subscripts = vec!["j % 2".parse().expect("a subscript"), sdfg::Expr::Int(0)];
            vec![operation]
        })
        .expect("operations");
    let mut product = Builder::new();
    product.input("x", "jk");
    product.reduce(("y", "j"), Combine::Product, &[("x", "jk")], x(), 1.0);
    for (builder, part) in [(quotient, "is no sum of multiples of indices"), (product, "reduction by `product` is not defined")] {
        let options = transforms::differentiate::Options { upstream: vec!["y".into()], ..Default::default() };
        let error = transforms::differentiate::differentiate(&builder.program, &options).unwrap_err().to_string();
        assert!(error.contains("`y`") && error.contains("`x`") && error.contains(part), "{error}");
    }
}
