//! Contraction: `out = scale · Σ a · b`, the sum over the indices that `out` lacks.
//!
//! Flop: 2 per point of the whole iteration space (a multiplication and an addition); `scale` is free, it is folded into
//! the product's α. On the BERT layer this gives 312·2³⁰ forward and backward together (Table III).

use super::operator::{Field, FieldKind};
use super::*;

/// `out = scale · Σ a · b` over the indices that `out` lacks.
pub struct Contraction<'a> {
    pub scale: &'a Scalar,
}

impl Contraction<'_> {
    pub(super) const DEFINITION: OperatorSyntax = OperatorSyntax {
        keyword: "contraction",
        shape: &[FieldKind::Code("scale")],
        build: |fields| Some(Op::Contraction { scale: fields.code()? }),
    };
}

impl<'a> Operator<'a> for Contraction<'a> {
    fn definition(&self) -> &'static OperatorSyntax {
        &Self::DEFINITION
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::Code(self.scale.clone())]
    }

    fn class(&self) -> Class {
        Class::Contraction
    }

    fn label(&self) -> &'a str {
        "contraction"
    }

    fn ports(&self) -> Ports {
        Ports { inputs: &["a", "b"], outputs: &["out"], ..Ports::default() }
    }

    fn flop(&self, operation: &Operation, program: &Sdfg) -> Expr {
        Expr::Int(2) * operation.points(program)
    }

    fn expand(&self, operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError> {
        let code = Scalar::input("a") * Scalar::input("b") * self.scale.clone();
        reduce::expand(operation, program, Combine::Sum, &code, &Scalar::Const(1.0))
    }

    fn differentiate(&self, forward: &Operation, program: &Sdfg, wanted: &WantedGradients) -> Result<Derivative, OperatorError> {
        derivative::contraction::differentiate(forward, program, self.scale, wanted)
    }
}
