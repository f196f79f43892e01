//! Checkpoints: parameters and state as safetensors files, whole or absent, and what a run must have in common with one to go on from it.

use crate::pipeline::PipelineError;
use crate::pipeline::oracle::tensors::{self, TensorSource, encoded_as};
use crate::pipeline::run::Execution;
use safetensors::tensor::{SafeTensors, TensorView};
use sdfg::interpret::Tensors;
use sdfg::{Role, Sdfg};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The entry of a file's metadata that says what it is a checkpoint of.
const KEY: &str = "memlet";
/// Version of the entry.
const FORMAT: u32 = 1;

/// What decides about every step of a run, but for the parameters that it begins with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Hashes of the recipe's text with its sizes and types, of the plan's program and configuration, and of the data.
    pub recipe: String,
    pub plan: String,
    pub data: String,
    /// The seed of masks, and whether it also shuffles samples.
    pub seed: u64,
    pub shuffle: bool,
    pub dropout: bool,
    /// The dim of samples, and how many a step takes.
    pub samples: String,
    pub batch: usize,
    /// Inputs that the command line sets.
    pub inputs: Vec<String>,
    /// Sums are divided among worker threads, so other numbers of them round otherwise.
    pub threads: usize,
}

impl Identity {
    /// What differs, and what to do about it; `None` if the run can go on from a checkpoint of `other`.
    pub fn refused(&self, other: &Identity) -> Option<String> {
        const BEGIN: &str = "or begin a run of its own from these parameters with --weights FILE and another folder of --checkpoint";
        let Identity { recipe, plan, data, seed, shuffle, dropout, samples, batch, inputs, threads } = other;
        let flag = |on: bool, name: &str| if on { format!("with {name}") } else { format!("without {name}") };
        if *recipe != self.recipe {
            return Some(format!("it is of another recipe, or of other sizes or types; train that one, {BEGIN}"));
        }
        if *plan != self.plan {
            return Some(format!("it is of another plan of this recipe; train with the plan that it was made with, {BEGIN}"));
        }
        if *data != self.data {
            return Some(format!("it is of other data; give the files that it was made with, {BEGIN}"));
        }
        if (samples, batch) != (&self.samples, &self.batch) {
            return Some(format!(
                "it took {batch} samples a step along `{samples}`, this run takes {} along `{}`",
                self.batch, self.samples
            ));
        }
        if *seed != self.seed {
            return Some(format!("it was made with --seed {seed}; give that, {BEGIN}"));
        }
        if *shuffle != self.shuffle {
            return Some(format!("it was made {}; do that, {BEGIN}", flag(*shuffle, "--shuffle")));
        }
        if *dropout != self.dropout {
            return Some(format!("it was made {}; do that, {BEGIN}", flag(!*dropout, "--no-dropout")));
        }
        if *inputs != self.inputs {
            let set = |inputs: &[String]| if inputs.is_empty() { "none".to_string() } else { inputs.join(" and ") };
            return Some(format!(
                "it was made with other set inputs, {}, and this run has {}; a cosine whose length is not given ends with --steps: `over:` gives it",
                set(inputs),
                set(&self.inputs)
            ));
        }
        if *threads != self.threads {
            return Some(format!(
                "it was made with --threads {threads}, and this run has {}; give --threads {threads}, {BEGIN}",
                self.threads
            ));
        }
        None
    }
}

/// What stands in a file's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointHeader {
    format: u32,
    /// Steps that are done.
    pub step: u64,
    /// Samples that were taken.
    pub position: u64,
    #[serde(flatten)]
    pub identity: Identity,
}

/// A folder of checkpoints.
#[derive(Clone, Debug)]
pub struct Folder {
    pub path: PathBuf,
    /// How many of the newest stay.
    pub keep: usize,
}

