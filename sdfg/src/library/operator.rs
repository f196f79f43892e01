//! What an operator is: everything that the rest of the system asks of one, in one place.
//!
//! A variant of [`Op`] holds the data of an operator, in fields of few kinds ([`Field`]). From those come the text form, renaming and the
//! checks of code and indices. The rest is the operator's [`Operator`], in a file of its own; [`super::DEFINITIONS`] lists them all.

use super::{Class, Derivative, Expansion, Op, OperatorError, WantedGradients};
use crate::graph::Sdfg;
use crate::memlet::Combine;
use crate::node::Operation;
use crate::scalar::Scalar;
use crate::symbol::Expr;
use std::collections::VecDeque;

/// The meaning of an operator. Connectors and subscripts are those of the operation.
pub trait Operator<'a> {
    fn definition(&self) -> &'static OperatorSyntax;

    /// The data of the operator, in the order of [`OperatorSyntax::shape`].
    fn fields(&self) -> Vec<Field>;

    /// The paper's operator class.
    fn class(&self) -> Class {
        Class::Normalization
    }

    /// What a person calls it: `contraction`, `bias`, `softmax`, …
    fn label(&self) -> &'a str;

    /// Connectors that it needs and may have.
    fn ports(&self) -> Ports;

    /// Floating-point operations, symbolic in the sizes.
    fn flop(&self, operation: &Operation, program: &Sdfg) -> Expr;

    /// The meaning: maps over tasklets. New containers are named after the operation.
    ///
    /// # Errors
    /// Operands that are missing.
    fn expand(&self, operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError>;

    /// Reverse-mode derivative: operations that add nothing up; each writes one contribution.
    ///
    /// # Errors
    /// An operand whose derivative is not defined, with the reason.
    fn differentiate(&self, forward: &Operation, program: &Sdfg, wanted: &WantedGradients) -> Result<Derivative, OperatorError>;
}

/// How the text form spells an operator: a word, then its fields.
pub struct OperatorSyntax {
    pub keyword: &'static str,
    pub shape: &'static [FieldKind],
    /// The operator of fields that have this shape; `None` of others.
    pub build: fn(&mut Fields) -> Option<Op>,
}

/// Connectors by name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ports {
    pub inputs: &'static [&'static str],
    pub outputs: &'static [&'static str],
    pub optional_inputs: &'static [&'static str],
    pub optional_outputs: &'static [&'static str],
    /// Inputs may have any other names: the operator's code reads them.
    pub free_inputs: bool,
}

/// The kind of a field, and the word before it in the text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A name for people.
    Label,
    Combine,
    /// Scalar code after this word.
    Code(&'static str),
    /// Indices of the operation, after `over`.
    Over,
    /// A number after this word.
    Number(&'static str),
}

/// A field and its value.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    Label(String),
    Combine(Combine),
    Code(Scalar),
    Over(Vec<String>),
    Number(f64),
}

/// Fields that are read one after the other. Each reader gives `None` if the next field is of another kind.
pub struct Fields(VecDeque<Field>);

impl Fields {
    pub fn new(fields: impl IntoIterator<Item = Field>) -> Fields {
        Fields(fields.into_iter().collect())
    }

    pub fn label(&mut self) -> Option<String> {
        if let Field::Label(label) = self.0.pop_front()? { Some(label) } else { None }
    }

    pub fn combine(&mut self) -> Option<Combine> {
        if let Field::Combine(combine) = self.0.pop_front()? { Some(combine) } else { None }
    }

    pub fn code(&mut self) -> Option<Scalar> {
        if let Field::Code(code) = self.0.pop_front()? { Some(code) } else { None }
    }

    pub fn over(&mut self) -> Option<Vec<String>> {
        if let Field::Over(over) = self.0.pop_front()? { Some(over) } else { None }
    }

    pub fn number(&mut self) -> Option<f64> {
        if let Field::Number(number) = self.0.pop_front()? { Some(number) } else { None }
    }
}

impl Op {
    /// The word that the text form has for it.
    pub fn keyword(&self) -> &'static str {
        self.with(|operator| operator.definition().keyword)
    }

    /// Its data, each field with its kind.
    pub fn fields(&self) -> Vec<(FieldKind, Field)> {
        self.with(|operator| operator.definition().shape.iter().copied().zip(operator.fields()).collect())
    }

    /// The indices that it runs over by name.
    pub fn over(&self) -> Vec<String> {
        let named = |(_, field)| if let Field::Over(over) = field { Some(over) } else { None };
        self.fields().into_iter().filter_map(named).flatten().collect()
    }

    /// The paper's operator class.
    pub fn class(&self) -> Class {
        self.with(|operator| operator.class())
    }

    /// The connectors of an operation of this kind.
    pub fn ports(&self) -> Ports {
        self.with(|operator| operator.ports())
    }

    /// The same operator with every field changed; a change keeps the kind of the field.
    pub fn with_fields(&self, change: impl FnMut(Field) -> Field) -> Op {
        let (definition, fields) = self.with(|operator| (operator.definition(), operator.fields()));
        (definition.build)(&mut Fields::new(fields.into_iter().map(change))).unwrap_or_else(|| self.clone())
    }
}
