//! Loops with a counter: each container that a loop writes is a tensor with the time as an index, or a sum over it; or the loop is
//! written out.
//!
//! The body runs once, for any time. What a container held before that time stands for itself (`Value::Carried`) until the whole body is
//! known; then it is said by the tensor at the time before:
//!
//! ```text
//! for t: h = tanh(h @ w + x[t])     h[t,u] = tanh(where(t == 0, h0[u], h[t-1,u]) …)    all of h
//! for t: y[t] = y[t-1] * a[t]       y[t] = where(t == 0, y0, y[t-1]) * a[t]            one place of y
//! for t: s = s + x[t]               s = s0 + sum(x[t], over: t)                        a sum
//! ```

use super::control::{Counted, LoopBody, changed, forked, looped, named};
use super::frame::{SdfgFrame, Symbol};
use super::integer::{AffineInteger, Atom, Id};
use super::reader::Reader;
use super::slot::{ContainerContent, SlotRef, UnreadReason, is_cheap, stop};
use super::sums::{is_carried_at, place, sum_of};
use super::value::{ReductionOperator, Value};
use indexmap::{IndexMap, IndexSet};
use std::cell::RefCell;
use std::rc::Rc;

/// Times up to which a loop is written out.
const WRITTEN_OUT: usize = 64;
/// Times that a loop has at most.
const TIMES: usize = 1 << 20;

type Done<T> = Result<T, UnreadReason>;

/// How a container changes in a loop.
enum Change {
    /// All of it, at every time: its new value.
    Whole(Value),
    /// Places of its axes that the time fixes, and the value there.
    Part { places: Vec<(usize, AffineInteger)>, value: Value },
}

/// A loop whose body has run once.
struct Run {
    id: Id,
    time: Id,
    times: i64,
    reversed: bool,
    /// What containers held before the loop.
    before: IndexMap<String, SlotRef>,
    /// Their axes, which the values of `changes` are over.
    axes: IndexMap<String, Vec<Id>>,
    changes: IndexMap<String, Change>,
    /// Containers that are named in the body alone: nothing reads what the last time leaves in them.
    local: IndexSet<String>,
}

