//! Operators as the paper's Table III draws their lines: groups of operations that count as one operator.
//!
//! - *scaled softmax*: a softmax and the dropout of its result; backward, the gradients of both;
//! - *stacked contractions* (Q, K, V): equal-sized contractions that read the same forward tensor and do not depend on
//!   each other; backward, contractions that are only added up, which then write one sum;
//! - the biases behind stacked contractions, and the gradients of these biases.
//!
//! A group reads what it does not make itself, once, and writes what others read or the caller gets back.

use super::{Movement, MovementError, Traffic, movement};
use crate::data::Role;
use crate::graph::Sdfg;
use crate::library::{Class, Op};
use crate::node::Operation;
use crate::scope::Unit;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// One operator: an operation, or a group of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperatorMovement {
    /// What a person calls it.
    pub label: String,
    /// Its name is that of its operations, joined by `+`.
    #[serde(flatten)]
    pub movement: Movement,
}

/// The operators of a program that is not fused yet. Units that are no operations stand for themselves.
pub fn operators(program: &Sdfg) -> Result<Vec<OperatorMovement>, MovementError> {
    Ok(grouped(program, movement(program)?, true))
}

/// The operators of a program that has these kernels; `softmax`: whether a softmax and its dropout are one operator.
pub(super) fn grouped(program: &Sdfg, mut kernels: Vec<Movement>, softmax: bool) -> Vec<OperatorMovement> {
    let units = program.units();
    if units.len() != kernels.len() {
        return kernels.into_iter().map(|movement| OperatorMovement { label: movement.name.clone(), movement }).collect();
    }
    let operations: Vec<Option<Operation>> =
        units.into_iter().map(|(_, _, unit)| if let Unit::Operation(o) = unit { Some(o) } else { None }).collect();
    let graph = Flow::new(&operations);
    let mut groups: Vec<(Option<String>, Vec<usize>)> = Vec::new();
    if softmax {
        groups.extend(graph.scaled_softmax());
    }
    let stacked = graph.stacked();
    groups.extend(graph.biases(&stacked));
    groups.extend(stacked.into_iter().map(|members| (None, members)));
    for members in graph.summed() {
        graph.sum_within(&members, &mut kernels);
        groups.push((None, members));
    }
    let mut owner: BTreeMap<usize, usize> = BTreeMap::new();
    for (n, (_, members)) in groups.iter().enumerate() {
        // An operation belongs to the first group that claims it whole.
        if members.iter().all(|m| !owner.contains_key(m)) {
            owner.extend(members.iter().map(|m| (*m, n)));
        }
    }
    let mut rows = Vec::new();
    for (n, kernel) in kernels.iter().enumerate() {
        let operation = operations.get(n).and_then(Option::as_ref);
        let own_label = || operation.map_or_else(|| kernel.name.clone(), |o| o.label().to_string());
        match owner.get(&n).and_then(|g| groups.get(*g)) {
            Some((label, members)) if members.first() == Some(&n) => {
                let label = label.clone().unwrap_or_else(own_label);
                rows.push(OperatorMovement { label, movement: graph.merged(program, &kernels, members) });
            }
            Some(_) => {}
            None if kernel.writes.is_empty() && kernel.reads.is_empty() => {}
            None => rows.push(OperatorMovement { label: own_label(), movement: kernel.clone() }),
        }
    }
    rows
}

/// Who makes and who reads what.
struct Flow<'a> {
    operations: &'a [Option<Operation>],
    makers: HashMap<&'a str, usize>,
    readers: BTreeMap<&'a str, Vec<usize>>,
}

fn keeps(operation: &Operation) -> bool {
    matches!(&operation.op, Op::Elementwise { code, .. } if code.drops())
}

impl<'a> Flow<'a> {
    fn new(operations: &'a [Option<Operation>]) -> Self {
        let mut flow = Flow { operations, makers: HashMap::new(), readers: BTreeMap::new() };
        for (n, operation) in flow.all() {
            for input in &operation.inputs {
                flow.readers.entry(&input.data).or_default().push(n);
            }
            flow.makers.extend(operation.outputs.iter().map(|o| (o.data.as_str(), n)));
        }
        flow
    }

