//! `memlet explain`: why a layout, a configuration or a fusion is as it is.

use crate::pipeline::PipelineError;
use crate::pipeline::plan::Plan;
use crate::pipeline::programs::{Composing, Variant, programs_on};
use clap::Args;
use layouts::exact::Limits;
use layouts::explain::{Explanation, explain};
use layouts::{Method, Store, select};
use sdfg::{Sdfg, Storage, Unit};
use serde::Serialize;
use std::path::{Path, PathBuf};
use transforms::Refusal;

#[derive(Args)]
pub struct ExplainArgs {
    /// plan.json of `memlet optimize`, or records of `memlet sweep`
    file: PathBuf,
    /// A kernel, a tensor, or `program` for the choice among programs
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

/// Where something is that has no layout or configuration of its own.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    /// A tensor that is a slice of another one.
    PartOf(String),
    /// An operator, or a tensor that never reaches memory.
    Inside(String),
}

impl Place {
    fn holder(&self) -> &String {
        let (Place::PartOf(name) | Place::Inside(name)) = self;
        name
    }
}

/// What holds a name; `None` for what stands for itself, or is not there.
fn place(program: &Sdfg, name: &str) -> Option<Place> {
    let units = program.units();
    if units.iter().any(|(_, _, unit)| unit.name() == name) {
        return None;
    }
    let container = program.containers.get(name);
    if let Some(view) = container.and_then(|c| c.view.as_ref()) {
        return Some(Place::PartOf(view.of.clone()));
    }
    if container.is_some_and(|c| c.storage == Storage::Heap) {
        return None;
    }
    let holds = |unit: &Unit| {
        let Unit::Scope(scope) = unit else { return false };
        scope.operators().iter().any(|o| o == name) || scope.writes().contains_key(name)
    };
    units.iter().find(|(_, _, unit)| holds(unit)).map(|(_, _, unit)| Place::Inside(unit.name().to_string()))
}

