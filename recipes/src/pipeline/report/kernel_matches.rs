//! Matches kernels of a plan with the kernels of the unfused program that compute the same, so that their times can be compared.
//!
//! A kernel of the plan may hold many operators, a stack of operators under one name, or a part of one. Kernels of both programs that
//! share an operator, directly or through others, form one match. It is the smallest group whose times can be compared. Every kernel is
//! in exactly one match, so the times of all matches add up to those of the programs.

use super::{PartialFusionLog, VariantKey, counted, stackings};
use crate::pipeline::PipelineError;
use sdfg::Sdfg;
use sdfg::movement::{Movement, movement};
use std::collections::{BTreeMap, BTreeSet};
use transforms::pass::StackMembers;
use transforms::{DriverOptions, Stack, run_pipeline};

/// Kernels that compute the same, by position. Either side may be empty: a relayout, or an operator for which the plan needs no kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelMatch {
    pub ours: Vec<usize>,
    pub unfused: Vec<usize>,
}

/// Matches in the order of our kernels, followed by kernels that only the unfused program has.
pub fn matches(ours: &[Movement], unfused: &[Movement], stacks: &StackMembers) -> Vec<KernelMatch> {
    let mut holders: BTreeMap<&str, usize> = BTreeMap::new();
    for (n, kernel) in unfused.iter().enumerate() {
        holders.extend(kernel.operators.iter().map(|operator| (operator.as_str(), n)));
    }
    // Each match is named by its least unfused kernel.
    let mut root: Vec<usize> = (0..unfused.len()).collect();
    let found = |root: &[usize], mut n: usize| {
        while root[n] != n {
            n = root[n];
        }
        n
    };
    let held: Vec<BTreeSet<usize>> = ours
        .iter()
        .map(|kernel| {
            kernel.operators.iter().flat_map(|operator| stands_for(operator, stacks)).filter_map(|o| holder(o, &holders)).collect()
        })
        .collect();
    for of_one in &held {
        let roots: BTreeSet<usize> = of_one.iter().map(|n| found(&root, *n)).collect();
        if let Some(least) = roots.first() {
            roots.iter().for_each(|n| root[*n] = *least);
        }
    }
    let mut all: Vec<KernelMatch> = Vec::new();
    let mut places: BTreeMap<usize, usize> = BTreeMap::new();
    for (n, of_one) in held.iter().enumerate() {
        let Some(name) = of_one.first().map(|n| found(&root, *n)) else {
            all.push(KernelMatch { ours: vec![n], unfused: vec![] });
            continue;
        };
        let place = *places.entry(name).or_insert(all.len());
        if place == all.len() {
            all.push(KernelMatch::default());
        }
        all[place].ours.push(n);
    }
    for n in 0..unfused.len() {
        let place = *places.entry(found(&root, n)).or_insert(all.len());
        if place == all.len() {
            all.push(KernelMatch::default());
        }
        all[place].unfused.push(n);
    }
    all
}

/// The operators that a kernel holds under one name; none for a recomputation.
fn stands_for<'a>(operator: &'a str, stacks: &'a StackMembers) -> Vec<&'a str> {
    match stacks.get(operator) {
        _ if operator.split('.').skip(1).any(|part| part == "again") => vec![],
        Some(members) => members.iter().map(String::as_str).collect(),
        None => vec![operator],
    }
}

/// The unfused kernel that ran an operator or the operator it is a part of. A stack with unknown members has none.
fn holder(operator: &str, holders: &BTreeMap<&str, usize>) -> Option<usize> {
    let mut whole = operator;
    loop {
        if let Some(n) = holders.get(whole) {
            return Some(*n);
        }
        let (rest, part) = whole.rsplit_once('.')?;
        if is_stack(part) {
            return None;
        }
        whole = rest;
    }
}

/// The last part of the name of a stack, e.g. `stack3`.
fn is_stack(part: &str) -> bool {
    part.strip_prefix("stack").is_some_and(|count| !count.is_empty() && count.chars().all(|c| c.is_ascii_digit()))
}

/// Weights that may be stacked in a program, first those that its key names.
pub fn ways(operators: &Sdfg, partial_fusion: &PartialFusionLog, key: &VariantKey) -> Vec<Vec<String>> {
    let fusion_sets = partial_fusion.trials.iter().map(|(_, fusion_set)| fusion_set).chain(&partial_fusion.fusion_set);
    let mut weights: Vec<Vec<String>> = fusion_sets.map(|fusion_set| fusion_set.weights.clone()).chain(stackings(operators)).collect();
    weights.sort_by_key(|weights| *weights != key.stacked);
    weights
}

