//! Derivatives of scalar code.
//!
//! Code is pulled back in reverse: a `seed` (the derivative of something by the code's value) is carried from the root
//! to each place where the connector stands, and what arrives there is added up. So a rectifier becomes a selection of
//! the seed, not a product with a selection of ones.
//!
//! Where the derivative does not exist:
//! - `max(a, c)` and `min(a, c)` with a constant `c` (a rectifier) have derivative 0 at the kink;
//! - `max(a, b)` and `min(a, b)` of two values that both vary give each one half where they are equal;
//! - `|a|` has 0 at 0; `floor` and comparisons have 0 everywhere; a condition is not differentiated;
//! - `aᵇ` has 0 by `a` where `b` is 0, and 0 by `b` where `a` is 0 and `b` is not negative.
//!
//! Where it is infinite, or a part of it is, 0 wins over infinity:
//! - a derivative that is 0 stays 0 behind a function whose own derivative has no bound ([`unbounded`]): what a `where` did not select
//!   hands nothing on. The operators select on the gradient that they read; a function that saturates (`tanh`, `sigmoid`, `erf`, `exp`)
//!   selects on its own derivative;
//! - a square hands 0 on where its base is 0, also if what arrives is infinite: a norm has derivative 0 at 0.
//!
//! Products do not select: `0 · ∞` of a factor that is itself infinite is NaN.

use crate::functions::{Growth, ScalarDerivative};
use crate::scalar::{Binary, Scalar, Unary};

/// ∂code/∂by, simplified. 0 where `code` does not read `by`.
pub fn derivative(code: &Scalar, by: &str) -> Scalar {
    pullback(code, by, Scalar::Const(1.0))
}

/// seed · ∂code/∂by, simplified.
pub fn pullback(code: &Scalar, by: &str, seed: Scalar) -> Scalar {
    if !code.inputs().contains(by) || seed == Scalar::Const(0.0) {
        return Scalar::Const(0.0);
    }
    match code {
        Scalar::Input(_) => seed,
        Scalar::Const(_) | Scalar::Index(_) | Scalar::Keep { .. } | Scalar::Kept { .. } => Scalar::Const(0.0),
        Scalar::Unary(op, a) => unary(*op, a, by, seed),
        Scalar::Binary(op, a, b) => binary(*op, a, b, by, seed),
        Scalar::Select(condition, a, b) => select((**condition).clone(), pullback(a, by, seed.clone()), pullback(b, by, seed)),
    }
}

fn unary(op: Unary, a: &Scalar, by: &str, seed: Scalar) -> Scalar {
    let value = Scalar::unary(op, a.clone());
    match op.row().derivative {
        ScalarDerivative::Pull(pull) => pullback(a, by, pull(seed, a, &value)),
        ScalarDerivative::Saturating { scale, slope } => {
            let slope = slope(a, &value);
            let inner = pullback(a, by, seed * Scalar::Const(scale) * slope.clone());
            if unbounded(a, by) { select(compare(Binary::Eq, &slope, &Scalar::Const(0.0)), Scalar::Const(0.0), inner) } else { inner }
        }
    }
}

