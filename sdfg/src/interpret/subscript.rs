//! Integer expressions and memlets, resolved once, so that an element costs a few additions and no name is looked up.

use super::InterpretError;
use super::memory::Slot;
use crate::memlet::{Memlet, Range};
use crate::symbol::{Bindings, Expr, SymbolError};

/// What names mean at a point of a scope: the indices of the maps around it, which hide symbols of the same name.
pub struct PointNames<'a> {
    pub symbols: &'a Bindings,
    /// Outer to inner: name, and the smallest and largest value where they are known.
    pub indices: Vec<(String, Option<(i128, i128)>)>,
    /// What the tasklet reads, in order: subscripts may have these elements as their values.
    pub elements: Vec<Expr>,
}

/// An integer over the values of the indices around it.
#[derive(Clone, Debug, PartialEq)]
pub enum Integer {
    /// `constant + Σ coefficient · index`, indices counted from the outermost.
    Affine {
        constant: i64,
        terms: Vec<(usize, i64)>,
    },
    Call(IntegerFunction, Box<Integer>, Box<Integer>),
    /// What the tasklet's read of this number found.
    Element(usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum IntegerFunction {
    Add,
    Sub,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
}

impl Integer {
    pub fn compile(e: &Expr, names: &PointNames) -> Result<Integer, SymbolError> {
        let overflow = || SymbolError::Overflow(e.to_string());
        let (function, a, b) = match e {
            Expr::Int(value) => return Ok(Integer::Affine { constant: *value, terms: vec![] }),
            Expr::Sym(name) => {
                return match names.indices.iter().rposition(|(n, _)| n == name) {
                    Some(at) => Ok(Integer::Affine { constant: 0, terms: vec![(at, 1)] }),
                    None => match names.symbols.get(name) {
                        Some(value) => Ok(Integer::Affine { constant: *value, terms: vec![] }),
                        None => Err(SymbolError::Unbound(name.clone())),
                    },
                };
            }
            Expr::Element(..) => {
                let at = names.elements.iter().position(|element| element == e);
                return at.map(Integer::Element).ok_or_else(|| SymbolError::Element(e.to_string()));
            }
            Expr::Add(a, b) => (IntegerFunction::Add, a, b),
            Expr::Sub(a, b) => (IntegerFunction::Sub, a, b),
            Expr::Mul(a, b) => (IntegerFunction::Mul, a, b),
            Expr::FloorDiv(a, b) => (IntegerFunction::FloorDiv, a, b),
            Expr::Mod(a, b) => (IntegerFunction::Mod, a, b),
            Expr::Min(a, b) => (IntegerFunction::Min, a, b),
            Expr::Max(a, b) => (IntegerFunction::Max, a, b),
        };
        let (a, b) = (Integer::compile(a, names)?, Integer::compile(b, names)?);
        if let (Some(x), Some(y)) = (a.constant(), b.constant()) {
            let value = function.checked(x, y).ok_or_else(|| {
                let divides = matches!(function, IntegerFunction::FloorDiv | IntegerFunction::Mod) && y == 0;
                if divides { SymbolError::DivisionByZero(e.to_string()) } else { overflow() }
            })?;
            return Ok(Integer::Affine { constant: value, terms: vec![] });
        }
        match (function, &a, &b) {
            (IntegerFunction::Add, Integer::Affine { .. }, Integer::Affine { .. }) => a.plus(&b, 1).ok_or_else(overflow),
            (IntegerFunction::Sub, Integer::Affine { .. }, Integer::Affine { .. }) => a.plus(&b, -1).ok_or_else(overflow),
            (IntegerFunction::Mul, Integer::Affine { .. }, _) if b.constant().is_some() => {
                a.times(b.constant().unwrap_or(1)).ok_or_else(overflow)
            }
            (IntegerFunction::Mul, _, Integer::Affine { .. }) if a.constant().is_some() => {
                b.times(a.constant().unwrap_or(1)).ok_or_else(overflow)
            }
            _ => Ok(Integer::Call(function, Box::new(a), Box::new(b))),
        }
    }

    /// The value, if no index is involved.
    pub fn constant(&self) -> Option<i64> {
        match self {
            Integer::Affine { constant, terms } if terms.is_empty() => Some(*constant),
            _ => None,
        }
    }

    /// `self + factor · other`, both affine.
    fn plus(&self, other: &Integer, factor: i64) -> Option<Integer> {
        let (Integer::Affine { constant: a, terms: x }, Integer::Affine { constant: b, terms: y }) = (self, other) else { return None };
        let mut terms = x.clone();
        for (index, coefficient) in y {
            let coefficient = coefficient.checked_mul(factor)?;
            match terms.iter_mut().find(|(i, _)| i == index) {
                Some((_, c)) => *c = c.checked_add(coefficient)?,
                None => terms.push((*index, coefficient)),
            }
        }
        terms.retain(|(_, c)| *c != 0);
        Some(Integer::Affine { constant: a.checked_add(b.checked_mul(factor)?)?, terms })
    }

    fn times(&self, factor: i64) -> Option<Integer> {
        Integer::Affine { constant: 0, terms: vec![] }.plus(self, factor)
    }

    /// The value at a point; `None` where it divides by zero or overflows.
    pub fn eval(&self, at: &[i64]) -> Option<i64> {
        self.eval_with(at, &[])
    }

    /// The same where the tasklet has read these values.
    pub fn eval_with(&self, at: &[i64], reads: &[f64]) -> Option<i64> {
        match self {
            Integer::Affine { constant, terms } => {
                let mut value = *constant;
                for (index, coefficient) in terms {
                    value = value.checked_add(coefficient.checked_mul(at[*index])?)?;
                }
                Some(value)
            }
            Integer::Call(function, a, b) => function.checked(a.eval_with(at, reads)?, b.eval_with(at, reads)?),
            Integer::Element(n) => reads.get(*n).filter(|v| v.fract() == 0.0 && v.abs() < 2f64.powi(53)).map(|v| *v as i64),
        }
    }

    /// Whether it depends on what the tasklet reads.
    pub fn reads(&self) -> bool {
        match self {
            Integer::Affine { .. } => false,
            Integer::Call(_, a, b) => a.reads() || b.reads(),
            Integer::Element(_) => true,
        }
    }

    /// Bounds of the value over all iterations, where they are known.
    pub fn hull(&self, names: &PointNames) -> Option<(i128, i128)> {
        match self {
            Integer::Affine { constant, terms } => {
                let (mut low, mut high) = (i128::from(*constant), i128::from(*constant));
                for (index, coefficient) in terms {
                    let (first, last) = names.indices.get(*index)?.1?;
                    let ends = (first.checked_mul(i128::from(*coefficient))?, last.checked_mul(i128::from(*coefficient))?);
                    low = low.checked_add(ends.0.min(ends.1))?;
                    high = high.checked_add(ends.0.max(ends.1))?;
                }
                Some((low, high))
            }
            Integer::Element(_) => None,
            Integer::Call(function, a, b) => {
                let (a, b) = (a.hull(names)?, b.hull(names)?);
                match function {
                    IntegerFunction::Add => Some((a.0.checked_add(b.0)?, a.1.checked_add(b.1)?)),
                    IntegerFunction::Sub => Some((a.0.checked_sub(b.1)?, a.1.checked_sub(b.0)?)),
                    IntegerFunction::Min => Some((a.0.min(b.0), a.1.min(b.1))),
                    IntegerFunction::Max => Some((a.0.max(b.0), a.1.max(b.1))),
                    IntegerFunction::Mul | IntegerFunction::FloorDiv | IntegerFunction::Mod => None,
                }
            }
        }
    }
}

impl IntegerFunction {
    fn checked(self, a: i64, b: i64) -> Option<i64> {
        match self {
            IntegerFunction::Add => a.checked_add(b),
            IntegerFunction::Sub => a.checked_sub(b),
            IntegerFunction::Mul => a.checked_mul(b),
            IntegerFunction::FloorDiv => {
                let quotient = a.checked_div(b)?;
                Some(if a % b != 0 && ((a < 0) != (b < 0)) { quotient - 1 } else { quotient })
            }
            IntegerFunction::Mod => {
                let remainder = a.checked_rem(b)?;
                Some(if remainder != 0 && ((remainder < 0) != (b < 0)) { remainder + b } else { remainder })
            }
            IntegerFunction::Min => Some(a.min(b)),
            IntegerFunction::Max => Some(a.max(b)),
        }
    }
}

/// Where the one element of a memlet lies.
#[derive(Clone, Debug)]
pub struct ElementAccess {
    pub buffer: usize,
    pub place: ElementAddress,
    /// The memlet as it prints, for errors.
    pub memlet: String,
}

#[derive(Clone, Debug)]
pub enum ElementAddress {
    /// Proved to be inside the container at every point.
    Inside { base: i64, terms: Vec<(usize, i64)> },
    /// Decided at each point.
    Checked { base: usize, dims: Vec<Dim>, fill: Option<f64> },
}

#[derive(Clone, Debug)]
pub struct Dim {
    pub subscript: Integer,
    pub size: usize,
    pub stride: usize,
}

/// One element of a buffer, the fill value of a memlet, or nothing that exists.
pub enum LocatedElement {
    At(usize),
    Fill(f64),
    Outside,
}

impl ElementAccess {
    pub fn compile(user: &str, memlet: &Memlet, slot: &Slot, names: &PointNames) -> Result<ElementAccess, InterpretError> {
        if memlet.subset.len() != slot.shape.len() {
            return Err(InterpretError::Rank { user: user.into(), memlet: memlet.to_string(), rank: slot.shape.len() });
        }
        let mut dims = Vec::with_capacity(slot.shape.len());
        let mut inside = true;
        for ((range, size), stride) in memlet.subset.iter().zip(&slot.shape).zip(&slot.strides) {
            let at = match range {
                Range::At(at) => at,
                // A range of one element is an element.
                Range::Span { start, .. } if range.count() == Expr::Int(1) => start,
                Range::Span { .. } => return Err(InterpretError::NotOneElement { user: user.into(), memlet: memlet.to_string() }),
            };
            let subscript = Integer::compile(at, names).map_err(|source| InterpretError::Symbol { user: user.into(), source })?;
            let fits = subscript.hull(names).is_some_and(|(low, high)| low >= 0 && high < *size as i128);
            inside &= fits && matches!(subscript, Integer::Affine { .. });
            dims.push(Dim { subscript, size: *size, stride: *stride });
        }
        let place = if inside { linear(slot.base, &dims) } else { None };
        let place = place.unwrap_or(ElementAddress::Checked { base: slot.base, dims, fill: memlet.fill });
        Ok(ElementAccess { buffer: slot.buffer, place, memlet: memlet.to_string() })
    }

    /// The reads whose values are subscripts.
    pub fn elements(&self) -> impl Iterator<Item = usize> + '_ {
        let dims = if let ElementAddress::Checked { dims, .. } = &self.place { dims.as_slice() } else { &[] };
        dims.iter().filter_map(|dim| if let Integer::Element(n) = &dim.subscript { Some(*n) } else { None })
    }

    /// Whether subscripts depend on what the tasklet reads.
    pub fn follows_reads(&self) -> bool {
        matches!(&self.place, ElementAddress::Checked { dims, .. } if dims.iter().any(|dim| dim.subscript.reads()))
    }

    #[inline]
    pub fn locate(&self, at: &[i64], reads: &[f64]) -> LocatedElement {
        match &self.place {
            ElementAddress::Inside { base, terms } => {
                let mut position = *base;
                for (index, coefficient) in terms {
                    position += coefficient * at[*index];
                }
                LocatedElement::At(position as usize)
            }
            ElementAddress::Checked { base, dims, fill } => {
                let mut position = *base;
                for dim in dims {
                    match dim.subscript.eval_with(at, reads) {
                        Some(value) if value >= 0 && (value as u64) < dim.size as u64 => position += value as usize * dim.stride,
                        _ => return fill.map_or(LocatedElement::Outside, LocatedElement::Fill),
                    }
                }
                LocatedElement::At(position)
            }
        }
    }
}

/// One affine position out of affine subscripts.
fn linear(base: usize, dims: &[Dim]) -> Option<ElementAddress> {
    let mut position = Integer::Affine { constant: i64::try_from(base).ok()?, terms: vec![] };
    for dim in dims {
        position = position.plus(&dim.subscript, i64::try_from(dim.stride).ok()?)?;
    }
    match position {
        Integer::Affine { constant, terms } => Some(ElementAddress::Inside { base: constant, terms }),
        Integer::Call(..) | Integer::Element(_) => None,
    }
}
