//! `memlet solve`: choose again from stored measurements, without the device.

use super::{cells, table};
use crate::pipeline::PipelineError;
use crate::pipeline::sweep::METHODS;
use bench::unit::significant;
use clap::Args;
use layouts::exact::Limits;
use layouts::{Store, select};
use std::path::PathBuf;

#[derive(Args)]
pub struct SolveArgs {
    /// Records of `memlet sweep` or `memlet optimize`; several are merged
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// Print JSON: every choice in full
    #[arg(long)]
    json: bool,
}

impl SolveArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let store = Store::merge(&self.records)?;
        let mut programs: Vec<layouts::Program> = Vec::new();
        for program in store.sessions().filter_map(|s| s.program.clone()) {
            if !programs.contains(&program) {
                programs.push(program);
            }
        }
        let mut rows = table(&["program", "method", "predicted ms", "above minima", "gap"]);
        let mut all = Vec::new();
        for (n, program) in programs.iter().enumerate() {
            for method in METHODS {
                let selection = select(program, &store, method, Limits::default())?;
                rows.row(cells(vec![
                    format!("{} ({} kernels)", n + 1, program.kernels.len()),
                    method.to_string(),
                    significant(selection.total_ms),
                    format!("{:.1}%", 100.0 * selection.above_minima()),
                    if selection.proven { "0, proven".into() } else { format!("{:.1}%", 100.0 * selection.gap) },
                ]));
                all.push(selection);
            }
        }
        if self.json {
            println!("{}", serde_json::to_string(&all).map_err(|e| PipelineError::Internal(e.to_string()))?);
        } else {
            print!("{}", rows.text(bench::table::colour()));
        }
        Ok(())
    }
}
