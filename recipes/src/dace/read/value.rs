//! The value of one element as an expression of indices and of elements of tensors.

use super::integer::{AffineInteger, Atom, Id, StepIndices, gcd};
use indexmap::IndexMap;

/// What a reduction combines with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReductionOperator {
    Sum,
    Product,
    Max,
    Min,
}

impl ReductionOperator {
    pub fn identity(self) -> f64 {
        match self {
            ReductionOperator::Sum => 0.0,
            ReductionOperator::Product => 1.0,
            ReductionOperator::Max => f64::NEG_INFINITY,
            ReductionOperator::Min => f64::INFINITY,
        }
    }

    /// Whether a value changes nothing. The least finite number stands for minus infinity in DaCe's files.
    pub fn is_neutral(self, value: f64) -> bool {
        match self {
            ReductionOperator::Max => value <= -f64::from(f32::MAX),
            ReductionOperator::Min => value >= f64::from(f32::MAX),
            _ => value == self.identity(),
        }
    }

    pub fn join(self, a: Value, b: Value) -> Value {
        match self {
            ReductionOperator::Sum => Value::binary(BinaryOperator::Add, a, b),
            ReductionOperator::Product => Value::binary(BinaryOperator::Mul, a, b),
            ReductionOperator::Max => Value::binary(BinaryOperator::Max, a, b),
            ReductionOperator::Min => Value::binary(BinaryOperator::Min, a, b),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BinaryOperator {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Max,
    Min,
    Lt,
    Le,
    Gt,
    Ge,
    Eq,
    Ne,
}

impl BinaryOperator {
    pub fn is_comparison(self) -> bool {
        matches!(
            self,
            BinaryOperator::Lt | BinaryOperator::Le | BinaryOperator::Gt | BinaryOperator::Ge | BinaryOperator::Eq | BinaryOperator::Ne
        )
    }

    fn of(self, a: f64, b: f64) -> f64 {
        let truth = |t: bool| if t { 1.0 } else { 0.0 };
        match self {
            BinaryOperator::Add => a + b,
            BinaryOperator::Sub => a - b,
            BinaryOperator::Mul => a * b,
            BinaryOperator::Div => a / b,
            BinaryOperator::Pow => a.powf(b),
            BinaryOperator::Max => a.max(b),
            BinaryOperator::Min => a.min(b),
            BinaryOperator::Lt => truth(a < b),
            BinaryOperator::Le => truth(a <= b),
            BinaryOperator::Gt => truth(a > b),
            BinaryOperator::Ge => truth(a >= b),
            BinaryOperator::Eq => truth(a == b),
            BinaryOperator::Ne => truth(a != b),
        }
    }
}

/// A tensor of the recipe.
pub type TensorId = usize;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Number(f64),
    Integer(AffineInteger),
    /// An element of a tensor; `fill` lies outside of it.
    Read {
        tensor: TensorId,
        at: Vec<AffineInteger>,
        fill: Option<f64>,
    },
    /// A function of one operand.
    Call(&'static str, Box<Value>),
    Binary(BinaryOperator, Box<Value>, Box<Value>),
    Where(Box<Value>, Box<Value>, Box<Value>),
    Reduce(ReductionOperator, Vec<Id>, Box<Value>),
    /// What an element of a container held before the loop's time under way: the index of that time, container, place.
    Carried(Id, String, Vec<AffineInteger>),
    /// What the element held that this value takes the place of.
    Prior,
    /// Nothing has been written there.
    Undefined,
}

use Value::*;

impl Value {
    pub fn integer(integer: AffineInteger) -> Value {
        match integer.constant() {
            Some(constant) => Number(constant as f64),
            None => match integer.terms.as_slice() {
                [(Atom::Element(of), 1)] if integer.constant == 0 => (**of).clone(),
                _ => Integer(integer),
            },
        }
    }

    pub fn number(&self) -> Option<f64> {
        if let Number(value) = self { Some(*value) } else { None }
    }

    pub fn binary(op: BinaryOperator, a: Value, b: Value) -> Value {
        match (op, &a, &b) {
            (_, Number(x), Number(y)) if x.is_finite() && y.is_finite() => return Number(op.of(*x, *y)),
            (BinaryOperator::Add, Number(0.0), _) => return b,
            (BinaryOperator::Add | BinaryOperator::Sub, _, Number(0.0)) => return a,
            (BinaryOperator::Mul, Number(1.0), _) => return b,
            (BinaryOperator::Mul | BinaryOperator::Div, _, Number(1.0)) => return a,
            (BinaryOperator::Max, Number(x), _) if *x == f64::NEG_INFINITY => return b,
            (BinaryOperator::Max, _, Number(x)) if *x == f64::NEG_INFINITY => return a,
            (BinaryOperator::Min, Number(x), _) if *x == f64::INFINITY => return b,
            (BinaryOperator::Min, _, Number(x)) if *x == f64::INFINITY => return a,
            _ => {}
        }
        let whole = |v: &Value| match v {
            Integer(i) => Some(i.clone()),
            Number(n) if n.fract() == 0.0 && n.abs() < 1e15 => Some(AffineInteger::number(*n as i64)),
            _ => None,
        };
        if (matches!(a, Integer(_)) || matches!(b, Integer(_)))
            && let (Some(x), Some(y)) = (whole(&a), whole(&b))
        {
            match op {
                BinaryOperator::Add => return Value::integer(x.plus(&y, 1)),
                BinaryOperator::Sub => return Value::integer(x.plus(&y, -1)),
                BinaryOperator::Mul if x.constant().is_some() => return Value::integer(y.times(x.constant)),
                BinaryOperator::Mul if y.constant().is_some() => return Value::integer(x.times(y.constant)),
                _ => {}
            }
        }
        Binary(op, Box::new(a), Box::new(b))
    }

    pub fn negative(self) -> Value {
        match self {
            Number(n) => Number(-n),
            Integer(i) => Value::integer(i.times(-1)),
            Call("-", of) => *of,
            other => Call("-", Box::new(other)),
        }
    }

    pub fn call(name: &'static str, of: Value) -> Value {
        Call(name, Box::new(of))
    }

    /// `a` where the condition is not 0, else `b`.
    pub fn choice(condition: Value, a: Value, b: Value) -> Value {
        // What the same condition decides again is decided.
        let a = match a {
            Where(again, value, _) if *again == condition => *value,
            a => a,
        };
        let b = match b {
            Where(again, _, value) if *again == condition => *value,
            b => b,
        };
        match condition {
            Number(0.0) => b,
            Number(_) => a,
            _ if a == b => a,
            _ if b == Undefined => Where(Box::new(condition), Box::new(a), Box::new(Number(0.0))),
            condition => Where(Box::new(condition), Box::new(a), Box::new(b)),
        }
    }

    pub fn both(a: Value, b: Value) -> Value {
        match (&a, &b) {
            (Number(0.0), _) | (_, Number(0.0)) => Number(0.0),
            (Number(_), _) => b.truth(),
            (_, Number(_)) => a.truth(),
            _ => Binary(BinaryOperator::Mul, Box::new(a.truth()), Box::new(b.truth())),
        }
    }

    pub fn either(a: Value, b: Value) -> Value {
        match (&a, &b) {
            (Number(0.0), _) => b.truth(),
            (_, Number(0.0)) => a.truth(),
            (Number(_), _) | (_, Number(_)) => Number(1.0),
            _ => Binary(BinaryOperator::Max, Box::new(a.truth()), Box::new(b.truth())),
        }
    }

    pub fn not(self) -> Value {
        match self.truth() {
            Number(n) => Number(1.0 - n),
            Binary(BinaryOperator::Eq, a, b) => Binary(BinaryOperator::Ne, a, b),
            Binary(BinaryOperator::Ne, a, b) => Binary(BinaryOperator::Eq, a, b),
            Binary(BinaryOperator::Sub, one, of) if *one == Number(1.0) => *of,
            other => Value::binary(BinaryOperator::Sub, Number(1.0), other),
        }
    }

    /// 1 or 0.
    pub fn truth(self) -> Value {
        match self {
            Number(n) => Number(if n == 0.0 { 0.0 } else { 1.0 }),
            other if other.is_truth() => other,
            other => Binary(BinaryOperator::Ne, Box::new(other), Box::new(Number(0.0))),
        }
    }

    fn is_truth(&self) -> bool {
        match self {
            Number(n) => *n == 0.0 || *n == 1.0,
            Binary(op, ..) if op.is_comparison() => true,
            Binary(BinaryOperator::Mul | BinaryOperator::Max | BinaryOperator::Min, a, b) => a.is_truth() && b.is_truth(),
            Binary(BinaryOperator::Sub, a, b) => **a == Number(1.0) && b.is_truth(),
            Where(_, a, b) => a.is_truth() && b.is_truth(),
            _ => false,
        }
    }

    /// Whether an integer is at least 0, decided where its bounds say so.
    pub fn at_least_zero(integer: AffineInteger, indices: &StepIndices) -> Value {
        match integer.bounds(indices) {
            (Some(0..), _) => Number(1.0),
            (_, Some(..0)) => Number(0.0),
            _ => {
                // Terms that count downwards stand on the right.
                let (mut left, mut right) = (AffineInteger::number(0), AffineInteger::number(0));
                for (atom, by) in &integer.terms {
                    let part = AffineInteger::atom(atom.clone());
                    if *by > 0 { left = left.plus(&part, *by) } else { right = right.plus(&part, -*by) }
                }
                if integer.constant > 0 {
                    left.constant = integer.constant
                } else {
                    right.constant = -integer.constant
                }
                if left.terms.is_empty() {
                    return Binary(BinaryOperator::Le, Box::new(Value::integer(right)), Box::new(Value::integer(left)));
                }
                Binary(BinaryOperator::Ge, Box::new(Value::integer(left)), Box::new(Value::integer(right)))
            }
        }
    }

    /// Whether two integers are equal, decided where bounds say so.
    pub fn equal(a: &AffineInteger, b: &AffineInteger, indices: &StepIndices) -> Value {
        let apart = a.clone().minus(b);
        match apart.bounds(indices) {
            (Some(0), Some(0)) => Number(1.0),
            (Some(1..), _) | (_, Some(..0)) => Number(0.0),
            _ => {
                let common = apart.terms.iter().fold(0, |g, (_, by)| gcd(g, by.abs()));
                if common > 1 && apart.constant % common != 0 {
                    return Number(0.0);
                }
                Binary(BinaryOperator::Eq, Box::new(Value::integer(a.clone())), Box::new(Value::integer(b.clone())))
            }
        }
    }

    /// The parts of a condition of which all must hold.
    pub fn conjuncts(&self) -> Vec<&Value> {
        match self {
            Binary(BinaryOperator::Mul, a, b) if a.is_truth() && b.is_truth() => [a.conjuncts(), b.conjuncts()].concat(),
            one => vec![one],
        }
    }

    pub fn parts(&self) -> Vec<&Value> {
        match self {
            Call(_, a) | Reduce(_, _, a) => vec![a],
            Binary(_, a, b) => vec![a, b],
            Where(c, a, b) => vec![c, a, b],
            _ => vec![],
        }
    }

    pub fn integers(&self) -> &[AffineInteger] {
        match self {
            Integer(i) => std::slice::from_ref(i),
            Read { at, .. } | Carried(_, _, at) => at,
            _ => &[],
        }
    }

    /// How many operations and elements it has.
    pub fn weight(&self) -> usize {
        1 + self.parts().into_iter().map(Value::weight).sum::<usize>()
    }

    pub fn any(&self, f: &dyn Fn(&Value) -> bool) -> bool {
        let element = |atom: &Atom| match atom {
            Atom::Element(of) => of.any(f),
            Atom::Quotient(of, _) => Integer(of.as_ref().clone()).any(f),
            Atom::Index(_) => false,
        };
        f(self)
            || self.parts().into_iter().any(|part| part.any(f))
            || self.integers().iter().any(|i| i.terms.iter().any(|(atom, _)| element(atom)))
    }

    /// Calls `f` with every index that stands free.
    pub fn each_index(&self, f: &mut dyn FnMut(Id)) {
        self.integers().iter().for_each(|i| i.each_index(f));
        if let Carried(time, ..) = self {
            f(*time);
        }
        if let Reduce(_, over, of) = self {
            of.each_index(&mut |id| {
                if !over.contains(&id) {
                    f(id);
                }
            });
            return;
        }
        self.parts().into_iter().for_each(|part| part.each_index(f));
    }

    pub fn mentions(&self, id: Id) -> bool {
        let mut found = false;
        self.each_index(&mut |own| found |= own == id);
        found
    }

    /// The same with each part replaced, once its own parts are.
    pub fn rebuilt(
        &self,
        f: &mut dyn FnMut(Value) -> Value,
        at: &mut dyn FnMut(&AffineInteger) -> AffineInteger,
        indices: &StepIndices,
    ) -> Value {
        let made = match self {
            Number(_) | Prior | Undefined => self.clone(),
            Integer(i) => Value::integer(at(i)),
            Read { tensor, at: places, fill } => Read { tensor: *tensor, at: places.iter().map(&mut *at).collect(), fill: *fill },
            Carried(id, name, places) => Carried(*id, name.clone(), places.iter().map(&mut *at).collect()),
            Call("-", a) => a.rebuilt(f, at, indices).negative(),
            Call(name, a) => Call(name, Box::new(a.rebuilt(f, at, indices))),
            Binary(op, a, b) => {
                let (a, b) = (a.rebuilt(f, at, indices), b.rebuilt(f, at, indices));
                Value::compared(*op, a, b, indices)
            }
            Where(c, a, b) => {
                let c = c.rebuilt(f, at, indices);
                let (a, b) = (a.rebuilt(f, at, indices), b.rebuilt(f, at, indices));
                Value::choice(c, a, b)
            }
            Reduce(combine, over, of) => Reduce(*combine, over.clone(), Box::new(of.rebuilt(f, at, indices))),
        };
        f(made)
    }

    /// A binary operation, decided where integers are compared and their bounds say so.
    pub fn compared(op: BinaryOperator, a: Value, b: Value, indices: &StepIndices) -> Value {
        let whole = |v: &Value| match v {
            Integer(i) => Some(i.clone()),
            Number(n) if n.fract() == 0.0 && n.abs() < 1e15 => Some(AffineInteger::number(*n as i64)),
            _ => None,
        };
        let known = |v: Value| matches!(v, Number(_)).then_some(v);
        if op.is_comparison()
            && let (Some(x), Some(y)) = (whole(&a), whole(&b))
        {
            let decided = match op {
                BinaryOperator::Ge => known(Value::at_least_zero(x.minus(&y), indices)),
                BinaryOperator::Gt => known(Value::at_least_zero(x.minus(&y).add(-1), indices)),
                BinaryOperator::Le => known(Value::at_least_zero(y.minus(&x), indices)),
                BinaryOperator::Lt => known(Value::at_least_zero(y.minus(&x).add(-1), indices)),
                BinaryOperator::Eq => known(Value::equal(&x, &y, indices)),
                _ => known(Value::equal(&x, &y, indices)).map(Value::not),
            };
            if let Some(decided) = decided {
                return decided;
            }
        }
        if op == BinaryOperator::Mul && a.is_truth() && b.is_truth() {
            return Value::both(a, b);
        }
        Value::binary(op, a, b)
    }

    /// With integers in the place of indices.
    pub fn substitute(&self, by: &IndexMap<Id, AffineInteger>, indices: &StepIndices) -> Value {
        if by.is_empty() {
            return self.clone();
        }
        self.rebuilt(&mut |v| v, &mut |i| i.substitute(by, indices), indices)
    }

    /// With another value in the place of what the element held before.
    pub fn with_prior(&self, prior: &Value, indices: &StepIndices) -> Value {
        self.rebuilt(&mut |v| if v == Prior { prior.clone() } else { v }, &mut |i| i.clone(), indices)
    }
}
