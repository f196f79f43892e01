//! Operators between two operands, by precedence climbing (Pratt, *Top down operator precedence*, POPL 1973).

use super::cursor::Cursor;
use super::lex::Token;
use crate::scalar::Binary;

/// An operator between two operands.
#[derive(Clone, Copy, Debug)]
pub struct Infix<Op> {
    pub sign: &'static str,
    pub op: Op,
    /// How strongly it binds: from 1, the weakest.
    pub strength: u8,
}

const fn row(sign: &'static str, op: Binary, strength: u8) -> Infix<Binary> {
    Infix { sign, op, strength }
}

/// The operators of scalar code.
pub const SCALAR: &[Infix<Binary>] = &[
    row("||", Binary::Or, 1),
    row("&&", Binary::And, 2),
    row("<", Binary::Lt, COMPARISON),
    row("<=", Binary::Le, COMPARISON),
    row(">", Binary::Gt, COMPARISON),
    row(">=", Binary::Ge, COMPARISON),
    row("==", Binary::Eq, COMPARISON),
    row("!=", Binary::Ne, COMPARISON),
    row("+", Binary::Add, 4),
    row("-", Binary::Sub, 4),
    row("*", Binary::Mul, 5),
    row("/", Binary::Div, 5),
];

/// The strength of comparisons.
pub const COMPARISON: u8 = 3;

/// How a language reads expressions.
pub struct Grammar<N, Op: 'static, E> {
    pub table: &'static [Infix<Op>],
    /// Operators of this strength do not chain: an expression in brackets has at most one, and a second one ends it.
    pub single: Option<u8>,
    /// Reads one operand, with all that stands in its brackets.
    pub operand: fn(&mut Cursor) -> Result<N, E>,
    /// Makes a node of an operator and its two operands.
    pub join: fn(&Cursor, Op, N, N) -> Result<N, E>,
}

impl<N, Op: Copy + 'static, E> Grammar<N, Op, E> {
    /// Reads operands with operators between them; those of equal strength associate to the left.
    ///
    /// # Errors
    /// Those of `operand` and `join`.
    pub fn read(&self, cursor: &mut Cursor) -> Result<N, E> {
        self.read_from(cursor, 0)
    }

    /// The same with operators of at least the strength `least`.
    fn read_from(&self, cursor: &mut Cursor, least: u8) -> Result<N, E> {
        let mut left = (self.operand)(cursor)?;
        let mut most = u8::MAX;
        loop {
            let found = match cursor.peek() {
                Token::Sign(sign) => self.table.iter().find(|row| row.sign == *sign && (least..=most).contains(&row.strength)),
                _ => None,
            };
            let Some(Infix { op, strength, .. }) = found else { return Ok(left) };
            cursor.advance();
            let right = self.read_from(cursor, strength + 1)?;
            left = (self.join)(cursor, *op, left, right)?;
            if self.single == Some(*strength) {
                most = strength - 1;
            }
        }
    }
}
