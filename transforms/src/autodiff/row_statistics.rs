//! Recomputed from row statistics: backward recomputes a large intermediate from the operands of its contraction, instead of reading it.
//!
//! ```text
//! forward:   s = Σ q·k;  a = softmax s                   s.max, s.sum are rows
//! backward:  d_s = a · (d_a − Σ d_a·a)                   (reads a)
//! becomes:   s.again = Σ q·k;  a.again = exp(s.again − max) / sum;  d_s = a.again · (…)
//! ```
//!
//! A softmax is split into maximum, exponential, sum and quotient. Forward saves the maximum and the sum, one number for each row.
//!
//! *Rule.* A *stream* starts at a forward contraction whose result is larger than each of its operands, and that costs at
//! most `INTENSITY` flop for each byte that is neither written nor read if it is computed twice. It goes on through
//! element-wise operations over as many elements. If a reduction of a stream (a row's maximum or sum) is used further down
//! the same stream, then everything of the stream that backward reads is computed again there: by one clone of each
//! operation, `<name>.again`, that all readers share. The rule does not apply where backward compares the stream with one of its own
//! rows, as the derivative of a maximum does, unless the comparison has no effect (`softmax_shift_invariance.rs`).
//!
//! [`RecomputeFrom`] says where recomputation begins: at the operands of the contraction (`s` is recomputed), at its result (`s` is read in
//! place of `a`, and `a` need not be written), or at the operands while tensors that other contractions read stay in memory.
//!
//! The pass pays only where the clones and their readers become one kernel ([`crate::Composition`]). Callers build programs with and
//! without it and compare. Afterwards [`crate::Recompute`] decides on all other tensors.
//! *Source*: the online normalizer's statistics, as in memory-efficient attention: rows are recomputed from their maximum
//! and sum.

use crate::autodiff::recompute::{RecomputeError, RecomputePolicy, Saved, forward_and_backward};
use crate::autodiff::softmax_shift_invariance::compared;
use crate::pass::{Context, Facts, Rewritten, Stopped, refused_at};
use sdfg::{
    Combine, Container, Direction, Dtype, Expr, Node, Op, Operand, Operation, Role, Scalar, Sdfg, StateId, Unit, library::Class,
    scalar::Unary,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Flop that one byte less through memory may cost. Two cores with wide vectors do about 20 in the time of one byte, many
/// cores that share a memory channel several times as many.
const INTENSITY: u64 = 64;

/// The tensors from which a stream is recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecomputeFrom {
    /// The operands of the contraction that it starts at.
    Contraction,
    /// That contraction's result.
    Memory,
    /// The operands of that contraction, but for what other contractions read.
    Products,
}

/// Applies the rule to a differentiated program of operators. A program without a state `backward`, or without a stream, is refused.
#[derive(Clone, Copy, Debug)]
pub struct RowStatistics {
    pub start: RecomputeFrom,
}

