//! From a recipe to a program: YAML, names and sizes, steps, operations.
//!
//! The result is forward only: one state, `forward`, of operations. Every error is reported, each with its place.

mod applied;
mod blocks;
mod canonical;
mod context;
mod header;
mod initial;
mod lexer;
mod line;
mod lower;
mod masks;
mod names;
pub(crate) mod number;
mod operators;
mod parser;
mod pattern;
mod phrase;
mod problem;
mod resolve;
mod sections;
mod sizes;
mod source;
mod steps;
mod storage;
mod subscript;
mod update;
mod value;
mod yaml;

pub use blocks::BLOCK_KEYS;
pub use initial::Initial;
pub use names::refusal as name_refusal;
pub use problem::{Hint, Problem, RecipeError, RecipeErrors};
pub use sections::{KEYS, STATE_KEYS, TENSOR_KEYS, TRAIN_KEYS};

use header::Header;
use indexmap::IndexMap;
use names::nearest;
use problem::{Problems, SourceLocation};
use sdfg::recurrence::RecurrenceError;
use sdfg::{Container, Dtype, Role, Sdfg};
use source::RecipeText;
use std::io::Read;
use std::path::Path;
use steps::Steps;
use yaml::Name;

/// A recipe is a page of text. What is larger was not written by a person.
pub const SIZE_LIMIT: u64 = 1 << 20;

/// A program and what its recipe asks of training.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Forward only; roles, sizes and origins are set.
    pub program: Sdfg,
    pub train: Option<Train>,
    /// What the step makes of parameters and state, once it is differentiated; without `train` the program does it.
    pub update: transforms::differentiate::Update,
    /// What parameters are before the first step of a training run, where the recipe says it.
    pub initial: IndexMap<String, Initial>,
    /// What was read.
    pub text: String,
    /// Inputs and parameters that no step reads: no error, but seldom meant.
    pub unread: Vec<RecipeError>,
}

/// Where differentiation starts: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Train {
    /// Outputs whose gradients come in from outside.
    pub upstream: Vec<String>,
    /// A scalar to be minimised.
    pub loss: Option<String>,
}

/// Names of all operators that a step can call.
pub fn operator_names() -> impl Iterator<Item = &'static str> {
    operators::names()
}

/// What replaces parts of a recipe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Sizes of dims.
    pub sizes: Vec<(String, i64)>,
    /// The element type, in place of `dtype`.
    pub dtype: Option<Dtype>,
    /// Every dropout is its operand: no masks, no random numbers, no operator.
    pub no_dropout: bool,
    /// Weights, residuals and what a softmax reads are stored in the element type too, as in a model that was cast as a whole; biases,
    /// scales, statistics and what a reduction writes stay wider.
    pub narrow: bool,
}

impl From<&[(String, i64)]> for Overrides {
    /// Other sizes of dims alone.
    fn from(sizes: &[(String, i64)]) -> Overrides {
        Overrides { sizes: sizes.to_vec(), ..Overrides::default() }
    }
}

impl From<&Vec<(String, i64)>> for Overrides {
    fn from(sizes: &Vec<(String, i64)>) -> Overrides {
        Overrides::from(sizes.as_slice())
    }
}

impl<const N: usize> From<&[(String, i64); N]> for Overrides {
    fn from(sizes: &[(String, i64); N]) -> Overrides {
        Overrides::from(sizes.as_slice())
    }
}

impl From<&Overrides> for Overrides {
    fn from(overrides: &Overrides) -> Overrides {
        overrides.clone()
    }
}

/// Reads the recipe in a file, with parts of it replaced: by [`Overrides`], or by sizes of dims alone.
///
/// # Errors
/// Everything that is wrong with it. A file of more than [`SIZE_LIMIT`] bytes is not opened.
pub fn load(path: &Path, overrides: impl Into<Overrides>) -> Result<Recipe, RecipeErrors> {
    let file = path.display().to_string();
    let failed = |problem| {
        let mut problems = Problems::new(&file);
        problems.add(SourceLocation::START, problem);
        Err(problems.into_errors(""))
    };
    if let Some(problem) = written_by_memlet(path) {
        return failed(problem);
    }
    match std::fs::metadata(path) {
        Ok(known) if known.len() > SIZE_LIMIT => return failed(Problem::TooLarge { bytes: known.len(), limit: SIZE_LIMIT }),
        Ok(known) if known.is_dir() => return failed(Problem::Unreadable("it is a folder".into())),
        Ok(_) => {}
        Err(error) => return failed(Problem::Unreadable(error.to_string())),
    }
    match std::fs::read(path).map(String::from_utf8) {
        Ok(Ok(text)) => load_str(&file, &text, overrides),
        Ok(Err(_)) => failed(Problem::Unreadable("it is not UTF-8 text".into())),
        Err(error) => failed(Problem::Unreadable(error.to_string())),
    }
}

