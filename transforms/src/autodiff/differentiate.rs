//! Reverse-mode differentiation: appends a state `backward` that computes the gradients `d_<name>`.
//!
//! ```text
//! forward:   s = a·x;  y = s + c
//! backward:  d_c = Σ d_y;  d_a = Σ x·d_y;  d_x = Σ a·d_y
//! ```
//!
//! Operators are differentiated as such, before expansion and fusion, in reverse order, and only along paths from a
//! wanted tensor to a seed. Where several consumers contribute, their contributions are `d_<name>.<consumer>` and one
//! element-wise addition, labelled `residual`, writes `d_<name>`. A contribution that equals another gradient (a bias, a
//! residual addition) is not copied: that container is read in its place. Only a wanted gradient always has a container
//! of its own, filled with zeros if nothing depends on the tensor.
//!
//! A cast to a narrower type is no step of its own: the gradient by `w.bf16` is the gradient by `w`, stored as `w` is. So
//! a contraction of bf16 weights writes the gradient of their f32 master copy, which never passes through bf16.
//!
//! An [`Update`] makes of gradients what parameters are in the next step. It is appended to the backward state; the gradients that it
//! reads need not be stored then.
//!
//! The backward state reads forward containers as if all were saved; [`crate::autodiff::recompute`] decides which are.
//!
//! Loops over time are taken apart into equations ([`sdfg::recurrence`]), differentiated as such, and made again of both passes'
//! equations. The gradient of what a loop carries from one time to the next has a contribution from the next time, so its container is
//! named before its contributions are known. Every forward tensor that backward reads is saved for all times; where that is a function's
//! argument or its value, the value is ([`super::derivative_from_output`]).
//!
//! *Not handled*: views, several forward states, statistics (mean, rstd) that something else depends on. Each is refused.

use super::sparse_update;
use crate::autodiff::derivative_from_output::from_outputs;
use crate::pass::{self, Context, Loops, Promise, Rewritten, Stopped};
use indexmap::{IndexMap, IndexSet};
use sdfg::library::calculus::fold_inline;
use sdfg::library::{OperatorError, Wanted};
use sdfg::recurrence::{self, RecurrenceError};
use sdfg::{
    BuildError, Combine, Container, Direction, Expr, Lifetime, Op, Operand, Operation, Origin, Role, Scalar, Sdfg, Transition, Unit,
};
use std::collections::{BTreeMap, BTreeSet};

/// Which containers are differentiated, and by which.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The containers whose gradients come in from outside, as the inputs `d_<name>`.
    pub upstream: Vec<String>,
    /// The scalar container whose gradient is 1. Either this is given or some are `upstream`.
    pub loss: Option<String>,
    /// The containers whose gradients are handed back; by default every floating input and parameter with `grad`.
    pub wanted: Option<Vec<String>>,
    /// What the step makes of the gradients: the parameters' values in the next step.
    pub update: Update,
}

/// Operations that read gradients, in execution order, and the containers that they write.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    pub containers: Vec<Container>,
    pub operations: Vec<Operation>,
}

impl Update {
    /// Appends the operations to a state. The gradient of a parameter that is replaced is handed back no longer.
    ///
    /// # Errors
    /// Operations that read what nothing declares.
    pub fn append(&self, program: &mut Sdfg, state: sdfg::StateId) -> Result<(), BuildError> {
        for container in &self.containers {
            program.add_container(container.clone());
        }
        for operation in &self.operations {
            program.insert_operation(state, operation)?;
        }
        for replaced in self.containers.iter().filter_map(|c| c.replaces.as_ref()) {
            if let Some(gradient) = program.containers.get_mut(&format!("d_{replaced}")).filter(|c| c.role == Role::Gradient) {
                gradient.role = Role::Transient;
            }
        }
        Ok(())
    }
}

