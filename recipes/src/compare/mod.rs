//! Compares a plan with other frameworks: the same recipe, the same data, in the same run.
//!
//! Each contender is a process of its own that waits on its stdin while others compute ([`worker`]). First every peer's outputs and
//! gradients are compared with ours, dropout off, at full size ([`check`]); only peers that agree are timed. Then ours and each peer take
//! turns ([`race()`]), so that drift of the machine affects both alike. The ratio is taken over pairs of neighbouring turns.
//!
//! Peers run in their best form: one projection for queries, keys and values, contiguous activations and weights in their own order,
//! compilation, all their threads. Converting tensors to their form is not timed; our conversions of inputs and outputs from and to the
//! recipe's order are part of our step. A peer without a backward pass (ONNX Runtime) is compared with our forward pass, dropout off on
//! both sides; ours keeps tensors for a backward pass, theirs does not.

pub mod check;
pub mod contender;
pub mod environment;
pub mod load;
pub mod memory;
pub mod model;
pub mod race;
pub mod report;
pub mod wait;
pub mod worker;

pub use contender::{PeerContender, PeerVariant, Precision, Pythons, contenders};
pub use memory::{OurBytes, TensorBytes};
pub use model::PeerModel;
pub use report::{ComparisonOutcome, ComparisonReport, ComparisonRow};

use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::check::accuracy::{Accuracy, accuracy, oracle};
use check::{Agreement, AgreementBound, finite, read_results};
use race::{Runner, race};
use sdfg::interpret::{Run, Tensors};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use thiserror::Error;
use wait::probe;
use worker::{Wait, Worker};

/// Times of one training step of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepTime {
    pub forward_ms: f64,
    pub backward_ms: f64,
    /// The whole step, in wall-clock time.
    pub step_ms: f64,
}

/// A plan that can be run.
pub trait Ours {
    /// Puts inputs and parameters into place; tensors are in the recipe's dim order.
    fn load(&mut self, tensors: &Tensors) -> Result<(), PipelineError>;
    /// Runs one step, forward and backward; without dropout every element is kept.
    fn step(&mut self, dropout: bool) -> Result<StepTime, PipelineError>;
    /// Outputs and gradients of the last step, in the recipe's dim order.
    fn results(&mut self) -> Result<Tensors, PipelineError>;
    /// Bytes of tensors alive at once in a step.
    fn memory(&self) -> OurBytes;
}

#[derive(Debug, Error)]
pub enum CompareError {
    #[error("the peers do not know the model `{model}`: {why}; they know {known}, at any size, dropout rate (or all without) and epsilon")]
    Unsupported { model: String, why: String, known: String },
    #[error(
        "nobody to compare with: name a Python that has PyTorch with --torch, JAX with --jax or, for f32, ONNX Runtime with --onnx, or OpenVINO with \
         --openvino for networks"
    )]
    NoPeer,
    #[error("{}", lines.join("\n"))]
    Missing { lines: Vec<String> },
    #[error("interrupted; a comparison that is not whole is none")]
    Interrupted,
    #[error("there must be at least one round; give --rounds a positive number")]
    NoRounds,
    #[error("cannot write {}: {source}", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("cannot run {}: {source}; name the Python of an environment that has the framework", python.display())]
    Start { python: PathBuf, source: std::io::Error },
    #[error("{contender} ended without an answer; the last it wrote: {log}")]
    Silent { contender: String, log: String },
    #[error("{contender} gave an answer that is none: {why}")]
    Garbled { contender: String, why: String },
    #[error("{contender}: {why}")]
    Peer { contender: String, why: String },
    #[error("the results in {file} cannot be read: {why}")]
    Results { file: String, why: String },
    #[error("{contender} computes values that are not finite with dropout on")]
    PeerNotFinite { contender: String },
    #[error("our own `{name}` is not finite; nothing was timed")]
    NotFinite { name: String },
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    #[error(transparent)]
    Stats(#[from] bench::stats::StatsError),
    #[error(transparent)]
    Tolerance(#[from] sdfg::tolerance::ToleranceError),
}

impl CompareError {
    /// 1 failed, 2 bad input, 3 verification mismatch, 4 something is missing.
    pub fn exit_code(&self) -> u8 {
        match self {
            CompareError::Unsupported { .. } | CompareError::NoPeer | CompareError::NoRounds => 2,
            CompareError::NotFinite { .. } => 3,
            CompareError::Start { .. } | CompareError::Missing { .. } => 4,
            CompareError::Interrupted => 130,
            CompareError::Pipeline(error) => error.exit_code(),
            _ => 1,
        }
    }
}

/// The inputs of a comparison.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    pub recipe: &'a Recipe,
    /// Inputs and parameters, including the upstream gradient.
    pub tensors: &'a Tensors,
    pub seed: u64,
    pub contenders: &'a [PeerContender],
    /// The command that chose our plan, and for how many threads.
    pub origin: String,
    /// For ours and for every peer.
    pub threads: usize,
    /// Gflop/s in f32 that this many threads can reach ([`kernels::peak::peak`]).
    pub peak: Option<f64>,
    pub rounds: usize,
    /// Time with the recipe's dropout, or without any.
    pub dropout: bool,
    /// Whether all results are also compared with the f64 oracle's.
    pub accuracy: bool,
    /// Once set, no contender is started and nothing is reported.
    pub interrupt: &'a AtomicBool,
    /// An absolute path: holds the workers' scripts and takes tensors and logs.
    pub folder: &'a Path,
}

