//! What a recipe declares, once its sections have been read: names, sizes, constants and tensors, and what is asked of the whole.

use super::initial::Initial;
use super::names::nearest;
use super::phrase::Phrase;
use super::problem::{Problem, SourceLocation};
use super::yaml::Name;
use indexmap::IndexMap;
use sdfg::{Bindings, Bounds, Dtype, Expr, Role, Scalar};

#[derive(Clone, Debug)]
pub struct DeclaredConstant {
    pub place: SourceLocation,
    /// Of numbers and sizes.
    pub value: Scalar,
}

#[derive(Clone, Debug)]
pub struct DeclaredTensor {
    pub place: SourceLocation,
    pub dims: Vec<String>,
    pub dtype: Dtype,
    pub role: Role,
    pub grad: bool,
    /// What values it may be given.
    pub range: Option<Bounds>,
    /// The value of its elements before the first step, of state that is kept between steps; `None` of other tensors.
    pub initial: Option<f64>,
    /// Its declaration has no error, so its axes can be relied on.
    pub sound: bool,
}

#[derive(Debug)]
pub struct Header {
    pub model: String,
    pub about: String,
    pub dtype: Dtype,
    /// Whether f32 may be multiplied as TF32.
    pub tf32: bool,
    /// Whether convolutions by windows of 3×3 may be computed by Winograd's minimal filtering.
    pub winograd: bool,
    /// Whether dropouts drop anything.
    pub dropout: bool,
    /// Whether everything is stored in `dtype`, see [`Overrides`](super::Overrides).
    pub narrow: bool,
    /// Dim → symbolic size.
    pub dims: IndexMap<String, Expr>,
    /// Size symbol → value.
    pub sizes: Bindings,
    pub constants: IndexMap<String, DeclaredConstant>,
    /// Inputs and parameters, then what the steps read so far have assigned.
    pub tensors: IndexMap<String, DeclaredTensor>,
    /// What parameters are before the first step of a training run.
    pub initial: IndexMap<String, Initial>,
    pub outputs: Option<Vec<Name>>,
    pub steps: Vec<Phrase>,
    /// What parameters and state are in the next step.
    pub update: Vec<Phrase>,
    pub upstream: Vec<Name>,
    pub loss: Option<Name>,
}

impl Header {
    /// Whether a name is that of a dim, and so of an index.
    pub fn is_index(&self, name: &str) -> bool {
        self.dims.contains_key(name)
    }

    /// The line that declares a tensor or constant of this name.
    pub fn declared(&self, name: &str) -> Option<u32> {
        let constant = self.constants.get(name).map(|c| c.place);
        self.tensors.get(name).map(|t| t.place).or(constant).map(|place| place.line)
    }

    pub fn unknown_dim(&self, name: &str) -> Problem {
        Problem::UnknownDim { name: name.into(), hint: nearest(name, self.dims.keys().map(String::as_str)) }
    }
}
