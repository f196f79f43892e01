//! The reasons why results differ from NumPy's or PyTorch's. Each difference needs a reason, and each reason a difference.

use super::Difference;

pub struct Reason {
    pub text: &'static str,
    applies: fn(&Difference) -> bool,
}

const fn because(text: &'static str, applies: fn(&Difference) -> bool) -> Reason {
    Reason { text, applies }
}

pub const ALL: &[Reason] = &[
    because(
        "**What a `where` does not select gets the gradient 0.** PyTorch multiplies the 0 with an infinite or undefined derivative, \
         where selection and function are operations of their own.",
        |d| d.case.starts_with("where(x") && d.what == "d_x" && d.got == 0.0 && d.want.is_nan(),
    ),
    because(
        "**A norm has the gradient 0 at 0**, of all subgradients the least. PyTorch multiplies the infinite derivative of the root with 0 \
         (its `torch.norm` has 0).",
        |d| d.case == "norm" && d.given == "only zeros",
    ),
    because(
        "**The tanh form of GELU has its limits as slope.** PyTorch multiplies the slope 0 of a saturated tanh with that of the cube, \
         which has overflowed.",
        |d| d.case == "gelu, tanh" && d.what == "d_x" && d.want.is_nan(),
    ),
    because("**GELU of ∞ is ∞**, as it is for NumPy; PyTorch's vectors have ∞ · 0 there.", |d| {
        d.case == "gelu" && d.given == "inf" && d.what == "forward"
    }),
    because(
        "**A rectifier or bound that is NaN hands nothing on**, as in JAX: NaN is not above the bound. PyTorch hands the gradient on. \
         The result is NaN either way.",
        |d| ["relu", "max(x, 0.5)", "min(x, 0.5)"].contains(&d.case.as_str()) && d.given == "nan" && d.what == "d_x",
    ),
    because(
        "**Of two values of which one is NaN each gets half of the gradient**, as where they are equal; in PyTorch each gets all.",
        |d| d.case.contains("(a, b)") && d.given.contains("nan") && d.got == 0.5,
    ),
    because("**The slope of |NaN| is NaN.** PyTorch has 0.", |d| d.case == "abs" && d.given == "nan" && d.what == "d_x"),
    because(
        "**`exp` is 0 below the smallest normal number in C.** What underflows costs some processors more than the rest of the function, \
         and masks make much of it.",
        |d| d.got == 0.0 && d.want != 0.0 && d.want.abs() < f64::from(f32::MIN_POSITIVE) && d.case.contains("exp"),
    ),
    because(
        "**Mean and variance of huge rows do not overflow on the way:** terms are divided before they are added, and deviations are taken \
         from the mean. PyTorch and NumPy add first.",
        |d| d.case.starts_with("layernorm") && d.given == "huge",
    ),
    because("**A variance that overflows makes a row 0** (its reciprocal root is 0), as in NumPy. PyTorch has NaN.", |d| {
        d.case.starts_with("layernorm") && d.given == "tiny and huge" && d.want.is_nan()
    }),
    because("**A constant row is normalized to 0**, exactly. PyTorch multiplies and adds what has been rounded apart.", |d| {
        d.case.starts_with("layernorm") && d.given == "constant" && d.got == 0.0
    }),
    because("**bf16 rounds subnormal means once.** PyTorch's come out a unit of the last place lower.", |d| {
        d.case == "mean" && d.given == "subnormal"
    }),
];

/// The number of the reason of a difference.
pub fn of(difference: &Difference) -> Option<usize> {
    ALL.iter().position(|reason| (reason.applies)(difference))
}

/// Reasons that no longer explain any difference.
pub fn idle(differences: &[Difference]) -> Vec<&'static str> {
    let used: Vec<usize> = differences.iter().filter_map(of).collect();
    ALL.iter().enumerate().filter(|(n, _)| !used.contains(n)).map(|(_, reason)| reason.text).collect()
}