fn binary(op: Binary, a: &Scalar, b: &Scalar, by: &str, seed: Scalar) -> Scalar {
    // Seeds are built only for the side that reads `by`: the other may be undefined (the logarithm of a negative base).
    let (left, right) = (a.inputs().contains(by), b.inputs().contains(by));
    let side =
        |reads: bool, code: &Scalar, inner: &dyn Fn() -> Scalar| if reads { pullback(code, by, inner()) } else { Scalar::Const(0.0) };
    match op {
        Binary::Add => side(left, a, &|| seed.clone()) + side(right, b, &|| seed.clone()),
        Binary::Sub => side(left, a, &|| seed.clone()) + side(right, b, &|| negative(seed.clone())),
        Binary::Mul if a == b => square(a, by, seed),
        Binary::Mul => side(left, a, &|| seed.clone() * b.clone()) + side(right, b, &|| seed.clone() * a.clone()),
        Binary::Div => {
            // Not a/(b·b), which leaves the range where the quotient is an ordinary number.
            side(left, a, &|| seed.clone() / b.clone()) + side(right, b, &|| negative(seed.clone() * (a.clone() / b.clone()) / b.clone()))
        }
        Binary::Max | Binary::Min => {
            let (wins, loses) = if op == Binary::Max { (Binary::Gt, Binary::Lt) } else { (Binary::Lt, Binary::Gt) };
            let zero = || Scalar::Const(0.0);
            // Each side's derivative stands in the code once, however deep extrema are nested: what it is multiplied with tells a tie.
            let half_of_ties = |won: &Scalar, of: Scalar| of * select(won.clone(), Scalar::Const(1.0), Scalar::Const(0.5));
            let (a_wins, b_wins) = (compare(wins, a, b), compare(loses, a, b));
            if b.inputs().is_empty() {
                select(a_wins, pullback(a, by, seed), zero())
            } else if a.inputs().is_empty() {
                select(b_wins, pullback(b, by, seed), zero())
            } else {
                select(b_wins.clone(), zero(), side(left, a, &|| half_of_ties(&a_wins, seed.clone())))
                    + select(a_wins.clone(), zero(), side(right, b, &|| half_of_ties(&b_wins, seed.clone())))
            }
        }
        Binary::Pow if *b == Scalar::Const(2.0) => square(a, by, seed),
        Binary::Pow => {
            let zero = || Scalar::Const(0.0);
            let by_base = || seed.clone() * (b.clone() * power(a.clone(), b.clone() - Scalar::Const(1.0)));
            let by_exponent = || seed.clone() * (power(a.clone(), b.clone()) * Scalar::unary(Unary::Log, a.clone()));
            let constant = Scalar::binary(Binary::Eq, b.clone(), zero());
            let at_zero = Scalar::binary(Binary::And, compare(Binary::Eq, a, &zero()), compare(Binary::Ge, b, &zero()));
            let by_base = || if matches!(b, Scalar::Const(_)) { by_base() } else { select(constant.clone(), zero(), by_base()) };
            side(left, a, &by_base) + side(right, b, &|| select(at_zero.clone(), zero(), by_exponent()))
        }
        Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge | Binary::Eq | Binary::Ne | Binary::And | Binary::Or => Scalar::Const(0.0),
    }
}

/// The derivative of `a²`: 0 where `a` is 0, also for an infinite seed. A seed that is NaN is handed on if the seed is a plain input,
/// which can be compared.
fn square(a: &Scalar, by: &str, seed: Scalar) -> Scalar {
    let (zero, infinity) = (Scalar::Const(0.0), Scalar::Const(f64::INFINITY));
    let at_zero = compare(Binary::Eq, a, &zero);
    if let Scalar::Const(seed) = &seed {
        return pullback(a, by, Scalar::Const(2.0 * seed) * a.clone());
    }
    let hidden = match &seed {
        Scalar::Input(_) => {
            let infinite = Scalar::binary(Binary::Eq, Scalar::unary(Unary::Abs, seed.clone()), infinity);
            Scalar::binary(Binary::And, at_zero, infinite)
        }
        _ => at_zero,
    };
    pullback(a, by, select(hidden, zero, seed * (Scalar::Const(2.0) * a.clone())))
}

/// Whether ∂code/∂by can be infinite or NaN where everything read is finite, so that a gradient of 0 must not be multiplied with it.
pub fn unbounded(code: &Scalar, by: &str) -> bool {
    let reads = |code: &Scalar| code.inputs().contains(by);
    let within = |code: &Scalar| reads(code) && unbounded(code, by);
    match code {
        Scalar::Unary(op, a) => match (op.row().growth, op.row().derivative) {
            (Growth::Steep, _) => reads(a),
            // A polynomial is large only where they have saturated, and then they select.
            (Growth::Bounded, ScalarDerivative::Saturating { .. }) => within(a) && !polynomial(a),
            _ => within(a),
        },
        Scalar::Binary(Binary::Div, a, b) => reads(b) || within(a) || reads(a) && !b.inputs().is_empty(),
        Scalar::Binary(Binary::Pow, a, b) => match **b {
            Scalar::Const(1.0 | 2.0) => within(a),
            _ => reads(a) || reads(b),
        },
        Scalar::Binary(Binary::Mul, a, b) => within(a) || within(b) || reads(a) && grows(b) || reads(b) && grows(a),
        Scalar::Binary(_, a, b) => within(a) || within(b),
        Scalar::Select(_, a, b) => within(a) || within(b),
        _ => false,
    }
}

fn polynomial(code: &Scalar) -> bool {
    let own = match code {
        Scalar::Unary(op, _) => *op == Unary::Neg,
        Scalar::Binary(op, _, _) => matches!(op, Binary::Add | Binary::Sub | Binary::Mul),
        Scalar::Select(..) => false,
        _ => true,
    };
    own && code.operands().into_iter().all(polynomial)
}

