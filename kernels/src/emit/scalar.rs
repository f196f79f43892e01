//! Scalars and symbolic integers as C expressions.

use sdfg::functions::Code;
use sdfg::{Binary, Combine, Expr, Scalar};

/// A division that is a product: `x / d` is `x * fit * over`, with `over` = 1/(d * fit). `fit` is 1 but for divisors so small or so large
/// that their reciprocals are no normal numbers: a power of two there, which changes no bits.
#[derive(Clone, Debug)]
pub struct Reciprocal {
    pub fit: String,
    pub over: String,
}

/// What names stand for where an expression is printed.
pub trait NamePrinter {
    /// C text of an index or a size symbol.
    fn symbol(&mut self, name: &str) -> String;
    /// C text of the whole number that an element of a container holds; -1 if it holds none.
    fn element(&mut self, data: &str, subscripts: &[Expr]) -> String;
    /// C text of the value read by a connector.
    fn input(&mut self, connector: &str) -> String;
    /// What division by the value read by a connector becomes, if that is at hand.
    fn reciprocal(&mut self, connector: &str) -> Option<Reciprocal>;
    /// C text of dropout's factor.
    fn keep(&mut self, stream: &str, element: &Expr, rate: f64) -> String;
    /// C text of dropout's factor for what is kept.
    fn kept(&mut self, stream: &str, rate: f64) -> String;
    fn is_double(&self) -> bool;
    /// Whether a value is chosen by this condition with a mask of bits, in place of a conditional expression: all lanes have the same
    /// condition, and GCC (12) has no vectors for several such conditions that it has joined.
    fn blends(&self, condition: &Scalar) -> bool;
    /// Text of the greater (`>`) or lesser of two values, NaN if one is. `number` says that the second is a number for certain.
    fn extreme(&self, sign: char, a: &str, b: &str, number: bool) -> String;
}

pub fn integer(e: &Expr, names: &mut dyn NamePrinter) -> String {
    if let Expr::Element(data, subscripts) = e {
        return names.element(data, subscripts);
    }
    let mut call = |function: &str, a: &Expr, b: &Expr| format!("{function}({}, {})", integer(a, names), integer(b, names));
    match e {
        Expr::Int(value) if *value < 0 => format!("({value})"),
        Expr::Int(value) => value.to_string(),
        Expr::Sym(name) => names.symbol(name),
        Expr::Add(a, b) => format!("({} + {})", integer(a, names), integer(b, names)),
        Expr::Sub(a, b) => format!("({} - {})", integer(a, names), integer(b, names)),
        Expr::Mul(a, b) => format!("{} * {}", integer(a, names), integer(b, names)),
        Expr::FloorDiv(a, b) => call("div_floor", a, b),
        Expr::Mod(a, b) => call("mod_floor", a, b),
        Expr::Min(a, b) => call("min_of", a, b),
        Expr::Max(a, b) => call("max_of", a, b),
        Expr::Element(..) => String::new(),
    }
}

pub fn constant(value: f64, double: bool) -> String {
    match value {
        v if v.is_nan() => "((real)__builtin_nan(\"\"))".into(),
        v if v == f64::INFINITY => "INF".into(),
        v if v == f64::NEG_INFINITY => "(-INF)".into(),
        v if double => format!("({v:e})"),
        v if (v as f32).is_infinite() => constant(f64::INFINITY.copysign(v), false),
        v => format!("({:e}f)", v as f32),
    }
}

pub fn value(code: &Scalar, names: &mut dyn NamePrinter) -> String {
    match code {
        Scalar::Const(c) => constant(*c, names.is_double()),
        Scalar::Input(connector) => names.input(connector),
        Scalar::Index(e) => format!("(real)({})", narrow(e, names)),
        Scalar::Unary(op, a) => {
            let a = value(a, names);
            match op.row().code {
                Code::Inline(text) => text.replace("{}", &a),
                Code::Called { .. } => format!("r_{}({a})", op.row().name),
            }
        }
        Scalar::Binary(op, a, b) => match op {
            Binary::Add | Binary::Sub | Binary::Mul | Binary::Div => {
                let sign = match op {
                    Binary::Add => '+',
                    Binary::Sub => '-',
                    Binary::Mul => '*',
                    _ => '/',
                };
                let at_hand = match b.as_ref() {
                    Scalar::Input(connector) if sign == '/' => names.reciprocal(connector),
                    _ => None,
                };
                match at_hand {
                    Some(Reciprocal { fit, over }) => format!("({} * {fit} * {over})", value(a, names)),
                    None => format!("({} {sign} {})", value(a, names), value(b, names)),
                }
            }
            Binary::Max | Binary::Min => {
                let number = |s: &Scalar| matches!(s, Scalar::Const(c) if !c.is_nan()) || matches!(s, Scalar::Index(_));
                let (a, b) = if number(a) { (b, a) } else { (a, b) };
                let known = number(b);
                let (a, b) = (value(a, names), value(b, names));
                names.extreme(if *op == Binary::Max { '>' } else { '<' }, &a, &b, known)
            }
            Binary::Pow => match roots(b) {
                Some(roots) => roots.replace("{}", &value(a, names)),
                None => format!("r_pow({}, {})", value(a, names), value(b, names)),
            },
            _ => format!("({} ? (real)1 : (real)0)", truth(code, names)),
        },
        Scalar::Select(c, a, b) if names.blends(c) => {
            format!("select_of({}, {}, {})", truth(c, names), value(a, names), value(b, names))
        }
        Scalar::Select(c, a, b) => format!("({} ? {} : {})", truth(c, names), value(a, names), value(b, names)),
        Scalar::Keep { stream, element, rate } => names.keep(stream, element, *rate),
        Scalar::Kept { stream, rate } => names.kept(stream, *rate),
    }
}

