//! Sizes and subscripts in one form, so that equal ones compare equal.

use sdfg::affine::Affine;
use sdfg::{Expr, Operation, Sdfg};
use std::collections::BTreeMap;

/// The expression with sizes added up; itself where it is no sum.
pub(super) fn canonical(e: &Expr) -> Expr {
    Affine::of(e, &|_| false).map_or_else(|| e.clone(), |form| form.expr())
}

/// `a - b` with what stands in both left out.
pub(super) fn difference(a: &Expr, b: &Expr) -> Expr {
    let forms = Affine::of(a, &|_| false).zip(Affine::of(b, &|_| false));
    forms.and_then(|(a, b)| a.plus(b, -1)).map_or_else(|| a.clone() - b.clone(), |form| canonical(&form.expr()))
}

/// Whether two sizes are equal whatever the values of their symbols.
pub(super) fn are_equal(a: &Expr, b: &Expr) -> bool {
    difference(a, b) == Expr::Int(0)
}

/// The size that an operation's index runs over.
pub(super) fn extent(operation: &Operation, index: &str, program: &Sdfg) -> Option<Expr> {
    operation.indices.get(index).map(|dim| program.size_of(dim))
}

/// Whether plain and distinct indices subscript all of a container.
pub(super) fn covers(operation: &Operation, subscripts: &[Expr], data: &str, program: &Sdfg) -> bool {
    let Some(container) = program.containers.get(data) else { return false };
    let distinct = subscripts.iter().enumerate().all(|(n, e)| !subscripts[..n].contains(e));
    let whole = |(e, size): (&Expr, Expr)| e.as_sym().and_then(|i| extent(operation, i, program)).is_some_and(|own| are_equal(&own, &size));
    distinct && subscripts.iter().zip(program.shape(container)).all(whole)
}

/// A subscript with expressions in the place of indices, as a sum; `None` where it is none.
pub(super) fn composed(subscript: &Expr, with: &BTreeMap<String, Expr>, is_index: &dyn Fn(&str) -> bool) -> Option<Expr> {
    Affine::of(&subscript.substitute(with), is_index).map(|form| form.expr())
}

/// A subscript plus an offset `by`, in elements. An index plus an offset keeps that form.
pub(super) fn moved(subscript: &Expr, by: &Expr, is_index: &dyn Fn(&str) -> bool) -> Option<Expr> {
    if *by == Expr::Int(0) {
        return Some(subscript.clone());
    }
    let form = Affine::of(subscript, is_index)?;
    match form.terms.as_slice() {
        [(index, 1)] => Some(Expr::sym(index.as_str()) + canonical(&(form.offset.clone() + by.clone()))),
        _ => Some(form.plus(Affine { terms: vec![], offset: by.clone() }, 1)?.expr()),
    }
}
