//! Why this layout, why this configuration: what the next best would cost in total.
//!
//! The runner-up is the exact optimum of the same program with the chosen layout (or configuration) forbidden; so all
//! other choices may adapt to it, and the difference is what the choice is worth.

use crate::cost::milliseconds;
use crate::exact::{self, Limits, Optimum};
use crate::model::{Factor, Model, SelectError};
use crate::problem::Program;
use crate::relayout::RelayoutCosts;
use crate::store::Store;
use sdfg::config::KernelConfig;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunnerUp {
    pub what: String,
    pub total_ms: f64,
    /// How much more the whole program would cost.
    pub more_ms: f64,
    /// What else would change with it: container or kernel names.
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

/// A model with its optimum and the solution that it stands for.
struct Chosen {
    model: Model,
    optimum: Optimum,
    /// Configuration by kernel that runs.
    configs: BTreeMap<String, KernelConfig>,
}

impl Chosen {
    fn new(model: Model, limits: Limits) -> Self {
        let optimum = exact::solve(&model, limits);
        let active = model.variant(&optimum.variants);
        let best = |f: &Factor| (f.name.clone(), f.choices[f.best(&optimum.held).0].config.clone());
        let configs = active.factors.iter().map(best).collect();
        Chosen { model, optimum, configs }
    }

    fn show(&self, name: &str) -> String {
        if let Some(group) = self.model.groups.iter().position(|g| g.name == name) {
            return self.model.groups[group].variants[self.optimum.variants[group] as usize].clone();
        }
        match (self.configs.get(name), self.model.class_of.get(name)) {
            (Some(config), _) => config.to_string(),
            (None, Some(class)) => format!("held in [{}]", self.held(*class)),
            (None, None) => "does not run".into(),
        }
    }

    fn held(&self, class: usize) -> &sdfg::Layout {
        &self.model.classes[class].layouts[self.optimum.held[class] as usize]
    }
}

/// Explains the choice for a kernel, a container or a group of alternatives.
pub fn explain(program: &Program, store: &Store, name: &str, limits: Limits) -> Result<Explanation, SelectError> {
    let best = Chosen::new(Model::new(program, store, &RelayoutCosts::new(program, store))?, limits);
    let model = &best.model;
    let other = if let Some(group) = model.groups.iter().position(|g| g.name == name) {
        model.without_variant(group, best.optimum.variants[group])
    } else if let Some(config) = best.configs.get(name) {
        model.without_config(name, config)
    } else if model.factors.iter().any(|f| f.name == name) {
        Err(SelectError::Exhausted(name.to_string()))
    } else {
        let class = *model.class_of.get(name).ok_or_else(|| SelectError::UnknownTensor(name.to_string()))?;
        model.without_layout(name, best.held(class))
    };
    let mut explanation = Explanation {
        name: name.to_string(),
        chosen: best.show(name),
        total_ms: milliseconds(best.optimum.total),
        proven: best.optimum.proven(),
        runner_up: None,
        reason: String::new(),
    };
    match other {
        Ok(other) => {
            let second = Chosen::new(other, limits);
            let (a, b) = (&best.optimum, &second.optimum);
            let groups = model.groups.iter().zip(a.variants.iter().zip(&b.variants)).filter(|(_, (a, b))| a != b);
            let mut changes: Vec<String> = groups.map(|(g, _)| g.name.clone()).collect();
            let classes = model.classes.iter().zip(a.held.iter().zip(&b.held)).filter(|(_, (a, b))| a != b);
            changes.extend(classes.flat_map(|(c, _)| c.members.clone()));
            let kernels = model.factors.iter().map(|f| &f.name).filter(|k| best.configs.get(*k) != second.configs.get(*k));
            changes.extend(kernels.cloned());
            changes.retain(|c| c != name);
            explanation.proven &= b.proven();
            explanation.runner_up = Some(RunnerUp {
                what: second.show(name),
                total_ms: milliseconds(b.total),
                more_ms: milliseconds(b.total - a.total),
                changes,
            });
        }
        Err(SelectError::Exhausted(_)) => {
            let fixed = model.class_of.get(name).and_then(|c| model.classes.get(*c)).is_some_and(|c| c.fixed);
            explanation.reason =
                if fixed { "no alternative: the boundary of the program asks for this layout" } else { "no alternative was measured" }
                    .to_string();
        }
        Err(error) => return Err(error),
    }
    Ok(explanation)
}
