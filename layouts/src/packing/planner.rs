//! The entrance: parts of a problem that share no operator are solved apart, and equal ones once.
//!
//! A part is a set of patterns that overlap one another, directly or through others. Where all of them are intervals of the order, dynamic
//! programming solves it; otherwise branch and bound does. Patterns of several parts may wait for one another: then these parts become
//! one, with the operators on the way, and are solved again.

use super::branch::{self, LinearConstraint, Program};
use super::certificate::{Cut, Instance, PackingCertificate, ProofPart, ProofStep};
use super::cycles::cycles;
use super::dag::Dag;
use super::greedy::greedy;
use super::intervals::{self, PlaceRange};
use super::order::OperatorOrder;
use super::problem::PackingProblem;
use crate::model::cost::Cost;
use fixedbitset::FixedBitSet;
use petgraph::unionfind::UnionFind;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// How far the search for each part goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackingLimits {
    /// Parts of all choices.
    pub nodes: usize,
    /// Pivots of the simplex method.
    pub pivots: usize,
}

impl Default for PackingLimits {
    fn default() -> Self {
        PackingLimits { nodes: 20_000, pivots: 400_000 }
    }
}

/// What it took to make a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Parts that share no operator, distinct ones among them, and those of the distinct ones that are intervals.
    pub parts: usize,
    pub unique_parts: usize,
    pub by_intervals: usize,
    /// Parts of choices in the proofs, cuts in them, and times that parts were joined because their patterns waited for one another.
    pub nodes: usize,
    pub cuts: usize,
    pub joined: usize,
    /// Pivots of the simplex method.
    pub pivots: usize,
}

/// A plan with its proof.
#[derive(Clone, Debug)]
pub struct PackingPlan {
    /// Positions of the chosen patterns in the problem, sorted.
    pub chosen: Vec<u32>,
    pub total: Cost,
    /// No plan of these candidates is worth more.
    pub bound: Cost,
    /// The greedy plan on the same scores.
    pub greedy: Vec<u32>,
    pub greedy_total: Cost,
    pub certificate: PackingCertificate,
    pub statistics: Statistics,
}

impl PackingPlan {
    pub fn is_proven(&self) -> bool {
        self.total == self.bound
    }
}

/// Rounds in which parts are joined; a problem of real graphs takes none or one.
const ROUNDS: usize = 64;

/// Rows of a part among which those that others imply are looked for.
const COMPARED: usize = 2_000;

/// Operators with their places, in order; and edges.
type Placed = BTreeSet<(u32, u32)>;
type Edges = Vec<(u32, u32)>;

/// Patterns that are solved together, and the operators that they are about, in order.
#[derive(Clone)]
struct Group {
    patterns: Vec<u32>,
    operators: Vec<u32>,
}

/// A part by positions of its own: what decides whether two parts are equal.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Local {
    operators: usize,
    members: Vec<Vec<u32>>,
    scores: Vec<Cost>,
    /// Empty where patterns cannot wait for one another.
    edges: Vec<(u32, u32)>,
}

struct Solution {
    chosen: Vec<u32>,
    part: ProofPart,
    by_intervals: bool,
    pivots: usize,
}

