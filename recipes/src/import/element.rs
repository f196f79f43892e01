//! The element types of ONNX, and the type in which a recipe declares each.

use sdfg::Dtype;

/// An element type of ONNX that an import takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    F32,
    F64,
    F16,
    Bf16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    Bool,
}

use ElementType::*;

/// Number in `onnx.proto`, name there, bytes, and the type of a recipe that holds all its values; `u64` is held as far as `i64` goes.
const TABLE: &[(i32, ElementType, &str, usize, Dtype)] = &[
    (1, F32, "FLOAT", 4, Dtype::F32),
    (11, F64, "DOUBLE", 8, Dtype::F64),
    (10, F16, "FLOAT16", 2, Dtype::F16),
    (16, Bf16, "BFLOAT16", 2, Dtype::Bf16),
    (3, I8, "INT8", 1, Dtype::I16),
    (5, I16, "INT16", 2, Dtype::I16),
    (6, I32, "INT32", 4, Dtype::I32),
    (7, I64, "INT64", 8, Dtype::I64),
    (2, U8, "UINT8", 1, Dtype::U8),
    (4, U16, "UINT16", 2, Dtype::I32),
    (12, U32, "UINT32", 4, Dtype::I64),
    (13, U64, "UINT64", 8, Dtype::I64),
    (9, Bool, "BOOL", 1, Dtype::U8),
];

/// The names of types that are not read, by their numbers.
const OTHERS: &[(i32, &str)] = &[
    (8, "STRING"),
    (14, "COMPLEX64"),
    (15, "COMPLEX128"),
    (17, "FLOAT8E4M3FN"),
    (18, "FLOAT8E4M3FNUZ"),
    (19, "FLOAT8E5M2"),
    (20, "FLOAT8E5M2FNUZ"),
    (21, "UINT4"),
    (22, "INT4"),
    (23, "FLOAT4E2M1"),
    (24, "FLOAT8E8M0"),
];

impl ElementType {
    /// The type with this number in `onnx.proto`.
    ///
    /// # Errors
    /// The name of a type that is not read.
    pub fn of(number: i64) -> Result<ElementType, String> {
        let found = TABLE.iter().find(|row| i64::from(row.0) == number).map(|row| row.1);
        let other = || OTHERS.iter().find(|row| i64::from(row.0) == number).map(|row| row.1.to_string());
        found.ok_or_else(|| other().unwrap_or_else(|| format!("number {number}")))
    }

    fn row(self) -> &'static (i32, ElementType, &'static str, usize, Dtype) {
        TABLE.iter().find(|row| row.1 == self).unwrap_or(&TABLE[0])
    }

    pub fn name(self) -> &'static str {
        self.row().2
    }

    pub fn bytes(self) -> usize {
        self.row().3
    }

    /// The type in which a recipe declares a tensor of it.
    pub fn dtype(self) -> Dtype {
        self.row().4
    }

    pub fn is_float(self) -> bool {
        matches!(self, F32 | F64 | F16 | Bf16)
    }

    pub fn is_signed(self) -> bool {
        self.is_float() || matches!(self, I8 | I16 | I32 | I64)
    }
}
