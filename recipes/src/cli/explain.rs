//! `memlet explain`: why a layout, a configuration or a fusion is as it is.

use crate::load::load;
use crate::pipeline::PipelineError;
use crate::pipeline::plan::Plan;
use crate::pipeline::programs::programs;
use clap::Args;
use layouts::exact::Limits;
use layouts::explain::{Explanation, explain};
use layouts::{Method, Store, select};
use serde::Serialize;
use std::path::{Path, PathBuf};
use transforms::Refusal;

#[derive(Args)]
pub struct ExplainArgs {
    /// plan.json of `memlet optimize`, or records of `memlet sweep`
    file: PathBuf,
    /// A kernel or a tensor
    name: String,
    /// A second kernel: why the two are not one
    other: Option<String>,
    /// Records of measurements [default: records.jsonl beside the plan]
    #[arg(long)]
    records: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    choice: Option<Explanation>,
    fusions: Vec<Apart>,
}

/// Two kernels that were not fused.
#[derive(Serialize)]
struct Apart {
    first: String,
    second: String,
    reason: String,
    origin: Option<String>,
}

impl ExplainArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let plan = if self.file.extension().is_some_and(|e| e == "jsonl") { None } else { Some(Plan::read(&self.file)?) };
        let answer = match (&self.other, &plan) {
            (Some(other), Some(plan)) => Answer { choice: None, fusions: self.apart(plan, Some(other))? },
            (Some(_), None) => {
                return Err(self.fault("records do not know the recipe; give the plan.json to ask why two kernels are not one"));
            }
            (None, plan) => {
                let choice = self.choice(plan.as_ref())?;
                let kernel = plan.as_ref().filter(|p| p.chosen.configuration.kernels.contains_key(&self.name));
                // The recipe may have gone since; the choice is explained all the same.
                let fusions = kernel.and_then(|plan| self.apart(plan, None).ok()).unwrap_or_default();
                Answer { choice: Some(choice), fusions }
            }
        };
        if self.json {
            println!("{}", serde_json::to_string(&answer).map_err(|e| PipelineError::Internal(e.to_string()))?);
            return Ok(());
        }
        if let Some(choice) = &answer.choice {
            println!("{choice}");
        }
        for Apart { first, second, reason, origin } in &answer.fusions {
            println!("{first} and {second} are not one kernel: {reason}");
            if let Some(origin) = origin {
                println!("  from: {origin}");
            }
        }
        Ok(())
    }

    fn fault(&self, why: impl Into<String>) -> PipelineError {
        PipelineError::Plan { file: self.file.display().to_string(), why: why.into() }
    }

    /// The choice in the plan's program; from records alone, in the program whose best choice is fastest.
    fn choice(&self, plan: Option<&Plan>) -> Result<Explanation, PipelineError> {
        let beside = || self.file.parent().unwrap_or(Path::new(".")).join("records.jsonl");
        let records = match plan {
            None => self.file.clone(),
            Some(_) => self.records.clone().unwrap_or_else(beside),
        };
        let store = Store::read(&records)?;
        let of_plan = |program: &layouts::Program| {
            plan.is_none_or(|plan| {
                let chosen = &plan.chosen.configuration.kernels;
                program.kernels.len() == chosen.len() && program.kernels.iter().all(|k| chosen.contains_key(&k.name))
            })
        };
        let mut found: Vec<(f64, &layouts::Program)> = Vec::new();
        let mut known: Vec<&str> = Vec::new();
        for program in store.sessions().filter_map(|s| s.program.as_ref()).filter(|p| of_plan(p)) {
            if program.kernel(&self.name).is_some() || program.tensor(&self.name).is_some() {
                found.push((select(program, &store, Method::Exact, Limits::default())?.total_ms, program));
            }
            known.extend(program.kernels.iter().map(|k| k.name.as_str()).chain(program.tensors.iter().map(|t| t.data.as_str())));
        }
        let best = found.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, program)) = best else {
            known.sort_unstable();
            known.dedup();
            return Err(self.fault(format!("no kernel or tensor `{}` was measured; there are: {}", self.name, known.join(", "))));
        };
        Ok(explain(program, &store, &self.name, Limits::default())?)
    }

    /// Refused fusions of the plan's program that involve the kernel, or these two.
    fn apart(&self, plan: &Plan, other: Option<&String>) -> Result<Vec<Apart>, PipelineError> {
        let sizes: Vec<(String, i64)> = plan.overrides.clone().into_iter().collect();
        let programs = programs(&load(Path::new(&plan.recipe), &sizes)?, false)?;
        let variant = programs.variants.iter().find(|v| v.program == plan.chosen.program);
        let variant =
            variant.ok_or_else(|| self.fault(format!("`{}` has changed since the plan was made; optimize again", plan.recipe)))?;
        let between = |r: &&Refusal| {
            let holds = |name: &String| r.units.contains(name);
            holds(&self.name) && other.is_none_or(holds)
        };
        let apart = |r: &Refusal| {
            let mut units = r.units.iter();
            Some(Apart {
                first: units.next()?.clone(),
                second: units.next()?.clone(),
                reason: r.reason.to_string(),
                origin: r.origin.as_ref().map(ToString::to_string),
            })
        };
        let found: Vec<Apart> = variant.refusals.iter().filter(between).filter_map(apart).collect();
        match other {
            Some(other) if found.is_empty() => {
                let held = variant.program.units().into_iter().find_map(|(_, _, unit)| match unit {
                    sdfg::Unit::Scope(scope) if [&self.name, other].iter().all(|n| scope.operators().contains(n)) => Some(scope.map.label),
                    _ => None,
                });
                Err(match held {
                    Some(kernel) => self.fault(format!("`{}` and `{other}` are one kernel: `{kernel}`", self.name)),
                    None => self.fault(format!("no fusion of `{}` and `{other}` was considered; they never met as kernels", self.name)),
                })
            }
            _ => Ok(found),
        }
    }
}
