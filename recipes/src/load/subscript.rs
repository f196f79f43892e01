//! Which subscripts a tensor can be read at, and how a recipe says what others would say.
//!
//! A subscript is affine: whole-number multiples of indices, sizes and numbers, added up, as in `2*p + r - 1`; a quotient of one by a
//! number is rounded down by `floor(p / 2)`. What lies outside of the tensor has the value after `else`; without it, every
//! element must lie inside under the recipe's sizes.

use super::header::Header;
use super::parser::{Argument, Ast, ParsedExpr};
use super::problem::{Problem, SourceLocation};
use super::yaml::Name;
use sdfg::affine::{Affine, interval};
use sdfg::{Binary, Expr, Scalar};

/// What stands before the brackets.
#[derive(Clone, Copy)]
pub enum Brackets<'a> {
    /// A tensor that is read.
    Read(&'a str),
    /// The tensor that a step assigns.
    Assigned,
    /// Nothing: a list of dims after `over:`.
    List,
}

type Fault = (SourceLocation, Problem);

/// The dims that are named where each subscript is the name of one: on the left and after `over:`.
///
/// # Errors
/// The first subscript that is another expression, with the way around it.
pub fn dims(brackets: Brackets, subscripts: &[ParsedExpr]) -> Result<Vec<Name>, Fault> {
    let dim = |node: &ParsedExpr| match &node.ast {
        Ast::Word(name) => Ok(Name { place: node.place, text: name.clone() }),
        _ => Err((node.place, Problem::Syntax(instead(brackets, node)))),
    };
    subscripts.iter().map(dim).collect()
}

/// Whether every tensor in an expression is read at subscripts that it can be read at.
///
/// # Errors
/// The first subscript that holds what no subscript can, with the way around it.
pub fn check(expression: &ParsedExpr) -> Result<(), Fault> {
    if let Ast::Access(tensor, subscripts, _) = &expression.ast {
        // A subscript may be an element of another tensor, whose own subscripts are checked below.
        for node in subscripts.iter().filter(|node| !matches!(node.ast, Ast::Access(..))) {
            let sound = parts(node, &mut |part| is_arithmetic(part));
            if !sound {
                return Err((node.place, Problem::Syntax(instead(Brackets::Read(tensor), node))));
            }
        }
    }
    expression.parts().into_iter().try_for_each(check)
}

fn parts(node: &ParsedExpr, holds: &mut impl FnMut(&ParsedExpr) -> bool) -> bool {
    holds(node) && node.parts().into_iter().all(|part| parts(part, holds))
}

/// Whether an expression may stand in a subscript, apart from its parts.
fn is_arithmetic(node: &ParsedExpr) -> bool {
    match &node.ast {
        Ast::Number(value) => value.fract() == 0.0 && value.abs() < 2f64.powi(53),
        Ast::Word(_) | Ast::Negative(_) | Ast::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Div, ..) => true,
        Ast::Call(name, arguments) => {
            matches!((name.as_str(), arguments.as_slice()), ("size" | "floor", [Argument { option: None, .. }]))
        }
        Ast::Binary(..) | Ast::Access(..) | Ast::List(_) | Ast::Slice(..) => false,
    }
}

/// A subscript as an expression of indices and sizes, always in the same form.
///
/// # Errors
/// A name that is no dim and no constant; what is not affine.
pub fn expression(header: &Header, tensor: &str, node: &ParsedExpr) -> Result<Expr, Fault> {
    let is_index = |name: &str| header.is_index(name);
    match &node.ast {
        Ast::Number(value) => Ok(Expr::Int(*value as i64)),
        Ast::Word(name) if is_index(name) => Ok(Expr::sym(name)),
        Ast::Word(name) => constant(header, name).ok_or_else(|| (node.place, unknown(header, name))),
        Ast::Negative(of) => canonical(header, Expr::Int(0) - expression(header, tensor, of)?, tensor, node),
        Ast::Binary(Binary::Div, a, b) => {
            let (a, b) = (expression(header, tensor, a)?, expression(header, tensor, b)?);
            let value = |e: &Expr| e.eval(&header.sizes).ok();
            match (value(&a), value(&b)) {
                (Some(dividend), Some(divisor)) if divisor > 0 && dividend % divisor == 0 => Ok(a.floor_div(b)),
                (Some(_), Some(_)) => Err(fault(tensor, node, "this quotient is no whole number; round it down by `floor(…)`")),
                _ => Err(fault(tensor, node, "a quotient of an index is rounded down, as in `floor(p / 2)`")),
            }
        }
        Ast::Binary(op, a, b) => {
            let (a, b) = (expression(header, tensor, a)?, expression(header, tensor, b)?);
            let whole = match op {
                Binary::Add => a + b,
                Binary::Sub => a - b,
                _ => multiple(header, &a, b.clone()).or_else(|| multiple(header, &b, a.clone())).unwrap_or(a * b),
            };
            canonical(header, whole, tensor, node)
        }
        Ast::Call(name, arguments) => match (name.as_str(), arguments.first().map(|argument| &argument.value)) {
            ("size", Some(ParsedExpr { ast: Ast::Word(dim), .. })) if is_index(dim) => {
                Ok(header.dims.get(dim).cloned().unwrap_or(Expr::Int(1)))
            }
            ("size", Some(ParsedExpr { ast: Ast::Word(dim), place })) => Err((*place, header.unknown_dim(dim))),
            ("floor", Some(ParsedExpr { ast: Ast::Binary(Binary::Div, a, b), place })) => {
                let (a, b) = (expression(header, tensor, a)?, expression(header, tensor, b)?);
                match b.eval(&header.sizes) {
                    Ok(1..) => Ok(a.floor_div(b)),
                    _ => Err((*place, Problem::Syntax("the divisor of a subscript is a number or size, at least 1".into()))),
                }
            }
            _ => Err(fault(tensor, node, "`floor` of a quotient and `size` of a dim are the only calls in a subscript")),
        },
        Ast::Access(..) | Ast::List(_) | Ast::Slice(..) => Err((node.place, Problem::Syntax(instead(Brackets::Read(tensor), node)))),
    }
}