/// What is wrong with a file that Memlet itself wrote, by how it begins: plans are larger than any recipe.
fn written_by_memlet(path: &Path) -> Option<Problem> {
    let mut start = Vec::new();
    std::fs::File::open(path).ok()?.take(4096).read_to_end(&mut start).ok()?;
    let (start, file) = (String::from_utf8_lossy(&start), path.display().to_string());
    if start.starts_with("{\"line\":") {
        return Some(Problem::Records { file });
    }
    let (_, rest) = start.split_once("\"recipe\":").filter(|(before, _)| before.starts_with('{') && before.contains("\"format\":"))?;
    let recipe = serde_json::Deserializer::from_str(rest).into_iter::<String>().next()?.ok()?;
    Some(Problem::Plan { file, recipe })
}

/// Reads a recipe from text, as [`load`] does from a file; `file` is what errors and origins call it.
///
/// # Errors
/// Everything that is wrong with it.
pub fn load_str(file: &str, text: &str, overrides: impl Into<Overrides>) -> Result<Recipe, RecipeErrors> {
    let overrides = &overrides.into();
    let mut problems = Problems::new(file);
    if text.len() as u64 > SIZE_LIMIT {
        problems.add(SourceLocation::START, Problem::TooLarge { bytes: text.len() as u64, limit: SIZE_LIMIT });
        return Err(problems.into_errors(""));
    }
    let source = RecipeText::new(text);
    let root = match yaml::read(&source) {
        Ok(root) => root,
        Err((place, problem)) => {
            problems.add(place, problem);
            return Err(problems.into_errors(text));
        }
    };
    let (root, unused) = blocks::expand(root, &source, &mut problems);
    if !problems.is_empty() {
        return Err(problems.into_errors(text));
    }
    let mut header = Header::read(&root, &source, overrides, &mut problems);
    // Indices cannot be judged without dims.
    if header.dims.is_empty() && !problems.is_empty() {
        return Err(problems.into_errors(text));
    }
    let mut steps = Steps::read(&mut header, &mut problems);
    storage::settle(&mut header, &mut steps.containers, &mut steps.operations);
    masks::settle(&header, &mut steps.operations);
    let outputs = outputs(&header, &steps, &mut problems);
    let train = train(&header, &outputs, &mut problems);
    let updates = update::read(&mut header, train.is_some(), &steps.results, &mut problems);
    if !problems.is_empty() {
        return Err(problems.into_errors(text));
    }
    steps.read.extend(updates.read);
    let mut unread = unread(&header, &steps, &problems);
    unread.extend(unused.into_iter().map(|block| RecipeError {
        origin: problems.origin(block.place),
        within: None,
        problem: Problem::BlockNeverUsed { name: block.text },
    }));
    let mut program = build(&header, steps, &outputs, &mut problems);
    fit(&program, &updates.update.operations, &mut problems);
    let mut update = updates.update;
    if train.is_none()
        && problems.is_empty()
        && let Some(forward) = program.state_named("forward")
    {
        let own = std::mem::take(&mut update);
        let operations = own.operations.into_iter().map(|o| sdfg::Operation { pass: sdfg::Direction::Forward, ..o }).collect();
        let own = transforms::differentiate::Update { operations, ..own };
        if let Err(error) = own.append(&mut program, forward) {
            problems.add(SourceLocation::START, Problem::Build(error.to_string()));
        }
    }
    if problems.is_empty() {
        Ok(Recipe { program, train, update, initial: header.initial, text: text.to_string(), unread })
    } else {
        Err(problems.into_errors(text))
    }
}

fn unread(header: &Header, steps: &Steps, problems: &Problems) -> Vec<RecipeError> {
    let unread = header.tensors.iter().filter(|(name, tensor)| tensor.role != Role::Transient && !steps.read.contains(*name));
    let told = |(name, tensor): (&String, &header::DeclaredTensor)| RecipeError {
        origin: problems.origin(tensor.place),
        within: None,
        problem: Problem::NeverRead { name: name.clone() },
    };
    unread.map(told).collect()
}