/// Checks and times ours and the contenders.
///
/// # Errors
/// Failures of ours and errors in the request. A peer that fails or differs is in the report.
pub fn compare(setup: &Setup, ours: &mut dyn Ours, progress: &mut dyn FnMut(&str)) -> Result<ComparisonReport, CompareError> {
    if setup.contenders.is_empty() {
        return Err(CompareError::NoPeer);
    }
    if setup.rounds == 0 {
        return Err(CompareError::NoRounds);
    }
    let model = PeerModel::of(setup.recipe)?;
    let bound = AgreementBound::of(setup.recipe, &model)?;
    let program = &setup.recipe.program;
    ours.load(setup.tensors)?;
    ours.step(false)?;
    let want = ours.results()?;
    finite(&want)?;
    let truth = if setup.accuracy {
        progress("computing the oracle's results");
        let run = Run { seed: setup.seed, step: 0, dropout: false };
        Some(oracle(setup.recipe, setup.tensors, &run)?)
    } else {
        None
    };
    if setup.dropout {
        ours.step(true)?;
        finite(&ours.results()?)?;
    }
    let given = setup.folder.join("given.safetensors");
    // NumPy, with which the workers read the file, has no bf16.
    crate::pipeline::oracle::tensors::write_as(&given, setup.tensors, &|_| sdfg::Dtype::F32)?;
    let mut request = serde_json::to_value(&model).map_err(|e| PipelineError::Internal(e.to_string()))?;
    let dims = crate::pipeline::oracle::tensors::given(program).into_iter().chain(program.containers.get("y"));
    request["dims"] = dims.map(|c| (c.name.clone(), Value::from(c.dims.clone()))).collect();
    progress("measuring how PyTorch's threads wait best");
    let probe = probe(setup, &request, &given)?;

    let mut rows: Vec<Option<ComparisonRow>> = Vec::new();
    let mut admitted: Vec<(usize, Admitted)> = Vec::new();
    for contender in setup.contenders {
        interrupted(setup)?;
        progress(&format!("checking {}", contender.name()));
        match admit(setup, contender, &request, &given, (&want, truth.as_ref()), &bound, probe.chosen) {
            Ok(admission) if admission.check.passes() => {
                admitted.push((rows.len(), admission));
                rows.push(None);
            }
            Ok(Admitted { versions, first_s, check, accuracy, memory, .. }) => {
                rows.push(Some(ComparisonRow {
                    accuracy,
                    memory,
                    ..ComparisonRow::new(contender, versions, Some(first_s), ComparisonOutcome::Mismatch { check })
                }));
            }
            // A Python that cannot be run was named wrongly, so the comparison ends at once.
            Err(error @ CompareError::Start { .. }) => return Err(error),
            Err(error) => {
                rows.push(Some(ComparisonRow::new(contender, Value::Null, None, ComparisonOutcome::Failed { why: error.to_string() })))
            }
        }
    }
    let mut runners = Vec::new();
    let mut facts = Vec::new();
    for (place, Admitted { runner, versions, first_s, check, accuracy, memory }) in admitted {
        runners.push(runner);
        facts.push((place, versions, first_s, check, accuracy, memory));
    }
    let besides = race(ours, &mut runners, setup, progress)?;
    for (runner, (place, versions, first_s, check, accuracy, memory)) in runners.iter().zip(facts) {
        if let Some(row) = rows.get_mut(place) {
            let outcome = report::outcome(runner, check)?;
            *row = Some(ComparisonRow { accuracy, memory, ..ComparisonRow::new(&runner.contender, versions, Some(first_s), outcome) });
        }
    }
    let report = ComparisonReport {
        recipe: program.name.clone(),
        sizes: program.sizes.clone(),
        model,
        dtype: model::stored(program),
        weights: model::weights(program),
        accuracy: truth.as_ref().map(|truth| accuracy(&want, truth)),
        machine: bench::machine::Machine::here().line(),
        origin: setup.origin.clone(),
        gigaflop: contraction_gigaflop(setup.recipe)?,
        peak: setup.peak,
        memory: ours.memory(),
        threads: setup.threads,
        rounds: setup.rounds,
        seed: setup.seed,
        dropout: setup.dropout,
        torch_wait: probe,
        ours: None,
        ours_others: None,
        rows: rows.into_iter().flatten().collect(),
    };
    Ok(report.ours(besides)?)
}

