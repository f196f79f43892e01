//! An operator applied to its operands, where it is more than scalar code or a sum: one value in a step, and the operations that it
//! becomes.
//!
//! The operator's file gives a [`OperatorForm`]; nothing outside of it knows the operator.

use super::header::Header;
use super::value::StepValue;
use sdfg::{Expr, Fill, Op, Scalar};

/// The operand that is the index of the rows into which an operator adds.
pub const ROW: &str = "row";

/// One application of an operator.
#[derive(Clone, Debug)]
pub struct Applied {
    pub form: &'static OperatorForm,
    /// Indices that it runs over.
    pub over: Vec<String>,
    /// Numbers that it is given, in an order of its own: a rate, an `eps`.
    pub numbers: Vec<f64>,
    /// Its main operand.
    pub of: Box<StepValue>,
    /// Its other operands, by connector.
    pub others: Vec<(&'static str, StepValue)>,
}

impl PartialEq for Applied {
    fn eq(&self, other: &Applied) -> bool {
        self.form.name == other.form.name
            && (&self.over, &self.numbers, &self.of, &self.others) == (&other.over, &other.numbers, &other.of, &other.others)
    }
}

impl Applied {
    /// All operands.
    pub fn operands(&self) -> impl Iterator<Item = &StepValue> {
        [&*self.of].into_iter().chain(self.others.iter().map(|(_, value)| value))
    }

    /// The index that its label is a number of: the only one that it runs over, or that of the rows into which it adds.
    pub fn classes(&self) -> Option<&str> {
        match (self.other(ROW), self.over.as_slice()) {
            (Some(StepValue::Scalar(Scalar::Index(index))), _) => index.as_sym(),
            (None, [class]) => Some(class.as_str()),
            _ => None,
        }
    }

    /// One of the other operands.
    pub fn other(&self, connector: &str) -> Option<&StepValue> {
        self.others.iter().find(|(name, _)| *name == connector).map(|(_, value)| value)
    }
}

/// What the loader knows of an operator.
#[derive(Debug)]
pub struct OperatorForm {
    /// Its name: equal forms have equal names.
    pub name: &'static str,
    /// The result lacks the indices that it runs over.
    pub reduces: bool,
    /// Written again it is another value.
    pub random: bool,
    /// The operand whose elements are numbers of [`Applied::classes`].
    pub label: Option<&'static str>,
    /// The operations that it becomes.
    pub lower: fn(&mut dyn Lower, &Applied, StepTarget) -> Reading,
}

/// A container under subscripts.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub data: String,
    /// The indices that it depends on, each once; without a window they are the subscripts.
    pub indices: Vec<String>,
    pub window: Option<WindowSubscripts>,
}

/// Subscripts that are not plain indices, or may lie outside.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowSubscripts {
    pub subscripts: Vec<Expr>,
    /// The value of what lies outside of the container.
    pub fill: Option<Fill>,
}

impl Reading {
    /// A container whose dims are subscripted by indices.
    pub fn plain(data: impl Into<String>, indices: Vec<String>) -> Reading {
        Reading { data: data.into(), indices, window: None }
    }

    /// A container under subscripts that read the given indices.
    pub fn windowed(data: &str, subscripts: Vec<Expr>, fill: Option<Fill>, is_index: &dyn Fn(&str) -> bool) -> Reading {
        let mut indices: Vec<String> = Vec::new();
        for name in subscripts.iter().flat_map(Expr::symbols).filter(|name| is_index(name)) {
            if !indices.contains(&name) {
                indices.push(name);
            }
        }
        let plain = fill.is_none() && subscripts.len() == indices.len() && subscripts.iter().all(|s| s.as_sym().is_some());
        let window = (!plain).then_some(WindowSubscripts { subscripts, fill });
        Reading { data: data.into(), indices, window }
    }

    /// What its subscripts read: a container and the indices that it is read at, each once.
    pub fn lookups(&self) -> Vec<Reading> {
        let mut found: Vec<Reading> = Vec::new();
        for subscript in self.window.iter().flat_map(|window| &window.subscripts) {
            if let Expr::Element(data, at) = subscript {
                let reading = Reading::plain(data, at.iter().filter_map(|e| e.as_sym().map(str::to_string)).collect());
                if !found.contains(&reading) {
                    found.push(reading);
                }
            }
        }
        found
    }

    /// One for each dim of the container.
    pub fn subscripts(&self) -> Vec<Expr> {
        match &self.window {
            Some(window) => window.subscripts.clone(),
            None => self.indices.iter().map(Expr::sym).collect(),
        }
    }
}

/// Where a value goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepTarget {
    /// The step's tensor.
    Result,
    /// A transient of its own, unless the value is a container already.
    Transient,
}

/// The lowering of a step, as far as operators take part in it.
pub trait Lower {
    fn header(&self) -> &Header;

    /// Makes a value a container, subscripted by plain indices.
    fn stored(&mut self, value: &StepValue) -> Reading;

    /// Declares what an operation writes: `what` names a transient.
    fn output(&mut self, target: StepTarget, what: &str, indices: Vec<String>) -> Reading;

    /// Adds an operation.
    fn operation(&mut self, op: Op, inputs: Vec<(String, Reading)>, outputs: Vec<(&str, &Reading)>);

    /// Adds the operations of a value that is made of others.
    fn computed(&mut self, value: &StepValue, target: StepTarget) -> Reading;

    /// The name of another stream of random numbers.
    fn stream(&mut self) -> String;
}
