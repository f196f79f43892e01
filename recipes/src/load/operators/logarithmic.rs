//! Logarithms of sums of exponentials, and what is made of them. The largest value of a row is taken away before anything else is done
//! with it, and only differences are computed with: their values and gradients are right however far from 0 all of a row lies.

use super::{Call, Operator};
use crate::load::parser::Ast;
use crate::load::problem::Problem;
use crate::load::value::{Logarithmic, Value};

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

fn log_softmax(call: &mut Call) -> Option<Value> {
    let of = call.operand(0);
    let over = call.over();
    let of = of?;
    Some(Value::Logarithmic { kind: Logarithmic::Softmax, over: call.within(over?, &of)?, of: Box::new(of) })
}

fn cross_entropy(call: &mut Call) -> Option<Value> {
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
    reduced(call, Some(Box::new(label)))
}

/// A row's logarithm of its sum of exponentials, or with a label what that lies above the label's value.
fn reduced(call: &mut Call, label: Option<Box<Value>>) -> Option<Value> {
    let over = call.over()?;
    // An index of the surroundings means another one here, which only this reduction runs over.
    let kept: Vec<String> = call.kept.iter().cloned().chain(over.iter().map(|(_, index)| index.clone())).collect();
    let node = *call.operands.first()?;
    let of = call.context.value(node, &kept)?;
    let over = call.within(over, &of)?;
    let kind = label.map_or(Logarithmic::Sum, Logarithmic::CrossEntropy);
    Some(Value::Logarithmic { kind, over, of: Box::new(of) })
}