/// Why a program could not be differentiated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DifferentiateError {
    #[error("`{program}` needs a seed: write either `train: {{upstream: NAME}}` or `train: {{loss: NAME}}`; outputs are {outputs}")]
    Seed { program: String, outputs: String },
    #[error("`{program}` has no container `{name}` to differentiate; declare it or correct the name")]
    Unknown { program: String, name: String },
    #[error("{}nothing computes `{name}`, so nothing can be differentiated from it; name an output", place(.at))]
    NotComputed { name: String, at: Option<Origin> },
    #[error("{}the loss `{name}` has the dims [{dims}] but must be a scalar; reduce it, or use `train: {{upstream: {name}}}`", place(.at))]
    NotScalar { name: String, dims: String, at: Option<Origin> },
    #[error("{}`{name}` stores {dtype}, which has no gradient; set `grad: false` on it", place(.at))]
    NotFloating { name: String, dtype: String, at: Option<Origin> },
    #[error("the name `{name}` is taken, but the gradient of `{of}` needs it; rename it (`d_` is reserved)")]
    NameTaken { name: String, of: String },
    #[error("`{program}` has {count} states; differentiate a program once, before anything else is added to it")]
    States { program: String, count: usize },
    #[error("`{unit}` is no operator any more; differentiate the program before expanding or fusing it")]
    Expanded { unit: String },
    #[error("{}`{name}` is a view or is viewed; gradients through views are not supported, copy the slice into a tensor of its own", place(.at))]
    View { name: String, at: Option<Origin> },
    #[error("{}`{name}`, a statistic of `{operation}`, influences a seed; only the result of a normalization can be differentiated", place(.at))]
    Statistic { name: String, operation: String, at: Option<Origin> },
    #[error("{}{error}", place(.at))]
    Operator { error: OperatorError, at: Option<Origin> },
    #[error("{}the gradient of a loop is no loop: {error}", place(.at))]
    Recurrence { error: Box<RecurrenceError>, at: Option<Origin> },
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl From<RecurrenceError> for DifferentiateError {
    fn from(error: RecurrenceError) -> Self {
        let at = error.origin().cloned();
        DifferentiateError::Recurrence { error: Box::new(error), at }
    }
}

fn place(at: &Option<Origin>) -> String {
    at.as_ref().map(|o| format!("{o}: ")).unwrap_or_default()
}

/// Differentiates a program of operators.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Differentiate {
    pub options: Options,
}

impl pass::Pass for Differentiate {
    fn name(&self) -> &'static str {
        "differentiate"
    }

    fn loops(&self) -> Loops {
        Loops::Outside
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let seeds: Vec<String> = self.options.upstream.iter().chain(&self.options.loss).map(|seed| format!("`{seed}`")).collect();
        let summary = format!("differentiate {}", seeds.join(", "));
        Ok(Rewritten::program(summary, differentiate(program, &self.options)?))
    }

    fn is_optional(&self) -> bool {
        false
    }

    fn promise(&self) -> Promise {
        Promise::Gradients(self.options.clone())
    }
}

