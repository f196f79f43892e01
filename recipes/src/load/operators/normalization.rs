//! Normalizations: one operation under five names, which differ in the indices that people give them.

use super::{Call, Operator};
use crate::load::names::nearest;
use crate::load::problem::Problem;
use crate::load::value::Value;

macro_rules! norm {
    ($name:literal) => {
        Operator {
            name: $name,
            operands: (1, 1),
            options: &["over", "scale", "shift", "eps"],
            usage: "(x, over: i) or (x, over: i, scale: g[i], shift: b[i], eps: 1e-5)",
            binds: false,
            value: normalize,
        }
    };
}

pub const ALL: &[Operator] = &[norm!("layernorm"), norm!("batchnorm"), norm!("instancenorm"), norm!("groupnorm"), norm!("normalize")];

fn normalize(call: &mut Call) -> Option<Value> {
    let of = call.operand(0);
    let over = call.over();
    let eps = match call.option("eps") {
        Some(_) => call.number("eps").and_then(|(place, eps)| {
            // Not finite, or below 0: there are rows without a square root then.
            let usable = (0.0..f64::INFINITY).contains(&eps);
            if !usable {
                call.context.problems().add(place, Problem::Eps(eps));
            }
            usable.then_some(eps)
        }),
        None => Some(1e-5),
    };
    let mut weight = |name: &str| match call.option(name).cloned() {
        Some(node) => call.context.value(&node, call.kept).map(|v| Some(Box::new(v))),
        None => Some(None),
    };
    let (scale, shift) = (weight("scale"), weight("shift"));
    let (of, eps, scale, shift) = (of?, eps?, scale?, shift?);
    let over = call.within(over?, &of)?;
    let indices = of.indices(&|name| call.context.header().is_index(name));
    for weight in [&scale, &shift].into_iter().flatten() {
        for index in weight.indices(&|name| call.context.header().is_index(name)) {
            if !indices.contains(&index) {
                let hint = nearest(&index, indices.iter().map(String::as_str));
                call.context.problems().add(call.place, Problem::NotInOperand { operator: call.name.into(), index, hint });
                return None;
            }
        }
    }
    Some(Value::Normalize { over, eps, of: Box::new(of), scale, shift })
}
