//! Reads the steps in order: grammar, order of assignment, meaning, operations.

use super::context::StepContext;
use super::header::{DeclaredTensor, Header};
use super::lexer;
use super::lower::Lowering;
use super::names::usable;
use super::operators::sugar;
use super::parser::{self, Ast, ParsedExpr, ParsedStep};
use super::problem::{Problem, Problems, SourceLocation};
use super::resolve::{Absence, Resolver};
use super::subscript::{self, Brackets};
use super::value::StepValue;
use super::yaml::Name;
use indexmap::{IndexMap, IndexSet};
use sdfg::library::operator::Field;
use sdfg::{Bounds, Container, Dtype, Expr, Operation, Role, Scalar};
use std::collections::BTreeMap;

/// What the steps say.
#[derive(Default)]
pub struct Steps {
    /// Everything that the steps write.
    pub containers: Vec<Container>,
    pub operations: Vec<Operation>,
    /// Results in order of assignment, with their places.
    pub results: IndexMap<String, SourceLocation>,
    /// Tensors that some step reads; what steps that need each other read at other times does not count.
    pub read: IndexSet<String>,
    /// Results that a step above their own reads at another time.
    ahead: IndexSet<String>,
}

/// A step that is assigned somewhere: what the order of steps is judged by.
struct Assignment {
    line: u32,
    needs: IndexSet<String>,
}

/// A step that names a dim for each axis of what it assigns.
pub(super) struct Assigned {
    pub name: Name,
    pub indices: Vec<Name>,
    pub value: ParsedExpr,
}

impl Assigned {
    pub fn of(step: ParsedStep) -> Result<Assigned, (SourceLocation, Problem)> {
        let indices = subscript::dims(Brackets::Assigned, &step.subscripts)?;
        subscript::check(&step.value)?;
        Ok(Assigned { name: step.name, indices, value: step.value })
    }
}

/// The size of a dim along which tensors are joined is the sum of theirs, for all values: programs are checked at other sizes, too.
fn joins<'a>(steps: impl Iterator<Item = &'a Assigned> + Clone, header: &mut Header) {
    for step in steps.clone() {
        let left: Vec<&str> = step.indices.iter().map(|index| index.text.as_str()).collect();
        let dims = |name: &str, at: usize| -> Option<String> {
            let made = steps.clone().find(|step| step.name.text == name).map(|step| step.indices.get(at).map(|index| index.text.clone()));
            made.unwrap_or_else(|| header.tensors.get(name).and_then(|tensor| tensor.dims.get(at).cloned()))
        };
        let Some((along, parts)) = sugar::joined(&step.value, &left, &dims) else { continue };
        let Some(Expr::Sym(symbol)) = header.dims.get(&along).cloned() else { continue };
        let Some(sizes) = parts.iter().map(|dim| header.dims.get(dim).cloned()).collect::<Option<Vec<Expr>>>() else { continue };
        let Some(sum) = sizes.into_iter().reduce(|a, b| a + b) else { continue };
        let equal = sum.eval(&header.sizes).is_ok_and(|sum| header.sizes.get(&symbol) == Some(&sum));
        if equal && !sum.symbols().contains(&symbol) {
            let with = BTreeMap::from([(symbol, sum)]);
            header.dims.values_mut().for_each(|size| *size = size.substitute(&with));
        }
    }
}

