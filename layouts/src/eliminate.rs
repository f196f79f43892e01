//! Variable elimination: the exact minimum of a sum of tables.
//!
//! Classes are eliminated one after the other: the tables that mention a class are added and minimised over it, which
//! gives a table over their other classes. The order is greedy: always the class whose new table is smallest. Time and
//! memory: the sum of the tables' sizes (times the eliminated domain), exponential in the width of the program (how many
//! containers are live across a cut), not in its length.

use crate::model::{Factor, Model};
use crate::prune::Rest;
use std::collections::{BTreeMap, BTreeSet};

/// Costs over some classes; the last class varies fastest. Entries follow the domains of a [`Rest`].
#[derive(Clone, Debug)]
struct Table {
    /// Ascending.
    classes: Vec<usize>,
    costs: Vec<f64>,
}

/// The order of elimination and what it needs.
#[derive(Clone, Debug)]
pub struct Order {
    classes: Vec<usize>,
    /// Entries of the largest table.
    pub largest: usize,
    /// Classes of that table.
    pub widest: Vec<usize>,
    /// Entries of all tables.
    pub work: usize,
}

fn size(rest: &Rest, classes: &BTreeSet<usize>) -> usize {
    classes.iter().fold(1usize, |n, c| n.saturating_mul(rest.domains[*c].len()))
}

/// Classes of a kernel that are still open.
fn open(rest: &Rest, factor: &Factor) -> BTreeSet<usize> {
    factor.uses.iter().map(|u| u.class).filter(|c| rest.domains[*c].len() > 1).collect()
}

/// Plans the elimination of all classes with more than one layout left.
pub fn order(model: &Model, rest: &Rest) -> Order {
    let mut scopes: Vec<BTreeSet<usize>> = model.factors.iter().map(|f| open(rest, f)).collect();
    let mut left: BTreeSet<usize> = scopes.iter().flatten().copied().collect();
    let mut order = Order { classes: Vec::new(), largest: 1, widest: Vec::new(), work: 1 };
    let note = |order: &mut Order, scope: &BTreeSet<usize>| {
        let entries = size(rest, scope);
        order.work = order.work.saturating_add(entries);
        if entries > order.largest {
            (order.largest, order.widest) = (entries, scope.iter().copied().collect());
        }
    };
    for scope in &scopes {
        note(&mut order, scope);
    }
    while !left.is_empty() {
        let joined = |class: usize| scopes.iter().filter(|s| s.contains(&class)).flatten().copied().collect::<BTreeSet<_>>();
        let Some(class) = left.iter().copied().min_by_key(|c| (size(rest, &joined(*c)), *c)) else { break };
        let mut scope = joined(class);
        // The joint table is never stored: it is minimised entry by entry.
        scope.remove(&class);
        note(&mut order, &scope);
        scopes.retain(|s| !s.contains(&class));
        scopes.push(scope);
        left.remove(&class);
        order.classes.push(class);
    }
    order
}

/// The table of one kernel: its cheapest choice for every combination of held layouts.
///
/// Held layouts are taken one class at a time: a partial table maps (held layouts of the classes done, layouts wanted for
/// the others) to the least cost, and the next class is replaced by a minimum over what is wanted. That takes
/// entries × layouts for each class, instead of entries × choices.
fn table(factor: &Factor, rest: &Rest, left: &[u32]) -> Table {
    let choices = left.iter().map(|n| &factor.choices[*n as usize]);
    let mut partial: Vec<(Vec<u16>, f64)> = choices.map(|c| (c.layouts.clone(), c.ms)).collect();
    let mut classes: Vec<usize> = factor.uses.iter().map(|u| u.class).collect::<BTreeSet<_>>().into_iter().collect();
    // Small domains first: they shrink the partial table.
    classes.sort_by_key(|c| (rest.domains[*c].len(), *c));
    for class in &classes {
        let uses: Vec<usize> = (0..factor.uses.len()).filter(|n| factor.uses[*n].class == *class).collect();
        // Entries that differ only in what is wanted of this class → cost by held layout.
        let mut groups: BTreeMap<Vec<u16>, Vec<f64>> = BTreeMap::new();
        for (mut key, ms) in partial {
            let wanted: Vec<(usize, usize)> = uses.iter().map(|n| (*n, key[*n] as usize)).collect();
            for n in &uses {
                key[*n] = 0;
            }
            let costs = groups.entry(key).or_insert_with(|| vec![f64::INFINITY; rest.domains[*class].len()]);
            for (cost, held) in costs.iter_mut().zip(&rest.domains[*class]) {
                let relayout: f64 = wanted.iter().map(|(n, w)| factor.uses[*n].cost[*held as usize][*w]).sum();
                *cost = cost.min(ms + relayout);
            }
        }
        let mut next = Vec::new();
        for (key, costs) in groups {
            for (position, cost) in costs.into_iter().enumerate() {
                let mut done = key.clone();
                for n in &uses {
                    done[*n] = position as u16;
                }
                next.push((done, cost));
            }
        }
        partial = next;
    }
    let classes: Vec<usize> = open(rest, factor).into_iter().collect();
    let first_use: Vec<usize> = classes.iter().filter_map(|c| factor.uses.iter().position(|u| u.class == *c)).collect();
    let entries = classes.iter().map(|c| rest.domains[*c].len()).product();
    let mut costs = vec![f64::INFINITY; entries];
    for (key, cost) in partial {
        let at = classes.iter().zip(&first_use).fold(0, |at, (c, u)| at * rest.domains[*c].len() + key[*u] as usize);
        costs[at] = cost;
    }
    Table { classes, costs }
}

