//! What containers hold: one expression for all elements of each, and the steps that some of them become.

use super::integer::{AffineInteger, Atom, Id, StepIndices};
use super::value::{ReductionOperator, TensorId, Value};
use indexmap::IndexMap;
use std::cell::RefCell;
use std::rc::Rc;

/// Why something cannot be written.
#[derive(Clone, Debug, PartialEq)]
pub enum UnreadReason {
    Why(String),
    /// Something before it was refused, and that is reported.
    Earlier,
}

pub fn stop<T>(why: impl Into<String>) -> Result<T, UnreadReason> {
    Err(UnreadReason::Why(why.into()))
}

/// The content of a container: the value of an element as an expression of its place.
#[derive(Clone, Debug)]
pub struct ContainerContent {
    /// An index for each axis.
    pub axes: Vec<Id>,
    /// `None` after a refusal.
    pub body: Option<Value>,
    /// The container.
    pub name: String,
    /// What stands above a step that is made of it.
    pub comment: String,
    /// What [`Value::Prior`] stands for where the content is read.
    pub prior: Option<Value>,
    /// What has been written since a nested SDFG began, where that is all that has changed.
    pub writes: Option<Vec<Write>>,
    /// Whether a step keeps axes of size 1, as an output must have them.
    pub whole_shape: bool,
}

pub type SlotRef = Rc<RefCell<ContainerContent>>;

/// A tensor of the recipe.
pub struct TensorInfo {
    /// The container that it is called after.
    pub wanted: String,
    pub sizes: Vec<i64>,
    /// Whether it is given, and not a step.
    pub given: bool,
    /// Whether its elements are whole numbers.
    pub integral: bool,
}

pub struct Step {
    pub tensor: TensorId,
    pub left: Vec<Id>,
    pub value: Value,
    pub comment: String,
}

/// Operations and elements of a scalar within a map up to which it is written out where it is read.
const INLINE: usize = 24;
/// The same of a value that is written to a part of a container.
const PART: usize = 8;
/// Factors that a product is written out with.
const FACTORS: i64 = 64;

/// What has been read so far of a program.
#[derive(Default)]
pub struct Made {
    pub indices: StepIndices,
    pub tensors: Vec<TensorInfo>,
    pub steps: Vec<Step>,
}

/// Values at points of a map, on their way into a container.
#[derive(Clone, Debug)]
pub struct Write {
    /// Indices that the points are counted by.
    pub points: Vec<Id>,
    /// Where each of them writes.
    pub at: Vec<AffineInteger>,
    pub body: Value,
    pub combine: Option<ReductionOperator>,
    /// Which of them do.
    pub guard: Value,
    pub comment: String,
}

/// Whether a value is no more than an element.
pub fn is_cheap(value: &Value) -> bool {
    let plain = |at: &[AffineInteger]| !at.iter().any(|i| i.terms.iter().any(|(atom, _)| matches!(atom, Atom::Element(_))));
    match value {
        Value::Number(_) | Value::Integer(_) | Value::Prior | Value::Undefined | Value::Carried(..) => true,
        Value::Read { at, .. } => plain(at),
        _ => false,
    }
}

fn has_reduction(value: &Value) -> bool {
    value.any(&|v| matches!(v, Value::Reduce(..)))
}

impl Made {
    pub fn tensor(&mut self, wanted: &str, sizes: Vec<i64>, given: bool, integral: bool) -> TensorId {
        self.tensors.push(TensorInfo { wanted: wanted.to_string(), sizes, given, integral });
        self.tensors.len() - 1
    }

    pub fn fresh(&mut self, sizes: &[i64]) -> Vec<Id> {
        sizes.iter().map(|size| self.indices.add(*size)).collect()
    }

    pub fn substituted(&self, value: &Value, from: &[Id], to: &[AffineInteger]) -> Value {
        let by: IndexMap<Id, AffineInteger> = from.iter().copied().zip(to.iter().cloned()).collect();
        value.substitute(&by, &self.indices)
    }

    /// A tensor's element; what its bounds do not keep inside is 0 outside.
    pub fn read(&self, tensor: TensorId, at: Vec<AffineInteger>) -> Value {
        Value::Read { tensor, at, fill: None }
    }

    /// Makes a step of a value over indices, before those that stand free in it.
    pub fn step(&mut self, wanted: &str, axes: &[Id], value: Value, comment: &str) -> Value {
        self.stepped(wanted, axes, value, comment, true)
    }

