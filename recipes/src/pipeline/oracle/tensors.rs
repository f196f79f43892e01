//! Named tensors: drawn from a seed, read from and written to safetensors and npz files.

use super::largest_finite::largest_finite;
use super::small_sizes::with_small_sizes;
use super::tensor_types::{self, Number};
use crate::pipeline::PipelineError;
use ndarray::{ArrayD, Dimension, IxDyn, OwnedRepr};
use ndarray_npy::{NpzReader, NpzWriter, ReadNpyError, ReadNpzError};
use safetensors::tensor::{Dtype as SafeDtype, SafeTensors, TensorView};
use sdfg::interpret::{Run, Tensors, interpret_within};
use sdfg::{Container, Dtype, Role, Sdfg, ValueInterval};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Containers that a caller gives: inputs and parameters, in the recipe's order, without storage that views look into.
pub fn given(program: &Sdfg) -> Vec<&Container> {
    let viewed: Vec<&str> = program.containers.values().filter_map(|c| c.view.as_ref().map(|v| v.of.as_str())).collect();
    let wanted = |c: &&Container| matches!(c.role, Role::Input | Role::Parameter) && !viewed.contains(&c.name.as_str());
    program.containers.values().filter(wanted).collect()
}

/// Containers that are returned: outputs and gradients, in the recipe's order.
pub fn results(program: &Sdfg) -> Vec<&Container> {
    let viewed: Vec<&str> = program.containers.values().filter_map(|c| c.view.as_ref().map(|v| v.of.as_str())).collect();
    let wanted = |c: &&Container| matches!(c.role, Role::Output | Role::Gradient) && !viewed.contains(&c.name.as_str());
    program.containers.values().filter(wanted).collect()
}

/// Maps from values drawn from −2 to 2 to other ranges: unchanged; non-negative, for logarithms; probabilities; larger than one.
pub const RANGES: [fn(f64) -> f64; 4] = [|v| v, f64::abs, |v| v.abs() / 2.0, |v| v.abs() + 2.0];

/// Draws inputs and parameters from a seed, each from its own stream, exactly representable in their stored types. Values lie from −2 to
/// 2. If the program's results for these are NaN or too large for kernels, the first of the other [`RANGES`] with better results is used.
/// A container with a range of its own is drawn from that range, and integers are positions along a dim ([`values`]). State has the
/// values that it begins with.
///
/// Weights (parameters of two or more dims) are divided by the square root of their largest size, so that activations
/// keep their magnitude through a layer.
///
/// # Errors
/// Sizes that are not known.
pub fn random_inputs(program: &Sdfg, seed: u64) -> Result<Tensors, PipelineError> {
    Ok(ranged(program, seed, State::Initial)?.0)
}

/// As [`random_inputs`], with state that is drawn, too, as if many steps had been done: programs are compared on these. State that is 0
/// hides faults, and in the first step of Adam a gradient that is 0 but for rounding errors decides about the sign of an update.
///
/// # Errors
/// Sizes that are not known.
pub fn inputs_to_compare(program: &Sdfg, seed: u64) -> Result<Tensors, PipelineError> {
    let has_state = given(program).iter().any(|c| c.initial.is_some());
    match ranged(program, seed, State::Drawn)? {
        (tensors, true) => Ok(tensors),
        (tensors, false) if !has_state => Ok(tensors),
        // State that steps cannot come to.
        _ => random_inputs(program, seed),
    }
}

/// What state is before a step that is run on drawn tensors.
#[derive(Clone, Copy, PartialEq)]
enum State {
    /// What it begins with.
    Initial,
    Drawn,
}

/// Drawn tensors, and whether all results for them are numbers.
fn ranged(program: &Sdfg, seed: u64, state: State) -> Result<(Tensors, bool), PipelineError> {
    let small = with_small_sizes(program);
    let mut numbers = None;
    for range in RANGES {
        match makes(&small, &within(&small, seed, range, state)?) {
            Interpreted::Numbers => return Ok((within(program, seed, range, state)?, true)),
            // Used where no range avoids large numbers.
            Interpreted::LargeNumbers => numbers = numbers.or(Some(range)),
            Interpreted::None => {}
        }
    }
    Ok((within(program, seed, numbers.unwrap_or(RANGES[0]), state)?, numbers.is_some()))
}

