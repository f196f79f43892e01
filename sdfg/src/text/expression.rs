//! Symbolic integers and scalar code in the text form.
//!
//! ```text
//! x + 1.0                      connectors by name, numbers with a point
//! max(x, 0.0)   exp(x - top)   functions
//! where([k] <= [j], x, -inf)   a symbolic integer stands in square brackets
//! x*keep(alpha, h*n+k, 0.1)    dropout's factor: stream, element, rate
//! ```

use super::TextError;
use super::lex::{self, Cursor, Token};
use crate::scalar::{Binary, Scalar, Unary};
use crate::symbol::Expr;

/// Most nodes in one expression, so that walking it by recursion is safe on any stack.
const NODES: u32 = 4000;

/// Functions of two arguments.
const CALLED: [(&str, Binary); 3] = [("max", Binary::Max), ("min", Binary::Min), ("pow", Binary::Pow)];

/// Operators between two arguments, with their binding strength. All associate to the left.
const INFIX: [(&str, Binary, u8); 12] = [
    ("||", Binary::Or, 1),
    ("&&", Binary::And, 2),
    ("<", Binary::Lt, 3),
    ("<=", Binary::Le, 3),
    (">", Binary::Gt, 3),
    (">=", Binary::Ge, 3),
    ("==", Binary::Eq, 3),
    ("!=", Binary::Ne, 3),
    ("+", Binary::Add, 4),
    ("-", Binary::Sub, 4),
    ("*", Binary::Mul, 5),
    ("/", Binary::Div, 5),
];

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
        Scalar::Binary(op, a, b) => match INFIX.iter().find(|(_, o, _)| o == op) {
            None => call(CALLED.iter().find(|(_, o)| o == op).map_or("", |(name, _)| name), &[a, b]),
            Some((sign, _, strength)) => {
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
    let mut cursor = Cursor::new(text)?;
    let code = scalar(&mut cursor)?;
    cursor.want_end()?;
    Ok(code)
}

pub(super) fn scalar(cursor: &mut Cursor) -> Result<Scalar, TextError> {
    infix(cursor, 1, &mut 0)
}

/// One more node.
fn count(cursor: &Cursor, nodes: &mut u32) -> Result<(), TextError> {
    *nodes += 1;
    if *nodes > NODES { Err(cursor.expected(format!("an expression of at most {NODES} parts"))) } else { Ok(()) }
}

fn infix(cursor: &mut Cursor, least: u8, nodes: &mut u32) -> Result<Scalar, TextError> {
    let mut left = operand(cursor, nodes)?;
    loop {
        let found = match cursor.peek() {
            Token::Sign(sign) => INFIX.iter().find(|(s, _, strength)| s == sign && *strength >= least),
            _ => None,
        };
        let Some((_, op, strength)) = found else { return Ok(left) };
        count(cursor, nodes)?;
        cursor.advance();
        let right = cursor.deeper(1, |c| infix(c, strength + 1, nodes))?;
        left = Scalar::binary(*op, left, right);
    }
}

fn operand(cursor: &mut Cursor, nodes: &mut u32) -> Result<Scalar, TextError> {
    count(cursor, nodes)?;
    let is_value = |c: &Cursor| matches!(c.peek(), Token::Number(_)) || c.sees_word("inf") || c.sees_word("nan");
    if is_value(cursor) && !cursor.sees_call() {
        return cursor.float().map(Scalar::Const);
    }
    if cursor.eat("-") {
        if is_value(cursor) && !cursor.sees_call() {
            return cursor.float().map(|value| Scalar::Const(-value));
        }
        let inner = cursor.deeper(1, |c| operand(c, nodes))?;
        return Ok(Scalar::Unary(Unary::Neg, Box::new(inner)));
    }
    if cursor.eat("(") {
        let inner = cursor.deeper(1, |c| infix(c, 1, nodes))?;
        cursor.want(")")?;
        return Ok(inner);
    }
    if cursor.eat("[") {
        let inner = expr(cursor)?;
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
        let element = if name == "keep" { Some(expr(cursor)?) } else { None };
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
    let arguments = cursor.deeper(1, |c| c.list(")", |c| infix(c, 1, nodes)))?;
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
    expr_sum(cursor, &mut 0)
}

fn expr_sum(cursor: &mut Cursor, nodes: &mut u32) -> Result<Expr, TextError> {
    let mut left = expr_product(cursor, nodes)?;
    loop {
        let make = match cursor.peek() {
            Token::Sign("+") => Expr::Add,
            Token::Sign("-") => Expr::Sub,
            _ => return Ok(left),
        };
        cursor.advance();
        left = make(Box::new(left), Box::new(expr_product(cursor, nodes)?));
    }
}

fn expr_product(cursor: &mut Cursor, nodes: &mut u32) -> Result<Expr, TextError> {
    let mut left = expr_atom(cursor, nodes)?;
    loop {
        let make = match cursor.peek() {
            Token::Sign("*") => Expr::Mul,
            Token::Sign("/") => Expr::FloorDiv,
            Token::Sign("%") => Expr::Mod,
            _ => return Ok(left),
        };
        cursor.advance();
        left = make(Box::new(left), Box::new(expr_atom(cursor, nodes)?));
    }
}

fn expr_atom(cursor: &mut Cursor, nodes: &mut u32) -> Result<Expr, TextError> {
    count(cursor, nodes)?;
    if cursor.eat("(") {
        let inner = cursor.deeper(1, |c| expr_sum(c, nodes))?;
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
        let a = cursor.deeper(1, |c| expr_sum(c, nodes))?;
        cursor.want(",")?;
        let b = cursor.deeper(1, |c| expr_sum(c, nodes))?;
        cursor.want(")")?;
        return Ok(make(Box::new(a), Box::new(b)));
    }
    cursor.want_name("an integer, a symbol or `(`").map(Expr::Sym)
}
