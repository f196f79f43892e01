use super::*;
type E = Result<Expansion, OperatorError>;
type D = Result<Derivative, OperatorError>;

pub(super) fn flop(_: &Operation, _: &Sdfg, _: &Scalar) -> Expr {
    Expr::Int(0)
}
pub(super) fn expand(_: &Operation, _: &Sdfg, _: Combine, _: &Scalar, _: &Scalar) -> E {
    Ok(Expansion::default())
}
pub(super) fn differentiate(_: &Operation, _: &Sdfg, _: Combine, _: &Scalar, _: &Scalar, _: &Wanted) -> D {
    Ok(Derivative::default())
}
