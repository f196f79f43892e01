//! An independent check of a plan's certificate.
//!
//! It shares no code with the planner but the formats of problem and certificate. Nothing is searched: the plan is priced and laid out in
//! an order; each part is compared with the problem at every place where it stands, its cuts are walked along edges of the graph, and the
//! prices in its proof are added up, 128 bits wide.

use super::certificate::{FORMAT, PackingCertificate, ProofPart, ProofStep};
use super::problem::PackingProblem;
use std::collections::{HashMap, HashSet};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackingVerifyError {
    #[error("the certificate has format {found}, this version reads {FORMAT}; plan again")]
    Format { found: u32 },
    #[error("the certificate is of another graph or of other candidates; plan again")]
    OtherProblem,
    #[error("the certificate does not fit its problem: {0}")]
    Misfit(String),
    #[error("the plan is none: {0}")]
    NoPlan(String),
    #[error("the certificate says that the plan is worth {claimed} ps, but it is worth {found} ps")]
    Total { claimed: i64, found: i128 },
    #[error("the certificate says that no plan is worth more than {claimed} ps, but its proof only shows {shown} ps")]
    Bound { claimed: i64, shown: i128 },
}

/// Parts of a picosecond in prices.
const PRICES: i128 = 65_536;

fn misfit<T>(what: impl Into<String>) -> Result<T, PackingVerifyError> {
    Err(PackingVerifyError::Misfit(what.into()))
}

/// Confirms that the plan of a certificate is one, is worth what the certificate says, and that no plan of the problem's candidates is
/// worth more than its bound. Whether the two are equal is for the caller to look at.
///
/// # Errors
/// What is wrong with the certificate.
pub fn verify(problem: &PackingProblem, certificate: &PackingCertificate) -> Result<(), PackingVerifyError> {
    if certificate.format != FORMAT {
        return Err(PackingVerifyError::Format { found: certificate.format });
    }
    if certificate.problem != problem.fingerprint() {
        return Err(PackingVerifyError::OtherProblem);
    }
    is_plan(problem, &certificate.chosen)?;
    let found: i128 = certificate.chosen.iter().map(|p| i128::from(problem.patterns[*p as usize].score)).sum();
    if found != i128::from(certificate.total_ps) {
        return Err(PackingVerifyError::Total { claimed: certificate.total_ps, found });
    }
    let shown = certificate.parts.iter().map(proven).collect::<Result<Vec<i128>, _>>()?;
    let bound = instances(problem, certificate, &shown)?;
    if bound > i128::from(certificate.bound_ps) || found > bound {
        return Err(PackingVerifyError::Bound { claimed: certificate.bound_ps, shown: bound });
    }
    Ok(())
}

/// Whether patterns are disjoint, and kernels can run one after the other.
fn is_plan(problem: &PackingProblem, chosen: &[u32]) -> Result<(), PackingVerifyError> {
    let none = |what: String| Err(PackingVerifyError::NoPlan(what));
    let operators = problem.dag.operators();
    // A pattern runs under the number of its first member.
    let mut kernel: Vec<usize> = (0..operators).collect();
    let mut taken = vec![false; operators];
    for pattern in chosen {
        let Some(found) = problem.patterns.get(*pattern as usize) else { return none(format!("there is no pattern {pattern}")) };
        for member in &found.members {
            if std::mem::replace(&mut taken[*member as usize], true) {
                return none(format!("operator {member} is in two patterns"));
            }
            kernel[*member as usize] = found.members[0] as usize;
        }
    }
    let between: HashSet<(usize, usize)> =
        problem.dag.edges().iter().map(|(from, to)| (kernel[*from as usize], kernel[*to as usize])).filter(|(a, b)| a != b).collect();
    let mut waits = vec![0usize; operators];
    let mut feeds: HashMap<usize, Vec<usize>> = HashMap::new();
    for (from, to) in &between {
        waits[*to] += 1;
        feeds.entry(*from).or_default().push(*to);
    }
    let heads: HashSet<usize> = kernel.iter().copied().collect();
    let mut ready: Vec<usize> = heads.iter().copied().filter(|k| waits[*k] == 0).collect();
    let mut ran = 0;
    while let Some(next) = ready.pop() {
        ran += 1;
        for after in feeds.get(&next).into_iter().flatten() {
            waits[*after] -= 1;
            if waits[*after] == 0 {
                ready.push(*after);
            }
        }
    }
    if ran == heads.len() { Ok(()) } else { none("its kernels wait for one another".into()) }
}

