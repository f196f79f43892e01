//! Tokens of the text form, and a cursor over them that remembers where each one stands.

use super::TextError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A bare or quoted name; only a bare one can be a keyword.
    Name {
        text: String,
        quoted: bool,
    },
    /// Digits, with a fraction and an exponent if there are any; never a sign.
    Number(String),
    Sign(&'static str),
    End,
}

/// Longer signs first: `<=` is not `<` followed by `=`.
const SIGNS: [&str; 24] =
    ["->", "<=", ">=", "==", "!=", "&&", "||", "{", "}", "[", "]", "(", ")", ",", ":", ";", "=", "<", ">", "+", "-", "*", "/", "%"];

/// Whether a name can stand in the text form without quotes.
pub(super) fn is_bare(name: &str) -> bool {
    name.starts_with(|c: char| c.is_alphabetic() || c == '_') && name.chars().all(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

/// A name as the text form spells it: bare where it can be, else in quotes.
pub(super) fn name(name: &str) -> String {
    if is_bare(name) { name.to_string() } else { quoted(name) }
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

struct Placed {
    token: Token,
    line: u32,
    column: u32,
}

pub(super) struct Cursor {
    tokens: Vec<Placed>,
    next: usize,
    /// Levels of nested programs and brackets that are open.
    pub(super) depth: u32,
}

impl Cursor {
    pub(super) fn new(text: &str) -> Result<Self, TextError> {
        let mut tokens = Vec::new();
        let (mut line, mut column, mut at) = (1u32, 1u32, 0usize);
        while let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) {
            let rest = &text[at..];
            let fail = |expected: &str, found: &str| TextError { line, column, expected: expected.into(), found: found.into() };
            let length = if c.is_whitespace() {
                c.len_utf8()
            } else if c == '#' {
                rest.find('\n').unwrap_or(rest.len())
            } else if c == '"' {
                let (value, length) = read_quoted(rest).ok_or_else(|| fail("a closing quote on the same line", "an open one"))?;
                tokens.push(Placed { token: Token::Name { text: value, quoted: true }, line, column });
                length
            } else if c.is_ascii_digit() {
                let length = number_length(rest);
                tokens.push(Placed { token: Token::Number(rest[..length].to_string()), line, column });
                length
            } else if is_name_char(c) && c != '.' {
                let length = rest.find(|c| !is_name_char(c)).unwrap_or(rest.len());
                tokens.push(Placed { token: Token::Name { text: rest[..length].to_string(), quoted: false }, line, column });
                length
            } else if let Some(sign) = SIGNS.iter().find(|s| rest.starts_with(**s)) {
                tokens.push(Placed { token: Token::Sign(sign), line, column });
                sign.len()
            } else {
                return Err(fail("a name, a number or a sign", &format!("`{c}`")));
            };
            at += length;
            (line, column) = if c == '\n' { (line + 1, 1) } else { (line, column + rest[..length].chars().count() as u32) };
        }
        tokens.push(Placed { token: Token::End, line, column });
        Ok(Cursor { tokens, next: 0, depth: 0 })
    }

    pub(super) fn peek(&self) -> &Token {
        self.ahead(0)
    }

    fn ahead(&self, by: usize) -> &Token {
        self.tokens.get(self.next + by).map_or(&Token::End, |p| &p.token)
    }

    pub(super) fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        if token != Token::End {
            self.next += 1;
        }
        token
    }

    /// An error at the next token.
    pub(super) fn expected(&self, expected: impl Into<String>) -> TextError {
        let found = match self.peek() {
            Token::Name { text, quoted: true } => quoted(text),
            Token::Name { text, .. } | Token::Number(text) => format!("`{text}`"),
            Token::Sign(sign) => format!("`{sign}`"),
            Token::End => "the end of the text".into(),
        };
        let (line, column) = self.tokens.get(self.next).map_or((1, 1), |p| (p.line, p.column));
        TextError { line, column, expected: expected.into(), found }
    }

    /// An error at the token before the next one.
    pub(super) fn wrong(&mut self, expected: impl Into<String>) -> TextError {
        self.next = self.next.saturating_sub(1);
        self.expected(expected)
    }

    pub(super) fn sees(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(s) if *s == sign)
    }

    pub(super) fn sees_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name { text, quoted: false } if text == word)
    }

    /// Whether a bare name and then an opening bracket follow: a call.
    pub(super) fn sees_call(&self) -> bool {
        matches!(self.peek(), Token::Name { quoted: false, .. }) && matches!(self.ahead(1), Token::Sign("("))
    }

    pub(super) fn eat(&mut self, sign: &str) -> bool {
        let found = self.sees(sign);
        self.next += usize::from(found);
        found
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.sees_word(word);
        self.next += usize::from(found);
        found
    }

    pub(super) fn want(&mut self, sign: &str) -> Result<(), TextError> {
        if self.eat(sign) { Ok(()) } else { Err(self.expected(format!("`{sign}`"))) }
    }

    pub(super) fn want_word(&mut self, word: &str) -> Result<(), TextError> {
        if self.eat_word(word) { Ok(()) } else { Err(self.expected(format!("`{word}`"))) }
    }

    pub(super) fn want_name(&mut self, what: &str) -> Result<String, TextError> {
        match self.peek() {
            Token::Name { text, .. } => {
                let text = text.clone();
                self.next += 1;
                Ok(text)
            }
            _ => Err(self.expected(what)),
        }
    }

    pub(super) fn want_end(&mut self) -> Result<(), TextError> {
        if *self.peek() == Token::End { Ok(()) } else { Err(self.expected("the end of the text")) }
    }

    pub(super) fn integer<T: std::str::FromStr>(&mut self, what: &str) -> Result<T, TextError> {
        let sign = if self.eat("-") { "-" } else { "" };
        let value = match self.peek() {
            Token::Number(digits) => format!("{sign}{digits}").parse().ok(),
            _ => None,
        };
        let value = value.ok_or_else(|| self.expected(what))?;
        self.next += 1;
        Ok(value)
    }

    pub(super) fn float(&mut self) -> Result<f64, TextError> {
        let sign = if self.eat("-") { -1.0 } else { 1.0 };
        let value = match self.peek() {
            Token::Number(digits) => digits.parse::<f64>().ok(),
            Token::Name { text, quoted: false } if text == "inf" => Some(f64::INFINITY),
            Token::Name { text, quoted: false } if text == "nan" => Some(f64::NAN),
            _ => None,
        };
        let value = value.ok_or_else(|| self.expected("a number"))?;
        self.next += 1;
        Ok(sign * value)
    }

    /// Items separated by commas up to `close`, which is read too. A comma may follow the last one.
    pub(super) fn list<T>(&mut self, close: &str, mut item: impl FnMut(&mut Self) -> Result<T, TextError>) -> Result<Vec<T>, TextError> {
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

    /// Runs `inside` one level deeper; there are few levels in programs that people and transforms make.
    pub(super) fn deeper<T>(&mut self, levels: u32, inside: impl FnOnce(&mut Self) -> Result<T, TextError>) -> Result<T, TextError> {
        if self.depth + levels > super::DEPTH {
            return Err(self.expected("fewer levels of nesting"));
        }
        self.depth += levels;
        let value = inside(self)?;
        self.depth -= levels;
        Ok(value)
    }
}

/// The value of a quoted name and how many bytes it takes, quotes included. `None` if it does not end on its line.
fn read_quoted(rest: &str) -> Option<(String, usize)> {
    let mut value = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, at + 1)),
            '\n' => return None,
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                '\n' => return None,
                other => value.push(other),
            },
            _ => value.push(c),
        }
    }
    None
}

fn number_length(rest: &str) -> usize {
    let digits = |from: usize| from + rest[from..].bytes().take_while(u8::is_ascii_digit).count();
    let follows = |at: usize, wanted: fn(u8) -> bool| rest.as_bytes().get(at).copied().is_some_and(wanted);
    let mut end = digits(0);
    if follows(end, |b| b == b'.') && follows(end + 1, |b| b.is_ascii_digit()) {
        end = digits(end + 1);
    }
    if follows(end, |b| b == b'e') {
        let signed = usize::from(follows(end + 1, |b| b == b'-' || b == b'+'));
        if follows(end + 1 + signed, |b| b.is_ascii_digit()) {
            end = digits(end + 1 + signed);
        }
    }
    end
}