/// `e` times a number or size. An index has a number for its coefficient, also where the recipe says it by a size.
fn multiple(header: &Header, by: &Expr, e: Expr) -> Option<Expr> {
    let mentions = |e: &Expr| e.symbols().iter().any(|s| header.is_index(s));
    let number = by.eval(&header.sizes).ok().filter(|_| !mentions(by) && mentions(&e))?;
    Some(Expr::Int(number) * e)
}

/// The same expression in one form, if it is affine; quotients that are rounded down stay what they are.
fn canonical(header: &Header, e: Expr, tensor: &str, node: &ParsedExpr) -> Result<Expr, Fault> {
    let is_index = |name: &str| header.is_index(name);
    if let Some(affine) = Affine::of(&e, &is_index) {
        return Ok(affine.expr());
    }
    match linear(&e, &is_index) {
        true => Ok(e),
        false => Err(fault(tensor, node, "an index is multiplied by a whole number alone")),
    }
}

/// Whether products have a number on one side.
fn linear(e: &Expr, is_index: &dyn Fn(&str) -> bool) -> bool {
    let free = |e: &Expr| !e.symbols().iter().any(|s| is_index(s));
    match e {
        Expr::Int(_) | Expr::Sym(_) => true,
        Expr::Element(..) => false,
        Expr::Mul(a, b) => free(e) || ((a.as_int().is_some() || b.as_int().is_some()) && linear(a, is_index) && linear(b, is_index)),
        Expr::Add(a, b) | Expr::Sub(a, b) | Expr::FloorDiv(a, b) | Expr::Mod(a, b) | Expr::Min(a, b) | Expr::Max(a, b) => {
            linear(a, is_index) && linear(b, is_index)
        }
    }
}

/// A constant that is a whole number or made of sizes alone.
fn constant(header: &Header, name: &str) -> Option<Expr> {
    match &header.constants.get(name)?.value {
        Scalar::Const(value) if value.fract() == 0.0 && value.abs() < 2f64.powi(53) => Some(Expr::Int(*value as i64)),
        Scalar::Index(size) => Some(size.clone()),
        _ => None,
    }
}

fn unknown(header: &Header, name: &str) -> Problem {
    if header.constants.contains_key(name) {
        return Problem::Syntax(format!("the constant `{name}` is no whole number, and a subscript is made of those"));
    }
    header.unknown_dim(name)
}

fn fault(tensor: &str, node: &ParsedExpr, why: &str) -> Fault {
    (node.place, Problem::Subscript { tensor: tensor.into(), subscript: node.to_string(), why: why.into() })
}

/// The indices that a subscript mentions, in order of appearance; an operand of `size` is the name of a dim.
pub fn indices(node: &ParsedExpr, header: &Header) -> Vec<String> {
    match &node.ast {
        Ast::Word(name) if header.is_index(name) => vec![name.clone()],
        Ast::Word(_) => vec![],
        Ast::Call(name, _) if name == "size" => vec![],
        _ => node.parts().into_iter().flat_map(|part| indices(part, header)).collect(),
    }
}

/// The least and the greatest place that a subscript reaches under the recipe's sizes.
pub fn reach(header: &Header, subscript: &Expr) -> Option<(i64, i64)> {
    let size = |e: &Expr| e.eval(&header.sizes).ok();
    let range = |name: &str| match header.dims.get(name) {
        Some(dim) => size(dim).map(|n| (0, n - 1)),
        None => header.sizes.get(name).map(|n| (*n, *n)),
    };
    interval(subscript, &range)
}

/// Why an expression is no subscript, and what to write in its place.
fn instead(brackets: Brackets, subscript: &ParsedExpr) -> String {
    let tensor = match brackets {
        Brackets::List => return format!("`{subscript}` is no dim: after `over:` stand names of dims"),
        Brackets::Assigned => {
            return format!(
                "`{subscript}` is no subscript on the left: a step assigns a whole tensor, and names a dim for each of its axes; what differs \
                 from place to place is picked on the right, as in `where(t == 0, …, …)`"
            );
        }
        Brackets::Read(tensor) => tensor,
    };
    match &subscript.ast {
        Ast::Slice(..) => format!(
            "`{subscript}` is no subscript: give the part a dim of its own, `t`, and read `{tensor}[…, t + 1, …]`, or every second element as \
             `{tensor}[…, 2*t, …]`"
        ),
        _ if !parts(subscript, &mut |part| !matches!(part.ast, Ast::Access(..))) => format!(
            "`{subscript}` is no subscript: what a tensor holds names a row by itself; give the number a step of its own, `row[…] = \
             {subscript}`, and read `{tensor}[row[…], …]`"
        ),
        _ => format!(
            "`{subscript}` is no subscript: it is made of whole-number multiples of indices, sizes and whole numbers, added up, as in \
             `{tensor}[2*p + r - 1 else 0]`"
        ),
    }
}
