//! Batches of samples from data files: which inputs they are for, which dim of these is that of the samples, and one step's tensors.

use super::columns::{self, DataColumn};
use super::order::SampleOrder;
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::tensors::{Storing, given};
use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::Tensors;
use sdfg::{Container, Role, Sdfg};
use std::path::PathBuf;

/// How the rows of a tensor become an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// A row is a sample; as many as the batch has stand along this axis of the input.
    Samples(usize),
    /// A row is the input of one step, since the input lacks the dim of samples.
    Steps,
}

/// All that the files hold for one input.
struct InputData {
    input: String,
    /// The input's own shape.
    shape: Vec<usize>,
    taken: Taken,
    rows: usize,
    column: DataColumn,
}

/// The data of a run.
pub struct Data {
    sources: Vec<InputData>,
    order: SampleOrder,
    /// The dim of samples, how many one step takes, and how many there are.
    pub dim: String,
    pub batch: usize,
    pub samples: usize,
    /// Elements of the largest input of whole numbers in a step, if a sample has several: the tokens of a step.
    pub tokens: Option<usize>,
    /// A hash of everything that steps can be given.
    pub hash: String,
}

impl Data {
    /// Reads files for the inputs of a program. `set` are inputs that do not come from files; `dim` is the dim of samples, if the caller
    /// names it.
    ///
    /// # Errors
    /// Files that cannot be read; all inputs that have no tensor, tensors that no input takes, and shapes and values that do not fit; a
    /// dim of samples that is not clear; fewer samples than a batch takes.
    pub fn read(files: &[PathBuf], program: &Sdfg, set: &[&str], dim: Option<&str>, seed: Option<u64>) -> Result<Data, PipelineError> {
        let named: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        let fault = |why: String| PipelineError::Tensors { file: named.join(", "), why };
        let mut found = columns::read(files)?;
        let inputs: Vec<&Container> = given(program).into_iter().filter(|c| c.role == Role::Input).collect();
        let wanted: Vec<&Container> = inputs.iter().copied().filter(|c| !set.contains(&c.name.as_str())).collect();
        let mut faults = vec![];
        for container in &wanted {
            if !found.contains_key(&container.name) {
                let dims = container.dims.join(", ");
                faults.push(format!(
                    "the input `{0}` [{dims}] has no data: add a tensor `{0}` whose first axis counts samples, or set it with --set-input {0}=…",
                    container.name
                ));
            }
        }
        for name in found.keys() {
            if set.contains(&name.as_str()) {
                faults.push(format!("`{name}` is given by --set-input and by a data file; leave one of them out"));
            } else if !inputs.iter().any(|c| c.name == *name) {
                let names: Vec<String> = wanted.iter().map(|c| format!("`{}`", c.name)).collect();
                faults.push(format!("`{name}` is no input of the recipe, whose inputs are {}", names.join(", ")));
            }
        }
        if !faults.is_empty() {
            return Err(fault(faults.join("; ")));
        }
        let dim = sample_dim(program, &wanted, dim).map_err(&fault)?;
        let size = program.dims.get(&dim).map(|size| size.eval(&program.sizes)).transpose()?.unwrap_or(1).max(1) as usize;
        let mut sources = vec![];
        for container in wanted {
            let tensors = found.remove(&container.name).unwrap_or_default();
            match source(program, container, &dim, tensors) {
                Ok(source) => sources.push(source),
                Err(why) => faults.push(why),
            }
        }
        let samples = sources.iter().filter(|s| s.taken != Taken::Steps).map(|s| (s.rows, &s.input));
        let (fewest, most) = (samples.clone().min(), samples.max());
        if let (Some((fewest, a)), Some((most, b))) = (fewest, most)
            && fewest != most
        {
            faults.push(format!("`{a}` has {fewest} samples and `{b}` {most}; all inputs need the same number"));
        }
        let samples = fewest.map_or(0, |(samples, _)| samples);
        if faults.is_empty() && samples < size {
            faults.push(format!(
                "there are {samples} samples, and one step takes {size} (`{dim}: {size}`); add samples, or take fewer with --set {dim}={}",
                samples.max(1)
            ));
        }
        if !faults.is_empty() {
            return Err(fault(faults.join("; ")));
        }
        let mut hasher = blake3::Hasher::new();
        for source in &sources {
            hasher.update(format!("{} {:?} {:?} {}\n", source.input, source.shape, source.taken, source.rows).as_bytes());
            source.column.hash_into(&mut hasher);
        }
        let tokens = |s: &InputData| {
            let whole = program.containers.get(&s.input).is_some_and(|c| !c.dtype.is_floating());
            (whole && s.shape.len() > 1).then(|| s.shape.iter().product())
        };
        let tokens = sources.iter().filter_map(tokens).max();
        let order = SampleOrder::new(samples.max(1), seed);
        Ok(Data { sources, order, dim, batch: size, samples, tokens, hash: hasher.finalize().to_hex().to_string() })
    }

    /// The inputs of a step, counted from 0.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn batch(&mut self, step: u64) -> Result<Tensors, PipelineError> {
        let first = step * self.batch as u64;
        let samples: Vec<usize> = (0..self.batch as u64).map(|n| self.order.sample(first + n)).collect();
        let mut tensors = Tensors::new();
        for source in &self.sources {
            tensors.insert(source.input.clone(), source.input(step, &samples)?);
        }
        Ok(tensors)
    }
}