fn within(program: &Sdfg, seed: u64, wanted: fn(f64) -> f64, state: State) -> Result<Tensors, PipelineError> {
    let mut tensors = Tensors::new();
    for container in given(program) {
        let shape = program.shape_of(&container.name)?;
        if let Some(initial) = container.initial.filter(|_| state == State::Initial) {
            tensors.insert(container.name.clone(), ArrayD::from_elem(IxDyn(&shape), initial.0));
            continue;
        }
        let mut values = values(program, container, shape.iter().product(), seed, wanted)?;
        if container.role == Role::Parameter && shape.len() >= 2 && container.range.is_none() {
            let scale = 1.0 / (shape.iter().copied().max().unwrap_or(1) as f64).sqrt();
            values.iter_mut().for_each(|v| *v *= scale);
        }
        store(program, container, &mut values)?;
        let array = ArrayD::from_shape_vec(IxDyn(&shape), values).map_err(|e| PipelineError::Internal(e.to_string()))?;
        tensors.insert(container.name.clone(), array);
    }
    Ok(tensors)
}

/// Values of one container, not yet rounded: drawn and then mapped by `wanted`.
///
/// Integers are labels, lengths or positions: programs compare them with positions along a dim that their tensor lacks. So they are drawn
/// from 0 to below the smallest such size among the program's inputs, which is the same for all programs of a recipe.
///
/// # Errors
/// Sizes that are not known.
pub fn values(
    program: &Sdfg,
    container: &Container,
    elements: usize,
    seed: u64,
    wanted: fn(f64) -> f64,
) -> Result<Vec<f64>, PipelineError> {
    let mut values = sdfg::random::tensor(seed, &container.name, elements);
    if let Some(interval) = interval(program, container)? {
        values.iter_mut().for_each(|v| *v = interval.drawn(*v, !container.dtype.is_floating()));
        return Ok(values);
    }
    let whole = !container.dtype.is_floating() && container.dtype != Dtype::Bit;
    let places = if whole { places(program, container)? } else { 1 } as f64;
    values.iter_mut().for_each(|v| *v = if whole { ((*v + 2.0) / 4.0 * places).floor() } else { wanted(*v) });
    Ok(values)
}

/// Rounds drawn values to the container's type. Rounding never moves a value out of the container's range.
///
/// # Errors
/// Sizes that are not known.
pub fn store(program: &Sdfg, container: &Container, values: &mut [f64]) -> Result<(), PipelineError> {
    let stored = |v: f64| container.dtype.rounded(v);
    values.iter_mut().for_each(|v| *v = stored(*v));
    if let Some(interval) = interval(program, container)? {
        let interval = rounded(interval, container.dtype);
        values.iter_mut().filter(|v| !interval.contains(**v)).for_each(|v| *v = stored(interval.inner()));
    }
    Ok(())
}

/// The recipe's range for the values of an input or parameter, under the program's sizes.
fn interval(program: &Sdfg, container: &Container) -> Result<Option<ValueInterval>, PipelineError> {
    let given = matches!(container.role, Role::Input | Role::Parameter);
    let range = container.range.as_ref().filter(|_| given);
    range.map(|range| range.under(&program.sizes)).transpose().map_err(|e| PipelineError::Internal(e.to_string()))
}

/// The interval of stored values: a closed bound is rounded as the values are.
fn rounded(interval: ValueInterval, dtype: Dtype) -> ValueInterval {
    let ValueInterval { low, high, open } = interval;
    let [least, most] = [low, high].map(|bound| dtype.rounded(bound));
    let (least, most) = (if open[0] { low } else { low.min(least) }, if open[1] { high } else { high.max(most) });
    ValueInterval { low: least, high: most, open }
}

/// What numbers become when they are given to a container: its type and its range.
pub struct Storing {
    dtype: Dtype,
    /// The recipe's range, and the interval of stored values.
    range: Option<(ValueInterval, ValueInterval)>,
}

impl Storing {
    /// # Errors
    /// Sizes that are not known.
    pub fn of(program: &Sdfg, container: &Container) -> Result<Self, PipelineError> {
        let interval = interval(program, container)?;
        Ok(Storing { dtype: container.dtype, range: interval.map(|interval| (interval, rounded(interval, container.dtype))) })
    }

