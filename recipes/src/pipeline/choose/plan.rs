//! A plan: a program, its configuration and its provenance, in one JSON file.

use crate::load::{Overrides, Recipe, load, load_str};
use crate::pipeline::PipelineError;
use crate::pipeline::run::{Candidate, Target};
use crate::pipeline::variants::PartialFusionLog;
use bench::machine::Machine;
use bench::unit::significant;
use kernels::device::Device;

use sdfg::Dtype;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Version of the file format.
pub const FORMAT: u32 = 1;

/// The result of a check, for a plan that must not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanRefusal {
    /// Its results differ from the recipe's: which, and by how much.
    Wrong(String),
    /// It does not run: why.
    Fails(String),
}

impl std::fmt::Display for PlanRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PlanRefusal::Wrong(what) => write!(f, "its result is wrong: {what}"),
            PlanRefusal::Fails(why) => write!(f, "it does not run: {why}"),
        }
    }
}

/// Why a plan was taken of those that were timed as wholes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanChoice {
    /// How much longer than the fastest plan it was allowed to take for less memory, as a share: `--memory-slack`.
    pub memory_slack: f64,
    /// Its median time of a step and its peak of tensors, and those of the fastest.
    pub step_ms: f64,
    pub peak_bytes: u64,
    pub fastest: String,
    pub fastest_ms: f64,
    pub fastest_bytes: u64,
}

impl std::fmt::Display for PlanChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PlanChoice { memory_slack, step_ms, peak_bytes, fastest, fastest_ms, fastest_bytes } = self;
        let [own, theirs] = [peak_bytes, fastest_bytes].map(|bytes| significant(*bytes as f64 / 1e6));
        let slack = (1e4 * memory_slack).round() / 1e2;
        write!(
            f,
            "taken with --memory-slack {slack}% of the plans that were timed: {} ms a step, {own} MB at the peak",
            significant(*step_ms)
        )?;
        write!(f, "; the fastest, {fastest}, takes {} ms and {theirs} MB", significant(*fastest_ms))
    }
}

/// The output of `memlet optimize`, which `memlet run` runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub format: u32,
    pub recipe: String,
    /// The text of the recipe.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Sizes that were overridden on the command line.
    pub overrides: BTreeMap<String, i64>,
    /// The element type from the command line, in place of the recipe's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// Whether the recipe was taken without its dropouts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_dropout: bool,
    /// Whether weights and sums are stored in the element type too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub narrow: bool,
    /// The target that its kernels were generated for.
    #[serde(default, skip_serializing_if = "Target::is_cpu")]
    pub target: Target,
    /// The machine or device that it was measured on.
    pub device: String,
    /// The compilers and libraries that made its kernels; empty in plans from before this field existed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub toolchain: String,
    pub threads: usize,
    /// The command that made it.
    pub command: String,
    /// Which fusions of contractions its program has and why, where these were decided one by one.
    #[serde(rename = "mixing", default, skip_serializing_if = "Option::is_none")]
    pub partial_fusion: Option<PartialFusionLog>,
    /// Patches that its programs were made without, because they change results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub barred: Vec<String>,
    /// The result of a check, if the plan must not be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<PlanRefusal>,
    /// Why it was taken; in `plan.json` of a run that ended alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choice: Option<PlanChoice>,
    pub chosen: Candidate,
    /// The unfused program in its uniform layouts, with which the plan is compared.
    pub baselines: Vec<Candidate>,
}

/// The device's name; for the cores, the machine's description.
pub fn place(device: &dyn Device) -> String {
    device.name().unwrap_or_else(|| Machine::here().line())
}

impl Plan {
    pub fn read(path: &Path) -> Result<Self, PipelineError> {
        let fault = |why: String| PipelineError::Plan { file: path.display().to_string(), why };
        if path.is_dir() {
            let plan = path.join("plan.json");
            return match plan.is_file() {
                true => Plan::read(&plan),
                false => Err(fault("there is no plan.json in this folder; `memlet optimize RECIPE` writes one".into())),
            };
        }
        let text = std::fs::read_to_string(path).map_err(|e| fault(e.to_string()))?;
        if path.extension().is_some_and(|e| e == "yaml" || e == "yml") {
            return Err(fault(format!("this is a recipe and no plan; `memlet optimize {}` makes one", path.display())));
        }
        let plan: Plan =
            serde_json::from_str(&text).map_err(|e| fault(format!("this is no plan: {e}; make one with `memlet optimize RECIPE`")))?;
        if plan.format != FORMAT {
            return Err(fault(format!("the plan has format {}, this version reads {FORMAT}; run `memlet optimize` again", plan.format)));
        }
        let faults = sdfg::validate::validate(&plan.chosen.program);
        if let Some(first) = faults.first() {
            return Err(fault(format!("its program is invalid: {first}")));
        }
        Ok(plan)
    }

    /// Refuses to run a plan that a check has refused.
    ///
    /// # Errors
    /// The refusal, with [`PipelineError::Mismatch`] where results are wrong.
    pub fn usable(&self, path: &Path) -> Result<(), PipelineError> {
        let Some(refusal) = &self.refused else { return Ok(()) };
        let file = path.display();
        let why = format!("`memlet optimize` refused this plan, {refusal}; take plan.json of that run, or --force to run it anyway");
        Err(match refusal {
            PlanRefusal::Wrong(_) => PipelineError::Mismatch(format!("{file}: {why}")),
            PlanRefusal::Fails(_) => PipelineError::Plan { file: file.to_string(), why },
        })
    }

    /// The recipe that it was made from, from the stored text. Plans without the text need the recipe's file.
    pub fn recipe(&self) -> Result<Recipe, PipelineError> {
        let sizes = self.overrides.iter().map(|(dim, size)| (dim.clone(), *size)).collect();
        let overrides = Overrides { sizes, dtype: self.dtype, no_dropout: self.no_dropout, narrow: self.narrow };
        Ok(match self.text.as_str() {
            "" => load(Path::new(&self.recipe), &overrides)?,
            text => load_str(&self.recipe, text, &overrides)?,
        })
    }

    /// A warning if the plan runs on another device than it was chosen for, or with other tools; `None` otherwise.
    pub fn moved(&self, device: &dyn Device) -> Option<String> {
        let (here, tools) = (place(device), device.toolchain());
        let other = |kept: &str, found: &str| !kept.is_empty() && kept != found;
        // Each release of cuBLASLt numbers its algorithms anew for each GPU.
        let numbers = if self.target.is_cpu() { "" } else { ", and the library's algorithms may bear other numbers" };
        let chosen = format!("this plan was chosen on {} with {}", self.device, self.toolchain);
        let again = "choose again with `memlet optimize`";
        if other(&self.device, &here) {
            Some(format!("{}; here is {here}: others may be faster{numbers}; {again}", chosen.trim_end_matches(" with ")))
        } else if other(&self.toolchain, &tools) {
            Some(format!("{chosen}; here is {tools}: others may be faster{numbers}; {again}"))
        } else {
            None
        }
    }

    pub fn write(&self, path: &Path) -> Result<(), PipelineError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| PipelineError::Internal(e.to_string()))?;
        bench::atomic::write(path, text.as_bytes())
            .map_err(|e| PipelineError::Plan { file: path.display().to_string(), why: e.to_string() })
    }
}