    /// Whether an operation depends on one of some before it.
    fn depends(&self, operation: usize, on: &[usize]) -> bool {
        let Some(first) = on.iter().min() else { return false };
        let (mut next, mut met) = (vec![operation], HashSet::new());
        while let Some(n) = next.pop() {
            for input in self.operations.get(n).and_then(Option::as_ref).into_iter().flat_map(|o| &o.inputs) {
                match self.makers.get(input.data.as_str()).filter(|maker| **maker < n && *maker >= first) {
                    Some(maker) if on.contains(maker) => return true,
                    Some(maker) if met.insert(*maker) => next.push(*maker),
                    _ => {}
                }
            }
        }
        false
    }

    fn all(&self) -> impl Iterator<Item = (usize, &'a Operation)> + use<'a> {
        self.operations.iter().enumerate().filter_map(|(n, o)| Some((n, o.as_ref()?)))
    }

    fn maker(&self, data: &str) -> Option<(usize, &'a Operation)> {
        let n = *self.makers.get(data)?;
        Some((n, self.operations.get(n)?.as_ref()?))
    }

    fn scaled_softmax(&self) -> Vec<(Option<String>, Vec<usize>)> {
        let mut groups = Vec::new();
        for (n, operation) in self.all() {
            let (forward, backward) = (keeps(operation), matches!(operation.op, Op::SoftmaxGrad { .. }));
            for input in &operation.inputs {
                let Some((maker, made)) = self.maker(&input.data) else { continue };
                if forward && matches!(made.op, Op::Softmax { .. }) && made.origin == operation.origin && made.pass == operation.pass {
                    groups.push((Some("scaled softmax".to_string()), vec![maker, n]));
                } else if backward && input.connector == "dy" && keeps(made) && made.origin == operation.origin {
                    groups.push((Some("scaled softmax dX".to_string()), vec![maker, n]));
                }
            }
        }
        groups
    }

    /// Contractions that read one forward tensor. Gradients bear a reserved prefix.
    fn stacked(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut claimed: HashSet<usize> = HashSet::new();
        for (data, readers) in &self.readers {
            if data.starts_with("d_") {
                continue;
            }
            let mut by_shape: BTreeMap<(bool, Vec<bool>), Vec<usize>> = BTreeMap::new();
            for n in readers {
                let Some(Some(operation)) = self.operations.get(*n) else { continue };
                if !matches!(operation.op, Op::Contraction { .. }) || claimed.contains(n) {
                    continue;
                }
                // Which of its dims are summed: equal ones can be stacked along the others.
                let Some(names) = operation.inputs.iter().find(|o| o.data == *data).and_then(|o| o.index_names()) else { continue };
                let reduced = operation.reduced();
                let summed: Vec<bool> = names.iter().map(|i| reduced.contains(i)).collect();
                let members = by_shape.entry((operation.pass == crate::node::Direction::Backward, summed)).or_default();
                if !members.contains(n) && !self.depends(*n, members) {
                    members.push(*n);
                }
            }
            for members in by_shape.into_values().filter(|members| members.len() > 1) {
                claimed.extend(&members);
                groups.push(members);
            }
        }
        groups
    }

    fn biases(&self, stacked: &[Vec<usize>]) -> Vec<(Option<String>, Vec<usize>)> {
        let mut groups = Vec::new();
        for members in stacked {
            let results = members.iter().filter_map(|m| self.operations.get(*m)?.as_ref()).flat_map(|o| &o.outputs);
            let readers = results.flat_map(|out| self.readers.get(out.data.as_str()).into_iter().flatten().copied());
            let labelled = |n: &usize, label: &str| self.operations.get(*n).and_then(Option::as_ref).is_some_and(|o| o.label() == label);
            let biases: BTreeSet<usize> = readers.filter(|n| labelled(n, "bias")).collect();
            let added = biases.iter().filter_map(|n| self.operations.get(*n)?.as_ref()).flat_map(|o| &o.inputs);
            let gradients = added.filter_map(|input| self.makers.get(format!("d_{}", input.data).as_str()).copied());
            let gradients: BTreeSet<usize> = gradients.filter(|n| labelled(n, "bias dW")).collect();
            groups.push((None, biases.into_iter().collect()));
            groups.push((None, gradients.into_iter().collect()));
        }
        groups.retain(|(_, members): &(Option<String>, Vec<usize>)| members.len() > 1);
        groups
    }

    /// Backward contractions whose results nothing but one addition reads.
    fn summed(&self) -> Vec<Vec<usize>> {
        let mut by_sum: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (n, operation) in self.all() {
            let Some(out) = operation.outputs.first() else { continue };
            if let (Op::Contraction { .. }, Some([reader])) = (&operation.op, self.readers.get(out.data.as_str()).map(Vec::as_slice))
                && self.operations.get(*reader).and_then(Option::as_ref).is_some_and(|r| r.label() == "residual")
                && operation.pass == crate::node::Direction::Backward
            {
                by_sum.entry(*reader).or_default().push(n);
            }
        }
        by_sum.into_values().filter(|m| m.len() > 1).collect()
    }

    /// Contractions of a group add their results into one tensor: the group writes one result, and the addition reads one operand or
    /// is left out.
    fn sum_within(&self, members: &[usize], kernels: &mut [Movement]) {
        let outs: Vec<Traffic> = members.iter().filter_map(|m| kernels.get(*m)?.writes.first().cloned()).collect();
        let Some((first, others)) = outs.split_first() else { return };
        let Some(adder) = self.readers.get(first.data.as_str()).and_then(|r| r.first()).copied() else { return };
        for member in members.iter().skip(1) {
            if let Some(kernel) = kernels.get_mut(*member) {
                kernel.writes.clear();
            }
        }
        let Some(kernel) = kernels.get_mut(adder) else { return };
        kernel.reads.retain(|t| others.iter().all(|o| o.data != t.data));
        kernel.flop = kernel.flop.saturating_sub(others.iter().map(|o| o.elements).sum());
        if let ([only], [sum]) = (kernel.reads.as_slice(), kernel.writes.as_slice())
            && only.data == first.data
        {
            let sum = sum.clone();
            kernel.reads.clear();
            kernel.writes.clear();
            if let Some(kernel) = members.first().and_then(|m| kernels.get_mut(*m)) {
                kernel.writes = vec![sum];
            }
        }
    }

    fn merged(&self, program: &Sdfg, kernels: &[Movement], members: &[usize]) -> Movement {
        let parts: Vec<&Movement> = members.iter().filter_map(|m| kernels.get(*m)).collect();
        let made: BTreeSet<&str> = parts.iter().flat_map(|k| &k.writes).map(|t| t.data.as_str()).collect();
        let mut reads: Vec<Traffic> = Vec::new();
        for traffic in parts.iter().flat_map(|k| &k.reads).filter(|t| !made.contains(t.data.as_str())) {
            match reads.iter_mut().find(|t| t.data == traffic.data) {
                Some(known) if known.elements < traffic.elements => *known = traffic.clone(),
                Some(_) => {}
                None => reads.push(traffic.clone()),
            }
        }
        let leaves = |t: &&Traffic| {
            program.containers.get(&t.data).is_none_or(|c| c.role != Role::Transient)
                || self.readers.get(t.data.as_str()).is_none_or(|r| r.iter().any(|n| !members.contains(n)))
        };
        Movement {
            name: parts.iter().map(|k| k.name.as_str()).collect::<Vec<_>>().join("+"),
            operators: parts.iter().flat_map(|k| k.operators.clone()).collect(),
            pass: parts.first().map_or(crate::node::Direction::Forward, |k| k.pass),
            class: parts.iter().map(|k| k.class).min().unwrap_or(Class::Elementwise),
            flop: parts.iter().map(|k| k.flop).sum(),
            reads,
            writes: parts.iter().flat_map(|k| &k.writes).filter(leaves).cloned().collect(),
            masks: parts.iter().flat_map(|k| k.masks.clone()).collect(),
        }
    }
}
