//! The forms in which an element-wise expression is one of the paper's operators.

use super::value::StepValue;
use sdfg::Binary;

/// An operator: its label, and the operands that are worth a container of their own.
pub struct OperatorPattern<'a> {
    pub label: &'static str,
    pub main: Vec<&'a StepValue>,
}

/// The operator that a value is at its root. `is_index` tells indices from size symbols.
///
/// | form | label |
/// | --- | --- |
/// | `v + c`, `v - c`, `c + v`: the tensor `c` lacks indices | `bias` |
/// | `v + w`, `v - w`, both over all indices | `residual` |
/// | `s·v`: `s` a number | `scale` |
/// | `where(c, v, s)`, `where(c, s, v)`: `s` a number | `mask` |
///
/// `v` and `w` are tensors or operators themselves. Anything else stays one general expression.
pub fn pattern<'a>(value: &'a StepValue, is_index: &dyn Fn(&str) -> bool) -> Option<OperatorPattern<'a>> {
    form(value, is_index).pattern
}

/// The properties of a value that the forms above depend on. Each part of a value is visited once: visiting operands in every arm
/// would double the time with every term of a sum.
struct Form<'a> {
    indices: Vec<String>,
    /// It is a tensor, or the result of an operator with a name.
    is_operator: bool,
    pattern: Option<OperatorPattern<'a>>,
}

fn form<'a>(value: &'a StepValue, is_index: &dyn Fn(&str) -> bool) -> Form<'a> {
    match value {
        StepValue::Binary(op @ (Binary::Add | Binary::Sub), a, b) => {
            let (left, right) = (form(a, is_index), form(b, is_index));
            let indices = union([&left.indices, &right.indices]);
            let full = |form: &Form| form.indices.len() == indices.len() && form.is_operator;
            let small = |value: &StepValue, form: &Form| matches!(value, StepValue::Access(_)) && form.indices.len() < indices.len();
            let pattern = if full(&left) && small(b, &right) {
                Some(OperatorPattern { label: "bias", main: vec![&**a] })
            } else if *op == Binary::Add && full(&right) && small(a, &left) {
                Some(OperatorPattern { label: "bias", main: vec![&**b] })
            } else if full(&left) && full(&right) {
                Some(OperatorPattern { label: "residual", main: vec![&**a, &**b] })
            } else {
                None
            };
            Form { is_operator: pattern.is_some(), indices, pattern }
        }
        StepValue::Product { factors, reduced, .. } if reduced.is_empty() => match factors.as_slice() {
            [only] if !only.below => {
                let factor = form(&only.value, is_index);
                let pattern = factor.is_operator.then(|| OperatorPattern { label: "scale", main: vec![&only.value] });
                Form { is_operator: pattern.is_some(), indices: factor.indices, pattern }
            }
            _ => Form { indices: value.indices(is_index), is_operator: false, pattern: None },
        },
        StepValue::Select(condition, a, b) => {
            let (left, right) = (form(a, is_index), form(b, is_index));
            let indices = union([&condition.indices(is_index), &left.indices, &right.indices]);
            let full = |form: &Form| form.indices.len() == indices.len() && form.is_operator;
            let is_number = |value: &StepValue| matches!(value, StepValue::Scalar(_));
            let kept = match (full(&left) && is_number(b), full(&right) && is_number(a)) {
                (true, _) => Some(&**a),
                (_, true) => Some(&**b),
                _ => None,
            };
            let pattern = kept.map(|kept| OperatorPattern { label: "mask", main: vec![kept] });
            Form { is_operator: pattern.is_some(), indices, pattern }
        }
        StepValue::Access(_) | StepValue::Named { .. } | StepValue::Reduce { .. } | StepValue::Applied(_) | StepValue::Product { .. } => {
            Form { indices: value.indices(is_index), is_operator: true, pattern: None }
        }
        StepValue::Scalar(_) | StepValue::Unary(..) | StepValue::Binary(..) => {
            Form { indices: value.indices(is_index), is_operator: false, pattern: None }
        }
    }
}

fn union<const N: usize>(parts: [&Vec<String>; N]) -> Vec<String> {
    let mut all: Vec<String> = vec![];
    for index in parts.into_iter().flatten() {
        if !all.contains(index) {
            all.push(index.clone());
        }
    }
    all
}
