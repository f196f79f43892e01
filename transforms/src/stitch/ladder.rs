//! Substitution fusion: everything between two neighbouring partition operators is one pattern.
//!
//! The set of partition operators grows rung by rung; each rung gives patterns, and all are candidates. Operators are sorted by *depth in
//! partition operators*: the number of partition operators on the longest path to them, partition operators of one depth side by side.
//! A finer rung sorts within the patterns of the coarser one. So all patterns of all rungs are intervals of one order, in which no kernel
//! ever waits for a later one.
//!
//! *Source*: "FusionStitching" (Long, Yang, Lin), Algorithm 1, which leaves the order open. By depth, the longest rung has a third of the
//! patterns that the order of the program gives, and no candidate is lost.

use super::classes::Class;
use super::graph::OperatorGraph;
use std::collections::BTreeMap;

/// The operators in one order, and patterns that are intervals of it.
#[derive(Clone, Debug)]
pub struct Ladder {
    pub order: Vec<u32>,
    /// Operators of each pattern in that order, at least two; with the rung that it comes from, the first being 0.
    pub patterns: Vec<(usize, Vec<u32>)>,
    /// The intervals between operators that no pattern holds, whether or not they have one operator: what exploration stays within.
    pub segments: Vec<Vec<u32>>,
}

/// Whether an operator is a partition operator of each rung. Opaque operators and products are of all rungs.
const RUNGS: [fn(Class) -> bool; 5] = [
    |class| matches!(class, Class::Gemm | Class::Opaque),
    |class| matches!(class, Class::Gemm | Class::Opaque | Class::BatchedGemm),
    |class| matches!(class, Class::Gemm | Class::Opaque | Class::BatchedGemm | Class::ColumnReduction),
    |class| {
        matches!(class, Class::Gemm | Class::Opaque | Class::BatchedGemm | Class::ColumnReduction | Class::ScalarReduction)
    },
    |class| class != Class::Elementwise,
];

/// The ladder of a graph.
pub fn ladder(graph: &OperatorGraph) -> Ladder {
    let all: Vec<u32> = (0..graph.len() as u32).collect();
    let mut found = Ladder { order: Vec::with_capacity(all.len()), patterns: Vec::new(), segments: Vec::new() };
    let mut inside = vec![0u32; graph.len()];
    let mut next = 1;
    climb(graph, all, 0, &mut inside, &mut next, &mut found);
    found
}

/// Sorts operators by depth in the partition operators of a rung, and their patterns by those of the next.
fn climb(graph: &OperatorGraph, list: Vec<u32>, rung: usize, inside: &mut [u32], next: &mut u32, found: &mut Ladder) {
    let Some(is_partition) = RUNGS.get(rung) else {
        found.order.extend(list);
        return;
    };
    let number = *next;
    *next += 1;
    list.iter().for_each(|operator| inside[*operator as usize] = number);
    let mut depth: BTreeMap<u32, u32> = BTreeMap::new();
    let mut levels: BTreeMap<(u32, bool), Vec<u32>> = BTreeMap::new();
    for operator in &list {
        let cuts = |other: u32| is_partition(graph.operator(other).class);
        let inner = graph.before(*operator).iter().filter(|b| inside[**b as usize] == number);
        let own = inner.map(|b| depth[b] + u32::from(cuts(*b))).max().unwrap_or(0);
        depth.insert(*operator, own);
        levels.entry((own, cuts(*operator))).or_default().push(*operator);
    }
    for ((_, cuts), level) in levels {
        if cuts {
            found.order.extend(level);
            continue;
        }
        if rung == 0 {
            found.segments.push(level.clone());
        }
        for part in connected(graph, &level, inside, next) {
            // Unconnected parts of a level side by side: each is a pattern, and so is the whole.
            if part.len() > 1 && part.len() < level.len() {
                found.patterns.push((rung, part.clone()));
            }
            climb(graph, part, rung + 1, inside, next, found);
        }
        if level.len() > 1 {
            found.patterns.push((rung, level));
        }
    }
}

/// Operators that hand on to one another or read a tensor that another reads, directly or through others; in the order of the list.
fn connected(graph: &OperatorGraph, level: &[u32], inside: &mut [u32], next: &mut u32) -> Vec<Vec<u32>> {
    let number = *next;
    *next += 1;
    level.iter().for_each(|operator| inside[*operator as usize] = number);
    let mut parts: Vec<Vec<u32>> = Vec::new();
    for start in level {
        if inside[*start as usize] != number {
            continue;
        }
        let mut part = Vec::new();
        let mut waiting = vec![*start];
        inside[*start as usize] = 0;
        while let Some(operator) = waiting.pop() {
            part.push(operator);
            for other in graph.before(operator).iter().chain(graph.after(operator)) {
                if inside[*other as usize] == number {
                    inside[*other as usize] = 0;
                    waiting.push(*other);
                }
            }
        }
        part.sort_unstable();
        parts.push(part);
    }
    parts
}
