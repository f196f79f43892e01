//! The plan of a greedy choice, on the same scores.

use super::order::OperatorOrder;
use super::problem::PackingProblem;
use std::cmp::Reverse;

/// Best score first: each pattern whose operators are free and whose kernel waits for no kernel that waits for it. Patterns of equal
/// score are taken in the order of the problem. The chosen patterns, sorted.
pub fn greedy(problem: &PackingProblem) -> Vec<u32> {
    greedy_by(problem, |pattern| Reverse(problem.patterns[pattern as usize].score))
}

/// The same in another order: least key first.
pub fn greedy_by<K: Ord>(problem: &PackingProblem, key: impl Fn(u32) -> K) -> Vec<u32> {
    let mut ranked: Vec<u32> = (0..problem.patterns.len() as u32).collect();
    ranked.sort_by_cached_key(|pattern| (key(*pattern), *pattern));
    let mut order = OperatorOrder::new(&problem.dag);
    let taken = |pattern: &u32| {
        let members = &problem.patterns[*pattern as usize].members;
        order.is_free(members) && order.merge(members)
    };
    let mut chosen: Vec<u32> = ranked.into_iter().filter(taken).collect();
    chosen.sort_unstable();
    chosen
}
