//! Finds the paper's fused kernels inside ours, by the operators that they hold.
//!
//! A kernel of the paper is a set of operations at a place in the dataflow. Each place is recognised on the program of operators by the
//! kinds of its operations and by the dataflow, never by a name. Contractions around a softmax are an attention, and a bias behind a
//! contraction belongs to it. Backward contractions multiply the gradient of a contraction's result with its operands, which identifies
//! that gradient. Our kernel covers a kernel of the paper if it holds all of its operations.

use sdfg::{Binary, Class, Combine, Direction, Op, Operation, Scalar, Sdfg, Unit};
use serde::{Serialize, Serializer};
use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// The fused kernels of "Data Movement Is All You Need", §IV-A, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaperKernel {
    /// Biases of queries, keys and values.
    Aib,
    /// Gradient of the bias of attention's output.
    Baob,
    /// Gradients of the biases of queries, keys and values.
    Baib,
    /// Softmax with scaling and dropout.
    Sm,
    /// Bias, activation and dropout.
    Brd,
    /// Bias, dropout, residual and normalization behind a linear layer that is not attention's output.
    Bdrln,
    /// The same behind attention's output.
    Drln,
    /// Gradients of a normalization's scale and shift.
    Bsb,
    /// Gradients of a normalization and of the dropout before it.
    Blnrd,
    /// Gradients of dropout, activation and bias.
    Bdrb,
    /// Sum of the gradients of a residual, and those of the scale and shift of the normalization before it.
    Ebsb,
    /// Gradients of dropout and softmax.
    Bs,
    /// Sum of the gradients of the layer's input: through the projections and past them.
    Bei,
}

impl PaperKernel {
    pub const ALL: [PaperKernel; 13] = [
        PaperKernel::Aib,
        PaperKernel::Baob,
        PaperKernel::Baib,
        PaperKernel::Sm,
        PaperKernel::Brd,
        PaperKernel::Bdrln,
        PaperKernel::Drln,
        PaperKernel::Bsb,
        PaperKernel::Blnrd,
        PaperKernel::Bdrb,
        PaperKernel::Ebsb,
        PaperKernel::Bs,
        PaperKernel::Bei,
    ];

    pub fn name(self) -> &'static str {
        match self {
            PaperKernel::Aib => "AIB",
            PaperKernel::Baob => "BAOB",
            PaperKernel::Baib => "BAIB",
            PaperKernel::Sm => "SM",
            PaperKernel::Brd => "BRD",
            PaperKernel::Bdrln => "BDRLN",
            PaperKernel::Drln => "DRLN",
            PaperKernel::Bsb => "BSB",
            PaperKernel::Blnrd => "BLNRD",
            PaperKernel::Bdrb => "BDRB",
            PaperKernel::Ebsb => "EBSB",
            PaperKernel::Bs => "BS",
            PaperKernel::Bei => "BEI",
        }
    }
}

impl fmt::Display for PaperKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for PaperKernel {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One place where a kernel of the paper occurs in a program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Occurrence {
    pub kernel: PaperKernel,
    /// Names of its operations.
    pub operators: BTreeSet<String>,
}

/// Every place where a kernel of the paper occurs in a program of operators.
pub fn occurrences(program: &Sdfg) -> Vec<Occurrence> {
    let operations: Vec<Operation> =
        program.units().into_iter().filter_map(|(_, _, unit)| if let Unit::Operation(o) = unit { Some(o) } else { None }).collect();
    let graph = Dataflow::new(&operations);
    let mut found = BTreeSet::new();
    graph.attentions(&mut found);
    graph.layers(&mut found);
    graph.gradients(&mut found);
    found.into_iter().collect()
}

/// Occurrences by the first of their operators.
pub struct OccurrenceIndex<'a>(HashMap<&'a str, Vec<&'a Occurrence>>);

impl<'a> OccurrenceIndex<'a> {
    pub fn of(occurrences: &'a [Occurrence]) -> Self {
        let mut found: HashMap<&str, Vec<&Occurrence>> = HashMap::new();
        for occurrence in occurrences {
            if let Some(first) = occurrence.operators.first() {
                found.entry(first).or_default().push(occurrence);
            }
        }
        OccurrenceIndex(found)
    }

