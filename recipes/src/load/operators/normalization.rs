//! Normalizations: one operation under five names, which differ in the indices that people give them.

use super::{Call, Operator};
use crate::load::applied::{Applied, Lower, OperatorForm, Reading, StepTarget};
use crate::load::value::StepValue;
use sdfg::Op;

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

static NORMALIZE: OperatorForm = OperatorForm { name: "normalize", reduces: false, random: false, label: None, lower };

fn normalize(call: &mut Call) -> Option<StepValue> {
    let of = call.operand(0);
    let over = call.over();
    let eps = call.epsilon();
    let (scale, shift) = (call.weight("scale"), call.weight("shift"));
    let (of, eps, scale, shift) = (of?, eps?, scale?, shift?);
    let over = call.within(over?, &of)?;
    call.along(&[&scale, &shift], &of)?;
    let others = [("gamma", scale), ("beta", shift)].into_iter().filter_map(|(connector, weight)| Some((connector, weight?))).collect();
    Some(StepValue::Applied(Applied { form: &NORMALIZE, over, numbers: vec![eps], of: Box::new(of), others }))
}

fn lower(lowering: &mut dyn Lower, applied: &Applied, target: StepTarget) -> Reading {
    let x = lowering.stored(&applied.of);
    let indices = x.indices.clone();
    let mut inputs = vec![("x".to_string(), x)];
    for (connector, weight) in &applied.others {
        inputs.push((connector.to_string(), lowering.stored(weight)));
    }
    let out = lowering.output(target, "norm", indices);
    let kept: Vec<String> = out.indices.iter().filter(|index| !applied.over.contains(index)).cloned().collect();
    let mean = lowering.output(StepTarget::Transient, "mean", kept.clone());
    let rstd = lowering.output(StepTarget::Transient, "rstd", kept);
    let op = Op::Normalize { over: applied.over.clone(), eps: applied.numbers.first().copied().unwrap_or_default() };
    lowering.operation(op, inputs, vec![("out", &out), ("mean", &mean), ("rstd", &rstd)]);
    out
}