impl Folder {
    /// Makes the folder, and removes what a run that was killed left half written.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn open(&self) -> Result<(), PipelineError> {
        std::fs::create_dir_all(&self.path).map_err(|e| fault(&self.path, e.to_string()))?;
        let entries = std::fs::read_dir(&self.path).map_err(|e| fault(&self.path, e.to_string()))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if name(&path).is_some_and(|name| name.starts_with(".step-") && name.ends_with(".part")) {
                std::fs::remove_file(&path).map_err(|e| fault(&path, e.to_string()))?;
            }
        }
        Ok(())
    }

    /// All checkpoints, oldest first.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn all(&self) -> Result<Vec<(u64, PathBuf)>, PipelineError> {
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
            Err(e) => return Err(fault(&self.path, e.to_string())),
        };
        let step = |path: &Path| name(path)?.strip_prefix("step-")?.strip_suffix(".safetensors")?.parse::<u64>().ok();
        let mut all: Vec<(u64, PathBuf)> = entries.flatten().filter_map(|e| Some((step(&e.path())?, e.path()))).collect();
        all.sort();
        Ok(all)
    }

    /// Writes what steps have left: first beside its place, then to the disk, then under its name. Older ones than the newest are deleted.
    ///
    /// # Errors
    /// Errors of the file system; a device that failed.
    pub fn write(&self, execution: &Execution, step: u64, identity: &Identity) -> Result<PathBuf, PipelineError> {
        let path = self.path.join(format!("step-{step:06}.safetensors"));
        let part = self.path.join(format!(".step-{step:06}.{}.part", std::process::id()));
        let header = CheckpointHeader { format: FORMAT, step, position: step * identity.batch as u64, identity: identity.clone() };
        let written = save(&part, execution, &header).and_then(|()| {
            let renamed = File::open(&part).and_then(|file| file.sync_all()).and_then(|()| std::fs::rename(&part, &path));
            renamed.map_err(|e| fault(&path, e.to_string()))
        });
        if let Err(error) = written {
            // The first error is the one to report.
            let _ = std::fs::remove_file(&part);
            return Err(error);
        }
        // The new name is on the disk, too, before an old one goes.
        if let Ok(folder) = File::open(&self.path) {
            let _ = folder.sync_all();
        }
        let all = self.all()?;
        let older: Vec<&PathBuf> = all.iter().filter(|(at, _)| *at < step).map(|(_, path)| path).collect();
        for old in older.iter().take((older.len() + 1).saturating_sub(self.keep.max(1))) {
            std::fs::remove_file(old).map_err(|e| fault(old, e.to_string()))?;
        }
        Ok(path)
    }
}

fn save(path: &Path, execution: &Execution, header: &CheckpointHeader) -> Result<(), PipelineError> {
    let internal = |e: serde_json::Error| PipelineError::Internal(e.to_string());
    let program = execution.program();
    let mut encoded = vec![];
    for container in tensors::given(program).into_iter().filter(|c| c.role == Role::Parameter) {
        let name = container.name.clone();
        let Some(tensor) = execution.result(&name)? else {
            return Err(PipelineError::Internal(format!("`{name}` has no values")));
        };
        let (dtype, bytes) = encoded_as(container.dtype, &tensor);
        encoded.push((name, dtype, tensor.shape().to_vec(), bytes));
    }
    let views = encoded.iter().map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?)));
    let views: Vec<_> = views.collect::<Result<_, safetensors::SafeTensorError>>().map_err(|e| fault(path, e.to_string()))?;
    // One entry, so that equal runs write equal bytes: a map of several has no order.
    let metadata = HashMap::from([(KEY.to_string(), serde_json::to_string(header).map_err(internal)?)]);
    safetensors::serialize_to_file(views, Some(metadata), path).map_err(|e| fault(path, e.to_string()))
}

/// Reads a checkpoint: how far it is, and parameters and state.
///
/// # Errors
/// A file that is none, or that is damaged; tensors that the program does not have.
pub fn read(path: &Path, program: &Sdfg) -> Result<(CheckpointHeader, Tensors), PipelineError> {
    let bytes = std::fs::read(path).map_err(|e| fault(path, e.to_string()))?;
    let damaged = |why: String| fault(path, format!("this is no whole checkpoint: {why}; delete it to go on from an older one"));
    SafeTensors::deserialize(&bytes).map_err(|e| damaged(e.to_string()))?;
    let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(e.to_string()))?;
    let entry = metadata.metadata().as_ref().and_then(|entries| entries.get(KEY));
    let Some(entry) = entry else {
        return Err(fault(path, "this is no checkpoint of `memlet train`; --weights takes parameters from any file".into()));
    };
    let format = serde_json::from_str::<serde_json::Value>(entry).ok().and_then(|value| value["format"].as_u64());
    if format != Some(FORMAT.into()) {
        let format = format.map_or("no".to_string(), |format| format.to_string());
        return Err(fault(
            path,
            format!("the checkpoint has format {format}, this version reads {FORMAT}; --weights takes its parameters"),
        ));
    }
    let header: CheckpointHeader = serde_json::from_str(entry).map_err(|e| damaged(e.to_string()))?;
    let tensors = tensors::read_parameters(TensorSource::Bytes(path, &bytes), program)?;
    let missing = tensors::given(program).into_iter().filter(|c| c.role == Role::Parameter && !tensors.contains_key(&c.name));
    let missing: Vec<String> = missing.map(|c| format!("`{}`", c.name)).collect();
    match missing.is_empty() {
        true => Ok((header, tensors)),
        false => Err(fault(path, format!("{} is missing; the checkpoint is of another recipe", missing.join(", ")))),
    }
}

fn fault(path: &Path, why: String) -> PipelineError {
    PipelineError::Tensors { file: path.display().to_string(), why }
}

fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}