#[derive(Serialize)]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<Place>,
    choice: Option<Explanation>,
    /// The kernel that holds both, where two were asked for and are one.
    together: Option<String>,
    apart: Vec<Apart>,
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
            (Some(other), Some(plan)) => self.pair(plan, other)?,
            (Some(_), None) => {
                return Err(self.fault("records do not know the recipe; give the plan.json to ask why two kernels are not one"));
            }
            (None, plan) => {
                let place = plan.as_ref().and_then(|plan| place(&plan.chosen.program, &self.name));
                let name = place.as_ref().map_or(&self.name, |place| place.holder());
                let choice = self.choice(plan.as_ref(), name)?;
                let kernel = plan.as_ref().filter(|p| p.chosen.configuration.kernels.contains_key(name));
                // The recipe may have gone since; the choice is explained all the same.
                let apart = kernel.and_then(|plan| Some(refusals(&self.variant(plan).ok()?, &[name]))).unwrap_or_default();
                Answer { place, choice: Some(choice), together: None, apart }
            }
        };
        if self.json {
            println!("{}", serde_json::to_string(&answer).map_err(|e| PipelineError::Internal(e.to_string()))?);
            return Ok(());
        }
        match &answer.place {
            Some(Place::PartOf(whole)) => println!("{} is a part of {whole}", self.name),
            Some(Place::Inside(kernel)) => println!("{} is inside the kernel {kernel}", self.name),
            None => {}
        }
        if let Some(choice) = &answer.choice {
            println!("{choice}");
        }
        if let (Some(kernel), Some(other)) = (&answer.together, &self.other) {
            println!("{} and {other} are one kernel: {kernel}", self.name);
        }
        for Apart { first, second, reason, origin } in &answer.apart {
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

    /// The choice of this name in the plan's program; from records alone, in the program whose best choice is fastest.
    fn choice(&self, plan: Option<&Plan>, name: &str) -> Result<Explanation, PipelineError> {
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
        // From records alone the whole decision is asked about, program included.
        let programs: Vec<layouts::Program> = match plan {
            Some(_) => store.sessions().filter_map(|s| s.program.clone()).filter(of_plan).collect(),
            None => layouts::Program::of_records(&store).into_iter().map(|(_, program)| program).collect(),
        };
        let mut found: Vec<(f64, &layouts::Program)> = Vec::new();
        let mut known: Vec<&str> = Vec::new();
        for program in &programs {
            if program.kernel(name).is_some() || program.tensor(name).is_some() || program.alternatives.contains_key(name) {
                found.push((select(program, &store, Method::Exact, Limits::default())?.total_ms, program));
            }
            known.extend(program.kernels.iter().map(|k| k.name.as_str()).chain(program.tensors.iter().map(|t| t.data.as_str())));
            known.extend(program.alternatives.keys().map(String::as_str));
        }
        let best = found.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, program)) = best else {
            known.sort_unstable();
            known.dedup();
            return Err(self.fault(format!("no kernel or tensor `{}` was measured; there are: {}", name, known.join(", "))));
        };
        Ok(explain(program, &store, name, Limits::default())?)
    }

    /// The plan's program with its refused fusions, derived again from the recipe.
    fn variant(&self, plan: &Plan) -> Result<Variant, PipelineError> {
        let recipe = plan.recipe()?;
        if let Some(mixing) = &plan.mixing
            && let Some(mixture) = &mixing.mixture
        {
            let mut variant = Composing::on(&recipe, &mixture.weights, false, plan.target.forms())?.mixed(mixture)?;
            mixing.tell(&mut variant);
            if variant.program == plan.chosen.program {
                return Ok(variant);
            }
        }
        let programs = programs_on(&recipe, false, plan.target.forms())?;
        let found = programs.variants.into_iter().find(|v| v.program == plan.chosen.program);
        found.ok_or_else(|| {
            self.fault(format!("`{}` gives another program by now than when the plan was made; optimize again", plan.recipe))
        })
    }

    /// Two kernels, or operators that kernels hold.
    fn pair(&self, plan: &Plan, other: &str) -> Result<Answer, PipelineError> {
        let variant = self.variant(plan)?;
        let (first, second) = (self.holder(&variant, &self.name)?, self.holder(&variant, other)?);
        let together = (first == second).then(|| first.clone());
        let apart = if together.is_some() { vec![] } else { refusals(&variant, &[&first, &second]) };
        if together.is_none() && apart.is_empty() {
            return Err(self.fault(format!("no fusion of `{first}` and `{second}` was considered: they run in different passes")));
        }
        Ok(Answer { place: None, choice: None, together, apart })
    }

    /// The kernel of this name, or the one that holds this operator.
    fn holder(&self, variant: &Variant, name: &str) -> Result<String, PipelineError> {
        let units = variant.program.units();
        let holds = |unit: &Unit| matches!(unit, Unit::Scope(scope) if scope.operators().iter().any(|o| o == name));
        let found = units.iter().find(|(_, _, u)| u.name() == name).or_else(|| units.iter().find(|(_, _, u)| holds(u)));
        let names = || units.iter().map(|(_, _, u)| u.name()).collect::<Vec<_>>().join(", ");
        found
            .map(|(_, _, unit)| unit.name().to_string())
            .ok_or_else(|| self.fault(format!("there is no kernel `{name}` in the plan; there are: {}", names())))
    }
}

/// The refused fusions that involve all of these kernels.
fn refusals(variant: &Variant, names: &[&String]) -> Vec<Apart> {
    let between = |r: &&Refusal| names.iter().all(|n| r.units.contains(n));
    let apart = |r: &Refusal| {
        let [first, second] = r.units.as_slice() else { return None };
        let origin = r.origin.as_ref().map(ToString::to_string);
        Some(Apart { first: first.clone(), second: second.clone(), reason: r.reason.to_string(), origin })
    };
    variant.refusals.iter().filter(between).filter_map(apart).collect()
}
