//! Dims, containers, views, transitions.

use super::{Kind, Report};
use crate::data::{Container, Role};
use crate::symbol::{Expr, SymbolError};
use std::collections::BTreeSet;

pub(super) fn check(report: &mut Report) {
    let program = report.program;
    for (dim, size) in &program.dims {
        for symbol in size.symbols().difference(&report.bound.clone()) {
            report.declaration(
                Kind::Name,
                None,
                format!("the size of dim `{dim}` uses the symbol `{symbol}`, which nothing binds; give it a value in `sizes`"),
            );
        }
        match size.eval(&program.sizes) {
            Ok(value) if value < 0 => {
                report.declaration(Kind::Size, None, format!("dim `{dim}` has the negative size {value}; make it 0 or more"));
            }
            Err(error @ (SymbolError::Overflow(_) | SymbolError::DivisionByZero(_))) => {
                report.declaration(Kind::Size, None, format!("dim `{dim}` has no size: {error}"));
            }
            _ => {}
        }
    }
    for (key, container) in &program.containers {
        if *key != container.name {
            report.declaration(
                Kind::Name,
                Some(key),
                format!("the container is registered as `{key}` but named `{}`; use one name", container.name),
            );
        }
        let mut seen = BTreeSet::new();
        for dim in &container.dims {
            if !program.dims.contains_key(dim) {
                report.declaration(Kind::Name, Some(key), format!("the dim `{dim}` is not declared; add it to the dims of the program"));
            }
            if !seen.insert(dim) {
                report.declaration(
                    Kind::Name,
                    Some(key),
                    format!("the dim `{dim}` occurs twice; declare a second dim of the same size for one of them"),
                );
            }
        }
        if let Err(error @ SymbolError::Overflow(_)) = program.elements(key) {
            report.declaration(Kind::Size, Some(key), format!("the number of elements is too large: {error}"));
        }
        view(report, container);
        replaces(report, container);
    }
    for (from, to, transition) in program.transitions() {
        let condition = transition.condition.iter().flat_map(|c| [&c.left, &c.right]);
        let used: Vec<&Expr> = condition.chain(transition.assignments.iter().map(|(_, e)| e)).collect();
        for symbol in used.into_iter().flat_map(Expr::symbols).filter(|s| !report.bound.contains(s)).collect::<BTreeSet<_>>() {
            report.declaration(
                Kind::Name,
                None,
                format!("the transition {from} -> {to} uses the symbol `{symbol}`, which nothing binds; give it a value in `sizes`"),
            );
        }
    }
}

/// A parameter's value in the next step has its dims and element type, and there is one of it.
fn replaces(report: &mut Report, container: &Container) {
    let Some(of) = &container.replaces else { return };
    let (program, own) = (report.program, Some(container.name.as_str()));
    let wrong = match program.containers.get(of) {
        Some(parameter) if parameter.role == Role::Parameter => {
            let same = parameter.dims == container.dims && parameter.dtype == container.dtype;
            let others = program.containers.values().filter(|c| c.replaces.as_ref() == Some(of)).count() > 1;
            match (same, others) {
                (false, _) => format!("it replaces `{of}`, which has other dims or another element type; give both the same"),
                (true, true) => format!("it replaces `{of}`, and so does another container; let one of them do so"),
                (true, false) => return,
            }
        }
        Some(_) => format!("it replaces `{of}`, which is no parameter; only parameters are kept between steps"),
        None => format!("it replaces `{of}`, which is not declared; declare it as a parameter"),
    };
    report.declaration(Kind::Dataflow, own, wrong);
}

fn view(report: &mut Report, container: &Container) {
    let Some(view) = &container.view else { return };
    let program = report.program;
    let own = Some(container.name.as_str());
    let Some(parent) = program.containers.get(&view.of) else {
        report.declaration(Kind::View, own, format!("it views `{}`, which is not declared; declare it or drop the view", view.of));
        return;
    };
    let (mut seen, mut next) = (BTreeSet::from([&container.name]), Some(parent));
    while let Some(viewed) = next {
        if !seen.insert(&viewed.name) {
            report.declaration(Kind::View, own, "it is a view of itself, through one or more views; let one of them be stored".into());
            return;
        }
        next = viewed.view.as_ref().and_then(|v| program.containers.get(&v.of));
    }
    if container.dims.len() != parent.dims.len() || view.offsets.len() != parent.dims.len() {
        let (dims, offsets, wanted) = (container.dims.len(), view.offsets.len(), parent.dims.len());
        report.declaration(
            Kind::View,
            own,
            format!("it has {dims} dims and {offsets} offsets, but `{}` has {wanted} dims; give all of them", view.of),
        );
        return;
    }
    for ((offset, size), whole) in view.offsets.iter().zip(program.shape(container)).zip(program.shape(parent)) {
        let ends = (offset.eval(&program.sizes), size.eval(&program.sizes), whole.eval(&program.sizes));
        if let (Ok(offset), Ok(size), Ok(whole)) = ends
            && (offset < 0 || offset.checked_add(size).is_none_or(|end| end > whole))
        {
            report.declaration(
                Kind::View,
                own,
                format!("{size} elements from {offset} on leave `{}`, which has {whole}; move or shrink the view", view.of),
            );
        }
    }
}
