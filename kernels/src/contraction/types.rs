//! Element types of a contraction: of the factors, and of the output.

use sdfg::Dtype;
use std::fmt;

/// The types of the factors (both the same) and of the output. Sums are held in the accumulator of both, f32 at least,
/// and rounded once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Types {
    pub factor: Dtype,
    pub out: Dtype,
    /// Whether factors of f32 may be rounded to TF32, on devices that multiply them faster so.
    pub tf32: bool,
}

impl Types {
    /// What kernels exist for, in words.
    pub const KNOWN: &str = "f64 or f32 throughout, or factors of bf16 or f16 with an output of the same type or f32";

    /// The types of `a`, `b` and `out`; `None` where no kernel takes them.
    pub fn of([a, b, out]: [Dtype; 3]) -> Option<Self> {
        let known = match a {
            Dtype::F64 | Dtype::F32 => out == a,
            Dtype::Bf16 | Dtype::F16 => out == a || out == Dtype::F32,
            _ => false,
        };
        (a == b && known).then_some(Types { factor: a, out, tf32: false })
    }

    /// Bytes of one element of `a`, `b`, `out`.
    pub fn widths(self) -> [usize; 3] {
        [self.factor, self.factor, self.out].map(|d| d.bytes(1) as usize)
    }

    /// Bytes of one element of the accumulator.
    pub fn accumulator_width(self) -> usize {
        self.factor.accumulator().bytes(1) as usize
    }

    /// Whether the output holds less than the sums.
    pub fn narrows(self) -> bool {
        self.out != self.factor.accumulator()
    }
}

impl fmt::Display for Types {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.tf32, self.factor == self.out) {
            (true, _) => write!(f, "{} or TF32", self.out),
            (false, true) => write!(f, "{}", self.out),
            (false, false) => write!(f, "{}→{}", self.factor, self.out),
        }
    }
}
