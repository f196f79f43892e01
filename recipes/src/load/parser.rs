//! The grammar of a step: `name[index, …] = expression`.
//!
//! ```text
//! step       = name [ '[' names ']' ] '=' comparison
//! comparison = sum [ ('<' | '<=' | '>' | '>=' | '==' | '!=') sum ]
//! sum        = product { ('+' | '-') product }
//! product    = factor { ('*' | '/') factor }
//! factor     = '-' factor | number | '(' comparison ')' | name [ '[' names ']' | '(' arguments ')' ]
//! argument   = [ name ':' ] ( comparison | '[' names ']' )
//! ```

use super::lexer::Token;
use super::problem::{Place, Problem};
use super::subscript::{Brackets, elsewhere};
use super::yaml::Name;
use sdfg::Binary;

#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub name: Name,
    pub indices: Vec<Name>,
    pub value: Node,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub place: Place,
    pub ast: Ast,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Ast {
    Number(f64),
    /// A tensor, constant or index, without brackets.
    Word(String),
    Access(String, Vec<Name>),
    Call(String, Vec<Argument>),
    Negative(Box<Node>),
    Binary(Binary, Box<Node>, Box<Node>),
    /// `[i, j]` as an argument.
    List(Vec<Name>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    pub option: Option<Name>,
    pub value: Node,
}

/// Brackets within brackets: deeper ones are refused, so that no recursion runs out of stack.
const DEPTH: usize = 50;

/// Words of a subscript that a message shows at most.
const AHEAD: usize = 12;

type Parsed<T> = Result<T, (Place, Problem)>;

/// Reads one step.
///
/// # Errors
/// The first place where the grammar does not go on, with what was expected there.
pub fn step(tokens: &[(Place, Token)], start: Place) -> Parsed<Step> {
    let mut parser = Parser { tokens, at: 0, start, depth: 0 };
    let name = parser.name("a step begins with the name of its result")?;
    let indices = if parser.eat("[") { parser.names(Brackets::Assigned)? } else { Vec::new() };
    parser.expect("=", "a step reads `name[index, …] = expression`")?;
    let value = parser.last("step")?;
    Ok(Step { name, indices, value })
}

/// Reads what could stand on the right of a step.
///
/// # Errors
/// Those of [`step`].
pub fn expression(tokens: &[(Place, Token)], start: Place) -> Parsed<Node> {
    Parser { tokens, at: 0, start, depth: 0 }.last("expression")
}

fn show(token: &Token) -> String {
    match token {
        Token::Name(name) => format!("`{name}`"),
        Token::Number(value) => format!("`{value}`"),
        Token::Sign(sign) => format!("`{sign}`"),
    }
}

struct Parser<'a> {
    tokens: &'a [(Place, Token)],
    at: usize,
    start: Place,
    depth: usize,
}