    /// The value that the program stores for a number.
    ///
    /// # Errors
    /// Why the number cannot be given, as a part of a sentence.
    pub fn value(&self, number: Number) -> Result<f64, String> {
        let value = number.stored(self.dtype)?;
        match &self.range {
            Some((all, within)) if !within.contains(value) => Err(format!("{value}, but the recipe says that its values are in {all}")),
            _ => Ok(value),
        }
    }
}

/// The smallest size of a dim that a container lacks and other inputs have; dims of size one are ignored.
fn places(program: &Sdfg, container: &Container) -> Result<usize, PipelineError> {
    let mut sizes = vec![];
    for other in given(program) {
        let shape = program.shape_of(&other.name)?;
        sizes.extend(other.dims.iter().zip(shape).filter(|(dim, _)| !container.dims.contains(dim)).map(|(_, size)| size));
    }
    Ok(sizes.into_iter().filter(|size| *size > 1).min().unwrap_or(2))
}

/// The kind of a program's results.
enum Interpreted {
    Numbers,
    /// Numbers, but some intermediate value is larger than kernels can hold.
    LargeNumbers,
    /// Some NaN, or no results.
    None,
}

/// Whether all results of a program are numbers. Intermediate tensors are ignored, because equivalent programs hold different ones. A
/// program that cannot be run is reported where it is run later.
fn makes(program: &Sdfg, given: &Tensors) -> Interpreted {
    let run = Run { seed: 1, step: 0, dropout: true };
    let Ok((made, overflow)) = interpret_within(program, given, &run, largest_finite(program.containers.values())) else {
        return Interpreted::None;
    };
    let is_number = |c: &Container| made.get(&c.name).is_none_or(|values| values.iter().all(|v| !v.is_nan()));
    match (results(program).into_iter().all(is_number), overflow) {
        (false, _) => Interpreted::None,
        (true, None) => Interpreted::Numbers,
        (true, Some(_)) => Interpreted::LargeNumbers,
    }
}

/// Reads named tensors from `.safetensors` or `.npz`, stored as the program stores them ([`Number::stored`]). The names and shapes must
/// be those the program is given.
///
/// # Errors
/// A file that cannot be read, types that are not, names and shapes that differ, and the first element of each tensor that the program
/// cannot store, with its place.
pub fn read(path: &Path, program: &Sdfg) -> Result<Tensors, PipelineError> {
    read_all(&[TensorSource::File(path)], program, None)
}

/// Where named tensors come from.
#[derive(Clone, Copy)]
pub enum TensorSource<'a> {
    File(&'a Path),
    /// The bytes of a `.safetensors` file, and the file that messages name.
    Bytes(&'a Path, &'a [u8]),
}

impl<'a> TensorSource<'a> {
    fn path(self) -> &'a Path {
        match self {
            TensorSource::File(path) | TensorSource::Bytes(path, _) => path,
        }
    }

    fn found(self) -> Result<Found, PipelineError> {
        let found = match self {
            TensorSource::Bytes(_, bytes) => safetensors(bytes),
            TensorSource::File(path) => match extension(path)? {
                Format::Safetensors => std::fs::read(path).map_err(|e| e.to_string()).and_then(|bytes| safetensors(&bytes)),
                Format::Npz => npz(path),
            },
        };
        found.map_err(|why| PipelineError::Tensors { file: self.path().display().to_string(), why })
    }
}

/// As [`read`], from several sources, of which a later one replaces what earlier ones hold under the same name. With a seed, tensors that
/// no source has are drawn, as [`random_inputs`] does.
///
/// # Errors
/// Those of [`read`].
pub fn read_all(sources: &[TensorSource], program: &Sdfg, seed: Option<u64>) -> Result<Tensors, PipelineError> {
    let files: Vec<String> = sources.iter().map(|source| source.path().display().to_string()).collect();
    let fault = |why: String| PipelineError::Tensors { file: files.join(", "), why };
    let mut found = Found::new();
    for source in sources {
        found.extend(source.found()?);
    }
    let drawn = seed.map(|seed| random_inputs(program, seed)).transpose()?;
    check(&found, program, drawn.is_some()).map_err(fault)?;
    let mut tensors = stored(&found, program, &fault)?;
    for container in given(program).into_iter().filter(|c| !found.contains_key(&c.name)) {
        if let Some(tensor) = drawn.as_ref().and_then(|drawn| drawn.get(&container.name)) {
            tensors.insert(container.name.clone(), tensor.clone());
        } else if let Some(initial) = container.initial {
            tensors.insert(container.name.clone(), ArrayD::from_elem(IxDyn(&program.shape_of(&container.name)?), initial.0));
        }
    }
    Ok(tensors)
}

