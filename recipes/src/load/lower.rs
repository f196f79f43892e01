//! From the meaning of a step to operations, at the granularity of the paper's operators.
//!
//! Contractions, reductions, softmax and normalization are operations of their own; what lies between them is cut by
//! [`super::pattern`]. The last operation writes the step's tensor; the others write `<step>.<what>`, numbered from the
//! second one on: `a.dot`, `a.dot2`. An operation is called what its first output is called.

use super::applied::{Lower, Reading, StepTarget};
use super::header::Header;
use super::pattern::{OperatorPattern, pattern};
use super::value::{ProductFactor, StepValue, scalar_indices, times};
use indexmap::IndexMap;
use sdfg::affine::Affine;
use sdfg::library::{GATHER, STOP_GRADIENT};
use sdfg::{Combine, Container, Direction, Dtype, Expr, Op, Operand, Operation, Origin, Role, Scalar};
use std::collections::BTreeMap;

pub struct Lowering<'a> {
    header: &'a Header,
    step: &'a str,
    left: &'a [String],
    origin: Origin,
    pub containers: Vec<Container>,
    pub operations: Vec<Operation>,
    taken: BTreeMap<String, usize>,
    dropouts: usize,
    /// What the step has computed so far: an expression that stands twice is computed once.
    computed: Vec<(StepValue, Reading)>,
}

impl<'a> Lowering<'a> {
    /// The operations of `step[left] = value`, and every container they write.
    pub fn of(header: &'a Header, step: &'a str, left: &'a [String], origin: Origin, value: &StepValue) -> Self {
        let (containers, operations, taken) = (Vec::new(), Vec::new(), BTreeMap::new());
        let mut lowering = Lowering { header, step, left, origin, containers, operations, taken, dropouts: 0, computed: Vec::new() };
        lowering.store(value, StepTarget::Result);
        lowering
    }

    pub(super) fn indices(&self, value: &StepValue) -> Vec<String> {
        self.ordered(value.indices(&|name| self.header.dims.contains_key(name)))
    }

    /// As on the left, then in the order of the recipe's dims.
    fn ordered(&self, mut indices: Vec<String>) -> Vec<String> {
        let rank = |index: &String| {
            let left = self.left.iter().position(|l| l == index).unwrap_or(usize::MAX);
            (left, self.header.dims.get_index_of(index))
        };
        indices.sort_by_key(rank);
        indices
    }

    fn container(&mut self, name: &str, dims: &[String]) {
        let dims: Vec<&str> = dims.iter().map(String::as_str).collect();
        let dtype: Dtype = self.header.dtype;
        let mut container = Container::new(name, &dims, dtype, Role::Transient);
        container.origin = Some(self.origin.clone());
        self.containers.push(container);
    }

    /// `<step>.<what>`, with a number from the second one on.
    fn fresh(&mut self, what: &str) -> String {
        let count = self.taken.entry(what.to_string()).or_insert(0);
        *count += 1;
        match *count {
            1 => format!("{}.{what}", self.step),
            n => format!("{}.{what}{n}", self.step),
        }
    }

    /// Declares what an operation writes.
    fn output(&mut self, target: StepTarget, what: &str, indices: Vec<String>) -> Reading {
        let (data, indices) = match target {
            StepTarget::Result => (self.step.to_string(), self.left.to_vec()),
            StepTarget::Transient => (self.fresh(what), self.ordered(indices)),
        };
        self.container(&data, &indices);
        Reading::plain(data, indices)
    }

    fn operation(&mut self, op: Op, inputs: Vec<(String, Reading)>, outputs: Vec<(&str, &Reading)>) {
        let operand = |connector: &str, reading: &Reading| Operand {
            connector: connector.into(),
            data: reading.data.clone(),
            subscripts: reading.subscripts(),
            fill: reading.window.as_ref().and_then(|window| window.fill),
        };
        let outputs: Vec<Operand> = outputs.into_iter().map(|(connector, reading)| operand(connector, reading)).collect();
        let inputs: Vec<Operand> = inputs.iter().map(|(connector, reading)| operand(connector, reading)).collect();
        let mut indices: IndexMap<String, String> = IndexMap::new();
        for subscript in outputs.iter().chain(&inputs).flat_map(|o| &o.subscripts) {
            for index in subscript.symbols().into_iter().filter(|name| self.header.is_index(name)) {
                indices.insert(index.clone(), index);
            }
        }
        if let Op::Reduce { code, .. } = &op {
            for index in scalar_indices(code, &|name| self.header.dims.contains_key(name)) {
                indices.insert(index.clone(), index);
            }
        }
        let name = outputs.first().map(|o| o.data.clone()).unwrap_or_default();
        self.operations.push(Operation { name, op, indices, inputs, outputs, pass: Direction::Forward, origin: Some(self.origin.clone()) });
    }

