//! Dropout: elements that a random number says are zero, the others scaled up.

use super::{Call, Operator};
use crate::load::problem::Problem;
use crate::load::value::Value;

pub const ALL: &[Operator] =
    &[Operator { name: "dropout", operands: (1, 1), options: &["rate"], usage: "(x, rate: 0.1)", binds: false, value: dropout }];

fn dropout(call: &mut Call) -> Option<Value> {
    let of = call.operand(0);
    let (place, rate) = call.number("rate")?;
    if !(0.0..1.0).contains(&rate) {
        call.context.problems().add(place, Problem::Rate(rate));
        return None;
    }
    // What drops nothing is no operator: it would draw random numbers to no effect.
    if rate == 0.0 || !call.context.header().dropout {
        return of;
    }
    Some(Value::Dropout { rate, of: Box::new(of?) })
}
