//! The scalar functions of one argument: one row each.
//!
//! A row is all that a function is made of. The text form, recipes, the interpreter, counts of flop, tolerances, derivatives and the
//! preludes of generated kernels read it, so a new function is a row here and its name in `recipes/language.md`, where a test asks for
//! it. Only a function whose kernels want an implementation of several lines also has that in a prelude of `kernels`.

use crate::interpret::erf::erf;
use crate::library::calculus::{compare, negative, select};
use crate::scalar::{Binary, Scalar};
use serde::{Deserialize, Serialize};

/// Roundings that one evaluation of a function counts as: the vectorised exponential and its like are within 4 ulp, that is 8 unit
/// roundoffs.
pub const FUNCTION: u64 = 8;

/// One row of the table.
pub struct Function {
    /// How the text form and recipes call it; the negation has its sign, which neither reads as a name.
    pub name: &'static str,
    /// What it is in recipes.
    pub in_recipes: InRecipes,
    /// Its value in f64, for the interpreter and for constants.
    pub value: fn(f64) -> f64,
    /// Flop of one evaluation: 0 where only bits change or values are compared.
    pub flop: i64,
    /// Roundings that one evaluation in generated code counts as, in unit roundoffs of its value.
    pub roundings: u64,
    pub growth: Growth,
    pub derivative: ScalarDerivative,
    pub code: Code,
    /// Arguments, from and to, within which it is defined and smooth; tests compare values and derivatives there.
    pub domain: (f64, f64),
}

/// How recipes use a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InRecipes {
    /// It is written in another way than as a call.
    Absent,
    /// A call becomes part of the code around it.
    Inline,
    /// A call keeps its name as an operation of its own, which reports show: an activation.
    Named,
}

/// How large values and derivatives are where arguments are ordinary numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// Values are bounded, and so are derivatives.
    Bounded,
    /// Values grow no faster than the argument.
    Linear,
    /// The value or the derivative can be infinite or NaN.
    Steep,
}

/// The derivative of `y = f(x)`, as code of `x` and `y`.
#[derive(Clone, Copy)]
pub enum ScalarDerivative {
    /// The seed (the derivative of something by `y`) becomes its derivative by `x`: `pull(seed, x, y)`.
    Pull(fn(Scalar, &Scalar, &Scalar) -> Scalar),
    /// `dy/dx = scale · slope(x, y)`, where the slope reaches 0: there the seed is not multiplied with what has no bound.
    Saturating { scale: f64, slope: fn(&Scalar, &Scalar) -> Scalar },
}

