//! `out = scale · ⊕ code(inputs)`.
//!
//! A sum spreads `scale · d_out` over its terms. A maximum or minimum hands it to the terms that equal it; terms that
//! tie share it equally, so that the contributions of a group always add up to `scale · d_out`; all of a group whose extremum is NaN get
//! NaN. Which terms those are is
//! found by comparing with the very values that were compared forward: code other than a plain input is computed into a
//! container first (`<name>.term`), and a scaled result is not used, the extremum is taken again (`<name>.extremum`).
//!
//! Where terms or extrema are stored in less than they are computed in, one may be rounded and the other still on chip: then terms
//! within the rounding of the extremum count as equal to it. Stored values next to each other are further apart.

use super::elementwise::{free_connector, pointwise, upstream};
use super::*;
use crate::data::Dtype;
use crate::memlet::Combine;
use crate::scalar::{Binary, Scalar, Unary};

pub(in crate::library) fn differentiate(
    forward: &Operation,
    program: &Sdfg,
    (label, combine): (&str, Combine),
    code: &Scalar,
    scale: &Scalar,
    wanted: &Wanted,
) -> Result<Derivative, OperatorError> {
    let upstream = upstream(forward, wanted, code)?;
    let seed = Scalar::input(upstream.connector.as_str()) * scale.clone();
    match combine {
        Combine::Sum => pointwise(forward, program, label, (code, &seed, &|code| code), &[upstream], wanted),
        Combine::Max | Combine::Min => extremum(forward, program, (label, combine), code, scale, (seed, upstream), wanted),
        Combine::Product | Combine::OnlineSoftmax | Combine::Moments => {
            let why = format!("the derivative of a reduction by `{combine}` is not defined; write it with sums, exp and log");
            Err(not_differentiable(forward, wanted.gradients.keys().next().map_or("out", String::as_str), &why))
        }
    }
}

fn extremum(
    forward: &Operation,
    program: &Sdfg,
    (label, combine): (&str, Combine),
    code: &Scalar,
    scale: &Scalar,
    (seed, upstream): (Scalar, Operand),
    wanted: &Wanted,
) -> Result<Derivative, OperatorError> {
    let out = forward.need_output("out")?;
    let stem = wanted.gradients.values().next().cloned().unwrap_or_else(|| forward.name.clone());
    let mut before = Derivative::default();
    let connector = |wish: &str| free_connector(code, wish);
    let (term, top, ties) = (connector("term"), connector("top"), connector("ties"));
    // The value of every term: an input itself, or a container over the whole space.
    let all: Vec<&str> = forward.indices.keys().map(String::as_str).collect();
    let term = match code {
        Scalar::Input(name) => {
            let x = forward.need_input(name)?;
            x.like(&term, &x.data)
        }
        _ => {
            let made = transient(forward, program, format!("{stem}.term"), &all, out)?;
            let subscripts: Vec<Expr> = all.iter().map(|i| Expr::sym(*i)).collect();
            let op = Op::Elementwise { label: format!("{label} term"), code: code.clone() };
            let inputs = forward.inputs.iter().filter(|o| code.inputs().contains(&o.connector)).cloned().collect();
            before.operations.push(operation(forward, op, inputs, vec![operand("out", &made.name, &subscripts)], &|_| true));
            let operand = operand(&term, &made.name, &subscripts);
            before.containers.push(made);
            operand
        }
    };
    let row = |suffix: &str| {
        let kept = plain(forward, out)?;
        transient(forward, program, format!("{stem}.{suffix}"), &kept, out)
    };
    let reduction = |what: &str, combine: Combine, code: Scalar| Op::Reduce {
        label: format!("{label} {what}"),
        combine,
        code,
        scale: Scalar::Const(1.0),
    };
    let value = Scalar::input(term.connector.as_str());
    let top = if *scale == Scalar::Const(1.0) && matches!(code, Scalar::Input(_)) {
        operand(&top, &out.data, &out.subscripts)
    } else {
        let made = row("extremum")?;
        let op = reduction("extremum", combine, value.clone());
        before.operations.push(operation(forward, op, vec![term.clone()], vec![operand("out", &made.name, &out.subscripts)], &|_| true));
        let operand = operand(&top, &made.name, &out.subscripts);
        before.containers.push(made);
        operand
    };
    let rounding =
        |o: &Operand| program.containers.get(&o.data).or_else(|| before.containers.iter().find(|c| c.name == o.data)).map(|c| c.dtype);
    let stored = [&term, &top].into_iter().filter_map(rounding).filter(|dtype| *dtype != dtype.accumulator());
    let roundoff = stored.map(Dtype::roundoff).fold(0.0, f64::max);
    let hit = equal(value, Scalar::input(top.connector.as_str()), combine, roundoff);
    let count = row("ties")?;
    before.operations.push(operation(
        forward,
        reduction("ties", Combine::Sum, hit.clone()),
        vec![term.clone(), top.clone()],
        vec![operand("out", &count.name, &out.subscripts)],
        &|_| true,
    ));
    let ties = operand(&ties, &count.name, &out.subscripts);
    before.containers.push(count);
    // Divided at the end: a group whose extremum is NaN has no ties, and 0/0 is NaN for all of it.
    let share = Scalar::input(ties.connector.as_str());
    let whole = |code: Scalar| Scalar::select(hit.clone(), code, Scalar::Const(0.0)) / share.clone();
    let after = pointwise(forward, program, label, (code, &seed, &whole), &[upstream, term, top, ties], wanted)?;
    before.containers.extend(after.containers);
    before.operations.extend(after.operations);
    Ok(before)
}

/// Whether a term is the extremum, or would be rounded to it.
fn equal(term: Scalar, top: Scalar, combine: Combine, roundoff: f64) -> Scalar {
    let same = Scalar::binary(Binary::Eq, term.clone(), top.clone());
    if roundoff == 0.0 {
        return same;
    }
    let width = Scalar::Const(roundoff) * Scalar::unary(Unary::Abs, top.clone());
    let near = match combine {
        Combine::Min => Scalar::binary(Binary::Lt, term, top + width),
        _ => Scalar::binary(Binary::Gt, term, top - width),
    };
    Scalar::binary(Binary::Max, same, near)
}
