//! Tensors whose elements are known at import: initializers, constants, and what is computed from them.

use super::element::ElementType;
use super::proto::TensorProto;
use std::path::Path;

/// Elements that a tensor of a model may have; more would not fit any machine's memory.
const MOST: usize = 1 << 40;

/// A tensor with known elements, in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstantTensor {
    pub element: ElementType,
    pub shape: Vec<usize>,
    data: Data,
}

#[derive(Clone, Debug, PartialEq)]
enum Data {
    /// Little-endian bytes of the element type, as files hold them.
    Raw(Vec<u8>),
    Whole(Vec<i64>),
    Real(Vec<f64>),
}

impl ConstantTensor {
    pub fn whole(element: ElementType, shape: Vec<usize>, values: Vec<i64>) -> ConstantTensor {
        let wrapped = |v: i64| match element {
            ElementType::I8 => i64::from(v as i8),
            ElementType::I16 => i64::from(v as i16),
            ElementType::I32 => i64::from(v as i32),
            ElementType::U8 => i64::from(v as u8),
            ElementType::U16 => i64::from(v as u16),
            ElementType::U32 => i64::from(v as u32),
            ElementType::Bool => i64::from(v != 0),
            _ => v,
        };
        ConstantTensor { element, shape, data: Data::Whole(values.into_iter().map(wrapped).collect()) }
    }

    pub fn real(element: ElementType, shape: Vec<usize>, values: Vec<f64>) -> ConstantTensor {
        let dtype = element.dtype();
        ConstantTensor { element, shape, data: Data::Real(values.into_iter().map(|v| dtype.rounded(v)).collect()) }
    }

    /// Elements of either kind, in the kind of the element type.
    pub fn of(element: ElementType, shape: Vec<usize>, values: Vec<f64>) -> ConstantTensor {
        match element.is_float() {
            true => ConstantTensor::real(element, shape, values),
            false => ConstantTensor::whole(element, shape, values.into_iter().map(|v| v as i64).collect()),
        }
    }

    /// One-dimensional whole numbers, as a shape is.
    pub fn list(values: Vec<i64>) -> ConstantTensor {
        ConstantTensor::whole(ElementType::I64, vec![values.len()], values)
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The same elements under another shape of as many.
    pub fn reshaped(&self, shape: Vec<usize>) -> ConstantTensor {
        ConstantTensor { shape, ..self.clone() }
    }

    /// The elements as f64.
    pub fn reals(&self) -> Vec<f64> {
        match &self.data {
            Data::Real(values) => values.clone(),
            Data::Whole(values) if self.element == ElementType::U64 => values.iter().map(|v| *v as u64 as f64).collect(),
            Data::Whole(values) => values.iter().map(|v| *v as f64).collect(),
            Data::Raw(bytes) => bytes.chunks_exact(self.element.bytes()).map(|e| read(self.element, e).0).collect(),
        }
    }

    /// The elements as whole numbers; fractions are cut off.
    pub fn wholes(&self) -> Vec<i64> {
        match &self.data {
            Data::Whole(values) => values.clone(),
            Data::Real(values) => values.iter().map(|v| *v as i64).collect(),
            Data::Raw(bytes) => bytes.chunks_exact(self.element.bytes()).map(|e| read(self.element, e).1).collect(),
        }
    }

    /// The only element, if there is one.
    pub fn only(&self) -> Option<f64> {
        if self.elements() == 1 { self.reals().first().copied() } else { None }
    }

    /// The value that all elements have, if there is one.
    pub fn uniform(&self) -> Option<f64> {
        let values = self.reals();
        let first = *values.first()?;
        values.iter().all(|v| v.to_bits() == first.to_bits()).then_some(first)
    }

    /// The bytes of a safetensors file for the type that a recipe declares.
    pub fn stored(&self) -> Vec<u8> {
        use ElementType::*;
        match (&self.data, self.element) {
            (Data::Raw(bytes), F32 | F64 | F16 | Bf16 | I16 | I32 | I64 | U8 | Bool) => bytes.clone(),
            (_, F32) => self.reals().into_iter().flat_map(|v| (v as f32).to_le_bytes()).collect(),
            (_, F64) => self.reals().into_iter().flat_map(f64::to_le_bytes).collect(),
            (_, F16) => self.reals().into_iter().flat_map(|v| sdfg::rounding::to_f16(v).to_le_bytes()).collect(),
            (_, Bf16) => self.reals().into_iter().flat_map(|v| sdfg::rounding::to_bf16(v).to_le_bytes()).collect(),
            (_, I8 | I16) => self.wholes().into_iter().flat_map(|v| (v as i16).to_le_bytes()).collect(),
            (_, U16 | I32) => self.wholes().into_iter().flat_map(|v| (v as i32).to_le_bytes()).collect(),
            (_, U8 | Bool) => self.wholes().into_iter().map(|v| v as u8).collect(),
            (_, U32 | I64 | U64) => self.wholes().into_iter().flat_map(i64::to_le_bytes).collect(),
        }
    }

    /// Reads a tensor of a model; `folder` is where the model's file lies, next to which external data do.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read(tensor: &TensorProto, folder: &Path) -> Result<ConstantTensor, String> {
        let element = ElementType::of(tensor.data_type.into()).map_err(|name| format!("it is of type {name}, which is not read"))?;
        let shape: Option<Vec<usize>> = tensor.dims.iter().map(|d| usize::try_from(*d).ok()).collect();
        let shape = shape.ok_or("it has a negative size")?;
        let elements = shape.iter().try_fold(1usize, |all, d| all.checked_mul(*d)).filter(|n| *n <= MOST);
        let elements = elements.ok_or("its sizes do not fit any memory")?;
        let fits = |found: usize| match found == elements {
            true => Ok(()),
            false => Err(format!("its shape {shape:?} has {elements} elements, and the file has {found} for it: it may be cut off")),
        };
        let from_bytes = |bytes: Vec<u8>| {
            if bytes.len() != elements * element.bytes() {
                return Err(format!(
                    "its shape {shape:?} of {} takes {} bytes, and the file has {} for it: it may be cut off",
                    element.name(),
                    elements * element.bytes(),
                    bytes.len()
                ));
            }
            Ok(ConstantTensor { element, shape: shape.clone(), data: Data::Raw(bytes) })
        };
        if tensor.data_location == 1 {
            return from_bytes(external(tensor, folder, elements * element.bytes())?);
        }
        if !tensor.raw_data.is_empty() {
            return from_bytes(tensor.raw_data.clone());
        }
        let whole = |values: Vec<i64>| {
            fits(values.len())?;
            Ok(ConstantTensor::whole(element, shape.clone(), values))
        };
        match element {
            ElementType::F32 => {
                fits(tensor.float_data.len())?;
                Ok(ConstantTensor::real(element, shape.clone(), tensor.float_data.iter().map(|v| f64::from(*v)).collect()))
            }
            ElementType::F64 => {
                fits(tensor.double_data.len())?;
                Ok(ConstantTensor::real(element, shape.clone(), tensor.double_data.clone()))
            }
            ElementType::F16 | ElementType::Bf16 => {
                fits(tensor.int32_data.len())?;
                from_bytes(tensor.int32_data.iter().flat_map(|v| (*v as u16).to_le_bytes()).collect())
            }
            ElementType::I64 => whole(tensor.int64_data.clone()),
            ElementType::U32 | ElementType::U64 => whole(tensor.uint64_data.iter().map(|v| *v as i64).collect()),
            _ => whole(tensor.int32_data.iter().map(|v| i64::from(*v)).collect()),
        }
    }
}

