//! Operators, each defined once: data, class, connectors, flop, expansion into maps, derivative. One file per operator.
//!
//! From a definition come the text form, the checks, the reference (the interpreter runs the expansion), the kernels, the sweep and the
//! gradient check. A new operator is a file here with its [`Operator`], a variant of [`Op`] and a line of the registry below it.

pub mod calculus;
mod contraction;
mod derivative;
mod elementwise;
mod normalize;
pub mod operator;
mod reduce;
pub mod scatter;
mod softmax;

use crate::data::Container;
use crate::graph::Sdfg;
use crate::memlet::{Combine, Memlet};
use crate::node::{Index, IndexKind, Operand, Operation};
use crate::scalar::Scalar;
use crate::scope::Scope;
use crate::symbol::Expr;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

pub use elementwise::arithmetic;
pub use operator::{Operator, OperatorSyntax, Ports};

/// The paper's operator classes (§III-B).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    Contraction,
    Normalization,
    Elementwise,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Contraction => "contraction",
            Class::Normalization => "normalization",
            Class::Elementwise => "elementwise",
        })
    }
}

/// The label of a maximum that a result does not depend on: it is subtracted, and added again or divided out, so that exponentials stay in
/// range. No gradient goes through it.
pub const SHIFT: &str = "shift";

/// The label of a tensor that counts as a constant: no gradient goes through it.
pub const STOP_GRADIENT: &str = "stop_gradient";

/// The label of a read by the values of another tensor.
pub const GATHER: &str = "gather";

/// What an operation computes. Connectors and subscripts are those of its [`Operation`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// `out = scale · Σ a · b` over the indices that `out` lacks. Connectors `a`, `b` → `out`. `scale` reads no connector.
    Contraction { scale: Scalar },
    /// `out = code(inputs)` at every point; each input connector named in `code` is an operand. → `out`.
    Elementwise {
        /// What a person calls it: `bias`, `relu`, `dropout`, `residual`, …
        label: String,
        code: Scalar,
    },
    /// `out = scale · ⊕ code(inputs)` over the indices that `out` lacks. → `out`.
    Reduce { label: String, combine: Combine, code: Scalar, scale: Scalar },
    /// `out = exp(x − max x) / Σ exp(x − max x)` over `over`. `x` → `out`.
    Softmax { over: Vec<String> },
    /// `dx = y · (dy − Σ dy·y)` over `over`. `y`, `dy` → `dx`.
    SoftmaxGrad { over: Vec<String> },
    /// `out = gamma · (x − mean) · rstd + beta`, statistics over `over` (biased variance plus `eps`).
    /// `x`, optionally `gamma`, `beta` → `out`, `mean`, `rstd`. Layer, batch, group and instance normalization differ in `over`.
    Normalize { over: Vec<String>, eps: f64 },
    /// Derivative by `x`. `x`, `mean`, `rstd`, `dy`, optionally `gamma` → `dx`.
    NormalizeGradX { over: Vec<String> },
    /// Derivative by scale and shift. `x`, `mean`, `rstd`, `dy` → `dgamma` and/or `dbeta`.
    NormalizeGradW,
    /// `out = base + Σ code(x)` at the rows that `at` names; `over` is the index of rows. `x`, `at`, further pairs of these, optionally
    /// `base` → `out`.
    Scatter { label: String, over: Vec<String>, code: Scalar },
}

/// The registry: the variants of [`Op`] with their fields, and the operator of each.
macro_rules! operators {
    ($($variant:ident { $($field:ident),* } = $($operator:ident)::+;)*) => {
        impl Op {
            /// What `ask` finds out from the operator.
            pub fn with<'a, R>(&'a self, ask: impl FnOnce(&dyn Operator<'a>) -> R) -> R {
                match self {
                    $(Op::$variant { $($field),* } => ask(&$($operator)::+ { $($field),* }),)*
                }
            }
        }

        /// Every operator, as the text form spells it.
        pub const DEFINITIONS: &[&OperatorSyntax] = &[$(&$($operator)::+::DEFINITION),*];
    };
}

operators! {
    Contraction { scale } = contraction::Contraction;
    Elementwise { label, code } = elementwise::Elementwise;
    Reduce { label, combine, code, scale } = reduce::Reduce;
    Softmax { over } = softmax::Softmax;
    SoftmaxGrad { over } = softmax::SoftmaxGrad;
    Normalize { over, eps } = normalize::Normalize;
    NormalizeGradX { over } = normalize::GradX;
    NormalizeGradW {} = normalize::GradW;
    Scatter { label, over, code } = scatter::Scatter;
}

/// An operator's expansion: scopes over new transient containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expansion {
    pub containers: Vec<Container>,
    /// In execution order. Each is one map over one tasklet.
    pub scopes: Vec<Scope>,
}

