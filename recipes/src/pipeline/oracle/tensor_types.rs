//! Elements of tensor files: one table of types for both formats, and the conversion to a program's types.
//!
//! Integers are stored exactly or refused. Floating-point numbers are rounded once, to the nearest number of the program's type; a finite
//! number that would become infinite is refused.

use ndarray_npy::{ReadDataError, ReadableElement};
use py_literal::Value as Descriptor;
use safetensors::tensor::Dtype as SafeDtype;
use sdfg::Dtype;
use std::io::Read;

/// A number as it stands in a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Real(f64),
    Signed(i64),
    Unsigned(u64),
}

/// A type that numbers have in files.
pub struct FileType {
    pub name: &'static str,
    safetensors: SafeDtype,
    /// As NumPy writes it, without the order of bytes; `None` where it has no such type.
    numpy: Option<&'static str>,
    /// Bytes of an element.
    width: usize,
    /// Decodes an element from its bytes, lowest first; `None` if the bytes are no value of the type.
    read: fn(&[u8]) -> Option<Number>,
}

macro_rules! file_type {
    ($name:literal, $safetensors:ident, $numpy:expr, $type:ty, $number:expr) => {
        FileType {
            name: $name,
            safetensors: SafeDtype::$safetensors,
            numpy: $numpy,
            width: size_of::<$type>(),
            read: |bytes| {
                let number: fn($type) -> Option<Number> = $number;
                number(<$type>::from_le_bytes(bytes.try_into().ok()?))
            },
        }
    };
}

/// Every type that is read.
pub const FILE_TYPES: [FileType; 13] = [
    file_type!("f64", F64, Some("f8"), f64, |v| Some(Number::Real(v))),
    file_type!("f32", F32, Some("f4"), f32, |v| Some(Number::Real(v.into()))),
    file_type!("f16", F16, Some("f2"), half::f16, |v| Some(Number::Real(v.into()))),
    file_type!("bf16", BF16, None, half::bf16, |v| Some(Number::Real(v.into()))),
    file_type!("i64", I64, Some("i8"), i64, |v| Some(Number::Signed(v))),
    file_type!("i32", I32, Some("i4"), i32, |v| Some(Number::Signed(v.into()))),
    file_type!("i16", I16, Some("i2"), i16, |v| Some(Number::Signed(v.into()))),
    file_type!("i8", I8, Some("i1"), i8, |v| Some(Number::Signed(v.into()))),
    file_type!("u64", U64, Some("u8"), u64, |v| Some(Number::Unsigned(v))),
    file_type!("u32", U32, Some("u4"), u32, |v| Some(Number::Unsigned(v.into()))),
    file_type!("u16", U16, Some("u2"), u16, |v| Some(Number::Unsigned(v.into()))),
    file_type!("u8", U8, Some("u1"), u8, |v| Some(Number::Unsigned(v.into()))),
    file_type!("bool", BOOL, Some("b1"), u8, |v| (v <= 1).then_some(Number::Unsigned(v.into()))),
];

/// The names of all types that are read, for messages.
pub fn names() -> String {
    FILE_TYPES.map(|t| t.name).join(", ")
}

/// Bytes of an element of a safetensors file.
///
/// # Errors
/// A type that is not read.
pub fn width(dtype: SafeDtype) -> Result<usize, String> {
    Ok(of_file(dtype)?.width)
}

fn of_file(dtype: SafeDtype) -> Result<&'static FileType, String> {
    static TYPES: [FileType; 13] = FILE_TYPES;
    let found = TYPES.iter().find(|t| t.safetensors == dtype);
    found.ok_or_else(|| format!("is stored as {dtype:?}, which is not read; {} are", names()))
}

/// The numbers of a tensor of a safetensors file.
///
/// # Errors
/// A type that is not read, or bytes that are no number of it.
pub fn of_safetensors(dtype: SafeDtype, bytes: &[u8]) -> Result<Vec<Number>, String> {
    numbers(of_file(dtype)?, bytes, false)
}

