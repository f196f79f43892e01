//! Activations that are made of several functions. They keep their names through lowering, so that analysis and reports can tell them.

use super::{Call, Operator};
use crate::load::parser::Ast;
use crate::load::value::StepValue;
use sdfg::library::STOP_GRADIENT;
use sdfg::{Binary, Scalar, Unary};

macro_rules! plain {
    ($name:expr, $code:expr) => {
        Operator { name: $name, operands: (1, 1), options: &[], usage: "one operand", binds: false, value: |call| call.named($name, $code) }
    };
}

pub const ALL: &[Operator] = &[
    plain!("relu", Scalar::binary(Binary::Max, x(), Scalar::Const(0.0))),
    plain!(STOP_GRADIENT, x()),
    plain!("silu", x() * Scalar::unary(Unary::Sigmoid, x())),
    Operator {
        name: "gelu",
        operands: (1, 1),
        options: &["form"],
        usage: "(x), (x, form: erf) or (x, form: tanh)",
        binds: false,
        value: gelu,
    },
];

fn x() -> Scalar {
    Scalar::input("x")
}

fn gelu(call: &mut Call) -> Option<StepValue> {
    let form = match call.option("form").map(|node| &node.ast) {
        None => "erf",
        Some(Ast::Word(word)) => word.as_str(),
        Some(_) => return None,
    };
    let inner = match form {
        "erf" => Scalar::unary(Unary::Erf, x() * Scalar::Const(std::f64::consts::FRAC_1_SQRT_2)),
        "tanh" => {
            let cubic = Scalar::Const(0.044715) * x() * x() * x();
            let slope = (2.0 / std::f64::consts::PI).sqrt();
            Scalar::unary(Unary::Tanh, Scalar::Const(slope) * (x() + cubic))
        }
        _ => return None,
    };
    call.named("gelu", Scalar::Const(0.5) * x() * (Scalar::Const(1.0) + inner))
}
