//! Training: the step of a plan many times in one process, on batches from files.
//!
//! A run is a pure function of its [`Identity`] and of the parameters that it begins with: which samples a step gets,
//! the masks of dropouts and the inputs that are set depend on the number of the step alone. So a run that goes on from a checkpoint does
//! what the uninterrupted one does, to the last bit.

pub mod checkpoint;
pub mod columns;
pub mod data;
pub mod log;
pub mod order;
pub mod schedule;

use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::choose::plan::Plan;
use crate::pipeline::oracle::tensor_types::Number;
use crate::pipeline::oracle::tensors::{Storing, TensorSource, given, random_inputs, read_parameters};
use crate::pipeline::run::Execution;
use checkpoint::Identity;
use data::Data;
use kernels::device::Device;
use kernels::pool::Pool;
use ndarray::{ArrayD, IxDyn};
use schedule::InputSchedule;
use sdfg::interpret::{Run, Tensors};
use sdfg::{Role, Sdfg};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a run is asked to do.
#[derive(Clone, Debug, Default)]
pub struct TrainRequest {
    pub data: Vec<PathBuf>,
    /// Inputs that do not come from data.
    pub set: Vec<(String, InputSchedule)>,
    /// The dim of samples, where it is named.
    pub batch: Option<String>,
    pub shuffle: bool,
    /// Of masks, drawn parameters, and the order of samples if they are shuffled.
    pub seed: u64,
    pub dropout: bool,
    pub weights: Option<PathBuf>,
    /// Steps in all.
    pub steps: u64,
}

/// A run between two of its steps.
pub struct Training {
    execution: Execution,
    data: Data,
    set: Vec<(String, InputSchedule)>,
    seed: u64,
    dropout: bool,
    /// The loss, then the other results that are one number.
    scalars: Vec<String>,
    /// Steps that are done.
    done: u64,
    pub identity: Identity,
}

/// What a step has left: its loss with its name, then the other results that are one number.
pub type Scalars = Vec<(String, f64)>;

impl Training {
    /// Reads data and parameters for a plan and puts them into place. With a checkpoint the run goes on from there.
    ///
    /// # Errors
    /// A plan that trains nothing; data, set inputs and parameters that do not fit; a checkpoint of another run.
    pub fn open(
        (plan, file): (&Plan, &Path),
        asked: &TrainRequest,
        checkpoint: Option<&Path>,
        pool: &Pool,
        device: &Arc<dyn Device>,
    ) -> Result<Training, PipelineError> {
        let recipe = plan.recipe()?;
        let program = &plan.chosen.program;
        let replaced: Vec<&str> = program.containers.values().filter_map(|c| c.replaces.as_deref()).collect();
        let loss = trained(&recipe, &replaced).map_err(|why| PipelineError::Plan { file: file.display().to_string(), why })?;
        let scalars = scalars(program, loss);
        let set: Vec<(String, InputSchedule)> =
            asked.set.iter().map(|(name, schedule)| (name.clone(), schedule.over(asked.steps))).collect();
        settable(program, &set, asked.steps)?;
        let names: Vec<&str> = set.iter().map(|(name, _)| name.as_str()).collect();
        let mut data = Data::read(&asked.data, program, &names, asked.batch.as_deref(), asked.shuffle.then_some(asked.seed))?;
        let identity = Identity {
            recipe: hash_of_recipe(plan, &recipe)?,
            plan: hash_of_plan(plan)?,
            data: data.hash.clone(),
            seed: asked.seed,
            shuffle: asked.shuffle,
            dropout: asked.dropout,
            samples: data.dim.clone(),
            batch: data.batch,
            inputs: set.iter().map(|(name, schedule)| format!("{name}={schedule}")).collect(),
            threads: pool.workers(),
        };
        let (done, mut tensors) = match checkpoint {
            None => (0, begun(&recipe, program, asked)?),
            Some(path) => {
                let (header, tensors) = checkpoint::read(path, program)?;
                if let Some(why) = identity.refused(&header.identity) {
                    let why = format!("this run cannot go on from the checkpoint: {why}");
                    return Err(PipelineError::Tensors { file: path.display().to_string(), why });
                }
                (header.step, tensors)
            }
        };
        tensors.extend(data.batch(done)?);
        tensors.extend(values(program, &set, done)?);
        let mut execution = Execution::of(&plan.chosen, device)?;
        execution.load(&tensors)?;
        Ok(Training { execution, data, set, seed: asked.seed, dropout: asked.dropout, scalars, done, identity })
    }

    /// Steps that are done.
    pub fn done(&self) -> u64 {
        self.done
    }

    pub fn data(&self) -> &Data {
        &self.data
    }

    pub fn execution(&self) -> &Execution {
        &self.execution
    }

    /// Names of what [`Training::step`] returns.
    pub fn scalars(&self) -> &[String] {
        &self.scalars
    }

    /// The set inputs in a step, counted from 0.
    pub fn set(&self, step: u64) -> Scalars {
        self.set.iter().map(|(name, schedule)| (name.clone(), schedule.at(step))).collect()
    }

    /// Runs the next step on the next batch.
    ///
    /// # Errors
    /// A device that failed.
    pub fn step(&mut self, pool: &Pool) -> Result<Scalars, PipelineError> {
        let mut inputs = self.data.batch(self.done)?;
        inputs.extend(values(self.execution.program(), &self.set, self.done)?);
        self.execution.give(&inputs)?;
        self.execution.advance(pool, &Run { seed: self.seed, step: self.done, dropout: self.dropout })?;
        self.done += 1;
        let value = |name: &String| {
            let tensor = self.execution.result(name)?;
            Ok((name.clone(), tensor.and_then(|t| t.first().copied()).unwrap_or(f64::NAN)))
        };
        self.scalars.iter().map(value).collect()
    }
}

