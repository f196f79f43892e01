//! The lexer and the parser core under every language of Memlet: the text form of programs, symbolic integers, and the steps of recipes.
//!
//! A language is a [`Dialect`] (its signs, and whether it has comments and quotes), a [`Grammar`]: a table of operators and a
//! function that reads one operand. Names, numbers, precedence and the limit of nesting are the same everywhere.

mod cursor;
mod infix;
mod lex;

pub use cursor::Cursor;
pub use infix::{COMPARISON, Grammar, Infix, SCALAR};
pub use lex::{Dialect, LexError, LexErrorKind, Placed, Position, Token, is_name, tokens};

/// Levels of brackets that are read, so that the stack of a recursive walk over an expression stays bounded.
pub const DEPTH: u32 = 100;