/// The outputs that the recipe names, or the results that no step reads.
fn outputs(header: &Header, steps: &Steps, problems: &mut Problems) -> Vec<String> {
    let Some(named) = &header.outputs else {
        return steps.results.keys().filter(|name| !steps.read.contains(*name)).cloned().collect();
    };
    for name in named.iter().filter(|name| !steps.results.contains_key(&name.text)) {
        not_a_result(name, steps.results.keys().map(String::as_str), problems);
    }
    named.iter().map(|name| name.text.clone()).collect()
}

fn not_a_result<'a>(name: &Name, results: impl Iterator<Item = &'a str>, problems: &mut Problems) {
    problems.add(name.place, Problem::NotAResult { name: name.text.clone(), hint: nearest(&name.text, results) });
}

fn train(header: &Header, outputs: &[String], problems: &mut Problems) -> Option<Train> {
    for name in header.upstream.iter().chain(&header.loss) {
        match header.tensors.get(&name.text) {
            Some(tensor) if tensor.role == Role::Transient => {
                if !outputs.contains(&name.text) {
                    problems.add(name.place, Problem::NotAnOutput { name: name.text.clone() });
                } else if header.loss.as_ref() == Some(name) && !tensor.dims.is_empty() {
                    problems.add(name.place, Problem::LossNotScalar { name: name.text.clone(), axes: tensor.dims.join(", ") });
                }
            }
            _ => not_a_result(name, outputs.iter().map(String::as_str), problems),
        }
    }
    let text = |name: &Name| name.text.clone();
    let train = Train { upstream: header.upstream.iter().map(text).collect(), loss: header.loss.as_ref().map(text) };
    (train != Train::default()).then_some(train)
}

fn build(header: &Header, steps: Steps, outputs: &[String], problems: &mut Problems) -> Sdfg {
    let mut program = Sdfg::new(&header.model);
    program.about = header.about.clone();
    (program.tf32, program.winograd) = (header.tf32, header.winograd);
    program.dims = header.dims.clone();
    program.sizes = header.sizes.clone();
    for (name, tensor) in header.tensors.iter().filter(|(_, t)| t.role != Role::Transient) {
        let dims: Vec<&str> = tensor.dims.iter().map(String::as_str).collect();
        let mut container = Container::new(name, &dims, tensor.dtype, tensor.role);
        container.grad = tensor.grad;
        container.range = tensor.range.clone();
        container.initial = tensor.initial.map(sdfg::Fill);
        container.origin = Some(problems.origin(tensor.place));
        program.add_container(container);
    }
    for mut container in steps.containers {
        if outputs.contains(&container.name) {
            container.role = Role::Output;
        }
        program.add_container(container);
    }
    fit(&program, &steps.operations, problems);
    let state = program.add_state("forward");
    if problems.is_empty()
        && let Err(error) = sdfg::recurrence::insert(&mut program, state, steps.operations, &|_| false)
    {
        let place = error.origin().map_or(SourceLocation::START, |o| SourceLocation::at(o.line, o.column));
        let problem = match error {
            RecurrenceError::Build(error) => Problem::Build(error.to_string()),
            other => Problem::Recurrence(other.to_string()),
        };
        problems.add(place, problem);
    }
    program
}

/// No tensor, no iteration space and not all tensors together may overflow what counts them.
fn fit(program: &Sdfg, operations: &[sdfg::Operation], problems: &mut Problems) {
    let limit = sizes::LIMIT as u64;
    let place = |origin: &Option<sdfg::Origin>| origin.as_ref().map_or(SourceLocation::START, |o| SourceLocation::at(o.line, o.column));
    let mut total = 0u64;
    for container in program.containers.values() {
        let elements = program.elements(&container.name).ok().filter(|n| *n <= limit);
        let bytes = elements.and_then(|n| n.checked_mul(container.dtype.bits().div_ceil(8))).filter(|bytes| *bytes <= limit);
        match bytes {
            Some(bytes) => total = total.saturating_add(bytes),
            None => problems.add(place(&container.origin), Problem::Overflow { what: container.name.clone() }),
        }
    }
    if total > limit {
        problems.add(SourceLocation::START, Problem::Overflow { what: program.name.clone() });
    }
    for operation in operations {
        if operation.points(program).eval(&program.sizes).ok().is_none_or(|points| points > sizes::LIMIT) {
            problems.add(place(&operation.origin), Problem::Overflow { what: operation.name.clone() });
        }
    }
}