/// Reads parameters and state from a source, as the program stores them. It may lack some of them.
///
/// # Errors
/// Those of [`read`], and tensors that are neither.
pub fn read_parameters(source: TensorSource, program: &Sdfg) -> Result<Tensors, PipelineError> {
    let fault = |why: String| PipelineError::Tensors { file: source.path().display().to_string(), why };
    let found = source.found()?;
    let mut faults = vec![];
    for (name, tensor) in &found {
        match program.containers.get(name).filter(|c| c.role == Role::Parameter) {
            None => faults.push(format!("`{name}` is no parameter of the recipe")),
            Some(_) => {
                let want = program.shape_of(name)?;
                if tensor.shape() != want {
                    faults.push(format!("`{name}` has the shape {:?}, the recipe says {want:?}", tensor.shape()));
                }
            }
        }
    }
    if faults.is_empty() { stored(&found, program, &fault) } else { Err(fault(faults.join("; "))) }
}

/// Tensors of files as the program stores them.
fn stored(found: &Found, program: &Sdfg, fault: &dyn Fn(String) -> PipelineError) -> Result<Tensors, PipelineError> {
    let (mut tensors, mut faults) = (Tensors::new(), vec![]);
    for (name, numbers) in found {
        let Some(container) = program.containers.get(name) else { continue };
        let mut stored = Vec::with_capacity(numbers.len());
        let storing = Storing::of(program, container)?;
        for (place, number) in numbers.indexed_iter() {
            match storing.value(*number) {
                Ok(value) => stored.push(value),
                Err(why) => {
                    faults.push(format!("`{name}` at {:?} is {why}", place.slice()));
                    break;
                }
            }
        }
        if let Ok(tensor) = ArrayD::from_shape_vec(numbers.raw_dim(), stored) {
            tensors.insert(name.clone(), tensor);
        }
    }
    if faults.is_empty() { Ok(tensors) } else { Err(fault(faults.join("; "))) }
}

/// The inputs and parameters of the next step: those of this one, with what it replaces.
pub fn next_step(program: &Sdfg, given: &Tensors, results: &Tensors) -> Tensors {
    let mut next = given.clone();
    for (parameter, value) in replaced(program).filter_map(|(name, parameter)| Some((parameter, results.get(name)?))) {
        next.insert(parameter.clone(), value.clone());
    }
    next
}

/// Results under the names that files have for them: a parameter's value in the next step is called as the parameter is.
pub fn named(program: &Sdfg, mut results: Tensors) -> Tensors {
    for (name, parameter) in replaced(program) {
        if let Some(value) = results.remove(name) {
            results.insert(parameter.clone(), value);
        }
    }
    results
}

/// Containers that replace a parameter, with its name.
fn replaced(program: &Sdfg) -> impl Iterator<Item = (&String, &String)> {
    program.containers.values().filter_map(|c| Some((&c.name, c.replaces.as_ref()?)))
}

/// Named tensors of a file.
type Found = BTreeMap<String, ArrayD<Number>>;

fn safetensors(bytes: &[u8]) -> Result<Found, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let array = |(name, view): (String, TensorView)| {
        let numbers = tensor_types::of_safetensors(view.dtype(), view.data()).map_err(|why| format!("`{name}` {why}"))?;
        let array = ArrayD::from_shape_vec(IxDyn(view.shape()), numbers).map_err(|e| format!("`{name}`: {e}"))?;
        Ok((name, array))
    };
    file.tensors().into_iter().map(array).collect()
}

