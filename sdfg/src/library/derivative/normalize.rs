//! `out = gamma · (x − mean) · rstd + beta` → one operation for `x`, one for `gamma` and `beta` together.

use super::*;

pub(in crate::library) fn differentiate(
    forward: &Operation,
    over: &[String],
    wanted: &WantedGradients,
) -> Result<Derivative, OperatorError> {
    let mut derivative = Derivative::default();
    let (x, out) = (forward.need_input("x")?, forward.need_output("out")?);
    let (mean, rstd) = (forward.need_output("mean")?, forward.need_output("rstd")?);
    let inputs = vec![
        x.like("x", &x.data),
        operand("mean", &mean.data, &mean.subscripts),
        operand("rstd", &rstd.data, &rstd.subscripts),
        operand("dy", &wanted.upstream, &out.subscripts),
    ];
    if let Some(target) = wanted.gradients.get("x") {
        plain(forward, x)?;
        let mut inputs = inputs.clone();
        inputs.extend(forward.input("gamma").cloned());
        let op = Op::NormalizeGradX { over: over.to_vec() };
        derivative.operations.push(operation(forward, op, inputs, vec![operand("dx", target, &x.subscripts)], &|_| true));
    }
    let mut weights = Vec::new();
    for (connector, gradient) in [("gamma", "dgamma"), ("beta", "dbeta")] {
        if let Some(target) = wanted.gradients.get(connector) {
            let weight = forward.need_input(connector)?;
            plain(forward, weight)?;
            weights.push(operand(gradient, target, &weight.subscripts));
        }
    }
    if !weights.is_empty() {
        derivative.operations.push(operation(forward, Op::NormalizeGradW, inputs, weights, &|_| true));
    }
    Ok(derivative)
}
