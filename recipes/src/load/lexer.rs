//! The words of a step: the dialect of recipes.

use super::problem::{Problem, SourceLocation};
use sdfg::syntax::{self, Cursor, Dialect, LexErrorKind, Placed, Position, Token};

/// A recipe's text has the comments and quotes of YAML, and steps have none of their own.
pub(super) const DIALECT: Dialect = Dialect {
    signs: &["<=", ">=", "==", "!=", "<", ">", "=", "+", "-", "*", "/", "(", ")", "[", "]", ",", ":"],
    comments: false,
    quotes: false,
};

/// Words that one step may have: it bounds the depth of every expression made from it.
const LIMIT: usize = 1000;

/// The words of a step, each where it stands in the file; `places` has one place for each character, and `start` is the place of an empty
/// text.
///
/// # Errors
/// The first character that begins no word, or too many words.
pub fn words(text: &str, places: &[SourceLocation], start: SourceLocation) -> Result<Cursor, (SourceLocation, Problem)> {
    let in_file = |position: Position| places.get(position.at).copied().unwrap_or(start);
    let mut tokens = syntax::tokens(text, &DIALECT).map_err(|error| {
        let why = match error.kind {
            LexErrorKind::Character('^') => "there is no `^`: write `pow(x, 2)`".to_string(),
            LexErrorKind::Character('@') => {
                "there is no `@`: write the indices of a product, `a[i,k] * b[k,j]`; what the left side lacks is summed".to_string()
            }
            LexErrorKind::Character('&' | '|') => {
                "conditions are 1 or 0: `(x > 0) * (x < 1)` is both, `max(x > 0, y > 0)` one of them".to_string()
            }
            LexErrorKind::Character('%') => "there is no `%`: write `x - y * floor(x / y)`".to_string(),
            LexErrorKind::Character(c) => format!("the character {c:?} has no meaning in a step"),
            LexErrorKind::OpenQuote => "a quote has no meaning in a step".to_string(),
        };
        (in_file(error.position), Problem::Syntax(why))
    })?;
    for Placed { position, .. } in &mut tokens {
        let place = in_file(*position);
        *position = Position { line: place.line, column: place.column, ..*position };
    }
    match tokens.get(LIMIT) {
        Some(Placed { token, position }) if *token != Token::End => {
            let place = SourceLocation::at(position.line, position.column);
            Err((place, Problem::TooMany { what: "words in this step".into(), count: LIMIT + 1, limit: LIMIT }))
        }
        _ => Ok(Cursor::new(tokens)),
    }
}