impl crate::pass::Pass for RowStatistics {
    fn name(&self) -> &'static str {
        "row statistics"
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let Some(backward) = program.state_named("backward") else {
            return Err(Stopped::at_program(self.name(), "the program has no state `backward`"));
        };
        let split = split_softmax(program, backward)?;
        let (forward, readers) = forward_and_backward(&split, backward)?;
        let streams = streams(&split, &forward, &readers)?;
        let inputs = |operations: &mut dyn Iterator<Item = &'_ Operation>| -> HashSet<String> {
            operations.flat_map(|o| &o.inputs).map(|input| input.data.clone()).collect()
        };
        let all_read = inputs(&mut readers.iter());
        let all_multiplied = inputs(&mut forward.iter().chain(&readers).filter(|o| o.class() == Class::Contraction));
        let read = |data: &str| all_read.contains(data);
        // Operands of contractions are in memory in any case.
        let multiplied = |data: &str| all_multiplied.contains(data);
        let in_memory = |o: &Operation, data: &str| match self.start {
            RecomputeFrom::Contraction => false,
            RecomputeFrom::Memory => o.class() == Class::Contraction || multiplied(data),
            RecomputeFrom::Products => multiplied(data),
        };
        let again = |o: &&Operation| out(o).is_some_and(|d| streams.contains(d) && read(d) && !in_memory(o, d));
        let wanted: Vec<&Operation> = forward.iter().filter(again).collect();
        if wanted.is_empty() {
            let rows = |o: &&Operation| matches!(o.op, Op::Softmax { .. } | Op::Normalize { .. });
            let why = "backward reads nothing of these rows that would pay to compute again from their statistics";
            let all = program.units().into_iter().filter_map(|(_, _, u)| if let Unit::Operation(o) = u { Some(o) } else { None });
            let all: Vec<Operation> = all.collect();
            let found = all.iter().filter(rows).map(|o| (o, why.to_string()));
            return Err(refused_at(self.name(), program, found, "no rows are normalized that follow from a contraction"));
        }
        // All containers that have to be recomputed for the wanted ones.
        let mut needed: BTreeSet<&str> = wanted.iter().filter_map(|o| out(o)).collect();
        let made: Vec<&Operation> = forward.iter().filter(|o| out(o).is_some_and(|d| streams.contains(d) && !in_memory(o, d))).collect();
        let makes: HashSet<&str> = made.iter().filter_map(|o| out(o)).collect();
        let streamed = |data: &str| makes.contains(data);
        for operation in made.iter().rev() {
            if out(operation).is_some_and(|d| needed.contains(d)) {
                needed.extend(operation.inputs.iter().map(|i| i.data.as_str()).filter(|d| streamed(d)));
            }
        }
        let chain: Vec<&Operation> = forward.iter().filter(|o| out(o).is_some_and(|d| needed.contains(d))).collect();
        let sources: BTreeSet<&str> =
            chain.iter().flat_map(|o| &o.inputs).map(|i| i.data.as_str()).filter(|d| !needed.contains(d)).collect();
        let from = sources.iter().map(|s| format!("`{s}`")).collect::<Vec<_>>().join(", ");
        let mut saved = Vec::new();
        for operation in &wanted {
            let Some(data) = out(operation) else { continue };
            let why = format!("from {from}, in the kernel that reads it; rows are normalized by their saved statistics");
            saved.push(Saved { container: data.to_string(), bytes: bytes(&split, data)?, policy: RecomputePolicy::Recomputed, why });
        }
        let names: Vec<String> = saved.iter().map(|s| format!("`{}`", s.container)).collect();
        let summary = format!("recompute rows of {} from their statistics", names.join(", "));
        let (program, recomputed) = with_clones(&split, backward, &chain)?;
        Ok(Rewritten::program(summary, program).with(Facts { saved, recomputed, ..Facts::default() }))
    }
}

fn out(operation: &Operation) -> Option<&str> {
    operation.outputs.first().map(|o| o.data.as_str())
}

fn bytes(program: &Sdfg, data: &str) -> Result<u64, RecomputeError> {
    program.bytes(data).map_err(|source| RecomputeError::Size { container: data.to_string(), source })
}

fn transient(program: &Sdfg, data: &str) -> bool {
    program.containers.get(data).is_some_and(|c| c.role == Role::Transient && c.view.is_none())
}

/// The containers of all streams that are normalized along the way.
fn streams(program: &Sdfg, forward: &[Operation], readers: &[Operation]) -> Result<BTreeSet<String>, RecomputeError> {
    let mut found = BTreeSet::new();
    let mut takers: HashMap<&str, Vec<usize>> = HashMap::new();
    for (n, operation) in forward.iter().enumerate() {
        operation.inputs.iter().for_each(|input| takers.entry(&input.data).or_default().push(n));
    }
    for root in forward {
        if let Some(stream) = stream(program, forward, readers, &takers, root)? {
            found.extend(stream);
        }
    }
    Ok(found)
}