/// What a derivative needs to know: which gradients are wanted, and where they go.
pub struct WantedGradients {
    /// Input connector of the forward operation → container that receives this operation's contribution.
    pub gradients: BTreeMap<String, String>,
    /// Of these connectors only the part of the gradient is written that belongs to what is read: other operations write the rest.
    pub parts: BTreeSet<String>,
    /// Container that holds the gradient of the forward operation's `out`.
    pub upstream: String,
}

/// A derivative: operations in execution order, with the transient containers they introduce.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Derivative {
    pub containers: Vec<Container>,
    /// Dims that only the derivative runs along, with their sizes.
    pub dims: Vec<(String, Expr)>,
    pub operations: Vec<Operation>,
    /// Input connector → container that already holds the contribution; nothing is computed for it.
    ///
    /// A wanted connector that stands neither here nor behind an operation has derivative 0.
    pub same: BTreeMap<String, String>,
}

/// Why an operator could not be expanded or differentiated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OperatorError {
    #[error("`{operation}` has no operand `{connector}`; the program was not made by this version of the library")]
    MissingOperand { operation: String, connector: String },
    #[error("`{operation}` cannot be differentiated by `{connector}`: {why}")]
    NotDifferentiable { operation: String, connector: String, why: String },
    #[error("`{operation}` uses the container `{data}`, which the program does not declare")]
    UnknownContainer { operation: String, data: String },
}

impl Operation {
    pub fn class(&self) -> Class {
        self.op.class()
    }

    /// What a person calls the operator: `contraction`, `bias`, `softmax`, …
    pub fn label(&self) -> &str {
        self.op.with(|operator| operator.label())
    }

    /// Floating-point operations, symbolic in the sizes. Conventions stand in each operator's file.
    pub fn flop(&self, program: &Sdfg) -> Expr {
        self.op.with(|operator| operator.flop(self, program))
    }

    /// The meaning: maps over tasklets. New containers are named after the operation.
    pub fn expand(&self, program: &Sdfg) -> Result<Expansion, OperatorError> {
        self.op.with(|operator| operator.expand(self, program))
    }

    /// Reverse-mode derivative: operations that add nothing up; each writes one contribution.
    pub fn differentiate(&self, program: &Sdfg, wanted: &WantedGradients) -> Result<Derivative, OperatorError> {
        if self.stops_gradients() {
            Ok(Derivative::default())
        } else {
            self.op.with(|operator| operator.differentiate(self, program, wanted))
        }
    }

    /// Whether nothing that is made of its result depends on its value, see [`SHIFT`].
    pub fn is_shift(&self) -> bool {
        matches!(&self.op, Op::Reduce { label, combine: Combine::Max, .. } if label == SHIFT)
    }

    /// Whether no gradient goes through it.
    pub fn stops_gradients(&self) -> bool {
        self.is_shift() || matches!(&self.op, Op::Elementwise { label, .. } if label == STOP_GRADIENT)
    }

    /// The operand that this operation stores again in another element type, if that is all it does.
    pub fn cast_of(&self, program: &Sdfg) -> Option<&Operand> {
        let (Op::Elementwise { code: Scalar::Input(connector), .. }, [input], [out]) = (&self.op, &self.inputs[..], &self.outputs[..])
        else {
            return None;
        };
        let dtype = |operand: &Operand| program.containers.get(&operand.data).map(|c| c.dtype);
        let whole = input.index_names().is_some_and(|names| names.len() == self.indices.len());
        (input.connector == *connector && whole && input.subscripts.len() == out.subscripts.len() && dtype(input) != dtype(out))
            .then_some(input)
    }

    /// Product of the sizes of all indices: points of the whole iteration space.
    pub fn points(&self, program: &Sdfg) -> Expr {
        Expr::product(self.indices.values().map(|dim| program.size_of(dim)))
    }

    /// Indices that no output subscript mentions, in order: those that are reduced.
    pub fn reduced(&self) -> Vec<&str> {
        let kept: Vec<_> = self.outputs.iter().flat_map(|o| &o.subscripts).flat_map(Expr::symbols).collect();
        self.indices.keys().map(String::as_str).filter(|i| !kept.iter().any(|k| k == i)).collect()
    }

    pub(crate) fn need_input(&self, connector: &str) -> Result<&Operand, OperatorError> {
        self.input(connector).ok_or_else(|| OperatorError::MissingOperand { operation: self.name.clone(), connector: connector.into() })
    }

    pub(crate) fn need_output(&self, connector: &str) -> Result<&Operand, OperatorError> {
        self.output(connector).ok_or_else(|| OperatorError::MissingOperand { operation: self.name.clone(), connector: connector.into() })
    }
}
