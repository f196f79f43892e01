//! How many choices are nearly as good as the best: an elimination that counts instead of minimising.
//!
//! A choice is a combination of variants and a way to hold every container that they touch, each kernel in its best
//! configuration. Tables hold, for every combination of values, how many ways there are to cost so and so much; costs
//! beyond the limit are dropped at once, and so are values that no such choice can have. Costs are kept to the
//! picosecond. Where that makes the tables too long, costs are rounded down and up: the count lies between the two.

use crate::cost::{Cost, FORBIDDEN};
use crate::dual::Dual;
use crate::eliminate::order;
use crate::model::Model;
use crate::network::{Function, Leg, Network, Part};
use std::collections::{BTreeMap, BTreeSet};

/// Entries of all tables together that an exact count may take, and steps to which costs are rounded if it takes more: as many
/// as it can have.
const ENTRIES: usize = 1 << 20;
const STEPS: [Cost; 3] = [512, 128, 32];
/// Combinations of variants counted one by one.
const COMBINATIONS: usize = 64;

/// At least `least` and at most `most` choices; equal if counted exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    pub least: u128,
    pub most: u128,
}

/// Ways by cost above the least.
type Ways = BTreeMap<Cost, u128>;

#[derive(Clone, Copy)]
enum Rounding {
    None,
    Down(Cost),
    Up(Cost),
}

impl Rounding {
    fn of(self, cost: Cost) -> Cost {
        match self {
            Rounding::None => cost,
            Rounding::Down(step) => cost - cost % step,
            Rounding::Up(step) => (cost + step - 1) / step * step,
        }
    }
}

/// Counts the choices that cost at most `limit` picoseconds; `None` if the program is too wide to count.
pub fn within(model: &Model, limit: Cost) -> Option<Count> {
    let mut total = Count { least: 0, most: 0 };
    let parts = match model.combinations(COMBINATIONS) {
        Some(all) => all.iter().map(|variants| model.variant(variants)).map(|one| posed(&one)).collect(),
        None => vec![posed(model)],
    };
    for (network, mut part) in parts {
        let mut dual = Dual::new(&network);
        let mut some = true;
        for pass in 0..48 {
            dual.pass(&network, &part, pass % 2 == 1, limit.saturating_mul(2));
            if pass % 8 == 7 && part.drop_dear(&dual.bounds(&network, &part), limit + 1).is_none() {
                some = false;
                break;
            }
        }
        if !some {
            continue;
        }
        let found = match counted(&network, &part, limit, Rounding::None) {
            Ok(n) => Count { least: n, most: n },
            Err(slack) => {
                let rounded = |rounding| counted(&network, &part, limit, rounding).ok();
                let between = |steps: &Cost| {
                    let step = (slack / steps).max(1);
                    Some(Count { most: rounded(Rounding::Down(step))?, least: rounded(Rounding::Up(step))? })
                };
                STEPS.iter().find_map(between)?
            }
        };
        total.least = total.least.saturating_add(found.least);
        total.most = total.most.saturating_add(found.most);
    }
    Some(total)
}

/// The network of a model in which every choice is one assignment: an absent container has only its first layout.
fn posed(model: &Model) -> (Network, Part) {
    let mut network = Network::new(model);
    let mut part = Part::whole(model, &network);
    for class in 0..model.classes.len() {
        let touching: Vec<_> = model.factors.iter().filter(|f| f.uses.iter().any(|u| u.class == class)).collect();
        if touching.is_empty() {
            part.domains[class].truncate(1);
        }
        if touching.is_empty() || touching.iter().any(|f| f.guards.is_empty()) {
            continue;
        }
        // Any layout where one of the kernels that touch it runs; else the first one.
        let groups: BTreeSet<usize> = touching.iter().flat_map(|f| f.guards.iter().map(|(g, _)| *g)).collect();
        let leg = |variable: usize, patterns: &[&dyn Fn(u16) -> bool]| {
            let values = network.sizes[variable];
            let cost = patterns.iter().flat_map(|allowed| (0..values as u16).map(move |v| if allowed(v) { 0 } else { FORBIDDEN }));
            Leg { variable, values, cost: cost.collect() }
        };
        let first = part.domains[class].first().copied().unwrap_or(0);
        let mut legs = vec![leg(class, &[&|_| true, &|v| v == first])];
        for group in &groups {
            let mut patterns: Vec<Box<dyn Fn(u16) -> bool>> = vec![Box::new(|_| true)];
            for factor in &touching {
                let allowed = factor.guards.iter().find(|(g, _)| g == group).map(|(_, variants)| variants.clone());
                patterns.push(Box::new(move |v| allowed.as_ref().is_none_or(|a| a.contains(&v))));
            }
            legs.push(leg(network.groups + group, &patterns.iter().map(|p| p.as_ref()).collect::<Vec<_>>()));
        }
        let rows = touching.len() + 1;
        let asks = |row: usize| {
            (0..=groups.len()).map(move |leg| match (row, leg) {
                (0, 0) => 1,
                (0, _) | (_, 0) => 0,
                _ => row as u16,
            })
        };
        let patterns = (0..rows).flat_map(asks).collect();
        network.add(Function { legs, rows: vec![0; rows], patterns });
        part.rows.push((0..rows as u32).collect());
    }
    (network, part)
}

