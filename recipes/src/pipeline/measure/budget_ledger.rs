//! Seconds that each program has been swept already: a repeated command continues only programs whose budget is not yet spent.

use crate::pipeline::PipelineError;
use crate::pipeline::variants::PartialFusionLog;
use layouts::SelectionProblem;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Seconds of budget that sweeps have spent, by program; a file in the output folder.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct BudgetLedger {
    #[serde(skip)]
    path: PathBuf,
    seconds: BTreeMap<String, f64>,
    /// The number of configurations and fresh samples in the records when the plan was written.
    #[serde(default)]
    settled: Option<usize>,
    /// The share of time that the choice of that plan allowed for less memory and fewer dispatches; none in folders of earlier versions.
    #[serde(default)]
    slack: Option<f64>,
    /// How much slower than the fastest plan its finalists were allowed to be, if there are any.
    #[serde(default)]
    finalists: Option<f64>,
    /// Seconds of wall-clock time by program. They differ from `seconds` where a sweep ended before or after its share.
    #[serde(default)]
    taken: BTreeMap<String, f64>,
    /// Seconds of all commands, from their beginnings to the ends of their sweeps.
    #[serde(default)]
    commands: f64,
    /// Which fusions of contractions were kept, and the costs that decided it.
    #[serde(rename = "mixing", default)]
    partial_fusion: Option<PartialFusionLog>,
}

/// The key of a program: a hash of its kernels' content hashes.
fn entry(program: &SelectionProblem) -> String {
    let mut hasher = blake3::Hasher::new();
    for kernel in &program.kernels {
        hasher.update(kernel.key.as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_string()
}

impl BudgetLedger {
    /// The ledger of a folder; empty if there is none. A damaged one counts as empty: its worst effect is a longer sweep.
    pub fn open(folder: &Path) -> Self {
        let path = folder.join("spent.json");
        let known = std::fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str::<BudgetLedger>(&text).ok());
        BudgetLedger { path, ..known.unwrap_or_default() }
    }

    /// The part of a budget that a program has not yet spent.
    pub fn left(&self, program: &SelectionProblem, budget: Option<Duration>) -> Option<Duration> {
        budget.map(|budget| budget.saturating_sub(self.budget(program, Duration::ZERO)))
    }

    /// The budget that leaves a program with `left` after what it has already spent.
    pub fn budget(&self, program: &SelectionProblem, left: Duration) -> Duration {
        let spent = self.seconds.get(&entry(program)).copied().unwrap_or(0.0);
        left.saturating_add(Duration::try_from_secs_f64(spent).unwrap_or_default())
    }

    /// Counts what a program has spent of its budget, and the time that it took.
    pub fn spend(&mut self, program: &SelectionProblem, budget: Duration, time: Duration) -> Result<(), PipelineError> {
        *self.seconds.entry(entry(program)).or_default() += budget.as_secs_f64();
        *self.taken.entry(entry(program)).or_default() += time.as_secs_f64();
        self.write()
    }

    /// Wall-clock time of these programs' sweeps so far.
    pub fn taken<'a>(&self, programs: impl IntoIterator<Item = &'a SelectionProblem>) -> Duration {
        let seconds = programs.into_iter().map(|p| self.taken.get(&entry(p)).copied().unwrap_or(0.0)).sum::<f64>();
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// Wall-clock time of all commands so far, from their beginnings to the ends of their sweeps.
    pub fn commands(&self) -> Duration {
        Duration::try_from_secs_f64(self.commands).unwrap_or_default()
    }

    /// Adds a command's time.
    pub fn command(&mut self, time: Duration) -> Result<(), PipelineError> {
        self.commands += time.as_secs_f64();
        self.write()
    }

    /// Whether the plan of this folder was chosen, verified and timed with all records that are stored now.
    pub fn settled(&self, learned: usize) -> bool {
        self.settled == Some(learned)
    }

    /// Whether the plan of this folder was chosen with this slack, and has such finalists as are asked for.
    pub fn chosen_with(&self, slack: f64, finalists: Option<f64>) -> bool {
        self.slack.is_none_or(|own| own == slack) && (finalists.is_none() || self.finalists == finalists)
    }

    /// Records that the plan of this folder rests on all measurements that the records hold, and what it was chosen with.
    pub fn settle(&mut self, learned: usize, slack: f64, finalists: Option<f64>) -> Result<(), PipelineError> {
        (self.settled, self.slack, self.finalists) = (Some(learned), Some(slack), finalists);
        self.write()
    }

    /// The last decision on fusions of contractions.
    pub fn partial_fusion(&self) -> Option<&PartialFusionLog> {
        self.partial_fusion.as_ref()
    }

    pub fn decide(&mut self, partial_fusion: &PartialFusionLog) -> Result<(), PipelineError> {
        self.partial_fusion = Some(partial_fusion.clone());
        self.write()
    }

    fn write(&self) -> Result<(), PipelineError> {
        let text = serde_json::to_string_pretty(self).map_err(|e| PipelineError::Internal(e.to_string()))?;
        bench::atomic::write(&self.path, text.as_bytes())
            .map_err(|e| PipelineError::Plan { file: self.path.display().to_string(), why: e.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_spent_once() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let program = SelectionProblem::default();
        let budget = Some(Duration::from_secs(60));
        BudgetLedger::open(folder.path()).spend(&program, Duration::from_secs(50), Duration::from_secs(9))?;
        let mut again = BudgetLedger::open(folder.path());
        assert_eq!(again.left(&program, budget), Some(Duration::from_secs(10)));
        again.spend(&program, Duration::from_secs(50), Duration::from_secs(50))?;
        assert_eq!(BudgetLedger::open(folder.path()).taken([&program]), Duration::from_secs(59));
        assert_eq!(BudgetLedger::open(folder.path()).left(&program, budget), Some(Duration::ZERO));
        let more = again.budget(&program, Duration::from_secs(7));
        assert_eq!(BudgetLedger::open(folder.path()).left(&program, Some(more)), Some(Duration::from_secs(7)));
        assert_eq!(BudgetLedger::open(folder.path()).left(&program, None), None);
        again.settle(7, 0.01, Some(0.2))?;
        let known = BudgetLedger::open(folder.path());
        assert_eq!([known.settled(7), known.settled(8)], [true, false]);
        assert_eq!([known.chosen_with(0.01, None), known.chosen_with(0.0, None)], [true, false]);
        assert_eq!([known.chosen_with(0.01, Some(0.2)), known.chosen_with(0.01, Some(0.1))], [true, false]);
        Ok(())
    }
}
