//! A plan: program, configuration and where it came from; one JSON file.

use crate::load::{Overrides, Recipe, load, load_str};
use crate::pipeline::PipelineError;
use crate::pipeline::run::{Candidate, Target};
use crate::pipeline::variants::PartialFusionLog;
use bench::machine::Machine;
use kernels::device::Device;

use sdfg::Dtype;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Version of the file format.
pub const FORMAT: u32 = 1;

/// What a check found of a plan that must not be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Refusal {
    /// Its results are not those of the recipe: which, and by how much.
    Wrong(String),
    /// It does not run: why.
    Fails(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Wrong(what) => write!(f, "its result is wrong: {what}"),
            Refusal::Fails(why) => write!(f, "it does not run: {why}"),
        }
    }
}

/// What `memlet optimize` hands over and `memlet run` runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub format: u32,
    pub recipe: String,
    /// What stood in that file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Sizes that were overridden on the command line.
    pub overrides: BTreeMap<String, i64>,
    /// The element type that was asked for on the command line, in place of the recipe's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<Dtype>,
    /// It is of the recipe without its dropouts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_dropout: bool,
    /// Its weights and sums are stored in the element type too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub narrow: bool,
    /// What its kernels are made for.
    #[serde(default, skip_serializing_if = "Target::is_cpu")]
    pub target: Target,
    /// Where it was measured.
    pub device: String,
    /// What made its kernels there; empty in plans of before it was kept.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub toolchain: String,
    pub threads: usize,
    /// The command that made it.
    pub command: String,
    /// Which compositions its program holds and why, where they were chosen one by one.
    #[serde(rename = "mixing", default, skip_serializing_if = "Option::is_none")]
    pub partial_fusion: Option<PartialFusionLog>,
    /// Patches that its programs were made without, because they change what is computed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub barred: Vec<String>,
    /// What a check found, if it is not to be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Refusal>,
    pub chosen: Candidate,
    /// The unfused program in its layouts: what the plan is compared with.
    pub baselines: Vec<Candidate>,
}

/// The device by its name; the cores by this machine's.
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

    /// Refuses to run what a check has refused.
    ///
    /// # Errors
    /// The refusal, with [`PipelineError::Mismatch`] where results are wrong.
    pub fn usable(&self, path: &Path) -> Result<(), PipelineError> {
        let Some(refusal) = &self.refused else { return Ok(()) };
        let file = path.display();
        let why = format!("`memlet optimize` refused this plan, {refusal}; take plan.json of that run, or --force to run it anyway");
        Err(match refusal {
            Refusal::Wrong(_) => PipelineError::Mismatch(format!("{file}: {why}")),
            Refusal::Fails(_) => PipelineError::Plan { file: file.to_string(), why },
        })
    }

    /// The recipe that it was made from, wherever its file is now. Plans that lack its text need the file.
    pub fn recipe(&self) -> Result<Recipe, PipelineError> {
        let sizes = self.overrides.iter().map(|(dim, size)| (dim.clone(), *size)).collect();
        let overrides = Overrides { sizes, dtype: self.dtype, no_dropout: self.no_dropout, narrow: self.narrow };
        Ok(match self.text.as_str() {
            "" => load(Path::new(&self.recipe), &overrides)?,
            text => load_str(&self.recipe, text, &overrides)?,
        })
    }

    /// What people are told where the plan runs on another device than it was chosen for, or with other tools; `None` on the same.
    pub fn moved(&self, device: &dyn Device) -> Option<String> {
        let (here, tools) = (place(device), device.toolchain());
        let other = |kept: &str, found: &str| !kept.is_empty() && kept != found;
        // Algorithms are numbers in a list that each release of cuBLASLt makes for each GPU.
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
