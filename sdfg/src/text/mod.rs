//! The readable text form of a program: the currency of tests, errors and docs. Reading gives back exactly what was
//! printed, handles included.
//!
//! ```text
//! program softmax about "over the last dim" tf32 {              # f32 may be multiplied as TF32; `winograd` after it
//!   sizes h=2, k=5
//!   dims h, k, j=k                                  # `h` is short for `h=h`
//!   input x[h, k] f32 from "softmax.yaml":6:3
//!   input label[h] i32 nograd within [0.0, [K])   # what values it may be given
//!   transient top[h] f32 register lifetime scope    # storage heap and the role's usual lifetime are not said
//!   output y[h, k] f32 view of z[0, 1]
//!   state s0 forward {
//!     n0 = access x
//!     n1 = map rows [h=0:h, k=0:k reduction, t=0:j:2 over j sequential]
//!       n2 in n1 = tasklet rows { out = exp(x - 1.0) } of y
//!     n3 = exit n1
//!     n4 = library y.max forward [h, k] (x[h, k]) -> (out[h]) reduce max max code x scale 1.0
//!     e0 = n0 -> n1:IN_x moves x[0:h, 0:k]
//!     e1 = n1:OUT_x -> n2:x moves x[h, k] volume 1 wcr max dynamic fill -inf
//!   }
//!   s0 -> s1 if h < 4 set h = h+1
//! }
//! ```
//!
//! Not said where it follows: a volume that is the number of elements of its subset, an index's dim of the same name, a
//! tasklet's operator of the same name. A name that is not made of letters, digits, `_` and `.` stands in quotes. Line
//! breaks mean nothing; `#` begins a comment.
//!
//! Not expressible: symbols whose names need quotes, and expressions of more than 4000 parts. [`print_scope`] and
//! [`print_operation`] give shorter forms to be read only.

mod compact;
mod expression;
mod lex;
mod parse;
mod print;

pub use compact::{print_operation, print_scope};
pub use expression::{parse_expr, parse_scalar, print_scalar};
pub use parse::parse;
pub use print::print;

/// A name as the text form spells it.
pub(crate) fn quoted_name(name: &str) -> String {
    lex::name(name)
}

/// Where reading stopped, what was expected there and what stands there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: expected {expected}, but found {found}")]
pub struct TextError {
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in characters.
    pub column: u32,
    pub expected: String,
    pub found: String,
}
