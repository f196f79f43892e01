//! The ways of stacking a recipe's weights.
//!
//! A group of contractions may be stacked whole or in part, and each way is a program. Consecutive layers have groups of weights with the
//! same dims; these are stacked alike, in one program. The fastest way in one layer is the fastest in the next, so separate programs
//! for each layer would only multiply the work.

use sdfg::{Dtype, Sdfg};
use transforms::stack::groups;

/// Above this number of weights, only half as many are written out.
const WRITTEN: usize = 6;

/// The choices of weights to stack: every run of at least two neighbours in a group and in all groups like it, the longest first.
pub fn stackings(program: &Sdfg) -> Vec<Vec<String>> {
    let all: Vec<Vec<String>> = groups(program).into_iter().map(|group| group.weights).collect();
    // Groups that share a weight with another must not be stacked together: that would stack other weights, too.
    let apart = |one: &[String], other: &[String]| {
        let has = |group: &[String], some: &[String]| some.iter().any(|w| group.contains(w));
        !all.iter().any(|group| has(group, one) && has(group, other))
    };
    let mut alike: Vec<Alike> = Vec::new();
    for weights in &all {
        if alike.iter().any(|known| known.groups.contains(&weights.as_slice())) {
            continue;
        }
        let containers = weights.iter().filter_map(|w| program.containers.get(w));
        let kinds = containers.map(|c| (c.dims.as_slice(), c.dtype)).collect();
        match alike.iter_mut().find(|known| known.kinds == kinds && known.groups.iter().all(|group| apart(group, weights))) {
            Some(known) => known.groups.push(weights),
            None => alike.push(Alike { kinds, groups: vec![weights] }),
        }
    }
    let mut found: Vec<Vec<String>> = Vec::new();
    for Alike { kinds, groups } in &alike {
        for length in (2..=kinds.len()).rev() {
            for start in 0..=kinds.len() - length {
                let weights: Vec<String> = groups.iter().flat_map(|weights| &weights[start..start + length]).cloned().collect();
                if !found.contains(&weights) {
                    found.push(weights);
                }
            }
        }
    }
    found
}

/// Groups with the same kinds of weights, in the same order.
struct Alike<'a> {
    /// Dims and element types.
    kinds: Vec<(&'a [String], Dtype)>,
    groups: Vec<&'a [String]>,
}

/// The name of a stacking of these weights.
pub fn stacked_name(weights: &[String]) -> String {
    match weights {
        [first @ .., _] if weights.len() > WRITTEN => format!("{}+… {} weights", first[..WRITTEN / 2].join("+"), weights.len()),
        all => all.join("+"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_weights_are_not_all_named() {
        let weights = |n: usize| (0..n).map(|n| format!("w{n}")).collect::<Vec<_>>();
        assert_eq!(stacked_name(&weights(3)), "w0+w1+w2");
        assert_eq!(stacked_name(&weights(6)), "w0+w1+w2+w3+w4+w5");
        assert_eq!(stacked_name(&weights(36)), "w0+w1+w2+… 36 weights");
    }
}
