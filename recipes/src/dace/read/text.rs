//! Steps as the text of a recipe.

use super::integer::{AffineInteger, Atom, Id};
use super::slot::{Made, Step};
use super::value::{BinaryOperator, ReductionOperator, TensorId, Value};
use crate::import::element::ElementType;
use crate::import::recipe::{StepIndex, Writer};
use crate::import::step::literal;
use indexmap::{IndexMap, IndexSet};

/// How tightly an operator binds.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Level {
    Comparison,
    Sum,
    Product,
    Factor,
}

/// Steps that outputs need, in an order in which a step stands below what it reads; those of a loop stand together.
pub fn ordered(made: &Made, outputs: &[TensorId]) -> Vec<usize> {
    let by_tensor: IndexMap<TensorId, usize> = made.steps.iter().enumerate().map(|(n, step)| (step.tensor, n)).collect();
    let reads: Vec<Vec<usize>> = made
        .steps
        .iter()
        .map(|step| {
            let mut found = IndexSet::new();
            tensors(&step.value, &mut found);
            found.into_iter().filter_map(|tensor| by_tensor.get(&tensor).copied()).collect()
        })
        .collect();
    let mut order = Order {
        reads: &reads,
        index: vec![None; reads.len()],
        low: vec![0; reads.len()],
        stack: vec![],
        on: vec![false; reads.len()],
        next: 0,
        found: vec![],
    };
    for tensor in outputs {
        if let Some(step) = by_tensor.get(tensor) {
            order.visit(*step);
        }
    }
    order.found
}

/// Strongly connected parts, what is read first (Tarjan, SIAM J. Comput. 1972).
struct Order<'a> {
    reads: &'a [Vec<usize>],
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    stack: Vec<usize>,
    on: Vec<bool>,
    next: usize,
    found: Vec<usize>,
}

impl Order<'_> {
    fn visit(&mut self, root: usize) {
        if self.index[root].is_some() {
            return;
        }
        let mut open: Vec<(usize, usize)> = vec![(root, 0)];
        while let Some((n, at)) = open.pop() {
            if at == 0 {
                self.index[n] = Some(self.next);
                self.low[n] = self.next;
                self.next += 1;
                self.stack.push(n);
                self.on[n] = true;
            } else {
                let before = self.reads[n][at - 1];
                self.low[n] = self.low[n].min(self.low[before]);
            }
            let mut next = at;
            let mut deeper = None;
            while let Some(read) = self.reads[n].get(next).copied() {
                next += 1;
                match self.index[read] {
                    None => {
                        deeper = Some(read);
                        break;
                    }
                    Some(index) if self.on[read] => self.low[n] = self.low[n].min(index),
                    Some(_) => {}
                }
            }
            if let Some(read) = deeper {
                open.push((n, next));
                open.push((read, 0));
                continue;
            }
            if Some(self.low[n]) == self.index[n] {
                let from = self.stack.iter().rposition(|m| *m == n).unwrap_or(0);
                let mut part = self.stack.split_off(from);
                part.iter().for_each(|m| self.on[*m] = false);
                part.sort_unstable();
                self.found.extend(part);
            }
        }
    }
}

/// The tensors that a value reads.
pub fn tensors(value: &Value, found: &mut IndexSet<TensorId>) {
    if let Value::Read { tensor, .. } = value {
        found.insert(*tensor);
    }
    for integer in value.integers() {
        inner_tensors(integer, found);
    }
    value.parts().into_iter().for_each(|part| tensors(part, found));
}

fn inner_tensors(integer: &AffineInteger, found: &mut IndexSet<TensorId>) {
    for (atom, _) in &integer.terms {
        match atom {
            Atom::Element(of) => tensors(of, found),
            Atom::Quotient(of, _) => inner_tensors(of, found),
            Atom::Index(_) => {}
        }
    }
}

impl Made {
    /// Gives numbers that name rows steps of their own, where they are more than an element at plain indices.
    pub fn settle_rows(&mut self) {
        let mut n = 0;
        while n < self.steps.len() {
            let value = std::mem::replace(&mut self.steps[n].value, Value::Undefined);
            let value = self.with_rows(value);
            self.steps[n].value = value;
            n += 1;
        }
    }

    fn with_rows(&mut self, value: Value) -> Value {
        match value {
            Value::Read { tensor, at, fill } => Value::Read { tensor, at: at.into_iter().map(|i| self.row_step(i)).collect(), fill },
            Value::Call(name, a) => Value::Call(name, Box::new(self.with_rows(*a))),
            Value::Binary(op, a, b) => Value::Binary(op, Box::new(self.with_rows(*a)), Box::new(self.with_rows(*b))),
            Value::Where(c, a, b) => Value::Where(Box::new(self.with_rows(*c)), Box::new(self.with_rows(*a)), Box::new(self.with_rows(*b))),
            Value::Reduce(combine, over, of) => Value::Reduce(combine, over, Box::new(self.with_rows(*of))),
            other => other,
        }
    }

