//! `memlet build`: a plan as a C library.

use super::out::outln;
use crate::clibrary::{Options, build};
use crate::pipeline::PipelineError;
use crate::pipeline::choose::plan::Plan;
use bench::unit::Bytes;
use clap::Args;
use std::path::PathBuf;

/// The folder gets C sources, a header, CMakeLists.txt, an example and a README, and where there is a C compiler the shared library.
/// Inputs, parameters and results are the caller's memory; docs/build.md describes the interface.
#[derive(Args)]
pub struct BuildArgs {
    /// plan.json of `memlet optimize`, or its folder
    plan: PathBuf,
    /// The folder for the library
    #[arg(long)]
    out: PathBuf,
    /// The library's name, with which its functions begin [default: the model's]
    #[arg(long)]
    name: Option<String>,
    /// The most threads that a context can have; 0 is as many as there are cores
    #[arg(long, value_parser = super::threads, default_value_t = 0)]
    threads: usize,
    /// Let kernels share dispatches where they can, also in a plan that was faster without
    #[arg(long)]
    packed: bool,
    /// Build it although `optimize` refused the plan: its results are wrong, or it does not run
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl BuildArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let plan = Plan::read(&self.plan)?;
        if !self.force {
            plan.usable(&self.plan)?;
        }
        let options = Options { name: self.name.clone(), most_threads: self.threads, packed: self.packed };
        let built = build(&plan, &self.plan, &self.out, &options)?;
        if self.json {
            outln!("{}", serde_json::to_value(&built).map_err(|e| PipelineError::Internal(e.to_string()))?);
            return Ok(());
        }
        match &built.library {
            Some(library) => outln!("{}", library.display()),
            None => outln!("no C compiler was found: {} holds the sources and CMakeLists.txt", self.out.display()),
        }
        let [one, further] = built.workspace_bytes.map(|bytes| Bytes(bytes as u64));
        outln!(
            "`{}`: {} kernels, {} memories of the caller's, up to {} threads; workspace {one}, {further} for each further thread",
            built.name,
            built.kernels,
            built.memories,
            built.most_threads
        );
        for product in &built.rechosen {
            let why = if product.measured { "measured" } else { "predicted" };
            outln!("`{}` is generated ({}, {why}) where `memlet run` calls a library ({})", product.kernel, product.is, product.was);
        }
        Ok(())
    }
}
