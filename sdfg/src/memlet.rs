//! Memlets: which elements of which container an edge moves, and how many.

use crate::scalar::{maximum, minimum};
use crate::symbol::Expr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The part of one dimension that a memlet touches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Range {
    /// One element.
    At(Expr),
    /// `start`, `start+step`, … below `stop`.
    Span { start: Expr, stop: Expr, step: Expr },
}

impl Range {
    pub fn full(size: Expr) -> Self {
        Range::Span { start: Expr::Int(0), stop: size, step: Expr::Int(1) }
    }

    /// How many elements.
    pub fn count(&self) -> Expr {
        match self {
            Range::At(_) => Expr::Int(1),
            Range::Span { start, stop, step } => {
                let length = stop.clone() - start.clone();
                if *step == Expr::Int(1) { length } else { (length + (step.clone() - Expr::Int(1))).floor_div(step.clone()) }
            }
        }
    }

    /// The part that lies inside a dim of `size` elements, for a range of several elements: shape deduction of a padded layer ("Deep
    /// Fusion", shape deduction).
    pub fn clamped(&self, size: &Expr) -> Range {
        match self {
            Range::At(at) => Range::At(at.clone()),
            Range::Span { start, stop, step } => {
                let one = *step == Expr::Int(1);
                let first = match start.as_int() {
                    Some(start) if start >= 0 => Expr::Int(start),
                    Some(start) => Expr::Int(step.as_int().filter(|step| *step > 0).map_or(0, |step| start.rem_euclid(step))),
                    // A symbolic first element of a regular pattern is kept where it may lie: the pattern must not be lost.
                    None if one => start.clone().max(Expr::Int(0)),
                    None => start.clone(),
                };
                Range::Span { start: first, stop: stop.clone().min(size.clone()), step: step.clone() }
            }
        }
    }

    pub fn substitute(&self, with: &BTreeMap<String, Expr>) -> Range {
        match self {
            Range::At(at) => Range::At(at.substitute(with)),
            Range::Span { start, stop, step } => {
                Range::Span { start: start.substitute(with), stop: stop.substitute(with), step: step.substitute(with) }
            }
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Range::At(at) => write!(f, "{at}"),
            Range::Span { start, stop, step: Expr::Int(1) } => write!(f, "{start}:{stop}"),
            Range::Span { start, stop, step } => write!(f, "{start}:{stop}:{step}"),
        }
    }
}

/// An associative and commutative combine with an identity: how conflicting writes are resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Combine {
    Sum,
    Product,
    Max,
    Min,
    /// (maximum, sum of exponentials, weighted accumulator): online softmax. Three connectors in this order.
    OnlineSoftmax,
    /// (count, mean, sum of squared deviations): Welford and Chan. Three connectors in this order.
    Moments,
}

impl Combine {
    pub const ALL: [Combine; 6] = [Combine::Sum, Combine::Product, Combine::Max, Combine::Min, Combine::OnlineSoftmax, Combine::Moments];

    /// How many values are combined together.
    pub fn arity(self) -> usize {
        match self {
            Combine::OnlineSoftmax | Combine::Moments => 3,
            _ => 1,
        }
    }