/// The count, or the slack if the tables grow too long.
fn counted(network: &Network, part: &Part, limit: Cost, rounding: Rounding) -> Result<u128, Cost> {
    let order = order(network, part);
    let size = |v: &usize| part.domains[*v].len();
    let mut least: Cost = 0;
    let mut tables: Vec<(Vec<usize>, Vec<Ways>)> = Vec::new();
    let mut plain: Vec<(Vec<usize>, Vec<Cost>)> = Vec::new();
    if order.largest > ENTRIES as u64 {
        return Err(limit);
    }
    for function in &network.functions {
        let scope: Vec<usize> = function.legs.iter().map(|leg| leg.variable).filter(|v| size(v) > 1).collect();
        let entries = scope.iter().map(size).product();
        let mut assignment: Vec<u16> = part.domains.iter().map(|d| d[0]).collect();
        let cost = |mut n: usize| {
            for v in &scope {
                assignment[*v] = part.domains[*v][n % size(v)];
                n /= size(v);
            }
            function.at(&assignment)
        };
        let costs: Vec<Cost> = (0..entries).map(cost).collect();
        least += costs.iter().min().copied().unwrap_or(FORBIDDEN);
        plain.push((scope, costs));
    }
    let slack = limit - least;
    if slack < 0 {
        return Ok(0);
    }
    for (scope, costs) in plain {
        let own = costs.iter().min().copied().unwrap_or(0);
        let ways = |cost: &Cost| {
            let above = rounding.of(cost - own);
            if above <= slack { Ways::from([(above, 1)]) } else { Ways::new() }
        };
        tables.push((scope, costs.iter().map(ways).collect()));
    }
    for variable in &order.variables {
        let (mine, others): (Vec<_>, Vec<_>) = tables.into_iter().partition(|(scope, _)| scope.contains(variable));
        tables = others;
        let mut scope: Vec<usize> = mine.iter().flat_map(|(s, _)| s.iter().copied()).filter(|v| v != variable).collect();
        scope.sort_unstable();
        scope.dedup();
        let mut joint: Vec<Ways> = Vec::new();
        let (mut digits, mut length) = (vec![0usize; network.sizes.len()], 0);
        for mut n in 0..scope.iter().map(size).product::<usize>() {
            for v in &scope {
                (digits[*v], n) = (n % size(v), n / size(v));
            }
            let mut all = Ways::new();
            for value in 0..size(variable) {
                digits[*variable] = value;
                let at = |s: &[usize]| s.iter().rev().fold(0, |at, v| at * size(v) + digits[*v]);
                let product = mine.iter().fold(Ways::from([(0, 1)]), |ways, (s, table)| times(&ways, &table[at(s)], slack));
                for (cost, n) in product {
                    let known = all.entry(cost).or_default();
                    *known = known.saturating_add(n);
                }
            }
            length += all.len();
            if length > ENTRIES {
                return Err(slack);
            }
            joint.push(all);
        }
        tables.push((scope, joint));
    }
    let all = tables.iter().filter_map(|(_, t)| t.first()).fold(Ways::from([(0, 1)]), |ways, t| times(&ways, t, slack));
    Ok(all.values().fold(0, |sum, n| n.saturating_add(sum)))
}

/// Both at once: costs add up, ways multiply.
fn times(a: &Ways, b: &Ways, slack: Cost) -> Ways {
    let mut product = Ways::new();
    for (x, n) in a {
        for (y, m) in b.range(..=slack - x) {
            let known = product.entry(x + y).or_default();
            *known = known.saturating_add(n.saturating_mul(*m));
        }
    }
    product
}
