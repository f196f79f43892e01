//! Affine forms of symbolic integers: whole-number multiples of indices, and a rest that mentions no index.
//!
//! Subscripts are affine in the indices of an operation, as in `2*p + r - 1`. [`Affine`] is such a subscript taken apart, and
//! [`interval`] the least and the greatest value that any expression takes.

use crate::symbol::Expr;

/// `Σ coefficient · index + offset`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affine {
    /// Indices with their coefficients, in order of appearance; no coefficient is 0.
    pub terms: Vec<(String, i64)>,
    /// What mentions no index: sizes and numbers.
    pub offset: Expr,
}

impl Affine {
    /// The affine form of an expression; `None` if an index has no whole-number coefficient in it.
    pub fn of(e: &Expr, is_index: &dyn Fn(&str) -> bool) -> Option<Affine> {
        let constant = |offset: &Expr| Affine { terms: vec![], offset: offset.clone() };
        Some(match e {
            Expr::Int(_) => constant(e),
            Expr::Sym(name) if is_index(name) => Affine { terms: vec![(name.clone(), 1)], offset: Expr::Int(0) },
            Expr::Sym(_) => constant(e),
            Expr::Add(a, b) => Affine::of(a, is_index)?.plus(Affine::of(b, is_index)?, 1)?,
            Expr::Sub(a, b) => Affine::of(a, is_index)?.plus(Affine::of(b, is_index)?, -1)?,
            Expr::Mul(a, b) => {
                let (a, b) = (Affine::of(a, is_index)?, Affine::of(b, is_index)?);
                match (a.offset.as_int().filter(|_| a.terms.is_empty()), b.offset.as_int().filter(|_| b.terms.is_empty())) {
                    (Some(by), _) => b.times(by)?,
                    (_, Some(by)) => a.times(by)?,
                    _ if a.terms.is_empty() && b.terms.is_empty() => constant(e),
                    _ => return None,
                }
            }
            Expr::FloorDiv(..) | Expr::Mod(..) | Expr::Min(..) | Expr::Max(..) => {
                let mentions = e.symbols().iter().any(|s| is_index(s));
                return (!mentions).then(|| constant(e));
            }
            Expr::Element(..) => return None,
        })
    }

    /// The coefficient of an index; 0 if it does not occur.
    pub fn coefficient(&self, index: &str) -> i64 {
        self.terms.iter().find(|(name, _)| name == index).map_or(0, |(_, by)| *by)
    }

    /// The form without one index.
    pub fn without(&self, index: &str) -> Affine {
        Affine { terms: self.terms.iter().filter(|(name, _)| name != index).cloned().collect(), offset: self.offset.clone() }
    }

    /// `self + by · other`; `None` where a coefficient overflows.
    pub fn plus(mut self, other: Affine, by: i64) -> Option<Affine> {
        for (name, coefficient) in other.terms {
            let more = coefficient.checked_mul(by)?;
            match self.terms.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = known.checked_add(more)?,
                None => self.terms.push((name, more)),
            }
        }
        self.terms.retain(|(_, coefficient)| *coefficient != 0);
        self.offset = match by {
            1 => sum(self.offset, other.offset),
            -1 => difference(self.offset, other.offset),
            by => sum(self.offset, Expr::Int(by) * other.offset),
        };
        Some(self)
    }

    /// `by · self`; `None` where a coefficient overflows.
    pub fn times(self, by: i64) -> Option<Affine> {
        Affine { terms: vec![], offset: Expr::Int(0) }.plus(self, by)
    }

    /// The expression in one form for all that is equal up to the order of its terms' parts: positive terms, sizes, negative terms, the
    /// number.
    pub fn expr(&self) -> Expr {
        let term = |name: &String, by: i64| Expr::Int(by) * Expr::sym(name);
        // Sizes are added up as indices are, where they have whole-number multiples too.
        let sizes = Affine::of(&self.offset, &|_| true);
        let (mut terms, offset) = (self.terms.clone(), sizes.as_ref().map_or(&self.offset, |sizes| &sizes.offset));
        terms.extend(sizes.iter().flat_map(|sizes| sizes.terms.iter().cloned()));
        let (rest, number) = split(offset);
        let positive = terms.iter().filter(|(_, by)| *by > 0).map(|(name, by)| term(name, *by));
        let whole = positive.chain([rest]).fold(Expr::Int(0), |whole, part| whole + part);
        let negative = terms.iter().filter(|(_, by)| *by < 0);
        // Where nothing stands before a minus, the number does.
        let (whole, number) = if whole == Expr::Int(0) && number > 0 { (Expr::Int(number), 0) } else { (whole, number) };
        let whole = negative.fold(whole, |whole, (name, by)| whole - term(name, by.saturating_neg()));
        if number < 0 && number != i64::MIN { whole - Expr::Int(-number) } else { whole + Expr::Int(number) }
    }
}

