//! Operators, each defined once: class, flop, expansion into maps, derivative. One file per operator.
//!
//! From a definition come the reference (the interpreter runs the expansion), the kernels, the sweep and the gradient
//! check. Adding an operator is adding a file here and a variant to [`Op`].

pub mod calculus;
mod contraction;
mod derivative;
mod elementwise;
mod normalize;
mod reduce;
mod softmax;

use crate::data::Container;
use crate::graph::Sdfg;
use crate::memlet::{Combine, Memlet};
use crate::node::{Index, IndexKind, Operand, Operation};
use crate::scalar::Scalar;
use crate::scope::Scope;
use crate::symbol::Expr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

pub use elementwise::arithmetic;

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
}

/// An operator's expansion: scopes over new transient containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Expansion {
    pub containers: Vec<Container>,
    /// In execution order. Each is one map over one tasklet.
    pub scopes: Vec<Scope>,
}

/// What a derivative needs to know: which gradients are wanted, and where they go.
pub struct Wanted {
    /// Input connector of the forward operation → container that receives this operation's contribution.
    pub gradients: BTreeMap<String, String>,
    /// Container that holds the gradient of the forward operation's `out`.
    pub upstream: String,
}

/// A derivative: operations in execution order, with the transient containers they introduce.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Derivative {
    pub containers: Vec<Container>,
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
        match self.op {
            Op::Contraction { .. } => Class::Contraction,
            Op::Elementwise { .. } => Class::Elementwise,
            _ => Class::Normalization,
        }
    }

    /// What a person calls the operator: `contraction`, `bias`, `softmax`, …
    pub fn label(&self) -> &str {
        match &self.op {
            Op::Contraction { .. } => "contraction",
            Op::Elementwise { label, .. } | Op::Reduce { label, .. } => label,
            Op::Softmax { .. } => "softmax",
            Op::SoftmaxGrad { .. } => "softmax dX",
            Op::Normalize { .. } => "norm",
            Op::NormalizeGradX { .. } => "norm dX",
            Op::NormalizeGradW => "norm dW",
        }
    }

    /// Floating-point operations, symbolic in the sizes. Conventions stand in each operator's file.
    pub fn flop(&self, program: &Sdfg) -> Expr {
        match &self.op {
            Op::Contraction { .. } => contraction::flop(self, program),
            Op::Elementwise { code, .. } => elementwise::flop(self, program, code),
            Op::Reduce { code, .. } => reduce::flop(self, program, code),
            Op::Softmax { .. } => softmax::flop(self, program),
            Op::SoftmaxGrad { .. } => softmax::flop_grad(self, program),
            Op::Normalize { .. } => normalize::flop(self, program),
            Op::NormalizeGradX { .. } => normalize::flop_grad_x(self, program),
            Op::NormalizeGradW => normalize::flop_grad_w(self, program),
        }
    }

    /// The meaning: maps over tasklets. New containers are named after the operation.
    pub fn expand(&self, program: &Sdfg) -> Result<Expansion, OperatorError> {
        match &self.op {
            Op::Contraction { scale } => contraction::expand(self, program, scale),
            Op::Elementwise { code, .. } => elementwise::expand(self, program, code),
            Op::Reduce { combine, code, scale, .. } => reduce::expand(self, program, *combine, code, scale),
            Op::Softmax { over } => softmax::expand(self, program, over),
            Op::SoftmaxGrad { over } => softmax::expand_grad(self, program, over),
            Op::Normalize { over, eps } => normalize::expand(self, program, over, *eps),
            Op::NormalizeGradX { over } => normalize::expand_grad_x(self, program, over),
            Op::NormalizeGradW => normalize::expand_grad_w(self, program),
        }
    }

    /// Reverse-mode derivative: operations that add nothing up; each writes one contribution.
    pub fn differentiate(&self, program: &Sdfg, wanted: &Wanted) -> Result<Derivative, OperatorError> {
        derivative::differentiate(self, program, wanted)
    }

    /// Whether nothing that is made of its result depends on its value, see [`SHIFT`].
    pub fn is_shift(&self) -> bool {
        matches!(&self.op, Op::Reduce { label, combine: Combine::Max, .. } if label == SHIFT)
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
