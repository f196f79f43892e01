//! One of two values, point by point.

use super::{Call, Operator};
use crate::load::value::StepValue;
use sdfg::Scalar;

pub const ALL: &[Operator] = &[Operator {
    name: "where",
    operands: (3, 3),
    options: &[],
    usage: "three operands: condition, value if true, value if not",
    binds: false,
    value: select,
}];

fn select(call: &mut Call) -> Option<StepValue> {
    let (condition, a, b) = (call.operand(0), call.operand(1), call.operand(2));
    match (condition?, a?, b?) {
        (StepValue::Scalar(c), StepValue::Scalar(a), StepValue::Scalar(b)) => Some(StepValue::Scalar(Scalar::select(c, a, b))),
        (c, a, b) => Some(StepValue::Select(Box::new(c), Box::new(a), Box::new(b))),
    }
}
