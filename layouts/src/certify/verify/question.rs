//! The question that a certificate answers, read again from its program and the records: what every kernel costs, however
//! its containers are held, and what the certified choice costs.

use super::{Ps, VerifyError, misfit};
use crate::certify::certificate::{Certificate, ENTERS, LEAVES, LayerChoice, Variable, need};
use crate::measure::relayout::RelayoutCosts;
use crate::measure::store::Store;
use crate::problem::{Access, Kernel, Need, SelectionProblem};
use sdfg::Layout;
use sdfg::config::KernelConfig;
use std::collections::{BTreeMap, BTreeSet};

/// Larger than any total: what may not be.
pub const NEVER: Ps = 1 << 100;

/// The patterns by which a kernel's rows depend on a variable: for each pattern, a cost for each value.
pub struct QuestionLeg {
    pub variable: usize,
    pub asks: Vec<Vec<Ps>>,
}

/// A configuration: its time, and what it asks of every leg. Without one, the kernel does not run.
pub struct QuestionRow {
    pub ps: Ps,
    pub asks: Vec<usize>,
    config: Option<KernelConfig>,
}

/// A group of alternatives, and some of its variants.
type Names = (String, BTreeSet<String>);

/// The least of its rows is what a kernel costs.
pub struct QuestionFactor {
    pub name: String,
    pub legs: Vec<QuestionLeg>,
    pub rows: Vec<QuestionRow>,
}

impl QuestionFactor {
    /// The cost of a row under values of the variables.
    pub fn cost(&self, row: &QuestionRow, value: impl Fn(usize) -> usize) -> Ps {
        row.ps + self.legs.iter().zip(&row.asks).map(|(leg, ask)| leg.asks[*ask][value(leg.variable)]).sum::<Ps>()
    }
}

pub struct Question<'a> {
    certificate: &'a Certificate,
    prices: RelayoutCosts,
    /// Container → the first container that it is tied to, directly or not.
    class: BTreeMap<&'a str, &'a str>,
    pub factors: Vec<QuestionFactor>,
    /// Values that every variable may take.
    pub values: Vec<Vec<usize>>,
}

/// A time in milliseconds as picoseconds; the reader of records has refused values that are no times.
fn ps(ms: f64) -> Ps {
    (ms * 1e9).round() as Ps
}

fn classes(program: &SelectionProblem) -> BTreeMap<&str, &str> {
    let mut first: Vec<usize> = (0..program.tensors.len()).collect();
    let at = |data: &str| program.tensors.iter().position(|t| t.data == data);
    let tied: Vec<(usize, usize)> = program.ties.iter().filter_map(|(a, b)| Some((at(a)?, at(b)?))).collect();
    while let Some((a, b)) = tied.iter().find(|(a, b)| first[*a] != first[*b]) {
        let (keep, drop) = (first[*a].min(first[*b]), first[*a].max(first[*b]));
        first.iter_mut().filter(|f| **f == drop).for_each(|f| *f = keep);
    }
    program.tensors.iter().zip(&first).map(|(t, f)| (t.data.as_str(), program.tensors[*f].data.as_str())).collect()
}

