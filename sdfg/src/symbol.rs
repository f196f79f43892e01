//! Symbolic integers: sizes, subscripts and volumes before the sizes are bound.
//!
//! An [`Expr`] is quasi-affine in practice (sums, products, floor division, modulo, minimum, maximum) and is
//! evaluated late, under [`Bindings`]. Constructors fold constants, so that equal sizes print equally.

use crate::{syntax, text};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Values of symbols: sizes and, inside a map, its indices.
pub type Bindings = BTreeMap<String, i64>;

/// A symbolic 64-bit integer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Expr {
    Int(i64),
    Sym(String),
    Add(Box<Expr>, Box<Expr>),
    Sub(Box<Expr>, Box<Expr>),
    Mul(Box<Expr>, Box<Expr>),
    /// Division rounding towards minus infinity.
    FloorDiv(Box<Expr>, Box<Expr>),
    /// Remainder with the sign of the divisor.
    Mod(Box<Expr>, Box<Expr>),
    Min(Box<Expr>, Box<Expr>),
    Max(Box<Expr>, Box<Expr>),
    /// The whole number that an element of a container holds: `ids[b, s]` as a subscript reads by the values of another tensor. It has no
    /// value before the program runs.
    Element(String, Vec<Expr>),
}

/// Why a symbolic integer has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SymbolError {
    #[error("the symbol `{0}` has no value here; bind it with --set {0}=N or in the recipe's dims")]
    Unbound(String),
    #[error("`{0}` does not fit in 64 bits; use smaller sizes")]
    Overflow(String),
    #[error("`{0}` divides by zero")]
    DivisionByZero(String),
    #[error("`{0}` is an element of a tensor, which is known only while the program runs")]
    Element(String),
    #[error("`{text}` is not an integer expression: {why} at character {at}")]
    Syntax { text: String, at: usize, why: String },
}

impl Expr {
    pub fn sym(name: impl Into<String>) -> Self {
        Expr::Sym(name.into())
    }

    /// The value under `bindings`; overflow and unbound symbols are errors, never wrapped.
    pub fn eval(&self, bindings: &Bindings) -> Result<i64, SymbolError> {
        self.eval_with(&|name| bindings.get(name).copied())
    }

    /// The value with symbols looked up by a function.
    pub fn eval_with(&self, lookup: &dyn Fn(&str) -> Option<i64>) -> Result<i64, SymbolError> {
        let overflow = || SymbolError::Overflow(self.to_string());
        Ok(match self {
            Expr::Int(value) => *value,
            Expr::Sym(name) => lookup(name).ok_or_else(|| SymbolError::Unbound(name.clone()))?,
            Expr::Add(a, b) => a.eval_with(lookup)?.checked_add(b.eval_with(lookup)?).ok_or_else(overflow)?,
            Expr::Sub(a, b) => a.eval_with(lookup)?.checked_sub(b.eval_with(lookup)?).ok_or_else(overflow)?,
            Expr::Mul(a, b) => a.eval_with(lookup)?.checked_mul(b.eval_with(lookup)?).ok_or_else(overflow)?,
            Expr::FloorDiv(a, b) => {
                let (a, b) = (a.eval_with(lookup)?, b.eval_with(lookup)?);
                floor_div(a, b).ok_or_else(|| SymbolError::DivisionByZero(self.to_string()))?
            }
            Expr::Mod(a, b) => {
                let (a, b) = (a.eval_with(lookup)?, b.eval_with(lookup)?);
                let quotient = floor_div(a, b).ok_or_else(|| SymbolError::DivisionByZero(self.to_string()))?;
                a - quotient * b
            }
            Expr::Min(a, b) => a.eval_with(lookup)?.min(b.eval_with(lookup)?),
            Expr::Max(a, b) => a.eval_with(lookup)?.max(b.eval_with(lookup)?),
            Expr::Element(..) => return Err(SymbolError::Element(self.to_string())),
        })
    }