/// The program with a state `backward` appended. The forward state is unchanged.
pub fn differentiate(program: &Sdfg, options: &Options) -> Result<Sdfg, DifferentiateError> {
    let states: Vec<_> = program.states().map(|(id, _)| id).collect();
    let [forward] = states[..] else {
        return Err(DifferentiateError::States { program: program.name.clone(), count: states.len() });
    };
    // Loops are differentiated as equations, one group a loop.
    let mut flat = program.clone();
    let mut groups: Vec<Vec<Operation>> = Vec::new();
    for (_, _, unit) in program.units() {
        match unit {
            Unit::Operation(operation) => groups.push(vec![operation]),
            Unit::Nested(nested) => {
                let expanded = || DifferentiateError::Expanded { unit: nested.name.clone() };
                let (containers, operations) = recurrence::equations(program, &nested).ok_or_else(expanded)?;
                containers.into_iter().for_each(|container| flat.add_container(container));
                groups.push(operations);
            }
            other => return Err(DifferentiateError::Expanded { unit: other.name().to_string() }),
        }
    }
    let operations = groups.concat();
    let seeds = seeds(&flat, options, &operations)?;
    let wanted = wanted(&flat, options, &seeds)?;
    let relevant = relevant(&flat, &operations, &seeds, &wanted)?;
    let parted = parted(&flat, &operations, &relevant, &wanted);
    let mut tape = Tape::new(&flat, &seeds, options.loss.clone(), wanted, relevant)?;
    tape.parted = parted;
    tape.find_casts(&operations);
    tape.count_readers(&operations);
    for group in groups.iter().rev() {
        let carried = carried(group);
        tape.open(&carried)?;
        for operation in group.iter().rev() {
            tape.pull_back(operation)?;
        }
        tape.close(&carried)?;
    }
    for name in tape.wanted.clone() {
        tape.gradient_of(&name)?;
    }
    let Tape { program: mut differentiated, operations: pulled_back, .. } = tape;
    let looped = groups.iter().any(|group| group.len() > 1 || !carried(group).is_empty());
    let pulled_back = from_outputs(&differentiated, &operations, pulled_back, looped);
    let (pulled_back, update) = sparse_update::folded(&mut differentiated, pulled_back, &options.update);
    if !looped {
        let backward = differentiated.add_state("backward");
        differentiated.add_transition(forward, backward, Transition::default());
        for operation in &pulled_back {
            differentiated.insert_operation(backward, operation)?;
        }
        update.append(&mut differentiated, backward)?;
        return Ok(differentiated);
    }
    // The loops of the forward pass are made again, because backward reads some of what only their bodies had.
    let mut whole = differentiated.without_states();
    let read: BTreeSet<String> = pulled_back.iter().chain(&update.operations).flat_map(|o| &o.inputs).map(|i| i.data.clone()).collect();
    let forward = whole.add_state("forward");
    let backward = whole.add_state("backward");
    whole.add_transition(forward, backward, Transition::default());
    recurrence::insert(&mut whole, forward, operations, &|data| read.contains(data))?;
    let updated: BTreeSet<&str> = update.operations.iter().flat_map(|o| &o.inputs).map(|i| i.data.as_str()).collect();
    recurrence::insert(&mut whole, backward, pulled_back, &|data| updated.contains(data))?;
    update.append(&mut whole, backward)?;
    Ok(whole)
}

/// Containers that are read in parts which together are the whole, each part by one element-wise operation, such as the gates of a
/// recurrent layer: each reader writes its part of the gradient.
fn parted(program: &Sdfg, operations: &[Operation], relevant: &BTreeSet<String>, wanted: &[String]) -> BTreeSet<String> {
    let mut readers: BTreeMap<&str, Vec<(&Operation, &Operand)>> = BTreeMap::new();
    for operation in operations.iter().filter(|o| o.outputs.iter().any(|o| relevant.contains(&o.data))) {
        operation.inputs.iter().for_each(|input| readers.entry(input.data.as_str()).or_default().push((operation, input)));
    }
    let is_parted = |data: &str, found: &[(&Operation, &Operand)]| -> Option<bool> {
        let container = program.containers.get(data).filter(|c| c.is_transient())?;
        let axis = found.first()?.1.subscripts.iter().position(|s| s.as_int().is_some())?;
        let mut places = BTreeSet::new();
        for (operation, operand) in found {
            places.insert(operand.subscripts.get(axis)?.as_int()?);
            let mut names = BTreeSet::new();
            for (subscript, dim) in operand.subscripts.iter().zip(&container.dims).enumerate().filter(|(n, _)| *n != axis).map(|(_, s)| s) {
                let index = subscript.as_sym()?;
                let whole = program.size_of(operation.indices.get(index)?) == program.size_of(dim);
                (whole && names.insert(index)).then_some(())?;
            }
            // Every index of the operation is one of the element's, so nothing is summed.
            let plain = operand.fill.is_none() && names.len() == operation.indices.len();
            (plain && matches!(operation.op, Op::Elementwise { .. })).then_some(())?;
        }
        let size = program.size_of(&container.dims[axis]).eval(&program.sizes).ok()?;
        Some(places.len() == found.len() && places == (0..size).collect())
    };
    let wanted: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let is_candidate = |data: &str| relevant.contains(data) && !wanted.contains(data);
    let all = readers.iter().filter(|(data, found)| is_candidate(data) && is_parted(data, found) == Some(true));
    all.map(|(data, _)| data.to_string()).collect()
}