/// The best plan within the limits, and its proof. Deterministic.
pub fn plan(problem: &PackingProblem, limits: PackingLimits) -> PackingPlan {
    let mut groups = groups(problem);
    let mut known: HashMap<Local, Rc<Solution>> = HashMap::new();
    let mut joined = 0;
    let greedy = greedy(problem);
    let greedy_total = problem.total(&greedy);
    let (mut chosen, mut solved);
    loop {
        solved = Vec::new();
        chosen = Vec::new();
        for group in &mut groups {
            let local = local(problem, group);
            let solution = match known.get(&local) {
                Some(solution) => solution.clone(),
                None => {
                    let solution = Rc::new(solve(&local, limits));
                    known.insert(local, solution.clone());
                    solution
                }
            };
            chosen.extend(solution.chosen.iter().map(|n| group.patterns[*n as usize]));
            solved.push(solution);
        }
        chosen.sort_unstable();
        let members: Vec<&[u32]> = chosen.iter().map(|p| problem.patterns[*p as usize].members.as_slice()).collect();
        let found = cycles(&problem.dag, &members);
        if found.is_empty() || joined >= ROUNDS {
            break;
        }
        joined += 1;
        let ties: Vec<(Vec<u32>, Vec<u32>)> = found
            .into_iter()
            .map(|cycle| {
                let patterns = cycle.patterns.iter().map(|n| chosen[*n as usize]).collect();
                (patterns, cycle.edges.iter().flat_map(|(from, to)| [*from, *to]).collect())
            })
            .collect();
        groups = join(problem, groups, &ties);
    }
    let chosen = best_legal(problem, chosen, &greedy);
    let bound = solved.iter().map(|solution| solution.part.bound_ps).sum();
    let total = problem.total(&chosen);
    let mut statistics = Statistics { parts: groups.len(), joined, ..Statistics::default() };
    let mut distinct: Vec<*const Solution> = Vec::new();
    let (mut parts, mut instances) = (Vec::new(), Vec::new());
    let mut numbers: HashMap<*const Solution, usize> = HashMap::new();
    for (group, solution) in groups.into_iter().zip(&solved) {
        let part = *numbers.entry(Rc::as_ptr(solution)).or_insert_with(|| {
            distinct.push(Rc::as_ptr(solution));
            statistics.unique_parts += 1;
            statistics.by_intervals += usize::from(solution.by_intervals);
            statistics.nodes += solution.part.steps.len();
            statistics.cuts += solution.part.cuts.len();
            statistics.pivots += solution.pivots;
            parts.push(solution.part.clone());
            parts.len() - 1
        });
        instances.push(Instance { part, operators: group.operators, patterns: group.patterns });
    }
    let certificate = PackingCertificate::new(problem, chosen.clone(), (total, bound), parts, instances);
    PackingPlan { chosen, total, bound, greedy, greedy_total, certificate, statistics }
}

/// The choice without those patterns that still wait for others, or the greedy one if that is better.
fn best_legal(problem: &PackingProblem, chosen: Vec<u32>, greedy: &[u32]) -> Vec<u32> {
    let mut order = OperatorOrder::new(&problem.dag);
    let mut by_score = chosen;
    by_score.sort_by_key(|p| (std::cmp::Reverse(problem.patterns[*p as usize].score), *p));
    by_score.retain(|p| order.merge(&problem.patterns[*p as usize].members));
    by_score.sort_unstable();
    if problem.total(&by_score) >= problem.total(greedy) { by_score } else { greedy.to_vec() }
}

/// The parts: patterns that overlap, directly or through others; by their first operator.
fn groups(problem: &PackingProblem) -> Vec<Group> {
    let chains = problem.patterns.iter().map(|pattern| pattern.members.as_slice());
    let first = least_of_sets(problem.dag.operators(), chains);
    let mut by_first: BTreeMap<u32, Group> = BTreeMap::new();
    for (n, pattern) in problem.patterns.iter().enumerate() {
        let at = first[pattern.members[0] as usize];
        by_first.entry(at).or_insert_with(|| Group { patterns: vec![], operators: vec![] }).patterns.push(n as u32);
    }
    for operator in problem.dag.order() {
        by_first.entry(first[*operator as usize]).and_modify(|group| group.operators.push(*operator));
    }
    by_first.into_values().collect()
}

/// By element, the least one of the set that it is in when the elements of each chain are in one set.
fn least_of_sets<'a>(elements: usize, chains: impl Iterator<Item = &'a [u32]>) -> Vec<u32> {
    let mut sets: UnionFind<u32> = UnionFind::new(elements);
    for pair in chains.flat_map(|chain| chain.windows(2)) {
        sets.union(pair[0], pair[1]);
    }
    let labels = sets.into_labeling();
    let mut least = vec![u32::MAX; elements];
    for (element, label) in labels.iter().enumerate() {
        least[*label as usize] = least[*label as usize].min(element as u32);
    }
    labels.iter().map(|label| least[*label as usize]).collect()
}

/// Groups of which patterns are tied become one, with the operators of the tie.
fn join(problem: &PackingProblem, groups: Vec<Group>, ties: &[(Vec<u32>, Vec<u32>)]) -> Vec<Group> {
    let mut group_of: HashMap<u32, u32> = HashMap::new();
    groups.iter().enumerate().for_each(|(n, group)| group.patterns.iter().for_each(|p| _ = group_of.insert(*p, n as u32)));
    let tied: Vec<Vec<u32>> = ties.iter().map(|(patterns, _)| patterns.iter().map(|p| group_of[p]).collect()).collect();
    let first = least_of_sets(groups.len(), tied.iter().map(Vec::as_slice));
    let mut joined: BTreeMap<u32, (Vec<u32>, Placed)> = BTreeMap::new();
    let placed = |operator: &u32| (problem.dag.position(*operator), *operator);
    for (n, group) in groups.into_iter().enumerate() {
        let (patterns, operators) = joined.entry(first[n]).or_default();
        patterns.extend(group.patterns);
        operators.extend(group.operators.iter().map(placed));
    }
    for (group, (_, operators)) in tied.iter().zip(ties).filter_map(|(groups, tie)| Some((groups.first()?, tie))) {
        joined.entry(first[*group as usize]).or_default().1.extend(operators.iter().map(placed));
    }
    let group = |(mut patterns, operators): (Vec<u32>, Placed)| {
        patterns.sort_unstable();
        Group { patterns, operators: operators.into_iter().map(|(_, operator)| operator).collect() }
    };
    joined.into_values().map(group).collect()
}

