//! The choice as a network of cost functions: variables with a few values each, and functions that bind some of them.
//!
//! A variable is a class of tied containers (its values: layouts) or a group of alternatives (its values: variants). A
//! function is a kernel: a list of rows, one for each measured configuration, and one leg for each variable it touches.
//! Its cost is the minimum over rows of the row's time plus, leg by leg, what the row asks of the variable: the relayout
//! from or to the layout it wants. What a leg can ask is its *pattern*. A kernel that only some variants have gets a leg
//! to that group, forbidden where it must not run, and one row that costs nothing for when it does not run. So relayouts
//! and alternatives need no machinery of their own.

use crate::model::cost::{Cost, FORBIDDEN};
use crate::model::selection_model::Model;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How a function depends on one variable.
#[derive(Clone, Debug)]
pub struct Leg {
    pub variable: usize,
    pub values: usize,
    /// Pattern after pattern, one cost for each value.
    pub cost: Vec<Cost>,
}

impl Leg {
    pub fn patterns(&self) -> usize {
        self.cost.len() / self.values.max(1)
    }

    pub fn of(&self, pattern: u16) -> &[Cost] {
        &self.cost[pattern as usize * self.values..(pattern as usize + 1) * self.values]
    }
}

/// The minimum over rows of time + legs.
#[derive(Clone, Debug, Default)]
pub struct CostFunction {
    /// One for each variable.
    pub legs: Vec<Leg>,
    /// Times, ascending.
    pub rows: Vec<Cost>,
    /// Row after row, one pattern for each leg.
    pub patterns: Vec<u16>,
}

impl CostFunction {
    pub fn patterns_of(&self, row: usize) -> &[u16] {
        &self.patterns[row * self.legs.len()..(row + 1) * self.legs.len()]
    }

    /// Cost under an assignment of all variables.
    pub fn at(&self, assignment: &[u16]) -> Cost {
        let mut best = FORBIDDEN;
        for (row, ms) in self.rows.iter().enumerate() {
            // Rows are sorted and legs cost nothing at least: none of the rest can be cheaper.
            if *ms >= best {
                break;
            }
            let legs = self.legs.iter().zip(self.patterns_of(row));
            best = best.min(legs.fold(*ms, |sum, (leg, p)| sum.saturating_add(leg.of(*p)[assignment[leg.variable] as usize])));
        }
        best
    }
}

impl CostFunction {
    /// The same for every value of one leg's variable, the others as assigned: one look at the rows instead of one each.
    pub fn along(&self, along: usize, assignment: &[u16]) -> Vec<Cost> {
        let leg = &self.legs[along];
        // What each row asks of the others; of this one nothing yet.
        let asked = |(n, leg): (usize, &Leg)| -> Vec<Cost> {
            let at = |p: usize| if n == along { 0 } else { leg.of(p as u16)[assignment[leg.variable] as usize] };
            (0..leg.patterns()).map(at).collect()
        };
        let asked: Vec<Vec<Cost>> = self.legs.iter().enumerate().map(asked).collect();
        let mut others = vec![FORBIDDEN; leg.patterns()];
        let least = |others: &[Cost], value: usize| {
            others.iter().enumerate().map(|(p, o)| o + leg.of(p as u16)[value]).min().unwrap_or(FORBIDDEN).min(FORBIDDEN)
        };
        for (row, ms) in self.rows.iter().enumerate() {
            // As above, but the question is not free.
            if row % 64 == 63 && (0..leg.values).all(|value| least(&others, value) <= *ms) {
                break;
            }
            let patterns = self.patterns_of(row);
            let total = patterns.iter().zip(&asked).fold(*ms, |sum, (p, asked)| sum.saturating_add(asked[*p as usize]));
            let known = &mut others[patterns[along] as usize];
            *known = (*known).min(total);
        }
        (0..leg.values).map(|value| least(&others, value)).collect()
    }
}

#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Number of values by variable: classes first, then groups of alternatives.
    pub sizes: Vec<usize>,
    /// In the order of the kernels; then what variants need.
    pub functions: Vec<Arc<CostFunction>>,
    /// Functions by variable, ascending.
    pub touching: Vec<Vec<usize>>,
    /// Where the groups of alternatives begin.
    pub groups: usize,
    /// Whether some variants were left out for want of measurements.
    pub partial: bool,
}