    /// The same, whose axes are kept as they are unless they may be parted.
    pub fn stepped(&mut self, wanted: &str, axes: &[Id], value: Value, comment: &str, parted: bool) -> Value {
        let mut left: Vec<Id> = vec![];
        value.each_index(&mut |id| {
            if !left.contains(&id) && !axes.contains(&id) {
                left.push(id);
            }
        });
        left.sort_unstable();
        left.extend(axes);
        let (left, at, value) = if parted {
            self.digits(left, value)
        } else {
            (left.clone(), left.iter().map(|id| AffineInteger::index(*id)).collect(), value)
        };
        let sizes = left.iter().map(|id| self.indices.sizes[*id]).collect();
        let integral = self.is_integral(&value);
        let tensor = self.tensor(wanted, sizes, false, integral);
        self.steps.push(Step { tensor, left, value, comment: comment.to_string() });
        self.read(tensor, at)
    }

    /// Parts indices of a step that its value divides: an axis that two were merged into is two dims again.
    fn digits(&mut self, left: Vec<Id>, value: Value) -> (Vec<Id>, Vec<AffineInteger>, Value) {
        let mut divisors: IndexMap<Id, Vec<i64>> = IndexMap::new();
        each_quotient(&value, &mut |of, divisor| {
            if let Some(id) = of.as_index().filter(|id| left.contains(id)) {
                divisors.entry(id).or_default().push(divisor);
            }
        });
        let (mut ids, mut at) = (vec![], vec![]);
        let mut by: IndexMap<Id, AffineInteger> = IndexMap::new();
        for id in left {
            let size = self.indices.sizes[id];
            let mut below: Vec<i64> = divisors.get(&id).cloned().unwrap_or_default();
            below.push(1);
            below.push(size);
            below.sort_unstable();
            below.dedup();
            if below.len() < 3 || below.windows(2).any(|pair| pair[1] % pair[0] != 0) {
                ids.push(id);
                at.push(AffineInteger::index(id));
                continue;
            }
            let mut whole = AffineInteger::number(0);
            for pair in below.windows(2).rev() {
                let digit = self.indices.add(pair[1] / pair[0]);
                whole = whole.plus(&AffineInteger::index(digit), pair[0]);
                let high = AffineInteger::index(id).floor_div(pair[0], &self.indices);
                at.push(high.minus(&AffineInteger::index(id).floor_div(pair[1], &self.indices).times(pair[1] / pair[0])));
                ids.push(digit);
            }
            by.insert(id, whole);
        }
        let value = value.substitute(&by, &self.indices);
        (ids, at, value)
    }

    /// Makes a step of a container's content, unless it is a plain element already.
    pub fn settle(&mut self, slot: &SlotRef) {
        let ContainerContent { axes, body: Some(body), name, comment, prior, whole_shape, .. } = slot.borrow().clone() else { return };
        if is_cheap(&body) {
            return;
        }
        let value = match &prior {
            Some(prior) => body.with_prior(prior, &self.indices),
            None => body,
        };
        let kept: Vec<Id> = axes.iter().copied().filter(|id| whole_shape || self.indices.sizes[*id] != 1).collect();
        let zero: IndexMap<Id, AffineInteger> =
            axes.iter().filter(|id| !kept.contains(id)).map(|id| (*id, AffineInteger::number(0))).collect();
        let value = value.substitute(&zero, &self.indices);
        let read = self.stepped(&name, &kept, value, &comment, !whole_shape);
        slot.borrow_mut().body = Some(read);
        slot.borrow_mut().prior = None;
    }

    /// An element of a container.
    ///
    /// # Errors
    /// [`Stop::Earlier`] where its content was refused.
    pub fn element(&mut self, slot: &SlotRef, at: &[AffineInteger]) -> Result<Value, UnreadReason> {
        let found = self.peeked(slot, at)?;
        if is_cheap(&found) {
            return Ok(if found == Value::Undefined { Value::Number(0.0) } else { found });
        }
        let (single, local) = {
            let slot = slot.borrow();
            let mut local = false;
            if let Some(body) = &slot.body {
                body.each_index(&mut |id| local |= !slot.axes.contains(&id));
            }
            (slot.axes.iter().all(|id| self.indices.sizes[*id] == 1), local)
        };
        if single && local && found.weight() <= INLINE && !has_reduction(&found) {
            return Ok(found);
        }
        self.settle(slot);
        self.peeked(slot, at)
    }

