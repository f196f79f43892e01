//! `out = code(inputs)` → for each input `d_out · ∂code/∂input`, summed over the indices that the input lacks.
//!
//! A derivative reads only the inputs it needs: that of a bias or a residual addition none, that of a dropout its mask,
//! which is recomputed. Where it is `d_out` itself nothing is computed: `d_out` stands for the contribution.

use super::*;
use crate::library::GATHER;
use crate::library::calculus::{pullback, unbounded};
use crate::memlet::Combine;
use crate::scalar::{Binary, Scalar, Unary};
use std::borrow::Cow;

pub(in crate::library) fn differentiate(
    forward: &Operation,
    program: &Sdfg,
    label: &str,
    code: &Scalar,
    wanted: &WantedGradients,
) -> Result<Derivative, OperatorError> {
    if label == GATHER {
        return scattered(forward, program, wanted);
    }
    let upstream = upstream(forward, wanted, code)?;
    let seed = Scalar::input(upstream.connector.as_str());
    pointwise(forward, program, label, (code, &seed, &|code| code), &[upstream], wanted)
}

/// The contribution of a gather to the gradient of its table: every row that was read gets what its reader hands back.
fn scattered(forward: &Operation, program: &Sdfg, wanted: &WantedGradients) -> Result<Derivative, OperatorError> {
    let Some(target) = wanted.gradients.get("x") else { return Ok(Derivative::default()) };
    let (table, out) = (forward.need_input("x")?, forward.need_output("out")?);
    let refuse = |why: &str| not_differentiable(forward, "x", why);
    let container = declared(forward, program, &table.data)?;
    let mut rows = None;
    let mut subscripts = Vec::new();
    for (subscript, dim) in table.subscripts.iter().zip(&container.dims) {
        match subscript {
            Expr::Sym(_) => subscripts.push(subscript.clone()),
            Expr::Element(data, at) if rows.is_none() => {
                let row = fresh_index(forward, dim);
                subscripts.push(Expr::sym(row.as_str()));
                rows = Some((row, dim.clone(), Operand { connector: "at".into(), data: data.clone(), subscripts: at.clone(), fill: None }));
            }
            Expr::Element(..) => return Err(refuse("its rows are named by two tensors; give it one dim for both, or set `grad: false`")),
            _ => return Err(refuse("it is read at a window and by a tensor at once; read the window in a step of its own")),
        }
    }
    let Some((row, dim, at)) = rows else { return Err(refuse("nothing names its rows")) };
    let mut indices = forward.indices.clone();
    indices.insert(row.clone(), dim);
    let operation = Operation {
        name: target.clone(),
        op: Op::Scatter { label: "gather dX".into(), over: vec![row], code: Scalar::input("x") },
        indices,
        inputs: vec![at, operand("x", &wanted.upstream, &out.subscripts)],
        outputs: vec![operand("out", target, &subscripts)],
        pass: crate::node::Direction::Backward,
        origin: forward.origin.clone(),
    };
    Ok(Derivative { operations: vec![operation], ..Derivative::default() })
}

/// An index that an operation lacks, called after a dim.
fn fresh_index(forward: &Operation, dim: &str) -> String {
    let taken = |name: &str| forward.indices.contains_key(name);
    if !taken(dim) {
        return dim.to_string();
    }
    (2..).map(|n| format!("{dim}{n}")).find(|name| !taken(name)).unwrap_or_default()
}

/// The gradient of `out` as an operand, under a connector that `code` does not use.
pub(super) fn upstream(forward: &Operation, wanted: &WantedGradients, code: &Scalar) -> Result<Operand, OperatorError> {
    let out = forward.need_output("out")?;
    Ok(operand(&free_connector(code, "dy"), &wanted.upstream, &out.subscripts))
}

/// `wish`, with as many underscores as it takes to differ from every connector of `code`.
pub(super) fn free_connector(code: &Scalar, wish: &str) -> String {
    let (used, mut name) = (code.inputs(), wish.to_string());
    while used.contains(&name) {
        name.push('_');
    }
    name
}

