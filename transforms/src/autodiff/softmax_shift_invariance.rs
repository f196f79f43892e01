//! Shift invariance of softmax: where a missed maximum does no harm. An analysis that [`crate::RowStatistics`] uses.
//!
//! The derivative of a maximum compares each value with the maximum. A recomputed value is summed in another order, or its saved copy
//! was rounded. So it may equal no maximum, and the gradient through the maximum would be lost. That does no harm where this gradient is
//! zero. It is zero in a softmax, whose result does not change if one number is subtracted from a whole row.
//!
//! ```text
//! m = max s;  e = exp(s − m);  z = Σ e;  a = e / z         ∂a/∂m = 0
//! ```

use sdfg::{Binary, Combine, Op, Operation, Role, Scalar, Sdfg, scalar::Unary};
use std::collections::BTreeSet;

/// Reductions of a stream with which backward compares the stream's values, and through which a gradient may flow.
pub(crate) fn compared<'a>(
    program: &Sdfg,
    forward: &'a [Operation],
    readers: &[Operation],
    stream: &BTreeSet<String>,
    rows: &BTreeSet<&'a str>,
) -> Vec<&'a str> {
    let compares = |row: &str| {
        readers.iter().any(|reader| {
            let of = |x: &Scalar, data: &dyn Fn(&str) -> bool| x.inputs().iter().any(|c| operand(reader, c).is_some_and(data));
            let mut found = false;
            code(reader).into_iter().for_each(|code| {
                code.walk(&mut |s| {
                    if let Scalar::Binary(Binary::Eq, x, y) = s {
                        let beside = |x, y| of(x, &|d| stream.contains(d)) && of(y, &|d| d == row);
                        found |= beside(x, y) || beside(y, x);
                    }
                });
            });
            found
        })
    };
    rows.iter().copied().filter(|row| compares(row) && !is_neutral(program, forward, row)).collect()
}

/// Whether a row is only subtracted under exponentials that are divided by their own sum.
fn is_neutral(program: &Sdfg, forward: &[Operation], row: &str) -> bool {
    let hidden = |data: &str| program.containers.get(data).is_some_and(|c| c.role == Role::Transient && c.view.is_none());
    let readers = |data: &str| forward.iter().filter(|o| o.inputs.iter().any(|i| i.data == data)).collect::<Vec<_>>();
    let dims = |data: &str| program.containers.get(data).map(|c| &c.dims);
    let is_sum_of = |o: &Operation, data: &str| {
        let plain = matches!(&o.op, Op::Reduce { combine: Combine::Sum, code: Scalar::Input(c), .. } if operand(o, c) == Some(data));
        plain && out(o).is_some_and(|z| hidden(z) && dims(z) == dims(row))
    };
    let is_quotient = |o: &Operation, e: &str, sums: &[&str]| match &o.op {
        Op::Elementwise { code: Scalar::Binary(Binary::Div, x, y), .. } => {
            let is = |x: &Scalar, wanted: &dyn Fn(&str) -> bool| matches!(x, Scalar::Input(c) if operand(o, c).is_some_and(wanted));
            is(x, &|d| d == e) && is(y, &|d| sums.contains(&d))
        }
        _ => false,
    };
    let is_softmax = |o: &&Operation| {
        let Op::Elementwise { code: Scalar::Unary(Unary::Exp, of), .. } = &o.op else { return false };
        let Scalar::Binary(Binary::Sub, x, y) = of.as_ref() else { return false };
        let named = |x: &Scalar| x.inputs().iter().any(|c| operand(o, c) == Some(row));
        let subtracted = matches!(y.as_ref(), Scalar::Input(c) if operand(o, c) == Some(row)) && !named(x);
        let Some(e) = out(o).filter(|e| subtracted && hidden(e)) else { return false };
        let all = readers(e);
        let sums: Vec<&str> = all.iter().filter(|o| is_sum_of(o, e)).filter_map(|o| out(o)).collect();
        let divided = |o: &&Operation| is_sum_of(o, e) || is_quotient(o, e, &sums);
        !sums.is_empty() && all.iter().all(divided) && sums.iter().all(|z| readers(z).iter().all(|o| is_quotient(o, e, &sums)))
    };
    let all = readers(row);
    hidden(row) && !all.is_empty() && all.iter().all(is_softmax)
}

fn out(operation: &Operation) -> Option<&str> {
    operation.outputs.first().map(|o| o.data.as_str())
}

fn operand<'a>(operation: &'a Operation, connector: &str) -> Option<&'a str> {
    operation.inputs.iter().find(|i| i.connector == connector).map(|i| i.data.as_str())
}

fn code(operation: &Operation) -> Option<&Scalar> {
    match &operation.op {
        Op::Elementwise { code, .. } | Op::Reduce { code, .. } => Some(code),
        _ => None,
    }
}