    fn row_step(&mut self, integer: AffineInteger) -> AffineInteger {
        if !integer.terms.iter().any(|(atom, _)| matches!(atom, Atom::Element(_))) {
            return integer;
        }
        if let ([(Atom::Element(of), 1)], 0) = (integer.terms.as_slice(), integer.constant)
            && let Value::Read { at, tensor, .. } = &**of
        {
            let plain =
                at.iter().zip(&self.tensors[*tensor].sizes).all(|(i, size)| i.as_index().is_some_and(|id| self.indices.sizes[id] == *size));
            if plain {
                return integer;
            }
        }
        let read = self.step("row", &[], Value::Integer(integer), "the number of a row");
        AffineInteger::atom(Atom::Element(Box::new(read)))
    }
}

/// Writes steps; `names` are those of tensors.
pub struct StepText<'a> {
    pub made: &'a Made,
    pub names: &'a [String],
    pub writer: &'a mut Writer,
    used: IndexMap<usize, usize>,
    indices: IndexMap<Id, StepIndex>,
}

impl<'a> StepText<'a> {
    pub fn new(made: &'a Made, names: &'a [String], writer: &'a mut Writer) -> Self {
        StepText { made, names, writer, used: IndexMap::new(), indices: IndexMap::new() }
    }

    pub fn step(&mut self, step: &Step) {
        self.used.clear();
        self.indices.clear();
        let left: Vec<String> = step.left.iter().map(|id| self.index(*id)).collect();
        let mut text = self.value(&step.value, Level::Comparison, true);
        let missing: Vec<String> =
            step.left.iter().filter(|id| !step.value.mentions(**id)).map(|id| format!("0 * {}", self.index(*id))).collect();
        if !missing.is_empty() {
            text = format!("{} + {}", self.value(&step.value, Level::Sum, true), missing.join(" + "));
        }
        let name = &self.names[step.tensor];
        self.writer.step(&step.comment, format!("{name}[{}] = {text}", left.join(",")));
    }

    fn index(&mut self, id: Id) -> String {
        if let Some(index) = self.indices.get(&id) {
            return index.name.clone();
        }
        let index = self.writer.index(&mut self.used, self.made.indices.sizes[id].max(1) as usize);
        let name = index.name.clone();
        self.indices.insert(id, index);
        name
    }

    /// An integer; in expressions a quotient is a number like all others.
    fn integer(&mut self, integer: &AffineInteger) -> String {
        let mut text = String::new();
        let ordered = integer.terms.iter().filter(|(_, by)| *by > 0).chain(integer.terms.iter().filter(|(_, by)| *by < 0));
        for (n, (atom, by)) in ordered.enumerate() {
            if *by < 0 {
                text.push('-');
            } else if n > 0 {
                text.push('+');
            }
            if by.abs() != 1 {
                text.push_str(&format!("{}*", by.abs()));
            }
            text.push_str(&match atom {
                Atom::Index(id) => self.index(*id),
                Atom::Quotient(of, divisor) => {
                    let inner = self.integer(of);
                    if of.as_index().is_some() { format!("floor({inner} / {divisor})") } else { format!("floor(({inner}) / {divisor})") }
                }
                Atom::Element(of) => self.value(of, Level::Factor, false),
            });
        }
        match (integer.terms.is_empty(), integer.constant) {
            (true, constant) => constant.to_string(),
            (_, 0) => text,
            (_, constant) => format!("{text}{}{}", if constant < 0 { "-" } else { "+" }, constant.abs()),
        }
    }

    fn read(&mut self, tensor: TensorId, at: &[AffineInteger], fill: Option<f64>) -> String {
        let sizes = self.made.tensors[tensor].sizes.clone();
        let name = self.names[tensor].clone();
        if sizes.is_empty() {
            return name;
        }
        let mut outside = false;
        let mut places = vec![];
        for (integer, size) in at.iter().zip(&sizes) {
            let has_element = integer.terms.iter().any(|(atom, _)| matches!(atom, Atom::Element(_)));
            let (low, high) = integer.bounds_of_terms(&self.made.indices);
            outside |= !(has_element || low.is_some_and(|low| low >= 0) && high.is_some_and(|high| high < *size));
            let text = self.integer(integer);
            let plain = integer.as_index().is_some_and(|id| self.made.indices.sizes[id] == *size);
            // A plain index reads an axis of its own size.
            places.push(if integer.as_index().is_some() && !plain { format!("{text}+0") } else { text });
        }
        match fill.or(outside.then_some(0.0)) {
            Some(fill) => format!("{name}[{} else {}]", places.join(","), number(fill)),
            None => format!("{name}[{}]", places.join(",")),
        }
    }

