//! The grammar of a step: `name[subscript, …] = expression`.
//!
//! ```text
//! step       = name [ '[' subscripts ']' ] '=' expression
//! subscripts = { ( expression | [ expression ] ':' [ expression ] ) ',' }
//! expression = operands with operators between them, as in `sdfg::syntax::SCALAR`; comparisons do not chain
//! operand    = '-' operand | number | '(' expression ')' | name [ '[' subscripts [ 'else' expression ] ']' | '(' arguments ')' ]
//! argument   = [ name ':' ] ( expression | '[' subscripts ']' )
//! ```
//!
//! A subscript is any expression here; which ones a tensor can be read at is for [`super::subscript`] to say.

use super::number;
use super::problem::{Problem, SourceLocation};
use super::yaml::Name;
use sdfg::Binary;
use sdfg::syntax::{self, Cursor, DEPTH, Grammar, Infix, Position, Token};
use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub struct ParsedStep {
    pub name: Name,
    pub subscripts: Vec<ParsedExpr>,
    pub value: ParsedExpr,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ParsedExpr {
    pub place: SourceLocation,
    pub ast: Ast,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Ast {
    Number(f64),
    /// A tensor, constant or index, without brackets.
    Word(String),
    /// A tensor, its subscripts, and the value of what lies outside it.
    Access(String, Vec<ParsedExpr>, Option<Box<ParsedExpr>>),
    Call(String, Vec<Argument>),
    Negative(Box<ParsedExpr>),
    Binary(Binary, Box<ParsedExpr>, Box<ParsedExpr>),
    /// `[i, j]` as an argument.
    List(Vec<ParsedExpr>),
    /// `from:to` as a subscript.
    Slice(Option<Box<ParsedExpr>>, Option<Box<ParsedExpr>>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    pub option: Option<Name>,
    pub value: ParsedExpr,
}

impl ParsedExpr {
    /// The expressions that it is directly made of: operands, arguments, subscripts.
    pub fn parts(&self) -> Vec<&ParsedExpr> {
        match &self.ast {
            Ast::Number(_) | Ast::Word(_) => vec![],
            Ast::Negative(of) => vec![of],
            Ast::Binary(_, a, b) => vec![a, b],
            Ast::Access(_, subscripts, fill) => subscripts.iter().chain(fill.as_deref()).collect(),
            Ast::List(parts) => parts.iter().collect(),
            Ast::Call(_, arguments) => arguments.iter().map(|argument| &argument.value).collect(),
            Ast::Slice(from, to) => from.iter().chain(to).map(|bound| &**bound).collect(),
        }
    }
}

/// A place where the grammar does not go on, and why.
type Fault = (SourceLocation, Problem);
type Parsed<T> = Result<T, Fault>;

const EXPRESSION: Grammar<ParsedExpr, Binary, Fault> = Grammar {
    table: syntax::SCALAR,
    single: Some(syntax::COMPARISON),
    operand,
    join: |_, op, left, right| Ok(ParsedExpr { place: left.place, ast: Ast::Binary(op, Box::new(left), Box::new(right)) }),
};

/// Reads one step.
///
/// # Errors
/// The first place where the grammar does not go on, with what was expected there.
pub fn step(mut words: Cursor) -> Parsed<ParsedStep> {
    let cursor = &mut words;
    let name = name(cursor, "a step begins with the name of its result")?;
    let subscripts = if cursor.eat("[") { subscripts(cursor, closed)?.0 } else { Vec::new() };
    expect(cursor, "=", "a step reads `name[index, …] = expression`")?;
    let value = last(cursor, "step")?;
    Ok(ParsedStep { name, subscripts, value })
}

/// Reads what could stand on the right of a step.
///
/// # Errors
/// Those of [`step`].
pub fn expression(mut words: Cursor) -> Parsed<ParsedExpr> {
    last(&mut words, "expression")
}

/// An expression with nothing after it.
fn last(cursor: &mut Cursor, what: &str) -> Parsed<ParsedExpr> {
    let value = EXPRESSION.read(cursor)?;
    match cursor.peek() {
        Token::End => Ok(value),
        token => {
            let why = format!("{} was not expected here: the {what} could end before it", show(token));
            Err((place(cursor), Problem::Syntax(why)))
        }
    }
}

fn show(token: &Token) -> String {
    match token {
        Token::Name { text, .. } | Token::Number(text) => format!("`{text}`"),
        Token::Sign(sign) => format!("`{sign}`"),
        Token::End => "the end".into(),
    }
}

/// Where the next word is; after the last one, where that is.
fn place(cursor: &Cursor) -> SourceLocation {
    let Position { line, column, .. } = if *cursor.peek() == Token::End { cursor.last_position() } else { cursor.position() };
    SourceLocation::at(line, column)
}

fn error<T>(cursor: &Cursor, wanted: &str) -> Parsed<T> {
    let found = match cursor.peek() {
        Token::End => "the step ends".to_string(),
        token => format!("{} stands", show(token)),
    };
    let instead = instead(cursor);
    Err((place(cursor), Problem::Syntax(format!("{wanted}, but {found} here{instead}"))))
}

/// What recipes have in place of what other languages write here.
fn instead(cursor: &Cursor) -> &'static str {
    match (cursor.previous(), cursor.peek()) {
        (_, Token::Name { text, .. }) if matches!(text.as_str(), "and" | "or" | "not") => {
            "; conditions are 1 or 0: `(x > 0) * (x < 1)` is both, `max(x > 0, y > 0)` one of them, `1 - (x > 0)` neither"
        }
        (Some(Token::Sign("*")), Token::Sign("*")) => "; there is no `**`: write `pow(x, 2)`",
        (Some(Token::Sign("/")), Token::Sign("/")) => "; there is no `//`: write `floor(x / y)`",
        (Some(Token::Name { text, .. }), Token::Sign("=")) if matches!(text.as_str(), "axis" | "dim" | "axes" | "dims" | "over") => {
            "; what is reduced is named, with a colon: `sum(x, over: j)`"
        }
        (Some(Token::Name { .. }), Token::Sign("=")) => "; options have a colon, as in `layernorm(x, over: i, eps: 1e-5)`",
        _ => "",
    }
}

fn expect(cursor: &mut Cursor, sign: &str, why: &str) -> Parsed<()> {
    if cursor.eat(sign) { Ok(()) } else { error(cursor, &format!("`{sign}` was expected ({why})")) }
}

fn name(cursor: &mut Cursor, why: &str) -> Parsed<Name> {
    let place = place(cursor);
    match cursor.peek() {
        Token::Name { text, .. } => {
            let text = text.clone();
            cursor.advance();
            Ok(Name { place, text })
        }
        _ => error(cursor, &format!("a name was expected ({why})")),
    }
}

fn deeper<T>(cursor: &mut Cursor, read: impl FnOnce(&mut Cursor) -> Parsed<T>) -> Parsed<T> {
    let too_deep = |cursor: &Cursor| (place(cursor), Problem::Syntax(format!("this is nested more than {DEPTH} deep; split the step")));
    cursor.deeper(1, too_deep, read)
}

/// Subscripts up to `]`, of which the opening bracket has been read. `end` reads what may stand between the last one and `]`.
fn subscripts<T>(cursor: &mut Cursor, end: fn(&mut Cursor) -> Parsed<Option<T>>) -> Parsed<(Vec<ParsedExpr>, Option<T>)> {
    let mut subscripts = Vec::new();
    if cursor.eat("]") {
        return Ok((subscripts, None));
    }
    loop {
        subscripts.push(deeper(cursor, subscript)?);
        let after = end(cursor)?;
        if cursor.eat("]") {
            return Ok((subscripts, after));
        }
        if after.is_some() {
            expect(cursor, "]", "nothing follows the value of what lies outside")?;
        }
        expect(cursor, ",", "between indices, or `]` after the last one")?;
    }
}

/// Nothing stands between the last subscript and `]`.
fn closed(_: &mut Cursor) -> Parsed<Option<Box<ParsedExpr>>> {
    Ok(None)
}

/// `else`, and the value of what lies outside the tensor.
fn outside(cursor: &mut Cursor) -> Parsed<Option<Box<ParsedExpr>>> {
    if !cursor.eat_word("else") {
        return Ok(None);
    }
    deeper(cursor, |cursor| EXPRESSION.read(cursor)).map(|value| Some(Box::new(value)))
}

fn subscript(cursor: &mut Cursor) -> Parsed<ParsedExpr> {
    let place = place(cursor);
    let from = if cursor.sees(":") { None } else { Some(EXPRESSION.read(cursor)?) };
    match from {
        Some(whole) if !cursor.sees(":") => Ok(whole),
        from => {
            cursor.advance();
            let open = cursor.sees(",") || cursor.sees("]") || cursor.sees_word("else");
            let to = if open { None } else { Some(EXPRESSION.read(cursor)?) };
            Ok(ParsedExpr { place, ast: Ast::Slice(from.map(Box::new), to.map(Box::new)) })
        }
    }
}

fn operand(cursor: &mut Cursor) -> Parsed<ParsedExpr> {
    let place = place(cursor);
    let ast = match cursor.peek().clone() {
        Token::Number(text) => {
            let value = number::read(&text).map_err(|why| (place, Problem::Syntax(why)))?;
            cursor.advance();
            Ast::Number(value)
        }
        Token::Sign("-") => {
            cursor.advance();
            Ast::Negative(Box::new(deeper(cursor, operand)?))
        }
        Token::Sign("(") => {
            cursor.advance();
            let inside = deeper(cursor, |cursor| EXPRESSION.read(cursor))?;
            expect(cursor, ")", "it closes the bracket")?;
            return Ok(inside);
        }
        Token::Name { text, .. } => {
            cursor.advance();
            if cursor.eat("[") {
                let (subscripts, fill) = subscripts(cursor, outside)?;
                Ast::Access(text, subscripts, fill)
            } else if cursor.eat("(") {
                Ast::Call(text, deeper(cursor, arguments)?)
            } else {
                Ast::Word(text)
            }
        }
        Token::Sign(_) | Token::End => return error(cursor, "an expression was expected"),
    };
    Ok(ParsedExpr { place, ast })
}

fn arguments(cursor: &mut Cursor) -> Parsed<Vec<Argument>> {
    let mut arguments = Vec::new();
    if cursor.eat(")") {
        return Ok(arguments);
    }
    loop {
        let option = match (cursor.peek(), cursor.ahead(1)) {
            (Token::Name { .. }, Token::Sign(":")) => {
                let name = name(cursor, "an option")?;
                cursor.advance();
                Some(name)
            }
            _ => None,
        };
        let place = place(cursor);
        let value =
            if cursor.eat("[") { ParsedExpr { place, ast: Ast::List(subscripts(cursor, closed)?.0) } } else { EXPRESSION.read(cursor)? };
        arguments.push(Argument { option, value });
        if cursor.eat(")") {
            return Ok(arguments);
        }
        expect(cursor, ",", "between arguments, or `)` after the last one")?;
    }
}

/// The shortest text that means the same, as messages quote it.
impl fmt::Display for ParsedExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_node(self, 0, f)
    }
}