/// Results of a group of operations that one of them, or one before it, reads at another time: their gradients are complete only with the
/// whole group.
fn carried(group: &[Operation]) -> Vec<String> {
    let mut found = Vec::new();
    for (n, operation) in group.iter().enumerate() {
        for output in &operation.outputs {
            if group[..=n].iter().flat_map(|o| &o.inputs).any(|input| input.data == output.data) {
                found.push(output.data.clone());
            }
        }
    }
    found
}

/// The containers that are differentiated: the upstream ones or the loss.
fn seeds<'a>(program: &'a Sdfg, options: &Options, operations: &[Operation]) -> Result<Vec<&'a Container>, DifferentiateError> {
    let names = match (&options.upstream[..], &options.loss) {
        (names @ [_, ..], None) => names,
        ([], Some(loss)) => std::slice::from_ref(loss),
        _ => {
            let outputs: Vec<_> = program.containers.values().filter(|c| c.role == Role::Output).map(|c| format!("`{}`", c.name)).collect();
            return Err(DifferentiateError::Seed { program: program.name.clone(), outputs: outputs.join(", ") });
        }
    };
    let mut seeds: Vec<&Container> = Vec::new();
    for name in names {
        let seed = known(program, name)?;
        if !operations.iter().flat_map(|o| &o.outputs).any(|o| o.data == *name) {
            return Err(DifferentiateError::NotComputed { name: name.clone(), at: seed.origin.clone() });
        }
        if options.loss.is_some() && !seed.dims.is_empty() {
            return Err(DifferentiateError::NotScalar { name: name.clone(), dims: seed.dims.join(", "), at: seed.origin.clone() });
        }
        if !seeds.iter().any(|known| known.name == *name) {
            seeds.push(seed);
        }
    }
    Ok(seeds)
}

fn known<'a>(program: &'a Sdfg, name: &str) -> Result<&'a Container, DifferentiateError> {
    program.containers.get(name).ok_or_else(|| DifferentiateError::Unknown { program: program.name.clone(), name: name.to_string() })
}

/// Names of the containers whose gradients are handed back, in the program's order.
fn wanted(program: &Sdfg, options: &Options, seeds: &[&Container]) -> Result<Vec<String>, DifferentiateError> {
    let by_default = |c: &&Container| c.grad && matches!(c.role, Role::Input | Role::Parameter) && c.dtype.roundoff() > 0.0;
    let mut names = match &options.wanted {
        None => program.containers.values().filter(by_default).map(|c| c.name.clone()).collect(),
        Some(names) => names.clone(),
    };
    for name in &names {
        let container = known(program, name)?;
        if container.dtype.roundoff() == 0.0 {
            let (dtype, at) = (container.dtype.to_string(), container.origin.clone());
            return Err(DifferentiateError::NotFloating { name: name.clone(), dtype, at });
        }
    }
    // A seed's own gradient is given, not computed.
    names.retain(|n| !seeds.iter().any(|seed| *n == seed.name));
    names.sort_by_key(|n| program.containers.get_index_of(n));
    names.dedup();
    Ok(names)
}

