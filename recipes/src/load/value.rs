//! What a step means: its expression with every name resolved and every sum made explicit.

use super::applied::{Applied, Reading};
use sdfg::{Binary, Combine, Scalar, Unary};

#[derive(Clone, Debug, PartialEq)]
pub enum StepValue {
    /// Free of tensors: numbers, sizes, indices.
    Scalar(Scalar),
    /// A tensor under subscripts.
    Access(Reading),
    /// `scale · Σ Π factors` over `reduced`; nothing is summed when that is empty. `scale` reads no index.
    Product {
        scale: Scalar,
        factors: Vec<ProductFactor>,
        reduced: Vec<String>,
    },
    Unary(Unary, Box<StepValue>),
    Binary(Binary, Box<StepValue>, Box<StepValue>),
    Select(Box<StepValue>, Box<StepValue>, Box<StepValue>),
    /// An operator with a name of its own: `code` over the connector `x`.
    Named {
        label: &'static str,
        code: Scalar,
        of: Box<StepValue>,
    },
    /// `scale · ⊕ of` over `over`.
    Reduce {
        label: &'static str,
        combine: Combine,
        scale: Scalar,
        over: Vec<String>,
        of: Box<StepValue>,
    },
    /// Any other operator.
    Applied(Applied),
}

#[derive(Clone, Debug, PartialEq)]
pub struct ProductFactor {
    pub value: StepValue,
    /// It divides.
    pub below: bool,
}

impl StepValue {
    /// The indices that it depends on, in order of appearance. `is_index` tells indices from size symbols.
    pub fn indices(&self, is_index: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut found = Vec::new();
        self.collect(is_index, &mut found);
        found
    }

    /// Whether any part of it is random: written again it is another value.
    pub fn drops(&self) -> bool {
        matches!(self, StepValue::Applied(applied) if applied.form.random) || self.parts().into_iter().any(StepValue::drops)
    }

    /// Tensors whose elements say which class along a dim is the right one.
    pub fn labels(&self) -> Vec<(&str, &str)> {
        let own = match self {
            StepValue::Applied(applied) => match (applied.form.label.and_then(|label| applied.other(label)), applied.classes()) {
                (Some(StepValue::Access(Reading { data, .. })), Some(class)) => Some((data.as_str(), class)),
                _ => None,
            },
            _ => None,
        };
        own.into_iter().chain(self.parts().into_iter().flat_map(StepValue::labels)).collect()
    }

    /// Visits it and all values that it is made of.
    pub fn walk(&self, visit: &mut dyn FnMut(&StepValue)) {
        visit(self);
        self.parts().into_iter().for_each(|part| part.walk(visit));
    }

    /// The values that it is made of.
    fn parts(&self) -> Vec<&StepValue> {
        match self {
            StepValue::Scalar(_) | StepValue::Access(_) => vec![],
            StepValue::Product { factors, .. } => factors.iter().map(|f| &f.value).collect(),
            StepValue::Unary(_, a) | StepValue::Named { of: a, .. } | StepValue::Reduce { of: a, .. } => vec![a],
            StepValue::Binary(_, a, b) => vec![a, b],
            StepValue::Select(c, a, b) => vec![c, a, b],
            StepValue::Applied(applied) => applied.operands().collect(),
        }
    }

    /// Indices that it runs over and that it lacks itself.
    fn bound(&self) -> &[String] {
        match self {
            StepValue::Product { reduced, .. } => reduced,
            StepValue::Reduce { over, .. } => over,
            StepValue::Applied(applied) if applied.form.reduces => &applied.over,
            _ => &[],
        }
    }

    fn collect(&self, is_index: &dyn Fn(&str) -> bool, found: &mut Vec<String>) {
        let mut inside = Vec::new();
        match self {
            StepValue::Scalar(scalar) => inside = scalar_indices(scalar, is_index),
            StepValue::Access(reading) => inside.clone_from(&reading.indices),
            _ => self.parts().into_iter().for_each(|part| part.collect(is_index, &mut inside)),
        }
        for index in inside {
            if !self.bound().contains(&index) && !found.contains(&index) {
                found.push(index);
            }
        }
    }
}

impl StepValue {
    /// A product in its simplest form.
    pub fn product(scale: Scalar, mut factors: Vec<ProductFactor>, reduced: Vec<String>) -> StepValue {
        if factors.is_empty() {
            return StepValue::Scalar(scale);
        }
        if let ([ProductFactor { below: false, .. }], true, true) = (factors.as_slice(), reduced.is_empty(), scale == Scalar::Const(1.0))
            && let Some(only) = factors.pop()
        {
            return only.value;
        }
        if reduced.is_empty() && factors.iter().all(|f| matches!(f.value, StepValue::Scalar(_))) {
            let whole = factors.into_iter().fold(scale, |whole, factor| match (factor.value, factor.below) {
                (StepValue::Scalar(s), false) => times(whole, s),
                (StepValue::Scalar(s), true) => whole / s,
                _ => whole,
            });
            return StepValue::Scalar(whole);
        }
        StepValue::Product { scale, factors, reduced }
    }

    /// `a op b`, with numbers folded.
    pub fn binary(op: Binary, a: StepValue, b: StepValue) -> StepValue {
        match (op, a, b) {
            (Binary::Add, StepValue::Scalar(a), StepValue::Scalar(b)) => StepValue::Scalar(a + b),
            (Binary::Sub, StepValue::Scalar(a), StepValue::Scalar(b)) => StepValue::Scalar(a - b),
            // The same but at −∞, where C's power is ∞ and everyone else's NaN.
            (Binary::Pow, a, StepValue::Scalar(Scalar::Const(0.5))) => StepValue::unary(Unary::Sqrt, a),
            (op, StepValue::Scalar(a), StepValue::Scalar(b)) => StepValue::Scalar(Scalar::binary(op, a, b)),
            (op, a, b) => StepValue::Binary(op, Box::new(a), Box::new(b)),
        }
    }

    /// `op a`, with numbers folded.
    pub fn unary(op: Unary, a: StepValue) -> StepValue {
        match a {
            StepValue::Scalar(a) => StepValue::Scalar(Scalar::unary(op, a)),
            a => StepValue::Unary(op, Box::new(a)),
        }
    }
}

/// A product of numbers. 0 times something that is not known yet is left to it: it may be NaN or infinite.
pub fn times(a: Scalar, b: Scalar) -> Scalar {
    let zero = Scalar::Const(0.0);
    let plain = matches!((&a, &b), (Scalar::Const(_), Scalar::Const(_)));
    if !plain && (a == zero || b == zero) { Scalar::binary(Binary::Mul, a, b) } else { a * b }
}

/// Indices that scalar code reads as numbers.
pub fn scalar_indices(scalar: &Scalar, is_index: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    scalar.walk(&mut |s| {
        if let Scalar::Index(expr) = s {
            found.extend(expr.symbols().into_iter().filter(|name| is_index(name)));
        }
    });
    found
}