/// `a + b` with their numbers added up.
fn sum(a: Expr, b: Expr) -> Expr {
    let ((a_rest, a_number), (b_rest, b_number)) = (split(&a), split(&b));
    match a_number.checked_add(b_number) {
        Some(number) => with_number(a_rest + b_rest, number),
        None => a + b,
    }
}

/// `a - b` with their numbers subtracted.
fn difference(a: Expr, b: Expr) -> Expr {
    let ((a_rest, a_number), (b_rest, b_number)) = (split(&a), split(&b));
    match a_number.checked_sub(b_number) {
        Some(number) => with_number(a_rest - b_rest, number),
        None => a - b,
    }
}

fn with_number(rest: Expr, number: i64) -> Expr {
    if number < 0 && number != i64::MIN { rest - Expr::Int(-number) } else { rest + Expr::Int(number) }
}

/// The number that is added last, and what it is added to.
fn split(e: &Expr) -> (Expr, i64) {
    match e {
        Expr::Int(number) => (Expr::Int(0), *number),
        Expr::Add(rest, number) if number.as_int().is_some() => (rest.as_ref().clone(), number.as_int().unwrap_or(0)),
        Expr::Sub(rest, number) if number.as_int().is_some_and(|n| n != i64::MIN) => (rest.as_ref().clone(), -number.as_int().unwrap_or(0)),
        other => (other.clone(), 0),
    }
}

/// The least and the greatest value of an expression whose symbols lie between the bounds that `range` gives: exact where every symbol
/// that varies occurs once. `None` where a symbol has no range or 64 bits do not hold a value.
pub fn interval(e: &Expr, range: &dyn Fn(&str) -> Option<(i64, i64)>) -> Option<(i64, i64)> {
    let both = |a: &Expr, b: &Expr| Some((interval(a, range)?, interval(b, range)?));
    Some(match e {
        Expr::Int(value) => (*value, *value),
        Expr::Sym(name) => range(name)?,
        Expr::Add(a, b) => {
            let ((a0, a1), (b0, b1)) = both(a, b)?;
            (a0.checked_add(b0)?, a1.checked_add(b1)?)
        }
        Expr::Sub(a, b) => {
            let ((a0, a1), (b0, b1)) = both(a, b)?;
            (a0.checked_sub(b1)?, a1.checked_sub(b0)?)
        }
        Expr::Mul(a, b) => {
            let ((a0, a1), (b0, b1)) = both(a, b)?;
            let corners = [a0.checked_mul(b0)?, a0.checked_mul(b1)?, a1.checked_mul(b0)?, a1.checked_mul(b1)?];
            (corners.into_iter().min()?, corners.into_iter().max()?)
        }
        Expr::FloorDiv(a, b) => {
            let ((a0, a1), (b0, b1)) = both(a, b)?;
            if b0 < 1 {
                return None;
            }
            let corners = [a0.div_euclid(b0), a0.div_euclid(b1), a1.div_euclid(b0), a1.div_euclid(b1)];
            (corners.into_iter().min()?, corners.into_iter().max()?)
        }
        Expr::Mod(a, b) => {
            let ((a0, a1), (b0, b1)) = both(a, b)?;
            match b0 {
                ..1 => return None,
                _ if b0 == b1 && a0.div_euclid(b0) == a1.div_euclid(b0) => (a0.rem_euclid(b0), a1.rem_euclid(b0)),
                _ => (0, b1 - 1),
            }
        }
        Expr::Min(a, b) => {
            let ((a0, a1), (b0, b1)) = both(a, b)?;
            (a0.min(b0), a1.min(b1))
        }
        Expr::Max(a, b) => {
            let ((a0, a1), (b0, b1)) = both(a, b)?;
            (a0.max(b0), a1.max(b1))
        }
        Expr::Element(..) => return None,
    })
}

