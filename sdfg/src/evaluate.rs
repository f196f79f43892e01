//! What scalar operators compute, in f64: for the interpreter and for constants.

use crate::scalar::{Binary, Scalar, maximum, minimum};
use crate::symbol::{Bindings, SymbolError};

/// Why a scalar has no value before the program runs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotConstant {
    #[error("the connector `{0}`")]
    Connector(String),
    #[error("the dropout mask of `{0}`")]
    Mask(String),
    #[error(transparent)]
    Size(#[from] SymbolError),
}

impl Binary {
    pub fn of(self, a: f64, b: f64) -> f64 {
        let truth = |t: bool| if t { 1.0 } else { 0.0 };
        match self {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            Binary::Max => maximum(a, b),
            Binary::Min => minimum(a, b),
            Binary::Pow => a.powf(b),
            Binary::Lt => truth(a < b),
            Binary::Le => truth(a <= b),
            Binary::Gt => truth(a > b),
            Binary::Ge => truth(a >= b),
            Binary::Eq => truth(a == b),
            Binary::Ne => truth(a != b),
            Binary::And => truth(a != 0.0 && b != 0.0),
            Binary::Or => truth(a != 0.0 || b != 0.0),
        }
    }
}

impl Scalar {
    /// The value of a scalar that reads nothing but constants and sizes.
    ///
    /// # Errors
    /// What else it reads; a size without a value.
    pub fn constant(&self, sizes: &Bindings) -> Result<f64, NotConstant> {
        Ok(match self {
            Scalar::Const(value) => *value,
            Scalar::Input(connector) => return Err(NotConstant::Connector(connector.clone())),
            Scalar::Keep { stream, .. } | Scalar::Kept { stream, .. } => return Err(NotConstant::Mask(stream.clone())),
            Scalar::Index(e) => e.eval(sizes)? as f64,
            Scalar::Unary(op, a) => op.of(a.constant(sizes)?),
            Scalar::Binary(op, a, b) => op.of(a.constant(sizes)?, b.constant(sizes)?),
            Scalar::Select(condition, a, b) => {
                let chosen = if condition.constant(sizes)? != 0.0 { a } else { b };
                chosen.constant(sizes)?
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::parse_scalar;

    #[test]
    fn constants_have_a_value_and_others_say_what_they_read() {
        let sizes = Bindings::from([("P".to_string(), 64)]);
        let value = |text: &str| parse_scalar(text).map_err(|e| e.to_string())?.constant(&sizes).map_err(|e| e.to_string());
        assert_eq!(value("1.0/sqrt([P])"), Ok(0.125));
        assert_eq!(value("where([P] > 32.0, 2.0, 3.0) + erf(0.0)"), Ok(2.0));
        assert_eq!(value("x*2.0"), Err("the connector `x`".into()));
        assert_eq!(value("2.0*keep(alpha, 0, 0.1)"), Err("the dropout mask of `alpha`".into()));
        assert!(value("1.0/[Q]").is_err_and(|why| why.contains('Q')));
    }
}