/// A power by some quarters as products of roots, which are vectors where the library's power is a call for each element: that takes
/// ten times as long. Each root and product is rounded once, so that the result is within three units in the last place. Infinities
/// and zeros of either sign have the power that IEEE 754 gives them: a root of −∞ is none, and a root of −0 is −0.
fn roots(exponent: &Scalar) -> Option<String> {
    let Scalar::Const(exponent) = exponent else { return None };
    let power = match exponent.abs() {
        0.25 => "r_sqrt(r_sqrt(b_))",
        0.5 => "r_sqrt(b_)",
        0.75 => "r_sqrt(b_) * r_sqrt(r_sqrt(b_))",
        1.5 => "b_ * r_sqrt(b_)",
        _ => return None,
    };
    let power = if *exponent < 0.0 { format!("1 / ({power})") } else { power.to_string() };
    Some(format!("({{ const real x_ = {{}}, b_ = x_ == -INF ? INF : x_ + 0; {power}; }})"))
}

/// An integer in 32 bits where it is a sum of indices and sizes: as many of them go into a vector as of the values.
fn narrow(e: &Expr, names: &mut dyn NamePrinter) -> String {
    fn small(e: &Expr) -> bool {
        match e {
            Expr::Int(value) => value.abs() < 1 << 24,
            Expr::Sym(_) => true,
            Expr::Add(a, b) | Expr::Sub(a, b) => small(a) && small(b),
            _ => false,
        }
    }
    let text = integer(e, names);
    if small(e) { format!("(int32_t)({text})") } else { text }
}

/// The greater (or lesser) of two values in C; NaN if one is, like the interpreter's. A comparison with NaN is false and leaves the first
/// value, so only the second need be asked, and a number need not: then it is one instruction.
pub fn extreme(sign: char, a: &str, b: &str, number: bool) -> String {
    let or_nan = if number { "" } else { " || b_ != b_" };
    format!("({{ const real a_ = {a}, b_ = {b}; b_ {sign} a_{or_nan} ? b_ : a_; }})")
}

fn truth(code: &Scalar, names: &mut dyn NamePrinter) -> String {
    if let Scalar::Binary(op, a, b) = code {
        let sign = match op {
            Binary::Lt => "<",
            Binary::Le => "<=",
            Binary::Gt => ">",
            Binary::Ge => ">=",
            Binary::Eq => "==",
            Binary::Ne => "!=",
            // No short cut: both sides are cheap, and a branch would stop vectors.
            Binary::And => return format!("({} & {})", truth(a, names), truth(b, names)),
            Binary::Or => return format!("({} | {})", truth(a, names), truth(b, names)),
            _ => return format!("({} != 0)", value(code, names)),
        };
        if let (Scalar::Index(a), Scalar::Index(b)) = (a.as_ref(), b.as_ref()) {
            return format!("({} {sign} {})", narrow(a, names), narrow(b, names));
        }
        return format!("({} {sign} {})", value(a, names), value(b, names));
    }
    format!("({} != 0)", value(code, names))
}

/// `left ⊕ right` of a combine over single values. Extrema name both several times, and are NaN if one of them is.
pub fn combined(combine: Combine, left: &str, right: &str) -> String {
    match combine {
        Combine::Product => format!("{left} * {right}"),
        Combine::Max => format!("{right} > {left} || {right} != {right} ? {right} : {left}"),
        Combine::Min => format!("{right} < {left} || {right} != {right} ? {right} : {left}"),
        Combine::Sum | Combine::OnlineSoftmax | Combine::Moments => format!("{left} + {right}"),
    }
}

/// The combine as OpenMP names it.
pub fn reduction(combine: Combine) -> &'static str {
    match combine {
        Combine::Product => "*",
        Combine::Max => "max",
        Combine::Min => "min",
        Combine::Sum | Combine::OnlineSoftmax | Combine::Moments => "+",
    }
}