/// Whether an affine expression is at least 0 under all sizes. Indices, for which `size_of` gives a size, lie between 0 and one less than
/// it; all other symbols are sizes, at least 1.
pub fn never_negative(e: &Expr, size_of: &dyn Fn(&str) -> Option<Expr>) -> bool {
    let least = || -> Option<i64> {
        let whole = Affine::of(e, &|_| true)?;
        let mut sizes = Affine { terms: vec![], offset: whole.offset };
        for (name, by) in whole.terms {
            match size_of(&name) {
                Some(_) if by > 0 => {}
                Some(size) => sizes = sizes.plus(Affine::of(&(size - Expr::Int(1)), &|_| true)?, by)?,
                None => sizes = sizes.plus(Affine { terms: vec![(name, 1)], offset: Expr::Int(0) }, by)?,
            }
        }
        let grows = sizes.terms.iter().all(|(_, by)| *by > 0);
        sizes.terms.iter().filter(|_| grows).try_fold(sizes.offset.as_int().filter(|_| grows)?, |sum, (_, by)| sum.checked_add(*by))
    };
    least().is_some_and(|least| least >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Option<Affine> {
        Affine::of(&text.parse().unwrap(), &|name| ["p", "q", "r"].contains(&name))
    }

    #[test]
    fn equal_subscripts_print_equally() {
        for (text, canonical) in [
            ("2*p+r-1", "2*p+r-1"),
            ("r*1-1+p*2", "r+2*p-1"),
            ("2*(p+r)-2*r", "2*p"),
            ("H-1-p", "H-p-1"),
            ("0-p", "0-p"),
            ("3-p", "3-p"),
            ("p-A+2+1", "p-A+3"),
            ("p-(A-1)", "p-A+1"),
            ("p+0", "p"),
            ("7", "7"),
        ] {
            assert_eq!(form(text).unwrap().expr(), canonical.parse().unwrap(), "{text}: {}", form(text).unwrap().expr());
        }
    }

    #[test]
    fn products_and_quotients_of_indices_are_not_affine() {
        for text in ["p*q", "A*p", "p/2", "p%2", "min(p, q)"] {
            assert_eq!(form(text), None, "{text}");
        }
        assert!(form("A/2+p").is_some());
    }

    #[test]
    fn intervals_are_exact_where_symbols_occur_once() {
        let range = |name: &str| match name {
            "p" => Some((0, 4)),
            "r" => Some((0, 2)),
            _ => None,
        };
        for (text, least, most) in [("2*p+r-1", -1, 9), ("3-p", -1, 3), ("(p-1)/2", -1, 1), ("p%2", 0, 1), ("max(p, 2)", 2, 4)] {
            assert_eq!(interval(&text.parse().unwrap(), &range), Some((least, most)), "{text}");
        }
        assert_eq!(interval(&"p+x".parse().unwrap(), &range), None);
    }

    #[test]
    fn signs_are_proven_under_all_sizes() {
        let size_of = |name: &str| match name {
            "p" => Some(Expr::sym("P")),
            "q" => Some("P+Q".parse().unwrap()),
            _ => None,
        };
        for (text, proven) in [
            ("p", true),
            ("P-1-p", true),
            ("P-p", true),
            ("P-2-p", false),
            ("p-1", false),
            ("P+Q-1-q", true),
            ("Q-1-q", false),
            ("P-1", true),
            ("2*P-Q", false),
            ("P*Q", false),
        ] {
            assert_eq!(never_negative(&text.parse().unwrap(), &size_of), proven, "{text}");
        }
    }
}