    /// Makes a value a container.
    pub(super) fn store(&mut self, value: &StepValue, target: StepTarget) -> Reading {
        if target == StepTarget::Result {
            return self.compute(value, target);
        }
        if let StepValue::Access(reading) = value
            && reading.lookups().is_empty()
        {
            return reading.clone();
        }
        if let Some((_, reading)) = self.computed.iter().find(|(known, _)| known == value) {
            return reading.clone();
        }
        let reading = self.compute(value, target);
        // Each dropout that is written has a mask of its own.
        if !value.drops() {
            self.computed.push((value.clone(), reading.clone()));
        }
        reading
    }

    fn compute(&mut self, value: &StepValue, target: StepTarget) -> Reading {
        match value {
            StepValue::Product { scale, factors, reduced } if !reduced.is_empty() => self.sum_of_products(scale, factors, reduced, target),
            StepValue::Access(reading) if !reading.lookups().is_empty() => {
                let lookups = reading.lookups().into_iter().enumerate();
                let mut inputs: Vec<(String, Reading)> = lookups.map(|(n, lookup)| (format!("at{n}"), lookup)).collect();
                inputs.push(("x".into(), reading.clone()));
                self.elementwise_over(GATHER, Scalar::input("x"), inputs, reading.indices.clone(), target)
            }
            StepValue::Named { label, code, of } => {
                let x = self.store(of, StepTarget::Transient);
                self.elementwise(label, code.clone(), vec![("x".into(), x)], target)
            }
            StepValue::Applied(applied) => (applied.form.lower)(self, applied, target),
            StepValue::Reduce { label, combine, scale, of, .. } => {
                let mut inputs = Inputs::default();
                let code = self.gather(of, &mut inputs);
                let kept = self.indices(value);
                self.reduce(label, *combine, code, scale.clone(), inputs, kept, target)
            }
            _ => self.point_by_point(value, target),
        }
    }

    /// An operator of the paper where the value has the form of one, else one general operation.
    fn point_by_point(&mut self, value: &StepValue, target: StepTarget) -> Reading {
        if let Some(OperatorPattern { label, main }) = pattern(value, &|name| self.header.dims.contains_key(name)) {
            // Its main operands are containers of their own; the rest is its code.
            let mut inputs = Inputs::default();
            for operand in main {
                let reading = self.store(operand, StepTarget::Transient);
                inputs.stored.push((operand.clone(), reading));
            }
            let code = self.gather(value, &mut inputs);
            let (code, inputs) = inputs.connect(code);
            return self.elementwise(label, code, inputs, target);
        }
        let mut inputs = Inputs::default();
        let code = self.gather(value, &mut inputs);
        let (code, connected) = inputs.connect(code);
        let indices = self.indices(value);
        self.elementwise_over("map", code, connected, indices, target)
    }

    fn elementwise(&mut self, label: &str, code: Scalar, inputs: Vec<(String, Reading)>, target: StepTarget) -> Reading {
        let mut indices: Vec<String> = Vec::new();
        let numbers = scalar_indices(&code, &|name| self.header.dims.contains_key(name));
        for index in inputs.iter().flat_map(|(_, reading)| &reading.indices).chain(&numbers) {
            if !indices.contains(index) {
                indices.push(index.clone());
            }
        }
        self.elementwise_over(label, code, inputs, indices, target)
    }

    fn elementwise_over(
        &mut self,
        label: &str,
        code: Scalar,
        inputs: Vec<(String, Reading)>,
        indices: Vec<String>,
        target: StepTarget,
    ) -> Reading {
        let out = self.output(target, label, indices);
        self.operation(Op::Elementwise { label: label.into(), code }, inputs, vec![("out", &out)]);
        out
    }

