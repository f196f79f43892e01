//! `out = scale · Σ a·b` → `d_a = scale · Σ b·d_out`, `d_b = scale · Σ a·d_out`.
//!
//! Each sum runs over the indices that the gradient lacks. If there are none, the gradient is an element-wise product.
//! An index that only `a` has was summed alone, so `d_a` is constant along it: the sum is taken without it, into
//! `<d_a>.row`, and then spread.
//!
//! The gradient of a window gathers: `d_x[h] = Σ d_y[h - r + 1 else 0] · k[r]` for `y[p] = Σ k[r] · x[p + r - 1]`, again a contraction. A
//! window of a larger stride is first taken apart ([`super::polyphase`]). Where neither factor is 0 outside of the points that read an
//! element, the sum selects them.

use super::*;
use crate::memlet::Combine;
use crate::scalar::{Binary, Scalar};
use std::borrow::Cow;

pub(in crate::library) fn differentiate(
    forward: &Operation,
    program: &Sdfg,
    scale: &Scalar,
    wanted: &WantedGradients,
) -> Result<Derivative, OperatorError> {
    let mut derivative = Derivative::default();
    // With the dims that the gradients so far run along.
    let mut program = Cow::Borrowed(program);
    for (connector, other) in [("a", "b"), ("b", "a")] {
        let Some(target) = wanted.gradients.get(connector) else { continue };
        let picked = picked(forward, &program, scale, (connector, other), (&wanted.upstream, target))?;
        if let Some(contribution) = picked {
            derivative.containers.extend(contribution.containers);
            declare(&mut program, &contribution.dims);
            derivative.dims.extend(contribution.dims);
            derivative.operations.extend(contribution.operations);
            continue;
        }
        let contribution = match polyphase::split(forward, &program, connector, target, false)? {
            Some(split) => split.gradient(|operation, container, dims, target| {
                // The parts are containers of a program that has them declared.
                let mut with = program.clone().into_owned();
                with.add_container(container.clone());
                with.dims.extend(dims.iter().cloned());
                factor(operation, &with, scale, (connector, other), (&wanted.upstream, target))
            })?,
            None => factor(forward, &program, scale, (connector, other), (&wanted.upstream, target))?,
        };
        declare(&mut program, &contribution.dims);
        derivative.containers.extend(contribution.containers);
        derivative.dims.extend(contribution.dims);
        derivative.operations.extend(contribution.operations);
    }
    Ok(derivative)
}

/// The gradient of a factor that is read at a constant place, such as the last time: it is computed for that place, into `<d_a>.row`, and
/// then spread. `None` of other factors.
fn picked(
    forward: &Operation,
    program: &Sdfg,
    scale: &Scalar,
    (connector, other): (&str, &str),
    (upstream, target): (&str, &str),
) -> Result<Option<Derivative>, OperatorError> {
    let mine = forward.need_input(connector)?;
    let container = declared(forward, program, &mine.data)?;
    let is_constant = |s: &Expr| !s.symbols().iter().any(|symbol| forward.indices.contains_key(symbol));
    let kept: Vec<usize> = (0..mine.subscripts.len()).filter(|n| !is_constant(&mine.subscripts[*n])).collect();
    if kept.len() == mine.subscripts.len() || mine.fill.is_some() {
        return Ok(None);
    }
    let row = Container {
        dims: kept.iter().map(|n| container.dims[*n].clone()).collect(),
        origin: forward.origin.clone(),
        ..container.like(program.fresh_name(&format!("{target}.row")))
    };
    let mut with = program.clone();
    with.add_container(row.clone());
    let mut one = forward.clone();
    for input in one.inputs.iter_mut().filter(|input| input.connector == connector) {
        input.data = row.name.clone();
        input.subscripts = kept.iter().map(|n| mine.subscripts[*n].clone()).collect();
    }
    let mut derivative = match polyphase::split(&one, &with, connector, &row.name, false)? {
        Some(_) => return Ok(None),
        None => factor(&one, &with, scale, (connector, other), (upstream, &row.name))?,
    };
    let own: Vec<Expr> = container.dims.iter().map(|dim| Expr::sym(dim.as_str())).collect();
    let here = (0..own.len()).filter(|n| !kept.contains(n)).map(|n| {
        let (index, place) = (Scalar::Index(own[n].clone()), Scalar::Index(mine.subscripts[n].clone()));
        Scalar::binary(Binary::Eq, index, place)
    });
    let here = here.reduce(|a, b| Scalar::binary(Binary::And, a, b)).unwrap_or(Scalar::Const(1.0));
    let subscripts: Vec<Expr> = kept.iter().map(|n| own[*n].clone()).collect();
    derivative.operations.push(Operation {
        name: target.to_string(),
        op: Op::Elementwise { label: "spread".into(), code: Scalar::select(here, Scalar::input("row"), Scalar::Const(0.0)) },
        indices: container.dims.iter().map(|dim| (dim.clone(), dim.clone())).collect(),
        inputs: vec![operand("row", &row.name, &subscripts)],
        outputs: vec![operand("out", target, &own)],
        pass: Direction::Backward,
        origin: forward.origin.clone(),
    });
    derivative.containers.push(row);
    Ok(Some(derivative))
}