/// The members of the stacks among a program's operators. Several programs of a recipe may have stacks of the same name; members are
/// operators that this program does not run otherwise.
pub fn stacks(operators: &Sdfg, program: &Sdfg, ways: &[Vec<String>]) -> Result<StackMembers, PipelineError> {
    let kernels = movement(program).map_err(counted)?;
    let held: BTreeSet<&str> = kernels.iter().flat_map(|kernel| &kernel.operators).map(String::as_str).collect();
    let mut open: BTreeSet<&str> = held.iter().copied().filter(|o| o.rsplit('.').next().is_some_and(is_stack)).collect();
    let mut known = StackMembers::new();
    for weights in ways {
        if open.is_empty() {
            break;
        }
        for (stack, members) in run_pipeline(operators, &[&Stack { weights: weights.clone() }], &DriverOptions::default())?.facts.stacks {
            let taken = |member: &String| held.contains(member.as_str()) || known.values().flatten().any(|m| m == member);
            if open.contains(stack.as_str()) && !members.iter().any(taken) {
                open.remove(stack.as_str());
                known.insert(stack, members);
            }
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Overrides, load_str};
    use crate::pipeline::variants::programs::programs;
    use sdfg::{Class, Direction};

    fn kernel(name: &str, operators: &[&str]) -> Movement {
        Movement {
            name: name.into(),
            operators: operators.iter().map(|o| o.to_string()).collect(),
            pass: Direction::Forward,
            class: Class::Contraction,
            flop: 0,
            reads: vec![],
            writes: vec![],
            masks: vec![],
        }
    }

    fn found(ours: &[(&str, &[&str])], stacks: &StackMembers) -> Vec<(Vec<usize>, Vec<usize>)> {
        let unfused = ["q.dot", "k.dot", "v.dot", "beta", "a.softmax", "c"].map(|name| kernel(name, &[name]));
        let ours: Vec<Movement> = ours.iter().map(|(name, operators)| kernel(name, operators)).collect();
        matches(&ours, &unfused, stacks).into_iter().map(|m| (m.ours, m.unfused)).collect()
    }

    /// A stack of three contractions is matched with all three.
    #[test]
    fn a_stack_is_compared_with_all_that_it_is_made_of() {
        let stacks = StackMembers::from([("q.dot.stack3".to_string(), ["q.dot", "k.dot", "v.dot"].map(String::from).to_vec())]);
        let ours: &[(&str, &[&str])] =
            &[("q.dot.stack3", &["q.dot.stack3"]), ("a", &["beta", "a.softmax.max", "a.softmax"]), ("c", &["c"])];
        assert_eq!(found(ours, &stacks), [(vec![0], vec![0, 1, 2]), (vec![1], vec![3, 4]), (vec![2], vec![5])]);
        // A stack with unknown members is matched with nothing, in particular not with the first of three contractions.
        let unknown = found(ours, &StackMembers::new());
        assert_eq!(unknown[0], (vec![0], vec![]));
        assert_eq!(unknown[3..], [(vec![], vec![0]), (vec![], vec![1]), (vec![], vec![2])]);
    }

    /// Kernels that share an operator are in one match, recomputed operators are ours alone, and nothing counts twice.
    #[test]
    fn every_kernel_is_in_one_match() {
        let ours: &[(&str, &[&str])] = &[
            ("q", &["q.dot", "k.dot"]),
            ("statistics", &["beta", "a.softmax.max"]),
            ("relayout x", &[]),
            ("rows", &["beta.again", "a.softmax", "c"]),
            ("rest", &["a.softmax.again.max"]),
        ];
        let matches = found(ours, &StackMembers::new());
        assert_eq!(matches, [(vec![0], vec![0, 1]), (vec![1, 3], vec![3, 4, 5]), (vec![2], vec![]), (vec![4], vec![]), (vec![], vec![2])]);
    }

    /// In every program of attention, each stack is matched with all its members, and every kernel of both sides once.
    #[test]
    fn every_program_of_attention_is_matched() -> Result<(), PipelineError> {
        let recipe = load_str("mha.yaml", include_str!("../../../mha.yaml"), Overrides::default())?;
        let programs = programs(&recipe, false)?;
        let unfused = movement(&programs.unfused).map_err(counted)?;
        let mut stacked = 0;
        for variant in &programs.variants {
            let ours = movement(&variant.program).map_err(counted)?;
            let stacks =
                stacks(&programs.operators, &variant.program, &ways(&programs.operators, &PartialFusionLog::default(), &variant.key))?;
            let found = matches(&ours, &unfused, &stacks);
            let mut all: Vec<usize> = found.iter().flat_map(|m| m.unfused.clone()).collect();
            all.sort_unstable();
            assert_eq!(all, (0..unfused.len()).collect::<Vec<_>>(), "{}", variant.key);
            assert_eq!(found.iter().map(|m| m.ours.len()).sum::<usize>(), ours.len(), "{}", variant.key);
            for m in &found {
                let count = |operator: &String| operator.rsplit_once(".stack").and_then(|(_, count)| count.parse::<usize>().ok());
                let members: usize = m.ours.iter().flat_map(|n| &ours[*n].operators).filter_map(count).sum();
                stacked += members;
                assert!(m.unfused.len() >= members, "{}: {:?}", variant.key, m.ours.iter().map(|n| &ours[*n].name).collect::<Vec<_>>());
            }
        }
        assert!(stacked >= 12, "stacks of two and three, forward and backward: {stacked}");
        Ok(())
    }
}