    #[allow(clippy::too_many_arguments)]
    fn reduce(
        &mut self,
        label: &str,
        combine: Combine,
        code: Scalar,
        scale: Scalar,
        inputs: Inputs,
        kept: Vec<String>,
        target: StepTarget,
    ) -> Reading {
        let (code, inputs) = inputs.connect(code);
        let out = self.output(target, label, kept);
        self.operation(Op::Reduce { label: label.into(), combine, code, scale }, inputs, vec![("out", &out)]);
        out
    }

    /// Scalar code of a value point by point; what is no scalar code becomes a container that the code reads.
    fn gather(&mut self, value: &StepValue, inputs: &mut Inputs) -> Scalar {
        if let Some(at) = inputs.stored.iter().position(|(stored, _)| stored == value) {
            let reading = if value.drops() { inputs.stored.remove(at).1 } else { inputs.stored[at].1.clone() };
            return inputs.read(reading);
        }
        match value {
            StepValue::Scalar(scalar) => scalar.clone(),
            StepValue::Product { scale, factors, reduced } if reduced.is_empty() => {
                let mut whole = scale.clone();
                for ProductFactor { value, below } in factors {
                    let factor = self.gather(value, inputs);
                    whole = match (&whole, below) {
                        (Scalar::Const(-1.0), false) => Scalar::unary(sdfg::Unary::Neg, factor),
                        (_, false) => times(whole, factor),
                        (_, true) => whole / factor,
                    };
                }
                whole
            }
            StepValue::Unary(op, a) => Scalar::unary(*op, self.gather(a, inputs)),
            StepValue::Binary(op, a, b) => {
                let (a, b) = (self.gather(a, inputs), self.gather(b, inputs));
                match op {
                    sdfg::Binary::Add => a + b,
                    sdfg::Binary::Sub => a - b,
                    _ => Scalar::binary(*op, a, b),
                }
            }
            StepValue::Select(c, a, b) => Scalar::select(self.gather(c, inputs), self.gather(a, inputs), self.gather(b, inputs)),
            // Code that repeats its operand repeats a name, not an expression.
            StepValue::Named { code, of, label }
                if *label != STOP_GRADIENT && matches!(&**of, StepValue::Access(r) if r.lookups().is_empty()) =>
            {
                let of = self.gather(of, inputs);
                code.inline("x", &of)
            }
            other => {
                let reading = self.store(other, StepTarget::Transient);
                inputs.read(reading)
            }
        }
    }

    /// `scale · Σ Π factors`: a contraction for two tensors, a chain of them for more, a reduction for one.
    fn sum_of_products(&mut self, scale: &Scalar, factors: &[ProductFactor], reduced: &[String], target: StepTarget) -> Reading {
        let is_tensor = |f: &&ProductFactor| !f.below && !matches!(f.value, StepValue::Scalar(_));
        let whole = StepValue::Product { scale: scale.clone(), factors: factors.to_vec(), reduced: reduced.to_vec() };
        if factors.iter().filter(is_tensor).count() < 2 {
            let terms = StepValue::Product { scale: Scalar::Const(1.0), factors: factors.to_vec(), reduced: Vec::new() };
            let mut inputs = Inputs::default();
            let code = self.gather(&terms, &mut inputs);
            let kept = self.indices(&whole);
            return self.reduce("sum", Combine::Sum, code, scale.clone(), inputs, kept, target);
        }
        let mut tensors = self.numerators(factors);
        loop {
            tensors = self.summed_alone(tensors, reduced);
            if tensors.len() <= 2 {
                break;
            }
            self.join(&mut tensors, reduced);
        }
        let kept = self.indices(&whole);
        let summed = tensors.iter().flat_map(|t| &t.indices).any(|index| reduced.contains(index));
        let inputs: Vec<(String, Reading)> = tensors.into_iter().enumerate().map(|(n, tensor)| (connector(n), tensor)).collect();
        if !summed {
            let code = scale.clone() * Scalar::input("a") * Scalar::input("b");
            return self.elementwise_over("map", code, inputs, kept, target);
        }
        let out = self.output(target, "dot", kept);
        self.operation(Op::Contraction { scale: scale.clone() }, inputs, vec![("out", &out)]);
        out
    }