impl InputData {
    fn input(&self, step: u64, samples: &[usize]) -> Result<ArrayD<f64>, PipelineError> {
        let internal = |e: ndarray::ShapeError| PipelineError::Internal(e.to_string());
        let elements = self.column.elements() / self.rows.max(1);
        match self.taken {
            Taken::Steps => {
                let mut values = Vec::with_capacity(elements);
                self.column.copy((step % self.rows.max(1) as u64) as usize * elements, elements, &mut values);
                ArrayD::from_shape_vec(IxDyn(&self.shape), values).map_err(internal)
            }
            Taken::Samples(axis) => {
                let mut values = Vec::with_capacity(elements * samples.len());
                samples.iter().for_each(|sample| self.column.copy(sample * elements, elements, &mut values));
                let mut shape = self.shape.clone();
                let batch = shape.remove(axis);
                shape.insert(0, batch);
                let array = ArrayD::from_shape_vec(IxDyn(&shape), values).map_err(internal)?;
                // The axis of samples goes where the input has it.
                let mut axes: Vec<usize> = (1..shape.len()).collect();
                axes.insert(axis, 0);
                Ok(array.permuted_axes(axes))
            }
        }
    }
}

/// The dim that counts samples: the one that is named, else the only one that most inputs have and no parameter has.
fn sample_dim(program: &Sdfg, inputs: &[&Container], named: Option<&str>) -> Result<String, String> {
    let has = |container: &Container, dim: &str| container.dims.iter().any(|d| d == dim);
    let ordered: Vec<&String> = program.dims.keys().collect();
    let among: Vec<&str> = ordered.iter().map(|d| d.as_str()).filter(|dim| inputs.iter().any(|c| has(c, dim))).collect();
    let list = |dims: &[&str]| dims.iter().map(|dim| format!("`{dim}`")).collect::<Vec<_>>().join(", ");
    if let Some(named) = named {
        return match among.contains(&named) {
            true => Ok(named.to_string()),
            false => Err(format!("no input that has data has a dim `{named}`, which --batch names; they have {}", list(&among))),
        };
    }
    let parameters: Vec<&Container> = given(program).into_iter().filter(|c| c.role == Role::Parameter).collect();
    let free: Vec<&str> = among.iter().copied().filter(|dim| !parameters.iter().any(|p| has(p, dim))).collect();
    let most = free.iter().map(|dim| inputs.iter().filter(|c| has(c, dim)).count()).max().unwrap_or(0);
    let best: Vec<&str> = free.into_iter().filter(|dim| inputs.iter().filter(|c| has(c, dim)).count() == most).collect();
    // Where several are left, as batch and time, the one that every input begins with.
    let leads = |dim: &&str| inputs.iter().filter(|c| has(c, dim)).all(|c| c.dims.first().is_some_and(|d| d == *dim));
    let leading: Vec<&str> = best.iter().copied().filter(leads).collect();
    match (best.as_slice(), leading.as_slice()) {
        ([], _) => Err(format!(
            "which dim counts samples is not clear: parameters have all dims of the inputs; name it, as in --batch {}",
            among.first().copied().unwrap_or("b")
        )),
        ([dim], _) | (_, [dim]) => Ok(dim.to_string()),
        (several, _) => {
            Err(format!("which dim counts samples is not clear, it may be {}; name it, as in --batch {}", list(several), several[0]))
        }
    }
}

/// The data of one input: its tensors of all files, one after the other.
fn source(program: &Sdfg, container: &Container, dim: &str, tensors: Vec<(PathBuf, columns::Stored)>) -> Result<InputData, String> {
    let name = &container.name;
    let shape = program.shape_of(name).map_err(|e| e.to_string())?;
    let storing = Storing::of(program, container).map_err(|e| e.to_string())?;
    let axis = container.dims.iter().position(|d| d == dim);
    let mut row = shape.clone();
    if let Some(axis) = axis {
        row.remove(axis);
    }
    let mut rows = 0;
    let mut column = DataColumn::of(container.dtype, tensors.iter().map(|(_, stored)| stored.shape().iter().product::<usize>()).sum());
    for (file, stored) in &tensors {
        let file = file.display();
        let (Some(count), Some(rest)) = (stored.shape().first(), stored.shape().get(1..)) else {
            return Err(format!("`{name}` of {file} is one number; its first axis must count samples"));
        };
        if rest != row {
            let dims: Vec<&str> = container.dims.iter().map(String::as_str).filter(|d| axis.is_none() || *d != dim).collect();
            let (counted, why) = match axis {
                Some(_) => ("samples", format!("a sample is the recipe's `{name}` without `{dim}`")),
                None => ("steps", format!("`{name}` has no dim `{dim}`, so each row is that of one step")),
            };
            let sizes: String = row.iter().map(|n| format!(", {n}")).collect();
            let named = if dims.is_empty() { String::new() } else { format!(" with `{}`", dims.join("`, `")) };
            return Err(format!("`{name}` of {file} has the shape {:?} and must have [{counted}{sizes}]{named}: {why}", stored.shape()));
        }
        rows += count;
        stored.append(&storing, &mut column).map_err(|why| format!("`{name}` of {file} {why}"))?;
    }
    if rows == 0 && axis.is_none() {
        return Err(format!("`{name}` has no rows, and each step takes one"));
    }
    Ok(InputData { input: name.clone(), shape, taken: axis.map_or(Taken::Steps, Taken::Samples), rows, column })
}
