//! The workspace that a plan's library needs, without writing or compiling anything: plans are chosen by it.

use super::boundary::Boundary;
use super::flatten::{Flattener, LINE};
use super::products;
use crate::pipeline::PipelineError;
use crate::pipeline::run::assemble::{Results, assemble};
use crate::pipeline::run::candidate::Candidate;
use kernels::Toolchain;
use kernels::device::Device;
use kernels::target::cpu::Cores;
use std::path::Path;
use std::sync::Arc;

/// The memory of a library between inputs and results, which are the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LibraryWorkspace {
    /// Bytes of a context with the asked number of threads.
    pub workspace_bytes: usize,
    /// Whether it holds something from one step to the next, so that no other library can use it between them.
    pub is_kept: bool,
}

impl LibraryWorkspace {
    /// The workspace of the library that [`super::build`] makes of a plan in this folder, with `threads` as the most and in use.
    ///
    /// # Errors
    /// Plans of which there is no library.
    pub fn of(plan: &Candidate, folder: &Path, threads: usize) -> Result<Self, PipelineError> {
        let device: Arc<dyn Device> = Arc::new(Cores { toolchain: Toolchain::texts() });
        let fault = |why: String| PipelineError::Plan { file: folder.display().to_string(), why };
        let mut chosen = plan.clone();
        products::rechoose(&mut chosen, &*device, folder)?;
        let beside = if chosen.packed { chosen.beside } else { 1 };
        let assembly = assemble(&chosen.program, &chosen.configuration, &device, beside, Results::Apart)?;
        let boundary = Boundary::of(&chosen.program, &assembly).map_err(fault)?;
        let mut flattener = Flattener::new(&assembly, &boundary);
        let schedules = flattener.step(&assembly, threads, chosen.packed).map_err(fault)?;
        // As `NAME_workspace_bytes` of the runtime says it.
        let workspace_bytes = flattener.own_at() + flattener.own_stride() * threads.max(1) + LINE;
        Ok(LibraryWorkspace { workspace_bytes, is_kept: flattener.keeps(&schedules) })
    }
}