impl Steps {
    /// Adds the results to the tensors of `header`.
    pub fn read(header: &mut Header, problems: &mut Problems) -> Steps {
        let mut steps = Vec::new();
        let mut assignments: IndexMap<String, Assignment> = IndexMap::new();
        let mut broken: IndexSet<String> = IndexSet::new();
        for text in &header.steps {
            problems.enter(text.place.within);
            let start = text.places.first().copied().unwrap_or(text.place);
            let parsed = lexer::words(&text.text, &text.places, start).and_then(parser::step).and_then(Assigned::of);
            match parsed {
                Ok(step) => {
                    let mut needs = IndexSet::new();
                    names(&step.value, &mut needs);
                    assignments.entry(step.name.text.clone()).or_insert(Assignment { line: step.name.place.line, needs });
                    steps.push((text.place.within, step));
                }
                Err((place, problem)) => {
                    problems.add(place, problem);
                    broken.insert(text.text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
                }
            }
        }
        joins(steps.iter().map(|(_, step)| step), header);
        let mut found = Steps::default();
        let recurrent = Recurrent::of(&assignments, &steps);
        for (_, step) in steps.iter().filter(|(_, step)| recurrent.0.contains_key(&step.name.text)) {
            found.announce(step, header);
        }
        for (within, step) in &steps {
            problems.enter(*within);
            let absent = |name: &str| match assignments.get(name) {
                Some(_) if reaches(&assignments, name, &step.name.text) => {
                    Absence::Because(Problem::Cycle(cycle(&assignments, name, &step.name.text)))
                }
                Some(later) => Absence::Because(Problem::AssignedLater { name: name.into(), line: later.line }),
                None if broken.contains(name) => Absence::Reported,
                None => Absence::Unknown,
            };
            found.add(step, &recurrent, header, &absent, problems);
        }
        problems.enter(0);
        found
    }

    /// Declares a result before its step is read: a step may read it at another time.
    fn announce(&mut self, step: &Assigned, header: &mut Header) {
        let name = &step.name;
        if header.declared(&name.text).is_none() {
            let dims: Vec<String> = step.indices.iter().map(|i| i.text.clone()).filter(|i| header.is_index(i)).collect();
            let sound = dims.len() == step.indices.len();
            let tensor = DeclaredTensor {
                place: name.place,
                dims,
                dtype: header.dtype,
                role: Role::Transient,
                grad: false,
                range: None,
                initial: None,
                sound,
            };
            header.tensors.insert(name.text.clone(), tensor);
            self.ahead.insert(name.text.clone());
        }
    }

    fn add(
        &mut self,
        step: &Assigned,
        recurrent: &Recurrent,
        header: &mut Header,
        absent: &dyn Fn(&str) -> Absence,
        problems: &mut Problems,
    ) {
        let name = &step.name;
        let before = problems.failures();
        usable(name, problems);
        if let Some(first) = self.results.get(&name.text) {
            problems.add(name.place, Problem::AssignedTwice { name: name.text.clone(), line: first.line });
        } else if let Some(line) = header.declared(&name.text).filter(|_| !self.ahead.contains(&name.text)) {
            problems.add(name.place, Problem::DeclaredTwice { name: name.text.clone(), line });
        }
        let mut left: Vec<String> = Vec::new();
        for index in &step.indices {
            if header.is_index(&index.text) && !left.contains(&index.text) {
                left.push(index.text.clone());
            }
        }
        let at_other_times = |tensor: &str, subscripts: &[ParsedExpr]| recurrent.together(&name.text, tensor) && is_shifted(subscripts);
        names_but(&step.value, &at_other_times, &mut self.read);
        let mut resolver = Resolver { header, problems, absent };
        resolver.distinct(&name.text, &step.indices);
        let expression = sugar::replaced(&step.value, &left, resolver.header, resolver.problems);
        let value = expression.and_then(|expression| resolver.value(&expression, &left));
        if let Some(value) = &value {
            let bound = value.indices(&|index| header.is_index(index));
            for index in step.indices.iter().filter(|i| left.contains(&i.text) && !bound.contains(&i.text)) {
                problems.add(index.place, Problem::NeverBound(index.text.clone()));
            }
        }
        if let Some(value) = &value
            && problems.failures() == before
        {
            let lowered = Lowering::of(header, &name.text, &left, problems.origin(name.place), value);
            if let Some(number) = beyond(header, &lowered.operations) {
                problems.add(name.place, Problem::BeyondF32 { step: name.text.clone(), number });
            }
            self.containers.extend(lowered.containers);
            self.operations.extend(lowered.operations);
        }
        let gathered: Vec<(String, String)> = value.iter().flat_map(|value| gathers(value, header)).collect();
        for (label, dim) in gathered {
            let size = header.dims.get(&dim).cloned();
            let unsaid = |t: &&mut DeclaredTensor| t.role != Role::Transient && t.range.is_none();
            if let (Some(size), Some(tensor)) = (size, header.tensors.get_mut(&label).filter(unsaid)) {
                tensor.range = Some(Bounds { low: Scalar::Const(0.0), high: Scalar::Index(size), open: [false, true] });
            }
        }
        for (label, class) in value.iter().flat_map(StepValue::labels) {
            let size = header.dims.get(class).cloned();
            let unsaid = |t: &&mut DeclaredTensor| t.role != Role::Transient && !t.dtype.is_floating() && t.range.is_none();
            if let (Some(size), Some(tensor)) = (size, header.tensors.get_mut(label).filter(unsaid)) {
                let (low, high) = (Scalar::Const(0.0), Scalar::Index(size));
                tensor.range = Some(Bounds { low, high, open: [false, true] });
            }
        }
        let sound = step.indices.len() == left.len();
        // Also after an error, so that its readers are not reported too.
        let tensor = DeclaredTensor {
            place: name.place,
            dims: left,
            dtype: header.dtype,
            role: Role::Transient,
            grad: false,
            range: None,
            initial: None,
            sound,
        };
        header.tensors.entry(name.text.clone()).or_insert(tensor);
        self.results.entry(name.text.clone()).or_insert(name.place);
    }
}

/// The tensors that name rows of others in a value, each with the dim of these rows.
fn gathers(value: &StepValue, header: &Header) -> Vec<(String, String)> {
    let mut found = Vec::new();
    value.walk(&mut |part| {
        let StepValue::Access(reading) = part else { return };
        let Some(table) = header.tensors.get(&reading.data) else { return };
        for (subscript, dim) in reading.subscripts().into_iter().zip(&table.dims) {
            if let sdfg::Expr::Element(data, _) = subscript {
                found.push((data, dim.clone()));
            }
        }
    });
    found
}

/// A number of a step's operations that f32 does not hold: it would be infinite or 0, where all is computed in f32.
pub(super) fn beyond(header: &Header, operations: &[Operation]) -> Option<f64> {
    if header.dtype.accumulator() != Dtype::F32 || header.tensors.values().any(|t| t.dtype == Dtype::F64) {
        return None;
    }
    let lost = |v: f64| v.is_finite() && v != 0.0 && ((v as f32).is_infinite() || v as f32 == 0.0);
    let mut found = None;
    let mut look = |code: &Scalar| {
        code.walk(&mut |part| match part {
            Scalar::Const(value) if lost(*value) => found = found.or(Some(*value)),
            _ => {}
        })
    };
    for operation in operations {
        for (_, field) in operation.op.fields() {
            match field {
                Field::Code(code) => look(&code),
                Field::Number(number) => look(&Scalar::Const(number)),
                _ => {}
            }
        }
    }
    found
}

/// The steps that need each other and read one another at other times: result → the number of its group.
struct Recurrent(IndexMap<String, usize>);

impl Recurrent {
    fn of(assignments: &IndexMap<String, Assignment>, steps: &[(u32, Assigned)]) -> Recurrent {
        let mut groups: Vec<Vec<&str>> = Vec::new();
        for name in assignments.keys() {
            let depends = assignments[name].needs.iter().any(|need| assignments.contains_key(need) && reaches(assignments, need, name));
            if !depends {
                continue;
            }
            let both = |other: &str| reaches(assignments, name, other) && reaches(assignments, other, name);
            match groups.iter_mut().find(|group| both(group[0])) {
                Some(group) => group.push(name),
                None => groups.push(vec![name]),
            }
        }
        let mut found = IndexMap::new();
        for (n, group) in groups.iter().enumerate() {
            let shifts = |step: &Assigned| group.contains(&step.name.text.as_str()) && reads_shifted(&step.value, group);
            if steps.iter().any(|(_, step)| shifts(step)) {
                found.extend(group.iter().map(|name| (name.to_string(), n)));
            }
        }
        Recurrent(found)
    }