/// Containers on a path from a wanted tensor to a seed.
fn relevant(
    program: &Sdfg,
    operations: &[Operation],
    seeds: &[&Container],
    wanted: &[String],
) -> Result<BTreeSet<String>, DifferentiateError> {
    // Operations of a loop read what later ones write: those are followed until nothing is new.
    let mut active: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let mut known = None;
    while known != Some(active.len()) {
        known = Some(active.len());
        for operation in operations {
            if !operation.stops_gradients() && operation.inputs.iter().any(|i| active.contains(i.data.as_str())) {
                active.extend(operation.outputs.iter().map(|o| o.data.as_str()));
            }
        }
    }
    let mut useful: BTreeSet<&str> = seeds.iter().map(|seed| seed.name.as_str()).collect();
    let mut known = None;
    while known != Some(useful.len()) {
        known = Some(useful.len());
        for operation in operations.iter().rev() {
            if operation.outputs.iter().any(|o| useful.contains(o.data.as_str())) {
                useful.extend(operation.inputs.iter().map(|i| i.data.as_str()));
            }
        }
    }
    for container in program.containers.values() {
        let Some(view) = &container.view else { continue };
        let (name, of) = (container.name.as_str(), view.of.as_str());
        if (active.contains(name) || active.contains(of)) && (useful.contains(name) || useful.contains(of)) {
            return Err(DifferentiateError::View { name: name.to_string(), at: container.origin.clone() });
        }
    }
    let relevant: BTreeSet<String> = active.intersection(&useful).map(|n| n.to_string()).collect();
    for operation in operations {
        if let Some(output) = operation.outputs.iter().find(|o| o.connector != "out" && relevant.contains(&o.data)) {
            let (name, at) = (output.data.clone(), operation.origin.clone());
            return Err(DifferentiateError::Statistic { name, operation: operation.name.clone(), at });
        }
    }
    Ok(relevant)
}

/// The backward operations while they are collected.
struct Tape {
    /// The forward program with the containers of the gradients so far.
    program: Sdfg,
    seeds: Vec<String>,
    /// The scalar whose gradient, `d_<name>`, is the constant 1.
    loss: Option<String>,
    wanted: IndexSet<String>,
    relevant: BTreeSet<String>,
    /// Container that only stores another one in a narrower type → that one.
    casts: BTreeMap<String, String>,
    /// How many operands of relevant operations read a container.
    readers: BTreeMap<String, usize>,
    /// Forward container → containers that hold contributions to its gradient, in order of computation.
    contributions: BTreeMap<String, Vec<String>>,
    /// Containers to whose gradients each reader writes a part.
    parted: BTreeSet<String>,
    /// Results of a loop, to whose gradients operations of the loop still contribute → the containers of these gradients.
    unfinished: BTreeMap<String, String>,
    operations: Vec<Operation>,
}

impl Tape {
    fn new(
        program: &Sdfg,
        seeds: &[&Container],
        loss: Option<String>,
        wanted: Vec<String>,
        relevant: BTreeSet<String>,
    ) -> Result<Self, DifferentiateError> {
        let mut program = program.clone();
        for of in relevant.iter().chain(&wanted).chain(seeds.iter().map(|seed| &seed.name)) {
            let name = format!("d_{of}");
            if program.containers.contains_key(&name) {
                return Err(DifferentiateError::NameTaken { name, of: of.clone() });
            }
        }
        let mut contributions = BTreeMap::new();
        for &seed in seeds {
            let given = format!("d_{}", seed.name);
            if loss.is_none() {
                let input = Container { name: given.clone(), role: Role::Input, lifetime: Lifetime::Program, grad: false, ..seed.clone() };
                program.add_container(input);
            }
            contributions.insert(seed.name.clone(), vec![given]);
        }
        Ok(Tape {
            program,
            seeds: seeds.iter().map(|seed| seed.name.clone()).collect(),
            loss,
            wanted: wanted.into_iter().collect(),
            relevant,
            casts: BTreeMap::new(),
            readers: BTreeMap::new(),
            contributions,
            parted: BTreeSet::new(),
            unfinished: BTreeMap::new(),
            operations: Vec::new(),
        })
    }