fn npz(path: &Path) -> Result<Found, String> {
    let mut file = NpzReader::new(File::open(path).map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    let mut found = Found::new();
    for entry in file.names().map_err(|e| e.to_string())? {
        let name = entry.strip_suffix(".npy").unwrap_or(&entry).to_string();
        let array = file.by_name::<OwnedRepr<Number>, IxDyn>(&entry).map_err(|error| match error {
            ReadNpzError::Npy(ReadNpyError::WrongDescriptor(descriptor)) => {
                format!("`{name}` is stored as {descriptor}, which is not read; {} are (bf16 in .safetensors)", tensor_types::names())
            }
            ReadNpzError::Npy(ReadNpyError::ParseData(why)) => format!("`{name}` {why}"),
            error => format!("`{name}`: {error}"),
        })?;
        found.insert(name, array);
    }
    Ok(found)
}

/// Writes named tensors in the program's types, and unknown tensors as f32. An npz file stores bf16 and f16 as f32, because NumPy lacks
/// bf16 and few readers take f16; bits are stored as u8.
pub fn write(path: &Path, tensors: &Tensors, program: &Sdfg) -> Result<(), PipelineError> {
    write_as(path, tensors, &|name| program.containers.get(name).map_or(Dtype::F32, |c| c.dtype))
}

/// Writes named tensors, each in the type that `stored` returns. Values that an integer type cannot hold, and NaN, are cast as Rust's
/// `as` does.
pub fn write_as(path: &Path, tensors: &Tensors, stored: &dyn Fn(&str) -> Dtype) -> Result<(), PipelineError> {
    let fault = |why: String| PipelineError::Tensors { file: path.display().to_string(), why };
    match extension(path)? {
        Format::Safetensors => {
            let mut encoded = Vec::new();
            for (name, array) in tensors {
                let (dtype, bytes) = encoded_as(stored(name), array);
                encoded.push((name.clone(), dtype, array.shape().to_vec(), bytes));
            }
            let views =
                encoded.iter().map(|(name, dtype, shape, bytes)| TensorView::new(*dtype, shape.clone(), bytes).map(|v| (name.as_str(), v)));
            let views: Vec<_> = views.collect::<Result<_, _>>().map_err(|e| fault(e.to_string()))?;
            let bytes = safetensors::serialize(views, None).map_err(|e| fault(e.to_string()))?;
            bench::atomic::write(path, &bytes).map_err(|e| fault(e.to_string()))
        }
        Format::Npz => {
            let mut buffer = std::io::Cursor::new(Vec::new());
            let mut file = NpzWriter::new(&mut buffer);
            for (name, array) in tensors {
                let written = match stored(name) {
                    Dtype::F64 => file.add_array(name, array),
                    Dtype::F32 | Dtype::Bf16 | Dtype::F16 => file.add_array(name, &array.mapv(|v| v as f32)),
                    Dtype::I64 => file.add_array(name, &array.mapv(|v| v as i64)),
                    Dtype::I32 => file.add_array(name, &array.mapv(|v| v as i32)),
                    Dtype::I16 => file.add_array(name, &array.mapv(|v| v as i16)),
                    Dtype::U8 | Dtype::Bit => file.add_array(name, &array.mapv(|v| v as u8)),
                };
                written.map_err(|e| fault(e.to_string()))?;
            }
            file.finish().map_err(|e| fault(e.to_string()))?;
            bench::atomic::write(path, buffer.get_ref()).map_err(|e| fault(e.to_string()))
        }
    }
}

/// The elements of an array, row by row, as a safetensors file holds them in a type.
pub fn encoded_as(dtype: Dtype, array: &ArrayD<f64>) -> (SafeDtype, Vec<u8>) {
    let standard = array.as_standard_layout();
    let values = standard.iter().copied();
    match dtype {
        Dtype::F64 => (SafeDtype::F64, values.flat_map(f64::to_le_bytes).collect()),
        Dtype::F32 => (SafeDtype::F32, values.flat_map(|v| (v as f32).to_le_bytes()).collect()),
        Dtype::Bf16 => (SafeDtype::BF16, values.flat_map(|v| sdfg::rounding::to_bf16(v).to_le_bytes()).collect()),
        Dtype::F16 => (SafeDtype::F16, values.flat_map(|v| sdfg::rounding::to_f16(v).to_le_bytes()).collect()),
        Dtype::I64 => (SafeDtype::I64, values.flat_map(|v| (v as i64).to_le_bytes()).collect()),
        Dtype::I32 => (SafeDtype::I32, values.flat_map(|v| (v as i32).to_le_bytes()).collect()),
        Dtype::I16 => (SafeDtype::I16, values.flat_map(|v| (v as i16).to_le_bytes()).collect()),
        Dtype::U8 | Dtype::Bit => (SafeDtype::U8, values.map(|v| v as u8).collect()),
    }
}

enum Format {
    Safetensors,
    Npz,
}

fn extension(path: &Path) -> Result<Format, PipelineError> {
    match path.extension().and_then(|e| e.to_str()) {
        Some("safetensors") => Ok(Format::Safetensors),
        Some("npz") => Ok(Format::Npz),
        _ => Err(PipelineError::Tensors { file: path.display().to_string(), why: "the name must end in .safetensors or .npz".into() }),
    }
}

/// All missing, superfluous or wrongly shaped tensors, in one message.
fn check(found: &Found, program: &Sdfg, others_are_drawn: bool) -> Result<(), String> {
    let mut faults = Vec::new();
    for container in given(program) {
        let want = program.shape_of(&container.name).map_err(|e| e.to_string())?;
        match found.get(&container.name) {
            // State may begin with what the recipe says.
            None if container.initial.is_some() || others_are_drawn => {}
            None => faults.push(format!("`{}` {want:?} is missing", container.name)),
            Some(tensor) if tensor.shape() != want => {
                faults.push(format!("`{}` has the shape {:?}, the recipe says {want:?}", container.name, tensor.shape()))
            }
            Some(_) => {}
        }
    }
    let names: Vec<&str> = given(program).iter().map(|c| c.name.as_str()).collect();
    faults.extend(found.keys().filter(|n| !names.contains(&n.as_str())).map(|n| format!("`{n}` is no input or parameter of the recipe")));
    if faults.is_empty() { Ok(()) } else { Err(faults.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that would make a program's results NaN are not drawn.
    #[test]
    fn logarithms_get_positive_values() -> Result<(), Box<dyn std::error::Error>> {
        let negative = |step: &str| -> Result<usize, Box<dyn std::error::Error>> {
            let text = format!("model: m\ndims: {{n: 50, i: 20}}\ndtype: f32\ninputs:\n  x: [n, i]\nsteps:\n  - \"{step}\"\n");
            let drawn = random_inputs(&crate::load::load_str("m.yaml", &text, &[])?.program, 1)?;
            Ok(drawn["x"].iter().filter(|v| **v < 0.0).count())
        };
        assert_eq!(negative("y[n,i] = log(x[n,i])")?, 0);
        assert_eq!(negative("y[n] = sqrt(sum(x[n,i], over: i))")?, 0);
        assert!(negative("y[n,i] = exp(x[n,i])")? > 300);
        assert_eq!(negative("y[n,i] = log(x[n,i] - 1.5)")?, 0);
        // Where no range helps, the first range is used.
        assert!(negative("y[n,i] = log(x[n,i] - 5)")? > 300);
        Ok(())
    }

    /// Labels are classes, however large other dims are; fractional labels would match no class.
    #[test]
    fn whole_numbers_are_places_along_a_dim() -> Result<(), Box<dyn std::error::Error>> {
        let text = "model: m\ndims: {n: 500, i: 90, c: 7}\ninputs:\n  x: [n, c, i]\n  label: {dims: [n], dtype: i32}\nsteps:\n  - \
                    \"y[n,i] = sum(where(label[n] == c, x[n,c,i], 0), over: c)\"\n";
        let program = crate::load::load_str("m.yaml", text, &[])?.program;
        let labels = random_inputs(&program, 1)?.remove("label").ok_or("labels")?;
        let count = |of: f64| labels.iter().filter(|v| **v == of).count();
        assert!((0..7).all(|place| count(f64::from(place)) > 30), "{labels}");
        assert_eq!((0..7).map(|place| count(f64::from(place))).sum::<usize>(), 500);
        Ok(())
    }

    /// NumPy's labels are integers, and its files may be compressed.
    #[test]
    fn numpy_files_are_read() -> Result<(), Box<dyn std::error::Error>> {
        let text = "model: m\ndims: {n: 3, c: 7}\ninputs:\n  x: [n, c]\n  label: {dims: [n], dtype: i32}\nsteps:\n  - \
                    \"y[n] = sum(where(label[n] == c, x[n,c], 0), over: c)\"\n";
        let program = crate::load::load_str("m.yaml", text, &[])?.program;
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("in.npz");
        for writer in [NpzWriter::new, NpzWriter::new_compressed] {
            let mut file = writer(File::create(&path)?);
            file.add_array("x", &ndarray::Array2::<f64>::ones((3, 7)))?;
            file.add_array("label", &ndarray::arr1(&[6i64, 0, 2]))?;
            file.finish()?;
            assert_eq!(read(&path, &program)?["label"], ndarray::arr1(&[6.0, 0.0, 2.0]).into_dyn());
        }
        Ok(())
    }
}
