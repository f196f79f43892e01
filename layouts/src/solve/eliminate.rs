//! Variable elimination: the exact minimum of a network.
//!
//! Variables are eliminated one after the other: the tables that mention a variable are added and minimised over it,
//! which gives a table over their other variables. Two greedy orders are tried, the one that adds fewest new pairs of
//! variables to a common table (min-fill) and the one whose next table is smallest (min-weight); the cheaper is kept.
//! Time and memory: the sum of the tables' sizes (times the eliminated domain), exponential in the width of the program
//! (how many containers are live across a cut), not in its length. Equal tables are worked out once: the layers of a
//! stack that are equal share their messages.

use crate::model::cost::{Cost, FORBIDDEN};
use crate::model::network::{CostFunction, Network, Subproblem};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// The order of elimination and what it needs.
#[derive(Clone, Debug)]
pub struct EliminationOrder {
    pub variables: Vec<usize>,
    /// Entries of the largest table.
    pub largest: u64,
    /// Variables of that table.
    pub widest: Vec<usize>,
    /// Additions in all.
    pub work: u64,
}

/// The criterion by which the next variable is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Greedy {
    Fill,
    Weight,
}

fn size<'a>(part: &Subproblem, variables: impl IntoIterator<Item = &'a usize>) -> u64 {
    variables.into_iter().fold(1u64, |n, v| n.saturating_mul(part.domains[*v].len() as u64))
}

/// Variables of a function that are still open.
fn open(part: &Subproblem, function: &CostFunction) -> BTreeSet<usize> {
    function.legs.iter().map(|leg| leg.variable).filter(|v| part.domains[*v].len() > 1).collect()
}

/// The better of the two orders of all variables with more than one value left.
pub fn order(network: &Network, part: &Subproblem) -> EliminationOrder {
    let (fill, weight) = (greedy(network, part, Greedy::Fill), greedy(network, part, Greedy::Weight));
    if (fill.largest.max(1 << 16), fill.work) < (weight.largest.max(1 << 16), weight.work) { fill } else { weight }
}

fn greedy(network: &Network, part: &Subproblem, by: Greedy) -> EliminationOrder {
    let mut near: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let mut order = EliminationOrder { variables: Vec::new(), largest: 1, widest: Vec::new(), work: 1 };
    let note = |order: &mut EliminationOrder, entries: u64, scope: &BTreeSet<usize>| {
        if entries > order.largest {
            (order.largest, order.widest) = (entries, scope.iter().copied().collect());
        }
    };
    for function in &network.functions {
        let scope = open(part, function);
        let entries = size(part, &scope);
        note(&mut order, entries, &scope);
        order.work = order.work.saturating_add(entries);
        for v in &scope {
            near.entry(*v).or_default().extend(scope.iter().filter(|other| *other != v));
        }
    }
    let cost = |near: &BTreeMap<usize, BTreeSet<usize>>, v: usize| -> (u64, u64) {
        let scope = &near[&v];
        let table = size(part, scope);
        match by {
            Greedy::Weight => (table, 0),
            Greedy::Fill => {
                let missing = scope.iter().map(|a| scope.range(a + 1..).filter(|b| !near[a].contains(b)).count() as u64).sum();
                (missing, table)
            }
        }
    };
    let mut costs: BTreeMap<usize, (u64, u64)> = near.keys().map(|v| (*v, cost(&near, *v))).collect();
    let mut queue: BTreeSet<((u64, u64), usize)> = costs.iter().map(|(v, c)| (*c, *v)).collect();
    while let Some((_, variable)) = queue.pop_first() {
        costs.remove(&variable);
        let scope = near.remove(&variable).unwrap_or_default();
        // The joint table is never stored: it is minimised entry by entry.
        let entries = size(part, &scope);
        note(&mut order, entries, &scope);
        order.work = order.work.saturating_add(entries.saturating_mul(part.domains[variable].len() as u64));
        let mut changed = scope.clone();
        for v in &scope {
            if let Some(near) = near.get_mut(v) {
                near.remove(&variable);
                near.extend(scope.iter().filter(|other| *other != v));
            }
        }
        if by == Greedy::Fill {
            changed.extend(scope.iter().filter_map(|v| near.get(v)).flatten().copied().collect::<Vec<_>>());
        }
        for v in changed {
            let new = cost(&near, v);
            if let Some(old) = costs.insert(v, new).filter(|old| *old != new) {
                queue.remove(&(old, v));
                queue.insert((new, v));
            }
        }
        order.variables.push(variable);
    }
    order
}

/// Costs over some variables; the last varies fastest. Entries follow the domains of a [`Subproblem`].
#[derive(Clone, Debug)]
struct Table {
    variables: Vec<usize>,
    costs: Rc<Vec<Cost>>,
    /// Equal numbers mean equal costs.
    content: usize,
}