/// The stream that starts at a contraction, if it is one, is normalized, and has no extremum that backward would have to find again.
/// `takers` are the positions of the forward operations that read a container.
fn stream(
    program: &Sdfg,
    forward: &[Operation],
    readers: &[Operation],
    takers: &HashMap<&str, Vec<usize>>,
    root: &Operation,
) -> Result<Option<BTreeSet<String>>, RecomputeError> {
    let Some(start) = out(root).filter(|d| root.class() == Class::Contraction && transient(program, d)) else { return Ok(None) };
    let size = bytes(program, start)?;
    for operand in &root.inputs {
        if bytes(program, &operand.data)? >= size {
            return Ok(None);
        }
    }
    let flop = root.flop(program).eval(&program.sizes).map_err(|source| RecomputeError::Size { container: start.to_string(), source })?;
    if flop.max(0) as u64 > INTENSITY.saturating_mul(2 * size) {
        return Ok(None);
    }
    let elements = |data: &str| program.elements(data).map_err(|source| RecomputeError::Size { container: data.to_string(), source });
    let count = elements(start)?;
    let mut stream = BTreeSet::from([start.to_string()]);
    // Tensors computed from a reduction of the stream that are not part of the stream.
    let mut rows: BTreeSet<&str> = BTreeSet::new();
    let mut normalized = false;
    let reads = |data: &str| takers.get(data).into_iter().flatten().copied();
    let mut next: BTreeSet<usize> = reads(start).collect();
    while let Some(operation) = next.pop_first().and_then(|n| forward.get(n)) {
        let Some(data) = out(operation) else { continue };
        let any = |set: &dyn Fn(&str) -> bool| operation.inputs.iter().any(|i| set(&i.data));
        let (of_stream, of_rows) = (any(&|d| stream.contains(d)), any(&|d| rows.contains(d)));
        match operation.op {
            Op::Elementwise { .. } if of_stream && transient(program, data) && elements(data)? == count => {
                normalized |= of_rows;
                stream.insert(data.to_string());
            }
            Op::Reduce { .. } if of_stream => {
                rows.insert(data);
            }
            Op::Elementwise { .. } if of_rows => {
                rows.insert(data);
            }
            _ => continue,
        }
        next.extend(reads(data));
    }
    let missed = normalized && !compared(program, forward, readers, &stream, &rows).is_empty();
    Ok((normalized && !missed).then_some(stream))
}

/// The program with each forward softmax as four operations.
fn split_softmax(program: &Sdfg, backward: StateId) -> Result<Sdfg, RecomputeError> {
    let mut result = program.clone();
    for (id, state) in program.states().filter(|(id, _)| *id != backward) {
        if state.nodes().any(|(_, v)| matches!(&v.node, Node::Library(l) if matches!(l.op, Op::Softmax { .. }))) {
            result.map_operations(id, |program, operation| match &operation.op {
                Op::Softmax { over } => split(program, &operation, over),
                _ => vec![operation],
            })?;
        }
    }
    Ok(result)
}

