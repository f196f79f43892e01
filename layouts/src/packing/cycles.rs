//! Cycles among the kernels of a choice, each by the fewest patterns that a search finds, for cuts.

use super::dag::Dag;
use std::collections::{BTreeMap, VecDeque};

/// Patterns that wait for one another, and the edges that show it: each begins where the one before ends, or in the same pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// Positions in the list of patterns, sorted.
    pub patterns: Vec<u32>,
    pub edges: Vec<(u32, u32)>,
}

/// Cycles of the graph in which each pattern is one node and all other operators are nodes of their own: at least one for every pattern
/// that is in a cycle, each set of patterns once. Patterns are disjoint.
pub fn cycles<M: AsRef<[u32]>>(dag: &Dag, patterns: &[M]) -> Vec<Cycle> {
    let count = patterns.len();
    let mut node: Vec<u32> = (0..dag.operators()).map(|operator| (count + operator) as u32).collect();
    for (n, pattern) in patterns.iter().enumerate() {
        pattern.as_ref().iter().for_each(|operator| node[*operator as usize] = n as u32);
    }
    let alive = in_cycles(dag, &node, count);
    let mut found: BTreeMap<Vec<u32>, Vec<(u32, u32)>> = BTreeMap::new();
    for start in (0..count as u32).filter(|n| alive[*n as usize]) {
        if let Some(edges) = shortest(dag, patterns, &node, &alive, start) {
            let mut through: Vec<u32> = edges.iter().map(|(from, _)| node[*from as usize]).filter(|n| (*n as usize) < count).collect();
            through.sort_unstable();
            through.dedup();
            found.entry(through).or_insert(edges);
        }
    }
    found.into_iter().map(|(patterns, edges)| Cycle { patterns, edges }).collect()
}

/// Which nodes are left when all are removed that nothing left depends on, and that depend on nothing left.
fn in_cycles(dag: &Dag, node: &[u32], patterns: usize) -> Vec<bool> {
    let nodes = patterns + dag.operators();
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); nodes];
    node.iter().enumerate().for_each(|(operator, n)| members[*n as usize].push(operator as u32));
    let mut alive: Vec<bool> = members.iter().map(|m| !m.is_empty()).collect();
    for forward in [true, false] {
        let inputs = |o: u32| if forward { dag.before(o) } else { dag.after(o) };
        let outputs = |o: u32| if forward { dag.after(o) } else { dag.before(o) };
        let outside = |o: u32, n: u32, alive: &[bool]| {
            inputs(o).iter().filter(|other| node[**other as usize] != n && alive[node[**other as usize] as usize]).count()
        };
        let mut waits: Vec<usize> =
            members.iter().enumerate().map(|(n, own)| own.iter().map(|o| outside(*o, n as u32, &alive)).sum()).collect();
        let mut ready: Vec<usize> = (0..nodes).filter(|n| alive[*n] && waits[*n] == 0).collect();
        while let Some(n) = ready.pop() {
            alive[n] = false;
            for next in members[n].iter().flat_map(|o| outputs(*o)).map(|o| node[*o as usize] as usize) {
                if next != n && alive[next] {
                    waits[next] -= 1;
                    if waits[next] == 0 {
                        ready.push(next);
                    }
                }
            }
        }
    }
    alive
}

/// A cycle through a pattern that passes as few other patterns as any.
fn shortest<M: AsRef<[u32]>>(dag: &Dag, patterns: &[M], node: &[u32], alive: &[bool], start: u32) -> Option<Vec<(u32, u32)>> {
    let count = patterns.len() as u32;
    let own = |n: u32| -> Vec<u32> { if n < count { patterns[n as usize].as_ref().to_vec() } else { vec![n - count] } };
    // How each node was reached, and the number of patterns on the way.
    let mut reached: BTreeMap<u32, (usize, (u32, u32))> = BTreeMap::new();
    let mut waiting = VecDeque::from([(0usize, start)]);
    while let Some((passed, n)) = waiting.pop_front() {
        if reached.get(&n).is_some_and(|(known, _)| *known < passed) {
            continue;
        }
        for from in own(n) {
            for to in dag.after(from) {
                let next = node[*to as usize];
                if next == n || !alive[next as usize] {
                    continue;
                }
                let passed = passed + usize::from(next < count);
                if reached.get(&next).is_some_and(|(known, _)| *known <= passed) {
                    continue;
                }
                reached.insert(next, (passed, (from, *to)));
                if next == start {
                    continue;
                }
                if next < count { waiting.push_back((passed, next)) } else { waiting.push_front((passed, next)) }
            }
        }
    }
    let mut edges = vec![reached.get(&start)?.1];
    while let Some((from, _)) = edges.last().filter(|(from, _)| node[*from as usize] != start) {
        edges.push(reached.get(&node[*from as usize])?.1);
    }
    edges.reverse();
    Some(edges)
}