impl Network {
    pub fn new(model: &Model) -> Self {
        let groups = model.classes.len();
        let partial = model.groups.iter().any(|g| !g.left_out.is_empty());
        let mut sizes: Vec<usize> = model.classes.iter().map(|c| c.layouts.len()).collect();
        sizes.extend(model.groups.iter().map(|g| g.variants.len()));
        let mut network = Network { touching: vec![Vec::new(); sizes.len()], sizes, functions: Vec::new(), groups, partial };
        for factor in &model.factors {
            let mut classes: Vec<usize> = factor.uses.iter().map(|u| u.class).collect();
            classes.sort_unstable();
            classes.dedup();
            let uses: Vec<Vec<usize>> =
                classes.iter().map(|c| (0..factor.uses.len()).filter(|n| factor.uses[*n].class == *c).collect()).collect();
            let mut function = CostFunction::default();
            let mut known: Vec<BTreeMap<Vec<u16>, u16>> = vec![BTreeMap::new(); classes.len()];
            let mut legs: Vec<Leg> = classes.iter().map(|c| Leg { variable: *c, values: network.sizes[*c], cost: Vec::new() }).collect();
            let mut seen = BTreeSet::new();
            for choice in factor.choices.iter().filter(|c| seen.insert(c.layouts.clone())) {
                function.rows.push(choice.ps);
                for (n, uses) in uses.iter().enumerate() {
                    let wanted: Vec<u16> = uses.iter().map(|u| choice.layouts[*u]).collect();
                    let next = known[n].len() as u16;
                    let pattern = *known[n].entry(wanted.clone()).or_insert_with(|| {
                        let relayouts =
                            |held: usize| uses.iter().zip(&wanted).map(|(u, w)| factor.uses[*u].cost[held][*w as usize]).sum::<Cost>();
                        let values = legs[n].values;
                        legs[n].cost.extend((0..values).map(relayouts));
                        next
                    });
                    function.patterns.push(pattern);
                }
            }
            network.guard(factor, &mut function, &mut legs, groups);
            function.legs = legs;
            network.add(function);
        }
        for need in &model.needs {
            network.require(groups + need.when.0, &need.when.1, groups + need.then.0, &need.then.1);
        }
        network
    }

    /// Where one variable has one of these values, another one has one of those.
    fn require(&mut self, when: usize, values: &[u16], then: usize, others: &[u16]) {
        let allowed = |variable: usize, these: &[u16], on: bool| -> Vec<Cost> {
            (0..self.sizes[variable] as u16).map(|v| if these.contains(&v) == on { 0 } else { FORBIDDEN }).collect()
        };
        let legs = vec![
            Leg { variable: when, values: self.sizes[when], cost: [allowed(when, values, true), allowed(when, values, false)].concat() },
            Leg { variable: then, values: self.sizes[then], cost: [allowed(then, others, true), vec![0; self.sizes[then]]].concat() },
        ];
        self.add(CostFunction { legs, rows: vec![0, 0], patterns: vec![0, 0, 1, 1] });
    }

    /// Legs to the groups on which the kernel depends, and the row for when it does not run.
    fn guard(&self, factor: &crate::model::selection_model::Factor, function: &mut CostFunction, legs: &mut Vec<Leg>, groups: usize) {
        if factor.guards.is_empty() {
            return;
        }
        let (rows, before) = (function.rows.len(), legs.len());
        let mut patterns = Vec::new();
        for row in 0..rows {
            patterns.extend_from_slice(&function.patterns[row * before..(row + 1) * before]);
            patterns.extend(factor.guards.iter().map(|_| 0));
        }
        for (group, variants) in &factor.guards {
            let values = self.sizes[groups + group];
            let allowed = |runs: bool| (0..values as u16).map(move |v| if variants.contains(&v) == runs { 0 } else { FORBIDDEN });
            // Pattern 0: it runs. 1: this guard keeps it from running. 2: another one does.
            let cost = allowed(true).chain(allowed(false)).chain((0..values).map(|_| 0)).collect();
            legs.push(Leg { variable: groups + group, values, cost });
        }
        let indifferent: Vec<u16> = legs[..before].iter().map(|leg| leg.patterns() as u16).collect();
        for leg in &mut legs[..before] {
            leg.cost.extend(std::iter::repeat_n(0, leg.values));
        }
        // Rows are sorted by time: the ones that cost nothing come first.
        let mut idle = Vec::new();
        for keeping in 0..factor.guards.len() {
            idle.extend_from_slice(&indifferent);
            idle.extend((0..factor.guards.len()).map(|g| if g == keeping { 1 } else { 2 }));
        }
        idle.extend(patterns);
        function.patterns = idle;
        function.rows.splice(0..0, std::iter::repeat_n(0, factor.guards.len()));
    }

    pub fn add(&mut self, function: CostFunction) {
        for leg in &function.legs {
            self.touching[leg.variable].push(self.functions.len());
        }
        self.functions.push(Arc::new(function));
    }

    /// The functions that touch some variables, with their rows left.
    pub fn around(&self, part: &Subproblem, variables: &[usize]) -> (Network, Vec<Vec<u32>>) {
        let near: BTreeSet<usize> = variables.iter().flat_map(|v| self.touching[*v].iter().copied()).collect();
        let functions = near.iter().map(|n| self.functions[*n].clone()).collect();
        let network = Network { sizes: self.sizes.clone(), functions, touching: Vec::new(), groups: self.groups, partial: self.partial };
        (network, near.into_iter().map(|n| part.rows[n].clone()).collect())
    }

    pub fn total(&self, assignment: &[u16]) -> Cost {
        // Of many that may not be, the sum is still a number.
        self.functions.iter().fold(0, |sum: Cost, f| (sum + f.at(assignment)).min(FORBIDDEN))
    }