    /// The value (or tuple) that changes nothing.
    pub fn identity(self) -> &'static [f64] {
        match self {
            Combine::Sum => &[0.0],
            Combine::Product => &[1.0],
            Combine::Max => &[f64::NEG_INFINITY],
            Combine::Min => &[f64::INFINITY],
            Combine::OnlineSoftmax => &[f64::NEG_INFINITY, 0.0, 0.0],
            Combine::Moments => &[0.0, 0.0, 0.0],
        }
    }

    /// `left ⊕ right` in f64, written over `left`. Both have `arity` elements.
    pub fn apply(self, left: &mut [f64], right: &[f64]) {
        match self {
            Combine::Sum => left[0] += right[0],
            Combine::Product => left[0] *= right[0],
            Combine::Max => left[0] = maximum(left[0], right[0]),
            Combine::Min => left[0] = minimum(left[0], right[0]),
            Combine::OnlineSoftmax => {
                let top = maximum(left[0], right[0]);
                // A side that holds the identity has weight 0, also where both maxima are −∞.
                let weight = |m: f64| if m == f64::NEG_INFINITY { 0.0 } else { (m - top).exp() };
                let (a, b) = (weight(left[0]), weight(right[0]));
                left[1] = left[1] * a + right[1] * b;
                left[2] = left[2] * a + right[2] * b;
                left[0] = top;
            }
            Combine::Moments => {
                let count = left[0] + right[0];
                if count > 0.0 {
                    let delta = right[1] - left[1];
                    left[2] += right[2] + delta * delta * left[0] * right[0] / count;
                    left[1] += delta * right[0] / count;
                    left[0] = count;
                }
            }
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Combine::Sum => "sum",
            Combine::Product => "product",
            Combine::Max => "max",
            Combine::Min => "min",
            Combine::OnlineSoftmax => "online_softmax",
            Combine::Moments => "moments",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.name() == name)
    }
}

impl fmt::Display for Combine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The value of an element outside a container. Fills are equal if their bits are, so that operands can be compared and hashed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fill(#[serde(with = "crate::json::float")] pub f64);

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::text::print_scalar(&crate::scalar::Scalar::Const(self.0)))
    }
}

impl PartialEq for Fill {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Fill {}

impl std::hash::Hash for Fill {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// Data movement along one edge. Read before the consumer runs, written after the producer has run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memlet {
    pub data: String,
    /// One range per dimension of the container.
    pub subset: Vec<Range>,
    /// Elements moved, counted with repetition over the scope that holds the edge once.
    pub volume: Expr,
    /// Write-conflict resolution; several iterations may then write one element.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wcr: Option<Combine>,
    /// The volume is an upper bound, known only while running.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub dynamic: bool,
    /// Value of an element outside the container; without it an out-of-range read is invalid.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "crate::json::number")]
    pub fill: Option<f64>,
}

impl Memlet {
    pub fn new(data: impl Into<String>, subset: Vec<Range>) -> Self {
        let volume = Expr::product(subset.iter().map(Range::count));
        Memlet { data: data.into(), subset, volume, wcr: None, dynamic: false, fill: None }
    }

    /// One element, subscripted by expressions.
    pub fn at(data: impl Into<String>, subscripts: impl IntoIterator<Item = Expr>) -> Self {
        Memlet::new(data, subscripts.into_iter().map(Range::At).collect())
    }

    /// The same movement, in which elements outside the container have a value.
    pub fn with_fill(mut self, fill: Option<Fill>) -> Self {
        self.fill = fill.map(|fill| fill.0);
        self
    }

    pub fn with_wcr(mut self, wcr: Option<Combine>) -> Self {
        self.wcr = wcr;
        self
    }

    /// The subscripts, if every dimension is a single element.
    pub fn point(&self) -> Option<Vec<&Expr>> {
        self.subset.iter().map(|r| if let Range::At(e) = r { Some(e) } else { None }).collect()
    }

    /// The same movement with indices replaced.
    pub fn substitute(&self, with: &BTreeMap<String, Expr>) -> Memlet {
        Memlet { subset: self.subset.iter().map(|r| r.substitute(with)).collect(), volume: self.volume.substitute(with), ..self.clone() }
    }
}

impl fmt::Display for Memlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.data)?;
        for (n, range) in self.subset.iter().enumerate() {
            if n > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{range}")?;
        }
        write!(f, "] volume {}", self.volume)?;
        if let Some(wcr) = self.wcr {
            write!(f, " wcr {wcr}")?;
        }
        if self.dynamic {
            f.write_str(" dynamic")?;
        }
        if let Some(fill) = self.fill {
            write!(f, " fill {fill:?}")?;
        }
        Ok(())
    }
}
