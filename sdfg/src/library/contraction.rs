//! Contraction: `out = scale · Σ a · b`, the sum over the indices that `out` lacks.
//!
//! Flop: 2 per point of the whole iteration space (a multiplication and an addition); `scale` is free, it is folded into
//! the product's α. On the BERT layer this gives 312·2³⁰ forward and backward together (Table III).

use super::*;

pub(super) fn flop(operation: &Operation, program: &Sdfg) -> Expr {
    Expr::Int(2) * operation.points(program)
}

pub(super) fn expand(operation: &Operation, program: &Sdfg, scale: &Scalar) -> Result<Expansion, OperatorError> {
    let code = Scalar::input("a") * Scalar::input("b") * scale.clone();
    reduce::expand(operation, program, Combine::Sum, &code, &Scalar::Const(1.0))
}
