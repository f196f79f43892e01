//! What can be wrong with a recipe: one sentence each, that says what to do.

use super::line::{self, MarkedExtent};
use sdfg::{Dtype, Origin};
use std::fmt;

/// Everything wrong with a recipe, in order of place. Never empty.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct RecipeErrors {
    pub errors: Vec<RecipeError>,
    /// The recipe, whose faulty lines [`RecipeErrors::with_lines`] shows; empty if it could not be read.
    text: String,
}

impl RecipeErrors {
    /// Every error, each with the line that it is found in and a mark under the words at fault.
    pub fn with_lines(&self) -> String {
        let extent = |problem: &Problem| match problem {
            Problem::Subscript { .. } | Problem::Outside { .. } => MarkedExtent::Subscript,
            _ => MarkedExtent::Word,
        };
        let shown = |error: &RecipeError| match line::marked(&self.text, &error.origin, extent(&error.problem)) {
            Some(line) => format!("{error}\n{line}"),
            None => error.to_string(),
        };
        self.errors.iter().map(shown).collect::<Vec<_>>().join("\n")
    }
}

/// One problem and its place.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{origin}: {}{problem}", within.as_ref().map_or_else(String::new, |instance| format!("in {instance}: ")))]
pub struct RecipeError {
    pub origin: Origin,
    /// The instance of a block that it is found in, where its place is in a block: several instances share the lines of one block.
    pub within: Option<String>,
    pub problem: Problem,
}

impl fmt::Display for RecipeErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.errors.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

/// What may have been meant by a wrong name.
#[derive(Clone, Debug, PartialEq)]
pub enum Hint {
    Near(String),
    /// All valid names: none is near.
    Among(String),
    /// What is written here in its place.
    Instead(&'static str),
    /// There is no valid name at all, or there are too many.
    None,
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hint::Near(name) => write!(f, "; did you mean `{name}`?"),
            Hint::Among(names) => write!(f, "; valid: {names}"),
            Hint::Instead(what) => write!(f, "; {what}"),
            Hint::None => Ok(()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    // The file.
    #[error("the recipe cannot be read: {0}")]
    Unreadable(String),
    #[error(
        "this is a plan that `memlet optimize` wrote, not a recipe; run it with `memlet run {file}`, or ask `memlet explain {file}` what it is; \
         its recipe is `{recipe}`"
    )]
    Plan { file: String, recipe: String },
    #[error("these are records of measurements, not a recipe; `memlet solve {file}` chooses from them")]
    Records { file: String },
    #[error("the recipe has {bytes} bytes; at most {limit} are read")]
    TooLarge { bytes: u64, limit: u64 },
    #[error("this is not valid YAML: {0}")]
    Yaml(String),
    #[error("lists and mappings are nested more than {limit} deep here; a recipe needs four levels")]
    TooDeep { limit: usize },
    #[error("the recipe has no `{0}`; add it")]
    MissingKey(String),
    #[error("unknown key `{key}`{hint}")]
    UnknownKey { key: String, hint: Hint },
    #[error("{what} must be {expected}")]
    WrongKind { what: String, expected: String },
    #[error("there are {count} {what}; at most {limit} are accepted")]
    TooMany { what: String, count: usize, limit: usize },