    /// An element as its container's expression says it.
    pub fn peeked(&self, slot: &SlotRef, at: &[AffineInteger]) -> Result<Value, UnreadReason> {
        let slot = slot.borrow();
        let Some(body) = &slot.body else { return Err(UnreadReason::Earlier) };
        if at.len() != slot.axes.len() {
            return stop(format!("`{}` has {} axes, and {} subscripts read it", slot.name, slot.axes.len(), at.len()));
        }
        let body = match &slot.prior {
            Some(prior) => body.with_prior(prior, &self.indices),
            None => body.clone(),
        };
        Ok(self.substituted(&body, &slot.axes, at))
    }

    /// An integer that a value is, for subscripts: what is computed is a step first.
    pub fn row(&mut self, value: Value, name: &str) -> AffineInteger {
        match value {
            Value::Integer(integer) => integer,
            Value::Number(n) => AffineInteger::number(n as i64),
            Value::Read { fill: None, .. } if is_cheap(&value) => AffineInteger::atom(Atom::Element(Box::new(value))),
            other => {
                let read = self.step(&format!("{name}_row"), &[], other, "the number of a row");
                AffineInteger::atom(Atom::Element(Box::new(read)))
            }
        }
    }

    pub fn is_integral(&self, value: &Value) -> bool {
        use super::value::BinaryOperator;
        match value {
            Value::Number(n) => n.fract() == 0.0,
            Value::Integer(_) => true,
            Value::Read { tensor, .. } => self.tensors[*tensor].integral,
            Value::Call(name, of) => *name == "floor" || (matches!(*name, "-" | "abs") && self.is_integral(of)),
            Value::Binary(op, a, b) => {
                op.is_comparison()
                    || (!matches!(op, BinaryOperator::Div | BinaryOperator::Pow) && self.is_integral(a) && self.is_integral(b))
            }
            Value::Where(_, a, b) => self.is_integral(a) && self.is_integral(b),
            Value::Reduce(_, _, of) => self.is_integral(of),
            Value::Carried(..) | Value::Prior | Value::Undefined => false,
        }
    }

    /// The content of a container of this shape after a write.
    ///
    /// # Errors
    /// Places that depend on what tensors hold; points that write one element without a word how they combine.
    pub fn written(&mut self, old: &SlotRef, write: &Write) -> Result<SlotRef, UnreadReason> {
        let before = old.borrow().clone();
        let Some(old_body) = before.body.clone() else { return Err(UnreadReason::Earlier) };
        if write.at.len() != before.axes.len() {
            return stop(format!("`{}` has {} axes, and {} subscripts write it", before.name, before.axes.len(), write.at.len()));
        }
        let sizes: Vec<i64> = before.axes.iter().map(|id| self.indices.sizes[*id]).collect();
        let axes = self.fresh(&sizes);
        let places: Vec<AffineInteger> = axes.iter().map(|id| AffineInteger::index(*id)).collect();
        let old_value = self.substituted(&old_body, &before.axes, &places);
        let Solved { by, conditions, left } = self.solve(&axes, write)?;
        let body = match write.combine {
            Some(combine) if !write.body.any(&|v| *v == Value::Prior) => combine.join(Value::Prior, write.body.clone()),
            _ => write.body.clone(),
        };
        let mut guards: Vec<Value> = vec![write.guard.substitute(&by, &self.indices)];
        guards.extend(conditions);
        let all = |guards: &mut dyn Iterator<Item = Value>| guards.fold(Value::Number(1.0), Value::both);
        let mentions = |guard: &Value| left.iter().any(|id| guard.mentions(*id));
        let inner = all(&mut guards.iter().filter(|g| mentions(g)).cloned());
        let outer = all(&mut guards.iter().filter(|g| !mentions(g)).cloned());
        let comment = write.comment.clone();
        let is_part = outer.number() != Some(1.0);
        let mut outer_indices = false;
        outer.each_index(&mut |id| outer_indices |= !axes.contains(&id));

        let mut value = body.substitute(&by, &self.indices);
        let needs = left.iter().any(|id| value.mentions(*id) || inner.mentions(*id));
        if needs || (!left.is_empty() && write.combine.is_some()) {
            let Some((combine, added)) = accumulated(&value) else {
                return stop("several points of a map write one element, and no wcr of its memlet says how they combine");
            };
            let added = Value::choice(inner, added.clone(), Value::Number(combine.identity()));
            value = combine.join(Value::Prior, self.reduced(combine, &left, added)?);
        }
        // What is written to a part is a step of its own, unless it is short.
        let solved: Vec<Id> = write.points.iter().copied().filter(|id| by.contains_key(id)).collect();
        let is_long = value.weight() > PART || outer_indices || has_reduction(&value);
        if is_part && is_long && !is_cheap(&value) && left.is_empty() && write.combine.is_none() && !body.any(&|v| *v == Value::Prior) {
            let kept: Vec<Id> = solved.iter().copied().filter(|id| body.mentions(*id)).collect();
            let read = self.step(&before.name, &kept, body.clone(), &comment);
            value = read.substitute(&by, &self.indices);
        }
        let prior = match (&old_value, accumulated(&value)) {
            (Value::Undefined, Some((combine, _))) => Value::Number(combine.identity()),
            (Value::Number(n), Some((combine, _))) if combine.is_neutral(*n) => Value::Number(combine.identity()),
            _ => old_value.clone(),
        };
        let value = value.with_prior(&prior, &self.indices);
        let body = Value::choice(outer, value, old_value);
        let prior = before.prior.as_ref().map(|prior| self.substituted(prior, &before.axes, &places));
        let mut writes = before.writes.clone();
        if let Some(writes) = &mut writes {
            writes.push(write.clone());
        }
        Ok(Rc::new(RefCell::new(ContainerContent { axes, body: Some(body), comment, prior, writes, ..before })))
    }