/// A group by positions of its own; its patterns are sorted by what they hold, so that equal groups look equal.
fn local(problem: &PackingProblem, group: &mut Group) -> Local {
    let number: HashMap<u32, u32> = group.operators.iter().enumerate().map(|(n, operator)| (*operator, n as u32)).collect();
    let own = |pattern: u32| {
        let mut members: Vec<u32> = problem.patterns[pattern as usize].members.iter().map(|m| number[m]).collect();
        members.sort_unstable();
        members
    };
    let mut patterns: Vec<(Vec<u32>, u32)> = group.patterns.iter().map(|p| (own(*p), *p)).collect();
    patterns.sort_unstable();
    group.patterns = patterns.iter().map(|(_, p)| *p).collect();
    // Intervals of the whole order never wait for one another.
    let interval = |pattern: &u32| {
        let positions = || problem.patterns[*pattern as usize].members.iter().map(|m| problem.dag.position(*m));
        let span = positions().max().unwrap_or(0) - positions().min().unwrap_or(0);
        span as usize + 1 == problem.patterns[*pattern as usize].members.len()
    };
    let mut edges: Vec<(u32, u32)> = Vec::new();
    if !group.patterns.iter().all(interval) {
        for (n, operator) in group.operators.iter().enumerate() {
            edges.extend(problem.dag.after(*operator).iter().filter_map(|to| Some((n as u32, *number.get(to)?))));
        }
        edges.sort_unstable();
    }
    Local {
        operators: group.operators.len(),
        scores: group.patterns.iter().map(|p| problem.patterns[*p as usize].score).collect(),
        members: patterns.into_iter().map(|(members, _)| members).collect(),
        edges,
    }
}

fn solve(local: &Local, limits: PackingLimits) -> Solution {
    let part = |bound_ps, cuts, steps| ProofPart {
        operators: local.operators as u32,
        members: local.members.clone(),
        scores: local.scores.clone(),
        cuts,
        steps,
        bound_ps,
    };
    // Edges go from an operator to a later one, since operators are numbered in order.
    let Ok(dag) = Dag::in_order(local.operators, local.edges.iter().copied()) else {
        let most = local.scores.iter().sum();
        return Solution { chosen: vec![], part: part(most, vec![], vec![]), by_intervals: false, pivots: 0 };
    };
    let is_interval = |members: &Vec<u32>| members.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    if local.members.iter().all(is_interval) {
        let interval = |(members, score): (&Vec<u32>, &Cost)| {
            let begin = members[0] as usize;
            PlaceRange { begin, end: begin + members.len(), score: *score }
        };
        let all: Vec<PlaceRange> = local.members.iter().zip(&local.scores).map(interval).collect();
        let (chosen, prices) = intervals::pack(local.operators, &all);
        let members: Vec<&Vec<u32>> = chosen.iter().map(|n| &local.members[*n]).collect();
        if local.edges.is_empty() || cycles(&dag, &members).is_empty() {
            let total = chosen.iter().map(|n| local.scores[*n]).sum();
            let priced = prices.iter().enumerate().filter(|(_, price)| **price != 0);
            let operators = priced.map(|(operator, price)| (operator as u32, *price * branch::FRACTION)).collect();
            let steps = vec![ProofStep::Bounded { operators, cuts: vec![] }];
            let chosen = chosen.into_iter().map(|n| n as u32).collect();
            return Solution { chosen, part: part(total, vec![], steps), by_intervals: true, pivots: 0 };
        }
    }
    let (rows, operator_of) = rows(local);
    let own = rows.len();
    let start = start(local, &dag);
    let mut ways: BTreeMap<Vec<(u32, i64)>, Edges> = BTreeMap::new();
    let mut lazy = |choice: &[u32]| -> Vec<LinearConstraint> {
        let members: Vec<&Vec<u32>> = choice.iter().map(|n| &local.members[*n as usize]).collect();
        let found = cycles(&dag, &members);
        let cut = |edges: Vec<(u32, u32)>| {
            let (terms, roles) = lifted(local, &edges);
            ways.entry(terms.clone()).or_insert(edges);
            LinearConstraint { terms, bound: roles as i64 - 1 }
        };
        found.into_iter().map(|cycle| cycle.edges).map(cut).collect()
    };
    let program = Program { weights: local.scores.clone(), rows };
    let solved = branch::maximise(program, start, (limits.nodes, limits.pivots), &mut lazy);
    let cuts = solved.rows[own..].iter().map(|row| Cut {
        patterns: row.terms.iter().map(|(pattern, _)| *pattern).collect(),
        cycle: ways.get(&row.terms).cloned().unwrap_or_default(),
    });
    let step = |node: branch::BranchNode| match node {
        branch::BranchNode::Split { variable, taken, left } => ProofStep::Split { pattern: variable, taken, left },
        branch::BranchNode::Bounded(prices) => {
            let (operators, cuts): (Vec<_>, Vec<_>) = prices.into_iter().partition(|(row, _)| (*row as usize) < own);
            ProofStep::Bounded {
                operators: operators.into_iter().map(|(row, price)| (operator_of[row as usize], price)).collect(),
                cuts: cuts.into_iter().map(|(row, price)| (row - own as u32, price)).collect(),
            }
        }
    };
    let part = part(solved.bound, cuts.collect(), solved.tree.into_iter().map(step).collect());
    Solution { chosen: solved.chosen, part, by_intervals: false, pivots: solved.pivots }
}