    fn find_casts(&mut self, operations: &[Operation]) {
        for operation in operations {
            let (Some(from), Some(to)) = (operation.cast_of(&self.program), operation.output("out")) else { continue };
            let roundoff = |data: &str| self.program.containers.get(data).map_or(0.0, |c| c.dtype.roundoff());
            // The gradient of a seed or of a wanted container is asked for in its own type: such a cast stays a step.
            if roundoff(&from.data) < roundoff(&to.data) && !self.seeds.contains(&to.data) && !self.wanted.contains(&to.data) {
                self.casts.insert(to.data.clone(), from.data.clone());
            }
        }
    }

    /// The container whose gradient that of `data` is.
    fn source<'a>(&'a self, data: &'a str) -> &'a str {
        let mut at = data;
        while let Some(from) = self.casts.get(at) {
            at = from;
        }
        at
    }

    fn count_readers(&mut self, operations: &[Operation]) {
        let counts = |o: &&Operation| o.outputs.iter().any(|o| self.relevant.contains(&o.data) && !self.casts.contains_key(&o.data));
        let mut readers: BTreeMap<String, usize> = BTreeMap::new();
        for operation in operations.iter().filter(counts) {
            for input in operation.inputs.iter().filter(|i| self.relevant.contains(&i.data)) {
                *readers.entry(self.source(&input.data).to_string()).or_default() += 1;
            }
        }
        // The gradient that is given for a seed is one of the contributions.
        for seed in &self.seeds {
            *readers.entry(seed.clone()).or_default() += 1;
        }
        self.readers = readers;
    }

    /// Adds the derivative of one forward operation, if a seed depends on it.
    fn pull_back(&mut self, forward: &Operation) -> Result<(), DifferentiateError> {
        let counts = |o: &&Operand| self.relevant.contains(&o.data) && !self.casts.contains_key(&o.data);
        let Some(out) = forward.output("out").filter(counts) else { return Ok(()) };
        let Some(upstream) = self.gradient_of(&out.data)? else { return Ok(()) };
        let mut gradients: BTreeMap<String, String> = BTreeMap::new();
        let mut parts: BTreeSet<String> = BTreeSet::new();
        for input in forward.inputs.iter().filter(|i| self.relevant.contains(&i.data)) {
            let source = self.source(&input.data);
            let mut target = format!("d_{source}");
            // A contribution to a sum is named after its consumer too, and by its connector if it reads the tensor twice.
            if self.parted.contains(source) {
                parts.insert(input.connector.clone());
            } else if self.readers.get(source).is_some_and(|n| *n > 1) {
                target = format!("{target}.{}", forward.name);
                if forward.inputs.iter().filter(|i| self.source(&i.data) == source).count() > 1 {
                    target = format!("{target}.{}", input.connector);
                }
                target = self.program.fresh_name(&target);
            }
            gradients.insert(input.connector.clone(), target);
        }
        let wanted = Wanted { gradients, parts, upstream };
        let derivative = forward
            .differentiate(&self.program, &wanted)
            .map_err(|error| DifferentiateError::Operator { error, at: forward.origin.clone() })?;
        self.program.dims.extend(derivative.dims);
        for container in derivative.containers {
            self.program.add_container(container);
        }
        for input in &forward.inputs {
            let Some(target) = wanted.gradients.get(&input.connector) else { continue };
            let source = self.source(&input.data).to_string();
            let holder = match derivative.same.get(&input.connector) {
                Some(same) => same.clone(),
                None if derivative.operations.iter().flat_map(|o| &o.outputs).any(|o| o.data == *target) => {
                    self.declare(target, &source)?;
                    target.clone()
                }
                None => continue,
            };
            let contributions = self.contributions.entry(source).or_default();
            if !contributions.contains(&holder) || !wanted.parts.contains(&input.connector) {
                contributions.push(holder);
            }
        }
        for mut operation in derivative.operations {
            // The parts of one gradient are written by kernels of different names.
            let part = operation.outputs.first().filter(|out| {
                wanted.parts.iter().any(|connector| wanted.gradients.get(connector).is_some_and(|target| *target == out.data))
            });
            if let Some(place) = part.and_then(|out| out.subscripts.iter().find_map(Expr::as_int)) {
                operation.name = format!("{}.{place}", operation.name);
            }
            self.push(operation)?;
        }
        Ok(())
    }