    /// The factors as containers; those that divide, and numbers, are multiplied into the smallest that has their indices.
    fn numerators(&mut self, factors: &[ProductFactor]) -> Vec<Reading> {
        let (mut tensors, rest): (Vec<Vec<ProductFactor>>, Vec<&ProductFactor>) =
            factors.iter().fold((Vec::new(), Vec::new()), |mut split, factor| {
                if factor.below || matches!(factor.value, StepValue::Scalar(_)) {
                    split.1.push(factor);
                } else {
                    split.0.push(vec![factor.clone()]);
                }
                split
            });
        for factor in rest {
            let needed = self.indices(&factor.value);
            let own = |group: &Vec<ProductFactor>| group.first().map_or_else(Vec::new, |factor| self.indices(&factor.value));
            let holders = tensors.iter().map(own).enumerate().filter(|(_, own)| needed.iter().all(|index| own.contains(index)));
            // A window that is multiplied would have to be written out.
            let windowed = |at: usize| tensors.get(at).and_then(|group| group.first()).is_some_and(|factor| is_window(&factor.value));
            let at = holders.min_by_key(|(at, own)| (windowed(*at), own.len())).map_or(0, |(at, _)| at);
            if let Some(group) = tensors.get_mut(at) {
                group.push(factor.clone());
            }
        }
        let one = Scalar::Const(1.0);
        let stored = tensors.into_iter().map(|group| StepValue::product(one.clone(), group, Vec::new()));
        let values: Vec<StepValue> = stored.collect();
        // Products are made of rows at equal distances: what is read at rounded places is copied.
        let factor = |lowering: &mut Self, value: &StepValue| match lowering.is_rounded(value) {
            true => Lower::stored(lowering, value),
            false => lowering.store(value, StepTarget::Transient),
        };
        values.iter().map(|value| factor(self, value)).collect()
    }

    /// Whether a tensor is read at quotients of single indices that are rounded, as where it is stretched: a copy of it has no index more.
    fn is_rounded(&self, value: &StepValue) -> bool {
        let StepValue::Access(Reading { window: Some(window), .. }) = value else { return false };
        let is_index = |name: &str| self.header.is_index(name);
        let rounded = |e: &&Expr| Affine::of(e, &is_index).is_none();
        let alone = |e: &Expr| e.symbols().iter().filter(|name| is_index(name)).count() == 1 && !e.reads_elements();
        let mut found = window.subscripts.iter().filter(rounded).peekable();
        found.peek().is_some() && found.all(alone)
    }

    /// Replaces two of the tensors by one: a factor that spans no index of its own is multiplied in; else the first two
    /// that share a sum of their own are contracted; else the first two are multiplied.
    fn join(&mut self, tensors: &mut Vec<Reading>, reduced: &[String]) {
        let pairs: Vec<(usize, usize)> =
            (0..tensors.len()).flat_map(|m| (0..tensors.len()).filter(move |n| m != *n).map(move |n| (m, n))).collect();
        let within = |(m, n): &(usize, usize)| match (tensors.get(*m), tensors.get(*n)) {
            (Some(small), Some(large)) => small.indices.iter().all(|index| large.indices.contains(index)),
            _ => false,
        };
        let summed = |(m, n): &(usize, usize)| -> Vec<String> {
            let holders = |index: &String| -> Vec<usize> {
                tensors.iter().enumerate().filter(|(_, t)| t.indices.contains(index)).map(|(at, _)| at).collect()
            };
            let both = [*m.min(n), *m.max(n)];
            reduced.iter().filter(|index| holders(index) == both).cloned().collect()
        };
        let inside = pairs.iter().find(|p| within(p)).copied();
        let contracted = pairs.iter().find(|p| !summed(p).is_empty()).copied();
        let Some((m, n)) = inside.or(contracted).or(pairs.first().copied()) else { return };
        let gone = if inside.is_some() { Vec::new() } else { summed(&(m, n)) };
        let (first, second) = (m.min(n), m.max(n));
        let right = tensors.remove(second);
        let left = tensors.remove(first);
        let mut indices: Vec<String> = left.indices.iter().chain(&right.indices).filter(|index| !gone.contains(index)).cloned().collect();
        indices.sort();
        indices.dedup();
        let inputs = vec![("a".to_string(), left), ("b".to_string(), right)];
        let joined = if gone.is_empty() {
            self.elementwise_over("map", Scalar::input("a") * Scalar::input("b"), inputs, indices, StepTarget::Transient)
        } else {
            let out = self.output(StepTarget::Transient, "dot", indices);
            self.operation(Op::Contraction { scale: Scalar::Const(1.0) }, inputs, vec![("out", &out)]);
            out
        };
        tensors.insert(first, joined);
    }