    /// The same expression with symbols replaced; symbols absent from `with` stay.
    pub fn substitute(&self, with: &BTreeMap<String, Expr>) -> Expr {
        match self {
            Expr::Int(_) => self.clone(),
            Expr::Sym(name) => with.get(name).cloned().unwrap_or_else(|| self.clone()),
            Expr::Add(a, b) => a.substitute(with) + b.substitute(with),
            Expr::Sub(a, b) => a.substitute(with) - b.substitute(with),
            Expr::Mul(a, b) => a.substitute(with) * b.substitute(with),
            Expr::FloorDiv(a, b) => a.substitute(with).floor_div(b.substitute(with)),
            Expr::Mod(a, b) => a.substitute(with).modulo(b.substitute(with)),
            Expr::Min(a, b) => a.substitute(with).min(b.substitute(with)),
            Expr::Max(a, b) => a.substitute(with).max(b.substitute(with)),
            Expr::Element(data, subscripts) => {
                Expr::Element(data.clone(), subscripts.iter().map(|subscript| subscript.substitute(with)).collect())
            }
        }
    }

    /// Every symbol that occurs, in alphabetical order.
    pub fn symbols(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        self.walk(&mut |part| {
            if let Expr::Sym(name) = part
                && !found.contains(name)
            {
                found.insert(name.clone());
            }
        });
        found
    }

    /// Calls `visit` on every part, the whole first.
    fn walk(&self, visit: &mut dyn FnMut(&Expr)) {
        visit(self);
        match self {
            Expr::Int(_) | Expr::Sym(_) => {}
            Expr::Add(a, b)
            | Expr::Sub(a, b)
            | Expr::Mul(a, b)
            | Expr::FloorDiv(a, b)
            | Expr::Mod(a, b)
            | Expr::Min(a, b)
            | Expr::Max(a, b) => {
                a.walk(visit);
                b.walk(visit);
            }
            Expr::Element(_, subscripts) => subscripts.iter().for_each(|subscript| subscript.walk(visit)),
        }
    }

    /// The containers of which it takes elements.
    pub fn collect_indexing_containers(&self, into: &mut BTreeSet<String>) {
        self.walk(&mut |part| {
            if let Expr::Element(data, _) = part {
                into.insert(data.clone());
            }
        });
    }

    /// Whether any part of it is an element of a container.
    pub fn reads_elements(&self) -> bool {
        let mut found = false;
        self.walk(&mut |part| found |= matches!(part, Expr::Element(..)));
        found
    }

    pub fn as_int(&self) -> Option<i64> {
        if let Expr::Int(value) = self { Some(*value) } else { None }
    }

    pub fn as_sym(&self) -> Option<&str> {
        if let Expr::Sym(name) = self { Some(name) } else { None }
    }

    pub fn floor_div(self, by: Expr) -> Expr {
        match (&self, &by) {
            (_, Expr::Int(1)) => self,
            (Expr::Int(a), Expr::Int(b)) => match floor_div(*a, *b) {
                Some(value) => Expr::Int(value),
                None => Expr::FloorDiv(Box::new(self), Box::new(by)),
            },
            _ => Expr::FloorDiv(Box::new(self), Box::new(by)),
        }
    }

    pub fn modulo(self, by: Expr) -> Expr {
        match (&self, &by) {
            (_, Expr::Int(1)) => Expr::Int(0),
            (Expr::Int(a), Expr::Int(b)) if *b != 0 && floor_div(*a, *b).is_some() => {
                Expr::Int(a.rem_euclid(*b) + if *b < 0 && a.rem_euclid(*b) != 0 { *b } else { 0 })
            }
            _ => Expr::Mod(Box::new(self), Box::new(by)),
        }
    }

    #[allow(clippy::should_implement_trait)]
    pub fn min(self, other: Expr) -> Expr {
        match (&self, &other) {
            (Expr::Int(a), Expr::Int(b)) => Expr::Int(*a.min(b)),
            _ if self == other => self,
            _ => Expr::Min(Box::new(self), Box::new(other)),
        }
    }

    #[allow(clippy::should_implement_trait)]
    pub fn max(self, other: Expr) -> Expr {
        match (&self, &other) {
            (Expr::Int(a), Expr::Int(b)) => Expr::Int(*a.max(b)),
            _ if self == other => self,
            _ => Expr::Max(Box::new(self), Box::new(other)),
        }
    }

