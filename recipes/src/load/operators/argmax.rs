//! The place of the largest or smallest value along one index: the first one, counted from 0.
//!
//! `argmax(x, over: c)` is `min(where(x == max(x, over: c), c, inf), over: c)`: infinity where a row holds NaN, which is at no place. It
//! has the gradient 0, as all that only compares has.

use super::{Call, Operator};
use crate::load::applied::{Applied, Form, Lower, Reading, Target};
use crate::load::value::Value;
use sdfg::{Binary, Combine, Expr, Scalar};

const fn operator(name: &'static str, value: fn(&mut Call) -> Option<Value>) -> Operator {
    Operator { name, operands: (1, 1), options: &["over"], usage: "(x, over: c), with one index", binds: true, value }
}

pub const ALL: &[Operator] = &[operator("argmax", |call| place(call, &ARGMAX)), operator("argmin", |call| place(call, &ARGMIN))];

static ARGMAX: Form = Form {
    name: "argmax",
    reduces: true,
    random: false,
    label: None,
    lower: |lowering, applied, target| lower(lowering, applied, target, ("max", Combine::Max)),
};

static ARGMIN: Form = Form {
    name: "argmin",
    reduces: true,
    random: false,
    label: None,
    lower: |lowering, applied, target| lower(lowering, applied, target, ("min", Combine::Min)),
};

fn place(call: &mut Call, form: &'static Form) -> Option<Value> {
    let over = call.over()?;
    let [(_, index)] = over.as_slice() else { return None };
    let kept: Vec<String> = call.kept.iter().chain([index]).cloned().collect();
    let node = *call.operands.first()?;
    let of = call.context.value(node, &kept)?;
    let over = call.within(over, &of)?;
    Some(Value::Applied(Applied { form, over, numbers: vec![], of: Box::new(of), others: vec![] }))
}

fn lower(lowering: &mut dyn Lower, applied: &Applied, target: Target, (label, extremum): (&'static str, Combine)) -> Reading {
    let x = Value::Access(lowering.stored(&applied.of));
    let reduce = |label: &'static str, combine: Combine, of: Value| Value::Reduce {
        label,
        combine,
        scale: Scalar::Const(1.0),
        over: applied.over.clone(),
        of: Box::new(of),
    };
    let at_extremum = Value::Binary(Binary::Eq, Box::new(x.clone()), Box::new(reduce(label, extremum, x)));
    let index = applied.over.first().map_or(Scalar::Const(0.0), |index| Scalar::Index(Expr::sym(index)));
    let elsewhere = Value::Scalar(Scalar::Const(f64::INFINITY));
    let places = Value::Select(Box::new(at_extremum), Box::new(Value::Scalar(index)), Box::new(elsewhere));
    lowering.computed(&reduce(applied.form.name, Combine::Min, places), target)
}
