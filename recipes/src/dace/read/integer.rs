//! Whole numbers that depend on indices: affine forms, with quotients that are rounded down and elements that name rows.

use super::value::Value;
use indexmap::IndexMap;

/// An index of a step: the parameter of a map, the time of a loop, or an axis of a container. It runs from 0 to its size.
pub type Id = usize;

#[derive(Clone, Debug, PartialEq)]
pub enum Atom {
    Index(Id),
    /// Rounded down.
    Quotient(Box<AffineInteger>, i64),
    /// The value of an element of a tensor.
    Element(Box<Value>),
}

/// `constant + Σ coefficient · atom`
#[derive(Clone, Debug, PartialEq)]
pub struct AffineInteger {
    pub constant: i64,
    pub terms: Vec<(Atom, i64)>,
}

/// How large each index is.
#[derive(Clone, Debug, Default)]
pub struct StepIndices {
    pub sizes: Vec<i64>,
}

impl StepIndices {
    pub fn add(&mut self, size: i64) -> Id {
        self.sizes.push(size);
        self.sizes.len() - 1
    }
}

/// The least and the greatest value, where they are known.
pub type IntegerBounds = (Option<i64>, Option<i64>);

impl AffineInteger {
    pub fn number(constant: i64) -> AffineInteger {
        AffineInteger { constant, terms: vec![] }
    }

    pub fn index(id: Id) -> AffineInteger {
        AffineInteger::atom(Atom::Index(id))
    }

    pub fn atom(atom: Atom) -> AffineInteger {
        AffineInteger { constant: 0, terms: vec![(atom, 1)] }
    }

    pub fn constant(&self) -> Option<i64> {
        self.terms.is_empty().then_some(self.constant)
    }

    pub fn as_index(&self) -> Option<Id> {
        match self.terms.as_slice() {
            [(Atom::Index(id), 1)] if self.constant == 0 => Some(*id),
            _ => None,
        }
    }

    /// `self + factor · other`
    pub fn plus(mut self, other: &AffineInteger, factor: i64) -> AffineInteger {
        self.constant = self.constant.saturating_add(other.constant.saturating_mul(factor));
        for (atom, coefficient) in &other.terms {
            let more = coefficient.saturating_mul(factor);
            match self.terms.iter_mut().find(|(own, _)| own == atom) {
                Some((_, own)) => *own = own.saturating_add(more),
                None => self.terms.push((atom.clone(), more)),
            }
        }
        self.terms.retain(|(_, coefficient)| *coefficient != 0);
        self
    }

    pub fn add(self, constant: i64) -> AffineInteger {
        AffineInteger { constant: self.constant.saturating_add(constant), ..self }
    }

    pub fn times(&self, factor: i64) -> AffineInteger {
        AffineInteger::number(0).plus(self, factor)
    }

    pub fn minus(self, other: &AffineInteger) -> AffineInteger {
        self.plus(other, -1)
    }

    pub fn bounds(&self, indices: &StepIndices) -> IntegerBounds {
        // `x - d * floor(x / d)` is a remainder.
        for (atom, by) in &self.terms {
            if let Atom::Quotient(of, divisor) = atom
                && by % divisor == 0
            {
                let times = -by / divisor;
                let rest = self.clone().plus(&AffineInteger::atom(atom.clone()), -by).plus(of, -times);
                if rest.terms.len() + of.terms.len() < self.terms.len() {
                    let (low, high) = rest.bounds(indices);
                    let most = times * (divisor - 1);
                    let sum = |a: Option<i64>, b: i64| a?.checked_add(b);
                    return (sum(low, most.min(0)), sum(high, most.max(0)));
                }
            }
        }
        self.bounds_of_terms(indices)
    }

    /// The same where each term is bounded by itself, as a recipe's loader does.
    pub fn bounds_of_terms(&self, indices: &StepIndices) -> IntegerBounds {
        let (mut low, mut high) = (Some(self.constant), Some(self.constant));
        for (atom, by) in &self.terms {
            let (least, most) = match atom {
                Atom::Index(id) => (Some(0), Some(indices.sizes[*id] - 1)),
                Atom::Quotient(of, divisor) => {
                    let (least, most) = of.bounds_of_terms(indices);
                    (least.map(|n| n.div_euclid(*divisor)), most.map(|n| n.div_euclid(*divisor)))
                }
                Atom::Element(_) => (None, None),
            };
            let scaled = |n: Option<i64>| n.and_then(|n| n.checked_mul(*by));
            let (least, most) = if *by > 0 { (scaled(least), scaled(most)) } else { (scaled(most), scaled(least)) };
            let sum = |a: Option<i64>, b: Option<i64>| a?.checked_add(b?);
            (low, high) = (sum(low, least), sum(high, most));
        }
        (low, high)
    }