    /// `index` or `index + offset`, as (index, offset); the offset mentions no index.
    pub fn as_shifted_index(&self, is_index: impl Fn(&str) -> bool) -> Option<(&str, Expr)> {
        match self {
            Expr::Sym(name) if is_index(name) => Some((name, Expr::Int(0))),
            Expr::Add(index, offset) => match index.as_ref() {
                Expr::Sym(name) if is_index(name) && !offset.symbols().iter().any(|s| is_index(s)) => Some((name, (**offset).clone())),
                _ => None,
            },
            _ => None,
        }
    }

    /// The product of many expressions; the empty product is 1.
    pub fn product(factors: impl IntoIterator<Item = Expr>) -> Expr {
        factors.into_iter().fold(Expr::Int(1), |a, b| a * b)
    }
}

fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && ((a < 0) != (b < 0)) { quotient - 1 } else { quotient })
}

impl From<i64> for Expr {
    fn from(value: i64) -> Self {
        Expr::Int(value)
    }
}

impl std::ops::Add for Expr {
    type Output = Expr;
    fn add(self, other: Expr) -> Expr {
        match (&self, &other) {
            (Expr::Int(0), _) => other,
            (_, Expr::Int(0)) => self,
            (Expr::Int(a), Expr::Int(b)) if a.checked_add(*b).is_some() => Expr::Int(a + b),
            _ => Expr::Add(Box::new(self), Box::new(other)),
        }
    }
}

impl std::ops::Sub for Expr {
    type Output = Expr;
    fn sub(self, other: Expr) -> Expr {
        match (&self, &other) {
            (_, Expr::Int(0)) => self,
            (Expr::Int(a), Expr::Int(b)) if a.checked_sub(*b).is_some() => Expr::Int(a - b),
            _ if self == other => Expr::Int(0),
            _ => Expr::Sub(Box::new(self), Box::new(other)),
        }
    }
}

impl std::ops::Mul for Expr {
    type Output = Expr;
    fn mul(self, other: Expr) -> Expr {
        match (&self, &other) {
            (Expr::Int(0), _) | (_, Expr::Int(0)) => Expr::Int(0),
            (Expr::Int(1), _) => other,
            (_, Expr::Int(1)) => self,
            (Expr::Int(a), Expr::Int(b)) if a.checked_mul(*b).is_some() => Expr::Int(a * b),
            _ => Expr::Mul(Box::new(self), Box::new(other)),
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Binding strength: sums 1, products 2, atoms 3.
        fn show(e: &Expr, outer: u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let (strength, symbol, a, b) = match e {
                Expr::Int(value) if *value < 0 => return write!(f, "({value})"),
                Expr::Int(value) => return write!(f, "{value}"),
                Expr::Sym(name) => return f.write_str(name),
                Expr::Min(a, b) => return write!(f, "min({a}, {b})"),
                Expr::Max(a, b) => return write!(f, "max({a}, {b})"),
                Expr::Element(data, subscripts) => {
                    write!(f, "{}[", text::quoted_name(data))?;
                    for (n, subscript) in subscripts.iter().enumerate() {
                        write!(f, "{}{subscript}", if n > 0 { ", " } else { "" })?;
                    }
                    return f.write_str("]");
                }
                Expr::Add(a, b) => (1, "+", a, b),
                Expr::Sub(a, b) => (1, "-", a, b),
                Expr::Mul(a, b) => (2, "*", a, b),
                Expr::FloorDiv(a, b) => (2, "/", a, b),
                Expr::Mod(a, b) => (2, "%", a, b),
            };
            if strength < outer {
                f.write_str("(")?;
            }
            show(a, strength, f)?;
            f.write_str(symbol)?;
            show(b, strength + 1, f)?;
            if strength < outer {
                f.write_str(")")?;
            }
            Ok(())
        }
        show(self, 0, f)
    }
}

impl FromStr for Expr {
    type Err = SymbolError;

    /// Reads the form that `Display` prints. `/` is floor division.
    fn from_str(text: &str) -> Result<Self, SymbolError> {
        // Most are a name alone.
        if syntax::is_name(text) {
            return Ok(Expr::sym(text));
        }
        text::parse_expr(text).map_err(|error| SymbolError::Syntax {
            text: text.to_string(),
            why: format!("expected {}, but found {}", error.expected, error.found),
            at: error.column as usize - 1,
        })
    }
}

impl Serialize for Expr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Expr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
