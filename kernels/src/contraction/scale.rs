//! The factor in front of a contraction: a number once the sizes are bound.

use sdfg::{Binary, Bindings, Scalar, Unary};

/// The value of a scalar that reads nothing but constants and sizes; otherwise what it reads.
pub(super) fn value(code: &Scalar, sizes: &Bindings) -> Result<f64, String> {
    let value = |s: &Scalar| value(s, sizes);
    let truth = |t: bool| if t { 1.0 } else { 0.0 };
    Ok(match code {
        Scalar::Const(c) => *c,
        Scalar::Input(name) => return Err(format!("the connector `{name}`")),
        Scalar::Keep { .. } => return Err("a dropout mask".to_string()),
        Scalar::Index(e) => e.eval(sizes).map_err(|error| error.to_string())? as f64,
        Scalar::Select(c, a, b) => {
            if value(c)? != 0.0 {
                value(a)?
            } else {
                value(b)?
            }
        }
        Scalar::Unary(op, a) => {
            let a = value(a)?;
            match op {
                Unary::Neg => -a,
                Unary::Exp => a.exp(),
                Unary::Log => a.ln(),
                Unary::Sqrt => a.sqrt(),
                Unary::Rsqrt => 1.0 / a.sqrt(),
                Unary::Tanh => a.tanh(),
                Unary::Sigmoid => 1.0 / (1.0 + (-a).exp()),
                Unary::Abs => a.abs(),
                Unary::Sin => a.sin(),
                Unary::Cos => a.cos(),
                Unary::Floor => a.floor(),
                Unary::Erf => return Err("erf, which has no place in a constant".to_string()),
            }
        }
        Scalar::Binary(op, a, b) => {
            let (a, b) = (value(a)?, value(b)?);
            match op {
                Binary::Add => a + b,
                Binary::Sub => a - b,
                Binary::Mul => a * b,
                Binary::Div => a / b,
                Binary::Max => a.max(b),
                Binary::Min => a.min(b),
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
    })
}
