//! The place of the largest or smallest value along one index: the first one, counted from 0.
//!
//! `argmax(x, over: c)` is `min(where(x == max(x, over: c), c, inf), over: c)`: infinity where a row holds NaN, which is at no place. It
//! has the gradient 0, as all that only compares has.

use super::{Call, Operator};
use crate::load::applied::{Applied, Lower, OperatorForm, Reading, StepTarget};
use crate::load::value::StepValue;
use sdfg::{Binary, Combine, Expr, Scalar};

const fn operator(name: &'static str, value: fn(&mut Call) -> Option<StepValue>) -> Operator {
    Operator { name, operands: (1, 1), options: &["over"], usage: "(x, over: c), with one index", binds: true, value }
}

pub const ALL: &[Operator] = &[operator("argmax", |call| place(call, &ARGMAX)), operator("argmin", |call| place(call, &ARGMIN))];

static ARGMAX: OperatorForm = OperatorForm {
    name: "argmax",
    reduces: true,
    random: false,
    label: None,
    lower: |lowering, applied, target| lower(lowering, applied, target, ("max", Combine::Max)),
};

static ARGMIN: OperatorForm = OperatorForm {
    name: "argmin",
    reduces: true,
    random: false,
    label: None,
    lower: |lowering, applied, target| lower(lowering, applied, target, ("min", Combine::Min)),
};

fn place(call: &mut Call, form: &'static OperatorForm) -> Option<StepValue> {
    let over = call.over()?;
    let [(_, index)] = over.as_slice() else { return None };
    let kept: Vec<String> = call.kept.iter().chain([index]).cloned().collect();
    let node = *call.operands.first()?;
    let of = call.context.value(node, &kept)?;
    let over = call.within(over, &of)?;
    Some(StepValue::Applied(Applied { form, over, numbers: vec![], of: Box::new(of), others: vec![] }))
}

fn lower(lowering: &mut dyn Lower, applied: &Applied, target: StepTarget, (label, extremum): (&'static str, Combine)) -> Reading {
    let x = StepValue::Access(lowering.stored(&applied.of));
    let reduce = |label: &'static str, combine: Combine, of: StepValue| StepValue::Reduce {
        label,
        combine,
        scale: Scalar::Const(1.0),
        over: applied.over.clone(),
        of: Box::new(of),
    };
    let at_extremum = StepValue::Binary(Binary::Eq, Box::new(x.clone()), Box::new(reduce(label, extremum, x)));
    let index = applied.over.first().map_or(Scalar::Const(0.0), |index| Scalar::Index(Expr::sym(index)));
    let elsewhere = StepValue::Scalar(Scalar::Const(f64::INFINITY));
    let places = StepValue::Select(Box::new(at_extremum), Box::new(StepValue::Scalar(index)), Box::new(elsewhere));
    lowering.computed(&reduce(applied.form.name, Combine::Min, places), target)
}
