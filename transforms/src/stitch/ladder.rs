//! Substitution fusion: everything between two neighbouring partition operators is one pattern.
//!
//! The set of partition operators grows rung by rung; each rung gives patterns, and all are candidates. Operators are sorted by *depth in
//! partition operators*: the number of partition operators on the longest path to them, partition operators of one depth side by side.
//! A finer rung sorts within the patterns of the coarser one. So all patterns of all rungs are intervals of one order, in which no kernel
//! ever waits for a later one.
//!
//! The depth may be counted from the beginning or from the end: operators then run as early as they can, or as late. Updates of parameters
//! follow one product each in the first case, and all products in the second. Patterns of one sorting are nested or apart; those of several
//! overlap, and may wait for one another.
//!
//! *Source*: "FusionStitching" (Long, Yang, Lin), Algorithm 1, which leaves the order open. By depth, the longest rung has a third of the
//! patterns that the order of the program gives, and no candidate is lost.

use super::classes::AccessClass;
use super::graph::OperatorGraph;
use std::collections::{BTreeMap, HashMap};

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
const RUNGS: [fn(AccessClass) -> bool; 5] = [
    |class| matches!(class, AccessClass::Gemm | AccessClass::Opaque),
    |class| matches!(class, AccessClass::Gemm | AccessClass::Opaque | AccessClass::BatchedGemm),
    |class| matches!(class, AccessClass::Gemm | AccessClass::Opaque | AccessClass::BatchedGemm | AccessClass::ColumnReduction),
    |class| {
        matches!(
            class,
            AccessClass::Gemm
                | AccessClass::Opaque
                | AccessClass::BatchedGemm
                | AccessClass::ColumnReduction
                | AccessClass::ScalarReduction
        )
    },
    |class| class != AccessClass::Elementwise,
];

/// Where the depth of operators is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sorting {
    /// The beginning: operators as early as they can run.
    Earliest,
    /// The end: as late as they can run.
    Latest,
    /// Nowhere: operators in the order of the program, as the paper's algorithm has them.
    Program,
}

/// The ladder of a graph.
pub fn ladder(graph: &OperatorGraph, sorting: Sorting) -> Ladder {
    let all: Vec<u32> = (0..graph.len() as u32).collect();
    let mut found = Ladder { order: Vec::with_capacity(all.len()), patterns: Vec::new(), segments: Vec::new() };
    Climb { graph, sorting, inside: vec![0; graph.len()], next: 0, found: &mut found }.climb(all, 0);
    found
}

struct Climb<'a> {
    graph: &'a OperatorGraph,
    sorting: Sorting,
    /// By operator: the number of the list that it is in.
    inside: Vec<u32>,
    next: u32,
    found: &'a mut Ladder,
}

impl Climb<'_> {
    /// Sorts operators by depth in the partition operators of a rung, and their patterns by those of the next.
    fn climb(&mut self, list: Vec<u32>, rung: usize) {
        let Some(is_partition) = RUNGS.get(rung) else {
            self.found.order.extend(list);
            return;
        };
        let number = self.enter(&list);
        let cuts = |other: u32| is_partition(self.graph.operator(other).class);
        let mut depth: HashMap<u32, i64> = HashMap::with_capacity(list.len());
        let mut levels: BTreeMap<(i64, bool), Vec<u32>> = BTreeMap::new();
        let earliest = self.sorting != Sorting::Latest;
        let mut passed = 0;
        let in_turn: Vec<u32> = if earliest { list } else { list.into_iter().rev().collect() };
        for operator in in_turn {
            let near = if earliest { self.graph.before(operator) } else { self.graph.after(operator) };
            let inner = near.iter().filter(|other| self.inside[**other as usize] == number);
            let own = match self.sorting {
                Sorting::Program => passed,
                _ => inner.map(|other| depth[other] + i64::from(cuts(*other))).max().unwrap_or(0),
            };
            passed += i64::from(cuts(operator));
            depth.insert(operator, own);
            // Operators of one depth run before the partition operators of that depth, or after them if it is counted from the end.
            levels.entry(if earliest { (own, cuts(operator)) } else { (-own, !cuts(operator)) }).or_default().push(operator);
        }
        for ((_, second), mut level) in levels {
            level.sort_unstable();
            if second == earliest {
                self.found.order.extend(level);
                continue;
            }
            if rung == 0 {
                self.found.segments.push(level.clone());
            }
            for part in self.connected(&level) {
                // Unconnected parts of a level side by side: each is a pattern, and so is the whole.
                if part.len() > 1 && part.len() < level.len() {
                    self.found.patterns.push((rung, part.clone()));
                }
                self.climb(part, rung + 1);
            }
            if level.len() > 1 {
                self.found.patterns.push((rung, level));
            }
        }
    }

    /// Marks operators as those of a list: its number.
    fn enter(&mut self, list: &[u32]) -> u32 {
        self.next += 1;
        list.iter().for_each(|operator| self.inside[*operator as usize] = self.next);
        self.next
    }

    /// Operators that hand on to one another, directly or through others; in the order of the list.
    fn connected(&mut self, level: &[u32]) -> Vec<Vec<u32>> {
        let number = self.enter(level);
        let mut parts: Vec<Vec<u32>> = Vec::new();
        for start in level {
            if self.inside[*start as usize] != number {
                continue;
            }
            let mut part = Vec::new();
            let mut waiting = vec![*start];
            self.inside[*start as usize] = 0;
            while let Some(operator) = waiting.pop() {
                part.push(operator);
                for other in self.graph.before(operator).iter().chain(self.graph.after(operator)) {
                    if self.inside[*other as usize] == number {
                        self.inside[*other as usize] = 0;
                        waiting.push(*other);
                    }
                }
            }
            part.sort_unstable();
            parts.push(part);
        }
        parts
    }
}