impl<'a> Question<'a> {
    pub fn read(certificate: &'a Certificate, store: &Store) -> Result<Self, VerifyError> {
        let program = &certificate.program;
        let (prices, class) = (RelayoutCosts::new(program, store), classes(program));
        let values = vec![Vec::new(); certificate.variables.len()];
        let mut question = Question { certificate, prices, class, factors: Vec::new(), values };
        let mut allowed: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); certificate.variables.len()];
        for tensor in program.tensors.iter().filter(|t| question.class[t.data.as_str()] == t.data) {
            let at = question.variable(&tensor.data)?;
            allowed[at].insert(question.value(at, &tensor.natural.to_string())?);
        }
        for (group, variants) in &program.alternatives {
            let at = question.variable(group)?;
            for variant in variants {
                allowed[at].insert(question.value(at, variant)?);
            }
        }
        for kernel in &program.kernels {
            let factor = question.factor(kernel, store, &mut allowed)?;
            question.factors.push(factor);
        }
        for (n, Need { when, then }) in program.needs.iter().enumerate() {
            let needed = question.need(need(n), when, then)?;
            question.factors.push(needed);
        }
        let joined = |data: &str| certificate.joins.iter().any(|(near, far)| near == data || far == data);
        for (data, layout) in program.boundary.iter().filter(|(data, _)| !joined(data)) {
            let at = question.container(data)?;
            allowed[at] = BTreeSet::from([question.value(at, &layout.to_string())?]);
        }
        question.values = allowed.into_iter().map(|values| values.into_iter().collect()).collect();
        for (near, far) in &certificate.joins {
            // What lies between two layers is held in a layout that both know.
            let (a, b) = (question.container(near)?, question.container(far)?);
            let names =
                |at: usize| question.values[at].iter().map(|v| certificate.variables[at].values[*v].clone()).collect::<BTreeSet<_>>();
            let common: BTreeSet<String> = names(a).intersection(&names(b)).cloned().collect();
            for at in [a, b] {
                question.values[at].retain(|v| common.contains(&certificate.variables[at].values[*v]));
            }
        }
        Ok(question)
    }

    pub fn variables(&self) -> &'a [Variable] {
        &self.certificate.variables
    }

    fn variable(&self, name: &str) -> Result<usize, VerifyError> {
        let found = self.certificate.variables.iter().position(|v| v.name == name);
        found.ok_or_else(|| VerifyError::Misfit(format!("`{name}` is no variable")))
    }

    /// The variable of a container.
    fn container(&self, data: &str) -> Result<usize, VerifyError> {
        self.class.get(data).map_or_else(|| misfit(format!("`{data}` is no container")), |class| self.variable(class))
    }

    fn value(&self, at: usize, value: &str) -> Result<usize, VerifyError> {
        let variable = &self.certificate.variables[at];
        let found = variable.values.iter().position(|v| v == value);
        found.ok_or_else(|| VerifyError::Misfit(format!("`{value}` is no value of `{}`", variable.name)))
    }

    /// The cost for a kernel of a container that is held in one layout while the kernel wants another.
    fn relayouts(&self, data: &str, access: Access, held: &str, wanted: &str) -> Result<Ps, VerifyError> {
        let (Ok(held), Ok(wanted)) = (held.parse(), wanted.parse()) else { return misfit(format!("`{held}` or `{wanted}` is no layout")) };
        let (before, after) = (ps(self.prices.cost(data, &held, &wanted).ms), ps(self.prices.cost(data, &wanted, &held).ms));
        Ok(match access {
            Access::Read => before,
            Access::Write => after,
            Access::Update => before + after,
        })
    }

    /// A kernel from its records. The layouts that they name may be held.
    fn factor(&self, kernel: &Kernel, store: &Store, allowed: &mut [BTreeSet<usize>]) -> Result<QuestionFactor, VerifyError> {
        let program = &self.certificate.program;
        // Container, its name in the records, access, variable, and where it is if a record does not say.
        let mut touches: Vec<(&str, &str, Access, usize, usize)> = Vec::new();
        for (data, access) in &kernel.tensors {
            let at = self.container(data)?;
            let natural = |data: &str| program.tensor(data).map(|t| t.natural.to_string()).unwrap_or_default();
            let plain = program.tensor(data).map_or(data.as_str(), |t| t.plain());
            touches.push((data, plain, *access, at, self.value(at, &natural(self.class[data.as_str()]))?));
        }
        let variables: BTreeSet<usize> = touches.iter().map(|t| t.3).collect();
        let mut legs: Vec<QuestionLeg> = variables.into_iter().map(|variable| QuestionLeg { variable, asks: Vec::new() }).collect();
        let mut known: Vec<BTreeMap<Vec<usize>, usize>> = vec![BTreeMap::new(); legs.len()];
        let mut rows = Vec::new();
        for (time, config) in store.of(&kernel.key).filter_map(|m| Some((kernel.price(store.ms(m)?), &m.config))) {
            let mut asks = Vec::new();
            for (leg, known) in legs.iter_mut().zip(&mut known) {
                let mine: Vec<_> = touches.iter().filter(|t| t.3 == leg.variable).collect();
                let wanted = |t: &&(&str, &str, Access, usize, usize)| match config.layouts.get(t.1) {
                    Some(layout) => self.value(t.3, &layout.to_string()),
                    None => Ok(t.4),
                };
                let wanted = mine.iter().copied().map(|t| wanted(&t)).collect::<Result<Vec<usize>, _>>()?;
                allowed[leg.variable].extend(&wanted);
                let next = known.len();
                let ask = *known.entry(wanted.clone()).or_insert(next);
                if ask == next {
                    let values = &self.certificate.variables[leg.variable].values;
                    let cost = |held: &String| mine.iter().zip(&wanted).map(|(t, w)| self.relayouts(t.0, t.2, held, &values[*w])).sum();
                    leg.asks.push(values.iter().map(cost).collect::<Result<Vec<Ps>, _>>()?);
                }
                asks.push(ask);
            }
            rows.push(QuestionRow { ps: ps(time), asks, config: Some(config.clone()) });
        }
        let mut factor = QuestionFactor { name: kernel.name.clone(), legs, rows };
        self.guard(kernel, &mut factor)?;
        factor.rows.sort_by_key(|row| row.ps);
        Ok(factor)
    }

    /// A kernel costs nothing under variants in which it does not run, for all layouts. Variants in which it was never timed are excluded.
    fn guard(&self, kernel: &Kernel, factor: &mut QuestionFactor) -> Result<(), VerifyError> {
        let every = |(group, runs): &(&String, &BTreeSet<String>)| {
            self.certificate.program.alternatives.get(*group).is_some_and(|all| all.iter().all(|v| runs.contains(v)))
        };
        let containers = factor.legs.len();
        for (group, variants) in kernel.only.iter().filter(|guard| !every(guard)) {
            let variable = self.variable(group)?;
            let runs = variants.iter().map(|v| self.value(variable, v)).collect::<Result<BTreeSet<usize>, _>>()?;
            let values = self.certificate.variables[variable].values.len();
            let allowed = |on: bool| (0..values).map(|v| if runs.contains(&v) == on { 0 } else { NEVER }).collect();
            // It runs; this guard keeps it from running; another one does.
            factor.legs.push(QuestionLeg { variable, asks: vec![allowed(true), allowed(false), vec![0; values]] });
            factor.rows.iter_mut().for_each(|row| row.asks.push(0));
        }
        let guards = factor.legs.len() - containers;
        for leg in factor.legs.iter_mut().take(containers).filter(|_| guards > 0) {
            leg.asks.push(vec![0; self.certificate.variables[leg.variable].values.len()]);
        }
        for idle in 0..guards {
            let indifferent = factor.legs[..containers].iter().map(|leg| leg.asks.len() - 1);
            let asks = indifferent.chain((0..guards).map(|n| if n == idle { 1 } else { 2 })).collect();
            factor.rows.push(QuestionRow { ps: 0, asks, config: None });
        }
        Ok(())
    }

    /// Nothing where the one has none of these variants, or the other one of those; else what may not be.
    fn need(&self, name: String, when: &Names, then: &Names) -> Result<QuestionFactor, VerifyError> {
        let leg = |(group, variants): &Names, other: &dyn Fn(bool) -> Ps| -> Result<QuestionLeg, VerifyError> {
            let variable = self.variable(group)?;
            let values = &self.certificate.variables[variable].values;
            let ask = |cost: &dyn Fn(bool) -> Ps| values.iter().map(|v| cost(variants.contains(v))).collect();
            Ok(QuestionLeg { variable, asks: vec![ask(&|on| if on { 0 } else { NEVER }), ask(other)] })
        };
        let legs = vec![leg(when, &|on| if on { NEVER } else { 0 })?, leg(then, &|_| 0)?];
        Ok(QuestionFactor { name, legs, rows: [0, 1].map(|n| QuestionRow { ps: 0, asks: vec![n, n], config: None }).into() })
    }

    /// Potentials as a function of the states on one side of a layer: negative where it is entered.
    pub fn potential(&self, at: usize, enters: bool) -> Result<QuestionFactor, VerifyError> {
        let Some(table) = self.certificate.potentials.get(at).filter(|t| t.len() == self.certificate.states.len()) else {
            return misfit("a potential is missing");
        };
        let mut factor = QuestionFactor { name: if enters { ENTERS } else { LEAVES }.to_string(), legs: Vec::new(), rows: Vec::new() };
        for (n, (near, far)) in self.certificate.joins.iter().enumerate() {
            let variable = self.container(if enters { far } else { near })?;
            let names = &self.certificate.variables[variable].values;
            let ask = |state: &Vec<Layout>| {
                let only = state.get(n).map(Layout::to_string);
                names.iter().map(|name| if Some(name) == only.as_ref() { 0 } else { NEVER }).collect()
            };
            factor.legs.push(QuestionLeg { variable, asks: self.certificate.states.iter().map(ask).collect() });
        }
        let row = |(state, cost): (usize, &i64)| {
            let ps = if enters { -Ps::from(*cost) } else { Ps::from(*cost) };
            QuestionRow { ps, asks: vec![state; factor.legs.len()], config: None }
        };
        factor.rows = table.iter().enumerate().map(row).collect();
        factor.rows.sort_by_key(|row| row.ps);
        Ok(factor)
    }

    /// The states in which a stack begins and ends; and whether every way to hold what lies between layers is a state.
    pub fn ends(&self) -> Result<(usize, usize), VerifyError> {
        let Certificate { program, joins, states, .. } = self.certificate;
        let mut ways = 1;
        for (near, _) in joins {
            ways *= self.values[self.container(near)?].len();
        }
        let distinct: BTreeSet<&Vec<Layout>> = states.iter().filter(|s| s.len() == joins.len()).collect();
        if distinct.len() != ways {
            return misfit("some way to hold what lies between two layers is no state");
        }
        let asked = |data: &String| {
            let class = self.class.get(data.as_str()).copied().unwrap_or_default();
            program.boundary.get(data).or_else(|| program.tensor(class).map(|t| &t.natural)).cloned().unwrap_or_default()
        };
        let at = |wanted: Vec<Layout>| states.iter().position(|s| *s == wanted);
        let ends = at(joins.iter().map(|(_, far)| asked(far)).collect()).zip(at(joins.iter().map(|(near, _)| asked(near)).collect()));
        ends.map_or_else(|| misfit("an end of the stack is no state"), Ok)
    }

    /// The cost of the certified choice: times of its configurations, and relayouts to and from how containers are held.
    pub fn price(&self) -> Result<Ps, VerifyError> {
        let Certificate { joins, states, choices, layers, .. } = self.certificate;
        let chosen = layers.iter().map(|l| choices.get(l.choice)).collect::<Option<Vec<&LayerChoice>>>();
        let Some(chosen) = chosen.filter(|c| !c.is_empty()) else { return misfit("a layer has no choice") };
        for (near, far) in joins {
            if chosen.windows(2).any(|pair| pair[0].layouts.get(near) != pair[1].layouts.get(far)) {
                return misfit(format!("`{near}` and `{far}` of the next layer are held in different layouts"));
            }
        }
        let (first, last) = self.ends()?;
        let held = |choice: &LayerChoice, data: &String, state: usize, n: usize| choice.layouts.get(data) == states[state].get(n);
        let starts = joins.iter().enumerate().all(|(n, (_, far))| held(chosen[0], far, first, n));
        if !starts || !joins.iter().enumerate().all(|(n, (near, _))| held(chosen[chosen.len() - 1], near, last, n)) {
            return misfit("the stack does not begin or end as the boundary asks");
        }
        chosen.into_iter().map(|choice| self.price_of(choice)).sum()
    }

    fn price_of(&self, choice: &LayerChoice) -> Result<Ps, VerifyError> {
        let program = &self.certificate.program;
        let mut values = vec![0; self.values.len()];
        for tensor in &program.tensors {
            let Some(layout) = choice.layouts.get(&tensor.data) else { return misfit(format!("`{}` is not held", tensor.data)) };
            let class = self.class[tensor.data.as_str()];
            if choice.layouts.get(class) != Some(layout) {
                return misfit(format!("`{class}` and `{}` are tied but held in different layouts", tensor.data));
            }
            let at = self.variable(class)?;
            values[at] = self.value(at, &layout.to_string())?;
            if !self.values[at].contains(&values[at]) {
                return misfit(format!("`{}` may not be held in [{layout}]", tensor.data));
            }
        }
        for group in program.alternatives.keys() {
            let Some(variant) = choice.variants.get(group) else { return misfit(format!("it chooses no variant of `{group}`")) };
            let at = self.variable(group)?;
            values[at] = self.value(at, variant)?;
        }
        let mut total = 0;
        for factor in &self.factors {
            let config = choice.kernels.get(&factor.name);
            let rows = factor.rows.iter().filter(|row| row.config.as_ref() == config);
            let Some(cost) = rows.map(|row| factor.cost(row, |v| values[v])).min().filter(|cost| *cost < NEVER) else {
                return misfit(format!("`{}` does not run in this configuration, or was not measured in it", factor.name));
            };
            total += cost;
        }
        Ok(total)
    }
}