    /// Sums within each tensor the indices that no other one has.
    fn summed_alone(&mut self, tensors: Vec<Reading>, reduced: &[String]) -> Vec<Reading> {
        let own: Vec<Vec<String>> = tensors.iter().map(|t| t.indices.clone()).collect();
        let sum = |(n, tensor): (usize, Reading)| {
            let shared = |index: &String| own.iter().enumerate().any(|(m, indices)| m != n && indices.contains(index));
            let kept: Vec<String> = tensor.indices.iter().filter(|index| !reduced.contains(index) || shared(index)).cloned().collect();
            if kept.len() == tensor.indices.len() {
                return tensor;
            }
            let mut inputs = Inputs::default();
            let code = inputs.read(tensor);
            self.reduce("sum", Combine::Sum, code, Scalar::Const(1.0), inputs, kept, StepTarget::Transient)
        };
        tensors.into_iter().enumerate().map(sum).collect()
    }
}

impl Lower for Lowering<'_> {
    fn header(&self) -> &Header {
        self.header
    }

    fn stored(&mut self, value: &StepValue) -> Reading {
        let reading = self.store(value, StepTarget::Transient);
        if reading.window.is_none() {
            return reading;
        }
        if let Some((_, known)) = self.computed.iter().find(|(known, _)| known == value) {
            return known.clone();
        }
        let made = self.point_by_point(value, StepTarget::Transient);
        self.computed.push((value.clone(), made.clone()));
        made
    }

    fn output(&mut self, target: StepTarget, what: &str, indices: Vec<String>) -> Reading {
        self.output(target, what, indices)
    }

    fn operation(&mut self, op: Op, inputs: Vec<(String, Reading)>, outputs: Vec<(&str, &Reading)>) {
        self.operation(op, inputs, outputs);
    }

    fn computed(&mut self, value: &StepValue, target: StepTarget) -> Reading {
        self.compute(value, target)
    }

    fn stream(&mut self) -> String {
        self.dropouts += 1;
        match self.dropouts {
            1 => self.step.to_string(),
            n => format!("{}.dropout{n}", self.step),
        }
    }
}

fn is_window(value: &StepValue) -> bool {
    matches!(value, StepValue::Access(reading) if reading.window.is_some())
}

/// The containers that scalar code reads, each once.
#[derive(Default)]
struct Inputs {
    readings: Vec<Reading>,
    /// Values that are containers already.
    stored: Vec<(StepValue, Reading)>,
}

impl Inputs {
    fn read(&mut self, reading: Reading) -> Scalar {
        let at = self.readings.iter().position(|r| *r == reading).unwrap_or_else(|| {
            self.readings.push(reading);
            self.readings.len() - 1
        });
        Scalar::input(connector(at))
    }

    /// The only input is called `x`.
    fn connect(self, code: Scalar) -> (Scalar, Vec<(String, Reading)>) {
        let alone = self.readings.len() == 1;
        let name = |at: usize| if alone { "x".to_string() } else { connector(at) };
        let renamed = (0..self.readings.len()).map(|at| (connector(at), name(at))).collect();
        let inputs = self.readings.into_iter().enumerate().map(|(at, reading)| (name(at), reading)).collect();
        (code.rename_inputs(&renamed), inputs)
    }
}

/// `a`, `b`, …, `z`, `a1`, …
fn connector(at: usize) -> String {
    let letter = char::from(b'a' + (at % 26) as u8);
    if at < 26 { letter.to_string() } else { format!("{letter}{}", at / 26) }
}
