//! The tensors that are alive at the peak of a step, before any measurement.

use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::run::memory::expected;
use crate::pipeline::variants::programs;
use crate::pipeline::variants::table::VariantId;
use bench::memory::MemoryMap;
use serde::Serialize;
use std::fmt::Write;

/// The memory of one program of a recipe, with tensors in the recipe's order of dims.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramMemory {
    pub program: String,
    /// The inputs, and the most bytes that are alive in addition.
    pub peak_bytes: u64,
    pub given_bytes: u64,
    #[serde(flatten)]
    pub map: MemoryMap,
}

/// The memory of the fused program and of the gemm-fused one.
///
/// # Errors
/// Errors of the recipe.
pub fn memory(recipe: &Recipe) -> Result<Vec<ProgramMemory>, PipelineError> {
    let separate = programs::plain(recipe, VariantId::Fused, false)?;
    let composed = programs::plain(recipe, VariantId::GemmFused, false)?;
    let mut found = Vec::new();
    for (program, variant) in [(VariantId::Fused, &separate), (VariantId::GemmFused, &composed)] {
        let map = expected(&variant.program)?;
        let given_bytes = map.given_bytes();
        let peak_bytes = given_bytes + map.fullest().map_or(0, |at| map.alive_bytes(at));
        found.push(ProgramMemory { program: program.row().title.to_string(), peak_bytes, given_bytes, map });
    }
    Ok(found)
}

/// The same as tables for a terminal.
pub fn text(programs: &[ProgramMemory], colour: bool) -> String {
    let mut out = String::new();
    for ProgramMemory { program, map, .. } in programs {
        let _ = writeln!(out, "{program}: {}\n\n{}", map.summary(), map.table().text(colour));
    }
    out
}