    // Names and sizes.
    #[error("`{name}` cannot be a name: {why}")]
    BadName { name: String, why: String },
    #[error("unknown dim `{name}`{hint}")]
    UnknownDim { name: String, hint: Hint },
    #[error("unknown tensor `{name}`{hint}")]
    UnknownTensor { name: String, hint: Hint },
    #[error("unknown operator `{name}`{hint}")]
    UnknownOperator { name: String, hint: Hint },
    #[error("unknown element type `{name}`{hint}")]
    UnknownDtype { name: String, hint: Hint },
    #[error("the size of `{dim}` is {value}; a size is at least 1")]
    NotPositive { dim: String, value: i64 },
    #[error("the size of `{dim}` has no value: {why}")]
    NoSize { dim: String, why: String },
    #[error("`{what}` has more than 2^62 elements or bytes under these sizes; use smaller sizes")]
    Overflow { what: String },
    #[error("the sizes of the dims {0} are defined by each other; give one of them a number")]
    SizeCycle(String),
    #[error("--set {name}: there is no dim `{name}`{hint}")]
    UnknownOverride { name: String, hint: Hint },
    #[error("--set {name}: `{name}` is defined as `{definition}`; set what it is made of instead")]
    DerivedOverride { name: String, definition: String },
    #[error(
        "the constant `{name}` is too long when it is written out in sizes: it is made of {parts} parts, and at most {limit} are accepted; \
         give it a number"
    )]
    LongConstant { name: String, parts: usize, limit: usize },
    #[error("`{name}` is already declared at line {line}; give one of the two another name")]
    DeclaredTwice { name: String, line: u32 },

    #[error("the range of `{tensor}` is {range} under these sizes, and no value of {dtype} lies in it")]
    EmptyRange { tensor: String, range: String, dtype: Dtype },

    // Blocks.
    #[error("the block `{name}` has the name of an operator; give it another one")]
    BlockIsOperator { name: String },
    #[error("unknown name `{name}` in the block `{block}`{hint}")]
    UnknownInBlock { name: String, block: String, hint: Hint },
    #[error("the blocks {0} use each other, so none of them ends; a block may use others that do not use it")]
    BlockCycle(String),
    #[error("`{block}` needs {what}, as in `… = {block}({usage})`")]
    BlockNeeds { block: String, what: String, usage: String },
    #[error("{0}")]
    BlockUse(String),
    #[error("the block `{name}` is used by no step; remove it if that is not meant")]
    BlockNeverUsed { name: String },

    // Steps.
    #[error("{0}")]
    Syntax(String),
    #[error("`{name}` is already assigned at line {line}; each tensor is assigned once, so give this one another name")]
    AssignedTwice { name: String, line: u32 },
    #[error("`{name}` is assigned later, at line {line}; move that step up")]
    AssignedLater { name: String, line: u32 },
    #[error("the steps {0} need each other: this is a cycle; a step may only read what steps above it assign")]
    Cycle(String),
    #[error("`{name}` means both a tensor or constant and an index here; write `{name}[…]` for the tensor, or rename it")]
    Ambiguous { name: String },
    #[error("`{tensor}` has {rank} axes [{axes}], but {given} are given")]
    Rank { tensor: String, axes: String, rank: usize, given: usize },
    #[error(
        "axis {axis} of `{tensor}` has the size of `{dim}`, but the index `{index}` runs over another size; \
         write `{index}: {dim}` in dims if they are always equal"
    )]
    UnequalSizes { tensor: String, axis: usize, dim: String, index: String },
    #[error("`{subscript}` is no subscript of `{tensor}`: {why}")]
    Subscript { tensor: String, subscript: String, why: String },
    #[error(
        "`{subscript}` reaches from {least} to {most}, but axis {axis} of `{tensor}`, `{dim}`, goes from 0 to {last}; give what lies outside a \
         value, as in `{tensor}[… else 0]`, or change the sizes"
    )]
    Outside { tensor: String, subscript: String, axis: u32, dim: String, least: i64, most: i64, last: i64 },
    #[error("the index `{index}` stands twice in `{tensor}`; use two dims of equal size, such as `k: {index}`")]
    RepeatedIndex { tensor: String, index: String },
    #[error(
        "the index `{index}` stands twice in `{tensor}`; a step assigns a whole tensor, so write `{tensor}[{assigned}] = \
         where({index} == {other}, …, 0)`{}",
        if *declared { String::new() } else { format!(", with `{other}: {index}` in dims") }
    )]
    AssignedDiagonal { tensor: String, index: String, other: String, assigned: String, declared: bool },
    #[error("the axes of `{tensor}` are [{axes}], and [{given}] is another order of them; did you mean `{tensor}[{meant}]`?")]
    Swapped { tensor: String, axes: String, given: String, meant: String },
    #[error(
        "the index `{0}` stands on the left, but nothing on the right has it, or it is reduced there; remove it, or use it on the right"
    )]
    NeverBound(String),
    #[error("the index `{0}` is used as a number, but nothing here runs over it; put it on the left or in an operand")]
    NumberNotBound(String),
    #[error("the index `{0}` may be meant to be summed in this product, or in a part of it alone; write `sum(…, over: {0})` where it is")]
    SumOfAPart(String),
    #[error("the index `{0}` occurs only once in this product and not on the left; write `sum(…, over: {0})` if a sum is meant")]
    OnlyOnce(String),
    #[error("nothing in `{operator}` has the index `{index}`{hint}")]
    NotInOperand { operator: String, index: String, hint: Hint },
    #[error("`{operator}` takes {expected}")]
    Arguments { operator: String, expected: String },
    #[error("the label of a `cross_entropy` over `{0}` has the index `{0}` itself; it is one number for each row of classes")]
    LabelOverClasses(String),
    #[error("`{operator}` has no option `{option}`{hint}")]
    UnknownOption { operator: String, option: String, hint: Hint },
    #[error("{0}")]
    Layer(String),
    #[error("the rate is {0}; a dropout rate is at least 0 and below 1")]
    Rate(f64),
    #[error("the stream is {0}; streams of random numbers are whole numbers from 0 on, such as 3")]
    Stream(f64),
    #[error("`eps` is {0}; it is a finite number that is at least 0, such as 1e-5")]
    Eps(f64),
    #[error("`{name}` is read by no step; remove it if that is not meant")]
    NeverRead { name: String },
    #[error(
        "the number {number:e} in `{step}` is {} in f32, which all here is computed in; write one from 1e-45 to 3.4e38, inf or 0, or give the \
         recipe `dtype: f64`",
        if number.abs() > 1.0 { "infinite" } else { "0" }
    )]
    BeyondF32 { step: String, number: f64 },
    #[error("{0} must be a number known from the recipe alone, such as 0.1 or a constant that no size is part of")]
    NotConstant(String),

    // Reads by the values of other tensors.
    #[error("a row of `{tensor}` that another tensor names always exists, so nothing stands after `else`; mask with where(…, …, …)")]
    GatherFill { tensor: String },
    #[error("`{tensor}` stores {dtype}, and what names rows is a whole number: give it `dtype: i32` in `{role}`")]
    GatherByReals { tensor: String, dtype: Dtype, role: &'static str },
    #[error("`{tensor}` names rows, so it is read at plain indices; give what you mean a step of its own and read that")]
    GatherByWindow { tensor: String },

    // Updates.
    #[error("`{name}` is given anew each step, so no line of `update` can assign it; only parameters and state are kept")]
    NotKept { name: String },
    #[error("`{name}` is updated as a whole: write `{name}[{dims}] = …`")]
    UpdatedInPart { name: String, dims: String },
    #[error("there is no `{name}`: {why}")]
    NoGradient { name: String, why: String },
    #[error("a line of `update` cannot drop anything; draw the mask in `steps`, and read that here")]
    UpdateDrops,
    #[error("unknown optimizer `{name}`{hint}")]
    UnknownOptimizer { name: String, hint: Hint },
    #[error("`{optimizer}` has nothing to update: no parameter has a gradient that another line does not use; add `train`, or a parameter")]
    NothingToUpdate { optimizer: String },
    #[error("`{name}` is no parameter that has a gradient{hint}")]
    NotTrained { name: String, hint: Hint },

    // What is asked of the whole.
    #[error("`{name}` is no result of a step{hint}")]
    NotAResult { name: String, hint: Hint },
    #[error("`{name}` is not among the outputs; add it to `outputs`")]
    NotAnOutput { name: String },
    #[error("the loss `{name}` has the axes [{axes}]; a loss has none, so reduce them with sum or mean")]
    LossNotScalar { name: String, axes: String },
    #[error("`train` names both an upstream gradient and a loss; choose one")]
    TrainTwice,
    #[error("the program cannot be built: {0}; this is a fault of Memlet, please report it with the recipe")]
    Build(String),
    #[error("{0}")]
    Recurrence(String),
}

