//! Functions of numbers, point by point: those of the table in `sdfg`, and powers.

use super::{Call, Operator};
use crate::load::value::StepValue;
use sdfg::functions::InRecipes;
use sdfg::{Binary, Scalar, Unary};
use std::sync::LazyLock;

/// An operator for each function of the table that recipes call by its name.
pub static TABLE: LazyLock<Vec<Operator>> = LazyLock::new(|| {
    let called = Unary::ALL.iter().map(|op| op.row()).filter(|row| row.in_recipes != InRecipes::Absent);
    let operator = |name| Operator { name, operands: (1, 1), options: &[], usage: "one operand", binds: false, value: function };
    called.map(|row| operator(row.name)).collect()
});

pub const ALL: &[Operator] = &[Operator {
    name: "pow",
    operands: (2, 2),
    options: &[],
    usage: "two operands: base and exponent",
    binds: false,
    value: |call| call.pair(Binary::Pow),
}];

fn function(call: &mut Call) -> Option<StepValue> {
    let op = Unary::named(call.name)?;
    match op.row().in_recipes {
        InRecipes::Absent => None,
        InRecipes::Inline => call.unary(op),
        InRecipes::Named => call.named(op.row().name, Scalar::unary(op, Scalar::input("x"))),
    }
}
