//! Functions of numbers, point by point.

use super::Operator;
use sdfg::{Binary, Unary};

macro_rules! unary {
    ($name:literal, $op:ident) => {
        Operator { name: $name, operands: (1, 1), options: &[], usage: "one operand", binds: false, value: |call| call.unary(Unary::$op) }
    };
}

pub const ALL: &[Operator] = &[
    unary!("exp", Exp),
    unary!("log", Log),
    unary!("sqrt", Sqrt),
    unary!("rsqrt", Rsqrt),
    unary!("erf", Erf),
    unary!("abs", Abs),
    unary!("sin", Sin),
    unary!("cos", Cos),
    unary!("floor", Floor),
    Operator {
        name: "pow",
        operands: (2, 2),
        options: &[],
        usage: "two operands: base and exponent",
        binds: false,
        value: |call| call.pair(Binary::Pow),
    },
];
