//! Adding up rows by number: `d[v,i] = scatter(g[b,i], ids[b], over: b, into: v)` is the sum of `g[b,i]` over all `b` at which `ids[b]`
//! is `v`, which is what the gradient of `e[ids[b],i]` is to `e`. Rows are added in the order of the points, whatever the number of
//! threads.

use super::{Call, Operator};
use crate::load::applied::{Applied, Lower, OperatorForm, ROW, Reading, StepTarget};
use crate::load::parser::Ast;
use crate::load::problem::Problem;
use crate::load::value::StepValue;
use sdfg::{Expr, Op, Role, Scalar};

pub const ALL: &[Operator] = &[Operator {
    name: "scatter",
    operands: (2, 2),
    options: &["over", "into"],
    usage: "(x, ids, over: b, into: v): what is added up, the number of its row, and the index of the rows",
    binds: true,
    value: scatter,
}];

static SCATTER: OperatorForm = OperatorForm { name: "scatter", reduces: true, random: false, label: Some("at"), lower };

fn scatter(call: &mut Call) -> Option<StepValue> {
    let over = call.over()?;
    let into = call.option("into")?.clone();
    let Ast::Word(row) = &into.ast else { return None };
    if !call.context.header().is_index(row) {
        let problem = call.context.header().unknown_dim(row);
        call.context.problems().add(into.place, problem);
        return None;
    }
    let kept: Vec<String> = call.kept.iter().chain(over.iter().map(|(_, index)| index)).cloned().collect();
    let (rows, numbers) = (*call.operands.first()?, *call.operands.get(1)?);
    let of = call.context.value(rows, &kept)?;
    let at = call.context.value(numbers, &kept)?;
    let over = call.within(over, &of)?;
    let of_rows = of.indices(&|name| call.context.header().is_index(name));
    let place = numbers.place;
    match &at {
        StepValue::Access(reading) if reading.window.is_none() => {
            let own = call.context.header().tensors.get(&reading.data).map(|t| (t.role, t.dtype));
            if let Some((role, dtype)) = own.filter(|(role, dtype)| *role != Role::Transient && dtype.is_floating()) {
                let role = if role == Role::Input { "inputs" } else { "parameters" };
                call.context.problems().add(place, Problem::GatherByReals { tensor: reading.data.clone(), dtype, role });
                return None;
            }
            if reading.indices.iter().any(|index| !over.contains(index)) || of_rows.contains(row) {
                return None;
            }
        }
        _ => return None,
    }
    let row = StepValue::Scalar(Scalar::Index(Expr::sym(row)));
    Some(StepValue::Applied(Applied { form: &SCATTER, over, numbers: vec![], of: Box::new(of), others: vec![("at", at), (ROW, row)] }))
}

fn lower(lowering: &mut dyn Lower, applied: &Applied, target: StepTarget) -> Reading {
    let x = lowering.stored(&applied.of);
    let row = applied.classes().unwrap_or_default().to_string();
    let kept = x.indices.iter().filter(|index| !applied.over.contains(index)).cloned();
    let indices = [row.clone()].into_iter().chain(kept).collect();
    let out = lowering.output(target, "scatter", indices);
    let mut inputs: Vec<(String, Reading)> = vec![];
    if let Some(at) = applied.other("at") {
        inputs.push(("at".into(), lowering.stored(at)));
    }
    inputs.push(("x".into(), x));
    lowering.operation(Op::Scatter { label: "scatter".into(), over: vec![row], code: Scalar::input("x") }, inputs, vec![("out", &out)]);
    out
}
