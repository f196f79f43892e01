//! The forms in which an element-wise expression is one of the paper's operators.

use super::value::Value;
use sdfg::Binary;

/// An operator: its label, and the operands that are worth a container of their own.
pub struct Pattern<'a> {
    pub label: &'static str,
    pub main: Vec<&'a Value>,
}

/// The operator that a value is at its root. `rank` counts a value's indices.
///
/// | form | label |
/// | --- | --- |
/// | `v + c`, `v - c`, `c + v`: the tensor `c` lacks indices | `bias` |
/// | `v + w`, `v - w`, both over all indices | `residual` |
/// | `s·v`: `s` a number | `scale` |
/// | `where(c, v, s)`, `where(c, s, v)`: `s` a number | `mask` |
///
/// `v` and `w` are tensors or operators themselves. Anything else stays one general expression.
pub fn pattern<'a>(value: &'a Value, rank: &dyn Fn(&Value) -> usize) -> Option<Pattern<'a>> {
    let all = rank(value);
    let full = |v: &Value| rank(v) == all && is_operator(v, rank);
    let small = |v: &Value| matches!(v, Value::Access { .. }) && rank(v) < all;
    match value {
        Value::Binary(Binary::Add | Binary::Sub, v, c) if full(v) && small(c) => Some(Pattern { label: "bias", main: vec![v] }),
        Value::Binary(Binary::Add, c, v) if full(v) && small(c) => Some(Pattern { label: "bias", main: vec![v] }),
        Value::Binary(Binary::Add | Binary::Sub, v, w) if full(v) && full(w) => Some(Pattern { label: "residual", main: vec![v, w] }),
        Value::Product { factors, reduced, .. } if reduced.is_empty() => match factors.as_slice() {
            [only] if !only.below && full(&only.value) => Some(Pattern { label: "scale", main: vec![&only.value] }),
            _ => None,
        },
        Value::Select(_, v, s) if full(v) && matches!(**s, Value::Scalar(_)) => Some(Pattern { label: "mask", main: vec![v] }),
        Value::Select(_, s, v) if full(v) && matches!(**s, Value::Scalar(_)) => Some(Pattern { label: "mask", main: vec![v] }),
        _ => None,
    }
}

/// Whether a value is a tensor or the result of an operator with a name.
fn is_operator(value: &Value, rank: &dyn Fn(&Value) -> usize) -> bool {
    match value {
        Value::Access { .. }
        | Value::Named { .. }
        | Value::Dropout { .. }
        | Value::Reduce { .. }
        | Value::Softmax { .. }
        | Value::Normalize { .. } => true,
        Value::Product { reduced, .. } if !reduced.is_empty() => true,
        _ => pattern(value, rank).is_some(),
    }
}
