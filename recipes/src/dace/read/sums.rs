//! What a loop adds at each time: the value before it, and where conditions say that nothing is added.

use super::integer::{AffineInteger, Id, StepIndices};
use super::slot::accumulated;
use super::value::{BinaryOperator, ReductionOperator, Value};

/// An axis that a condition fixes, and where.
pub fn place(condition: &Value, axes: &[Id]) -> Option<(usize, AffineInteger)> {
    let Value::Binary(BinaryOperator::Eq, a, b) = condition else { return None };
    let whole = |v: &Value| match v {
        Value::Integer(integer) => Some(integer.clone()),
        Value::Number(n) => Some(AffineInteger::number(*n as i64)),
        _ => None,
    };
    let (a, b) = (whole(a)?, whole(b)?);
    let axis = axes.iter().position(|id| a.as_index() == Some(*id))?;
    let free = !axes.iter().any(|id| b.mentions(*id));
    free.then_some((axis, b))
}

/// Whether a value is what the container held at the same place, or at places that are fixed.
pub fn is_carried_at(value: &Value, id: Id, name: &str, axes: &[Id], fixed: &[(usize, AffineInteger)], indices: &StepIndices) -> bool {
    let same = |n: usize, i: &AffineInteger| {
        indices.sizes[axes[n]] == 1 || i.as_index() == Some(axes[n]) || fixed.iter().any(|(axis, place)| *axis == n && place == i)
    };
    match value {
        Value::Carried(own, of, at) => *own == id && of == name && at.len() == axes.len() && at.iter().enumerate().all(|(n, i)| same(n, i)),
        _ => false,
    }
}

/// What is added at each time, how, and where.
pub fn sum_of(value: &Value, time: Id) -> Option<(ReductionOperator, Value, Value)> {
    match value {
        Value::Where(condition, a, b) if **b == Value::Prior => {
            let (combine, added) = accumulated(a)?;
            if condition.any(&|v| *v == Value::Prior) {
                return None;
            }
            if condition.mentions(time) {
                let added = Value::choice((**condition).clone(), added.clone(), Value::Number(combine.identity()));
                return Some((combine, added, Value::Number(1.0)));
            }
            Some((combine, added.clone(), (**condition).clone()))
        }
        value => accumulated(value).map(|(combine, added)| (combine, added.clone(), Value::Number(1.0))),
    }
}
