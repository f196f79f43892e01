//! Why this layout, why this configuration: what the next best would cost in total.
//!
//! The runner-up is the exact optimum of the same program with the chosen layout (or configuration) forbidden; so all
//! other choices may adapt to it, and the difference is what the choice is worth.

use crate::exact::{self, Limits, Solution};
use crate::model::{Model, SelectError};
use crate::problem::Program;
use crate::relayout::RelayoutCosts;
use crate::store::Store;
use serde::Serialize;
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

/// Explains the choice for a kernel or a container.
pub fn explain(program: &Program, store: &Store, name: &str, limits: Limits) -> Result<Explanation, SelectError> {
    let model = Model::new(program, store, &RelayoutCosts::new(program, store))?;
    let best = exact::solve(&model, limits);
    if let Some(kernel) = model.factors.iter().position(|f| f.name == name) {
        let config = &model.factors[kernel].choices[best.choices[kernel]].config;
        let other = model.without_config(name, config);
        let show = |model: &Model, s: &Solution| model.factors[kernel].choices[s.choices[kernel]].config.to_string();
        return finish(&model, &best, name, other, &show, limits);
    }
    let class = *model.class_of.get(name).ok_or_else(|| SelectError::UnknownTensor(name.to_string()))?;
    let held = |model: &Model, s: &Solution| model.classes[class].layouts[s.held[class] as usize].clone();
    let other = model.without_layout(name, &held(&model, &best));
    finish(&model, &best, name, other, &|model, s| format!("held in [{}]", held(model, s)), limits)
}

fn finish(
    model: &Model,
    best: &Solution,
    name: &str,
    other: Result<Model, SelectError>,
    show: &dyn Fn(&Model, &Solution) -> String,
    limits: Limits,
) -> Result<Explanation, SelectError> {
    let mut explanation = Explanation {
        name: name.to_string(),
        chosen: show(model, best),
        total_ms: best.total_ms,
        proven: best.proven,
        runner_up: None,
        reason: String::new(),
    };
    match other {
        Ok(other) => {
            let second = exact::solve(&other, limits);
            let classes = model.classes.iter().zip(best.held.iter().zip(&second.held)).filter(|(_, (a, b))| a != b);
            let mut changes: Vec<String> = classes.flat_map(|(c, _)| c.members.clone()).collect();
            for (n, factor) in model.factors.iter().enumerate() {
                if factor.choices[best.choices[n]].config != other.factors[n].choices[second.choices[n]].config {
                    changes.push(factor.name.clone());
                }
            }
            changes.retain(|c| c != name);
            explanation.proven &= second.proven;
            explanation.runner_up = Some(RunnerUp {
                what: show(&other, &second),
                total_ms: second.total_ms,
                more_ms: second.total_ms - best.total_ms,
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
