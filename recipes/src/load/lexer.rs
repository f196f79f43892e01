//! Words of a step.

use super::number;
use super::problem::{Place, Problem};

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Name(String),
    Number(f64),
    /// An operator, bracket or separator.
    Sign(&'static str),
}

/// Longer signs stand before their beginnings.
const SIGNS: [&str; 17] = ["<=", ">=", "==", "!=", "<", ">", "=", "+", "-", "*", "/", "(", ")", "[", "]", ",", ":"];

/// Words that one step may have: it bounds the depth of every expression made from it.
const LIMIT: usize = 1000;

/// The words of a step with their places; `places` has one place for each character.
///
/// # Errors
/// The first character that begins no word, a number out of range, or too many words.
pub fn tokens(text: &str, places: &[Place]) -> Result<Vec<(Place, Token)>, (Place, Problem)> {
    let letters: Vec<char> = text.chars().collect();
    let start = places.first().copied().unwrap_or(Place::START);
    let place = |at: usize| places.get(at).copied().unwrap_or(start);
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&c) = letters.get(at) {
        if c.is_whitespace() {
            at += 1;
            continue;
        }
        if found.len() == LIMIT {
            return Err((place(at), Problem::TooMany { what: "words in this step".into(), count: LIMIT + 1, limit: LIMIT }));
        }
        let rest = letters.get(at..).unwrap_or_default();
        let (token, length) = word(rest).map_err(|why| (place(at), Problem::Syntax(why)))?;
        found.push((place(at), token));
        at += length;
    }
    Ok(found)
}

fn word(rest: &[char]) -> Result<(Token, usize), String> {
    let run = |accept: &dyn Fn(char) -> bool| rest.iter().take_while(|c| accept(**c)).count();
    let first = rest.first().copied().unwrap_or(' ');
    if first.is_alphabetic() || first == '_' {
        let length = run(&|c| c.is_alphanumeric() || c == '_' || c == '.');
        return Ok((Token::Name(rest.iter().take(length).collect()), length));
    }
    if first.is_ascii_digit() || first == '.' {
        let length = number_length(rest);
        let text: String = rest.iter().take(length).collect();
        return Ok((Token::Number(number::read(&text)?), length));
    }
    let text: String = rest.iter().take(2).collect();
    match SIGNS.iter().find(|s| text.starts_with(**s)) {
        Some(sign) => Ok((Token::Sign(sign), sign.len())),
        None if first == '^' => Err("there is no `^`: write `pow(x, 2)`".into()),
        None => Err(format!("the character {first:?} has no meaning in a step")),
    }
}

/// Digits, a point, digits, an exponent.
fn number_length(rest: &[char]) -> usize {
    let digits = |from: usize| rest.iter().skip(from).take_while(|c| c.is_ascii_digit() || **c == '.').count();
    let mut length = digits(0);
    if matches!(rest.get(length), Some('e' | 'E')) {
        let sign = usize::from(matches!(rest.get(length + 1), Some('+' | '-')));
        let exponent = digits(length + 1 + sign);
        if exponent > 0 {
            length += 1 + sign + exponent;
        }
    }
    length
}
