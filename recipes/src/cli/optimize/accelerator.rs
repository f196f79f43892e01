//! `memlet optimize RECIPE --device FILE.yaml`: a plan for an accelerator that is described in a file; nothing is measured.

use super::super::out::{out, outln};
use super::super::{RecipeArgs, cells, command_line, table};
use crate::accelerator::device::Accelerator;
use crate::accelerator::report;
use crate::accelerator::{AcceleratorError, PlanComparison};
use crate::pipeline::PipelineError;
use crate::pipeline::variants::folder_name::folder_name;
use bench::table::{Table, colour};
use bench::unit::{Bytes, significant};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    model: &'a str,
    accelerator: &'a PlanComparison,
}

/// Plans a recipe for a described device. Prints the plan, and writes its report and its proof; with `json` it prints JSON alone.
pub fn run(args: &RecipeArgs, description: &Path, json: bool, out: Option<PathBuf>) -> Result<(), PipelineError> {
    let device = Accelerator::read(description).map_err(|e| PipelineError::Plan { file: e.place, why: e.why })?;
    let recipe = args.load()?;
    let outcome = PlanComparison::of_program(&recipe.program, &device).map_err(|error| match error {
        AcceleratorError::NoRoom(_) | AcceleratorError::Fault(_) | AcceleratorError::Unproven(_) => {
            PipelineError::Internal(error.to_string())
        }
        error => PipelineError::Plan { file: args.recipe.display().to_string(), why: error.to_string() },
    })?;
    if json {
        let printed = Printed { model: &recipe.program.name, accelerator: &outcome };
        outln!("{}", serde_json::to_string(&printed).map_err(|e| PipelineError::Internal(e.to_string()))?);
        return Ok(());
    }
    let folder = out.unwrap_or_else(|| {
        Path::new("target").join("memlet").join(folder_name(&format!("{}-{}", recipe.program.name, outcome.device.name)))
    });
    let (compared, groups) = (compared(&outcome), groups(&outcome));
    let on_chip = Bytes(outcome.device.on_chip_bytes);
    outln!("{} on {}: {on_chip} on chip; bytes and times are of the model, nothing was run\n", recipe.program.name, outcome.device.name);
    out!("{}", compared.text(colour()));
    outln!("\nsimulated: {} moved, every element found in its place", Bytes(outcome.simulated_bytes));
    outln!("proven: no partition of this order into the {} groups that were priced moves less\n", outcome.priced_groups);
    out!("{}", groups.text(colour()));
    let curve = report::capacity_curve(&outcome).map_err(|e| PipelineError::Internal(e.to_string()))?;
    let page = report::page(&recipe.program.name, &outcome, &curve, [&compared, &groups], &command_line());
    let certificate = serde_json::to_string(&outcome.certificate).map_err(|e| PipelineError::Internal(e.to_string()))?;
    write(&folder, "report.html", &page)?;
    write(&folder, "accelerator-certificate.json", &(certificate + "\n"))?;
    outln!("\nreport: {}", folder.join("report.html").display());
    Ok(())
}

fn write(folder: &Path, name: &str, text: &str) -> Result<(), PipelineError> {
    let path = folder.join(name);
    let fault = |e: std::io::Error| PipelineError::Plan { file: path.display().to_string(), why: e.to_string() };
    std::fs::create_dir_all(folder).map_err(fault)?;
    bench::atomic::write(&path, text.as_bytes()).map_err(fault)
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

/// The baselines, the paper's method, the plan and its bound.
fn compared(outcome: &PlanComparison) -> Table {
    let mut compared = table(&["plan", "bytes moved", "less than every layer alone [%]", "less than pointwise fused [%]", "speedup"]);
    let mut row = |name: &str, bytes: u64, speedup: Option<f64>| {
        let less = |of: u64| percent(1.0 - bytes as f64 / of.max(1) as f64);
        compared.row(cells(vec![
            name.to_string(),
            Bytes(bytes).to_string(),
            less(outcome.baseline_bytes),
            less(outcome.pointwise_fused_bytes),
            speedup.map(significant).unwrap_or_default(),
        ]));
    };
    row("every layer alone", outcome.baseline_bytes, Some(1.0));
    row("pointwise layers fused", outcome.pointwise_fused_bytes, None);
    for (reuse, bytes) in &outcome.greedy {
        row(&format!("Deep Fusion, reuse: {reuse}"), *bytes, outcome.greedy_speedup.get(reuse).copied());
    }
    row("this plan", outcome.planned_bytes, Some(outcome.speedup));
    row("bound: weights, inputs and results once", outcome.bound_bytes, None);
    compared
}

/// The groups of the plan.
fn groups(outcome: &PlanComparison) -> Table {
    let mut groups = table(&["group", "layers", "schedule", "bytes", "floor", "on chip", "ms"]);
    for (at, group) in outcome.groups.iter().enumerate() {
        let ends = match &group.layers[..] {
            [only] => only.clone(),
            [first, .., last] => format!("{first} … {last} ({})", group.layers.len()),
            [] => String::new(),
        };
        groups.row(cells(vec![
            (at + 1).to_string(),
            ends,
            group.schedule.clone(),
            Bytes(group.bytes).to_string(),
            Bytes(group.floor_bytes).to_string(),
            Bytes(group.peak_bytes).to_string(),
            significant(1e3 * group.seconds),
        ]));
    }
    groups
}