impl Reader {
    /// # Errors
    /// Loops whose times are not known, and bodies that recipes cannot say.
    pub fn counted<'g>(&mut self, frame: &mut SdfgFrame<'g>, counted: &Counted<'g>) -> Done<()> {
        let times = self.times(frame, counted)?;
        let last = times.last().copied();
        let mut result = Ok(());
        if times.len() == 1 {
            result = self.written_out(frame, counted, &times);
        } else if !times.is_empty() {
            result = self.at_all_times(frame, counted, &times);
        }
        if let Some(last) = last.filter(|_| result.is_ok()) {
            frame.symbols.insert(counted.name.clone(), Symbol::Integer(AffineInteger::number(last)));
            if let Ok(next) = self.integer(frame, &counted.next) {
                frame.symbols.insert(counted.name.clone(), Symbol::Integer(next));
            }
        }
        result
    }

    /// The values of a counter.
    fn times(&mut self, frame: &mut SdfgFrame, counted: &Counted) -> Done<Vec<i64>> {
        let label = &counted.label;
        let begin = match frame.symbols.get(&counted.name) {
            Some(Symbol::Integer(begin)) => begin.constant(),
            _ => None,
        };
        let mut time = begin.ok_or_else(|| UnreadReason::Why(format!("the loop `{label}` begins at what an index or a tensor says")))?;
        let mut times = vec![];
        let kept = frame.symbols.get(&counted.name).cloned();
        let found = loop {
            frame.symbols.insert(counted.name.clone(), Symbol::Integer(AffineInteger::number(time)));
            let goes_on = match self.condition(frame, &counted.condition)?.number() {
                Some(0.0) => counted.inverted && times.is_empty(),
                Some(_) => true,
                None => break stop(format!("how often the loop `{label}` runs depends on what an index or a tensor says")),
            };
            if !goes_on {
                break Ok(times);
            }
            times.push(time);
            if times.len() > TIMES {
                break stop(format!("the loop `{label}` runs more than {TIMES} times"));
            }
            match self.integer(frame, &counted.next)?.constant() {
                Some(next) => time = next,
                None => break stop(format!("the counter of the loop `{label}` depends on an index")),
            }
        };
        if let Some(kept) = kept {
            frame.symbols.insert(counted.name.clone(), kept);
        }
        found
    }

    fn body<'g>(&mut self, frame: &mut SdfgFrame<'g>, body: LoopBody<'g>) -> Done<()> {
        match body {
            LoopBody::Region(region) => self.run(frame, region, region.start, None),
            LoopBody::Guarded(region, edge, header) => {
                let edge = &region.edges[edge];
                self.assign(frame, edge);
                self.run(frame, region, edge.to, Some(header))
            }
        }
    }

    fn written_out<'g>(&mut self, frame: &mut SdfgFrame<'g>, counted: &Counted<'g>, times: &[i64]) -> Done<()> {
        for time in times {
            frame.symbols.insert(counted.name.clone(), Symbol::Integer(AffineInteger::number(*time)));
            self.body(frame, counted.body)?;
        }
        Ok(())
    }

    fn at_all_times<'g>(&mut self, frame: &mut SdfgFrame<'g>, counted: &Counted<'g>, times: &[i64]) -> Done<()> {
        let (steps, problems) = (self.made.steps.len(), self.problems.len());
        let why = if self.unrolled {
            None
        } else {
            // An attempt changes copies of what the containers hold.
            let mut attempt = copied(frame);
            let result = self.recurrence(&mut attempt, counted, times);
            let more: Vec<_> = self.problems.drain(problems..).collect();
            match result {
                Ok(()) if more.is_empty() => {
                    frame.slots = attempt.slots;
                    return Ok(());
                }
                Ok(()) => {
                    if times.len() > WRITTEN_OUT {
                        frame.slots = attempt.slots;
                        self.problems.extend(more);
                        return Ok(());
                    }
                    None
                }
                Err(why) => Some(why),
            }
        };
        self.made.steps.truncate(steps);
        if times.len() > WRITTEN_OUT {
            let why = match why {
                Some(UnreadReason::Why(why)) => why,
                Some(UnreadReason::Earlier) => return Err(UnreadReason::Earlier),
                None => "it is no loop over time that a recipe has".into(),
            };
            return stop(format!(
                "the loop `{}` of {} times: {why}; loops of up to {WRITTEN_OUT} times are written out",
                counted.label,
                times.len()
            ));
        }
        self.written_out(frame, counted, times)
    }

    /// Says a loop by tensors that have the time as an index.
    fn recurrence<'g>(&mut self, frame: &mut SdfgFrame<'g>, counted: &Counted<'g>, times: &[i64]) -> Done<()> {
        let step = times[1] - times[0];
        if times.windows(2).any(|pair| pair[1] - pair[0] != step) || step == 0 {
            return stop("its counter does not go on by one number");
        }
        let (mut written, mut assigned) = (IndexSet::new(), IndexSet::new());
        let (mut all, mut inside) = (IndexMap::new(), IndexMap::new());
        named(&frame.sdfg.region, None, &mut all);
        match counted.body {
            LoopBody::Region(region) => {
                changed(region, None, &mut written, &mut assigned);
                named(region, None, &mut inside);
            }
            LoopBody::Guarded(region, _, header) => {
                let within = looped(region, header);
                named(region, Some(&within), &mut inside);
                changed(region, Some(&within), &mut written, &mut assigned);
                assigned
                    .extend(region.edges.iter().filter(|e| e.from == header).flat_map(|e| e.assignments.iter().map(|(n, _)| n.clone())));
            }
        }
        // A symbol that one time hands to the next has no value here.
        frame.symbols.retain(|name, _| !assigned.contains(name));
        let reversed = step < 0;
        let time = self.made.indices.add(times.len() as i64);
        let id = time;
        let first = if reversed { times[times.len() - 1] } else { times[0] };
        let at = AffineInteger::number(first).plus(&AffineInteger::index(time), step.abs());
        frame.symbols.insert(counted.name.clone(), Symbol::Integer(at));
        let mut run = Run {
            id,
            time,
            times: times.len() as i64,
            reversed,
            before: IndexMap::new(),
            axes: IndexMap::new(),
            changes: IndexMap::new(),
            local: IndexSet::new(),
        };
        for name in &written {
            let Some(array) = frame.sdfg.arrays.get(name) else { continue };
            if array.transient && all.get(name) == inside.get(name) {
                run.local.insert(name.clone());
            }
            let shape = self.shape(frame, array)?;
            let before = match frame.slots.get(name) {
                Some(before) => before.clone(),
                None => self.empty(name, &shape, false),
            };
            if before.borrow().body.is_none() {
                return Err(UnreadReason::Earlier);
            }
            let sizes: Vec<i64> = before.borrow().axes.iter().map(|id| self.made.indices.sizes[*id]).collect();
            let axes = self.made.fresh(&sizes);
            let at = axes.iter().map(|id| AffineInteger::index(*id)).collect();
            let slot = ContainerContent {
                axes,
                body: Some(Value::Carried(id, name.clone(), at)),
                prior: None,
                writes: None,
                ..before.borrow().clone()
            };
            run.before.insert(name.clone(), before);
            frame.slots.insert(name.clone(), Rc::new(RefCell::new(slot)));
        }
        let steps = self.made.steps.len();
        let problems = self.problems.len();
        self.body(frame, counted.body)?;
        if self.problems.len() > problems {
            return Ok(());
        }
        self.close(frame, run, steps)
    }

    /// Puts tensors in the place of what containers held before each time.
    fn close(&mut self, frame: &mut SdfgFrame, mut run: Run, steps: usize) -> Done<()> {
        let mut sums: IndexMap<String, (ReductionOperator, Value, Value)> = IndexMap::new();
        let names: Vec<String> = run.before.keys().cloned().collect();
        for name in &names {
            let slot = frame.slots[name].borrow().clone();
            let Some(body) = slot.body.clone() else { return Err(UnreadReason::Earlier) };
            run.axes.insert(name.clone(), slot.axes.clone());
            if is_carried_at(&body, run.id, name, &slot.axes, &[], &self.made.indices) {
                continue;
            }
            if let Some((places, value)) = self.part(&run, name, &slot.axes, &body) {
                run.changes.insert(name.clone(), Change::Part { places, value });
                continue;
            }
            run.changes.insert(name.clone(), Change::Whole(body));
        }
        // What nothing reads but its own sum.
        for name in &names {
            let Some(Change::Whole(body)) = run.changes.get(name) else { continue };
            let (looked, through) = self.looked_through(body, steps);
            let own = |v: &Value| matches!(v, Value::Carried(id, of, _) if *id == run.id && of == name);
            // Where a condition fixes an axis, the place that it says is the same.
            let fixed: Vec<(usize, AffineInteger)> = match &looked {
                Value::Where(condition, ..) => condition.conjuncts().into_iter().filter_map(|c| place(c, &run.axes[name])).collect(),
                _ => vec![],
            };
            let as_prior = looked.rebuilt(
                &mut |v| if is_carried_at(&v, run.id, name, &run.axes[name], &fixed, &self.made.indices) { Value::Prior } else { v },
                &mut |i| i.clone(),
                &self.made.indices,
            );
            let Some((combine, added, condition)) = sum_of(&as_prior, run.time) else { continue };
            if added.any(&own) || condition.any(&own) {
                continue;
            }
            let elsewhere = self.made.steps[steps..].iter().enumerate().any(|(n, step)| Some(n + steps) != through && step.value.any(&own))
                || run.changes.iter().any(|(other, change)| other != name && !run.local.contains(other) && change.value().any(&own));
            let reads_through = through.is_some_and(|step| {
                let tensor = self.made.steps[step].tensor;
                let read = |v: &Value| matches!(v, Value::Read { tensor: own, .. } if *own == tensor);
                self.made.steps[steps..].iter().any(|s| s.value.any(&read))
                    || run.changes.iter().any(|(other, change)| other != name && !run.local.contains(other) && change.value().any(&read))
            });
            if !elsewhere && !reads_through {
                let sum = self.made.reduced(combine, &[run.time], added)?;
                sums.insert(name.clone(), (combine, sum, condition));
                if let Some(step) = through {
                    // Nothing reads it any more.
                    self.made.steps[step].value = Value::Number(0.0);
                }
            }
        }
        // What a later time reads is a tensor.
        for name in &names {
            if sums.contains_key(name) || !run.changes.contains_key(name) {
                continue;
            }
            let read = |v: &Value| matches!(v, Value::Carried(id, of, _) if *id == run.id && of == name);
            let is_read = self.made.steps[steps..].iter().any(|step| step.value.any(&read))
                || run.changes.iter().any(|(other, change)| !run.local.contains(other) && change.value().any(&read))
                || sums.values().any(|(_, sum, condition)| sum.any(&read) || condition.any(&read));
            let Some(change) = run.changes.get_mut(name) else { continue };
            let value = change.value().clone();
            let is_part = matches!(change, Change::Part { .. });
            if (is_read || is_part) && !is_cheap(&value) || matches!(value, Value::Carried(..)) && is_read {
                let fixed: Vec<usize> = match change {
                    Change::Part { places, .. } => places.iter().map(|(axis, _)| *axis).collect(),
                    Change::Whole(_) => vec![],
                };
                let axes = run.axes[name].iter().enumerate().filter(|(n, id)| !fixed.contains(n) && self.made.indices.sizes[**id] != 1);
                let axes: Vec<Id> = axes.map(|(_, id)| *id).collect();
                let zero: IndexMap<Id, AffineInteger> = run.axes[name]
                    .iter()
                    .filter(|id| self.made.indices.sizes[**id] == 1)
                    .map(|id| (*id, AffineInteger::number(0)))
                    .collect();
                let value = value.substitute(&zero, &self.made.indices);
                let comment = frame.slots[name].borrow().comment.clone();
                let wanted = frame.slots[name].borrow().name.clone();
                let made = self.made.step(&wanted, &axes, value, &comment);
                match change {
                    Change::Whole(value) | Change::Part { value, .. } => *value = made,
                }
            }
        }
        for n in steps..self.made.steps.len() {
            let value = self.made.steps[n].value.clone();
            self.made.steps[n].value = self.resolved(&run, &value)?;
        }
        let end = if run.reversed { 0 } else { run.times - 1 };
        for name in &names {
            let before = run.before[name].clone();
            let slot = frame.slots[name].borrow().clone();
            let axes = run.axes[name].clone();
            let at: Vec<AffineInteger> = axes.iter().map(|id| AffineInteger::index(*id)).collect();
            let body = match (sums.get(name), run.changes.get(name)) {
                (Some((combine, sum, condition)), _) => {
                    let combine = *combine;
                    let (sum, condition) = (self.resolved(&run, sum)?, self.resolved(&run, condition)?);
                    let old = self.held(&before, &at)?;
                    // Under the condition an axis is where it is fixed.
                    let fixed: IndexMap<Id, AffineInteger> =
                        condition.conjuncts().into_iter().filter_map(|c| place(c, &axes)).map(|(axis, at)| (axes[axis], at)).collect();
                    let added = match old.substitute(&fixed, &self.made.indices) {
                        Value::Undefined => sum,
                        Value::Number(n) if combine.is_neutral(n) => sum,
                        held => combine.join(held, sum),
                    };
                    Value::choice(condition, added, old)
                }
                (None, Some(_)) if run.local.contains(name) => {
                    frame.slots.insert(name.clone(), before);
                    continue;
                }
                (None, None) => {
                    frame.slots.insert(name.clone(), before);
                    continue;
                }
                (None, Some(Change::Whole(value))) => {
                    let value = self.resolved(&run, &value.clone())?;
                    self.made.substituted(&value, &[run.time], &[AffineInteger::number(end)])
                }
                (None, Some(Change::Part { places, value })) => {
                    let (places, value) = (places.clone(), value.clone());
                    let value = self.resolved(&run, &value)?;
                    self.last_part(&run, &axes, &places, &value, &before)?
                }
            };
            let slot = ContainerContent { axes, body: Some(body), prior: None, writes: None, ..slot };
            frame.slots.insert(name.clone(), Rc::new(RefCell::new(slot)));
        }
        Ok(())
    }

    /// What a container holds, also where that is nothing.
    fn held(&mut self, slot: &SlotRef, at: &[AffineInteger]) -> Done<Value> {
        if slot.borrow().body == Some(Value::Undefined) {
            return Ok(Value::Undefined);
        }
        // Part of it may have been written before: the other part stays what it was.
        let found = self.made.peeked(slot, at)?;
        let is_choice = matches!(&found, Value::Where(_, a, b) if is_cheap(a) && (is_cheap(b) || **b == Value::Undefined));
        if is_choice { Ok(found) } else { self.made.element(slot, at) }
    }

    /// The value of a step of the body in the place of its tensor, and which step that is.
    fn looked_through(&self, body: &Value, steps: usize) -> (Value, Option<usize>) {
        if let Value::Read { tensor, at, fill: None } = body
            && let Some(n) = (steps..self.made.steps.len()).find(|n| self.made.steps[*n].tensor == *tensor)
        {
            let step = &self.made.steps[n];
            return (self.made.substituted(&step.value, &step.left, at), Some(n));
        }
        if let Value::Where(condition, value, otherwise) = body
            && let (value, Some(n)) = self.looked_through(value, steps)
        {
            return (Value::Where(condition.clone(), Box::new(value), otherwise.clone()), Some(n));
        }
        (body.clone(), None)
    }

    /// The places that the time fixes, where only these are written, and the value there.
    fn part(&self, run: &Run, name: &str, axes: &[Id], body: &Value) -> Option<(Vec<(usize, AffineInteger)>, Value)> {
        let mut fixed: Option<Vec<(usize, AffineInteger)>> = None;
        let mut open = body;
        while let Value::Where(condition, _, otherwise) = open {
            let own: Vec<(usize, AffineInteger)> = condition.conjuncts().into_iter().filter_map(|c| place(c, axes)).collect();
            fixed = Some(match fixed {
                None => own,
                Some(before) => before.into_iter().filter(|place| own.contains(place)).collect(),
            });
            open = otherwise;
        }
        let places = fixed.filter(|places| places.iter().any(|(_, at)| at.mentions(run.time)))?;
        if !is_carried_at(open, run.id, name, axes, &[], &self.made.indices) {
            return None;
        }
        let (from, to): (Vec<Id>, Vec<AffineInteger>) = places.iter().map(|(axis, at)| (axes[*axis], at.clone())).unzip();
        Some((places, self.made.substituted(body, &from, &to)))
    }

    /// A value without what containers held before the time under way.
    fn resolved(&mut self, run: &Run, value: &Value) -> Done<Value> {
        Ok(match value {
            Value::Number(_) | Value::Prior | Value::Undefined => value.clone(),
            Value::Integer(integer) => Value::integer(self.resolved_integer(run, integer)?),
            Value::Read { tensor, at, fill } => {
                let at = at.iter().map(|i| self.resolved_integer(run, i)).collect::<Done<_>>()?;
                Value::Read { tensor: *tensor, at, fill: *fill }
            }
            Value::Carried(id, name, at) => {
                let at = at.iter().map(|i| self.resolved_integer(run, i)).collect::<Done<Vec<_>>>()?;
                if *id != run.id {
                    return Ok(Value::Carried(*id, name.clone(), at));
                }
                self.carried(run, name, &at)?
            }
            Value::Call("-", of) => self.resolved(run, of)?.negative(),
            Value::Call(function, of) => Value::call(function, self.resolved(run, of)?),
            Value::Binary(op, a, b) => {
                let (a, b) = (self.resolved(run, a)?, self.resolved(run, b)?);
                Value::compared(*op, a, b, &self.made.indices)
            }
            Value::Where(c, a, b) => Value::choice(self.resolved(run, c)?, self.resolved(run, a)?, self.resolved(run, b)?),
            Value::Reduce(combine, over, of) => Value::Reduce(*combine, over.clone(), Box::new(self.resolved(run, of)?)),
        })
    }

    fn resolved_integer(&mut self, run: &Run, integer: &AffineInteger) -> Done<AffineInteger> {
        let mut made = AffineInteger::number(integer.constant);
        for (atom, by) in &integer.terms {
            let part = match atom {
                Atom::Index(_) => AffineInteger::atom(atom.clone()),
                Atom::Quotient(of, divisor) => self.resolved_integer(run, of)?.floor_div(*divisor, &self.made.indices),
                Atom::Element(of) => {
                    let of = self.resolved(run, of)?;
                    self.made.row(of, "loop")
                }
            };
            made = made.plus(&part, *by);
        }
        Ok(made)
    }

    /// What a container held before the time under way.
    fn carried(&mut self, run: &Run, name: &str, at: &[AffineInteger]) -> Done<Value> {
        let old = match self.held(&run.before[name], at)? {
            Value::Undefined => Value::Number(0.0),
            old => old,
        };
        let now = AffineInteger::index(run.time);
        let (then, mut condition, value) = match run.changes.get(name) {
            None => return Ok(old),
            Some(Change::Whole(value)) => (now.clone().add(if run.reversed { 1 } else { -1 }), Value::Number(1.0), value),
            Some(Change::Part { places, value }) => {
                let fault = || UnreadReason::Why(format!("`{name}` is read at another time than a fixed number of times before"));
                let (axis, place) = places.iter().find(|(_, place)| place.mentions(run.time)).ok_or_else(fault)?;
                let apart = at[*axis].clone().minus(place).constant().ok_or_else(fault)?;
                let by = place.coefficient(run.time).filter(|by| *by != 0).ok_or_else(fault)?;
                let times = apart / by;
                let is_before = if run.reversed { times > 0 } else { times < 0 };
                if apart % by != 0 || !is_before {
                    return Ok(old);
                }
                let then = now.clone().add(times);
                let mut condition = Value::Number(1.0);
                for (other, place) in places.iter().filter(|(other, _)| other != axis) {
                    let by: IndexMap<Id, AffineInteger> = IndexMap::from([(run.time, then.clone())]);
                    let place = place.substitute(&by, &self.made.indices);
                    condition = Value::both(condition, Value::equal(&at[*other], &place, &self.made.indices));
                }
                (then, condition, value)
            }
        };
        let (mut from, mut to) = (vec![run.time], vec![then.clone()]);
        from.extend(&run.axes[name]);
        to.extend(at.iter().cloned());
        let value = self.made.substituted(value, &from, &to);
        // A plain number before the first time is what lies outside of the tensor.
        if let (Value::Number(fill), Value::Read { tensor, at, fill: None }, Some(1.0)) = (&old, &value, condition.number()) {
            let others = at.iter().zip(&self.made.tensors[*tensor].sizes).filter(|(i, _)| **i != then);
            let inside = |(i, size): (&AffineInteger, &i64)| {
                let (low, high) = i.bounds(&self.made.indices);
                low.is_some_and(|low| low >= 0) && high.is_some_and(|high| high < *size)
            };
            if at.iter().filter(|i| **i == then).count() == 1 && others.into_iter().all(inside) {
                return Ok(Value::Read { tensor: *tensor, at: at.clone(), fill: Some(*fill) });
            }
        }
        let edge = then.clone().minus(&now).constant;
        let outside = match (run.reversed, edge.abs()) {
            (false, 1) => Value::equal(&now, &AffineInteger::number(0), &self.made.indices),
            (true, 1) => Value::equal(&now, &AffineInteger::number(run.times - 1), &self.made.indices),
            (false, _) => Value::at_least_zero(then, &self.made.indices).not(),
            (true, _) => Value::at_least_zero(then.times(-1).add(run.times - 1), &self.made.indices).not(),
        };
        if condition.number() != Some(1.0) {
            condition = Value::both(condition, outside.not());
            return Ok(Value::choice(condition, value, old));
        }
        Ok(Value::choice(outside, old, value))
    }

    /// A container after a loop that wrote one place of it at every time.
    fn last_part(&mut self, run: &Run, axes: &[Id], places: &[(usize, AffineInteger)], value: &Value, before: &SlotRef) -> Done<Value> {
        let at: Vec<AffineInteger> = axes.iter().map(|id| AffineInteger::index(*id)).collect();
        let old = self.held(before, &at)?;
        let indices = &self.made.indices;
        let fault = || UnreadReason::Why("its time is part of a quotient".into());
        let (axis, place) = places.iter().find(|(_, place)| place.mentions(run.time)).ok_or_else(fault)?;
        let by = place.coefficient(run.time).filter(|by| *by != 0).ok_or_else(fault)?;
        let rest = at[*axis].clone().minus(&place.clone().plus(&AffineInteger::index(run.time), -by));
        let rest = if by < 0 { rest.times(-1) } else { rest };
        let time = rest.floor_div(by.abs(), indices);
        let mut condition = Value::equal(&rest, &time.times(by.abs()), indices);
        condition = Value::both(condition, Value::at_least_zero(time.clone(), indices));
        condition = Value::both(condition, Value::at_least_zero(time.times(-1).add(run.times - 1), indices));
        let then: IndexMap<Id, AffineInteger> = IndexMap::from([(run.time, time.clone())]);
        for (other, place) in places.iter().filter(|(other, _)| other != axis) {
            condition = Value::both(condition, Value::equal(&at[*other], &place.substitute(&then, indices), indices));
        }
        Ok(Value::choice(condition, value.substitute(&then, indices), old))
    }
}

impl Change {
    fn value(&self) -> &Value {
        match self {
            Change::Whole(value) | Change::Part { value, .. } => value,
        }
    }
}

/// The same program with containers of its own.
fn copied<'g>(frame: &SdfgFrame<'g>) -> SdfgFrame<'g> {
    let mut own = forked(frame);
    for slot in own.slots.values_mut() {
        let content = slot.borrow().clone();
        *slot = Rc::new(RefCell::new(content));
    }
    own
}
