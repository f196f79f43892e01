//! What a step means: its expression with every name resolved and every sum made explicit.

use super::applied::{Applied, Reading};
use sdfg::{Binary, Combine, Scalar, Unary};

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Free of tensors: numbers, sizes, indices.
    Scalar(Scalar),
    /// A tensor under subscripts.
    Access(Reading),
    /// `scale · Σ Π factors` over `reduced`; nothing is summed when that is empty. `scale` reads no index.
    Product {
        scale: Scalar,
        factors: Vec<Factor>,
        reduced: Vec<String>,
    },
    Unary(Unary, Box<Value>),
    Binary(Binary, Box<Value>, Box<Value>),
    Select(Box<Value>, Box<Value>, Box<Value>),
    /// An operator with a name of its own: `code` over the connector `x`.
    Named {
        label: &'static str,
        code: Scalar,
        of: Box<Value>,
    },
    /// `scale · ⊕ of` over `over`.
    Reduce {
        label: &'static str,
        combine: Combine,
        scale: Scalar,
        over: Vec<String>,
        of: Box<Value>,
    },
    /// Any other operator.
    Applied(Applied),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Factor {
    pub value: Value,
    /// It divides.
    pub below: bool,
}

impl Value {
    /// The indices that it depends on, in order of appearance. `is_index` tells indices from size symbols.
    pub fn indices(&self, is_index: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut found = Vec::new();
        self.collect(is_index, &mut found);
        found
    }

    /// Whether any part of it is random: written again it is another value.
    pub fn drops(&self) -> bool {
        matches!(self, Value::Applied(applied) if applied.form.random) || self.parts().into_iter().any(Value::drops)
    }

    /// Tensors whose elements say which class along a dim is the right one.
    pub fn labels(&self) -> Vec<(&str, &str)> {
        let own = match self {
            Value::Applied(applied) => match (applied.form.label.and_then(|label| applied.other(label)), applied.over.as_slice()) {
                (Some(Value::Access(Reading { data, .. })), [class]) => Some((data.as_str(), class.as_str())),
                _ => None,
            },
            _ => None,
        };
        own.into_iter().chain(self.parts().into_iter().flat_map(Value::labels)).collect()
    }

    /// Visits it and all values that it is made of.
    pub fn walk(&self, visit: &mut dyn FnMut(&Value)) {
        visit(self);
        self.parts().into_iter().for_each(|part| part.walk(visit));
    }

    /// The values that it is made of.
    fn parts(&self) -> Vec<&Value> {
        match self {
            Value::Scalar(_) | Value::Access(_) => vec![],
            Value::Product { factors, .. } => factors.iter().map(|f| &f.value).collect(),
            Value::Unary(_, a) | Value::Named { of: a, .. } | Value::Reduce { of: a, .. } => vec![a],
            Value::Binary(_, a, b) => vec![a, b],
            Value::Select(c, a, b) => vec![c, a, b],
            Value::Applied(applied) => applied.operands().collect(),
        }
    }

    /// Indices that it runs over and that it lacks itself.
    fn bound(&self) -> &[String] {
        match self {
            Value::Product { reduced, .. } => reduced,
            Value::Reduce { over, .. } => over,
            Value::Applied(applied) if applied.form.reduces => &applied.over,
            _ => &[],
        }
    }

    fn collect(&self, is_index: &dyn Fn(&str) -> bool, found: &mut Vec<String>) {
        let mut inside = Vec::new();
        match self {
            Value::Scalar(scalar) => inside = scalar_indices(scalar, is_index),
            Value::Access(reading) => inside.clone_from(&reading.indices),
            _ => self.parts().into_iter().for_each(|part| part.collect(is_index, &mut inside)),
        }
        for index in inside {
            if !self.bound().contains(&index) && !found.contains(&index) {
                found.push(index);
            }
        }
    }
}

impl Value {
    /// A product in its simplest form.
    pub fn product(scale: Scalar, mut factors: Vec<Factor>, reduced: Vec<String>) -> Value {
        if factors.is_empty() {
            return Value::Scalar(scale);
        }
        if let ([Factor { below: false, .. }], true, true) = (factors.as_slice(), reduced.is_empty(), scale == Scalar::Const(1.0))
            && let Some(only) = factors.pop()
        {
            return only.value;
        }
        if reduced.is_empty() && factors.iter().all(|f| matches!(f.value, Value::Scalar(_))) {
            let whole = factors.into_iter().fold(scale, |whole, factor| match (factor.value, factor.below) {
                (Value::Scalar(s), false) => times(whole, s),
                (Value::Scalar(s), true) => whole / s,
                _ => whole,
            });
            return Value::Scalar(whole);
        }
        Value::Product { scale, factors, reduced }
    }

    /// `a op b`, with numbers folded.
    pub fn binary(op: Binary, a: Value, b: Value) -> Value {
        match (op, a, b) {
            (Binary::Add, Value::Scalar(a), Value::Scalar(b)) => Value::Scalar(a + b),
            (Binary::Sub, Value::Scalar(a), Value::Scalar(b)) => Value::Scalar(a - b),
            // The same but at −∞, where C's power is ∞ and everyone else's NaN.
            (Binary::Pow, a, Value::Scalar(Scalar::Const(0.5))) => Value::unary(Unary::Sqrt, a),
            (op, Value::Scalar(a), Value::Scalar(b)) => Value::Scalar(Scalar::binary(op, a, b)),
            (op, a, b) => Value::Binary(op, Box::new(a), Box::new(b)),
        }
    }

    /// `op a`, with numbers folded.
    pub fn unary(op: Unary, a: Value) -> Value {
        match a {
            Value::Scalar(a) => Value::Scalar(Scalar::unary(op, a)),
            a => Value::Unary(op, Box::new(a)),
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