    fn together(&self, one: &str, other: &str) -> bool {
        self.0.get(one).is_some_and(|group| self.0.get(other) == Some(group))
    }
}

/// Whether an expression reads one of some tensors under a subscript that is no plain index.
fn reads_shifted(node: &ParsedExpr, of: &[&str]) -> bool {
    let own = matches!(&node.ast, Ast::Access(name, subscripts, _) if of.contains(&name.as_str()) && is_shifted(subscripts));
    own || node.parts().into_iter().any(|part| reads_shifted(part, of))
}

fn is_shifted(subscripts: &[ParsedExpr]) -> bool {
    subscripts.iter().any(|subscript| !matches!(subscript.ast, Ast::Word(_)))
}

/// Every name that may be a tensor in an expression.
pub(super) fn names(node: &ParsedExpr, found: &mut IndexSet<String>) {
    names_but(node, &|_, _| false, found);
}

/// As [`names`], without the accesses that do not count.
fn names_but(node: &ParsedExpr, skips: &dyn Fn(&str, &[ParsedExpr]) -> bool, found: &mut IndexSet<String>) {
    match &node.ast {
        Ast::List(_) => {}
        // Names in subscripts are those of dims and constants, but for tensors that are read there.
        Ast::Access(name, subscripts, _) => {
            if !skips(name, subscripts) {
                found.insert(name.clone());
            }
            let inner = subscripts.iter().filter(|subscript| matches!(subscript.ast, Ast::Access(..)));
            inner.for_each(|subscript| names_but(subscript, skips, found));
        }
        Ast::Word(name) => {
            found.insert(name.clone());
        }
        _ => node.parts().into_iter().for_each(|part| names_but(part, skips, found)),
    }
}

/// Whether the step `from` needs the step `to`, directly or through others.
fn reaches(assignments: &IndexMap<String, Assignment>, from: &str, to: &str) -> bool {
    path(assignments, from, to).is_some()
}

/// Steps from `from` to `to`, each needing the next one.
fn path<'a>(assignments: &'a IndexMap<String, Assignment>, from: &'a str, to: &str) -> Option<Vec<&'a str>> {
    let mut came: IndexMap<&str, Option<&str>> = IndexMap::from([(from, None)]);
    let mut next = 0;
    while let Some((&name, _)) = came.get_index(next) {
        next += 1;
        if name == to {
            let mut path = vec![name];
            while let Some(Some(before)) = path.last().and_then(|last| came.get(last)) {
                path.push(before);
            }
            path.reverse();
            return Some(path);
        }
        for need in assignments.get(name).into_iter().flat_map(|a| &a.needs) {
            if assignments.contains_key(need) && !came.contains_key(need.as_str()) {
                came.insert(need, Some(name));
            }
        }
    }
    None
}

fn cycle(assignments: &IndexMap<String, Assignment>, from: &str, to: &str) -> String {
    let names: Vec<String> = path(assignments, from, to)
        .unwrap_or_default()
        .iter()
        .map(|name| format!("`{name}` (line {})", assignments.get(*name).map_or(0, |a| a.line)))
        .collect();
    names.join(", ")
}
