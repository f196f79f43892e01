//! `out = softmax(x)` → `dx = out · (d_out − Σ d_out·out)`: reads the result, not the argument.

use super::*;

pub(in crate::library) fn differentiate(
    forward: &Operation,
    over: &[String],
    wanted: &WantedGradients,
) -> Result<Derivative, OperatorError> {
    let Some(target) = wanted.gradients.get("x") else { return Ok(Derivative::default()) };
    let (x, out) = (forward.need_input("x")?, forward.need_output("out")?);
    plain(forward, x)?;
    let inputs = vec![operand("y", &out.data, &out.subscripts), operand("dy", &wanted.upstream, &out.subscripts)];
    let op = Op::SoftmaxGrad { over: over.to_vec() };
    let made = operation(forward, op, inputs, vec![operand("dx", target, &x.subscripts)], &|_| true);
    Ok(Derivative { operations: vec![made], ..Derivative::default() })
}
