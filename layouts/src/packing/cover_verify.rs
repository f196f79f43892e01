//! Checks a cover and the proof that none costs less, by code of its own.

use super::branch::{BranchNode, FRACTION};
use super::cover::{CoverPlan, CoverProblem, CoverStep};
use super::verify::PackingVerifyError;
use std::collections::{BTreeMap, HashMap, HashSet};

fn misfit<T>(what: impl Into<String>) -> Result<T, PackingVerifyError> {
    Err(PackingVerifyError::Misfit(what.into()))
}

/// Σ a·x ≤ bound.
struct Inequality {
    terms: HashMap<usize, i128>,
    bound: i128,
}

/// # Errors
/// What of a plan is not as it says: a step that does not find what it reads, another cost, or a bound that its proof does not give.
pub fn verify_cover(problem: &CoverProblem, plan: &CoverPlan) -> Result<(), PackingVerifyError> {
    runs(problem, plan)?;
    let rows = inequalities(problem, plan)?;
    let worth: Vec<i128> =
        problem.alone.iter().map(|c| i128::from(*c)).chain(problem.kernels.iter().map(|k| -i128::from(k.cost))).collect();
    let all: i128 = problem.alone.iter().map(|c| i128::from(*c)).sum();
    let mut most = 0;
    let mut waiting: Vec<(usize, BTreeMap<usize, bool>)> = vec![(0, BTreeMap::new())];
    while let Some((at, fixed)) = waiting.pop() {
        match plan.proof.tree.get(at) {
            None => return misfit("a step of the proof is missing"),
            Some(BranchNode::Split { variable, taken, left }) => {
                if fixed.contains_key(&(*variable as usize)) || *variable as usize >= worth.len() {
                    return misfit("the proof splits by a variable twice or by none");
                }
                for (next, is_taken) in [(*taken, true), (*left, false)] {
                    if next as usize <= at {
                        return misfit("the proof goes in a circle");
                    }
                    let mut fixed = fixed.clone();
                    fixed.insert(*variable as usize, is_taken);
                    waiting.push((next as usize, fixed));
                }
            }
            Some(BranchNode::Bounded(prices)) => {
                let mut paid = vec![0i128; worth.len()];
                let mut bound = 0i128;
                for (row, price) in prices {
                    let Some(row) = rows.get(*row as usize).filter(|_| *price >= 0) else {
                        return misfit("a price is negative or of no row");
                    };
                    bound += i128::from(*price) * row.bound;
                    row.terms.iter().for_each(|(variable, a)| paid[*variable] += i128::from(*price) * a);
                }
                for (variable, worth) in worth.iter().enumerate() {
                    let gain = worth * i128::from(FRACTION) - paid[variable];
                    bound += match fixed.get(&variable) {
                        Some(true) => gain,
                        Some(false) => 0,
                        None => gain.max(0),
                    };
                }
                most = most.max(bound.div_euclid(i128::from(FRACTION)));
            }
        }
    }
    let shown = all - most;
    if i128::from(plan.bound) > shown {
        return misfit(format!("it says that no cover costs less than {} ps, and its proof shows {shown} ps", plan.bound));
    }
    Ok(())
}

/// Whether every step finds what it reads, all that leaves is in memory at the end, and the costs add up.
fn runs(problem: &CoverProblem, plan: &CoverPlan) -> Result<(), PackingVerifyError> {
    let mut memory: HashSet<u32> = HashSet::new();
    let mut cost = 0i128;
    for step in &plan.steps {
        match step {
            CoverStep::Alone(operator) => {
                let needs = problem.dag.edges().iter().filter(|(_, to)| to == operator);
                if needs.into_iter().any(|(from, _)| !memory.contains(from)) {
                    return misfit(format!("operator {operator} runs before something that it reads"));
                }
                let Some(own) = problem.alone.get(*operator as usize) else { return misfit("there is no such operator") };
                cost += i128::from(*own);
                memory.insert(*operator);
            }
            CoverStep::Kernel(kernel) => {
                let Some(kernel) = problem.kernels.get(*kernel as usize) else { return misfit("there is no such kernel") };
                let own: HashSet<u32> = kernel.members.iter().copied().collect();
                let needs = problem.dag.edges().iter().filter(|(from, to)| own.contains(to) && !own.contains(from));
                if needs.into_iter().any(|(from, _)| !memory.contains(from)) || kernel.writes.iter().any(|w| !own.contains(w)) {
                    return misfit("a kernel runs before something that it reads, or leaves what it does not compute");
                }
                cost += i128::from(kernel.cost);
                memory.extend(&kernel.writes);
            }
        }
    }
    if problem.leaves.iter().enumerate().any(|(operator, leaves)| *leaves && !memory.contains(&(operator as u32))) {
        return misfit("a result that leaves is not in memory at the end");
    }
    if cost == i128::from(plan.cost) { Ok(()) } else { misfit(format!("its steps cost {cost} ps, not {}", plan.cost)) }
}