    /// Cost of a pass over all rows: the unit of work.
    pub fn weight(&self, part: &Subproblem) -> u64 {
        let rows = self.functions.iter().zip(&part.rows).map(|(f, rows)| rows.len() * f.legs.len());
        let legs = self.functions.iter().flat_map(|f| &f.legs).map(|leg| leg.patterns() * part.domains[leg.variable].len());
        rows.chain(legs).sum::<usize>() as u64
    }
}

/// A part of all choices: the values left of every variable, the rows left of every function.
#[derive(Clone, Debug)]
pub struct Subproblem {
    /// Ascending; never empty.
    pub domains: Vec<Vec<u16>>,
    pub rows: Vec<Vec<u32>>,
}

/// How many of the fastest undominated rows a row is compared with: nearly all that dominate are among them.
const RIVALS: usize = 48;

impl Subproblem {
    /// Everything that the model allows.
    pub fn whole(model: &Model, network: &Network) -> Self {
        let mut domains: Vec<Vec<u16>> = model.classes.iter().map(|c| c.domain.clone()).collect();
        domains.extend(model.groups.iter().map(|g| g.domain.clone()));
        let rows = network.functions.iter().map(|f| (0..f.rows.len() as u32).collect()).collect();
        Subproblem { domains, rows }
    }

    /// The same with one value of a variable.
    pub fn with(&self, variable: usize, value: u16) -> Subproblem {
        let mut part = self.clone();
        part.domains[variable] = vec![value];
        part
    }

    /// Drops rows that another row of the same function replaces for all values of the variables: c is dominated by a faster
    /// c′ if t(c) ≥ t(c′) + Σ over legs of max over values of (cost of c′ − cost of c). This needs no triangle
    /// inequality of relayout times, which measured times do not always obey.
    pub fn drop_dominated(&mut self, network: &Network) {
        for (function, left) in network.functions.iter().zip(&mut self.rows) {
            let excess: Vec<Vec<Cost>> = function.legs.iter().map(|leg| excess(leg, &self.domains[leg.variable])).collect();
            let mut kept: Vec<u32> = Vec::new();
            for row in left.iter().copied() {
                let (ps, patterns) = (function.rows[row as usize], function.patterns_of(row as usize));
                let dominated = kept.iter().take(RIVALS).any(|rival| {
                    // What saturates from one side has lost what the other side has: these are whole.
                    let mut most = i128::from(function.rows[*rival as usize]);
                    for (n, (a, b)) in function.patterns_of(*rival as usize).iter().zip(patterns).enumerate() {
                        most += i128::from(excess[n][*a as usize * function.legs[n].patterns() + *b as usize]);
                    }
                    most <= i128::from(ps)
                });
                if !dominated {
                    kept.push(row);
                }
            }
            *left = kept;
        }
    }

    /// Drops values that another value of the same variable replaces in every choice; returns which value replaces which.
    pub fn drop_dominated_values(&mut self, network: &Network) -> Vec<(usize, u16, u16)> {
        let mut dropped = Vec::new();
        // A kernel of a variant that was left out may like what no other kernel likes.
        for variable in (0..self.domains.len()).filter(|_| !network.partial) {
            // more[b][a]: the most that b can cost above a, over all functions.
            let domain = self.domains[variable].clone();
            let mut more = vec![vec![0i128; domain.len()]; domain.len()];
            for n in &network.touching[variable] {
                let function = &network.functions[*n];
                let Some(l) = function.legs.iter().position(|leg| leg.variable == variable) else { continue };
                let mut asked: Vec<u16> = self.rows[*n].iter().map(|r| function.patterns_of(*r as usize)[l]).collect();
                asked.sort_unstable();
                asked.dedup();
                for (b, more) in more.iter_mut().enumerate() {
                    for (a, more) in more.iter_mut().enumerate() {
                        let cost = |p: &u16| function.legs[l].of(*p)[domain[b] as usize] - function.legs[l].of(*p)[domain[a] as usize];
                        *more += i128::from(asked.iter().map(cost).max().unwrap_or(0));
                    }
                }
            }
            let mut left: Vec<usize> = (0..domain.len()).collect();
            for a in (0..domain.len()).rev() {
                if let Some(b) = left.iter().copied().find(|b| *b != a && more[*b][a] <= 0) {
                    left.retain(|n| *n != a);
                    dropped.push((variable, domain[a], domain[b]));
                }
            }
            self.domains[variable] = left.into_iter().map(|n| domain[n]).collect();
        }
        dropped
    }
}

/// For two patterns a, b of a leg: max over values of cost a − cost b.
fn excess(leg: &Leg, domain: &[u16]) -> Vec<Cost> {
    let patterns = leg.patterns();
    let mut excess = vec![0; patterns * patterns];
    for a in 0..patterns {
        for b in (0..patterns).filter(|b| *b != a) {
            let (x, y) = (leg.of(a as u16), leg.of(b as u16));
            excess[a * patterns + b] = domain.iter().map(|v| x[*v as usize] - y[*v as usize]).max().unwrap_or(0);
        }
    }
    excess
}
