//! Scalar code: what a tasklet computes from its connectors, once per point of its iteration space.

pub use crate::functions::Unary;
use crate::symbol::Expr;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    /// The greater and the lesser of two values; NaN if one of them is NaN ([`maximum`], [`minimum`]).
    Max,
    Min,
    Pow,
    /// Comparisons give 1 or 0; a comparison with NaN gives 0, `Ne` gives 1.
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
    /// Of truth values: nonzero is true.
    And,
    Or,
}

/// The greater of two values; NaN if one of them is NaN. `f64::max` would give the other one, and hide it.
pub fn maximum(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// The lesser of two values; NaN if one of them is NaN.
pub fn minimum(a: f64, b: f64) -> f64 {
    if b < a || b.is_nan() { b } else { a }
}

/// A scalar expression over connectors, indices and constants.
///
/// Its value is defined in exact arithmetic, rounded once per operation in whatever precision runs it: f64 in the
/// interpreter, f32 at least in kernels.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    Const(f64),
    /// The value that the memlet of this connector moves.
    Input(String),
    /// A symbolic integer (size, index of the iteration) as a number.
    Index(Expr),
    Unary(Unary, Box<Scalar>),
    Binary(Binary, Box<Scalar>, Box<Scalar>),
    /// `Select(c, a, b)`: `a` where `c` is nonzero, else `b`.
    Select(Box<Scalar>, Box<Scalar>, Box<Scalar>),
    /// Dropout's factor: 1/(1−rate) where the element is kept, else 0.
    ///
    /// The mask of element `element` of the stream is a pure function of (seed, step, stream, element): see
    /// [`crate::philox`]. So it is the same in every layout, thread count and device, and is recomputed, not stored.
    Keep {
        stream: String,
        element: Expr,
        rate: f64,
    },
    /// The value of [`Scalar::Keep`] at kept elements, for code that is used at kept elements alone. No random number is drawn for it.
    Kept {
        stream: String,
        rate: f64,
    },
}

impl Scalar {
    pub fn input(connector: impl Into<String>) -> Self {
        Scalar::Input(connector.into())
    }

    pub fn unary(op: Unary, a: Scalar) -> Self {
        match (op, &a) {
            (Unary::Neg, Scalar::Const(c)) => Scalar::Const(-c),
            _ => Scalar::Unary(op, Box::new(a)),
        }
    }

    pub fn binary(op: Binary, a: Scalar, b: Scalar) -> Self {
        Scalar::Binary(op, Box::new(a), Box::new(b))
    }

    pub fn select(condition: Scalar, a: Scalar, b: Scalar) -> Self {
        Scalar::Select(Box::new(condition), Box::new(a), Box::new(b))
    }

    /// The direct operands.
    pub fn operands(&self) -> Vec<&Scalar> {
        match self {
            Scalar::Const(_) | Scalar::Input(_) | Scalar::Index(_) | Scalar::Keep { .. } | Scalar::Kept { .. } => vec![],
            Scalar::Unary(_, a) => vec![a],
            Scalar::Binary(_, a, b) => vec![a, b],
            Scalar::Select(c, a, b) => vec![c, a, b],
        }
    }

    /// Rebuilds the expression from below; `change` sees every node with its operands already rewritten.
    pub fn rewrite(&self, change: &mut dyn FnMut(Scalar) -> Scalar) -> Scalar {
        let rebuilt = match self {
            Scalar::Unary(op, a) => Scalar::Unary(*op, Box::new(a.rewrite(change))),
            Scalar::Binary(op, a, b) => Scalar::Binary(*op, Box::new(a.rewrite(change)), Box::new(b.rewrite(change))),
            Scalar::Select(c, a, b) => {
                Scalar::Select(Box::new(c.rewrite(change)), Box::new(a.rewrite(change)), Box::new(b.rewrite(change)))
            }
            leaf => leaf.clone(),
        };
        change(rebuilt)
    }

    /// Whether it depends on dropout's masks, or on whether anything is dropped.
    pub fn drops(&self) -> bool {
        let mut found = false;
        self.walk(&mut |s| found |= matches!(s, Scalar::Keep { .. } | Scalar::Kept { .. }));
        found
    }

    /// Calls `visit` on every node, operands first.
    pub fn walk(&self, visit: &mut dyn FnMut(&Scalar)) {
        for operand in self.operands() {
            operand.walk(visit);
        }
        visit(self);
    }

    /// The connectors read, in alphabetical order.
    pub fn inputs(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        self.walk(&mut |s| {
            if let Scalar::Input(name) = s {
                found.insert(name.clone());
            }
        });
        found
    }

    /// Connectors renamed; names absent from `with` stay.
    pub fn rename_inputs(&self, with: &BTreeMap<String, String>) -> Scalar {
        self.rewrite(&mut |s| match s {
            Scalar::Input(name) => Scalar::Input(with.get(&name).cloned().unwrap_or(name)),
            other => other,
        })
    }

    /// A connector replaced by code.
    pub fn inline(&self, connector: &str, code: &Scalar) -> Scalar {
        self.rewrite(&mut |s| match s {
            Scalar::Input(name) if name == connector => code.clone(),
            other => other,
        })
    }

    /// Indices and symbols replaced.
    pub fn substitute(&self, with: &BTreeMap<String, Expr>) -> Scalar {
        self.rewrite(&mut |s| match s {
            Scalar::Index(e) => Scalar::Index(e.substitute(with)),
            Scalar::Keep { stream, element, rate } => Scalar::Keep { stream, element: element.substitute(with), rate },
            other => other,
        })
    }
}

impl std::ops::Add for Scalar {
    type Output = Scalar;
    fn add(self, other: Scalar) -> Scalar {
        match (&self, &other) {
            (Scalar::Const(0.0), _) => other,
            (_, Scalar::Const(0.0)) => self,
            (Scalar::Const(a), Scalar::Const(b)) => Scalar::Const(a + b),
            _ => Scalar::binary(Binary::Add, self, other),
        }
    }
}

impl std::ops::Sub for Scalar {
    type Output = Scalar;
    fn sub(self, other: Scalar) -> Scalar {
        match (&self, &other) {
            (_, Scalar::Const(0.0)) => self,
            (Scalar::Const(a), Scalar::Const(b)) => Scalar::Const(a - b),
            (Scalar::Const(0.0), _) => Scalar::unary(Unary::Neg, other),
            _ => Scalar::binary(Binary::Sub, self, other),
        }
    }
}

impl std::ops::Mul for Scalar {
    type Output = Scalar;
    fn mul(self, other: Scalar) -> Scalar {
        match (&self, &other) {
            (Scalar::Const(1.0), _) => other,
            (_, Scalar::Const(1.0)) => self,
            (Scalar::Const(0.0), _) | (_, Scalar::Const(0.0)) => Scalar::Const(0.0),
            (Scalar::Const(a), Scalar::Const(b)) => Scalar::Const(a * b),
            _ => Scalar::binary(Binary::Mul, self, other),
        }
    }
}

impl std::ops::Div for Scalar {
    type Output = Scalar;
    fn div(self, other: Scalar) -> Scalar {
        match (&self, &other) {
            (_, Scalar::Const(1.0)) => self,
            _ => Scalar::binary(Binary::Div, self, other),
        }
    }
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Self {
        Scalar::Const(value)
    }
}
