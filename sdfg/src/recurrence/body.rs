//! From a component of equations to a loop: each operand becomes a slice, each number of the loop's index a value that is read.

use super::component::{Time, same_time};
use super::{Extracted, RecurrenceError, extract};
use crate::affine::Affine;
use crate::data::{Container, Dtype, Lifetime, Role};
use crate::graph::Sdfg;
use crate::library::Op;
use crate::library::operator::Field;
use crate::memlet::Fill;
use crate::node::{Loop, Nested, Operand, Operation, Slice};
use crate::scalar::Scalar;
use crate::scope::Unit;
use crate::symbol::Expr;
use indexmap::IndexMap;
use std::collections::{BTreeMap, BTreeSet};

/// The inner container of each slice, and what it is inside.
struct Body<'a> {
    program: &'a Sdfg,
    time: &'a Time,
    /// The symbol of the loop's index.
    index: String,
    /// Results of the body.
    made: BTreeSet<&'a str>,
    slices: IndexMap<String, Slice>,
    containers: IndexMap<String, Container>,
    /// The container of all values of the index, if a number of it is used.
    numbers: Option<String>,
}

/// Adds the loop of a component to what was extracted.
pub(super) fn close(
    program: &Sdfg,
    operations: &[Operation],
    members: &[usize],
    stage: &str,
    kept: &dyn Fn(&str) -> bool,
    into: &mut Extracted,
) -> Result<(), RecurrenceError> {
    let own: Vec<&Operation> = members.iter().map(|n| &operations[*n]).collect();
    let time = Time::of(program, &own)?;
    let made: BTreeSet<&str> = own.iter().flat_map(|o| &o.outputs).map(|o| o.data.as_str()).collect();
    let taken = |name: &str| own.iter().zip(&time.indices).any(|(o, index)| o.indices.keys().any(|i| i == name && i != index));
    let index = if taken(&time.dim) { fresh(&format!("{}.now", time.dim), &taken) } else { time.dim.clone() };
    let mut body = Body { program, time: &time, index, made, slices: IndexMap::new(), containers: IndexMap::new(), numbers: None };
    let mut inside = Vec::new();
    for (operation, index) in own.iter().zip(&time.indices) {
        inside.push(body.operation(operation, index)?);
    }
    // What only the body reads, at the same time, is no slice of anything.
    let outside = |data: &str| {
        let read = operations.iter().enumerate().any(|(n, o)| !members.contains(&n) && o.inputs.iter().any(|i| i.data == data));
        read || kept(data) || program.containers.get(data).is_none_or(|c| c.role != Role::Transient)
    };
    let carried: BTreeSet<String> = body
        .slices
        .iter()
        .filter(|(inner, slice)| **inner != slice.data && body.made.contains(slice.data.as_str()))
        .map(|(_, slice)| slice.data.clone())
        .collect();
    let Body { made, mut slices, mut containers, index, numbers, .. } = body;
    for data in made {
        let Some(container) = containers.get_mut(data) else { continue };
        if outside(data) || carried.contains(data) {
            container.role = Role::Output;
        } else {
            container.role = Role::Transient;
            slices.shift_remove(data);
            into.inner.insert(data.to_string());
        }
    }
    // What is read of the last time alone, and nowhere outside, is held for one time.
    let last = if time.reversed { Expr::sym(index.as_str()) + Expr::Int(1) } else { Expr::sym(index.as_str()) - Expr::Int(1) };
    for data in carried.iter().filter(|data| !outside(data)) {
        let Some((before, axis)) = state(&slices, data, &last) else { continue };
        let Some(outer) = program.containers.get(data) else { continue };
        let mut dims = outer.dims.clone();
        dims.remove(axis);
        into.containers.push(Container { dims, ..outer.clone() });
        slices.shift_remove(data);
        if let Some(slice) = slices.get_mut(&before) {
            slice.at = None;
        }
    }
    let name = carried.iter().next().or_else(|| containers.keys().next()).map(|data| format!("{data}.loop")).unwrap_or_default();
    let mut inner = Sdfg::new(&name);
    (inner.tf32, inner.winograd) = (program.tf32, program.winograd);
    (inner.sizes, inner.dims) = (program.sizes.clone(), program.dims.clone());
    containers.into_values().for_each(|container| inner.add_container(container));
    let state = inner.add_state(stage);
    let is_output = |inner: &Sdfg, data: &str| inner.containers.get(data).is_some_and(|c| c.role != Role::Transient);
    let units = extract(&inner, inside, stage, &|data| is_output(&inner, data)).map_err(|error| match error {
        // Members that still depend on themselves do so at one time.
        RecurrenceError::SameTime { .. } | RecurrenceError::NoDim { .. } => same_time(&own, Some(&time.dim)),
        other => other,
    })?;
    units.containers.into_iter().for_each(|container| inner.add_container(container));
    inner.containers.retain(|name, container| container.role != Role::Transient || !units.inner.contains(name));
    for unit in &units.units {
        match unit {
            Unit::Operation(operation) => inner.insert_operation(state, operation)?,
            Unit::Nested(nested) => inner.insert_nested(state, nested)?,
            Unit::Scope(scope) => inner.insert_scope(state, scope)?,
        };
    }
    if let Some(numbers) = numbers
        && !program.containers.contains_key(&numbers)
        && !into.containers.iter().any(|c| c.name == numbers)
    {
        let (container, operation) = all_numbers(&numbers, &time.dim, own[0]);
        into.containers.push(container);
        into.units.push(Unit::Operation(operation));
    }
    let repeat = Some(Loop { index, dim: time.dim.clone(), reversed: time.reversed, slices });
    let symbols = inner.sizes.keys().map(|s| (s.clone(), Expr::sym(s.as_str()))).collect();
    into.units.push(Unit::Nested(Nested { name, program: Box::new(inner), symbols, repeat }));
    Ok(())
}

