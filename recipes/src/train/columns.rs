//! The tensors of data files: read once, checked against the inputs of the recipe, and held in about the size of their stored type.

use crate::pipeline::PipelineError;
use crate::pipeline::oracle::tensor_types::{self, Number};
use crate::pipeline::oracle::tensors::Storing;
use ndarray::{ArrayD, IxDyn, OwnedRepr};
use ndarray_npy::{NpzReader, ReadNpyError, ReadNpyExt, ReadNpzError};
use safetensors::tensor::{Dtype as SafeDtype, SafeTensors};
use sdfg::Dtype;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Elements that are decoded at once.
const CHUNK: usize = 1 << 16;

/// Elements in the narrowest type that holds what the program stores.
#[derive(Clone, Debug, PartialEq)]
pub enum DataColumn {
    F64(Vec<f64>),
    F32(Vec<f32>),
    I32(Vec<i32>),
    U8(Vec<u8>),
}

impl DataColumn {
    pub fn of(dtype: Dtype, elements: usize) -> DataColumn {
        match dtype {
            // Whole numbers of 64 bits are given only where f64 holds them.
            Dtype::F64 | Dtype::I64 => DataColumn::F64(Vec::with_capacity(elements)),
            Dtype::F32 | Dtype::Bf16 | Dtype::F16 => DataColumn::F32(Vec::with_capacity(elements)),
            Dtype::I32 | Dtype::I16 => DataColumn::I32(Vec::with_capacity(elements)),
            Dtype::U8 | Dtype::Bit => DataColumn::U8(Vec::with_capacity(elements)),
        }
    }

    fn push(&mut self, value: f64) {
        match self {
            DataColumn::F64(values) => values.push(value),
            DataColumn::F32(values) => values.push(value as f32),
            DataColumn::I32(values) => values.push(value as i32),
            DataColumn::U8(values) => values.push(value as u8),
        }
    }

    /// Elements.
    pub fn elements(&self) -> usize {
        match self {
            DataColumn::F64(values) => values.len(),
            DataColumn::F32(values) => values.len(),
            DataColumn::I32(values) => values.len(),
            DataColumn::U8(values) => values.len(),
        }
    }

    /// Appends `count` elements from `at` on to `to`; nothing beyond the end.
    pub fn copy(&self, at: usize, count: usize, to: &mut Vec<f64>) {
        fn part<T: Copy + Into<f64>>(values: &[T], at: usize, count: usize, to: &mut Vec<f64>) {
            to.extend(values.iter().skip(at).take(count).map(|v| (*v).into()));
        }
        match self {
            DataColumn::F64(values) => part(values, at, count, to),
            DataColumn::F32(values) => part(values, at, count, to),
            DataColumn::I32(values) => part(values, at, count, to),
            DataColumn::U8(values) => part(values, at, count, to),
        }
    }

    /// Adds the elements to a hash.
    pub fn hash_into(&self, hasher: &mut blake3::Hasher) {
        fn part<T: Copy, const N: usize>(values: &[T], bytes: fn(T) -> [u8; N], hasher: &mut blake3::Hasher) {
            for chunk in values.chunks(CHUNK) {
                hasher.update(&chunk.iter().flat_map(|v| bytes(*v)).collect::<Vec<u8>>());
            }
        }
        match self {
            DataColumn::F64(values) => part(values, f64::to_le_bytes, hasher),
            DataColumn::F32(values) => part(values, f32::to_le_bytes, hasher),
            DataColumn::I32(values) => part(values, i32::to_le_bytes, hasher),
            DataColumn::U8(values) => part(values, u8::to_le_bytes, hasher),
        }
    }
}

/// A tensor of a file, before it is checked.
pub enum Stored {
    Bytes { dtype: SafeDtype, shape: Vec<usize>, bytes: Vec<u8> },
    Numbers(ArrayD<Number>),
}

impl Stored {
    pub fn shape(&self) -> &[usize] {
        match self {
            Stored::Bytes { shape, .. } => shape,
            Stored::Numbers(array) => array.shape(),
        }
    }

