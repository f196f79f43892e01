//! Normalization by the root of the mean square (Zhang and Sennrich, "Root Mean Square Layer Normalization"): `x · g / √(mean x² + eps)`.
//! No mean is subtracted, so that a row needs one sum in place of two.

use super::{Call, Operator};
use crate::load::applied::{Applied, Lower, OperatorForm, Reading, StepTarget};
use crate::load::value::{ProductFactor, StepValue};
use sdfg::{Binary, Combine, Expr, Scalar, Unary};

pub const ALL: &[Operator] = &[Operator {
    name: "rmsnorm",
    operands: (1, 1),
    options: &["over", "scale", "eps"],
    usage: "(x, over: i) or (x, over: i, scale: g[i], eps: 1e-5)",
    binds: false,
    value,
}];

static RMSNORM: OperatorForm = OperatorForm { name: "rmsnorm", reduces: false, random: false, label: None, lower };

fn value(call: &mut Call) -> Option<StepValue> {
    let of = call.operand(0);
    let over = call.over();
    let (eps, scale) = (call.epsilon(), call.weight("scale"));
    let (of, eps, scale) = (of?, eps?, scale?);
    let over = call.within(over?, &of)?;
    call.along(&[&scale], &of)?;
    let others = scale.into_iter().map(|scale| ("scale", scale)).collect();
    Some(StepValue::Applied(Applied { form: &RMSNORM, over, numbers: vec![eps], of: Box::new(of), others }))
}

fn lower(lowering: &mut dyn Lower, applied: &Applied, target: StepTarget) -> Reading {
    let x = StepValue::Access(lowering.stored(&applied.of));
    let count = Expr::product(applied.over.iter().filter_map(|index| lowering.header().dims.get(index)).cloned());
    let eps = Scalar::Const(applied.numbers.first().copied().unwrap_or_default());
    let square = StepValue::Reduce {
        label: "mean",
        combine: Combine::Sum,
        scale: Scalar::Const(1.0) / Scalar::Index(count),
        over: applied.over.clone(),
        of: Box::new(StepValue::binary(Binary::Pow, x.clone(), StepValue::Scalar(Scalar::Const(2.0)))),
    };
    let root = StepValue::unary(Unary::Rsqrt, StepValue::binary(Binary::Add, square, StepValue::Scalar(eps)));
    let factors = [x, root].into_iter().chain(applied.other("scale").cloned());
    let factors = factors.map(|value| ProductFactor { value, below: false }).collect();
    lowering.computed(&StepValue::product(Scalar::Const(1.0), factors, vec![]), target)
}