/// A row for each operator, without those that another row implies; and the operator of each.
fn rows(local: &Local) -> (Vec<LinearConstraint>, Vec<u32>) {
    let mut holders: Vec<Vec<u32>> = vec![Vec::new(); local.operators];
    for (pattern, members) in local.members.iter().enumerate() {
        members.iter().for_each(|operator| holders[*operator as usize].push(pattern as u32));
    }
    let mut distinct: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
    for (operator, patterns) in holders.into_iter().enumerate().filter(|(_, patterns)| !patterns.is_empty()) {
        distinct.entry(patterns).or_insert(operator as u32);
    }
    let mut all: Vec<(Vec<u32>, u32)> = distinct.into_iter().collect();
    if all.len() <= COMPARED {
        all.sort_by_key(|(patterns, operator)| (std::cmp::Reverse(patterns.len()), *operator));
        let mut kept: Vec<(FixedBitSet, (Vec<u32>, u32))> = Vec::new();
        for (patterns, operator) in all {
            let set: FixedBitSet = patterns.iter().map(|p| *p as usize).collect();
            if !kept.iter().any(|(other, _)| set.is_subset(other)) {
                kept.push((set, (patterns, operator)));
            }
        }
        all = kept.into_iter().map(|(_, row)| row).collect();
    }
    all.sort_by_key(|(_, operator)| *operator);
    let row = |patterns: &Vec<u32>| LinearConstraint { terms: patterns.iter().map(|p| (*p, 1)).collect(), bound: 1 };
    all.iter().map(|(patterns, operator)| (row(patterns), *operator)).unzip()
}

/// The patterns that could take part in a cycle in the place of those that do, and how many must at once: a pattern that holds both the
/// operator where the cycle enters and the one where it leaves. Patterns for one place share operators, so a plan has one of them.
fn lifted(local: &Local, edges: &[(u32, u32)]) -> (Vec<(u32, i64)>, usize) {
    let next = edges.iter().cycle().skip(1);
    let places: Vec<(u32, u32)> = edges.iter().zip(next).map(|(a, b)| (a.1, b.0)).filter(|(enters, leaves)| enters != leaves).collect();
    let holds = |members: &Vec<u32>, operator: &u32| members.binary_search(operator).is_ok();
    let fits = |members: &Vec<u32>| places.iter().any(|(enters, leaves)| holds(members, enters) && holds(members, leaves));
    let terms = local.members.iter().enumerate().filter(|(_, members)| fits(members)).map(|(n, _)| (n as u32, 1)).collect();
    (terms, places.len())
}

/// The greedy choice within a part.
fn start(local: &Local, dag: &Dag) -> Vec<u32> {
    let mut ranked: Vec<u32> = (0..local.scores.len() as u32).collect();
    ranked.sort_by_key(|n| (std::cmp::Reverse(local.scores[*n as usize]), *n));
    let mut order = OperatorOrder::new(dag);
    let mut taken = |n: &u32| {
        let members = &local.members[*n as usize];
        order.is_free(members) && order.merge(members)
    };
    ranked.retain(&mut taken);
    ranked.sort_unstable();
    ranked
}
