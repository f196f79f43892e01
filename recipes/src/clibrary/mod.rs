//! A plan as a C library that needs neither Rust nor this crate: the generated texts of its kernels, the step as tables, a runtime in C, a
//! header, a build script and an example.
//!
//! The step runs as `memlet run` runs it: the same kernels in the same configurations, the same order and packed groups, and memory planned
//! in the same way, except that inputs, parameters and results lie in memory of the caller's. A runtime in C (`runtime/`) takes the place
//! of this process: worker threads, dropout's random numbers, stores around the caches. Products that the plan leaves to a library of Rust
//! are generated instead (`products.rs`).

mod boundary;
mod compile;
mod files;
mod flatten;
mod names;
mod products;
mod tables;
mod text;
mod workspace;

pub use products::Rechosen;
pub use workspace::LibraryWorkspace;

use crate::pipeline::PipelineError;
use crate::pipeline::choose::plan::Plan;
use crate::pipeline::run::assemble::{Results, assemble};
use boundary::Boundary;
use flatten::Flattener;
use kernels::Toolchain;
use kernels::device::Device;
use kernels::processor::cores;
use kernels::target::cpu::Cores;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What the caller of [`build`] decides.
pub struct Options {
    /// The library's name; the model's by default.
    pub name: Option<String>,
    /// The most threads that a context can have; 0 is as many as there are cores, and no fewer than the plan was chosen for.
    pub most_threads: usize,
    /// Whether kernels share dispatches where they can, also in a plan that was faster without.
    pub packed: bool,
}

/// What was written.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Built {
    pub name: String,
    pub most_threads: usize,
    /// The shared library; `None` where no compiler was found.
    pub library: Option<PathBuf>,
    pub kernels: usize,
    pub memories: usize,
    /// Bytes of the workspace for one thread, and for each further one.
    pub workspace_bytes: [usize; 2],
    /// Products that a library of Rust computes in `memlet run`.
    pub rechosen: Vec<Rechosen>,
}

/// Writes the library of a plan into a folder, and compiles it where there is a compiler.
///
/// # Errors
/// Plans for other devices, and what has no C; a folder that cannot be written; a compiler that refuses.
pub fn build(plan: &Plan, file: &Path, out: &Path, options: &Options) -> Result<Built, PipelineError> {
    let fault = |why: String| PipelineError::Plan { file: file.display().to_string(), why };
    if !plan.target.is_cpu() {
        let why = "a C library runs on the cores; optimize the recipe without --device";
        return Err(fault(format!("its kernels are made for {}: {why}", plan.target)));
    }
    let name = match &options.name {
        Some(name) => names::checked(name).map_err(fault)?,
        None => names::of_model(&plan.chosen.program.name),
    };
    let device: Arc<dyn Device> = Arc::new(Cores { toolchain: Toolchain::texts() });
    let mut chosen = plan.chosen.clone();
    let rechosen = products::rechoose(&mut chosen, &*device, file)?;
    let packed = chosen.packed || options.packed;
    let beside = if packed { chosen.beside } else { 1 };
    let assembly = assemble(&chosen.program, &chosen.configuration, &device, beside, Results::Apart)?;
    let boundary = Boundary::of(&chosen.program, &assembly).map_err(fault)?;
    let most_threads = match options.most_threads {
        0 => cores().max(plan.threads),
        threads => threads,
    };
    let mut flattener = Flattener::new(&assembly, &boundary);
    let schedules = flattener.step(&assembly, most_threads, packed).map_err(fault)?;
    let written = files::CLibrary { name: &name, plan, boundary: &boundary, flat: &flattener, schedules: &schedules, most_threads };
    let sources = written.write(out)?;
    let library = compile::shared(&name, out, &sources)?;
    Ok(Built {
        most_threads,
        library,
        kernels: flattener.kernels.len(),
        memories: boundary.memories.len(),
        workspace_bytes: [flattener.own_at() + flattener.own_stride(), flattener.own_stride()],
        rechosen,
        name,
    })
}
