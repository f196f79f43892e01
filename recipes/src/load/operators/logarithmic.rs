//! Logarithms of sums of exponentials: `logsumexp`, `log_softmax` and `cross_entropy`. Each computes with differences from the row's
//! largest value alone, so values and gradients are right however far from 0 the row lies.

use super::{Call, Operator};
use crate::load::applied::{Applied, Lower, OperatorForm, Reading, StepTarget};
use crate::load::parser::Ast;
use crate::load::problem::Problem;
use crate::load::value::StepValue;
use sdfg::library::SHIFT;
use sdfg::{Binary, Combine, Expr, Scalar, Unary};

pub const ALL: &[Operator] = &[
    Operator {
        name: "logsumexp",
        operands: (1, 1),
        options: &["over"],
        usage: "(x, over: i) or (x, over: [i, j])",
        binds: true,
        value: |call| reduced(call, None),
    },
    Operator { name: "log_softmax", operands: (1, 1), options: &["over"], usage: "(x, over: k)", binds: false, value: log_softmax },
    Operator {
        name: "cross_entropy",
        operands: (2, 2),
        options: &["over"],
        usage: "(score, label, over: c): the scores of all classes along c, and the number of the right one",
        binds: true,
        value: cross_entropy,
    },
];

static LOGSUMEXP: OperatorForm = OperatorForm { name: "logsumexp", reduces: true, random: false, label: None, lower };
static LOG_SOFTMAX: OperatorForm = OperatorForm { name: "log_softmax", reduces: false, random: false, label: None, lower };
static CROSS_ENTROPY: OperatorForm = OperatorForm { name: "cross_entropy", reduces: true, random: false, label: Some("label"), lower };

fn log_softmax(call: &mut Call) -> Option<StepValue> {
    let of = call.operand(0);
    let over = call.over();
    let of = of?;
    let over = call.within(over?, &of)?;
    Some(StepValue::Applied(Applied { form: &LOG_SOFTMAX, over, numbers: vec![], of: Box::new(of), others: vec![] }))
}

fn cross_entropy(call: &mut Call) -> Option<StepValue> {
    if matches!(call.option("over").map(|node| &node.ast), Some(Ast::List(indices)) if indices.len() != 1) {
        return None;
    }
    let over = call.over()?;
    let indices = call.context.occurring(call.operands.get(1)?);
    if let Some((place, index)) = over.iter().find(|(_, index)| indices.contains(index)) {
        call.context.problems().add(*place, Problem::LabelOverClasses(index.clone()));
        return None;
    }
    let label = call.operand(1)?;
    reduced(call, Some(label))
}

/// A row's logarithm of its sum of exponentials, or with a label what that lies above the label's value.
fn reduced(call: &mut Call, label: Option<StepValue>) -> Option<StepValue> {
    let over = call.over()?;
    // An index of the surroundings means another one here, which only this reduction runs over.
    let kept: Vec<String> = call.kept.iter().cloned().chain(over.iter().map(|(_, index)| index.clone())).collect();
    let node = *call.operands.first()?;
    let of = call.context.value(node, &kept)?;
    let over = call.within(over, &of)?;
    let form = if label.is_some() { &CROSS_ENTROPY } else { &LOGSUMEXP };
    let others = label.into_iter().map(|label| ("label", label)).collect();
    Some(StepValue::Applied(Applied { form, over, numbers: vec![], of: Box::new(of), others }))
}

fn lower(lowering: &mut dyn Lower, applied: &Applied, target: StepTarget) -> Reading {
    let mut read = |value: &StepValue| StepValue::Access(lowering.stored(value));
    let (x, label) = (read(&applied.of), applied.other("label").map(&mut read));
    let classes = applied.over.first().and_then(|index| lowering.header().dims.get(index)).cloned().unwrap_or(Expr::Int(0));
    lowering.computed(&formula(applied, classes, x, label), target)
}

/// What a logarithm of a sum of exponentials is made of, `x` being a tensor: with `m = max x` over the row (0 where that is infinite, and
/// a difference with it no number) and `z = Σ exp(x − m)`,
///
/// ```text
/// logsumexp      m + log z
/// log_softmax    (x − m) − log z
/// cross_entropy  log z − (x − m)[label]
/// ```
///
/// Only `x` has a number as large as `m` subtracted from it. The results do not depend on `m`, so no gradient goes through it.
///
/// Classes are numbered from 0. A label that is not the number of one has probability 0, and the cross entropy is infinity: an ordinary
/// number would pass for a loss.
fn formula(applied: &Applied, classes: Expr, x: StepValue, label: Option<StepValue>) -> StepValue {
    let over = &applied.over;
    let reduce = |label: &'static str, combine: Combine, of: StepValue| StepValue::Reduce {
        label,
        combine,
        scale: Scalar::Const(1.0),
        over: over.clone(),
        of: Box::new(of),
    };
    let number = |value: f64| Box::new(StepValue::Scalar(Scalar::Const(value)));
    let pair = |op: Binary, a: StepValue, b: StepValue| StepValue::Binary(op, Box::new(a), Box::new(b));
    let most = reduce(SHIFT, Combine::Max, x.clone());
    let finite = StepValue::Binary(Binary::Lt, Box::new(StepValue::Unary(Unary::Abs, Box::new(most.clone()))), number(f64::INFINITY));
    let most = StepValue::Select(Box::new(finite), Box::new(most), number(0.0));
    let shifted = pair(Binary::Sub, x, most.clone());
    let total = reduce("sum", Combine::Sum, StepValue::Unary(Unary::Exp, Box::new(shifted.clone())));
    let log = StepValue::Unary(Unary::Log, Box::new(total));
    match (label, over.as_slice()) {
        (Some(label), [class]) => {
            let is_label = pair(Binary::Eq, label.clone(), StepValue::Scalar(Scalar::Index(Expr::sym(class))));
            let picked = StepValue::Select(Box::new(is_label), Box::new(shifted), number(0.0));
            let loss = pair(Binary::Sub, log, reduce("sum", Combine::Sum, picked));
            let below = pair(Binary::Lt, label.clone(), StepValue::Scalar(Scalar::Index(classes)));
            let whole = pair(Binary::Eq, label.clone(), StepValue::Unary(Unary::Floor, Box::new(label.clone())));
            let exists = pair(Binary::And, pair(Binary::Ge, label, *number(0.0)), pair(Binary::And, below, whole));
            StepValue::Select(Box::new(exists), Box::new(loss), number(f64::INFINITY))
        }
        _ if applied.form.reduces => pair(Binary::Add, most, log),
        _ => pair(Binary::Sub, shifted, log),
    }
}