    /// A reduction over those indices that the operand has; one that it lacks repeats it.
    ///
    /// # Errors
    /// Products of more than 64 factors.
    pub fn reduced(&self, combine: ReductionOperator, over: &[Id], of: Value) -> Result<Value, UnreadReason> {
        use super::value::BinaryOperator;
        let (over, repeated): (Vec<Id>, Vec<Id>) = over.iter().copied().partition(|id| of.mentions(*id));
        let times: i64 = repeated.iter().map(|id| self.indices.sizes[*id]).product();
        let of = if over.is_empty() {
            of
        } else if combine == ReductionOperator::Product {
            self.factors(&over, of)?
        } else {
            Value::Reduce(combine, over, Box::new(of))
        };
        Ok(match combine {
            _ if times == 1 => of,
            ReductionOperator::Sum => Value::binary(BinaryOperator::Mul, Value::Number(times as f64), of),
            ReductionOperator::Product => Value::binary(BinaryOperator::Pow, of, Value::Number(times as f64)),
            _ => of,
        })
    }

    /// A recipe has no product over an index: the factors are written out.
    fn factors(&self, over: &[Id], of: Value) -> Result<Value, UnreadReason> {
        let count: i64 = over.iter().map(|id| self.indices.sizes[*id]).product();
        if count > FACTORS {
            return stop(format!("a product of {count} factors is written out, and {FACTORS} are the most"));
        }
        let mut product = vec![of];
        for id in over {
            let one = |factor: &Value, n: i64| self.substituted(factor, &[*id], &[AffineInteger::number(n)]);
            product = product.iter().flat_map(|factor| (0..self.indices.sizes[*id]).map(move |n| one(factor, n))).collect();
        }
        Ok(product.into_iter().fold(Value::Number(1.0), |a, b| ReductionOperator::Product.join(a, b)))
    }

