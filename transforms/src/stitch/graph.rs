//! Operators and the tensors between them, as numbers.

use super::classes::AccessClass;
use fixedbitset::FixedBitSet;

/// A tensor in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphTensor {
    pub bytes: u64,
    /// Whether the caller, or another graph, needs it.
    pub leaves: bool,
}

/// An operator, by the numbers of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphOperator {
    pub name: String,
    pub class: AccessClass,
    /// What it computes, without names: operators with equal kinds are the same function of tensors of equal sizes.
    pub kind: String,
    /// Tensors, and the bytes of each that it reads or writes; each tensor once.
    pub reads: Vec<(u32, u64)>,
    pub writes: Vec<(u32, u64)>,
    /// Bytes that a block must have seen before a reader in the same kernel goes on: a row of a row reduction, all that a column or scalar
    /// reduction sums up; 0 for others.
    pub on_chip: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    #[error("`{operator}` names tensor {tensor}, but there are {tensors}")]
    NoTensor { operator: String, tensor: u32, tensors: usize },
    #[error("`{operator}` reads what a later operator writes: list operators in an order in which they can run")]
    Order { operator: String },
}

/// A graph of operators, listed in an order in which they can run.
#[derive(Clone, Debug)]
pub struct OperatorGraph {
    pub operators: Vec<GraphOperator>,
    pub tensors: Vec<GraphTensor>,
    /// By tensor: the operators that write and that read it.
    writers: Vec<Vec<u32>>,
    readers: Vec<Vec<u32>>,
    after: Vec<Vec<u32>>,
    before: Vec<Vec<u32>>,
}

impl OperatorGraph {
    /// # Errors
    /// A tensor that is not listed, or an operator before one whose result it reads.
    pub fn new(operators: Vec<GraphOperator>, tensors: Vec<GraphTensor>) -> Result<Self, GraphError> {
        let mut writers = vec![Vec::new(); tensors.len()];
        let mut readers = vec![Vec::new(); tensors.len()];
        for (n, operator) in operators.iter().enumerate() {
            if let Some(tensor) = operator.tensors().find(|t| *t as usize >= tensors.len()) {
                return Err(GraphError::NoTensor { operator: operator.name.clone(), tensor, tensors: tensors.len() });
            }
            operator.writes.iter().for_each(|(t, _)| writers[*t as usize].push(n as u32));
            operator.reads.iter().for_each(|(t, _)| readers[*t as usize].push(n as u32));
        }
        let mut before: Vec<Vec<u32>> = Vec::with_capacity(operators.len());
        let mut after = vec![Vec::new(); operators.len()];
        for (n, operator) in operators.iter().enumerate() {
            let mut makers: Vec<u32> = operator.reads.iter().flat_map(|(t, _)| &writers[*t as usize]).copied().collect();
            makers.sort_unstable();
            makers.dedup();
            makers.retain(|maker| *maker as usize != n);
            if makers.last().is_some_and(|last| *last as usize > n) {
                return Err(GraphError::Order { operator: operator.name.clone() });
            }
            makers.iter().for_each(|maker| after[*maker as usize].push(n as u32));
            before.push(makers);
        }
        Ok(OperatorGraph { operators, tensors, writers, readers, after, before })
    }

    pub fn len(&self) -> usize {
        self.operators.len()
    }

    pub fn is_empty(&self) -> bool {
        self.operators.is_empty()
    }

    pub fn operator(&self, at: u32) -> &GraphOperator {
        &self.operators[at as usize]
    }

    /// The operators that read what one writes, and those whose results it reads; sorted.
    pub fn after(&self, at: u32) -> &[u32] {
        &self.after[at as usize]
    }

    pub fn before(&self, at: u32) -> &[u32] {
        &self.before[at as usize]
    }

    pub fn readers(&self, tensor: u32) -> &[u32] {
        &self.readers[tensor as usize]
    }

    pub fn writers(&self, tensor: u32) -> &[u32] {
        &self.writers[tensor as usize]
    }

    pub fn edges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..self.len() as u32).flat_map(|from| self.after(from).iter().map(move |to| (from, *to)))
    }

    /// Bytes that an operator moves alone.
    pub fn bytes(&self, at: u32) -> u64 {
        let operator = self.operator(at);
        operator.reads.iter().chain(&operator.writes).map(|(_, bytes)| bytes).sum()
    }
}

impl GraphOperator {
    fn tensors(&self) -> impl Iterator<Item = u32> + '_ {
        self.reads.iter().chain(&self.writes).map(|(tensor, _)| *tensor)
    }
}

/// Operators of a short list with all that each depends on within it.
pub(super) struct Ancestors {
    /// By position in the list.
    pub before: Vec<FixedBitSet>,
}

impl Ancestors {
    /// `number` gives the position in the list; the list is in an order in which operators can run.
    pub fn new(graph: &OperatorGraph, list: &[u32], number: &dyn Fn(u32) -> Option<usize>) -> Self {
        let mut before: Vec<FixedBitSet> = Vec::with_capacity(list.len());
        for operator in list {
            let mut own = FixedBitSet::with_capacity(list.len());
            for maker in graph.before(*operator).iter().filter_map(|b| number(*b)) {
                own.insert(maker);
                own.union_with(&before[maker]);
            }
            before.push(own);
        }
        Ancestors { before }
    }

    /// Whether no operator of the list depends on a member and is depended on by one without being a member.
    pub fn is_convex(&self, members: &FixedBitSet) -> bool {
        let mut needed = FixedBitSet::with_capacity(self.before.len());
        members.ones().for_each(|m| needed.union_with(&self.before[m]));
        needed.difference_with(members);
        needed.ones().all(|between| self.before[between].is_disjoint(members))
    }
}
