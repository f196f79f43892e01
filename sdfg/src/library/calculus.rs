//! Derivatives of scalar code.
//!
//! Code is pulled back in reverse: a `seed` (the derivative of something by the code's value) is carried from the root
//! to each place where the connector stands, and what arrives there is added up. So a rectifier becomes a selection of
//! the seed, not a product with a selection of ones.
//!
//! Where the derivative does not exist:
//! - `max(a, c)` and `min(a, c)` with a constant `c` (a rectifier) have derivative 0 at the kink;
//! - `max(a, b)` and `min(a, b)` of two values that both vary give each one half where they are equal;
//! - `|a|` has 0 at 0; `floor` and comparisons have 0 everywhere; a condition is not differentiated.

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
    let value = || a.clone();
    let same = || Scalar::unary(op, a.clone());
    let one = || Scalar::Const(1.0);
    let inner = match op {
        Unary::Neg => negative(seed),
        Unary::Exp => seed * same(),
        Unary::Log => seed / value(),
        Unary::Sqrt => seed * Scalar::Const(0.5) / same(),
        Unary::Rsqrt => seed * Scalar::Const(-0.5) * same() / value(),
        Unary::Tanh => seed * (one() - same() * same()),
        Unary::Erf => seed * Scalar::Const(std::f64::consts::FRAC_2_SQRT_PI) * Scalar::unary(Unary::Exp, negative(value() * value())),
        Unary::Sigmoid => seed * (same() * (one() - same())),
        Unary::Abs => {
            let falling = select(compare(Binary::Lt, a, &Scalar::Const(0.0)), negative(seed.clone()), Scalar::Const(0.0));
            select(compare(Binary::Gt, a, &Scalar::Const(0.0)), seed, falling)
        }
        Unary::Sin => seed * Scalar::unary(Unary::Cos, value()),
        Unary::Cos => negative(seed * Scalar::unary(Unary::Sin, value())),
        Unary::Floor => Scalar::Const(0.0),
    };
    pullback(a, by, inner)
}

fn binary(op: Binary, a: &Scalar, b: &Scalar, by: &str, seed: Scalar) -> Scalar {
    // Seeds are built only for the side that reads `by`: the other may be undefined (the logarithm of a negative base).
    let (left, right) = (a.inputs().contains(by), b.inputs().contains(by));
    let side =
        |reads: bool, code: &Scalar, inner: &dyn Fn() -> Scalar| if reads { pullback(code, by, inner()) } else { Scalar::Const(0.0) };
    match op {
        Binary::Add => side(left, a, &|| seed.clone()) + side(right, b, &|| seed.clone()),
        Binary::Sub => side(left, a, &|| seed.clone()) + side(right, b, &|| negative(seed.clone())),
        Binary::Mul => side(left, a, &|| seed.clone() * b.clone()) + side(right, b, &|| seed.clone() * a.clone()),
        Binary::Div => {
            side(left, a, &|| seed.clone() / b.clone()) + side(right, b, &|| negative(seed.clone() * a.clone() / (b.clone() * b.clone())))
        }
        Binary::Max | Binary::Min => {
            let (wins, loses) = if op == Binary::Max { (Binary::Gt, Binary::Lt) } else { (Binary::Lt, Binary::Gt) };
            let (by_a, by_b) = (pullback(a, by, seed.clone()), pullback(b, by, seed));
            if b.inputs().is_empty() {
                select(compare(wins, a, b), by_a, Scalar::Const(0.0))
            } else if a.inputs().is_empty() {
                select(compare(loses, a, b), by_b, Scalar::Const(0.0))
            } else {
                let tie = (by_a.clone() + by_b.clone()) * Scalar::Const(0.5);
                select(compare(wins, a, b), by_a, select(compare(loses, a, b), by_b, tie))
            }
        }
        Binary::Pow => {
            side(left, a, &|| seed.clone() * (b.clone() * power(a.clone(), b.clone() - Scalar::Const(1.0))))
                + side(right, b, &|| seed.clone() * (power(a.clone(), b.clone()) * Scalar::unary(Unary::Log, a.clone())))
        }
        Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge | Binary::Eq | Binary::Ne | Binary::And | Binary::Or => Scalar::Const(0.0),
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

fn compare(op: Binary, a: &Scalar, b: &Scalar) -> Scalar {
    Scalar::binary(op, a.clone(), b.clone())
}

fn negative(a: Scalar) -> Scalar {
    match a {
        Scalar::Unary(Unary::Neg, inner) => *inner,
        other => Scalar::unary(Unary::Neg, other),
    }
}

fn select(condition: Scalar, a: Scalar, b: Scalar) -> Scalar {
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
