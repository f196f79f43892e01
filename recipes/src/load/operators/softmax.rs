//! Softmax over one or several indices.

use super::{Call, Operator};
use crate::load::applied::{Applied, Lower, OperatorForm, Reading, StepTarget};
use crate::load::value::StepValue;
use sdfg::Op;

pub const ALL: &[Operator] =
    &[Operator { name: "softmax", operands: (1, 1), options: &["over"], usage: "(x, over: k)", binds: false, value: softmax }];

static SOFTMAX: OperatorForm = OperatorForm { name: "softmax", reduces: false, random: false, label: None, lower };

fn softmax(call: &mut Call) -> Option<StepValue> {
    let of = call.operand(0);
    let over = call.over();
    let of = of?;
    let over = call.within(over?, &of)?;
    Some(StepValue::Applied(Applied { form: &SOFTMAX, over, numbers: vec![], of: Box::new(of), others: vec![] }))
}

fn lower(lowering: &mut dyn Lower, applied: &Applied, target: StepTarget) -> Reading {
    let x = lowering.stored(&applied.of);
    let out = lowering.output(target, "softmax", x.indices.clone());
    lowering.operation(Op::Softmax { over: applied.over.clone() }, vec![("x".into(), x)], vec![("out", &out)]);
    out
}