fn numbers(of: &FileType, bytes: &[u8], reversed: bool) -> Result<Vec<Number>, String> {
    let each = bytes.chunks_exact(of.width).enumerate().map(|(n, bytes)| {
        let mut element = [0; 8];
        let element = &mut element[..of.width];
        element.copy_from_slice(bytes);
        if reversed {
            element.reverse();
        }
        (of.read)(element).ok_or_else(|| format!("holds {bytes:?} as its element number {n}, which is no {}", of.name))
    });
    each.collect()
}

/// Elements of an npz file, which names their type itself.
impl ReadableElement for Number {
    fn read_to_end_exact_vec<R: Read>(reader: R, descriptor: &Descriptor, length: usize) -> Result<Vec<Number>, ReadDataError> {
        let unknown = || ReadDataError::WrongDescriptor(descriptor.clone());
        let text = descriptor.as_string().ok_or_else(unknown)?;
        let (order, kind) = text.split_at_checked(1).ok_or_else(unknown)?;
        let found = FILE_TYPES.iter().find(|t| t.numpy == Some(kind)).ok_or_else(unknown)?;
        let reversed = match order {
            "<" | "|" => false,
            ">" => true,
            _ => return Err(unknown()),
        };
        let wanted = length.checked_mul(found.width).ok_or(ReadDataError::MissingData)?;
        let mut bytes = Vec::new();
        // The read is bounded by the wanted length, whatever the header says.
        reader.take(wanted as u64 + 1).read_to_end(&mut bytes)?;
        match bytes.len() {
            n if n < wanted => Err(ReadDataError::MissingData),
            n if n > wanted => Err(ReadDataError::ExtraBytes(n - wanted)),
            _ => numbers(found, &bytes, reversed).map_err(|why| ReadDataError::ParseData(why.into())),
        }
    }
}

impl Number {
    /// The value that a program stores for it.
    ///
    /// # Errors
    /// Why it cannot be stored in this type, as a part of a sentence: "300, which u8 cannot hold: …".
    pub fn stored(self, dtype: Dtype) -> Result<f64, String> {
        let refused = |why: String| Err(format!("{}, which {dtype} cannot hold: {why}", self.text()));
        let value = self.value();
        if let Some((least, most)) = dtype.whole_numbers() {
            return match self {
                _ if value.fract() != 0.0 || !value.is_finite() => refused("it is no whole number".into()),
                _ if !self.is(value) => refused("beyond 2^53 a whole number must be one that f64 holds, too".into()),
                _ if !dtype.stores(value) => refused(format!("its whole numbers go from {least} to {most}")),
                _ => Ok(value),
            };
        }
        let rounded = dtype.rounded(value);
        match self {
            Number::Real(_) if rounded.is_infinite() && value.is_finite() => refused(format!("its largest number is {:e}", largest(dtype))),
            Number::Real(_) => Ok(rounded),
            _ if self.is(rounded) => Ok(rounded),
            _ => refused(format!("a whole number must stay what it is, and the nearest is {rounded}")),
        }
    }

    /// The nearest f64.
    fn value(self) -> f64 {
        match self {
            Number::Real(v) => v,
            Number::Signed(v) => v as f64,
            Number::Unsigned(v) => v as f64,
        }
    }

    /// Whether the number equals this value exactly.
    fn is(self, value: f64) -> bool {
        match self {
            Number::Real(v) => v == value,
            Number::Signed(v) => value.is_finite() && value as i128 == i128::from(v),
            Number::Unsigned(v) => value.is_finite() && value as i128 == i128::from(v),
        }
    }

    fn text(self) -> String {
        match self {
            Number::Real(v) => v.to_string(),
            Number::Signed(v) => v.to_string(),
            Number::Unsigned(v) => v.to_string(),
        }
    }
}

/// The largest number of a floating type.
fn largest(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F16 => half::f16::MAX.to_f64(),
        Dtype::Bf16 => half::bf16::MAX.to_f64(),
        Dtype::F32 => f32::MAX.into(),
        _ => f64::MAX,
    }
}
