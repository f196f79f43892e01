//! `memlet optimize RECIPE --device FILE.yaml`: a plan for an accelerator that is described in a file; nothing is measured.

use super::super::out::{out, outln};
use super::super::{RecipeArgs, cells, table};
use crate::accelerator::device::Accelerator;
use crate::accelerator::{AcceleratorError, Outcome};
use crate::pipeline::PipelineError;
use bench::table::colour;
use bench::unit::{Bytes, significant};
use serde::Serialize;
use std::path::Path;

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    model: &'a str,
    accelerator: &'a Outcome,
}

/// Plans a recipe for a described device and prints the plan.
pub fn run(args: &RecipeArgs, description: &Path, json: bool) -> Result<(), PipelineError> {
    let device = Accelerator::read(description).map_err(|e| PipelineError::Plan { file: e.place, why: e.why })?;
    let recipe = args.load()?;
    let outcome = Outcome::of_program(&recipe.program, &device).map_err(|error| match error {
        AcceleratorError::NoRoom(_) | AcceleratorError::Fault(_) => PipelineError::Internal(error.to_string()),
        error => PipelineError::Plan { file: args.recipe.display().to_string(), why: error.to_string() },
    })?;
    if json {
        let printed = Printed { model: &recipe.program.name, accelerator: &outcome };
        outln!("{}", serde_json::to_string(&printed).map_err(|e| PipelineError::Internal(e.to_string()))?);
        return Ok(());
    }
    tell(&recipe.program.name, &outcome);
    Ok(())
}

fn percent(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

/// Prints the comparison and the groups.
fn tell(model: &str, outcome: &Outcome) {
    let on_chip = Bytes(outcome.device.on_chip_bytes);
    outln!("{model} on {}: {on_chip} on chip; bytes and times are of the model, nothing was run\n", outcome.device.name);
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
    out!("{}", compared.text(colour()));
    outln!(
        "\nthe simulator moved {} and found every element in its place; {} groups were priced\n",
        Bytes(outcome.simulated_bytes),
        outcome.priced_groups
    );
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
    out!("{}", groups.text(colour()));
}