/// The table of one function: its cheapest row for every combination of values.
///
/// Variables are taken one at a time: a partial table maps (values of the variables done, patterns of the others) to the
/// least cost, and the next variable's pattern is replaced by a minimum. That takes entries × values for each variable,
/// instead of entries × rows.
fn table(function: &CostFunction, part: &Subproblem, rows: &[u32]) -> (Vec<usize>, Vec<Cost>) {
    let legs = &function.legs;
    let domain = |n: usize| &part.domains[legs[n].variable];
    let (mut open, closed): (Vec<usize>, Vec<usize>) = (0..legs.len()).partition(|n| domain(*n).len() > 1);
    // Small domains first: they shrink the partial table.
    open.sort_by_key(|n| (domain(*n).len(), *n));
    let radix = |n: usize| legs[n].patterns().max(domain(n).len()) as u128;
    let mut weight = vec![1u128; legs.len()];
    for pair in open.windows(2) {
        weight[pair[1]] = weight[pair[0]] * radix(pair[0]);
    }
    let entry = |row: &u32| {
        let patterns = function.patterns_of(*row as usize);
        let asked = closed.iter().map(|n| legs[*n].of(patterns[*n])[domain(*n)[0] as usize]);
        let settled = asked.fold(function.rows[*row as usize], |sum, cost| (sum + cost).min(FORBIDDEN));
        let key = open.iter().map(|n| u128::from(patterns[*n]) * weight[*n]).sum::<u128>();
        (key, settled)
    };
    let mut partial: Vec<(u128, Cost)> = rows.iter().map(entry).collect();
    for n in &open {
        let (weight, radix, domain) = (weight[*n], radix(*n), domain(*n));
        // What differs in this pattern alone, side by side.
        let digit = |key: u128| key / weight % radix;
        let rest = |key: u128| key - digit(key) * weight;
        partial.sort_unstable_by_key(|(key, _)| rest(*key));
        let mut next = Vec::new();
        for group in partial.chunk_by(|a, b| rest(a.0) == rest(b.0)) {
            let mut costs = vec![FORBIDDEN; domain.len()];
            for (key, cost) in group {
                let relayout = legs[*n].of(digit(*key) as u16);
                for (least, value) in costs.iter_mut().zip(domain) {
                    *least = (*least).min(cost + relayout[*value as usize]);
                }
            }
            let rest = rest(group[0].0);
            next.extend(costs.into_iter().enumerate().map(|(at, cost)| (rest + at as u128 * weight, cost)));
        }
        partial = next;
    }
    let mut scope = open;
    scope.sort_by_key(|n| legs[*n].variable);
    let mut costs = vec![FORBIDDEN; scope.iter().map(|n| domain(*n).len()).product()];
    for (key, cost) in partial {
        let digit = |n: usize| (key / weight[n] % radix(n)) as usize;
        let entry = &mut costs[scope.iter().fold(0, |at, n| at * domain(*n).len() + digit(*n))];
        *entry = (*entry).min(cost);
    }
    (scope.into_iter().map(|n| legs[n].variable).collect(), costs)
}

/// Where the variables of a table lie within a joint assignment: for each variable of the scope its stride in the table.
fn strides(part: &Subproblem, table: &Table, scope: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; scope.len()];
    let mut next = 1;
    for variable in table.variables.iter().rev() {
        if let Some(at) = scope.iter().position(|v| v == variable) {
            strides[at] = next;
        }
        next *= part.domains[*variable].len();
    }
    strides
}

/// The sources of a message: the content of its tables and how they lie to each other.
type Recipe = (usize, Vec<usize>, Vec<(usize, Vec<usize>, usize)>);

/// A message: least costs, the values that give them, and a number that stands for the costs.
type Message = (Rc<Vec<Cost>>, Rc<Vec<u16>>, usize);