/// Ctrl-C ends the workers, too, so a worker's failure after it is no result.
fn interrupted(setup: &Setup) -> Result<(), CompareError> {
    if setup.interrupt.load(Ordering::SeqCst) { Err(CompareError::Interrupted) } else { Ok(()) }
}

/// A peer that answered, with the result of its check.
struct Admitted {
    runner: Runner,
    versions: Value,
    first_s: f64,
    check: Agreement,
    accuracy: Option<Vec<Accuracy>>,
    memory: Option<TensorBytes>,
}

/// Gflop of the recipe's contractions in a step, forward and backward, without recomputation.
fn contraction_gigaflop(recipe: &Recipe) -> Result<f64, CompareError> {
    let program = crate::pipeline::oracle::operators::counted(recipe)?;
    let kernels = sdfg::movement::movement(&program).map_err(|e| PipelineError::Internal(e.to_string()))?;
    let flop: u64 = kernels.iter().filter(|k| k.class == sdfg::Class::Contraction).map(|k| k.flop).sum();
    Ok(flop as f64 / 1e9)
}

/// Starts a contender, compares its results with ours and, if it is to be timed with dropout, runs it once with dropout.
fn admit(
    setup: &Setup,
    contender: &PeerContender,
    model: &Value,
    given: &Path,
    (want, truth): (&Tensors, Option<&Tensors>),
    bound: &AgreementBound,
    wait: Wait,
) -> Result<Admitted, CompareError> {
    let name = contender.name();
    let mut worker = Worker::start(contender, setup.threads, setup.folder, wait)?;
    let versions = worker.load(model, given)?;
    let file = setup.folder.join("results.safetensors");
    let mut checked = worker.check(false, &file)?;
    let results = read_results(&file)?;
    let mut want = Cow::Borrowed(want);
    if contender.variant.forward_only() {
        want.to_mut().retain(|name, _| !name.starts_with("d_"));
    }
    let check = bound.check(&want, &results, contender.precision);
    let compared =
        truth.map(|truth| truth.iter().filter(|(name, _)| want.contains_key(*name)).map(|(n, t)| (n.clone(), t.clone())).collect());
    let errors = compared.map(|truth: Tensors| accuracy(&results, &truth));
    let dropout = setup.dropout && !contender.variant.forward_only();
    if check.passes() && dropout {
        checked = worker.check(true, &file)?;
        if !checked.finite {
            return Err(CompareError::PeerNotFinite { contender: name });
        }
    }
    let memory = match check.passes() && memory::is_counted(contender) {
        // A runtime may run other nodes than its optimized graph has: then nothing is counted, and times stand without.
        true if contender.variant.forward_only() => worker.memory(dropout).ok(),
        true => Some(worker.memory(dropout)?),
        false => None,
    };
    Ok(Admitted { runner: Runner::new(contender.clone(), worker), versions, first_s: checked.first_s, check, accuracy: errors, memory })
}
