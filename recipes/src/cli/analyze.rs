//! `memlet analyze`: operators, kernels and movement of a recipe, without running it.

use super::RecipeArgs;
use super::measured_planning;
use crate::analyze::{Shown, analyze, memory, stitching, text};
use crate::pipeline::PipelineError;
use crate::pipeline::variants::{Planning, candidate_set::CandidateSet};
use clap::{Args, ValueEnum};
use std::io::{ErrorKind, Write};

#[derive(Clone, Args)]
pub struct Analyze {
    #[command(flatten)]
    pub recipe: RecipeArgs,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Interpret the program at small sizes before and after every fusion, and stop where they differ: the smallest program that shows
    /// the difference is saved under target/memlet.
    #[arg(long)]
    pub verify_each: bool,
    /// Print only the fused program: as Graphviz DOT, or in the text form.
    #[arg(long, value_name = "FORM", conflicts_with = "json")]
    pub graph: Option<Graph>,
    /// Print only the memory of a step: the tensors that are alive at its peak, in the fused and in the gemm-fused program.
    #[arg(long, conflicts_with = "graph")]
    pub memory: bool,
    /// Print only the plan of fusion of the unfused program: patterns, scores, the bound that proves it, and the greedy plan beside it.
    #[arg(long, conflicts_with_all = ["graph", "memory"])]
    pub stitch: bool,
    /// With --stitch: the patterns that the plan is chosen from.
    #[arg(long, value_enum, default_value = "all", requires = "stitch", value_name = "SET")]
    pub candidates: CandidateSet,
    /// List each pair of kernels that was not fused separately, with its place in the recipe, also pairs that share no data.
    #[arg(long)]
    pub refusals: bool,
    /// Count the bytes that fusion saves under every definition of the unfused program.
    #[arg(long)]
    pub definitions: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Graph {
    Dot,
    Text,
}

impl Analyze {
    /// Writes the analysis to `out`.
    ///
    /// # Errors
    /// Errors of the recipe, a failed verification, or why `out` could not be written.
    pub fn run(&self, out: &mut dyn Write) -> Result<(), PipelineError> {
        let shown = match (self.memory, self.stitch) {
            (true, _) => self.memory()?,
            (_, true) => self.stitching()?,
            _ => self.analysis()?,
        };
        match out.write_all(shown.as_bytes()) {
            // A reader may close the pipe before the end, as `head` does.
            Err(why) if why.kind() != ErrorKind::BrokenPipe => {
                Err(PipelineError::Tensors { file: "the analysis".into(), why: format!("it could not be written: {why}") })
            }
            _ => Ok(()),
        }
    }

    fn memory(&self) -> Result<String, PipelineError> {
        let found = memory::memory(&self.recipe.load()?)?;
        if self.json { json(&found) } else { Ok(memory::text(&found, bench::table::colour())) }
    }

    fn stitching(&self) -> Result<String, PipelineError> {
        let planning = Planning { candidates: self.candidates, ..measured_planning() };
        let found = stitching::plan(&self.recipe.load()?, &planning)?;
        if self.json { json(&found) } else { Ok(stitching::text(&found, bench::table::colour())) }
    }

    fn analysis(&self) -> Result<String, PipelineError> {
        let analysis = analyze(&self.recipe.load()?, self.verify_each)?;
        Ok(match self.graph {
            Some(Graph::Dot) => sdfg::dot::dot(&analysis.fused),
            Some(Graph::Text) => sdfg::text::print(&analysis.fused),
            None if self.json => json(&analysis)?,
            None => text(&analysis, Shown { refusals: self.refusals, definitions: self.definitions }, bench::table::colour()),
        })
    }
}

fn json(value: &impl serde::Serialize) -> Result<String, PipelineError> {
    Ok(serde_json::to_string_pretty(value).map_err(|e| PipelineError::Internal(e.to_string()))? + "\n")
}