/// Collects problems, so that all of them are reported at once.
#[derive(Debug)]
pub struct Problems {
    file: String,
    found: Vec<RecipeError>,
    failures: usize,
    /// What messages call the instances of blocks; the place of a problem has the number of one, from 1.
    instances: Vec<String>,
    /// The instance whose step is read.
    current: u32,
}

/// More errors than a person reads at once.
const LIMIT: usize = 100;

impl Problems {
    pub fn new(file: &str) -> Self {
        Problems { file: file.to_string(), found: Vec::new(), failures: 0, instances: Vec::new(), current: 0 }
    }

    /// Adds a problem. What is wrong in one line of a block is reported for the first of its instances alone.
    pub fn add(&mut self, place: SourceLocation, problem: Problem) {
        self.failures += 1;
        if self.found.len() < LIMIT {
            let number = if place.within > 0 { place.within } else { self.current };
            let within = (number as usize).checked_sub(1).and_then(|at| self.instances.get(at)).cloned();
            let error = RecipeError { origin: self.origin(place), within, problem };
            let kind = std::mem::discriminant(&error.problem);
            let same = |e: &RecipeError| e.origin == error.origin && e.within.is_some() && std::mem::discriminant(&e.problem) == kind;
            if !(self.found.contains(&error) || error.within.is_some() && self.found.iter().any(same)) {
                self.found.push(error);
            }
        }
    }

    /// Numbers an instance of a block, which messages call `name`.
    pub fn instance(&mut self, name: String) -> u32 {
        self.instances.push(name);
        self.instances.len() as u32
    }

    /// Says in which instance of a block the step stands whose problems come next; 0 for none.
    pub fn enter(&mut self, instance: u32) {
        self.current = instance;
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Something failed because of what has been reported elsewhere.
    pub fn follow(&mut self) {
        self.failures += 1;
    }

    /// How often anything failed so far. What leaves it as it was has succeeded.
    pub fn failures(&self) -> usize {
        self.failures
    }

    pub fn origin(&self, place: SourceLocation) -> Origin {
        Origin { file: self.file.clone(), line: place.line, column: place.column }
    }

    /// All problems of the recipe `text`.
    pub fn into_errors(mut self, text: &str) -> RecipeErrors {
        self.found.sort_by_key(|e| (e.origin.line, e.origin.column));
        RecipeErrors { errors: self.found, text: text.to_string() }
    }
}

/// Line and column, from 1, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceLocation {
    pub line: u32,
    pub column: u32,
    /// The number of the instance of a block that this is a place of; 0 outside of all, and within a step, which knows its own.
    pub within: u32,
}

impl SourceLocation {
    pub const START: SourceLocation = SourceLocation::at(1, 1);

    pub const fn at(line: u32, column: u32) -> SourceLocation {
        SourceLocation { line, column, within: 0 }
    }
}
