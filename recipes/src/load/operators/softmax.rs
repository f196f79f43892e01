//! Softmax over one or several indices.

use super::{Call, Operator};
use crate::load::value::Value;

pub const ALL: &[Operator] =
    &[Operator { name: "softmax", operands: (1, 1), options: &["over"], usage: "(x, over: k)", binds: false, value: softmax }];

fn softmax(call: &mut Call) -> Option<Value> {
    let of = call.operand(0);
    let over = call.over();
    let of = of?;
    Some(Value::Softmax { over: call.within(over?, &of)?, of: Box::new(of) })
}
