//! Sums, means and extrema over indices; an extremum of two values is one point by point.

use super::{Call, Operator};
use crate::load::value::{ProductFactor, StepValue};
use sdfg::{Binary, Combine, Scalar};

const USAGE: &str = "(x, over: i) or (x, over: [i, j])";

pub const ALL: &[Operator] = &[
    Operator { name: "sum", operands: (1, 1), options: &["over"], usage: USAGE, binds: true, value: |call| reduce(call, Combine::Sum) },
    Operator { name: "mean", operands: (1, 1), options: &["over"], usage: USAGE, binds: true, value: |call| reduce(call, Combine::Sum) },
    extremum("max", |call| extreme(call, Binary::Max, Combine::Max)),
    extremum("min", |call| extreme(call, Binary::Min, Combine::Min)),
];

const fn extremum(name: &'static str, value: fn(&mut Call) -> Option<StepValue>) -> Operator {
    Operator { name, operands: (1, 2), options: &["over"], usage: "two operands, or (x, over: i)", binds: true, value }
}

fn extreme(call: &mut Call, of_two: Binary, combine: Combine) -> Option<StepValue> {
    if call.operands.len() == 2 && call.option("over").is_none() {
        return call.pair(of_two);
    }
    reduce(call, combine)
}

fn reduce(call: &mut Call, combine: Combine) -> Option<StepValue> {
    let over = call.over()?;
    // An index of the surroundings means another one here, which only this reduction runs over.
    let kept: Vec<String> = call.kept.iter().cloned().chain(over.iter().map(|(_, index)| index.clone())).collect();
    let node = *call.operands.first()?;
    let of = call.context.value(node, &kept)?;
    let over = call.within(over, &of)?;
    let count = over.iter().filter_map(|index| call.context.header().dims.get(index)).cloned();
    let scale = match call.name {
        "mean" => Scalar::Const(1.0) / Scalar::Index(sdfg::Expr::product(count)),
        _ => Scalar::Const(1.0),
    };
    Some(match of {
        StepValue::Product { scale: inner, factors, mut reduced } if combine == Combine::Sum && contracts(call, &factors, &over) => {
            reduced.extend(over);
            StepValue::product(inner * scale, factors, reduced)
        }
        of => StepValue::Reduce { label: call.name, combine, scale, over, of: Box::new(of) },
    })
}

/// Whether a sum over a product is a contraction: two tensors, both with all summed indices, each with one of its own.
fn contracts(call: &Call, factors: &[ProductFactor], over: &[String]) -> bool {
    let [ProductFactor { value: a, below: false }, ProductFactor { value: b, below: false }] = factors else { return false };
    let is_index = |name: &str| call.context.header().is_index(name);
    let (left, right) = (a.indices(&is_index), b.indices(&is_index));
    !matches!(a, StepValue::Scalar(_))
        && !matches!(b, StepValue::Scalar(_))
        && over.iter().all(|index| left.contains(index) && right.contains(index))
        && left.iter().any(|index| !right.contains(index))
        && right.iter().any(|index| !left.contains(index))
}
