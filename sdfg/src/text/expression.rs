//! Symbolic integers and scalar code in the text form.
//!
//! ```text
//! x + 1.0                      connectors by name, numbers with a point
//! max(x, 0.0)   exp(x - top)   functions
//! where([k] <= [j], x, -inf)   a symbolic integer stands in square brackets
//! x*keep(alpha, h*n+k, 0.1)    dropout's factor: stream, element, rate
//! ```

use super::TextError;
use super::lex::{self, Expect};
use crate::scalar::{Binary, Scalar, Unary};
use crate::symbol::Expr;
use crate::syntax::{Cursor, Grammar, Infix, SCALAR, Token};

/// Most nodes in one expression, so that walking it by recursion is safe on any stack.
const NODES: u32 = 4000;

/// Functions of two arguments.
const CALLED: [(&str, Binary); 3] = [("max", Binary::Max), ("min", Binary::Min), ("pow", Binary::Pow)];

/// Scalar code: comparisons chain to the left, as all operators do.
const CODE: Grammar<Scalar, Binary, TextError> =
    Grammar { table: SCALAR, single: None, operand, join: |_, op, left, right| Ok(Scalar::binary(op, left, right)) };

type Joined = fn(Box<Expr>, Box<Expr>) -> Expr;

/// Symbolic integers.
const INTEGER: Grammar<Expr, Joined, TextError> = Grammar {
    table: &[
        Infix { sign: "+", op: Expr::Add, strength: 1 },
        Infix { sign: "-", op: Expr::Sub, strength: 1 },
        Infix { sign: "*", op: Expr::Mul, strength: 2 },
        Infix { sign: "/", op: Expr::FloorDiv, strength: 2 },
        Infix { sign: "%", op: Expr::Mod, strength: 2 },
    ],
    single: None,
    operand: integer,
    join: |_, op, left, right| Ok(op(Box::new(left), Box::new(right))),
};

/// Scalar code as text; [`parse_scalar`] gives the same code back.
pub fn print_scalar(code: &Scalar) -> String {
    let reserved = |name: &str| matches!(name, "inf" | "nan");
    print_with(code, &|input| if reserved(input) { lex::quoted(input) } else { lex::name(input) })
}

/// Scalar code as text, with each input connector shown by a function.
pub(super) fn print_with(code: &Scalar, input: &dyn Fn(&str) -> String) -> String {
    let mut shown = String::new();
    show(code, 0, input, &mut shown);
    shown
}

fn show(code: &Scalar, outer: u8, input: &dyn Fn(&str) -> String, into: &mut String) {
    let mut call = |name: &str, arguments: &[&Scalar]| {
        into.push_str(name);
        into.push('(');
        for (n, argument) in arguments.iter().enumerate() {
            into.push_str(if n > 0 { ", " } else { "" });
            show(argument, 0, input, into);
        }
        into.push(')');
    };
    match code {
        Scalar::Const(value) => into.push_str(&lex::number(*value)),
        Scalar::Input(name) => into.push_str(&input(name)),
        Scalar::Index(e) => into.push_str(&format!("[{e}]")),
        Scalar::Keep { stream, element, rate } => {
            into.push_str(&format!("keep({}, {element}, {})", lex::name(stream), lex::number(*rate)));
        }
        Scalar::Kept { stream, rate } => into.push_str(&format!("kept({}, {})", lex::name(stream), lex::number(*rate))),
        Scalar::Select(c, a, b) => call("where", &[c, a, b]),
        Scalar::Unary(Unary::Neg, a) => {
            // Brackets keep the negative of a number apart from a negative number, and `--` from looking like one sign.
            let bracket = matches!(**a, Scalar::Const(_) | Scalar::Unary(Unary::Neg, _) | Scalar::Binary(..));
            into.push_str(if bracket { "-(" } else { "-" });
            show(a, 0, input, into);
            into.push_str(if bracket { ")" } else { "" });
        }
        Scalar::Unary(op, a) => call(op.row().name, &[a]),
        Scalar::Binary(op, a, b) => match SCALAR.iter().find(|row| row.op == *op) {
            None => call(CALLED.iter().find(|(_, o)| o == op).map_or("", |(name, _)| name), &[a, b]),
            Some(Infix { sign, strength, .. }) => {
                into.push_str(if *strength < outer { "(" } else { "" });
                show(a, *strength, input, into);
                into.push_str(&if *strength == 5 { sign.to_string() } else { format!(" {sign} ") });
                show(b, strength + 1, input, into);
                into.push_str(if *strength < outer { ")" } else { "" });
            }
        },
    }
}

/// Reads what [`print_scalar`] prints.
pub fn parse_scalar(text: &str) -> Result<Scalar, TextError> {
    let mut cursor = lex::cursor(text)?;
    let code = scalar(&mut cursor)?;
    cursor.want_end()?;
    Ok(code)
}

pub(super) fn scalar(cursor: &mut Cursor) -> Result<Scalar, TextError> {
    cursor.nodes = 0;
    CODE.read(cursor)
}

