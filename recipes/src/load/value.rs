//! What a step means: its expression with every name resolved and every sum made explicit.

use sdfg::{Binary, Combine, Scalar, Unary};

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Free of tensors: numbers, sizes, indices.
    Scalar(Scalar),
    Access {
        data: String,
        indices: Vec<String>,
    },
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
    Dropout {
        rate: f64,
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
    Softmax {
        over: Vec<String>,
        of: Box<Value>,
    },
    /// Logarithms of sums of exponentials of `of` over `over`.
    Logarithmic {
        kind: Logarithmic,
        over: Vec<String>,
        of: Box<Value>,
    },
    Normalize {
        over: Vec<String>,
        eps: f64,
        of: Box<Value>,
        scale: Option<Box<Value>>,
        shift: Option<Box<Value>>,
    },
}

/// What is made of a row's logarithm of its sum of exponentials.
#[derive(Clone, Debug, PartialEq)]
pub enum Logarithmic {
    /// `log Σ exp x`.
    Sum,
    /// `x − log Σ exp x`.
    Softmax,
    /// `log Σ exp x − x[label]`.
    CrossEntropy(Box<Value>),
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
        matches!(self, Value::Dropout { .. }) || self.parts().into_iter().any(Value::drops)
    }

    /// Tensors whose elements say which class along a dim is the right one.
    pub fn labels(&self) -> Vec<(&str, &str)> {
        let own = match self {
            Value::Logarithmic { kind: Logarithmic::CrossEntropy(label), over, .. } => match (label.as_ref(), over.as_slice()) {
                (Value::Access { data, .. }, [class]) => Some((data.as_str(), class.as_str())),
                _ => None,
            },
            _ => None,
        };
        own.into_iter().chain(self.parts().into_iter().flat_map(Value::labels)).collect()
    }

    /// What it is made of.
    fn parts(&self) -> Vec<&Value> {
        match self {
            Value::Scalar(_) | Value::Access { .. } => vec![],
            Value::Product { factors, .. } => factors.iter().map(|f| &f.value).collect(),
            Value::Unary(_, a)
            | Value::Named { of: a, .. }
            | Value::Dropout { of: a, .. }
            | Value::Softmax { of: a, .. }
            | Value::Reduce { of: a, .. } => vec![a],
            Value::Binary(_, a, b) => vec![a, b],
            Value::Select(c, a, b) => vec![c, a, b],
            Value::Logarithmic { kind: Logarithmic::CrossEntropy(label), of, .. } => vec![of, label],
            Value::Logarithmic { of, .. } => vec![of],
            Value::Normalize { of, scale, shift, .. } => {
                [Some(of), scale.as_ref(), shift.as_ref()].into_iter().flatten().map(|v| &**v).collect()
            }
        }
    }

    fn collect(&self, is_index: &dyn Fn(&str) -> bool, found: &mut Vec<String>) {
        let of_many = |values: &[&Value], without: &[String], found: &mut Vec<String>| {
            let mut inside = Vec::new();
            for value in values {
                value.collect(is_index, &mut inside);
            }
            for index in inside {
                if !without.contains(&index) && !found.contains(&index) {
                    found.push(index);
                }
            }
        };
        match self {
            Value::Scalar(scalar) => {
                for index in scalar_indices(scalar, is_index) {
                    if !found.contains(&index) {
                        found.push(index);
                    }
                }
            }
            Value::Access { indices, .. } => {
                for index in indices {
                    if !found.contains(index) {
                        found.push(index.clone());
                    }
                }
            }
            Value::Product { factors, reduced, .. } => {
                let values: Vec<&Value> = factors.iter().map(|f| &f.value).collect();
                of_many(&values, reduced, found);
            }
            Value::Unary(_, a) | Value::Named { of: a, .. } | Value::Dropout { of: a, .. } | Value::Softmax { of: a, .. } => {
                of_many(&[a], &[], found);
            }
            Value::Binary(_, a, b) => of_many(&[a, b], &[], found),
            Value::Select(c, a, b) => of_many(&[c, a, b], &[], found),
            Value::Reduce { over, of, .. } => of_many(&[of], over, found),
            Value::Logarithmic { kind, over, of } => match kind {
                Logarithmic::Sum => of_many(&[of], over, found),
                Logarithmic::Softmax => of_many(&[of], &[], found),
                Logarithmic::CrossEntropy(label) => of_many(&[of, label], over, found),
            },
            Value::Normalize { of, scale, shift, .. } => {
                let mut values: Vec<&Value> = vec![of];
                values.extend(scale.as_deref());
                values.extend(shift.as_deref());
                of_many(&values, &[], found);
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