    /// A value within what binds as tightly as `level`; `sums` says that products may sum their shared indices.
    fn value(&mut self, value: &Value, level: Level, sums: bool) -> String {
        let (own, text) = match value {
            Value::Number(n) => {
                let text = number(*n);
                (if text.starts_with('-') { Level::Sum } else { Level::Factor }, text)
            }
            Value::Prior | Value::Undefined | Value::Carried(..) => (Level::Factor, "0".into()),
            Value::Integer(integer) => {
                let one = integer.constant == 0 && integer.terms.len() == 1 && integer.terms[0].1 == 1;
                (if one { Level::Factor } else { Level::Sum }, self.integer(integer))
            }
            Value::Read { tensor, at, fill } => (Level::Factor, self.read(*tensor, at, *fill)),
            Value::Call("-", of) => (Level::Sum, format!("-{}", self.value(of, Level::Factor, false))),
            Value::Call(name, of) => (Level::Factor, format!("{name}({})", self.value(of, Level::Comparison, false))),
            Value::Binary(op @ (BinaryOperator::Max | BinaryOperator::Min | BinaryOperator::Pow), a, b) => {
                let name = match op {
                    BinaryOperator::Max => "max",
                    BinaryOperator::Min => "min",
                    _ => "pow",
                };
                let (a, b) = (self.value(a, Level::Comparison, false), self.value(b, Level::Comparison, false));
                (Level::Factor, format!("{name}({a}, {b})"))
            }
            Value::Binary(op, a, b) => {
                let (own, left, right, sign) = match op {
                    BinaryOperator::Add => (Level::Sum, Level::Sum, Level::Sum, "+"),
                    BinaryOperator::Sub => (Level::Sum, Level::Sum, Level::Product, "-"),
                    BinaryOperator::Mul => (Level::Product, Level::Product, Level::Factor, "*"),
                    BinaryOperator::Div => (Level::Product, Level::Product, Level::Factor, "/"),
                    BinaryOperator::Lt => (Level::Comparison, Level::Sum, Level::Sum, "<"),
                    BinaryOperator::Le => (Level::Comparison, Level::Sum, Level::Sum, "<="),
                    BinaryOperator::Gt => (Level::Comparison, Level::Sum, Level::Sum, ">"),
                    BinaryOperator::Ge => (Level::Comparison, Level::Sum, Level::Sum, ">="),
                    BinaryOperator::Eq => (Level::Comparison, Level::Sum, Level::Sum, "=="),
                    _ => (Level::Comparison, Level::Sum, Level::Sum, "!="),
                };
                let scaled = *op == BinaryOperator::Mul && a.number().is_some();
                let inner = sums && (matches!(op, BinaryOperator::Add | BinaryOperator::Sub) || scaled);
                let (a, b) = (self.value(a, left, inner), self.value(b, if scaled { Level::Product } else { right }, inner));
                (own, format!("{a} {sign} {b}"))
            }
            Value::Where(c, a, b) => {
                let parts: Vec<String> = [c, a, b].into_iter().map(|part| self.value(part, Level::Comparison, false)).collect();
                (Level::Factor, format!("where({})", parts.join(", ")))
            }
            Value::Reduce(combine, over, of) => self.reduction(*combine, over, of, sums),
        };
        if own < level { format!("({text})") } else { text }
    }

    fn reduction(&mut self, combine: ReductionOperator, over: &[Id], of: &Value, sums: bool) -> (Level, String) {
        let factors = factors(of);
        let shared = |id: &Id| factors.iter().filter(|factor| factor.mentions(*id)).count() >= 2;
        let plain = |factor: &&Value| matches!(factor, Value::Read { .. } | Value::Number(_));
        if sums && combine == ReductionOperator::Sum && over.iter().all(shared) && factors.iter().all(plain) {
            return (Level::Product, self.value(of, Level::Product, false));
        }
        let name = match combine {
            ReductionOperator::Max => "max",
            ReductionOperator::Min => "min",
            _ => "sum",
        };
        let inner = self.value(of, Level::Comparison, false);
        let names: Vec<String> = over.iter().map(|id| self.index(*id)).collect();
        let over = if names.len() == 1 { names[0].clone() } else { format!("[{}]", names.join(", ")) };
        (Level::Factor, format!("{name}({inner}, over: {over})"))
    }
}

fn factors(value: &Value) -> Vec<&Value> {
    match value {
        Value::Binary(BinaryOperator::Mul, a, b) => [factors(a), factors(b)].concat(),
        one => vec![one],
    }
}

/// A number as a step has it.
fn number(value: f64) -> String {
    let text = literal(value, ElementType::F64);
    match text.strip_prefix('(').and_then(|t| t.strip_suffix(')')) {
        Some(inner) if inner.starts_with('-') => inner.to_string(),
        _ => text,
    }
}