impl Parser<'_> {
    /// An expression with nothing after it.
    fn last(&mut self, what: &str) -> Parsed<Node> {
        let value = self.comparison()?;
        match self.tokens.get(self.at) {
            None => Ok(value),
            Some((place, token)) => {
                Err((*place, Problem::Syntax(format!("{} was not expected here: the {what} could end before it", show(token)))))
            }
        }
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, t)| t)
    }

    /// Where the next word is; after the last one, where that is.
    fn place(&self) -> Place {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(self.start, |(p, _)| *p)
    }

    fn error<T>(&self, wanted: &str) -> Parsed<T> {
        let found = self.peek().map_or("the step ends".to_string(), |t| format!("{} stands", show(t)));
        let instead = match self.peek() {
            Some(Token::Name(word)) if matches!(word.as_str(), "and" | "or" | "not") => {
                "; conditions are 1 or 0: `(x > 0) * (x < 1)` is both, `max(x > 0, y > 0)` one of them, `1 - (x > 0)` neither"
            }
            _ => "",
        };
        Err((self.place(), Problem::Syntax(format!("{wanted}, but {found} here{instead}"))))
    }

    fn eat(&mut self, sign: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Sign(s)) if *s == sign);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str, why: &str) -> Parsed<()> {
        if self.eat(sign) { Ok(()) } else { self.error(&format!("`{sign}` was expected ({why})")) }
    }

    fn name(&mut self, why: &str) -> Parsed<Name> {
        match self.tokens.get(self.at) {
            Some((place, Token::Name(text))) => {
                self.at += 1;
                Ok(Name { place: *place, text: text.clone() })
            }
            _ => self.error(&format!("a name was expected ({why})")),
        }
    }

    /// Names up to `]`, of which the opening bracket has been read.
    fn names(&mut self, brackets: Brackets) -> Parsed<Vec<Name>> {
        let mut names = Vec::new();
        if self.eat("]") {
            return Ok(names);
        }
        loop {
            let ahead: Vec<&Token> = self.tokens.iter().skip(self.at).take(AHEAD).map(|(_, token)| token).collect();
            if let Some(why) = elsewhere(brackets, &ahead) {
                return Err((self.place(), Problem::Syntax(why)));
            }
            names.push(self.name("an index is the name of a dim")?);
            if self.eat("]") {
                return Ok(names);
            }
            self.expect(",", "between indices, or `]` after the last one")?;
        }
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == DEPTH {
            return Err((self.place(), Problem::Syntax(format!("this is nested more than {DEPTH} deep; split the step"))));
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    /// The first of the given signs that comes next.
    fn operator(&mut self, signs: &[(&str, Binary)]) -> Option<(Place, Binary)> {
        let place = self.place();
        signs.iter().find(|(sign, _)| self.eat(sign)).map(|(_, op)| (place, *op))
    }

    fn comparison(&mut self) -> Parsed<Node> {
        let left = self.sum()?;
        let signs = [("<", Binary::Lt), ("<=", Binary::Le), (">", Binary::Gt), (">=", Binary::Ge), ("==", Binary::Eq), ("!=", Binary::Ne)];
        match self.operator(&signs) {
            Some((_, op)) => {
                let right = self.sum()?;
                Ok(binary(op, left, right))
            }
            None => Ok(left),
        }
    }

    fn sum(&mut self) -> Parsed<Node> {
        let mut left = self.product()?;
        while let Some((_, op)) = self.operator(&[("+", Binary::Add), ("-", Binary::Sub)]) {
            left = binary(op, left, self.product()?);
        }
        Ok(left)
    }

    fn product(&mut self) -> Parsed<Node> {
        let mut left = self.factor()?;
        while let Some((_, op)) = self.operator(&[("*", Binary::Mul), ("/", Binary::Div)]) {
            left = binary(op, left, self.factor()?);
        }
        Ok(left)
    }

    fn factor(&mut self) -> Parsed<Node> {
        let Some((place, token)) = self.tokens.get(self.at).cloned() else { return self.error("an expression was expected") };
        match token {
            Token::Number(value) => {
                self.at += 1;
                Ok(Node { place, ast: Ast::Number(value) })
            }
            Token::Sign("-") => {
                self.at += 1;
                let of = self.deeper(Self::factor)?;
                Ok(Node { place, ast: Ast::Negative(Box::new(of)) })
            }
            Token::Sign("(") => {
                self.at += 1;
                let inside = self.deeper(Self::comparison)?;
                self.expect(")", "it closes the bracket")?;
                Ok(inside)
            }
            Token::Name(name) => {
                self.at += 1;
                let ast = if self.eat("[") {
                    let indices = self.names(Brackets::Read(&name))?;
                    Ast::Access(name, indices)
                } else if self.eat("(") {
                    Ast::Call(name, self.deeper(Self::arguments)?)
                } else {
                    Ast::Word(name)
                };
                Ok(Node { place, ast })
            }
            Token::Sign(_) => self.error("an expression was expected"),
        }
    }

    fn arguments(&mut self) -> Parsed<Vec<Argument>> {
        let mut arguments = Vec::new();
        if self.eat(")") {
            return Ok(arguments);
        }
        loop {
            let option = match (self.peek(), self.tokens.get(self.at + 1)) {
                (Some(Token::Name(_)), Some((_, Token::Sign(":")))) => {
                    let name = self.name("an option")?;
                    self.at += 1;
                    Some(name)
                }
                _ => None,
            };
            let place = self.place();
            let value = if self.eat("[") { Node { place, ast: Ast::List(self.names(Brackets::List)?) } } else { self.comparison()? };
            arguments.push(Argument { option, value });
            if self.eat(")") {
                return Ok(arguments);
            }
            self.expect(",", "between arguments, or `)` after the last one")?;
        }
    }
}

fn binary(op: Binary, left: Node, right: Node) -> Node {
    Node { place: left.place, ast: Ast::Binary(op, Box::new(left), Box::new(right)) }
}