/// Checks what a run needs before a plan is made, which takes long: that the recipe trains something, and that data and set inputs fit it.
///
/// # Errors
/// Those of [`Training::open`] that do not depend on the plan.
pub fn check(recipe: &Recipe, file: &Path, asked: &TrainRequest) -> Result<(), PipelineError> {
    let replaced = recipe.update.containers.iter().filter_map(|c| c.replaces.as_deref());
    trained(recipe, &replaced.collect::<Vec<_>>()).map_err(|why| PipelineError::Plan { file: file.display().to_string(), why })?;
    let program = &recipe.program;
    let set: Vec<(String, InputSchedule)> = asked.set.iter().map(|(name, schedule)| (name.clone(), schedule.over(asked.steps))).collect();
    settable(program, &set, asked.steps)?;
    let names: Vec<&str> = set.iter().map(|(name, _)| name.as_str()).collect();
    Data::read(&asked.data, program, &names, asked.batch.as_deref(), None)?;
    match &asked.weights {
        Some(path) => read_parameters(TensorSource::File(path), program).map(|_| ()),
        None => Ok(()),
    }
}

/// The name of the loss. `replaced` are the parameters and the state that a step changes.
///
/// # Errors
/// A recipe that has no loss, or that changes no parameter.
fn trained(recipe: &Recipe, replaced: &[&str]) -> Result<String, String> {
    let loss = recipe.train.as_ref().and_then(|train| train.loss.clone());
    let loss = loss.ok_or("the recipe has no loss to train by; give it `train: {loss: NAME}`, with a result that is one number")?;
    if replaced.is_empty() {
        return Err(
            "the recipe has no `update`, so no step changes a parameter; give it one, such as `update: \"adam(rate: 0.001)\"`".into()
        );
    }
    Ok(loss)
}

/// The loss, then the other results of a program that are one number.
fn scalars(program: &Sdfg, loss: String) -> Vec<String> {
    let is_number = |c: &&sdfg::Container| c.role == Role::Output && c.replaces.is_none() && c.dims.is_empty() && c.name != loss;
    let others: Vec<String> = program.containers.values().filter(is_number).map(|c| c.name.clone()).collect();
    [loss].into_iter().chain(others).collect()
}

/// Refuses set inputs that the program does not have, and values that it cannot store or that leave the recipe's range.
fn settable(program: &Sdfg, set: &[(String, InputSchedule)], steps: u64) -> Result<(), PipelineError> {
    let fault = |why: String| PipelineError::Tensors { file: "--set-input".into(), why };
    let inputs = || given(program).into_iter().filter(|c| c.role == Role::Input);
    for (n, (name, schedule)) in set.iter().enumerate() {
        let Some(container) = inputs().find(|c| c.name == *name) else {
            let names: Vec<String> = inputs().map(|c| format!("`{}`", c.name)).collect();
            return Err(fault(format!("`{name}` is no input of the recipe, whose inputs are {}", names.join(", "))));
        };
        if set.iter().take(n).any(|(other, _)| other == name) {
            return Err(fault(format!("`{name}` is set twice")));
        }
        let storing = Storing::of(program, container)?;
        for step in 0..steps {
            let value = schedule.at(step);
            storing.value(Number::Real(value)).map_err(|why| fault(format!("`{name}` is in step {} {why}", step + 1)))?;
            if matches!(schedule, InputSchedule::Constant(_)) {
                break;
            }
        }
    }
    Ok(())
}

/// The set inputs in a step.
fn values(program: &Sdfg, set: &[(String, InputSchedule)], step: u64) -> Result<Tensors, PipelineError> {
    let mut tensors = Tensors::new();
    for (name, schedule) in set {
        let shape = program.shape_of(name)?;
        let dtype = program.containers.get(name).map(|c| c.dtype);
        let value = dtype.map_or(schedule.at(step), |dtype| dtype.rounded(schedule.at(step)));
        tensors.insert(name.clone(), ArrayD::from_elem(IxDyn(&shape), value));
    }
    Ok(tensors)
}

/// Parameters and state before the first step: from a file, else as the recipe says, else drawn from the seed.
fn begun(recipe: &Recipe, program: &Sdfg, asked: &TrainRequest) -> Result<Tensors, PipelineError> {
    let mut tensors = random_inputs(program, asked.seed)?;
    tensors.retain(|name, _| program.containers.get(name).is_some_and(|c| c.role == Role::Parameter));
    for (name, initial) in &recipe.initial {
        let Some(container) = program.containers.get(name) else { continue };
        let drawn = initial.drawn(asked.seed, name, &program.shape_of(name)?);
        tensors.insert(name.clone(), drawn.mapv(|v| container.dtype.rounded(v)));
    }
    if let Some(path) = &asked.weights {
        tensors.extend(read_parameters(TensorSource::File(path), program)?);
    }
    Ok(tensors)
}

fn hash_of_recipe(plan: &Plan, recipe: &Recipe) -> Result<String, PipelineError> {
    let rest = (&plan.overrides, plan.dtype, plan.no_dropout, plan.narrow);
    let rest = serde_json::to_string(&rest).map_err(|e| PipelineError::Internal(e.to_string()))?;
    Ok(blake3::Hasher::new().update(recipe.text.as_bytes()).update(rest.as_bytes()).finalize().to_hex().to_string())
}

/// A hash of what decides about the results of a step.
fn hash_of_plan(plan: &Plan) -> Result<String, PipelineError> {
    let chosen = &plan.chosen;
    let all = (&plan.target, &chosen.program, &chosen.configuration, chosen.streams, chosen.packed);
    let text = serde_json::to_string(&all).map_err(|e| PipelineError::Internal(e.to_string()))?;
    Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
}