    /// Declares the gradients of what a loop carries from one time to the next, before any contribution to them is known.
    fn open(&mut self, carried: &[String]) -> Result<(), DifferentiateError> {
        for data in carried {
            if !self.relevant.contains(data) {
                continue;
            }
            let target = self.target(data);
            self.declare(&target, data)?;
            self.unfinished.insert(data.clone(), target);
        }
        Ok(())
    }

    /// Adds up the contributions to those gradients.
    fn close(&mut self, carried: &[String]) -> Result<(), DifferentiateError> {
        for data in carried {
            if let Some(target) = self.unfinished.remove(data) {
                let contributions = self.contributions.remove(data).unwrap_or_default();
                // A single contribution that was computed into the gradient's own container is the gradient.
                if contributions != [target.clone()] {
                    let label = if contributions.len() > 1 { "residual" } else { "copy" };
                    self.sum(data, &target, label, contributions)?;
                }
            }
        }
        Ok(())
    }

    /// The container of a gradient. A seed from which other seeds follow: its own name is that of the given gradient.
    fn target(&self, data: &str) -> String {
        let own = format!("d_{data}");
        if self.seeds.iter().any(|seed| seed == data) { self.program.fresh_name(&format!("{own}.all")) } else { own }
    }

    /// The container that holds the whole gradient of `data`; `None` if it is zero and not wanted.
    fn gradient_of(&mut self, data: &str) -> Result<Option<String>, DifferentiateError> {
        if let Some(target) = self.unfinished.get(data) {
            return Ok(Some(target.clone()));
        }
        let contributions = self.contributions.remove(data).unwrap_or_default();
        let is_wanted = self.wanted.contains(data);
        let own = format!("d_{data}");
        let label = match &contributions[..] {
            [] if !is_wanted => return Ok(None),
            [only] if !is_wanted || *only == own => return Ok(Some(only.clone())),
            [] => "zero",
            [_] => "copy",
            _ => "residual",
        };
        let target = self.target(data);
        self.declare(&target, data)?;
        self.sum(data, &target, label, contributions)?;
        Ok(Some(target))
    }

    /// Computes a gradient as the sum of its contributions.
    fn sum(&mut self, data: &str, target: &str, label: &str, contributions: Vec<String>) -> Result<(), DifferentiateError> {
        let container = known(&self.program, data)?;
        let indices: IndexMap<String, String> = container.dims.iter().map(|d| (d.clone(), d.clone())).collect();
        let subscripts: Vec<Expr> = container.dims.iter().map(|d| Expr::sym(d.as_str())).collect();
        let origin = container.origin.clone();
        let mut inputs: Vec<Operand> = Vec::new();
        let mut code = Scalar::Const(0.0);
        for contribution in contributions {
            let connector = match inputs.iter().find(|i| i.data == contribution) {
                Some(known) => known.connector.clone(),
                None => {
                    let connector = format!("d{}", inputs.len());
                    inputs.push(Operand { connector: connector.clone(), data: contribution, subscripts: subscripts.clone(), fill: None });
                    connector
                }
            };
            code = code + Scalar::input(connector);
        }
        self.push(Operation {
            name: target.to_string(),
            op: Op::Elementwise { label: label.into(), code },
            indices,
            inputs,
            outputs: vec![Operand { connector: "out".into(), data: target.to_string(), subscripts, fill: None }],
            pass: Direction::Backward,
            origin,
        })
    }

