//! One of two values, point by point.

use super::{Call, Operator};
use crate::load::value::Value;
use sdfg::Scalar;

pub const ALL: &[Operator] = &[Operator {
    name: "where",
    operands: (3, 3),
    options: &[],
    usage: "three operands: condition, value if true, value if not",
    binds: false,
    value: select,
}];

fn select(call: &mut Call) -> Option<Value> {
    let (condition, a, b) = (call.operand(0), call.operand(1), call.operand(2));
    match (condition?, a?, b?) {
        (Value::Scalar(c), Value::Scalar(a), Value::Scalar(b)) => Some(Value::Scalar(Scalar::select(c, a, b))),
        (c, a, b) => Some(Value::Select(Box::new(c), Box::new(a), Box::new(b))),
    }
}