    /// Appends the elements, as the program stores them, to a column.
    ///
    /// # Errors
    /// The first element that the program cannot store, with its place: a part of a sentence that begins with the tensor's name.
    pub fn append(&self, storing: &Storing, column: &mut DataColumn) -> Result<(), String> {
        let mut at = 0;
        let mut push = |number: Number| {
            let value = storing.value(number).map_err(|why| format!("at {:?} is {why}", place(at, self.shape())))?;
            column.push(value);
            at += 1;
            Ok(())
        };
        match self {
            Stored::Numbers(array) => array.iter().try_for_each(|number| push(*number)),
            Stored::Bytes { dtype, bytes, .. } => {
                let width = tensor_types::width(*dtype)?;
                bytes
                    .chunks(CHUNK * width)
                    .try_for_each(|chunk| tensor_types::of_safetensors(*dtype, chunk)?.into_iter().try_for_each(&mut push))
            }
        }
    }
}

/// The index of an element by its number.
fn place(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut place: Vec<usize> = shape.iter().rev().map(|size| (at % size.max(&1), at /= size.max(&1)).0).collect();
    place.reverse();
    place
}

/// The tensors of all files by name. Those of one name, in the order of the files.
///
/// # Errors
/// A file that cannot be read, and types that are not.
pub fn read(files: &[PathBuf]) -> Result<BTreeMap<String, Vec<(PathBuf, Stored)>>, PipelineError> {
    let mut all: BTreeMap<String, Vec<(PathBuf, Stored)>> = BTreeMap::new();
    for file in files {
        let found = match file.extension().and_then(|e| e.to_str()) {
            Some("safetensors") => safetensors(file),
            Some("npz") => npz(file),
            Some("npy") => npy(file),
            _ => Err("the name of a data file must end in .safetensors, .npz or .npy".into()),
        };
        let found = found.map_err(|why| PipelineError::Tensors { file: file.display().to_string(), why })?;
        for (name, stored) in found {
            all.entry(name).or_default().push((file.clone(), stored));
        }
    }
    Ok(all)
}

fn safetensors(path: &Path) -> Result<Vec<(String, Stored)>, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| e.to_string())?;
    let stored = |name: &str, view: safetensors::tensor::TensorView| {
        tensor_types::width(view.dtype()).map_err(|why| format!("`{name}` {why}"))?;
        Ok(Stored::Bytes { dtype: view.dtype(), shape: view.shape().to_vec(), bytes: view.data().to_vec() })
    };
    file.tensors().into_iter().map(|(name, view)| stored(&name, view).map(|stored| (name, stored))).collect()
}

fn npz(path: &Path) -> Result<Vec<(String, Stored)>, String> {
    let mut file = NpzReader::new(File::open(path).map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    let names = file.names().map_err(|e| e.to_string())?;
    let mut entry = |entry: String| {
        let name = entry.strip_suffix(".npy").unwrap_or(&entry).to_string();
        let read = file.by_name::<OwnedRepr<Number>, IxDyn>(&entry);
        let read = read.map_err(|error| match error {
            ReadNpzError::Npy(error) => unread(&name, error),
            error => format!("`{name}`: {error}"),
        })?;
        Ok((name, Stored::Numbers(read)))
    };
    names.into_iter().map(&mut entry).collect()
}

/// A single array, which is called as its file is.
fn npy(path: &Path) -> Result<Vec<(String, Stored)>, String> {
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let file = BufReader::new(File::open(path).map_err(|e| e.to_string())?);
    let read = ArrayD::<Number>::read_npy(file).map_err(|error| unread(&name, error))?;
    Ok(vec![(name, Stored::Numbers(read))])
}

fn unread(name: &str, error: ReadNpyError) -> String {
    match error {
        ReadNpyError::WrongDescriptor(descriptor) => {
            format!("`{name}` is stored as {descriptor}, which is not read; {} are (bf16 in .safetensors)", tensor_types::names())
        }
        ReadNpyError::ParseData(why) => format!("`{name}` {why}"),
        ReadNpyError::MissingData => format!("`{name}` holds fewer elements than its header says: the file was cut off"),
        error => format!("`{name}`: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_have_places() {
        assert_eq!(place(0, &[2, 3]), [0, 0]);
        assert_eq!(place(5, &[2, 3]), [1, 2]);
        assert_eq!(place(7, &[4, 2, 1]), [3, 1, 0]);
        assert_eq!(place(0, &[]), [0usize; 0]);
    }
}
