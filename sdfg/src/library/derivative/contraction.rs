//! `out = scale · Σ a·b` → `d_a = scale · Σ b·d_out`, `d_b = scale · Σ a·d_out`.
//!
//! Each sum runs over the indices that the gradient lacks. If there are none, the gradient is an element-wise product.
//! An index that only `a` has was summed alone, so `d_a` is constant along it: the sum is taken without it, into
//! `<d_a>.row`, and then spread.

use super::*;
use crate::scalar::Scalar;

pub(in crate::library) fn differentiate(
    forward: &Operation,
    program: &Sdfg,
    scale: &Scalar,
    wanted: &Wanted,
) -> Result<Derivative, OperatorError> {
    let mut derivative = Derivative::default();
    let out = forward.need_output("out")?;
    for (connector, other) in [("a", "b"), ("b", "a")] {
        let Some(target) = wanted.gradients.get(connector) else { continue };
        let (mine, other) = (forward.need_input(connector)?, forward.need_input(other)?);
        let kept = plain(forward, mine)?;
        let read: Vec<_> = other.subscripts.iter().chain(&out.subscripts).flat_map(Expr::symbols).collect();
        let alone = |index: &str| !read.iter().any(|r| r == index);
        let factors = vec![other.like("a", &other.data), operand("b", &wanted.upstream, &out.subscripts)];
        let sums = forward.indices.keys().any(|i| !kept.contains(&i.as_str()));
        let spreads = kept.iter().any(|i| alone(i));
        let product = |code: Scalar| Op::Elementwise { label: "product dX".into(), code };
        if !sums {
            let code = Scalar::input("a") * Scalar::input("b") * scale.clone();
            derivative
                .operations
                .push(operation(forward, product(code), factors, vec![operand("out", target, &mine.subscripts)], &|_| true));
        } else if !spreads {
            let op = Op::Contraction { scale: scale.clone() };
            derivative.operations.push(operation(forward, op, factors, vec![operand("out", target, &mine.subscripts)], &|_| true));
        } else {
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
                vec![operand("out", target, &mine.subscripts)],
                &|index| kept.contains(&index),
            ));
            derivative.containers.push(row);
        }
    }
    Ok(derivative)
}
