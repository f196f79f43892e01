//! Dropout: elements that a random number says are zero, the others scaled up.

use super::{Call, Operator};
use crate::load::applied::{Applied, Lower, OperatorForm, Reading, StepTarget};
use crate::load::problem::Problem;
use crate::load::value::StepValue;
use sdfg::{Expr, Op, Scalar};

pub const ALL: &[Operator] =
    &[Operator { name: "dropout", operands: (1, 1), options: &["rate", "stream"], usage: "(x, rate: 0.1)", binds: false, value: dropout }];

/// How the streams begin that a recipe gives: their masks number the elements row by row, whatever is computed next, since dropouts of
/// the same stream have the same mask.
pub const GIVEN_STREAM: &str = "stream:";

/// Streams are whole numbers below this.
const STREAMS: f64 = 9e15;

static DROPOUT: OperatorForm = OperatorForm { name: "dropout", reduces: false, random: true, label: None, lower };

fn dropout(call: &mut Call) -> Option<StepValue> {
    let of = call.operand(0);
    let (place, rate) = call.number("rate")?;
    if !(0.0..1.0).contains(&rate) {
        call.context.problems().add(place, Problem::Rate(rate));
        return None;
    }
    let mut numbers = vec![rate];
    if call.option("stream").is_some() {
        let (place, stream) = call.number("stream")?;
        if !(0.0..STREAMS).contains(&stream) || stream.fract() != 0.0 {
            call.context.problems().add(place, Problem::Stream(stream));
            return None;
        }
        numbers.push(stream);
    }
    // What drops nothing is no operator: it would draw random numbers to no effect.
    if rate == 0.0 || !call.context.header().dropout {
        return of;
    }
    let of = Box::new(of?);
    Some(StepValue::Applied(Applied { form: &DROPOUT, over: vec![], numbers, of, others: vec![] }))
}

fn lower(lowering: &mut dyn Lower, applied: &Applied, target: StepTarget) -> Reading {
    let x = lowering.stored(&applied.of);
    let out = lowering.output(target, "dropout", x.indices.clone());
    let stream = match applied.numbers.get(1) {
        Some(given) => format!("{GIVEN_STREAM}{given}"),
        None => lowering.stream(),
    };
    let size = |index: &String| lowering.header().dims.get(index).cloned().unwrap_or(Expr::Int(1));
    let element = out.indices.iter().fold(Expr::Int(0), |element, index| element * size(index) + Expr::sym(index));
    let rate = applied.numbers.first().copied().unwrap_or_default();
    let code = Scalar::input("x") * Scalar::Keep { stream, element, rate };
    lowering.operation(Op::Elementwise { label: "dropout".into(), code }, vec![("x".into(), x)], vec![("out", &out)]);
    out
}