/// The function in generated code.
#[derive(Clone, Copy)]
pub enum Code {
    /// An expression in which `{}` is the argument, the same in every language.
    Inline(&'static str),
    /// A function `r_NAME(real x)` that preludes define.
    Called { c: Body, cuda: Body },
}

/// What a function returns, as an expression of its argument `x` (and of other functions, as `r_exp(x)`), in double and in single
/// precision. `None` where the prelude has an implementation of its own.
#[derive(Clone, Copy)]
pub struct Body {
    pub double: Option<&'static str>,
    pub float: Option<&'static str>,
}

const fn each(double: &'static str, float: &'static str) -> Body {
    Body { double: Some(double), float: Some(float) }
}

/// In double precision this expression; in single precision the prelude's own implementation.
const fn double_only(double: &'static str) -> Body {
    Body { double: Some(double), float: None }
}

const OF_PRELUDE: Body = Body { double: None, float: None };

macro_rules! functions {
    ($($(#[$doc:meta])* $op:ident: $row:expr;)*) => {
        /// A function of one argument.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Unary {
            $($(#[$doc])* $op,)*
        }

        impl Unary {
            /// Every function, in the order of the table.
            pub const ALL: &'static [Unary] = &[$(Unary::$op),*];

            /// The function's row.
            pub fn row(self) -> &'static Function {
                static ROWS: &[Function] = &[$($row),*];
                &ROWS[self as usize]
            }
        }
    };
}

functions! {
    Neg: Function {
        name: "-",
        in_recipes: InRecipes::Absent,
        value: |x| -x,
        flop: 0,
        roundings: 0,
        growth: Growth::Linear,
        derivative: ScalarDerivative::Pull(|seed, _, _| negative(seed)),
        code: Code::Inline("(-{})"),
        domain: (-5.0, 5.0),
    };
    Exp: Function {
        name: "exp",
        in_recipes: InRecipes::Inline,
        value: f64::exp,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Steep,
        derivative: ScalarDerivative::Saturating { scale: 1.0, slope: |_, y| y.clone() },
        code: Code::Called { c: double_only("__builtin_exp(x)"), cuda: double_only("exp(x)") },
        domain: (-87.0, 88.7),
    };
    Log: Function {
        name: "log",
        in_recipes: InRecipes::Inline,
        value: f64::ln,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Steep,
        derivative: ScalarDerivative::Pull(|seed, x, _| seed / x.clone()),
        code: Code::Called { c: double_only("__builtin_log(x)"), cuda: each("log(x)", "logf(x)") },
        domain: (0.5, 2.0),
    };
    /// log(1 + x), also where 1 + x would round the digits of x away.
    Log1p: Function {
        name: "log1p",
        in_recipes: InRecipes::Inline,
        value: f64::ln_1p,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Steep,
        derivative: ScalarDerivative::Pull(|seed, x, _| seed / (Scalar::Const(1.0) + x.clone())),
        code: Code::Called { c: each("__builtin_log1p(x)", "__builtin_log1pf(x)"), cuda: each("log1p(x)", "log1pf(x)") },
        domain: (-0.9, 100.0),
    };
    /// 1/√x
    Rsqrt: Function {
        name: "rsqrt",
        in_recipes: InRecipes::Inline,
        value: |x| 1.0 / x.sqrt(),
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Steep,
        derivative: ScalarDerivative::Pull(|seed, x, y| seed * Scalar::Const(-0.5) * y.clone() / x.clone()),
        code: Code::Inline("(1 / r_sqrt({}))"),
        domain: (0.01, 100.0),
    };
    Tanh: Function {
        name: "tanh",
        in_recipes: InRecipes::Named,
        value: f64::tanh,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Bounded,
        derivative: ScalarDerivative::Saturating { scale: 1.0, slope: |_, y| Scalar::Const(1.0) - y.clone() * y.clone() },
        code: Code::Called { c: double_only("__builtin_tanh(x)"), cuda: each("tanh(x)", "tanhf(x)") },
        domain: (-12.0, 12.0),
    };
    /// 2/√π · ∫₀ˣ exp(−t²) dt
    Erf: Function {
        name: "erf",
        in_recipes: InRecipes::Inline,
        value: erf,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Bounded,
        derivative: ScalarDerivative::Saturating {
            scale: std::f64::consts::FRAC_2_SQRT_PI,
            slope: |x, _| Scalar::unary(Unary::Exp, negative(x.clone() * x.clone())),
        },
        code: Code::Called { c: double_only("__builtin_erf(x)"), cuda: each("erf(x)", "erff(x)") },
        domain: (-5.0, 5.0),
    };
    Sqrt: Function {
        name: "sqrt",
        in_recipes: InRecipes::Inline,
        value: f64::sqrt,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Steep,
        derivative: ScalarDerivative::Pull(|seed, _, y| seed * Scalar::Const(0.5) / y.clone()),
        code: Code::Called { c: each("__builtin_sqrt(x)", "__builtin_sqrtf(x)"), cuda: each("sqrt(x)", "sqrtf(x)") },
        domain: (0.01, 100.0),
    };
    Sin: Function {
        name: "sin",
        in_recipes: InRecipes::Inline,
        value: f64::sin,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Bounded,
        derivative: ScalarDerivative::Pull(|seed, x, _| seed * Scalar::unary(Unary::Cos, x.clone())),
        code: Code::Called { c: each("__builtin_sin(x)", "__builtin_sinf(x)"), cuda: each("sin(x)", "sinf(x)") },
        domain: (-10.0, 10.0),
    };
    Cos: Function {
        name: "cos",
        in_recipes: InRecipes::Inline,
        value: f64::cos,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Bounded,
        derivative: ScalarDerivative::Pull(|seed, x, _| negative(seed * Scalar::unary(Unary::Sin, x.clone()))),
        code: Code::Called { c: each("__builtin_cos(x)", "__builtin_cosf(x)"), cuda: each("cos(x)", "cosf(x)") },
        domain: (-10.0, 10.0),
    };
    /// The angle in [−π/2, π/2] whose sine it is; NaN outside of [−1, 1].
    Asin: Function {
        name: "asin",
        in_recipes: InRecipes::Inline,
        value: f64::asin,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Steep,
        derivative: ScalarDerivative::Pull(|seed, x, _| seed * Scalar::unary(Unary::Rsqrt, (Scalar::Const(1.0) - x.clone()) * (Scalar::Const(1.0) + x.clone()))),
        code: Code::Called { c: each("__builtin_asin(x)", "__builtin_asinf(x)"), cuda: each("asin(x)", "asinf(x)") },
        domain: (-0.9, 0.9),
    };
    /// The angle in [0, π] whose cosine it is; NaN outside of [−1, 1].
    Acos: Function {
        name: "acos",
        in_recipes: InRecipes::Inline,
        value: f64::acos,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Steep,
        derivative: ScalarDerivative::Pull(|seed, x, _| negative(seed * Scalar::unary(Unary::Rsqrt, (Scalar::Const(1.0) - x.clone()) * (Scalar::Const(1.0) + x.clone())))),
        code: Code::Called { c: each("__builtin_acos(x)", "__builtin_acosf(x)"), cuda: each("acos(x)", "acosf(x)") },
        domain: (-0.9, 0.9),
    };
    /// The angle in (−π/2, π/2) whose tangent it is.
    Atan: Function {
        name: "atan",
        in_recipes: InRecipes::Inline,
        value: f64::atan,
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Linear,
        derivative: ScalarDerivative::Pull(|seed, x, _| seed / (Scalar::Const(1.0) + x.clone() * x.clone())),
        code: Code::Called { c: each("__builtin_atan(x)", "__builtin_atanf(x)"), cuda: each("atan(x)", "atanf(x)") },
        domain: (-10.0, 10.0),
    };
    Floor: Function {
        name: "floor",
        in_recipes: InRecipes::Inline,
        value: f64::floor,
        flop: 0,
        roundings: 0,
        growth: Growth::Linear,
        derivative: ScalarDerivative::Pull(|_, _, _| Scalar::Const(0.0)),
        code: Code::Called { c: each("__builtin_floor(x)", "__builtin_floorf(x)"), cuda: each("floor(x)", "floorf(x)") },
        domain: (-2.9, -2.1),
    };
    Abs: Function {
        name: "abs",
        in_recipes: InRecipes::Inline,
        value: f64::abs,
        flop: 0,
        roundings: 0,
        growth: Growth::Linear,
        derivative: ScalarDerivative::Pull(|seed, x, _| {
            // An argument that is neither above nor below 0 is 0 or NaN: either is its own derivative.
            let (above, below) = (compare(Binary::Gt, x, &Scalar::Const(0.0)), compare(Binary::Lt, x, &Scalar::Const(0.0)));
            let sign = select(above.clone(), Scalar::Const(1.0), Scalar::Const(-1.0));
            select(Scalar::binary(Binary::Or, above, below), seed * sign, x.clone())
        }),
        code: Code::Called { c: each("__builtin_fabs(x)", "__builtin_fabsf(x)"), cuda: each("fabs(x)", "fabsf(x)") },
        domain: (-5.0, -0.1),
    };
    Sigmoid: Function {
        name: "sigmoid",
        in_recipes: InRecipes::Named,
        value: |x| 1.0 / (1.0 + (-x).exp()),
        flop: 1,
        roundings: FUNCTION,
        growth: Growth::Bounded,
        derivative: ScalarDerivative::Saturating { scale: 1.0, slope: |_, y| y.clone() * (Scalar::Const(1.0) - y.clone()) },
        code: Code::Called { c: each("1 / (1 + __builtin_exp(-x))", "1.0f / (1.0f + r_exp(-x))"), cuda: OF_PRELUDE },
        domain: (-80.0, 80.0),
    };
}

impl Unary {
    /// The function that the text form calls so.
    pub fn named(name: &str) -> Option<Unary> {
        Unary::ALL.iter().copied().find(|op| op.row().name == name)
    }

    /// The value in f64.
    pub fn of(self, x: f64) -> f64 {
        (self.row().value)(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::calculus::{derivative, unbounded};
    use crate::symbol::Bindings;
    use crate::text::{parse_scalar, print_scalar};

    fn at(code: &Scalar, x: f64) -> f64 {
        code.inline("x", &Scalar::Const(x)).constant(&Bindings::new()).expect("a constant")
    }

    fn points(row: &Function) -> impl Iterator<Item = f64> {
        let (from, to) = row.domain;
        (1..40).map(move |n| from + (to - from) * f64::from(n) / 40.0)
    }

    /// Derivatives agree with central differences, whose error is of the order of h² and ε/h.
    #[test]
    fn derivatives_are_those_of_the_values() {
        for op in Unary::ALL {
            let row = op.row();
            let slope = derivative(&Scalar::unary(*op, Scalar::input("x")), "x");
            for x in points(row) {
                let h = 1e-6 * x.abs().max(0.1);
                let (below, above) = (op.of(x - h), op.of(x + h));
                let (want, got) = ((above - below) / (2.0 * h), at(&slope, x));
                let room = 1e-8 * want.abs() + 2.0 * f64::EPSILON * above.abs().max(below.abs()) / h;
                assert!((got - want).abs() <= room, "{} at {x}: {got}, differences give {want}", row.name);
            }
        }
    }

    #[test]
    fn names_are_read_as_they_are_printed() {
        for op in Unary::ALL {
            let code = Scalar::unary(*op, Scalar::input("x"));
            assert_eq!(parse_scalar(&print_scalar(&code)), Ok(code), "{op:?}");
            assert_eq!(Unary::ALL.iter().filter(|other| other.row().name == op.row().name).count(), 1, "{op:?}");
        }
    }

    /// Growth is what it says, as far as numbers show it: bounded functions stay within the unit, linear ones within the argument and a
    /// constant, and only steep ones have derivatives without a bound.
    #[test]
    fn growth_is_that_of_the_values() {
        for op in Unary::ALL {
            let (row, code) = (op.row(), Scalar::unary(*op, Scalar::input("x")));
            let slope = derivative(&code, "x");
            for x in [0.0f64, -0.0, 1e-300, -1e-300, 0.3, -0.3, 1.0, -1.0, 100.0, -100.0, 1e300, -1e300] {
                let most = match row.growth {
                    Growth::Bounded => 1.0,
                    Growth::Linear => x.abs() + 1.0,
                    Growth::Steep => continue,
                };
                assert!(op.of(x).abs() <= most, "{} of {x}", row.name);
                assert!(at(&slope, x).abs() <= 2.0, "the derivative of {} at {x}", row.name);
            }
            assert_eq!(unbounded(&code, "x"), row.growth == Growth::Steep, "{}", row.name);
        }
    }
}
