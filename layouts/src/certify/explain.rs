//! Why this layout, why this configuration: what the next best would cost in total.
//!
//! The runner-up is the exact optimum of the same program with the chosen layout (or configuration) forbidden; so all
//! other choices may adapt to it, and the difference is what the choice is worth. In a stack of layers, what most of them
//! have is forbidden to all.

use crate::measure::relayout::RelayoutCosts;
use crate::measure::store::Store;
use crate::model::alternatives::GROUP;
use crate::model::cost::{FORBIDDEN, milliseconds};
use crate::model::selection_model::{Model, SelectError};
use crate::problem::SelectionProblem;
use crate::solve::exact::{self, SearchLimits};
use crate::solve::stack::{self, Joins, Stacked};
use indexmap::IndexSet;
use sdfg::config::KernelConfig;
use serde::Serialize;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunnerUp {
    pub what: String,
    pub total_ms: f64,
    /// How much more the whole program would cost.
    pub more_ms: f64,
    /// The containers and kernels that would change with it.
    pub changes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    pub name: String,
    pub chosen: String,
    pub total_ms: f64,
    pub proven: bool,
    /// `None` if there is no alternative; `reason` says why.
    pub runner_up: Option<RunnerUp>,
    pub reason: String,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, self.chosen)?;
        match &self.runner_up {
            Some(r) => {
                writeln!(f, "  runner-up: {}", r.what)?;
                write!(f, "  total {:.4} ms instead of {:.4} ms (+{:.4} ms)", r.total_ms, self.total_ms, r.more_ms)?;
                if !r.changes.is_empty() {
                    write!(f, "; with it change {}", r.changes.join(", "))?;
                }
                Ok(())
            }
            None => write!(f, "  {}", self.reason),
        }
    }
}

/// A stack of equal layers: their number, and the containers that join one to the next. A single program is one layer without joins.
#[derive(Clone, Debug)]
pub struct Layers {
    pub count: usize,
    pub joins: Joins,
}

impl Layers {
    pub fn one() -> Self {
        Layers { count: 1, joins: Joins::new() }
    }
}

/// A program's model with its optimum.
struct Chosen<'a> {
    program: &'a SelectionProblem,
    model: Model,
    stacked: Stacked,
}

impl<'a> Chosen<'a> {
    fn new(program: &'a SelectionProblem, model: Model, layers: &Layers, limits: SearchLimits) -> Result<Self, SelectError> {
        let stacked = match layers.joins.is_empty() {
            true => exact::solve(&model, limits).into(),
            false => stack::solve(&model, &layers.joins, layers.count, &[], limits, &mut |_| true)?,
        };
        Ok(Chosen { program, model, stacked })
    }

