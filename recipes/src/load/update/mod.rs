//! The section `update`: what parameters and state are in the next step.
//!
//! A line assigns a parameter, a state or a tensor of its own, `w[o,i] = w - 0.01 * d_w`, or is an optimizer, `sgd(rate: 0.01)`, which
//! is written out as such lines. Right sides read the values that parameters and state have in this step: what a line assigns to `w` is
//! another container, `w.new`, that takes the place of `w` when the step has ended.

mod optimizers;

use super::header::{DeclaredTensor, Header};
use super::lexer;
use super::lower::Lowering;
use super::names::{nearest, usable};
use super::parser::{self, Ast, ParsedExpr};
use super::phrase::Phrase;
use super::problem::{Problem, Problems, SourceLocation};
use super::resolve::{Absence, Resolver};
use super::steps::{Assigned, beyond, names};
use super::value::StepValue;
use super::yaml::Name;
use indexmap::{IndexMap, IndexSet};
use sdfg::{Container, Direction, Dtype, Role};
use transforms::differentiate::Update;

/// What the lines of `update` say.
#[derive(Default)]
pub struct Updates {
    pub update: Update,
    /// Tensors that some line reads.
    pub read: IndexSet<String>,
}

/// A line that assigns one tensor.
struct Line {
    step: Assigned,
    /// The instance of a block that it is reported in.
    within: u32,
    /// An optimizer has made it, so that its names may be those that Memlet makes.
    made: bool,
}

/// A line as it is written.
enum Written {
    Step(Assigned),
    Optimizer(Name, Vec<parser::Argument>),
}

/// The name of a parameter's value in the next step.
fn new(name: &str) -> String {
    format!("{name}.new")
}

/// Reads the lines. State that optimizers keep is added to the tensors of `header`.
pub fn read(header: &mut Header, trains: bool, results: &IndexMap<String, SourceLocation>, problems: &mut Problems) -> Updates {
    let mut written = Vec::new();
    for text in header.update.clone() {
        problems.enter(text.place.within);
        match line(&text) {
            Ok(line) => written.push((text.place.within, line)),
            Err((place, problem)) => problems.add(place, problem),
        }
    }
    if trains {
        declare_gradients(header);
    }
    let mut lines: Vec<Line> = Vec::new();
    let assigned: Vec<String> =
        written.iter().filter_map(|(_, line)| if let Written::Step(step) = line { Some(step.name.text.clone()) } else { None }).collect();
    let mut optimizers = optimizers::Optimizers::new(assigned);
    for (within, line) in written {
        problems.enter(within);
        match line {
            Written::Step(step) => lines.push(Line { step, within, made: false }),
            Written::Optimizer(name, arguments) => {
                let made = optimizers.lines(header, &name, &arguments, problems);
                lines.extend(made.into_iter().map(|step| Line { step, within, made: true }));
            }
        }
    }
    let mut updates = Updates::default();
    let mut places: IndexMap<String, SourceLocation> = IndexMap::new();
    for line in &lines {
        problems.enter(line.within);
        updates.add(line, header, (trains, results), &mut places, problems);
    }
    problems.enter(0);
    updates
}

/// A line that has an `=` is a step; any other is the call of an optimizer.
fn line(text: &Phrase) -> Result<Written, (SourceLocation, Problem)> {
    let start = text.places.first().copied().unwrap_or(text.place);
    let words = || lexer::words(&text.text, &text.places, start);
    let assigns = text.words().iter().any(|word| word.token == sdfg::syntax::Token::Sign("="));
    if assigns {
        return words().and_then(parser::step).and_then(Assigned::of).map(Written::Step);
    }
    let node = words().and_then(parser::expression)?;
    match node.ast {
        Ast::Call(name, arguments) => Ok(Written::Optimizer(Name { place: node.place, text: name }, arguments)),
        _ => {
            let why = "a line of `update` reads `name[index, …] = expression`, or is an optimizer, as in `sgd(rate: 0.01)`";
            Err((node.place, Problem::Syntax(why.into())))
        }
    }
}

/// The gradients that differentiation makes, as tensors that lines can read.
fn declare_gradients(header: &mut Header) {
    let has_gradient = |t: &DeclaredTensor| t.role != Role::Transient && t.grad && t.dtype.is_floating();
    let gradients: Vec<(String, DeclaredTensor)> = header
        .tensors
        .iter()
        .filter(|(_, tensor)| has_gradient(tensor))
        .map(|(name, tensor)| (format!("d_{name}"), DeclaredTensor { role: Role::Transient, grad: false, range: None, ..tensor.clone() }))
        .collect();
    header.tensors.extend(gradients);
}