    /// The kernels of the paper that a kernel made of these operators covers.
    pub fn covered(&self, operators: &[String]) -> Vec<PaperKernel> {
        let held: BTreeSet<&String> = operators.iter().collect();
        let begun = held.iter().filter_map(|operator| self.0.get(operator.as_str())).flatten();
        let inside = begun.filter(|o| o.operators.iter().all(|name| held.contains(name)));
        inside.map(|o| o.kernel).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// The producers and consumers of containers.
struct Dataflow<'a> {
    operations: &'a [Operation],
    makers: HashMap<&'a str, &'a Operation>,
    /// By container, the operations that read it, in order.
    takers: HashMap<&'a str, Vec<&'a Operation>>,
}

/// Element-wise operations and the contractions at their end.
#[derive(Default)]
struct Path<'a> {
    elementwise: Vec<&'a Operation>,
    contractions: Vec<&'a Operation>,
}

type Found = BTreeSet<Occurrence>;

impl<'a> Dataflow<'a> {
    fn new(operations: &'a [Operation]) -> Self {
        let makers = operations.iter().flat_map(|o| o.outputs.iter().map(move |out| (out.data.as_str(), o))).collect();
        let mut takers: HashMap<&str, Vec<&Operation>> = HashMap::new();
        for operation in operations {
            for data in operation.inputs.iter().map(|input| input.data.as_str()).collect::<BTreeSet<_>>() {
                takers.entry(data).or_default().push(operation);
            }
        }
        Dataflow { operations, makers, takers }
    }

    fn of(&self, pass: Direction) -> impl Iterator<Item = &'a Operation> + use<'a> {
        self.operations.iter().filter(move |o| o.pass == pass)
    }

    fn readers(&self, data: &str, pass: Direction) -> impl Iterator<Item = &'a Operation> {
        let takers = self.takers.get(data).into_iter().flatten().copied();
        takers.filter(move |o| o.pass == pass)
    }

