//! Reduction: `out = scale · ⊕ code(inputs)` over the indices that `out` lacks.
//!
//! Flop: the code's arithmetic plus one (the combine) per point; the scale, once per result, is not counted.

use super::elementwise::{arithmetic, at, computation, indices, reads_of};
use super::*;
use crate::scope::Item;

pub(super) fn flop(operation: &Operation, program: &Sdfg, code: &Scalar) -> Expr {
    Expr::Int(1 + arithmetic(code)) * operation.points(program)
}

/// A sum folds its scale into every term: one map, and no second pass over the result. Any other combine scales the
/// result in a map of its own, through the container `<name>.raw`.
pub(super) fn expand(
    operation: &Operation,
    program: &Sdfg,
    combine: Combine,
    code: &Scalar,
    scale: &Scalar,
) -> Result<Expansion, OperatorError> {
    let out = operation.need_output("out")?;
    let reduced = operation.reduced();
    let map = indices(operation, program, &reduced);
    let fold = combine == Combine::Sum || *scale == Scalar::Const(1.0);
    let term = if fold { code.clone() * scale.clone() } else { code.clone() };
    let mut expansion = Expansion::default();
    let target = if fold {
        out.data.clone()
    } else {
        let declared = container(operation, program, &out.data)?;
        let raw = program.fresh_name(&format!("{}.raw", operation.name));
        expansion.containers.push(Container {
            name: raw.clone(),
            role: crate::data::Role::Transient,
            lifetime: crate::data::Lifetime::Program,
            grad: false,
            view: None,
            ..declared.clone()
        });
        raw
    };
    let write = at(&target, &out.subscripts, Some(combine));
    let reads = reads_of(operation, &term)?;
    expansion.scopes.push(Scope::new(
        operation.name.clone(),
        map.clone(),
        vec![Item::Tasklet(computation(operation, &operation.name, term, reads, write))],
    ));
    if !fold {
        let kept = map.into_iter().filter(|i| !reduced.contains(&i.name.as_str())).collect();
        let reads = vec![("raw".to_string(), at(&target, &out.subscripts, None))];
        let write = at(&out.data, &out.subscripts, None);
        let name = format!("{}.scale", operation.name);
        expansion.scopes.push(Scope::new(
            name.clone(),
            kept,
            vec![Item::Tasklet(computation(operation, &name, Scalar::input("raw") * scale.clone(), reads, write))],
        ));
    }
    Ok(expansion)
}

pub(super) fn container<'a>(operation: &Operation, program: &'a Sdfg, data: &str) -> Result<&'a Container, OperatorError> {
    program
        .containers
        .get(data)
        .ok_or_else(|| OperatorError::UnknownContainer { operation: operation.name.clone(), data: data.to_string() })
}