/// The gradient of one factor.
fn factor(
    forward: &Operation,
    program: &Sdfg,
    scale: &Scalar,
    (connector, other): (&str, &str),
    (upstream, target): (&str, &str),
) -> Result<Derivative, OperatorError> {
    let mut derivative = Derivative::default();
    let (mine, other, out) = (forward.need_input(connector)?, forward.need_input(other)?, forward.need_output("out")?);
    let (other, given) = (other.like("a", &other.data), operand("b", upstream, &out.subscripts));
    let readers = Readers::of(forward, program, mine)?;
    let factors = vec![readers.seen(&other), readers.seen(&given)];
    let read: Vec<_> = factors.iter().flat_map(|factor| &factor.subscripts).flat_map(Expr::symbols).collect();
    let alone = |index: &str| !read.iter().any(|r| r == index);
    let product = |code: Scalar| Op::Elementwise { label: "product dX".into(), code };
    let spreads = readers.subscripts.iter().filter_map(Expr::as_sym).any(alone);
    let whole = || Scalar::input("a") * Scalar::input("b") * scale.clone();
    if !readers.vanishes(&[&given, &other], program) || (spreads && !readers.is_plain()) {
        let code = readers.selected(Scalar::input("a") * Scalar::input("b"), program);
        let op = match readers.sums() {
            true => Op::Reduce { label: "product dX".into(), combine: Combine::Sum, code, scale: scale.clone() },
            false => product(readers.selected(whole(), program)),
        };
        derivative.operations.push(readers.operation(forward, op, factors, target));
    } else if !readers.sums() {
        derivative.operations.push(readers.operation(forward, product(whole()), factors, target));
    } else if !spreads {
        derivative.operations.push(readers.operation(forward, Op::Contraction { scale: scale.clone() }, factors, target));
    } else {
        let kept: Vec<&str> = readers.subscripts.iter().filter_map(Expr::as_sym).collect();
        let core: Vec<&str> = kept.iter().copied().filter(|i| !alone(i)).collect();
        let row = transient(forward, program, format!("{target}.row"), &core, mine)?;
        let subscripts: Vec<Expr> = core.iter().map(|i| Expr::sym(*i)).collect();
        let op = Op::Contraction { scale: scale.clone() };
        let keep = |index: &str| !(kept.contains(&index) && alone(index));
        derivative.operations.push(operation(forward, op, factors, vec![operand("out", &row.name, &subscripts)], &keep));
        derivative.operations.push(operation(
            forward,
            product(Scalar::input("row")),
            vec![operand("row", &row.name, &subscripts)],
            vec![operand("out", target, &readers.subscripts)],
            &|index| kept.contains(&index),
        ));
        derivative.containers.push(row);
    }
    derivative.dims.extend(readers.dims);
    Ok(derivative)
}