/// The slice of the last time, and its axis, of a result of which no other time but its own is touched.
fn state(slices: &IndexMap<String, Slice>, data: &str, last: &Expr) -> Option<(String, usize)> {
    let mut others = slices.iter().filter(|(inner, slice)| slice.data == data && *inner != data);
    let (Some((before, slice)), None) = (others.next(), others.next()) else { return None };
    let (axis, at) = slice.at.as_ref()?;
    (at == last && slice.fill.is_some() && slices.contains_key(data)).then(|| (before.clone(), *axis))
}

/// The values of an index, 0, 1, …, as a container, and what computes it.
fn all_numbers(name: &str, dim: &str, like: &Operation) -> (Container, Operation) {
    let mut container = Container::new(name, &[dim], Dtype::F32, Role::Transient);
    container.origin = like.origin.clone();
    let operation = Operation {
        name: name.to_string(),
        op: Op::Elementwise { label: "index".into(), code: Scalar::Index(Expr::sym(dim)) },
        indices: IndexMap::from([(dim.to_string(), dim.to_string())]),
        inputs: vec![],
        outputs: vec![Operand::new("out", name, &[dim])],
        pass: like.pass,
        origin: like.origin.clone(),
    };
    (container, operation)
}

fn fresh(wish: &str, taken: &dyn Fn(&str) -> bool) -> String {
    if !taken(wish) {
        return wish.to_string();
    }
    (2..).map(|n| format!("{wish}{n}")).find(|name| !taken(name)).unwrap_or_default()
}