/// Contributions `Σ whole(seed · ∂code/∂input)`, where `seed` and `whole` read the operands in `seeds` besides the forward inputs, the
/// gradient first.
///
/// Where that gradient is 0, so is the contribution, also if the derivative has no value there: nothing was selected.
pub(super) fn pointwise(
    forward: &Operation,
    program: &Sdfg,
    label: &str,
    (code, seed, whole): (&Scalar, &Scalar, &dyn Fn(Scalar) -> Scalar),
    seeds: &[Operand],
    wanted: &WantedGradients,
) -> Result<Derivative, OperatorError> {
    let mut derivative = Derivative::default();
    // With the dims that the gradients so far run along.
    let mut program = Cow::Borrowed(program);
    for (connector, target) in &wanted.gradients {
        let input = forward.need_input(connector)?;
        let guarded = unbounded(code, connector);
        let mut code = pullback(code, connector, seed.clone());
        let part = wanted.parts.contains(connector);
        // A part that nothing writes would hold anything.
        if code == Scalar::Const(0.0) && !part {
            continue;
        }
        if let (true, Some(gradient)) = (guarded, seeds.first()) {
            let none = Scalar::binary(Binary::Eq, Scalar::input(gradient.connector.as_str()), Scalar::Const(0.0));
            code = Scalar::select(none, Scalar::Const(0.0), code);
        }
        let code = whole(code);
        let from_seeds = code.inputs().iter().all(|used| seeds.iter().any(|seed| seed.connector == *used));
        let split = if from_seeds { polyphase::split(forward, &program, connector, target, true)? } else { None };
        let contribution = match split.filter(polyphase::Split::has_taps) {
            Some(split) => {
                let code = split.masked(&code);
                split.gradient(|operation, container, dims, target| {
                    let mut with = program.clone().into_owned();
                    with.add_container(container.clone());
                    with.dims.extend(dims.iter().cloned());
                    gathered(operation, &with, label, code, (connector, seeds), (target, false))
                })?
            }
            None => match identity(forward, &program, input, &code, seeds)?.filter(|_| input.index_names().is_some()) {
                Some(same) => {
                    derivative.same.insert(connector.clone(), same);
                    continue;
                }
                None => gathered(forward, &program, label, code, (connector, seeds), (target, part))?,
            },
        };
        declare(&mut program, &contribution.dims);
        derivative.dims.extend(contribution.dims);
        derivative.containers.extend(contribution.containers);
        derivative.operations.extend(contribution.operations);
    }
    Ok(derivative)
}

/// The contribution `Σ code` over the points that read an element of an input.
fn gathered(
    forward: &Operation,
    program: &Sdfg,
    label: &str,
    code: Scalar,
    (connector, seeds): (&str, &[Operand]),
    (target, part): (&str, bool),
) -> Result<Derivative, OperatorError> {
    let readers = Readers::within(forward, program, forward.need_input(connector)?, part)?;
    let code = readers.code(&code, program);
    let used = code.inputs();
    let read: Vec<&Operand> = seeds.iter().chain(&forward.inputs).filter(|o| used.contains(&o.connector)).collect();
    // A gradient that is 0 where no point reads the element, and alone is handed on, needs no selection.
    let is_linear = seeds.first().is_some_and(|gradient| hands_on(&code, &gradient.connector));
    let code = if is_linear && readers.vanishes(&seeds.iter().take(1).collect::<Vec<_>>(), program) {
        code
    } else {
        readers.selected(code, program)
    };
    let inputs = read.into_iter().map(|operand| readers.seen(operand)).collect();
    let reduces = readers.sums();
    let label = if reduces && label == "bias" { "bias dW".to_string() } else { format!("{label} dX") };
    let op = match reduces {
        true => Op::Reduce { label, combine: Combine::Sum, code, scale: Scalar::Const(1.0) },
        false => Op::Elementwise { label, code },
    };
    let operations = vec![readers.operation(forward, op, inputs, target)];
    Ok(Derivative { operations, dims: readers.dims, ..Derivative::default() })
}

/// Whether code is a gradient or 0, or a multiple of it by a number or size: then it is 0 where the gradient is.
fn hands_on(code: &Scalar, gradient: &str) -> bool {
    let is_number = |code: &Scalar| matches!(code, Scalar::Const(value) if value.is_finite()) || matches!(code, Scalar::Index(_));
    match code {
        Scalar::Input(connector) => connector == gradient,
        Scalar::Unary(Unary::Neg, of) => hands_on(of, gradient),
        Scalar::Select(_, a, b) => [a, b].into_iter().all(|part| **part == Scalar::Const(0.0) || hands_on(part, gradient)),
        Scalar::Binary(Binary::Mul, a, b) => (hands_on(a, gradient) && is_number(b)) || (is_number(a) && hands_on(b, gradient)),
        Scalar::Binary(Binary::Div, a, b) => hands_on(a, gradient) && is_number(b),
        _ => false,
    }
}

/// The container that already holds the contribution: the code is one operand, element for element.
fn identity(
    forward: &Operation,
    program: &Sdfg,
    input: &Operand,
    code: &Scalar,
    seeds: &[Operand],
) -> Result<Option<String>, OperatorError> {
    let Scalar::Input(connector) = code else { return Ok(None) };
    let Some(seed) = seeds.iter().find(|s| s.connector == *connector) else { return Ok(None) };
    let out = forward.need_output("out")?;
    let (mine, theirs) = (declared(forward, program, &input.data)?, declared(forward, program, &out.data)?);
    let equal = input.subscripts == seed.subscripts && mine.dims == theirs.dims && mine.dtype == theirs.dtype;
    let whole = forward.indices.keys().all(|i| input.subscripts.iter().any(|s| s.as_sym() == Some(i)));
    Ok((equal && whole).then(|| seed.data.clone()))
}
