//! Finalists: plans that take more time than the fastest and less memory, each checked at full size. Who runs several plans in one
//! workspace chooses among them: only the largest workspace counts.

use crate::cli::{cells, table};
use crate::clibrary::LibraryWorkspace;
use crate::pipeline::PipelineError;
use crate::pipeline::run::race_plans::Timed;
use bench::stats::Samples;
use bench::table::Table;
use bench::unit::significant;
use serde::Serialize;
use std::path::Path;

/// A plan of the front of time and memory.
#[derive(Clone, Debug, Serialize)]
pub struct Finalist {
    pub plan: String,
    /// Where the plan lies in the folder of the run.
    pub file: String,
    /// The median time of a step, and the 95% interval of the median.
    pub step_ms: f64,
    pub interval_ms: [f64; 2],
    /// Tensors of a step in `memlet run`, inputs and results among them.
    pub peak_bytes: u64,
    /// What `memlet build` makes of it, where there is C of the plan.
    #[serde(flatten)]
    pub library: Option<LibraryWorkspace>,
    pub dispatches: u64,
}

/// `finalists.json`.
#[derive(Serialize)]
pub struct Finalists<'a> {
    /// How much longer than the fastest finalists may take, as a share.
    pub slower: f64,
    /// The number of threads for which times and workspaces are given.
    pub threads: usize,
    /// The plan in `plan.json`, and the share of time by which it was chosen.
    pub taken: &'a str,
    pub memory_slack: f64,
    /// The fastest first; each needs less memory than those before it.
    pub finalists: &'a [Finalist],
}

impl Finalists<'_> {
    /// Writes `finalists.json` into the folder of a run.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), PipelineError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| PipelineError::Internal(e.to_string()))?;
        let path = folder.join("finalists.json");
        bench::atomic::write(&path, (text + "\n").as_bytes())
            .map_err(|e| PipelineError::Plan { file: path.display().to_string(), why: e.to_string() })
    }
}

/// A share of memory, and bytes, by which a plan must need less than every faster one: a few bytes less are worth no time.
const WORTH: f64 = 0.01;
const WORTH_BYTES: u64 = 1_000_000;

/// The plans, of times and bytes each, that take at most `slower` longer than the fastest and need clearly less memory than every faster
/// one, fastest first.
pub fn front(of: &[(f64, u64)], slower: f64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..of.len()).filter(|n| of[*n].0.is_finite()).collect();
    order.sort_by(|a, b| of[*a].0.total_cmp(&of[*b].0).then(of[*a].1.cmp(&of[*b].1)));
    let most = order.first().map_or(0.0, |fastest| of[*fastest].0 * (1.0 + slower));
    let mut least: Option<u64> = None;
    order.retain(|n| {
        let (ms, bytes) = of[*n];
        let is_less = |than: u64| bytes.saturating_add(WORTH_BYTES.max((than as f64 * WORTH) as u64)) <= than;
        let is_kept = ms <= most && least.is_none_or(is_less);
        least = if is_kept { Some(bytes) } else { least };
        is_kept
    });
    order
}

impl Finalist {
    pub fn of(timed: &Timed, file: String, library: Option<LibraryWorkspace>) -> Self {
        let step_ms = layouts::record::median(&timed.step.samples).unwrap_or(f64::INFINITY);
        let interval = Samples::new(timed.step.samples.clone()).ok().map(|samples| samples.interval());
        Finalist {
            plan: timed.name.clone(),
            file,
            step_ms,
            interval_ms: interval.map_or([step_ms; 2], |interval| [interval.lower, interval.upper]),
            peak_bytes: timed.memory.actual_bytes,
            library,
            dispatches: timed.dispatches.iter().sum(),
        }
    }

    /// The bytes by which finalists are compared: of the library's workspace, where all have one.
    pub fn bytes(&self, libraries: bool) -> u64 {
        self.library.filter(|_| libraries).map_or(self.peak_bytes, |library| library.workspace_bytes as u64)
    }
}

/// The finalists as a table.
pub fn table_of_finalists(finalists: &[Finalist]) -> Table {
    let mut rows = table(&["finalist", "step ms", "than the fastest", "peak MB", "workspace MB of a library"]);
    let fastest = finalists.first().map_or(f64::NAN, |finalist| finalist.step_ms);
    for f in finalists {
        let megabytes = |bytes: u64| significant(bytes as f64 / 1e6);
        rows.row(cells(vec![
            f.plan.clone(),
            significant(f.step_ms),
            format!("{:+.1}%", 100.0 * (f.step_ms / fastest - 1.0)),
            megabytes(f.peak_bytes),
            f.library.map_or_else(|| "–".into(), |library| megabytes(library.workspace_bytes as u64)),
        ]));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finalists_are_slower_and_need_clearly_less() {
        let mb = |n: u64| n * 1_000_000;
        let of = [(100.0, mb(500)), (104.0, mb(300)), (103.0, mb(600)), (106.0, mb(299)), (109.0, mb(200)), (130.0, mb(10))];
        assert_eq!(front(&of, 0.1), [0, 1, 4], "slower with more memory, hardly less of it, and too slow are left out");
        assert_eq!([front(&of, 0.0), front(&of, 0.05), front(&of, 0.5)], [vec![0], vec![0, 1], vec![0, 1, 4, 5]]);
        assert_eq!(front(&[(1.0, 900_000), (1.0, 20_000)], 0.1), [1], "of equally fast plans the leanest");
        assert!(front(&[], 0.1).is_empty() && front(&[(f64::INFINITY, 1)], 0.1).is_empty());
    }
}
