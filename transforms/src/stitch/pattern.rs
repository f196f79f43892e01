//! What a pattern saves, and what it is without names.

use super::classes::AccessClass;
use super::graph::OperatorGraph;
use std::collections::HashMap;
use std::fmt::Write;

/// What a pattern saves against its operators, each a kernel alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saving {
    /// Bytes that no longer go to memory: intermediate results, and what several members read.
    pub bytes: u64,
    /// Kernels that no longer start.
    pub launches: u64,
    /// Bytes that a block must hold for a reduction whose readers are in the pattern.
    pub on_chip: u64,
    /// Whether the pattern is among those whose time no model tells: a column or scalar reduction beside a row reduction, or a product
    /// beside a reduction.
    pub is_complex: bool,
}

/// Finds savings; keeps what it needs from one pattern to the next.
pub struct Savings<'a> {
    graph: &'a OperatorGraph,
    bytes: Vec<u64>,
    /// By operator: the number of the last pattern that it was a member of.
    member: Vec<u32>,
    /// By tensor: the last pattern that read or wrote it, and the bytes so far.
    read: Vec<(u32, u64)>,
    written: Vec<(u32, u64)>,
    pattern: u32,
}

impl<'a> Savings<'a> {
    pub fn new(graph: &'a OperatorGraph) -> Self {
        let bytes = (0..graph.len() as u32).map(|operator| graph.bytes(operator)).collect();
        let none = vec![(0, 0); graph.tensors.len()];
        Savings { graph, bytes, member: vec![0; graph.len()], read: none.clone(), written: none, pattern: 0 }
    }

    pub fn of(&mut self, members: &[u32]) -> Saving {
        self.pattern += 1;
        let pattern = self.pattern;
        members.iter().for_each(|m| self.member[*m as usize] = pattern);
        let (graph, member) = (self.graph, &self.member);
        let inside = |operator: &u32| member[*operator as usize] == pattern;
        let (mut alone, mut moved, mut on_chip) = (0u64, 0u64, 0u64);
        let mut has = [false; 3];
        for at in members {
            let operator = graph.operator(*at);
            alone += self.bytes[*at as usize];
            for (tensor, bytes) in &operator.writes {
                let readers = graph.readers(*tensor);
                if graph.tensors[*tensor as usize].leaves || !readers.iter().all(inside) {
                    moved += more(&mut self.written[*tensor as usize], pattern, *bytes, graph.tensors[*tensor as usize].bytes);
                }
                if readers.iter().any(inside) {
                    on_chip = on_chip.max(operator.on_chip);
                }
            }
            match operator.class {
                AccessClass::RowReduction => has[0] = true,
                AccessClass::ColumnReduction | AccessClass::ScalarReduction => has[1] = true,
                AccessClass::Gemm | AccessClass::BatchedGemm => has[2] = true,
                AccessClass::Elementwise | AccessClass::Opaque => {}
            }
        }
        for (tensor, bytes) in members.iter().flat_map(|m| &graph.operator(*m).reads) {
            if !graph.writers(*tensor).iter().any(inside) {
                moved += more(&mut self.read[*tensor as usize], pattern, *bytes, graph.tensors[*tensor as usize].bytes);
            }
        }
        Saving {
            bytes: alone.saturating_sub(moved),
            launches: members.len() as u64 - 1,
            on_chip,
            is_complex: (has[0] && has[1]) || (has[2] && (has[0] || has[1])),
        }
    }
}

/// Bytes that an access adds to what a pattern moves of a tensor: parts add up to the whole at most.
fn more(known: &mut (u32, u64), pattern: u32, bytes: u64, whole: u64) -> u64 {
    if known.0 != pattern {
        *known = (pattern, 0);
    }
    let before = known.1;
    known.1 = before.saturating_add(bytes).min(whole.max(bytes));
    known.1 - before.min(known.1)
}

/// A pattern without names: equal for patterns that are the same kernel, so that one is built for all. Members are in an order in which
/// they can run.
pub fn structure(graph: &OperatorGraph, members: &[u32]) -> String {
    let mut number: HashMap<u32, usize> = HashMap::new();
    let mut text = String::new();
    let inside: std::collections::HashSet<u32> = members.iter().copied().collect();
    for member in members {
        let operator = graph.operator(*member);
        let _ = write!(text, "{}(", operator.kind);
        for (tensor, bytes) in &operator.reads {
            let next = number.len();
            let _ = write!(text, "{}:{},", number.entry(*tensor).or_insert(next), bytes);
        }
        text.push_str(")->");
        for (tensor, bytes) in &operator.writes {
            let next = number.len();
            let leaves = graph.tensors[*tensor as usize].leaves || graph.readers(*tensor).iter().any(|r| !inside.contains(r));
            let _ = write!(text, "{}:{}{},", number.entry(*tensor).or_insert(next), bytes, if leaves { "!" } else { "" });
        }
        text.push(';');
    }
    text
}
