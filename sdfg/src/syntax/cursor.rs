//! A place in a list of tokens that moves forward.

use super::DEPTH;
use super::lex::{Placed, Position, Token};

/// Tokens, and the number of the next one.
#[derive(Clone, Debug)]
pub struct Cursor {
    tokens: Vec<Placed>,
    next: usize,
    /// Levels of brackets that are open.
    depth: u32,
    /// Nodes of the current expression; its reader counts them.
    pub nodes: u32,
}

impl Cursor {
    /// Before the first of the tokens, as [`super::tokens`] gives them.
    pub fn new(tokens: Vec<Placed>) -> Cursor {
        Cursor { tokens, next: 0, depth: 0, nodes: 0 }
    }

    /// The next token.
    pub fn peek(&self) -> &Token {
        self.ahead(0)
    }

    /// The token that is `by` tokens after the next one.
    pub fn ahead(&self, by: usize) -> &Token {
        self.tokens.get(self.next + by).map_or(&Token::End, |placed| &placed.token)
    }

    /// The token that was read last, if any was.
    pub fn previous(&self) -> Option<&Token> {
        self.next.checked_sub(1).and_then(|last| self.tokens.get(last)).map(|placed| &placed.token)
    }

    /// Where the next token begins.
    pub fn position(&self) -> Position {
        let placed = self.tokens.get(self.next).or(self.tokens.last());
        placed.map_or(Position { at: 0, line: 1, column: 1 }, |placed| placed.position)
    }

    /// Where the last token before the end begins; at the end of an empty text.
    pub fn last_position(&self) -> Position {
        let last = self.tokens.len().saturating_sub(2);
        self.tokens.get(last).map_or_else(|| self.position(), |placed| placed.position)
    }

    /// Reads the next token; the end is never passed.
    pub fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        if token != Token::End {
            self.next += 1;
        }
        token
    }

    /// Goes one token back.
    pub fn retreat(&mut self) {
        self.next = self.next.saturating_sub(1);
    }

    pub fn sees(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(s) if *s == sign)
    }

    pub fn sees_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name { text, quoted: false } if text == word)
    }

    /// Whether a bare name and then an opening bracket follow: a call.
    pub fn sees_call(&self) -> bool {
        matches!(self.peek(), Token::Name { quoted: false, .. }) && matches!(self.ahead(1), Token::Sign("("))
    }

    /// Reads a sign if it comes next.
    pub fn eat(&mut self, sign: &str) -> bool {
        let found = self.sees(sign);
        self.next += usize::from(found);
        found
    }

    /// Reads a bare name if it comes next.
    pub fn eat_word(&mut self, word: &str) -> bool {
        let found = self.sees_word(word);
        self.next += usize::from(found);
        found
    }

    /// Runs `inside` with `levels` more levels open; beyond [`DEPTH`] levels it gives the error of `too_deep` instead.
    ///
    /// # Errors
    /// Those of `inside`, and that of `too_deep`.
    pub fn deeper<T, E>(
        &mut self,
        levels: u32,
        too_deep: impl FnOnce(&Self) -> E,
        inside: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.depth + levels > DEPTH {
            return Err(too_deep(self));
        }
        self.depth += levels;
        let value = inside(self)?;
        self.depth -= levels;
        Ok(value)
    }
}
