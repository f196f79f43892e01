//! Text as tokens, each with its position.

/// Where a token begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Characters before it.
    pub at: usize,
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in characters.
    pub column: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    /// A bare or quoted name; only a bare one can be a keyword.
    Name {
        text: String,
        quoted: bool,
    },
    /// Digits, points and an exponent, as they are written; never a sign.
    Number(String),
    Sign(&'static str),
    End,
}

/// A token and its position.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    pub token: Token,
    pub position: Position,
}

/// What a language is made of.
#[derive(Clone, Copy, Debug)]
pub struct Dialect {
    /// Operators, brackets and separators; longer ones before their beginnings.
    pub signs: &'static [&'static str],
    /// `#` begins a comment that ends with the line.
    pub comments: bool,
    /// A name may stand in double quotes.
    pub quotes: bool,
}

/// Why a text has no tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LexError {
    pub position: Position,
    pub kind: LexErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LexErrorKind {
    /// No token begins with this character.
    Character(char),
    /// A quoted name does not end on its line.
    OpenQuote,
}

/// Whether a text is one name: a letter or `_`, then letters, digits, `_` and `.`.
pub fn is_name(text: &str) -> bool {
    text.starts_with(begins_name) && text.chars().all(continues_name)
}

fn begins_name(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn continues_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

/// The tokens of a text; the last one is [`Token::End`].
///
/// # Errors
/// The first character that begins no token.
pub fn tokens(text: &str, dialect: &Dialect) -> Result<Vec<Placed>, LexError> {
    let mut found = Vec::new();
    let mut position = Position { at: 0, line: 1, column: 1 };
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let fail = |kind| LexError { position, kind };
        let (token, length) = if c.is_whitespace() {
            (None, c.len_utf8())
        } else if c == '#' && dialect.comments {
            (None, rest.find('\n').unwrap_or(rest.len()))
        } else if c == '"' && dialect.quotes {
            let (text, length) = quoted_name(rest).ok_or_else(|| fail(LexErrorKind::OpenQuote))?;
            (Some(Token::Name { text, quoted: true }), length)
        } else if c.is_ascii_digit() || c == '.' {
            let length = number_length(rest);
            (Some(Token::Number(rest[..length].to_string())), length)
        } else if begins_name(c) {
            let length = rest.find(|c| !continues_name(c)).unwrap_or(rest.len());
            (Some(Token::Name { text: rest[..length].to_string(), quoted: false }), length)
        } else {
            let sign = dialect.signs.iter().find(|sign| rest.starts_with(**sign)).ok_or_else(|| fail(LexErrorKind::Character(c)))?;
            (Some(Token::Sign(sign)), sign.len())
        };
        found.extend(token.map(|token| Placed { token, position }));
        let characters = rest[..length].chars().count();
        position.at += characters;
        (position.line, position.column) =
            if c == '\n' { (position.line + 1, 1) } else { (position.line, position.column + characters as u32) };
        rest = &rest[length..];
    }
    found.push(Placed { token: Token::End, position });
    Ok(found)
}

/// The value of a quoted name and the bytes that it takes, quotes included. `None` if it does not end on its line.
fn quoted_name(rest: &str) -> Option<(String, usize)> {
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

/// The bytes of a number: digits and points, then an exponent. Whether it is a number is for its reader to say: `1.2.3` is one token.
fn number_length(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let digits = |from: usize| bytes.iter().skip(from).take_while(|b| b.is_ascii_digit() || **b == b'.').count();
    let mut length = digits(0);
    if matches!(bytes.get(length), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(length + 1), Some(b'+' | b'-')));
        let exponent = digits(length + 1 + sign);
        if exponent > 0 {
            length += 1 + sign + exponent;
        }
    }
    length
}