fn show_node(node: &ParsedExpr, outer: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    fn list(nodes: &[ParsedExpr], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, node) in nodes.iter().enumerate() {
            f.write_str(if n > 0 { "," } else { "" })?;
            show_node(node, 0, f)?;
        }
        Ok(())
    }
    match &node.ast {
        Ast::Number(value) => write!(f, "{value}"),
        Ast::Word(name) => f.write_str(name),
        Ast::Access(name, subscripts, fill) => {
            write!(f, "{name}[")?;
            list(subscripts, f)?;
            if let Some(fill) = fill {
                f.write_str(" else ")?;
                show_node(fill, 0, f)?;
            }
            f.write_str("]")
        }
        Ast::Call(name, arguments) => {
            write!(f, "{name}(")?;
            for (n, argument) in arguments.iter().enumerate() {
                f.write_str(if n > 0 { "," } else { "" })?;
                if let Some(option) = &argument.option {
                    write!(f, "{}:", option.text)?;
                }
                show_node(&argument.value, 0, f)?;
            }
            f.write_str(")")
        }
        Ast::Negative(of) => {
            f.write_str("-")?;
            show_node(of, u8::MAX, f)
        }
        Ast::Binary(op, a, b) => {
            let Some(Infix { sign, strength, .. }) = syntax::SCALAR.iter().find(|row| row.op == *op) else { return Ok(()) };
            f.write_str(if *strength < outer { "(" } else { "" })?;
            show_node(a, *strength, f)?;
            f.write_str(sign)?;
            show_node(b, strength + 1, f)?;
            f.write_str(if *strength < outer { ")" } else { "" })
        }
        Ast::List(nodes) => {
            f.write_str("[")?;
            list(nodes, f)?;
            f.write_str("]")
        }
        Ast::Slice(from, to) => {
            from.iter().try_for_each(|node| show_node(node, 0, f))?;
            f.write_str(":")?;
            to.iter().try_for_each(|node| show_node(node, 0, f))
        }
    }
}