/// Whether a value may be infinite or NaN where everything that it reads is an ordinary number.
fn grows(code: &Scalar) -> bool {
    match code {
        Scalar::Unary(op, a) => match op.row().growth {
            Growth::Steep => !a.inputs().is_empty(),
            Growth::Bounded => false,
            Growth::Linear => grows(a),
        },
        Scalar::Binary(Binary::Div, _, b) if !b.inputs().is_empty() => true,
        Scalar::Binary(Binary::Pow, ..) => !code.inputs().is_empty(),
        Scalar::Binary(Binary::Mul, a, b) if !a.inputs().is_empty() && !b.inputs().is_empty() => true,
        Scalar::Select(_, a, b) => grows(a) || grows(b),
        other => other.operands().into_iter().any(grows),
    }
}

/// A connector replaced by code, folding what becomes constant.
pub fn fold_inline(code: &Scalar, connector: &str, by: &Scalar) -> Scalar {
    code.inline(connector, by).rewrite(&mut |s| match s {
        Scalar::Binary(Binary::Add, a, b) => *a + *b,
        Scalar::Binary(Binary::Sub, a, b) => *a - *b,
        Scalar::Binary(Binary::Mul, a, b) => *a * *b,
        Scalar::Binary(Binary::Div, a, b) => *a / *b,
        Scalar::Unary(Unary::Neg, a) => negative(*a),
        other => other,
    })
}

pub(crate) fn compare(op: Binary, a: &Scalar, b: &Scalar) -> Scalar {
    Scalar::binary(op, a.clone(), b.clone())
}

pub(crate) fn negative(a: Scalar) -> Scalar {
    match a {
        Scalar::Unary(Unary::Neg, inner) => *inner,
        other => Scalar::unary(Unary::Neg, other),
    }
}

pub(crate) fn select(condition: Scalar, a: Scalar, b: Scalar) -> Scalar {
    if a == b { a } else { Scalar::select(condition, a, b) }
}

fn power(base: Scalar, exponent: Scalar) -> Scalar {
    match exponent {
        Scalar::Const(0.0) => Scalar::Const(1.0),
        Scalar::Const(1.0) => base,
        exponent => Scalar::binary(Binary::Pow, base, exponent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each side of an extremum stands once in the derivative: with both copied for ties, 40 levels would have 2⁴⁰ of them.
    #[test]
    fn derivatives_of_nested_extrema_stay_small() {
        let nested = |wrap: &dyn Fn(Scalar, f64) -> Scalar| (0..40).fold(Scalar::input("x"), |code, k| wrap(code, f64::from(k)));
        let scaled = |k: f64| Scalar::Const(k) * Scalar::input("x");
        let forms: [&dyn Fn(Scalar, f64) -> Scalar; 3] = [
            &|code, k| Scalar::binary(Binary::Max, code, scaled(k)),
            &|code, k| Scalar::binary(Binary::Min, scaled(k), code),
            &|code, k| Scalar::unary(Unary::Abs, code + Scalar::Const(k)),
        ];
        for form in forms {
            let mut nodes = 0;
            derivative(&nested(form), "x").walk(&mut |_| nodes += 1);
            assert!(nodes < 200_000, "{nodes} nodes");
        }
    }

    fn x() -> Scalar {
        Scalar::input("x")
    }

    #[test]
    fn a_sum_hands_its_seed_on() {
        assert_eq!(pullback(&(x() + Scalar::input("c")), "x", Scalar::input("dy")), Scalar::input("dy"));
    }

    #[test]
    fn a_rectifier_selects_its_seed() {
        let relu = Scalar::binary(Binary::Max, x(), Scalar::Const(0.0));
        let selected = Scalar::select(Scalar::binary(Binary::Gt, x(), Scalar::Const(0.0)), Scalar::input("dy"), Scalar::Const(0.0));
        assert_eq!(pullback(&relu, "x", Scalar::input("dy")), selected);
    }

    #[test]
    fn a_dropout_keeps_its_mask() {
        let keep = Scalar::Keep { stream: "a".into(), element: crate::symbol::Expr::sym("i"), rate: 0.1 };
        assert_eq!(pullback(&(x() * keep.clone()), "x", Scalar::input("dy")), Scalar::input("dy") * keep);
    }

    #[test]
    fn a_square_is_twice_its_base() {
        let square = Scalar::binary(Binary::Pow, x(), Scalar::Const(2.0));
        assert_eq!(derivative(&square, "x"), Scalar::Const(2.0) * x());
    }

    #[test]
    fn what_is_not_read_has_no_derivative() {
        assert_eq!(derivative(&Scalar::input("y"), "x"), Scalar::Const(0.0));
        assert_eq!(derivative(&Scalar::unary(Unary::Floor, x()), "x"), Scalar::Const(0.0));
    }
}
