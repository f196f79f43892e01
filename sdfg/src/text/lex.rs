//! What the text form is made of, and what is expected at a place of it.

use super::TextError;
use crate::syntax::{self, Cursor, Dialect, LexErrorKind, Token};

/// Signs of the text form, comments and quoted names.
const DIALECT: Dialect = Dialect {
    signs: &["->", "<=", ">=", "==", "!=", "&&", "||", "{", "}", "[", "]", "(", ")", ",", ":", ";", "=", "<", ">", "+", "-", "*", "/", "%"],
    comments: true,
    quotes: true,
};

/// The tokens of a text.
///
/// # Errors
/// The first character that begins no token.
pub(super) fn cursor(text: &str) -> Result<Cursor, TextError> {
    let tokens = syntax::tokens(text, &DIALECT).map_err(|error| {
        let (expected, found) = match error.kind {
            LexErrorKind::OpenQuote => ("a closing quote on the same line", "an open one".to_string()),
            LexErrorKind::Character(c) => ("a name, a number or a sign", format!("`{c}`")),
        };
        TextError { line: error.position.line, column: error.position.column, expected: expected.into(), found }
    })?;
    Ok(Cursor::new(tokens))
}

/// A name as the text form spells it: bare where it can be, else in quotes.
pub(crate) fn name(name: &str) -> String {
    if syntax::is_name(name) { name.to_string() } else { quoted(name) }
}

pub(super) fn quoted(text: &str) -> String {
    let mut shown = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => shown.push_str("\\\""),
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            _ => shown.push(c),
        }
    }
    shown.push('"');
    shown
}

/// Number as the text form spells it; reading it gives the same bits back (a NaN: some NaN).
pub(super) fn number(value: f64) -> String {
    if value.is_nan() { "nan".into() } else { format!("{value:?}") }
}

/// Reading with errors that say what was expected.
pub(super) trait Expect {
    /// An error at the next token.
    fn expected(&self, expected: impl Into<String>) -> TextError;
    /// An error at the token before the next one.
    fn wrong(&mut self, expected: impl Into<String>) -> TextError;
    fn want(&mut self, sign: &str) -> Result<(), TextError>;
    fn want_word(&mut self, word: &str) -> Result<(), TextError>;
    fn want_name(&mut self, what: &str) -> Result<String, TextError>;
    fn want_end(&mut self) -> Result<(), TextError>;
    fn integer<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, TextError>;
    fn float(&mut self) -> Result<f64, TextError>;
    /// Items separated by commas up to `close`, which is read too. A comma may follow the last one.
    fn list<T>(&mut self, close: &str, item: impl FnMut(&mut Self) -> Result<T, TextError>) -> Result<Vec<T>, TextError>;
    /// Runs `inside` some levels deeper; programs that people and transforms make have few.
    fn nested<T>(&mut self, levels: u32, inside: impl FnOnce(&mut Self) -> Result<T, TextError>) -> Result<T, TextError>;
}

impl Expect for Cursor {
    fn expected(&self, expected: impl Into<String>) -> TextError {
        let found = match self.peek() {
            Token::Name { text, quoted: true } => quoted(text),
            Token::Name { text, .. } | Token::Number(text) => format!("`{text}`"),
            Token::Sign(sign) => format!("`{sign}`"),
            Token::End => "the end of the text".into(),
        };
        let (line, column) = (self.position().line, self.position().column);
        TextError { line, column, expected: expected.into(), found }
    }

    fn wrong(&mut self, expected: impl Into<String>) -> TextError {
        self.retreat();
        self.expected(expected)
    }

    fn want(&mut self, sign: &str) -> Result<(), TextError> {
        if self.eat(sign) { Ok(()) } else { Err(self.expected(format!("`{sign}`"))) }
    }

    fn want_word(&mut self, word: &str) -> Result<(), TextError> {
        if self.eat_word(word) { Ok(()) } else { Err(self.expected(format!("`{word}`"))) }
    }

    fn want_name(&mut self, what: &str) -> Result<String, TextError> {
        match self.peek() {
            Token::Name { text, .. } => {
                let text = text.clone();
                self.advance();
                Ok(text)
            }
            _ => Err(self.expected(what)),
        }
    }

    fn want_end(&mut self) -> Result<(), TextError> {
        if *self.peek() == Token::End { Ok(()) } else { Err(self.expected("the end of the text")) }
    }

    fn integer<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, TextError> {
        let sign = if self.eat("-") { "-" } else { "" };
        let value = match self.peek() {
            Token::Number(digits) => format!("{sign}{digits}").parse().ok(),
            _ => None,
        };
        let value = value.ok_or_else(|| self.expected(what))?;
        self.advance();
        Ok(value)
    }

    fn float(&mut self) -> Result<f64, TextError> {
        let sign = if self.eat("-") { -1.0 } else { 1.0 };
        let value = match self.peek() {
            Token::Number(digits) => digits.parse::<f64>().ok(),
            Token::Name { text, quoted: false } if text == "inf" => Some(f64::INFINITY),
            Token::Name { text, quoted: false } if text == "nan" => Some(f64::NAN),
            _ => None,
        };
        let value = value.ok_or_else(|| self.expected("a number"))?;
        self.advance();
        Ok(sign * value)
    }

    fn list<T>(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Result<T, TextError>) -> Result<Vec<T>, TextError> {
        let mut items = Vec::new();
        loop {
            if self.eat(close) {
                return Ok(items);
            }
            items.push(item(self)?);
            if !self.eat(",") {
                self.want(close).map_err(|e| TextError { expected: format!("`,` or `{close}`"), ..e })?;
                return Ok(items);
            }
        }
    }

    fn nested<T>(&mut self, levels: u32, inside: impl FnOnce(&mut Self) -> Result<T, TextError>) -> Result<T, TextError> {
        self.deeper(levels, |cursor| cursor.expected("fewer levels of nesting"), inside)
    }
}
