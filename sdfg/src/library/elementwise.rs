//! Element-wise: `out = code(inputs)` at every point.
//!
//! Flop follow Table III of the paper: one per element for a bias, a scaling, a dropout (its scaling) and a residual
//! addition, none for a rectifier (a comparison). Any other code counts its arithmetic operations, a function as one.

use super::operator::{Field, FieldKind};
use super::*;
use crate::node::{Computation, Tasklet};
use crate::scope::Item;

/// `out = code(inputs)` at every point.
pub struct Elementwise<'a> {
    pub label: &'a str,
    pub code: &'a Scalar,
}

impl Elementwise<'_> {
    pub(super) const DEFINITION: OperatorSyntax = OperatorSyntax {
        keyword: "elementwise",
        shape: &[FieldKind::Label, FieldKind::Code("code")],
        build: |fields| Some(Op::Elementwise { label: fields.label()?, code: fields.code()? }),
    };
}

impl<'a> Operator<'a> for Elementwise<'a> {
    fn definition(&self) -> &'static OperatorSyntax {
        &Self::DEFINITION
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::Label(self.label.to_string()), Field::Code(self.code.clone())]
    }

    fn class(&self) -> Class {
        Class::Elementwise
    }

    fn label(&self) -> &'a str {
        self.label
    }

    fn ports(&self) -> Ports {
        Ports { outputs: &["out"], free_inputs: true, ..Ports::default() }
    }

    fn flop(&self, operation: &Operation, program: &Sdfg) -> Expr {
        Expr::Int(arithmetic(self.code)) * operation.points(program)
    }

    fn expand(&self, operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError> {
        let out = operation.need_output("out")?;
        let computation = computation(
            operation,
            &operation.name,
            self.code.clone(),
            reads_of(operation, self.code)?,
            at(&out.data, &out.subscripts, None),
        );
        Ok(Expansion {
            containers: vec![],
            scopes: vec![Scope::new(operation.name.clone(), indices(operation, program, &[]), vec![Item::Tasklet(computation)])],
        })
    }

    fn differentiate(&self, forward: &Operation, program: &Sdfg, wanted: &WantedGradients) -> Result<Derivative, OperatorError> {
        derivative::elementwise::differentiate(forward, program, self.label, self.code, wanted)
    }
}

/// Arithmetic operations in scalar code. Comparisons, selections, absolute value, maximum and minimum are free: they
/// round nothing. A dropout factor is free, the multiplication by it is not.
pub fn arithmetic(code: &Scalar) -> i64 {
    use crate::scalar::Binary;
    let own = match code {
        Scalar::Unary(op, _) => op.row().flop,
        Scalar::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Div | Binary::Pow, a, b) => {
            i64::from(!(is_constant(a) && is_constant(b)))
        }
        _ => 0,
    };
    own + code.operands().into_iter().map(arithmetic).sum::<i64>()
}

/// Whether the value is the same at every point (numbers and sizes; an index counts as constant too: it costs no flop).
fn is_constant(code: &Scalar) -> bool {
    code.inputs().is_empty() && !matches!(code, Scalar::Keep { .. })
}

/// The memlets of the operands that `code` mentions, in the operation's order.
pub(super) fn reads_of(operation: &Operation, code: &Scalar) -> Result<Vec<(String, Memlet)>, OperatorError> {
    let used = code.inputs();
    for connector in &used {
        operation.need_input(connector)?;
    }
    let is_used = |o: &&crate::node::Operand| used.contains(&o.connector);
    // What a subscript reads is read as well, before it.
    let by_value = |o: &crate::node::Operand| {
        let element = Expr::Element(o.data.clone(), o.subscripts.clone());
        operation.inputs.iter().filter(is_used).any(|reader| reader.subscripts.contains(&element))
    };
    Ok(operation.inputs.iter().filter(|o| is_used(o) || by_value(o)).map(|o| (o.connector.clone(), o.memlet())).collect())
}

/// The map indices of an operation; those named in `reduced` are reductions, all others independent.
pub(super) fn indices(operation: &Operation, program: &Sdfg, reduced: &[&str]) -> Vec<Index> {
    let kind = |name: &str| if reduced.contains(&name) { IndexKind::Reduction } else { IndexKind::Independent };
    operation.indices.iter().map(|(name, dim)| Index::over(name, dim, program.size_of(dim), kind(name))).collect()
}

/// A tasklet of an operation, with one output connector `out`.
pub(super) fn computation(operation: &Operation, name: &str, code: Scalar, reads: Vec<(String, Memlet)>, write: Memlet) -> Computation {
    Computation {
        tasklet: Tasklet {
            name: name.to_string(),
            code: vec![("out".into(), code)],
            operator: operation.name.clone(),
            origin: operation.origin.clone(),
        },
        reads,
        writes: vec![("out".into(), write)],
    }
}

/// A one-element memlet.
pub(super) fn at(data: &str, subscripts: &[Expr], wcr: Option<Combine>) -> Memlet {
    Memlet::at(data, subscripts.iter().cloned()).with_wcr(wcr)
}