/// What every cover satisfies, in the order that the module of covers gives; a cut is checked to be one.
fn inequalities(problem: &CoverProblem, plan: &CoverPlan) -> Result<Vec<Inequality>, PackingVerifyError> {
    let operators = problem.dag.operators();
    let leaving = |operator: u32| {
        let kernels = problem.kernels.iter().enumerate().filter(move |(_, kernel)| kernel.writes.contains(&operator));
        kernels.map(|(n, _)| operators + n).collect::<HashSet<usize>>()
    };
    let of = |plus: &[usize], minus: &[usize], made: &HashSet<usize>, bound: i128| {
        let mut terms: HashMap<usize, i128> = HashMap::new();
        plus.iter().for_each(|v| *terms.entry(*v).or_default() += 1);
        minus.iter().chain(made).for_each(|v| *terms.entry(*v).or_default() -= 1);
        Inequality { terms, bound }
    };
    let mut rows = Vec::new();
    for operator in (0..operators).filter(|v| problem.leaves[*v]) {
        rows.push(of(&[operator], &[], &leaving(operator as u32), 0));
    }
    for (from, to) in problem.dag.edges() {
        rows.push(of(&[*from as usize], &[*to as usize], &leaving(*from), 0));
    }
    for (n, kernel) in problem.kernels.iter().enumerate() {
        let mut reads: Vec<u32> = problem.dag.edges().iter().filter(|(_, to)| kernel.members.contains(to)).map(|(from, _)| *from).collect();
        reads.retain(|read| !kernel.members.contains(read));
        reads.sort_unstable();
        reads.dedup();
        for read in reads {
            let mut others = leaving(read);
            others.remove(&(operators + n));
            rows.push(of(&[operators + n, read as usize], &[], &others, 1));
        }
    }
    for cut in &plan.proof.cuts {
        let (mut plus, mut minus, mut bound) = (Vec::new(), Vec::new(), cut.waits.len() as i128 - 1);
        let mut inside: HashSet<CoverStep> = HashSet::new();
        for (step, waits) in &cut.waits {
            let reads = match step {
                CoverStep::Alone(operator) => {
                    minus.push(*operator as usize);
                    bound -= 1;
                    problem.dag.edges().contains(&(*waits, *operator))
                }
                CoverStep::Kernel(kernel) => {
                    plus.push(operators + *kernel as usize);
                    let members = problem.kernels.get(*kernel as usize).map_or(&[][..], |kernel| &kernel.members);
                    !members.contains(waits) && members.iter().any(|m| problem.dag.edges().contains(&(*waits, *m)))
                }
            };
            if !reads || !inside.insert(*step) {
                return misfit("a step of a cut does not wait for what the cut says, or stands there twice");
            }
        }
        let mut made: HashSet<usize> = HashSet::new();
        for operator in cut.waits.iter().map(|(_, operator)| *operator).collect::<HashSet<u32>>() {
            made.extend(leaving(operator).into_iter().filter(|v| !inside.contains(&CoverStep::Kernel((v - operators) as u32))));
            if !inside.contains(&CoverStep::Alone(operator)) {
                plus.push(operator as usize);
                bound += 1;
            }
        }
        rows.push(of(&plus, &minus, &made, bound));
    }
    Ok(rows)
}
