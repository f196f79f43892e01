//! `out = scale · ⊕ code(inputs)`.
//!
//! A sum spreads `scale · d_out` over its terms. A maximum or minimum hands it to the terms that equal it; terms that
//! tie share it equally, so that the contributions of a group always add up to `scale · d_out`; all of a group whose extremum is NaN get
//! NaN. Which terms those are is
//! found by comparing with the very values that were compared forward: code other than a plain input is computed into a
//! container first (`<name>.term`), and a scaled result is not used, the extremum is taken again (`<name>.extremum`).
//!
//! A window's extremum hands it to the first term that equals it, see [`first_of_window`].
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
    wanted: &WantedGradients,
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
    wanted: &WantedGradients,
) -> Result<Derivative, OperatorError> {
    let out = forward.need_output("out")?;
    let stem = wanted.gradients.values().next().cloned().unwrap_or_else(|| forward.name.clone());
    let mut before = Derivative::default();
    let connector = |wish: &str| free_connector(code, wish);
    let (term, top, ties) = (connector("term"), connector("top"), connector("ties"));
    let windowed = forward.inputs.iter().any(|input| input.index_names().is_none());
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
    if windowed {
        return first_of_window(forward, program, (label, code), (&seed, upstream), (term, top, hit), before, wanted);
    }
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
    before.dims.extend(after.dims);
    before.containers.extend(after.containers);
    before.operations.extend(after.operations);
    Ok(before)
}

/// The derivative of an extremum over windows: the first term of a window that equals its extremum, in the order in which the window's
/// indices count, gets all of the gradient, as in PyTorch's pooling. Where it stands is found first, into `<name>.first`.
fn first_of_window(
    forward: &Operation,
    program: &Sdfg,
    (label, code): (&str, &Scalar),
    (seed, upstream): (&Scalar, Operand),
    (term, top, hit): (Operand, Operand, Scalar),
    mut before: Derivative,
    wanted: &WantedGradients,
) -> Result<Derivative, OperatorError> {
    let out = forward.need_output("out")?;
    let stem = wanted.gradients.values().next().cloned().unwrap_or_else(|| forward.name.clone());
    let value = Scalar::input(term.connector.as_str());
    let number = |index: &str| forward.indices.get(index).map(|dim| program.size_of(dim)).unwrap_or(Expr::Int(1));
    let place = forward.reduced().into_iter().fold(Expr::Int(0), |place, index| place * number(index) + Expr::sym(index));
    let place = Scalar::Index(place);
    // A term that is NaN makes the extremum NaN, and is what it comes from.
    let is_nan = Scalar::binary(Binary::Ne, value.clone(), value);
    let mut hit = Scalar::binary(Binary::Or, hit, is_nan);
    if term.fill.is_some() {
        let container = declared(forward, program, &term.data)?;
        for (at, dim) in term.subscripts.iter().zip(&container.dims).filter(|(at, _)| at.as_sym().is_none()) {
            let (at, zero) = (Scalar::Index(at.clone()), Scalar::Const(0.0));
            let inside = Scalar::binary(Binary::Lt, at.clone(), Scalar::Index(program.size_of(dim)));
            hit = Scalar::binary(Binary::And, hit, Scalar::binary(Binary::And, Scalar::binary(Binary::Ge, at, zero), inside));
        }
    }
    let mut first = transient(forward, program, format!("{stem}.first"), &plain(forward, out)?, out)?;
    first.dtype = first.dtype.accumulator();
    let none = Scalar::Const(f64::INFINITY);
    let op = Op::Reduce {
        label: format!("{label} first"),
        combine: Combine::Min,
        code: Scalar::select(hit, place.clone(), none),
        scale: Scalar::Const(1.0),
    };
    before.operations.push(operation(forward, op, vec![term, top], vec![operand("out", &first.name, &out.subscripts)], &|_| true));
    let taken = free_connector(code, "first");
    let is_first = Scalar::binary(Binary::Eq, Scalar::input(taken.as_str()), place);
    let whole = |code: Scalar| Scalar::select(is_first.clone(), code, Scalar::Const(0.0));
    let mut with = program.clone();
    with.add_container(first.clone());
    let seeds = [upstream, operand(&taken, &first.name, &out.subscripts)];
    before.containers.push(first);
    let after = pointwise(forward, &with, label, (code, seed, &whole), &seeds, wanted)?;
    before.dims.extend(after.dims);
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