/// A softmax as maximum, exponential, sum and quotient.
fn split(program: &mut Sdfg, softmax: &Operation, over: &[String]) -> Vec<Operation> {
    let (Some(x), Some(y)) = (softmax.inputs.first(), softmax.outputs.first()) else { return vec![softmax.clone()] };
    let Some(like) = program.containers.get(&y.data).cloned() else { return vec![softmax.clone()] };
    let kept: Vec<(&String, &String)> = softmax.indices.iter().filter(|(name, _)| !over.contains(name)).collect();
    let row: Vec<Expr> = kept.iter().map(|(name, _)| Expr::sym(name.as_str())).collect();
    let mut declare = |suffix: &str, dims: Vec<String>, dtype: Dtype| {
        let name = program.fresh_name(&format!("{}.{suffix}", softmax.name));
        program.add_container(Container {
            name: name.clone(),
            dims,
            dtype,
            role: Role::Transient,
            grad: false,
            view: None,
            ..like.clone()
        });
        name
    };
    let dims: Vec<String> = kept.iter().map(|(_, dim)| (*dim).clone()).collect();
    // A statistic scales a whole row: it is kept in single precision at least.
    let fine = if like.dtype.roundoff() > Dtype::F32.roundoff() { Dtype::F32 } else { like.dtype };
    let (top, powers, sum) =
        (declare("max", dims.clone(), fine), declare("exp", like.dims.clone(), like.dtype), declare("sum", dims, fine));
    let operand = |connector: &str, data: &str, subscripts: &[Expr]| Operand {
        connector: connector.into(),
        data: data.into(),
        subscripts: subscripts.to_vec(),
        fill: None,
    };
    let operation = |name: &str, op: Op, inputs: Vec<Operand>, output: Operand| Operation {
        name: name.to_string(),
        op,
        inputs,
        outputs: vec![output],
        ..softmax.clone()
    };
    let reduce = |label: &str, combine: Combine, of: &str| Op::Reduce {
        label: label.into(),
        combine,
        code: Scalar::input(of),
        scale: Scalar::Const(1.0),
    };
    let each = |label: &str, code: Scalar| Op::Elementwise { label: label.into(), code };
    let value = x.like("x", &x.data);
    let power = |connector: &str| operand(connector, &powers, &y.subscripts);
    vec![
        operation(&top, reduce("row maximum", Combine::Max, "x"), vec![value.clone()], operand("out", &top, &row)),
        operation(
            &powers,
            each("exponential", Scalar::unary(Unary::Exp, Scalar::input("x") - Scalar::input("max"))),
            vec![value, operand("max", &top, &row)],
            power("out"),
        ),
        operation(&sum, reduce("row sum", Combine::Sum, "exp"), vec![power("exp")], operand("out", &sum, &row)),
        operation(
            &softmax.name,
            each("softmax", Scalar::input("exp") / Scalar::input("sum")),
            vec![power("exp"), operand("sum", &sum, &row)],
            operand("out", &y.data, &y.subscripts),
        ),
    ]
}

/// The program with clones in its backward state, before their first reader, and readers that read them; and the names of the clones.
fn with_clones(program: &Sdfg, backward: StateId, chain: &[&Operation]) -> Result<(Sdfg, Vec<String>), RecomputeError> {
    let mut result = program.clone();
    let mut again: BTreeMap<String, String> = BTreeMap::new();
    for data in chain.iter().filter_map(|o| out(o)) {
        let name = result.fresh_name(&format!("{data}.again"));
        if let Some(like) = program.containers.get(data) {
            result.add_container(Container { name: name.clone(), ..like.clone() });
        }
        again.insert(data.to_string(), name);
    }
    let mut clones = Clones { chain, again: &again, made: BTreeSet::new() };
    result.map_operations(backward, |_, reader| {
        let mut operations = Vec::new();
        for input in &reader.inputs {
            if again.contains_key(&input.data) {
                clones.make(&input.data, &mut operations);
            }
        }
        operations.push(Operation { inputs: clones.renamed(&reader.inputs), ..reader });
        operations
    })?;
    Ok((result, again.into_values().collect()))
}

/// The clones of a chain of forward operations that exist so far.
struct Clones<'a> {
    chain: &'a [&'a Operation],
    /// Forward container → its clone.
    again: &'a BTreeMap<String, String>,
    /// Forward containers whose clones are made.
    made: BTreeSet<&'a str>,
}

impl Clones<'_> {
    fn renamed(&self, operands: &[Operand]) -> Vec<Operand> {
        operands.iter().map(|o| Operand { data: self.again.get(&o.data).unwrap_or(&o.data).clone(), ..o.clone() }).collect()
    }

    /// Appends the clones that make `data` and are not there yet.
    fn make(&mut self, data: &str, operations: &mut Vec<Operation>) {
        let Some(link) = self.chain.iter().find(|o| out(o) == Some(data)) else { return };
        if !out(link).is_some_and(|d| self.made.insert(d)) {
            return;
        }
        for input in link.inputs.iter().filter(|i| self.again.contains_key(&i.data)) {
            self.make(&input.data, operations);
        }
        operations.push(Operation {
            name: self.again.get(data).cloned().unwrap_or_default(),
            inputs: self.renamed(&link.inputs),
            outputs: self.renamed(&link.outputs),
            pass: Direction::Backward,
            op: link.op.clone(),
            indices: link.indices.clone(),
            origin: link.origin.clone(),
        });
    }
}