/// The cheapest assignment within the part and its cost; the first value of each domain among equals.
pub fn eliminate(network: &Network, part: &Subproblem, order: &[usize]) -> (Vec<u16>, Cost) {
    let mut contents: HashMap<Rc<Vec<Cost>>, usize> = HashMap::new();
    let mut name = |costs: Vec<Cost>| {
        let (costs, next) = (Rc::new(costs), contents.len());
        let content = *contents.entry(costs.clone()).or_insert(next);
        (costs, content)
    };
    let mut tables: Vec<Table> = Vec::new();
    let mut total: Cost = 0;
    for (function, rows) in network.functions.iter().zip(&part.rows) {
        let (variables, costs) = table(function, part, rows);
        let (costs, content) = name(costs);
        tables.push(Table { variables, costs, content });
    }
    let mut known: HashMap<Recipe, Message> = HashMap::new();
    let mut decisions: Vec<(usize, Vec<usize>, Rc<Vec<u16>>)> = Vec::new();
    for variable in order.iter().filter(|v| part.domains[**v].len() > 1) {
        let (mine, others): (Vec<Table>, Vec<Table>) = tables.into_iter().partition(|t| t.variables.contains(variable));
        tables = others;
        let mut scope: BTreeSet<usize> = mine.iter().flat_map(|t| t.variables.iter().copied()).collect();
        scope.remove(variable);
        let scope: Vec<usize> = scope.into_iter().collect();
        let widths: Vec<usize> = scope.iter().map(|v| part.domains[*v].len()).collect();
        let steps: Vec<Vec<usize>> = mine.iter().map(|t| strides(part, t, &scope)).collect();
        let own: Vec<usize> = mine.iter().filter_map(|t| strides(part, t, &[*variable]).first().copied()).collect();
        let values = part.domains[*variable].len();
        let made_of = mine.iter().zip(&steps).zip(&own).map(|((t, s), o)| (t.content, s.clone(), *o)).collect();
        let recipe = (values, widths.clone(), made_of);
        let (costs, chosen, content) = match known.get(&recipe) {
            Some(message) => message.clone(),
            None => {
                let (costs, chosen) = minimised(&mine, &widths, &steps, &own, values);
                let (costs, content) = name(costs);
                let message = (costs, Rc::new(chosen), content);
                known.insert(recipe, message.clone());
                message
            }
        };
        decisions.push((*variable, scope.clone(), chosen));
        tables.push(Table { variables: scope, costs, content });
    }
    for table in &tables {
        total = (total + table.costs.first().copied().unwrap_or(0)).min(FORBIDDEN);
    }
    let mut positions: Vec<usize> = vec![0; network.sizes.len()];
    for (variable, scope, chosen) in decisions.into_iter().rev() {
        let at = scope.iter().fold(0, |at, v| at * part.domains[*v].len() + positions[*v]);
        positions[variable] = chosen[at] as usize;
    }
    (positions.iter().zip(&part.domains).map(|(p, domain)| domain[*p]).collect(), total)
}

/// The sum of tables, minimised over one variable.
fn minimised(tables: &[Table], widths: &[usize], steps: &[Vec<usize>], own: &[usize], values: usize) -> (Vec<Cost>, Vec<u16>) {
    let entries: usize = widths.iter().product();
    let (mut costs, mut chosen) = (Vec::with_capacity(entries), Vec::with_capacity(entries));
    let mut digits = vec![0usize; widths.len()];
    let mut base = vec![0usize; tables.len()];
    for _ in 0..entries {
        let mut best = (FORBIDDEN, 0u16);
        for value in 0..values {
            let cost = tables.iter().zip(&base).zip(own).fold(0, |sum: Cost, ((t, b), s)| (sum + t.costs[b + s * value]).min(FORBIDDEN));
            if cost < best.0 {
                best = (cost, value as u16);
            }
        }
        costs.push(best.0);
        chosen.push(best.1);
        // Count up, the last variable fastest.
        for at in (0..widths.len()).rev() {
            digits[at] += 1;
            for (b, s) in base.iter_mut().zip(steps) {
                *b += s[at];
            }
            if digits[at] < widths[at] {
                break;
            }
            for (b, s) in base.iter_mut().zip(steps) {
                *b -= s[at] * widths[at];
            }
            digits[at] = 0;
        }
    }
    (costs, chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::network::Leg;
    use crate::solve::dual::Dual;
    use std::sync::Arc;

    /// A kernel that hundreds of choices keep from running: what each forbids was added up until the sum was negative, and descent,
    /// which took that for cheap, never ended.
    #[test]
    fn what_many_forbid_is_forbidden() {
        let legs: Vec<Leg> = (0..1300).map(|variable| Leg { variable, values: 2, cost: vec![FORBIDDEN, 0, 0, FORBIDDEN] }).collect();
        let function = CostFunction { legs, rows: vec![5, 7], patterns: [vec![0; 1300], vec![1; 1300]].concat() };
        assert_eq!(function.at(&[0; 1300]), 7);
        assert_eq!(function.at(&[1; 1300]), 5);
        for allowed in [1, 100, 128, 256, 512, 1024, 1299] {
            let assignment: Vec<u16> = (0..1300).map(|n| u16::from(n < allowed)).collect();
            assert_eq!(function.at(&assignment), FORBIDDEN, "{allowed}");
            let along = function.along(0, &assignment);
            assert_eq!(along, if allowed == 1 { [7, FORBIDDEN] } else { [FORBIDDEN; 2] }, "{allowed}");
        }
        let (sizes, touching) = (vec![2; 1300], vec![vec![0]; 1300]);
        let network = Network { sizes, touching, functions: vec![Arc::new(function)], ..Network::default() };
        let fixed = |ones: u16| (1..1300).map(move |n| vec![u16::from(n <= ones)]);
        for (ones, least) in [(0, 7), (1299, 5), (1, FORBIDDEN), (130, FORBIDDEN), (700, FORBIDDEN)] {
            let part = Subproblem { domains: std::iter::once(vec![0, 1]).chain(fixed(ones)).collect(), rows: vec![vec![0, 1]] };
            assert_eq!(eliminate(&network, &part, &[0]).1, least, "{ones}");
            assert_eq!(Dual::new(&network).bounds(&network, &part).least >= FORBIDDEN, least == FORBIDDEN, "{ones}");
        }
    }
}