/// Where the classes of a table lie within a joint assignment: (position in the joint scope, stride in the table).
fn strides(rest: &Rest, table: &Table, scope: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; scope.len()];
    let mut next = 1;
    for class in table.classes.iter().rev() {
        if let Some(at) = scope.iter().position(|c| c == class) {
            strides[at] = next;
        }
        next *= rest.domains[*class].len();
    }
    strides
}

/// The cheapest held layouts within the rest; the first of each domain among equals. One entry per class.
pub fn eliminate(model: &Model, rest: &Rest, order: &Order) -> Vec<u16> {
    let mut tables: Vec<Table> = model.factors.iter().zip(&rest.choices).map(|(f, left)| table(f, rest, left)).collect();
    let mut decisions: Vec<(usize, Vec<usize>, Vec<u16>)> = Vec::new();
    for class in &order.classes {
        let (mine, others): (Vec<Table>, Vec<Table>) = tables.into_iter().partition(|t| t.classes.contains(class));
        tables = others;
        let mut scope: BTreeSet<usize> = mine.iter().flat_map(|t| t.classes.iter().copied()).collect();
        scope.remove(class);
        let scope: Vec<usize> = scope.into_iter().collect();
        let widths: Vec<usize> = scope.iter().map(|c| rest.domains[*c].len()).collect();
        let entries: usize = widths.iter().product();
        let steps: Vec<Vec<usize>> = mine.iter().map(|t| strides(rest, t, &scope)).collect();
        let own: Vec<usize> = mine.iter().filter_map(|t| strides(rest, t, &[*class]).first().copied()).collect();
        let mut costs = Vec::with_capacity(entries);
        let mut chosen = Vec::with_capacity(entries);
        let mut digits = vec![0usize; scope.len()];
        let mut base = vec![0usize; mine.len()];
        for _ in 0..entries {
            let mut best = (f64::INFINITY, 0u16);
            for value in 0..rest.domains[*class].len() {
                let cost: f64 = mine.iter().zip(&base).zip(&own).map(|((t, b), s)| t.costs[b + s * value]).sum();
                if cost < best.0 {
                    best = (cost, value as u16);
                }
            }
            costs.push(best.0);
            chosen.push(best.1);
            // Count up, the last class fastest.
            for at in (0..scope.len()).rev() {
                digits[at] += 1;
                for (b, s) in base.iter_mut().zip(&steps) {
                    *b += s[at];
                }
                if digits[at] < widths[at] {
                    break;
                }
                for (b, s) in base.iter_mut().zip(&steps) {
                    *b -= s[at] * widths[at];
                }
                digits[at] = 0;
            }
        }
        decisions.push((*class, scope.clone(), chosen));
        tables.push(Table { classes: scope, costs });
    }
    let mut positions: Vec<usize> = vec![0; model.classes.len()];
    for (class, scope, chosen) in decisions.into_iter().rev() {
        let at = scope.iter().fold(0, |at, c| at * rest.domains[*c].len() + positions[*c]);
        positions[class] = chosen[at] as usize;
    }
    positions.iter().zip(&rest.domains).map(|(p, domain)| domain[*p]).collect()
}