/// One more node.
fn count(cursor: &mut Cursor) -> Result<(), TextError> {
    cursor.nodes += 1;
    if cursor.nodes > NODES { Err(cursor.expected(format!("an expression of at most {NODES} parts"))) } else { Ok(()) }
}

fn operand(cursor: &mut Cursor) -> Result<Scalar, TextError> {
    count(cursor)?;
    let is_value = |c: &Cursor| matches!(c.peek(), Token::Number(_)) || c.sees_word("inf") || c.sees_word("nan");
    if is_value(cursor) && !cursor.sees_call() {
        return cursor.float().map(Scalar::Const);
    }
    if cursor.eat("-") {
        if is_value(cursor) && !cursor.sees_call() {
            return cursor.float().map(|value| Scalar::Const(-value));
        }
        let inner = cursor.nested(1, operand)?;
        return Ok(Scalar::Unary(Unary::Neg, Box::new(inner)));
    }
    if cursor.eat("(") {
        let inner = cursor.nested(1, |c| CODE.read(c))?;
        cursor.want(")")?;
        return Ok(inner);
    }
    if cursor.eat("[") {
        let inner = INTEGER.read(cursor)?;
        cursor.want("]")?;
        return Ok(Scalar::Index(inner));
    }
    if !cursor.sees_call() {
        return cursor.want_name("a number, a connector, a function or `(`").map(Scalar::Input);
    }
    let name = cursor.want_name("a function")?;
    if name == "keep" || name == "kept" {
        cursor.want("(")?;
        let stream = cursor.want_name("the name of a stream")?;
        cursor.want(",")?;
        let element = if name == "keep" { Some(INTEGER.read(cursor)?) } else { None };
        if element.is_some() {
            cursor.want(",")?;
        }
        let rate = cursor.float()?;
        cursor.want(")")?;
        return Ok(match element {
            Some(element) => Scalar::Keep { stream, element, rate },
            None => Scalar::Kept { stream, rate },
        });
    }
    let unary = Unary::named(&name);
    let called = CALLED.iter().find(|(n, _)| *n == name);
    let arity = match (&unary, &called) {
        (Some(_), _) => 1,
        (_, Some(_)) => 2,
        _ if name == "where" => 3,
        _ => {
            let functions = Unary::ALL.iter().filter(|op| **op != Unary::Neg).map(|op| op.row().name);
            let known: Vec<&str> = functions.chain(CALLED.iter().map(|(n, _)| *n)).chain(["where", "keep", "kept"]).collect();
            return Err(cursor.wrong(format!("a function ({})", known.join(", "))));
        }
    };
    cursor.want("(")?;
    let arguments = cursor.nested(1, |c| c.list(")", |c| CODE.read(c)))?;
    let given = arguments.len();
    let mut arguments = arguments.into_iter();
    match (arguments.next(), arguments.next(), arguments.next(), unary, called) {
        (Some(a), None, None, Some(op), _) => Ok(Scalar::Unary(op, Box::new(a))),
        (Some(a), Some(b), None, None, Some((_, op))) => Ok(Scalar::binary(*op, a, b)),
        (Some(c), Some(a), Some(b), None, None) if given == 3 => Ok(Scalar::select(c, a, b)),
        _ => Err(cursor.wrong(format!("{arity} arguments of `{name}` (there are {given})"))),
    }
}

/// A symbolic integer, in the form that its `Display` prints.
pub(super) fn expr(cursor: &mut Cursor) -> Result<Expr, TextError> {
    cursor.nodes = 0;
    INTEGER.read(cursor)
}

/// Reads a symbolic integer alone.
///
/// # Errors
/// Where the text stops being one.
pub fn parse_expr(text: &str) -> Result<Expr, TextError> {
    let mut cursor = lex::cursor(text)?;
    let read = expr(&mut cursor)?;
    cursor.want_end()?;
    Ok(read)
}

fn integer(cursor: &mut Cursor) -> Result<Expr, TextError> {
    count(cursor)?;
    if cursor.eat("(") {
        let inner = cursor.nested(1, |c| INTEGER.read(c))?;
        cursor.want(")")?;
        return Ok(inner);
    }
    if cursor.sees("-") || matches!(cursor.peek(), Token::Number(_)) {
        return cursor.integer("an integer of at most 64 bits").map(Expr::Int);
    }
    let make = if cursor.sees_word("min") { Expr::Min } else { Expr::Max };
    if cursor.sees_call() && (cursor.sees_word("min") || cursor.sees_word("max")) {
        cursor.advance();
        cursor.want("(")?;
        let a = cursor.nested(1, |c| INTEGER.read(c))?;
        cursor.want(",")?;
        let b = cursor.nested(1, |c| INTEGER.read(c))?;
        cursor.want(")")?;
        return Ok(make(Box::new(a), Box::new(b)));
    }
    let name = cursor.want_name("an integer, a symbol or `(`")?;
    if cursor.eat("[") {
        return Ok(Expr::Element(name, cursor.nested(1, |c| c.list("]", |c| INTEGER.read(c)))?));
    }
    Ok(Expr::Sym(name))
}