/// Bytes of a tensor that a model keeps in another file.
fn external(tensor: &TensorProto, folder: &Path, wanted: usize) -> Result<Vec<u8>, String> {
    use std::io::{Read, Seek, SeekFrom};
    let entry = |key: &str| tensor.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let location = entry("location").ok_or("it lies in another file, and the model does not say in which one")?;
    let inside = Path::new(location).components().all(|c| matches!(c, std::path::Component::Normal(_) | std::path::Component::CurDir));
    if !inside {
        return Err(format!("it lies in `{location}`, which is not beside the model; move the file there"));
    }
    let number = |key: &str| entry(key).map(|v| v.parse::<u64>().map_err(|_| format!("its `{key}` is `{v}`, which is no number")));
    let offset = number("offset").transpose()?.unwrap_or(0);
    if let Some(length) = number("length").transpose()?
        && length != wanted as u64
    {
        return Err(format!("its shape takes {wanted} bytes, and `length` says {length}"));
    }
    let path = folder.join(location);
    let failed = |e: std::io::Error| format!("its data in {} cannot be read ({e}); keep the file beside the model", path.display());
    let mut file = std::fs::File::open(&path).map_err(failed)?;
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(wanted as u64).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() == wanted {
        true => Ok(bytes),
        false => Err(format!("its data end after {} of {wanted} bytes in {}: the file is cut off", bytes.len(), path.display())),
    }
}

/// One element, as f64 and as whole number.
fn read(element: ElementType, bytes: &[u8]) -> (f64, i64) {
    let mut eight = [0; 8];
    eight[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(eight);
    let real = |v: f64| (v, v as i64);
    let whole = |v: i64| (v as f64, v);
    match element {
        ElementType::F32 => real(f64::from(f32::from_bits(bits as u32))),
        ElementType::F64 => real(f64::from_bits(bits)),
        ElementType::F16 => real(half::f16::from_bits(bits as u16).to_f64()),
        ElementType::Bf16 => real(half::bf16::from_bits(bits as u16).to_f64()),
        ElementType::I8 => whole(i64::from(bits as i8)),
        ElementType::I16 => whole(i64::from(bits as i16)),
        ElementType::I32 => whole(i64::from(bits as i32)),
        ElementType::U64 => (bits as f64, bits as i64),
        ElementType::Bool => whole(i64::from(bits != 0)),
        _ => whole(bits as i64),
    }
}
