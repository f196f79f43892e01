//! Scalar code and symbolic integers as the Python of tasklets and the expressions of subsets.

use super::DaceError;
use sdfg::{Binary, Expr, Scalar, Unary};

/// The text of a symbolic integer; `symbol` says what symbols and indices are called, `element` what stands for an element of a container.
pub fn integer(e: &Expr, symbol: &dyn Fn(&str) -> String, element: &dyn Fn(&Expr) -> Option<String>) -> Result<String, DaceError> {
    let two = |a: &Expr, b: &Expr| Ok::<_, DaceError>((integer(a, symbol, element)?, integer(b, symbol, element)?));
    Ok(match e {
        Expr::Int(value) if *value < 0 => format!("({value})"),
        Expr::Int(value) => value.to_string(),
        Expr::Sym(name) => symbol(name),
        Expr::Add(a, b) => two(a, b).map(|(a, b)| format!("({a} + {b})"))?,
        Expr::Sub(a, b) => two(a, b).map(|(a, b)| format!("({a} - {b})"))?,
        Expr::Mul(a, b) => two(a, b).map(|(a, b)| format!("({a} * {b})"))?,
        Expr::FloorDiv(a, b) => two(a, b).map(|(a, b)| format!("int_floor({a}, {b})"))?,
        Expr::Mod(a, b) => two(a, b).map(|(a, b)| format!("({a} % {b})"))?,
        Expr::Min(a, b) => two(a, b).map(|(a, b)| format!("Min({a}, {b})"))?,
        Expr::Max(a, b) => two(a, b).map(|(a, b)| format!("Max({a}, {b})"))?,
        Expr::Element(data, _) => element(e).ok_or_else(|| DaceError::Unsupported {
            name: data.clone(),
            what: "its elements are subscripts of a range, not of one element".into(),
        })?,
    })
}

/// The text of an integer within code, where the least of two is `min`.
pub fn index(e: &Expr, symbol: &dyn Fn(&str) -> String, element: &dyn Fn(&Expr) -> Option<String>) -> Result<String, DaceError> {
    Ok(integer(e, symbol, element)?.replace("Min(", "min(").replace("Max(", "max("))
}

/// A number as Python writes it.
pub fn number(value: f64) -> String {
    match value {
        v if v.is_nan() => "nan".into(),
        v if v == f64::INFINITY => "inf".into(),
        v if v == f64::NEG_INFINITY => "(-inf)".into(),
        v if v < 0.0 || v.is_sign_negative() => format!("({v:?})"),
        v => format!("{v:?}"),
    }
}

/// The text of scalar code. `input` says what stands for the value of a connector.
pub fn value(
    code: &Scalar,
    name: &str,
    symbol: &dyn Fn(&str) -> String,
    input: &dyn Fn(&str) -> Result<String, DaceError>,
) -> Result<String, DaceError> {
    let text = |code: &Scalar| value(code, name, symbol, input);
    Ok(match code {
        Scalar::Const(c) => number(*c),
        Scalar::Input(connector) => input(connector)?,
        Scalar::Index(e) => format!("dace.float64({})", index(e, symbol, &|_| None)?),
        Scalar::Unary(op, a) => function(*op, &text(a)?),
        Scalar::Binary(op, a, b) => {
            let (a, b) = (text(a)?, text(b)?);
            match op {
                Binary::Add => format!("({a} + {b})"),
                Binary::Sub => format!("({a} - {b})"),
                Binary::Mul => format!("({a} * {b})"),
                Binary::Div => format!("({a} / {b})"),
                Binary::Pow => format!("pow({a}, {b})"),
                // NaN is handed on, as the comparison with itself finds it.
                Binary::Max => format!("({a} if (({a} > {b}) or ({a} != {a})) else {b})"),
                Binary::Min => format!("({a} if (({a} < {b}) or ({a} != {a})) else {b})"),
                Binary::And | Binary::Or | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge | Binary::Eq | Binary::Ne => {
                    format!("(1.0 if {} else 0.0)", condition(code, name, symbol, input)?)
                }
            }
        }
        Scalar::Select(c, a, b) => format!("({} if {} else {})", text(a)?, condition(c, name, symbol, input)?, text(b)?),
        Scalar::Keep { .. } | Scalar::Kept { .. } => return Err(DaceError::Dropout { name: name.to_string() }),
    })
}

fn condition(
    code: &Scalar,
    name: &str,
    symbol: &dyn Fn(&str) -> String,
    input: &dyn Fn(&str) -> Result<String, DaceError>,
) -> Result<String, DaceError> {
    let text = |code: &Scalar| value(code, name, symbol, input);
    let Scalar::Binary(op, a, b) = code else { return Ok(format!("({} != 0)", text(code)?)) };
    let sign = match op {
        Binary::And | Binary::Or => {
            let word = if *op == Binary::And { "and" } else { "or" };
            return Ok(format!("({} {word} {})", condition(a, name, symbol, input)?, condition(b, name, symbol, input)?));
        }
        Binary::Lt => "<",
        Binary::Le => "<=",
        Binary::Gt => ">",
        Binary::Ge => ">=",
        Binary::Eq => "==",
        Binary::Ne => "!=",
        _ => return Ok(format!("({} != 0)", text(code)?)),
    };
    Ok(format!("({} {sign} {})", text(a)?, text(b)?))
}

fn function(op: Unary, x: &str) -> String {
    match op {
        Unary::Neg => format!("(-{x})"),
        Unary::Rsqrt => format!("(1.0 / sqrt({x}))"),
        Unary::Sigmoid => format!("(1.0 / (1.0 + exp(-{x})))"),
        _ => format!("{}({x})", op.row().name),
    }
}