impl Updates {
    fn add(
        &mut self,
        line: &Line,
        header: &mut Header,
        (trains, results): (bool, &IndexMap<String, SourceLocation>),
        places: &mut IndexMap<String, SourceLocation>,
        problems: &mut Problems,
    ) {
        let Line { step, made, .. } = line;
        let (name, before) = (&step.name, problems.failures());
        if let Some(first) = places.get(&name.text) {
            return problems.add(name.place, Problem::AssignedTwice { name: name.text.clone(), line: first.line });
        }
        let kept = header.tensors.get(&name.text).map(|t| (t.role, t.dims.clone(), t.dtype));
        let replaced = match kept {
            Some((Role::Parameter, dims, dtype)) => Some((dims, dtype)),
            Some(_) if results.contains_key(&name.text) => {
                let line = results.get(&name.text).map_or(0, |place| place.line);
                return problems.add(name.place, Problem::AssignedTwice { name: name.text.clone(), line });
            }
            Some(_) => return problems.add(name.place, Problem::NotKept { name: name.text.clone() }),
            None => None,
        };
        if replaced.is_none() && !made {
            usable(name, problems);
        }
        let left: Vec<String> = step.indices.iter().map(|index| index.text.clone()).collect();
        if let Some((dims, _)) = &replaced
            && *dims != left
        {
            let dims = dims.join(", ");
            return problems.add(name.place, Problem::UpdatedInPart { name: name.text.clone(), dims });
        }
        names(&step.value, &mut self.read);
        let absent = |name: &str| match name.strip_prefix("d_") {
            Some(of) if header.tensors.contains_key(of) || !trains => {
                Absence::Because(Problem::NoGradient { name: name.into(), why: no_gradient(header, of, trains) })
            }
            _ => Absence::Unknown,
        };
        let mut resolver = Resolver { header, problems, absent: &absent };
        resolver.distinct(&name.text, &step.indices);
        let value = if resolver.problems.failures() == before { sdfg_value(&mut resolver, &step.value, &left) } else { None };
        let bound = value.as_ref().map(|value| value.indices(&|index| header.is_index(index))).unwrap_or_default();
        let Some(value) = value.filter(|_| problems.failures() == before) else { return };
        if replaced.is_none()
            && let Some(index) = step.indices.iter().find(|index| !bound.contains(&index.text))
        {
            return problems.add(index.place, Problem::NeverBound(index.text.clone()));
        }
        if value.drops() {
            return problems.add(name.place, Problem::UpdateDrops);
        }
        let target = if replaced.is_some() { new(&name.text) } else { name.text.clone() };
        let lowered = Lowering::of(header, &target, &left, problems.origin(name.place), &value);
        if let Some(number) = beyond(header, &lowered.operations) {
            problems.add(name.place, Problem::BeyondF32 { step: name.text.clone(), number });
        }
        for mut container in lowered.containers {
            container.dtype = container.dtype.accumulator();
            if let Some((_, dtype)) = replaced.as_ref().filter(|_| container.name == target) {
                container = Container { dtype: *dtype, role: Role::Output, replaces: Some(name.text.clone()), ..container };
            }
            self.update.containers.push(container);
        }
        let backward = lowered.operations.into_iter().map(|operation| sdfg::Operation { pass: Direction::Backward, ..operation });
        self.update.operations.extend(backward);
        places.insert(name.text.clone(), name.place);
        let dtype = replaced.map_or(header.dtype.accumulator(), |(_, dtype)| dtype);
        header.tensors.insert(target, result(name.place, left, dtype));
    }
}

fn sdfg_value(resolver: &mut Resolver, node: &ParsedExpr, left: &[String]) -> Option<StepValue> {
    use super::context::StepContext;
    resolver.value(node, left)
}

fn result(place: SourceLocation, dims: Vec<String>, dtype: Dtype) -> DeclaredTensor {
    DeclaredTensor { place, dims, dtype, role: Role::Transient, grad: false, range: None, initial: None, sound: true }
}

/// Why there is no gradient of a tensor.
fn no_gradient(header: &Header, of: &str, trains: bool) -> String {
    match header.tensors.get(of) {
        _ if !trains => "without `train` there are no gradients; add `train: {loss: NAME}`".into(),
        Some(tensor) if tensor.role == Role::Transient => "only inputs and parameters have gradients that can be read here".into(),
        Some(tensor) if tensor.initial.is_some() => format!("`{of}` is state, which is never differentiated"),
        Some(tensor) if !tensor.dtype.is_floating() => format!("`{of}` stores {}, which has no gradient", tensor.dtype),
        Some(_) => format!("`{of}` says `grad: false`"),
        None => {
            let hint = nearest(of, header.tensors.iter().filter(|(_, t)| t.grad).map(|(name, _)| name.as_str()));
            format!("nothing is called `{of}`{hint}")
        }
    }
}