/// The sum of what parts are shown to be worth at most, after a comparison of each with the problem wherever it stands.
fn instances(problem: &PackingProblem, certificate: &PackingCertificate, shown: &[i128]) -> Result<i128, PackingVerifyError> {
    let edges: HashSet<(u32, u32)> = problem.dag.edges().iter().copied().collect();
    let mut seen = vec![false; problem.patterns.len()];
    let mut bound = 0;
    for instance in &certificate.instances {
        let Some(part) = certificate.parts.get(instance.part) else { return misfit("a part is missing") };
        if instance.operators.len() != part.operators as usize || instance.patterns.len() != part.members.len() {
            return misfit("a part has other numbers of operators or patterns where it stands");
        }
        let distinct: HashSet<u32> = instance.operators.iter().copied().collect();
        if distinct.len() != instance.operators.len() {
            return misfit("a part names an operator twice");
        }
        for (n, pattern) in instance.patterns.iter().enumerate() {
            let Some(found) = problem.patterns.get(*pattern as usize) else { return misfit(format!("there is no pattern {pattern}")) };
            if std::mem::replace(&mut seen[*pattern as usize], true) {
                return misfit(format!("pattern {pattern} is in two parts"));
            }
            let mut members: Vec<u32> = part.members[n].iter().map(|m| instance.operators[*m as usize]).collect();
            members.sort_unstable();
            if members != found.members || part.scores[n] != found.score {
                return misfit(format!("pattern {pattern} is another one in its part"));
            }
        }
        let real = |(from, to): &(u32, u32)| edges.contains(&(instance.operators[*from as usize], instance.operators[*to as usize]));
        if !part.cuts.iter().flat_map(|cut| &cut.cycle).all(real) {
            return misfit("a cut follows an edge that the graph does not have");
        }
        bound += shown[instance.part];
    }
    match seen.iter().position(|seen| !seen) {
        Some(pattern) => misfit(format!("pattern {pattern} is in no part")),
        None => Ok(bound),
    }
}

/// What a part is worth at most, by its proof: whole picoseconds.
fn proven(part: &ProofPart) -> Result<i128, PackingVerifyError> {
    let operators = part.operators as usize;
    if part.members.len() != part.scores.len() || part.members.iter().flatten().any(|m| *m as usize >= operators) {
        return misfit("a part names operators that it does not have");
    }
    let holds = |pattern: usize, operator: u32| part.members[pattern].contains(&operator);
    let mut allowed = Vec::new();
    for cut in &part.cuts {
        let joints: Vec<(u32, u32)> = (0..cut.cycle.len())
            .map(|n| (cut.cycle[n].1, cut.cycle[(n + 1) % cut.cycle.len()].0))
            .filter(|(enters, leaves)| enters != leaves)
            .collect();
        let listed: HashSet<u32> = cut.patterns.iter().copied().collect();
        let fits = |p: &u32| {
            let p = *p as usize;
            p < part.members.len() && joints.iter().any(|(enters, leaves)| holds(p, *enters) && holds(p, *leaves))
        };
        let inside = cut.cycle.iter().all(|(from, to)| (*from as usize) < operators && (*to as usize) < operators);
        // With a single joint nothing follows: one pattern may hold the whole cycle.
        if joints.len() < 2 || !inside || listed.len() != cut.patterns.len() || !cut.patterns.iter().all(fits) {
            return misfit("a cut forbids patterns that do not wait for one another");
        }
        allowed.push(joints.len() as i128 - 1);
    }
    if part.steps.is_empty() {
        return misfit("a part has no proof");
    }
    let mut most = 0;
    let mut waiting: Vec<(usize, HashMap<usize, bool>)> = vec![(0, HashMap::new())];
    while let Some((at, fixed)) = waiting.pop() {
        match part.steps.get(at) {
            None => return misfit("a step of a proof is missing"),
            Some(ProofStep::Split { pattern, taken, left }) => {
                let pattern = *pattern as usize;
                if pattern >= part.members.len() || fixed.contains_key(&pattern) {
                    return misfit("a proof splits by a pattern twice or by none");
                }
                for (next, is_taken) in [(*taken, true), (*left, false)] {
                    // Later in the list: the walk ends.
                    if next as usize <= at {
                        return misfit("a proof goes in a circle");
                    }
                    let mut fixed = fixed.clone();
                    fixed.insert(pattern, is_taken);
                    waiting.push((next as usize, fixed));
                }
            }
            Some(ProofStep::Bounded { operators: prices, cuts }) => {
                let bound = bounded(part, &allowed, &fixed, prices, cuts)?;
                most = bound.div_euclid(PRICES).max(most);
            }
        }
    }
    Ok(most)
}

/// The most that choices with these fixed patterns are worth, in parts of a picosecond.
fn bounded(
    part: &ProofPart,
    allowed: &[i128],
    fixed: &HashMap<usize, bool>,
    operators: &[(u32, i64)],
    cuts: &[(u32, i64)],
) -> Result<i128, PackingVerifyError> {
    let mut price = vec![0i128; part.operators as usize];
    for (operator, paid) in operators {
        match price.get_mut(*operator as usize) {
            Some(price) if *paid >= 0 => *price += i128::from(*paid),
            _ => return misfit("a price is negative or of no operator"),
        }
    }
    let mut of_cut = vec![0i128; part.cuts.len()];
    for (cut, paid) in cuts {
        match of_cut.get_mut(*cut as usize) {
            Some(price) if *paid >= 0 => *price += i128::from(*paid),
            _ => return misfit("a price is negative or of no cut"),
        }
    }
    let mut bound: i128 = price.iter().sum::<i128>() + of_cut.iter().zip(allowed).map(|(paid, allowed)| paid * allowed).sum::<i128>();
    let mut own = vec![0i128; part.members.len()];
    for (cut, paid) in part.cuts.iter().zip(&of_cut).filter(|(_, paid)| **paid != 0) {
        cut.patterns.iter().for_each(|p| own[*p as usize] += paid);
    }
    for (pattern, members) in part.members.iter().enumerate() {
        let paid = own[pattern] + members.iter().map(|m| price[*m as usize]).sum::<i128>();
        let gain = i128::from(part.scores[pattern]) * PRICES - paid;
        match fixed.get(&pattern) {
            Some(true) => bound += gain,
            Some(false) => {}
            None => bound += gain.max(0),
        }
    }
    Ok(bound)
}