    /// The quotient by a positive number, rounded down.
    pub fn floor_div(&self, divisor: i64, indices: &StepIndices) -> AffineInteger {
        if divisor == 1 {
            return self.clone();
        }
        let mut outside = AffineInteger::number(self.constant.div_euclid(divisor));
        let mut rest = AffineInteger::number(self.constant.rem_euclid(divisor));
        for (atom, by) in &self.terms {
            let (whole, part) = (by.div_euclid(divisor), by.rem_euclid(divisor));
            // Halves of a coefficient would only make two terms of one.
            match part {
                0 => outside.terms.push((atom.clone(), whole)),
                _ => rest.terms.push((atom.clone(), *by)),
            }
        }
        let (low, high) = rest.bounds(indices);
        if let (Some(low), Some(high)) = (low, high)
            && low.div_euclid(divisor) == high.div_euclid(divisor)
        {
            return outside.add(low.div_euclid(divisor));
        }
        let common = rest.terms.iter().fold(divisor, |g, (_, by)| gcd(g, by.abs()));
        if common > 1 {
            let smaller = AffineInteger {
                constant: rest.constant.div_euclid(common),
                terms: rest.terms.iter().map(|(atom, by)| (atom.clone(), by / common)).collect(),
            };
            return outside.plus(&smaller.floor_div(divisor / common, indices), 1);
        }
        // Terms that are whole multiples of a part of the divisor, and a rest below it.
        let parts = rest.terms.iter().map(|(_, by)| by.abs()).filter(|g| *g > 1 && divisor % g == 0);
        if let Some(part) = parts.max() {
            let (mut whole, mut below) =
                (AffineInteger::number(rest.constant.div_euclid(part)), AffineInteger::number(rest.constant.rem_euclid(part)));
            for (atom, by) in &rest.terms {
                if by % part == 0 { whole.terms.push((atom.clone(), by / part)) } else { below.terms.push((atom.clone(), *by)) }
            }
            if let (Some(0..), Some(most)) = below.bounds(indices)
                && most < part
            {
                return outside.plus(&whole.floor_div(divisor / part, indices), 1);
            }
        }
        if let ([(Atom::Quotient(of, inner), 1)], 0) = (rest.terms.as_slice(), rest.constant) {
            return outside.plus(&of.floor_div(inner * divisor, indices), 1);
        }
        outside.plus(&AffineInteger::atom(Atom::Quotient(Box::new(rest), divisor)), 1)
    }

    /// With integers in the place of indices.
    pub fn substitute(&self, by: &IndexMap<Id, AffineInteger>, indices: &StepIndices) -> AffineInteger {
        let mut made = AffineInteger::number(self.constant);
        for (atom, coefficient) in &self.terms {
            let part = match atom {
                Atom::Index(id) => by.get(id).cloned().unwrap_or_else(|| AffineInteger::index(*id)),
                Atom::Quotient(of, divisor) => of.substitute(by, indices).floor_div(*divisor, indices),
                Atom::Element(of) => AffineInteger::atom(Atom::Element(Box::new(of.substitute(by, indices)))),
            };
            made = made.plus(&part, *coefficient);
        }
        made
    }

    /// Calls `f` with every index, also those within elements.
    pub fn each_index(&self, f: &mut dyn FnMut(Id)) {
        for (atom, _) in &self.terms {
            match atom {
                Atom::Index(id) => f(*id),
                Atom::Quotient(of, _) => of.each_index(f),
                Atom::Element(of) => of.each_index(f),
            }
        }
    }

    pub fn mentions(&self, id: Id) -> bool {
        let mut found = false;
        self.each_index(&mut |own| found |= own == id);
        found
    }

    /// The coefficient of an index that stands nowhere else; `None` where it is in a quotient or an element.
    pub fn coefficient(&self, id: Id) -> Option<i64> {
        let inner = self.terms.iter().any(|(atom, _)| !matches!(atom, Atom::Index(_)) && AffineInteger::atom(atom.clone()).mentions(id));
        if inner {
            return None;
        }
        Some(self.terms.iter().find(|(atom, _)| *atom == Atom::Index(id)).map_or(0, |(_, by)| *by))
    }
}

pub fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_of_a_merged_axis_come_apart() {
        let mut indices = StepIndices::default();
        let (h, d) = (indices.add(4), indices.add(8));
        let merged = AffineInteger::index(h).times(8).plus(&AffineInteger::index(d), 1);
        let high = merged.floor_div(8, &indices);
        assert_eq!(high, AffineInteger::index(h));
        assert_eq!(merged.minus(&high.times(8)), AffineInteger::index(d));
        let quarter = AffineInteger::index(h).times(2).add(1).floor_div(4, &indices);
        assert_eq!(quarter, AffineInteger::index(h).floor_div(2, &indices));
        assert_eq!(quarter.bounds(&indices), (Some(0), Some(1)));
    }
}
