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
    Normalize {
        over: Vec<String>,
        eps: f64,
        of: Box<Value>,
        scale: Option<Box<Value>>,
        shift: Option<Box<Value>>,
    },
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
        match self {
            Value::Dropout { .. } => true,
            Value::Scalar(_) | Value::Access { .. } => false,
            Value::Product { factors, .. } => factors.iter().any(|f| f.value.drops()),
            Value::Unary(_, a) | Value::Named { of: a, .. } | Value::Softmax { of: a, .. } | Value::Reduce { of: a, .. } => a.drops(),
            Value::Binary(_, a, b) => a.drops() || b.drops(),
            Value::Select(c, a, b) => c.drops() || a.drops() || b.drops(),
            Value::Normalize { of, scale, shift, .. } => {
                [Some(of), scale.as_ref(), shift.as_ref()].into_iter().flatten().any(|v| v.drops())
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
            Value::Normalize { of, scale, shift, .. } => {
                let mut values: Vec<&Value> = vec![of];
                values.extend(scale.as_deref());
                values.extend(shift.as_deref());
                of_many(&values, &[], found);
            }
        }
    }
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