    /// Declares a gradient container shaped like `of`: handed back if it is the wanted gradient, else transient.
    fn declare(&mut self, name: &str, of: &str) -> Result<(), DifferentiateError> {
        let like = known(&self.program, of)?;
        let is_wanted = self.wanted.contains(of) && name == format!("d_{of}");
        let role = if is_wanted { Role::Gradient } else { Role::Transient };
        let container = Container { name: name.into(), role, lifetime: Lifetime::Program, grad: false, ..like.clone() };
        self.program.add_container(container);
        Ok(())
    }

    /// Gives a contraction factors of one type: a wider one is cast to the other's, once for all that read it.
    fn narrow(&mut self, operation: &mut Operation) -> Result<(), DifferentiateError> {
        let types =
            operation.inputs.iter().map(|i| Ok(known(&self.program, &i.data)?.dtype)).collect::<Result<Vec<_>, DifferentiateError>>()?;
        let Some(dtype) = types.iter().copied().max_by(|a, b| a.roundoff().total_cmp(&b.roundoff())) else { return Ok(()) };
        for (input, _) in operation.inputs.iter_mut().zip(types).filter(|(_, t)| *t != dtype) {
            let from = known(&self.program, &input.data)?.clone();
            let name = format!("{}.{dtype}", from.name);
            if !self.program.containers.contains_key(&name) {
                let made = Container { role: Role::Transient, lifetime: Lifetime::Program, grad: false, view: None, dtype, ..from.clone() };
                self.program.add_container(Container { name: name.clone(), ..made });
                let subscripts: Vec<Expr> = from.dims.iter().map(|d| Expr::sym(d.as_str())).collect();
                let operand = |connector: &str, data: &str| Operand {
                    connector: connector.into(),
                    data: data.into(),
                    subscripts: subscripts.clone(),
                    fill: None,
                };
                self.operations.push(Operation {
                    name: name.clone(),
                    op: Op::Elementwise { label: "cast".into(), code: Scalar::input("x") },
                    indices: from.dims.iter().map(|d| (d.clone(), d.clone())).collect(),
                    inputs: vec![operand("x", &from.name)],
                    outputs: vec![operand("out", &name)],
                    pass: Direction::Backward,
                    origin: operation.origin.clone(),
                });
            }
            input.data = name;
        }
        Ok(())
    }

    /// Adds a backward operation. The gradient of a loss is folded into it as the constant 1.
    fn push(&mut self, mut operation: Operation) -> Result<(), DifferentiateError> {
        let one = self.loss.clone().map(|loss| (format!("d_{loss}"), loss));
        let Some((one, loss)) = one.filter(|(one, _)| operation.inputs.iter().any(|i| i.data == *one)) else {
            if matches!(operation.op, Op::Contraction { .. }) {
                self.narrow(&mut operation)?;
            }
            self.operations.push(operation);
            return Ok(());
        };
        if let Op::Contraction { scale } = &operation.op {
            let code = Scalar::input("a") * Scalar::input("b");
            operation.op = Op::Reduce { label: "product dX".into(), combine: Combine::Sum, code, scale: scale.clone() };
        }
        match &mut operation.op {
            Op::Elementwise { code, .. } | Op::Reduce { code, .. } => {
                for input in operation.inputs.iter().filter(|i| i.data == one) {
                    *code = fold_inline(code, &input.connector, &Scalar::Const(1.0));
                }
                operation.inputs.retain(|i| i.data != one);
            }
            // Softmax and normalization of a scalar: too rare to fold, so the 1 is stored.
            _ if !self.program.containers.contains_key(&one) => {
                self.declare(&one, &loss)?;
                self.operations.push(Operation {
                    name: one.clone(),
                    op: Op::Elementwise { label: "one".into(), code: Scalar::Const(1.0) },
                    indices: IndexMap::new(),
                    inputs: vec![],
                    outputs: vec![Operand { connector: "out".into(), data: one, subscripts: vec![], fill: None }],
                    pass: Direction::Backward,
                    origin: operation.origin.clone(),
                });
            }
            _ => {}
        }
        self.operations.push(operation);
        Ok(())
    }
}