    /// The values of one layer: how its classes are held, and the variants of its groups.
    fn values<'b>(&self, layer: &'b [u16]) -> (&'b [u16], &'b [u16]) {
        layer.split_at(self.model.classes.len())
    }

    /// The configuration of a kernel in a layer; `None` if it does not run.
    fn config(&self, name: &str, layer: &[u16]) -> Option<&KernelConfig> {
        let (held, variants) = self.values(layer);
        let factor = self.model.factors.iter().find(|f| f.name == name)?;
        let runs = factor.guards.iter().all(|(g, allowed)| allowed.contains(&variants[*g]));
        runs.then(|| &factor.choices[factor.best(held).0].config)
    }

    fn show_in(&self, name: &str, layer: &[u16]) -> String {
        let (held, variants) = self.values(layer);
        if let Some(group) = self.model.groups.iter().position(|g| g.name == name) {
            return self.model.groups[group].variants[variants[group] as usize].clone();
        }
        if name == GROUP {
            let all = self.model.groups.iter().zip(variants);
            return self.program.called(&all.map(|(g, v)| (g.name.clone(), g.variants[*v as usize].clone())).collect());
        }
        match (self.config(name, layer), self.model.class_of.get(name)) {
            (Some(config), _) => config.to_string(),
            (None, Some(class)) => format!("held in [{}]", self.model.classes[*class].layouts[held[*class] as usize]),
            (None, None) => "does not run".into(),
        }
    }

    /// The choice, layer by layer where layers differ.
    fn show(&self, name: &str) -> String {
        let mut runs: Vec<(usize, usize, String)> = Vec::new();
        for (n, layer) in self.stacked.layers.iter().enumerate() {
            let shown = self.show_in(name, layer);
            match runs.last_mut() {
                Some((_, last, known)) if *known == shown => *last = n + 1,
                _ => runs.push((n + 1, n + 1, shown)),
            }
        }
        match runs.as_slice() {
            [(_, _, all)] => all.clone(),
            _ => runs.iter().map(|(a, b, shown)| format!("in layers {a} to {b} {shown}")).collect::<Vec<_>>().join("; "),
        }
    }

    /// The values that most layers have.
    fn usual(&self) -> &[u16] {
        let count = |layer: &Vec<u16>| self.stacked.layers.iter().filter(|other| *other == layer).count();
        let all = self.stacked.layers.iter().enumerate();
        all.max_by_key(|(n, layer)| (count(layer), std::cmp::Reverse(*n))).map_or(&[], |(_, layer)| layer)
    }

    /// The class that a joined container is in the layer beside.
    fn beside(&self, class: usize) -> Option<usize> {
        let of = |data: &String| self.model.class_of.get(data).copied();
        self.stacked.joins.iter().find_map(|(near, far)| match (of(near)?, of(far)?) {
            (a, b) if a == class => Some(b),
            (a, b) if b == class => Some(a),
            _ => None,
        })
    }

    /// The models in which what most layers have is forbidden to all: one, or for the choice at all sites one for each.
    fn others(&self, name: &str) -> Result<Vec<Model>, SelectError> {
        let (held, variants) = self.values(self.usual());
        let without = |group: usize| self.model.without_variant(group, variants[group]);
        if let Some(group) = self.model.groups.iter().position(|g| g.name == name) {
            return Ok(vec![without(group)?]);
        }
        if name == GROUP && !self.model.groups.is_empty() {
            return Ok((0..self.model.groups.len()).filter_map(|group| without(group).ok()).collect());
        }
        if let Some(config) = self.config(name, self.usual()) {
            return Ok(vec![self.model.without_config(name, config)?]);
        }
        if self.model.factors.iter().any(|f| f.name == name) {
            return Err(SelectError::Exhausted(name.to_string()));
        }
        let class = *self.model.class_of.get(name).ok_or_else(|| SelectError::UnknownTensor(name.to_string()))?;
        let layout = &self.model.classes[class].layouts[held[class] as usize];
        match self.beside(class) {
            // The boundary fixes the layout at the two ends of the stack only; between layers it is free.
            Some(beside) => Ok(vec![self.model.barring(&[class, beside], layout)]),
            None => Ok(vec![self.model.without_layout(name, layout)?]),
        }
    }

    /// Why there is nothing else.
    fn only(&self, name: &str) -> &'static str {
        let class = self.model.class_of.get(name).copied();
        match class.map(|class| (self.beside(class).is_some(), self.model.classes[class].fixed)) {
            Some((true, _)) => "no alternative: it is held like this at an end of the stack",
            Some((false, true)) => "no alternative: the boundary of the program asks for this layout",
            _ => "no alternative was measured",
        }
    }
}

/// Explains the choice for a kernel, a container or a group of alternatives; for [`GROUP`], the choice at all sites.
pub fn explain(
    program: &SelectionProblem,
    store: &Store,
    name: &str,
    layers: &Layers,
    limits: SearchLimits,
) -> Result<Explanation, SelectError> {
    let best = Chosen::new(program, Model::new(program, store, &RelayoutCosts::new(program, store))?, layers, limits)?;
    let mut explanation = Explanation {
        name: name.to_string(),
        chosen: best.show(name),
        total_ms: milliseconds(best.stacked.total),
        proven: best.stacked.proven(),
        runner_up: None,
        reason: String::new(),
    };
    let others =
        best.others(name).and_then(|all| all.into_iter().map(|m| Chosen::new(program, m, layers, limits)).collect::<Result<Vec<_>, _>>());
    let second = match others {
        Ok(others) => others.into_iter().filter(|o| o.stacked.total < FORBIDDEN).min_by_key(|o| o.stacked.total),
        Err(SelectError::Exhausted(_)) => None,
        Err(error) => return Err(error),
    };
    let Some(second) = second else { return Ok(Explanation { reason: best.only(name).into(), ..explanation }) };
    let (a, b) = (&best.stacked, &second.stacked);
    let groups = best.model.groups.iter().map(|g| g.name.clone());
    let tensors = best.model.classes.iter().flat_map(|c| c.members.clone());
    let kernels = best.model.factors.iter().map(|f| f.name.clone());
    let differs = |what: &String| a.layers.iter().zip(&b.layers).any(|(x, y)| x != y && best.show_in(what, x) != second.show_in(what, y));
    // What a program is called says which sites differ; a kernel may be called as what it writes.
    let groups = groups.filter(|_| name != GROUP);
    let changes: IndexSet<String> = groups.chain(tensors).chain(kernels).filter(|what| what != name && differs(what)).collect();
    explanation.proven &= b.proven();
    explanation.runner_up = Some(RunnerUp {
        what: second.show(name),
        total_ms: milliseconds(b.total),
        more_ms: milliseconds(b.total - a.total),
        changes: changes.into_iter().collect(),
    });
    Ok(explanation)
}
