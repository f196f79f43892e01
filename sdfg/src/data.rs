//! Containers: what a program stores, with named dimensions and without a layout.

use crate::bounds::Bounds;
use crate::memlet::Fill;
use crate::rounding;
use crate::symbol::Expr;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Element types. Storage only: accumulation is f32 at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    F64,
    F32,
    Bf16,
    F16,
    I64,
    I32,
    I16,
    U8,
    /// One bit an element, packed eight to a byte.
    Bit,
}

impl Dtype {
    pub const ALL: [Dtype; 9] =
        [Dtype::F64, Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::I64, Dtype::I32, Dtype::I16, Dtype::U8, Dtype::Bit];

    /// Width of one element in bits.
    pub fn bits(self) -> u64 {
        match self {
            Dtype::F64 | Dtype::I64 => 64,
            Dtype::F32 | Dtype::I32 => 32,
            Dtype::Bf16 | Dtype::F16 | Dtype::I16 => 16,
            Dtype::U8 => 8,
            Dtype::Bit => 1,
        }
    }

    /// Bytes of `elements` elements; bits are rounded up to whole bytes.
    pub fn bytes(self, elements: u64) -> u64 {
        (elements.saturating_mul(self.bits())).div_ceil(8)
    }

    /// Unit roundoff of a floating type; 0 for integers and bits, which are exact.
    pub fn roundoff(self) -> f64 {
        match self {
            Dtype::F64 => 2f64.powi(-53),
            Dtype::F32 => 2f64.powi(-24),
            Dtype::F16 => 2f64.powi(-11),
            Dtype::Bf16 => 2f64.powi(-8),
            Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::U8 | Dtype::Bit => 0.0,
        }
    }

    /// What values stored in this type are computed and summed in: f32 for the narrower floating types, else itself.
    pub fn accumulator(self) -> Dtype {
        match self {
            Dtype::Bf16 | Dtype::F16 => Dtype::F32,
            other => other,
        }
    }

    pub fn is_floating(self) -> bool {
        self.roundoff() > 0.0
    }

    /// The least and the greatest whole number that an integer type stores, 0 and 1 of bits; `None` for floating types.
    pub fn whole_numbers(self) -> Option<(i64, i64)> {
        match self {
            Dtype::I64 => Some((i64::MIN, i64::MAX)),
            Dtype::I32 => Some((i32::MIN.into(), i32::MAX.into())),
            Dtype::I16 => Some((i16::MIN.into(), i16::MAX.into())),
            Dtype::U8 => Some((u8::MIN.into(), u8::MAX.into())),
            Dtype::Bit => Some((0, 1)),
            Dtype::F64 | Dtype::F32 | Dtype::Bf16 | Dtype::F16 => None,
        }
    }

    /// Whether a value can be stored: any by a floating type, and by the others whole numbers of theirs.
    pub fn stores(self, value: f64) -> bool {
        // 2^63 is the double next to the greatest i64, and beyond it.
        let within = |(least, most): (i64, i64)| value >= least as f64 && value <= most as f64 && value < 2f64.powi(63);
        self.whole_numbers().is_none_or(|numbers| value.fract() == 0.0 && within(numbers))
    }

    /// The value nearest to `value` that a floating type stores, ties to even; of bits, whether it is positive. Integers store what they
    /// are given.
    pub fn rounded(self, value: f64) -> f64 {
        match self {
            Dtype::F32 => f64::from(value as f32),
            Dtype::Bf16 => rounding::to_bf16(value).to_f64(),
            Dtype::F16 => rounding::to_f16(value).to_f64(),
            Dtype::Bit => f64::from(u8::from(value > 0.0)),
            _ => value,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Dtype::F64 => "f64",
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::F16 => "f16",
            Dtype::I64 => "i64",
            Dtype::I32 => "i32",
            Dtype::I16 => "i16",
            Dtype::U8 => "u8",
            Dtype::Bit => "bit",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a container is to the person who runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Given anew each step (activations, the upstream gradient).
    Input,
    /// Kept between steps; the plan may keep it in any layout.
    Parameter,
    /// Handed back each step.
    Output,
    /// The derivative of the loss by another container, handed back each step.
    Gradient,
    /// Exists only while the program runs.
    Transient,
}

/// Where a container lives while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Off chip: main memory or device memory. Movement is counted here.
    Heap,
    /// A buffer of one worker (core, thread), meant to stay in its cache.
    Local,
    /// Shared by the threads of a block on a GPU.
    Shared,
    Register,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lifetime {
    /// One iteration of the scope that holds it.
    Scope,
    /// From its writer to its last reader within a run.
    Program,
    /// Across runs.
    Persistent,
}

/// A container that is a static slice of another one with as many dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct View {
    pub of: String,
    /// First element of the slice, one per dimension.
    pub offsets: Vec<Expr>,
}

/// A place in a recipe: what an error points at.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Origin {
    pub file: String,
    pub line: u32,
    pub column: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A tensor: named dimensions, element type, role. It has no layout; a configuration gives it one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    pub name: String,
    /// Names of dims of the program, in the recipe's order. Distinct.
    pub dims: Vec<String>,
    pub dtype: Dtype,
    pub role: Role,
    pub storage: Storage,
    pub lifetime: Lifetime,
    /// Whether a gradient of it is wanted (inputs and parameters).
    pub grad: bool,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub view: Option<View>,
    /// What values it may be given (inputs and parameters); `None` where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub range: Option<Bounds>,
    /// The value of all its elements before the first step (parameters); `None` where they are given.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub initial: Option<Fill>,
    /// The parameter whose value in the next step is this one (outputs). Both have the same dims and element type.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub replaces: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub origin: Option<Origin>,
}

impl Container {
    /// A heap container of the given role that lives as long as its role asks.
    pub fn new(name: impl Into<String>, dims: &[&str], dtype: Dtype, role: Role) -> Self {
        let lifetime = match role {
            Role::Parameter => Lifetime::Persistent,
            _ => Lifetime::Program,
        };
        Container {
            name: name.into(),
            dims: dims.iter().map(|d| d.to_string()).collect(),
            dtype,
            role,
            storage: Storage::Heap,
            lifetime,
            grad: matches!(role, Role::Input | Role::Parameter),
            view: None,
            range: None,
            initial: None,
            replaces: None,
            origin: None,
        }
    }

    /// A buffer inside a scope.
    pub fn local(name: impl Into<String>, dims: Vec<String>, dtype: Dtype) -> Self {
        let storage = if dims.is_empty() { Storage::Register } else { Storage::Local };
        Container {
            name: name.into(),
            dims,
            dtype,
            role: Role::Transient,
            storage,
            lifetime: Lifetime::Scope,
            grad: false,
            view: None,
            range: None,
            initial: None,
            replaces: None,
            origin: None,
        }
    }

    /// A transient with this one's dims, element type and storage, for the length of the program.
    pub fn like(&self, name: impl Into<String>) -> Container {
        Container { name: name.into(), role: Role::Transient, lifetime: Lifetime::Program, grad: false, view: None, ..self.clone() }
    }

    pub fn is_transient(&self) -> bool {
        self.role == Role::Transient
    }
}
