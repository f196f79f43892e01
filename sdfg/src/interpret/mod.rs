//! The oracle: what a program means, run in f64.
//!
//! Every operation runs by its expansion (contractions by matrix products, which sum in another order), every scope as
//! loops over flat buffers. Nothing is rounded to the containers' element types, so a result differs from the exact one
//! by f64 rounding only; [`crate::tolerance`] says how far a kernel may be from it.
//!
//! Choices where the program leaves freedom: all indices run upwards; the sequential indices of a map run outside its
//! others; every value that nothing has written is NaN. A heap container that a
//! scope writes with a combine starts from the identity before the first such scope of a run; an operation's outputs
//! start anew each time it runs.

mod contraction;
pub(crate) mod erf;
mod machine;
mod memory;
mod nest;
mod row;
mod scatter;
mod subscript;
mod tape;
mod watch;

use crate::data::Dtype;
use crate::graph::Sdfg;
use crate::library::OperatorError;
use crate::memlet::Combine;
use crate::scope::Unit;
use crate::symbol::SymbolError;
use ndarray::ArrayD;
use std::collections::BTreeMap;

pub use crate::evaluate::NotConstant;
pub use machine::STEP_LIMIT;
pub use watch::Overflow;
use watch::Watch;

/// What a run depends on besides its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Seed of dropout's masks.
    pub seed: u64,
    /// Number of the training step; another step has other masks.
    pub step: u64,
    /// Without dropout every element is kept and nothing is scaled.
    pub dropout: bool,
}

/// Tensors by container name. Axes in the container's order of dims; integers and bits are whole numbers.
pub type Tensors = BTreeMap<String, ArrayD<f64>>;

/// Why a program could not be interpreted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InterpretError {
    #[error("`{program}` needs the tensor `{data}`, which was not given")]
    Missing { program: String, data: String },
    #[error("the tensor `{data}` was given, but `{program}` has no heap container of that name")]
    UnknownTensor { program: String, data: String },
    #[error("the tensor `{data}` has the shape {given:?}; the program declares {expected:?}")]
    Shape { data: String, expected: Vec<usize>, given: Vec<usize> },
    #[error("the tensor `{data}` is declared {dtype}, which holds {}; at {place:?} it contains {value}", whole_numbers(*dtype))]
    NotStored { data: String, dtype: Dtype, place: Vec<usize>, value: f64 },
    #[error("the size {size} of `{data}` is {value}; sizes cannot be negative")]
    NegativeSize { data: String, size: String, value: i64 },
    #[error("`{data}` of shape {shape:?} does not fit in memory as f64; use smaller sizes")]
    TooLarge { data: String, shape: Vec<usize> },
    #[error("`{data}` cannot be a view of `{of}`: {why}")]
    View { data: String, of: String, why: String },
    #[error("`{user}` uses the container `{data}`, which the program does not declare")]
    UnknownContainer { user: String, data: String },
    #[error("in `{user}`, the memlet {memlet} does not match the {rank} dimensions of its container")]
    Rank { user: String, memlet: String, rank: usize },
    #[error("in `{user}`, the memlet {memlet} moves a range; a tasklet reads and writes one element at a time")]
    NotOneElement { user: String, memlet: String },
    #[error("in `{user}`, the connector `{connector}` stands in the code or on a memlet, but not in both")]
    UnboundConnector { user: String, connector: String },
    #[error("in `{user}`, {combine} combines {} values together, but {writes} are written with it in a row", combine.arity())]
    TupleCombine { user: String, combine: Combine, writes: usize },
    #[error("in `{user}` at ({point}), the memlet {memlet} is outside its container or divides by zero; a read there needs a fill")]
    OutOfRange { user: String, memlet: String, point: String },
    #[error("the bounds of the index `{index}` divide by zero, overflow, or have a step that is not positive")]
    Bounds { index: String },
    #[error("in `{user}`: {source}")]
    Symbol { user: String, source: SymbolError },
    #[error(transparent)]
    Operator(#[from] OperatorError),
    #[error("the state `{state}` of `{program}` has a cycle; nodes of a state must be acyclic")]
    Cycle { program: String, state: String },
    #[error("`{program}` ran {limit} states without an end; check the conditions of its transitions")]
    StepLimit { program: String, limit: u64 },
}

/// What an integer type holds, in words.
fn whole_numbers(dtype: Dtype) -> String {
    dtype.whole_numbers().map_or("numbers".into(), |(least, most)| format!("whole numbers from {least} to {most}"))
}

/// Runs a program from its first state to its end and returns every heap container, also transients and views.
///
/// `inputs` holds every input and parameter: a view of one may stand for its part, or the whole for all its views. A
/// heap container of any other role may be given too, as what it holds before the run.
///
/// # Errors
/// A tensor that is missing, unknown or of another shape, and everything about the program that has no meaning.
pub fn interpret(program: &Sdfg, inputs: &Tensors, run: &Run) -> Result<Tensors, InterpretError> {
    machine::interpret(program, &program.sizes, inputs, run, &mut Watch::default())
}

/// Runs one top-level unit on `tensors`: reads what it needs there and puts what it writes there. Tensors that it does
/// not touch may be anything.
///
/// # Errors
/// As [`interpret`].
pub fn interpret_unit(program: &Sdfg, unit: &Unit, tensors: &mut Tensors, run: &Run) -> Result<(), InterpretError> {
    machine::interpret_unit(program, unit, tensors, run, &mut Watch::default())
}

/// As [`interpret_unit`] on tensors that stay as they are; returns the touched ones as the unit leaves them.
///
/// # Errors
/// As [`interpret`].
pub fn interpret_unit_on(program: &Sdfg, unit: &Unit, tensors: &Tensors, run: &Run) -> Result<Tensors, InterpretError> {
    machine::interpret_unit_on(program, unit, tensors, run, &mut Watch::default())
}

/// As [`interpret`], with the first value found on the way that is finite and larger in magnitude than `limit`.
///
/// # Errors
/// As [`interpret`].
pub fn interpret_within(program: &Sdfg, inputs: &Tensors, run: &Run, limit: f64) -> Result<(Tensors, Option<Overflow>), InterpretError> {
    let mut watch = Watch::beyond(limit);
    let tensors = machine::interpret(program, &program.sizes, inputs, run, &mut watch)?;
    Ok((tensors, watch.found))
}

/// As [`interpret_unit`], with the first value found on the way that is finite and larger in magnitude than `limit`.
///
/// # Errors
/// As [`interpret`].
pub fn interpret_unit_within(
    program: &Sdfg,
    unit: &Unit,
    tensors: &mut Tensors,
    run: &Run,
    limit: f64,
) -> Result<Option<Overflow>, InterpretError> {
    let mut watch = Watch::beyond(limit);
    machine::interpret_unit(program, unit, tensors, run, &mut watch)?;
    Ok(watch.found)
}
