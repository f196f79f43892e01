//! `memlet report`: redraws the pages of a run from its values.

use super::out::outln;
use crate::pipeline::PipelineError;
use crate::pipeline::report::{draw, read};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct ReportArgs {
    /// Folder of `memlet optimize`, with its report.json
    folder: PathBuf,
    /// Print the values as JSON instead of drawing them
    #[arg(long)]
    json: bool,
}

impl ReportArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        // A file in the folder stands for the folder.
        let folder = if self.folder.is_file() { self.folder.parent().unwrap_or(Path::new("")) } else { &self.folder };
        let report = read(folder)?;
        if self.json {
            outln!("{}", serde_json::to_string(&report).map_err(|e| PipelineError::Internal(e.to_string()))?);
            return Ok(());
        }
        draw(folder, &report)?;
        outln!("report: {}", folder.join("report.html").display());
        Ok(())
    }
}