impl Body<'_> {
    /// An operation at one time.
    fn operation(&mut self, operation: &Operation, index: &str) -> Result<Operation, RecurrenceError> {
        let with = BTreeMap::from([(index.to_string(), Expr::sym(self.index.as_str()))]);
        let mut inputs = Vec::new();
        for operand in &operation.inputs {
            inputs.push(self.operand(operation, operand, index, &with)?);
        }
        let mut outputs = Vec::new();
        for operand in &operation.outputs {
            outputs.push(self.operand(operation, operand, index, &with)?);
        }
        let (op, number) = self.op(operation, index, &with)?;
        inputs.extend(number);
        let mut indices = operation.indices.clone();
        indices.shift_remove(index);
        Ok(Operation { op, indices, inputs, outputs, ..operation.clone() })
    }

    fn operand(
        &mut self,
        operation: &Operation,
        operand: &Operand,
        index: &str,
        with: &BTreeMap<String, Expr>,
    ) -> Result<Operand, RecurrenceError> {
        let unknown = || crate::graph::BuildError::UnknownContainer {
            program: self.program.name.clone(),
            user: operation.name.clone(),
            data: operand.data.clone(),
        };
        let container = self.program.containers.get(&operand.data).ok_or_else(unknown)?;
        let mut subscripts = operand.subscripts.clone();
        // What names a row is read at the same time.
        for subscript in &mut subscripts {
            if let Expr::Element(data, at) = subscript {
                let named = Operand { connector: String::new(), data: data.clone(), subscripts: at.clone(), fill: None };
                let named = self.operand(operation, &named, index, with)?;
                *subscript = Expr::Element(named.data, named.subscripts);
            }
        }
        let of_time = |n: &usize| !subscripts[*n].reads_elements() && subscripts[*n].symbols().contains(index);
        let axes: Vec<usize> = (0..subscripts.len()).filter(of_time).collect();
        let is_index = |name: &str| operation.indices.contains_key(name);
        let at = match &axes[..] {
            [] => None,
            [axis] if operand.subscripts[*axis].symbols().iter().all(|s| s == index || !is_index(s)) => {
                let at = operand.subscripts[*axis].substitute(with);
                Some((*axis, Affine::of(&at, &|name| name == self.index).map_or(at.clone(), |form| form.expr())))
            }
            [axis, ..] => {
                return Err(RecurrenceError::Window {
                    name: operation.name.clone(),
                    data: operand.data.clone(),
                    subscript: operand.subscripts[*axis].to_string(),
                    dim: self.time.dim.clone(),
                    at: operation.origin.clone().map(Box::new),
                });
            }
        };
        let mut dims = container.dims.clone();
        if let Some((axis, _)) = &at {
            subscripts.remove(*axis);
            dims.remove(*axis);
        }
        let size = |s: &Expr| s.as_sym().and_then(|index| operation.indices.get(index)).map(|dim| self.program.size_of(dim));
        let whole = subscripts.iter().zip(&dims).all(|(s, dim)| size(s) == Some(self.program.size_of(dim)));
        let fill = operand.fill.filter(|_| !whole);
        let data = self.slice(container, at, operand.fill, dims);
        Ok(Operand { connector: operand.connector.clone(), data, subscripts, fill })
    }

    /// The inner container of a slice, declared when it is first touched.
    fn slice(&mut self, container: &Container, at: Option<(usize, Expr)>, fill: Option<Fill>, dims: Vec<String>) -> String {
        let data = &container.name;
        let fill =
            fill.filter(|_| at.as_ref().is_some_and(|(_, at)| *at != Expr::sym(self.index.as_str()) || !self.made.contains(data.as_str())));
        let slice = Slice { data: data.clone(), fill, at };
        if let Some((inner, _)) = self.slices.iter().find(|(_, known)| **known == slice) {
            return inner.clone();
        }
        let own = Expr::sym(self.index.as_str());
        let suffix = match &slice.at {
            None => "whole",
            Some((_, at)) if *at == own => "now",
            Some((_, at)) if *at == own.clone() - Expr::Int(1) => "before",
            Some((_, at)) if *at == own + Expr::Int(1) => "after",
            Some(_) => "at",
        };
        let is_own = slice.at.as_ref().is_some_and(|(_, at)| at.as_sym() == Some(self.index.as_str()));
        let plain = self.made.contains(data.as_str()) && is_own;
        let free = !self.made.contains(data.as_str()) && !self.containers.contains_key(data);
        let name = if plain || (free && (is_own || slice.at.is_none())) {
            data.clone()
        } else {
            fresh(&format!("{data}.{suffix}"), &|name| self.containers.contains_key(name) || self.program.containers.contains_key(name))
        };
        let role = match (&slice.at, container.role) {
            (None, Role::Parameter) => Role::Parameter,
            _ => Role::Input,
        };
        let mut inner = Container { name: name.clone(), dims, role, grad: false, lifetime: Lifetime::Program, ..container.clone() };
        if role == Role::Parameter {
            inner.lifetime = Lifetime::Persistent;
        }
        self.containers.insert(name.clone(), inner);
        // A whole container under its own name needs no entry.
        if slice.at.is_some() || name != *data {
            self.slices.insert(name.clone(), slice);
        }
        name
    }

    /// The operator with the loop's index as a value that is read, and the operand that reads it.
    fn op(&mut self, operation: &Operation, index: &str, with: &BTreeMap<String, Expr>) -> Result<(Op, Option<Operand>), RecurrenceError> {
        let mut used = operation.inputs.iter().map(|i| i.connector.clone()).collect::<BTreeSet<_>>();
        operation.op.fields().into_iter().for_each(|(_, field)| {
            if let Field::Code(code) = field {
                used.extend(code.inputs());
            }
        });
        let connector = fresh(&self.index.replace('.', "_"), &|name| used.contains(name));
        let (mut wrong, mut needed) = (None, false);
        let op = operation.op.with_fields(|field| match field {
            Field::Code(code) => Field::Code(code.rewrite(&mut |part| match &part {
                Scalar::Index(e) if e.symbols().contains(index) => {
                    let form = Affine::of(e, &|name| operation.indices.contains_key(name));
                    let Some(form) = form else {
                        wrong = Some(RecurrenceError::Number {
                            name: operation.name.clone(),
                            number: e.to_string(),
                            dim: self.time.dim.clone(),
                            at: operation.origin.clone().map(Box::new),
                        });
                        return part;
                    };
                    needed = true;
                    let rest = form.without(index).expr();
                    let rest = rest.as_int().map_or(Scalar::Index(rest), |number| Scalar::Const(number as f64));
                    Scalar::Const(form.coefficient(index) as f64) * Scalar::input(connector.as_str()) + rest
                }
                Scalar::Keep { element, .. } if element.symbols().contains(index) => {
                    let (name, dim) = (operation.name.clone(), self.time.dim.clone());
                    wrong = Some(RecurrenceError::Dropout { name, dim, at: operation.origin.clone().map(Box::new) });
                    part
                }
                _ => part,
            })),
            other => other,
        });
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        if !needed {
            return Ok((op, None));
        }
        let numbers = format!("{}.index", self.time.dim);
        let (container, _) = all_numbers(&numbers, &self.time.dim, operation);
        let own = with.get(index).cloned().unwrap_or_else(|| Expr::sym(self.index.as_str()));
        let data = self.slice(&container, Some((0, own)), None, vec![]);
        self.numbers = Some(numbers);
        Ok((op, Some(Operand { connector, data, subscripts: vec![], fill: None })))
    }
}