    /// The points that write an element.
    fn solve(&self, axes: &[Id], write: &Write) -> Result<Solved, UnreadReason> {
        let mut by: IndexMap<Id, AffineInteger> = IndexMap::new();
        for id in write.points.iter().filter(|id| self.indices.sizes[**id] == 1) {
            by.insert(*id, AffineInteger::number(0));
        }
        let mut conditions = vec![];
        let mut waiting: Vec<usize> = (0..axes.len()).collect();
        while !waiting.is_empty() {
            let open = |at: &AffineInteger, by: &IndexMap<Id, AffineInteger>| -> Vec<Id> {
                write.points.iter().copied().filter(|id| !by.contains_key(id) && at.mentions(*id)).collect()
            };
            // Axes that fewer points stand open for come first.
            waiting.sort_by_key(|n| std::cmp::Reverse(open(&write.at[*n], &by).len()));
            let Some(axis) = waiting.pop() else { break };
            let at = write.at[axis].substitute(&by, &self.indices);
            let own = AffineInteger::index(axes[axis]);
            if at.terms.iter().any(|(atom, _)| matches!(atom, Atom::Element(_))) {
                return stop("it writes at places that a tensor holds (a scatter), which recipes do not have");
            }
            let ids = open(&at, &by);
            let mut terms: Vec<(Id, i64)> = vec![];
            for id in &ids {
                match at.coefficient(*id) {
                    Some(by) => terms.push((*id, by)),
                    None => return stop("it writes at places that are quotients of its points"),
                }
            }
            if terms.is_empty() {
                conditions.push(Value::equal(&own, &at, &self.indices));
                continue;
            }
            terms.sort_by_key(|(id, by)| (std::cmp::Reverse(by.abs()), std::cmp::Reverse(self.indices.sizes[*id])));
            let unopened = terms.iter().fold(at.clone(), |rest, (id, by)| rest.plus(&AffineInteger::index(*id), -by));
            let mut rest = own.minus(&unopened);
            let positive = terms.iter().all(|(_, by)| *by > 0);
            let below = |n: usize| -> i64 { terms[n + 1..].iter().map(|(id, by)| by * (self.indices.sizes[*id] - 1)).sum() };
            let unique = positive && (0..terms.len()).all(|n| terms[n].1 > below(n));
            if !unique && terms.len() > 1 {
                // One is solved for; the others stay, and are reduced over.
                let others = terms.split_off(1);
                rest = others.iter().fold(rest, |rest, (id, by)| rest.plus(&AffineInteger::index(*id), -by));
            }
            for (n, (id, factor)) in terms.iter().enumerate() {
                let (signed, factor) = if *factor < 0 { (rest.times(-1), -factor) } else { (rest.clone(), *factor) };
                let quotient = signed.floor_div(factor, &self.indices);
                if n + 1 == terms.len() {
                    conditions.push(Value::equal(&signed, &quotient.times(factor), &self.indices));
                } else {
                    rest = rest.minus(&quotient.times(factor));
                }
                conditions.push(Value::at_least_zero(quotient.clone(), &self.indices));
                conditions.push(Value::at_least_zero(quotient.times(-1).add(self.indices.sizes[*id] - 1), &self.indices));
                by.insert(*id, quotient);
            }
        }
        let conditions = conditions.iter().map(|c| c.substitute(&by, &self.indices)).collect();
        let left = write.points.iter().copied().filter(|id| !by.contains_key(id)).collect();
        // Those that were solved for in terms of others are in terms of the axes now.
        let known = by.clone();
        for solved in by.values_mut() {
            *solved = solved.substitute(&known, &self.indices);
        }
        Ok(Solved { by, conditions, left })
    }
}

/// Calls `f` with every quotient's dividend and divisor.
fn each_quotient(value: &Value, f: &mut dyn FnMut(&AffineInteger, i64)) {
    fn integer(i: &AffineInteger, f: &mut dyn FnMut(&AffineInteger, i64)) {
        for (atom, _) in &i.terms {
            match atom {
                Atom::Quotient(of, divisor) => {
                    f(of, *divisor);
                    integer(of, f);
                }
                Atom::Element(of) => each_quotient(of, f),
                Atom::Index(_) => {}
            }
        }
    }
    value.integers().iter().for_each(|i| integer(i, f));
    value.parts().into_iter().for_each(|part| each_quotient(part, f));
}

struct Solved {
    by: IndexMap<Id, AffineInteger>,
    conditions: Vec<Value>,
    /// Points that any axis leaves open.
    left: Vec<Id>,
}

/// What is added to the value before, and how.
pub fn accumulated(value: &Value) -> Option<(ReductionOperator, &Value)> {
    use super::value::BinaryOperator;
    let Value::Binary(op, a, b) = value else { return None };
    let combine = match op {
        BinaryOperator::Add => ReductionOperator::Sum,
        BinaryOperator::Mul => ReductionOperator::Product,
        BinaryOperator::Max => ReductionOperator::Max,
        BinaryOperator::Min => ReductionOperator::Min,
        _ => return None,
    };
    let free = |v: &Value| !v.any(&|v| *v == Value::Prior);
    match (&**a, &**b) {
        (Value::Prior, b) if free(b) => Some((combine, b)),
        (a, Value::Prior) if free(a) => Some((combine, a)),
        _ => None,
    }
}