    /// From a container back through element-wise operations of the same pass to the contractions that it follows from.
    fn above(&self, data: &str, pass: Direction) -> Path<'a> {
        let (mut path, mut open) = (Path::default(), vec![data]);
        while let Some(data) = open.pop() {
            if let Some(maker) = self.makers.get(data).filter(|m| m.pass == pass) {
                path.add(maker, || open.extend(maker.inputs.iter().map(|i| i.data.as_str())));
            }
        }
        path
    }

    /// From a container on through element-wise operations of the same pass to the contractions that read it.
    fn below(&self, data: &'a str, pass: Direction) -> Path<'a> {
        let (mut path, mut open) = (Path::default(), vec![data]);
        while let Some(data) = open.pop() {
            for reader in self.readers(data, pass) {
                path.add(reader, || open.extend(out(reader)));
            }
        }
        path
    }

    /// Containers that hold the gradient of a contraction's result: backward contractions multiply them with its operands.
    fn gradients_of(&self, contraction: &Operation) -> BTreeSet<&'a str> {
        let partners = |operand: &str| -> BTreeSet<&'a str> {
            let products = self.readers(operand, Direction::Backward).filter(|o| o.class() == Class::Contraction);
            products.flat_map(|o| &o.inputs).map(|i| i.data.as_str()).filter(|d| *d != operand).collect()
        };
        let mut sets: Vec<BTreeSet<&str>> = contraction.inputs.iter().map(|i| partners(&i.data)).filter(|s| !s.is_empty()).collect();
        let first = sets.pop().unwrap_or_default();
        sets.iter().fold(first, |common, set| common.intersection(set).copied().collect())
    }

    /// Reductions by sum, and nothing else, of the gradients of these contractions' results.
    fn bias_gradients(&self, contractions: &[&Operation]) -> Vec<Vec<&'a Operation>> {
        let of = |c: &&Operation| -> Vec<&'a Operation> {
            let gradients = self.gradients_of(c);
            let readers = gradients.iter().flat_map(|data| self.readers(data, Direction::Backward));
            // A sum has one operand.
            readers.filter(|o| is_sum_over(o)).collect()
        };
        contractions.iter().map(of).collect()
    }

    /// Around each softmax between contractions: projections before, the output projection behind, and their gradients.
    fn attentions(&self, found: &mut Found) {
        for softmax in self.of(Direction::Forward).filter(|o| matches!(o.op, Op::Softmax { .. })) {
            let (Some(x), Some(weights)) = (softmax.inputs.first(), out(softmax)) else { continue };
            let (before, behind) = (self.above(&x.data, Direction::Forward), self.below(weights, Direction::Forward));
            if before.contractions.is_empty() || behind.contractions.is_empty() {
                continue;
            }
            let whole = before.elementwise.iter().chain(&behind.elementwise).copied().chain([softmax]);
            if behind.elementwise.iter().any(|o| drops(o)) {
                add(found, PaperKernel::Sm, whole);
            }
            // Queries and keys go into the scores; values are multiplied with the weights.
            let is_weights = |data: &str| data == weights || behind.elementwise.iter().any(|o| out(o) == Some(data));
            let scored = before.contractions.iter().flat_map(|c| &c.inputs);
            let weighted = behind.contractions.iter().flat_map(|c| &c.inputs).filter(|i| !is_weights(&i.data));
            let projected: Vec<Path> = scored.chain(weighted).map(|i| self.above(&i.data, Direction::Forward)).collect();
            let biases: Vec<Vec<&Operation>> =
                projected.iter().map(|p| p.elementwise.iter().copied().filter(|o| is_bias(o)).collect()).collect();
            if biases.len() > 2 && biases.iter().all(|b| !b.is_empty()) {
                add(found, PaperKernel::Aib, biases.into_iter().flatten());
                let projections: Vec<&Operation> = projected.iter().flat_map(|p| p.contractions.iter().copied()).collect();
                let sums = self.bias_gradients(&projections);
                if sums.iter().all(|s| !s.is_empty()) {
                    add(found, PaperKernel::Baib, sums.into_iter().flatten());
                }
                self.input_gradients(&projections, found);
            }
            for output in self.outputs(&behind.contractions) {
                add(found, PaperKernel::Baob, self.bias_gradients(&[output]).into_iter().flatten());
            }
            for gradient in self.of(Direction::Backward).filter(|o| matches!(o.op, Op::SoftmaxGrad { .. }) && reads(o, weights)) {
                let Some(dy) = gradient.input("dy") else { continue };
                let chain = self.above(&dy.data, Direction::Backward).elementwise;
                if chain.iter().any(|o| drops(o)) {
                    add(found, PaperKernel::Bs, chain.into_iter().chain([gradient]));
                }
            }
        }
    }

    /// Contractions that read the results of others, with element-wise operations between them at most.
    fn outputs(&self, contractions: &[&Operation]) -> Vec<&'a Operation> {
        self.of(Direction::Forward)
            .filter(|o| o.class() == Class::Contraction)
            .filter(|o| {
                o.inputs.iter().any(|i| self.above(&i.data, Direction::Forward).contractions.iter().any(|c| contractions.contains(c)))
            })
            .collect()
    }

    /// Sums of gradients through the projections and one past them.
    fn input_gradients(&self, projections: &[&Operation], found: &mut Found) {
        let gradients: BTreeSet<&str> = projections.iter().flat_map(|p| self.gradients_of(p)).collect();
        let through = |data: &str| {
            let maker = self.makers.get(data).filter(|m| m.class() == Class::Contraction);
            maker.is_some_and(|m| m.inputs.iter().any(|i| gradients.contains(i.data.as_str())))
        };
        for sum in self.of(Direction::Backward).filter(|o| adds(o)) {
            let (inside, past): (Vec<_>, Vec<_>) = sum.inputs.iter().partition(|i| through(&i.data));
            if !inside.is_empty() && !past.is_empty() {
                add(found, PaperKernel::Bei, [sum]);
            }
        }
    }

    /// Behind each bias: an activation with dropout, or a residual with normalization; and the gradients of both.
    fn layers(&self, found: &mut Found) {
        let behind_attention = self.attention_outputs();
        for bias in self.of(Direction::Forward).filter(|o| is_bias(o)) {
            let Some(linear) =
                bias.inputs.iter().find_map(|i| self.makers.get(i.data.as_str()).filter(|m| m.class() == Class::Contraction))
            else {
                continue;
            };
            for next in out(bias).into_iter().flat_map(|d| self.readers(d, Direction::Forward)) {
                for last in out(next).into_iter().flat_map(|d| self.readers(d, Direction::Forward)) {
                    if is_activation(next) && drops(last) {
                        add(found, PaperKernel::Brd, [bias, next, last]);
                    } else if drops(next) && adds(last) {
                        let kernel = if behind_attention.contains(linear) { PaperKernel::Drln } else { PaperKernel::Bdrln };
                        let norms = out(last).into_iter().flat_map(|d| self.readers(d, Direction::Forward));
                        for norm in norms.filter(|o| matches!(o.op, Op::Normalize { .. })) {
                            add(found, kernel, [bias, next, last, norm]);
                        }
                    }
                }
            }
        }
    }

    fn attention_outputs(&self) -> Vec<&'a Operation> {
        let softmaxes = self.of(Direction::Forward).filter(|o| matches!(o.op, Op::Softmax { .. }));
        softmaxes.filter_map(out).flat_map(|weights| self.outputs(&self.below(weights, Direction::Forward).contractions)).collect()
    }

    /// Gradients of normalizations with their neighbours, and of dropout with activation and bias.
    fn gradients(&self, found: &mut Found) {
        for operation in self.of(Direction::Backward) {
            let readers = |o: &Operation| -> Vec<&'a Operation> {
                o.outputs.first().map(|out| self.readers(&out.data, Direction::Backward).collect()).unwrap_or_default()
            };
            match &operation.op {
                Op::NormalizeGradW => {
                    let sum = operation.input("dy").and_then(|dy| self.makers.get(dy.data.as_str())).filter(|m| adds(m));
                    match sum {
                        Some(sum) => add(found, PaperKernel::Ebsb, [*sum, operation]),
                        None => add(found, PaperKernel::Bsb, [operation]),
                    }
                }
                Op::NormalizeGradX { .. } => {
                    for dropped in readers(operation).into_iter().filter(|o| drops(o)) {
                        add(found, PaperKernel::Blnrd, [operation, dropped]);
                    }
                }
                Op::Elementwise { .. } if drops(operation) => {
                    for activated in
                        readers(operation).into_iter().filter(|o| matches!(o.op, Op::Elementwise { .. }) && !adds(o) && !drops(o))
                    {
                        for sum in readers(activated).into_iter().filter(|o| is_sum_over(o)) {
                            add(found, PaperKernel::Bdrb, [operation, activated, sum]);
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'a> Path<'a> {
    /// Adds an operation; `go_on` is called where the path leads through it.
    fn add(&mut self, operation: &'a Operation, go_on: impl FnOnce()) {
        match operation.op {
            Op::Contraction { .. } if !self.contractions.contains(&operation) => self.contractions.push(operation),
            Op::Elementwise { .. } if !self.elementwise.contains(&operation) => {
                self.elementwise.push(operation);
                go_on();
            }
            _ => {}
        }
    }
}

fn add<'a>(found: &mut Found, kernel: PaperKernel, operations: impl IntoIterator<Item = &'a Operation>) {
    let operators: BTreeSet<String> = operations.into_iter().map(|o| o.name.clone()).collect();
    if !operators.is_empty() {
        found.insert(Occurrence { kernel, operators });
    }
}

fn out(operation: &Operation) -> Option<&str> {
    operation.outputs.first().map(|o| o.data.as_str())
}

fn reads(operation: &Operation, data: &str) -> bool {
    operation.inputs.iter().any(|i| i.data == data)
}

fn is_bias(operation: &Operation) -> bool {
    operation.pass == Direction::Forward && operation.label() == "bias"
}

/// Whether an operation multiplies by a dropout mask.
fn drops(operation: &Operation) -> bool {
    matches!(&operation.op, Op::Elementwise { code, .. } if code.drops())
}

/// Whether an operation adds up tensors over the whole space, and does nothing else.
fn adds(operation: &Operation) -> bool {
    fn sum(code: &Scalar) -> bool {
        match code {
            Scalar::Input(_) => true,
            Scalar::Binary(Binary::Add, a, b) => sum(a) && sum(b),
            _ => false,
        }
    }
    let whole = operation.inputs.len() > 1 && operation.inputs.iter().all(|i| i.subscripts.len() == operation.indices.len());
    whole && matches!(&operation.op, Op::Elementwise { code, .. } if sum(code))
}

/// One tensor in, one out, without a mask.
fn is_activation(operation: &Operation) -> bool {
    matches!(operation.op, Op::Elementwise { .. }) && operation.inputs.len() == 1 && !drops(operation)
}

/// Whether an operation sums one tensor over some of its dims.
fn is_sum_over(operation: &Operation) -> bool {
    operation.inputs.len() == 1 && matches!(&operation.op, Op::Reduce { combine: Combine::Sum, code: Scalar::Input(_), .. })
}
