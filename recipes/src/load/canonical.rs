//! Sizes in one form, so that equal sizes are equal expressions: `(h + 2 - 3)/1 + 1` is `h`, and `(h - 1)/2 + 1` is `(h + 1)/2`.
//!
//! A sum has each of its terms once, in order of appearance, and its constant last. Within a division by a positive number the constant
//! is at least 0 and below that number, no term is a multiple of it, and a division of a division is one: `⌊(⌊a/m⌋ + c)/n⌋` is
//! `⌊(a + m·c)/(m·n)⌋`.

use sdfg::Expr;

/// `Σ factor · term + constant`.
#[derive(Clone, Debug, Default)]
struct Sum {
    terms: Vec<(Expr, i64)>,
    constant: i64,
}

/// The form of an expression; the expression itself where its numbers are too large to be reckoned with.
pub fn canonical(expr: &Expr) -> Expr {
    sum(expr).map_or_else(|| expr.clone(), built)
}

fn sum(expr: &Expr) -> Option<Sum> {
    Some(match expr {
        Expr::Int(value) => Sum { terms: vec![], constant: *value },
        Expr::Sym(_) => term(expr.clone()),
        Expr::Add(a, b) => plus(sum(a)?, &sum(b)?, 1)?,
        Expr::Sub(a, b) => plus(sum(a)?, &sum(b)?, -1)?,
        Expr::Mul(a, b) => match (sum(a)?, sum(b)?) {
            (Sum { terms, constant }, other) | (other, Sum { terms, constant }) if terms.is_empty() => {
                plus(Sum::default(), &other, constant)?
            }
            (a, b) => term(built(a) * built(b)),
        },
        Expr::FloorDiv(a, b) => match (sum(a)?, sum(b)?) {
            (over, Sum { terms, constant: by }) if terms.is_empty() && by > 0 => divided(over, by)?,
            (a, b) => term(built(a).floor_div(built(b))),
        },
        Expr::Mod(a, b) => term(canonical(a).modulo(canonical(b))),
        Expr::Min(a, b) => term(canonical(a).min(canonical(b))),
        Expr::Max(a, b) => term(canonical(a).max(canonical(b))),
        Expr::Element(..) => term(expr.clone()),
    })
}

fn term(of: Expr) -> Sum {
    match of {
        Expr::Int(constant) => Sum { terms: vec![], constant },
        of => Sum { terms: vec![(of, 1)], constant: 0 },
    }
}

/// `a + factor · b`.
fn plus(mut a: Sum, b: &Sum, factor: i64) -> Option<Sum> {
    a.constant = a.constant.checked_add(b.constant.checked_mul(factor)?)?;
    for (term, count) in &b.terms {
        let count = count.checked_mul(factor)?;
        match a.terms.iter_mut().find(|(known, _)| known == term) {
            Some((_, known)) => *known = known.checked_add(count)?,
            None => a.terms.push((term.clone(), count)),
        }
    }
    a.terms.retain(|(_, count)| *count != 0);
    Some(a)
}

/// `⌊over / by⌋`.
fn divided(over: Sum, by: i64) -> Option<Sum> {
    if let [(Expr::FloorDiv(inner, of), 1)] = over.terms.as_slice()
        && let Expr::Int(of) = **of
        && of > 0
    {
        let inner = plus(sum(inner)?, &Sum { terms: vec![], constant: over.constant }, of)?;
        return divided(inner, of.checked_mul(by)?);
    }
    let (whole, rest): (Vec<_>, Vec<_>) = over.terms.into_iter().partition(|(_, count)| count % by == 0);
    let whole = whole.into_iter().map(|(term, count)| (term, count / by)).collect();
    let quotient = Sum { terms: whole, constant: over.constant.div_euclid(by) };
    if rest.is_empty() {
        return Some(quotient);
    }
    let rest = built(Sum { terms: rest, constant: over.constant.rem_euclid(by) });
    plus(quotient, &term(rest.floor_div(Expr::Int(by))), 1)
}

/// Terms that are added, then those that are subtracted, then the constant.
fn built(sum: Sum) -> Expr {
    let (added, taken): (Vec<_>, Vec<_>) = sum.terms.into_iter().partition(|(_, count)| *count > 0);
    let mut whole: Option<Expr> = None;
    for (term, count) in added {
        let term = Expr::Int(count) * term;
        whole = Some(whole.map_or(term.clone(), |whole| whole + term));
    }
    let mut constant = sum.constant;
    let mut whole = whole.unwrap_or_else(|| Expr::Int(std::mem::take(&mut constant)));
    for (term, count) in taken {
        whole = whole - Expr::Int(count.saturating_neg()) * term;
    }
    match constant {
        i64::MIN..0 => whole - Expr::Int(constant.saturating_neg()),
        _ => whole + Expr::Int(constant),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use sdfg::Bindings;

    #[test]
    fn equal_sizes_are_equal_expressions() {
        for (written, form) in [
            ("(h + 2*1 - 3)/1 + 1", "h"),
            ("(h - 1)/2 + 1", "(h+1)/2"),
            ("(h + 2*3 - 7)/2 + 1", "(h+1)/2"),
            ("((h + 1)/2 - 1)/2 + 1", "(h+3)/4"),
            ("(2*h - 3)/2 + 1", "h-1"),
            ("a + b + a", "2*a+b"),
            ("i*4", "4*i"),
            ("8 - h", "8-h"),
            ("3*(h - w) - h", "2*h-3*w"),
            ("h*w/2", "h*w/2"),
            ("7/2", "3"),
        ] {
            assert_eq!(canonical(&written.parse().unwrap()).to_string(), form, "{written}");
        }
    }

    fn expressions() -> impl Strategy<Value = Expr> {
        let leaf = prop_oneof![(-9i64..10).prop_map(Expr::Int), prop_oneof![Just("h"), Just("w")].prop_map(Expr::sym)];
        leaf.prop_recursive(4, 24, 2, |inner| {
            (inner.clone(), inner, 0..5, 1i64..6).prop_map(|(a, b, op, by)| match op {
                0 => Expr::Add(Box::new(a), Box::new(b)),
                1 => Expr::Sub(Box::new(a), Box::new(b)),
                2 => Expr::Mul(Box::new(a), Box::new(Expr::Int(by - 3))),
                3 => Expr::Min(Box::new(a), Box::new(b)),
                _ => Expr::FloorDiv(Box::new(a), Box::new(Expr::Int(by))),
            })
        })
    }

    proptest! {
        #[test]
        fn the_form_has_the_value_of_the_expression(expr in expressions(), h in -20i64..40, w in -20i64..40) {
            let sizes = Bindings::from([("h".to_string(), h), ("w".to_string(), w)]);
            prop_assert_eq!(canonical(&expr).eval(&sizes), expr.eval(&sizes));
        }
    }
}
