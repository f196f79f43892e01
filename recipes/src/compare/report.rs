//! The results of a comparison, as a table and as JSON.

use super::StepTime;
use super::check::Agreement;
use super::contender::{PeerContender, Precision};
use super::load::Others;
use super::memory::{self, OurBytes, TensorBytes};
use super::model::PeerModel;
use super::race::Runner;
use super::wait::Probe;
use super::worker::PeerStep;
use crate::pipeline::check::accuracy::{Accuracy, table};
use bench::stats::{Ratio, Samples, StatsError, paired_ratio};
use bench::table::{Align, Cell, Table};
use sdfg::Dtype;
use serde::Serialize;
use serde_json::Value;

/// Medians over all rounds, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Medians {
    pub forward_ms: f64,
    pub backward_ms: f64,
    /// Both passes. JAX has one function for both, which takes less than the sum of its parts.
    pub step_ms: f64,
}

impl Medians {
    fn of<T>(steps: &[T], times: impl Fn(&T) -> [f64; 3]) -> Result<Medians, StatsError> {
        let median = |n: usize| Ok(Samples::new(steps.iter().map(|s| times(s)[n]).collect())?.median());
        Ok(Medians { forward_ms: median(0)?, backward_ms: median(1)?, step_ms: median(2)? })
    }
}

/// The result of one peer.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum ComparisonOutcome {
    Timed {
        check: Agreement,
        medians: Medians,
        /// Their time over ours, of the step or, for a peer without a backward pass, of the forward pass: above 1 we are faster. Our
        /// times are the turns just before theirs.
        ratio: Ratio,
        /// Processors that other processes kept busy during its turns.
        others: Option<f64>,
        samples: Vec<PeerStep>,
        ours: Vec<StepTime>,
    },
    /// Its results differ from ours, so it was not timed.
    Mismatch { check: Agreement },
    /// It did not run: the reason, as far as known.
    Failed { why: String },
}

#[derive(Clone, Debug, Serialize)]
pub struct ComparisonRow {
    pub variant: &'static str,
    pub precision: &'static str,
    /// Whether it was compared with our forward pass, dropout off on both sides.
    pub forward_only: bool,
    pub versions: Value,
    /// Seconds of the first step, including compilation.
    pub first_s: Option<f64>,
    /// Errors against the f64 oracle, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Vec<Accuracy>>,
    /// Bytes of its tensors, if they can be counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<TensorBytes>,
    #[serde(flatten)]
    pub outcome: ComparisonOutcome,
}

impl ComparisonRow {
    pub fn new(contender: &PeerContender, versions: Value, first_s: Option<f64>, outcome: ComparisonOutcome) -> ComparisonRow {
        let (variant, precision) = (contender.variant.name(), contender.precision.name());
        let forward_only = contender.variant.forward_only();
        ComparisonRow { variant, precision, forward_only, versions, first_s, accuracy: None, memory: None, outcome }
    }

    /// The type of its weights and their gradients.
    fn weights(&self) -> Dtype {
        if self.precision == Precision::Bf16Native.name() { Dtype::Bf16 } else { Dtype::F32 }
    }

    fn ratio(&self) -> Option<&Ratio> {
        match &self.outcome {
            ComparisonOutcome::Timed { ratio, .. } => Some(ratio),
            _ => None,
        }
    }
}

/// A comparison: its inputs, its settings, and the result of each peer.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    pub recipe: String,
    /// By size symbol.
    pub sizes: sdfg::Bindings,
    pub model: PeerModel,
    /// The type of activations.
    pub dtype: Dtype,
    /// The type of weights.
    pub weights: Dtype,
    /// Our errors against the f64 oracle, dropout off, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Vec<Accuracy>>,
    pub machine: String,
    /// The command that chose our plan, and for how many threads.
    pub origin: String,
    /// Gflop of the contractions in one step.
    pub gigaflop: f64,
    /// Gflop/s in f32 that the threads' vector units reach, measured in this run.
    pub peak: Option<f64>,
    pub memory: OurBytes,
    pub threads: usize,
    pub rounds: usize,
    pub seed: u64,
    pub dropout: bool,
    /// How PyTorch's threads wait for work: the faster way by measurement.
    pub torch_wait: Probe,
    /// Our times over all our turns; none if no peer was timed.
    pub ours: Option<Medians>,
    /// Processors that other processes kept busy during our turns.
    pub ours_others: Option<f64>,
    pub rows: Vec<ComparisonRow>,
}

/// The outcome of a peer that took part in the race.
pub fn outcome(runner: &Runner, check: Agreement) -> Result<ComparisonOutcome, StatsError> {
    if let Some(error) = &runner.failed {
        return Ok(ComparisonOutcome::Failed { why: error.to_string() });
    }
    let forward = runner.contender.variant.forward_only();
    let theirs = Samples::new(runner.theirs.iter().map(|s| s.step_ms).collect())?;
    let ours = Samples::new(runner.ours.iter().map(|s| if forward { s.forward_ms } else { s.step_ms }).collect())?;
    Ok(ComparisonOutcome::Timed {
        check,
        medians: Medians::of(&runner.theirs, |s| [s.forward_ms, s.backward_ms, s.step_ms])?,
        ratio: paired_ratio(&theirs, &ours)?,
        others: runner.others.processors(),
        samples: runner.theirs.clone(),
        ours: runner.ours.clone(),
    })
}

impl ComparisonReport {
    /// Adds our turns against all peers together.
    pub fn ours(mut self, besides: Others) -> Result<ComparisonReport, StatsError> {
        let whole = self.rows.iter().filter(|r| !r.forward_only);
        let all = whole.filter_map(|r| if let ComparisonOutcome::Timed { ours, .. } = &r.outcome { Some(ours) } else { None });
        let steps: Vec<StepTime> = all.flatten().copied().collect();
        if !steps.is_empty() {
            self.ours = Some(Medians::of(&steps, |s| [s.forward_ms, s.backward_ms, s.step_ms])?);
            self.ours_others = besides.processors();
        }
        Ok(self)
    }

    /// The fastest peer, among those that run the whole step or those that have only a forward pass.
    pub fn best(&self, forward_only: bool) -> Option<(&ComparisonRow, &Ratio)> {
        self.best_of(|row| row.forward_only == forward_only)
    }

    /// The same among peers that run the whole step and hold weights and their gradients in our types.
    pub fn best_alike(&self) -> Option<(&ComparisonRow, &Ratio)> {
        self.best_of(|row| !row.forward_only && row.weights() == self.weights)
    }

    fn best_of(&self, which: impl Fn(&ComparisonRow) -> bool) -> Option<(&ComparisonRow, &Ratio)> {
        let timed = self.rows.iter().filter(|row| which(row)).filter_map(|row| Some((row, row.ratio()?)));
        timed.min_by(|a, b| a.1.median.total_cmp(&b.1.median))
    }

    /// The flop of contractions alone, over the time of our whole step, as a share of the vector units' peak.
    pub fn share_of_peak(&self) -> Option<f64> {
        Some(self.gigaflop / (self.ours.as_ref()?.step_ms / 1e3) / self.peak?)
    }

    /// 0 if every peer was timed, 3 if one's results differ from ours, 1 if one did not run.
    pub fn exit_code(&self) -> u8 {
        let codes = self.rows.iter().map(|r| match r.outcome {
            ComparisonOutcome::Timed { .. } => 0,
            ComparisonOutcome::Failed { .. } => 1,
            ComparisonOutcome::Mismatch { .. } => 3,
        });
        codes.max().unwrap_or(0)
    }

    pub fn text(&self, colour: bool) -> String {
        let dropout = if self.dropout { "dropout as in the recipe" } else { "dropout off" };
        let mut out = format!(
            "{}: {}, {} thread{}, {} rounds, {dropout}, seed {}\nplan: {}\n\n",
            self.recipe,
            self.machine,
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.rounds,
            self.seed,
            self.origin
        );
        out += &self.times().text(colour);
        let counted: Vec<_> = self.rows.iter().filter_map(|r| Some(([r.variant, r.precision], r.memory.as_ref()?))).collect();
        out += &memory::text(&self.memory, &counted, colour);
        out += &self.errors(colour);
        out.push('\n');
        let mut best = |(row, ratio): (&ComparisonRow, &Ratio), what: &str| {
            out += &format!(
                "The best peer{what} is {}, {}: its time ÷ ours is {:.3} (95%: {:.3} to {:.3}).\n",
                row.variant, row.precision, ratio.median, ratio.interval.lower, ratio.interval.upper
            );
        };
        if let Some(found) = self.best(false) {
            best(found, "");
        }
        if let Some(found) = self.best_alike().filter(|found| self.best(false).is_some_and(|best| !std::ptr::eq(best.0, found.0))) {
            best(found, &format!(" that holds weights in {}, as ours does,", self.weights));
        }
        if let Some(found) = self.best(true) {
            best(found, " of the forward pass alone, dropout off,");
        }
        if self.rows.iter().any(|r| r.forward_only && r.ratio().is_some()) {
            out += "Who has a forward pass alone is timed beside ours without dropout; ours also keeps what a backward pass needs.\n";
        }
        if let Some((ours, share)) = self.ours.as_ref().zip(self.share_of_peak()) {
            out += &format!(
                "Contractions of a step are {:.1} Gflop: {:.0} Gflop/s in ours, {:.1}% of the {:.0} that the vector units can do in f32.\n",
                self.gigaflop,
                self.gigaflop / ours.step_ms * 1e3,
                100.0 * share,
                self.peak.unwrap_or(f64::NAN)
            );
        }
        for row in &self.rows {
            match &row.outcome {
                ComparisonOutcome::Failed { why } => out += &format!("{}, {} did not run: {why}\n", row.variant, row.precision),
                ComparisonOutcome::Mismatch { check } => {
                    out += &format!(
                        "{}, {} was not timed: its `{}` is off by {:.1e}, tolerance {:.1e}\n",
                        row.variant, row.precision, check.worst, check.error, check.tolerance
                    )
                }
                ComparisonOutcome::Timed { check, .. } if check.reduced => {
                    out += &format!("{}, {} multiplies in less than f32: it does less work than ours\n", row.variant, row.precision)
                }
                ComparisonOutcome::Timed { .. } if row.weights() != self.weights => {
                    let (theirs, ours) = (row.weights(), self.weights);
                    let less = if theirs.bytes(1) < ours.bytes(1) { "less" } else { "more" };
                    out += &format!(
                        "{}, {} holds weights and their gradients in {theirs}, where ours are {ours}: it moves {less} than ours\n",
                        row.variant, row.precision
                    )
                }
                ComparisonOutcome::Timed { .. } => {}
            }
        }
        out
    }

    /// Errors against the oracle: all of ours and of the first peer, and a comparison of ours with each peer's.
    fn errors(&self, colour: bool) -> String {
        let Some(ours) = &self.accuracy else { return String::new() };
        let peers: Vec<(&ComparisonRow, &Vec<Accuracy>)> = self.rows.iter().filter_map(|r| Some((r, r.accuracy.as_ref()?))).collect();
        let mut columns = vec![("ours", ours.clone())];
        columns.extend(peers.first().map(|(row, errors)| (row.variant, (*errors).clone())));
        let mut out = format!("\nErrors against the f64 oracle, dropout off:\n{}", table(&columns).text(colour));
        for (row, theirs) in peers {
            let mean = |of: fn(&Accuracy) -> f64| {
                let ratios = ours.iter().zip(theirs).filter(|(a, b)| of(a) > 0.0 && of(b) > 0.0).map(|(a, b)| (of(a) / of(b)).ln());
                let (count, sum) = ratios.fold((0, 0.0), |(n, sum), ratio| (n + 1, sum + ratio));
                (sum / f64::from(count.max(1))).exp()
            };
            out += &format!(
                "Our errors ÷ those of {}, {}, geometric means: largest {:.2}, norm {:.2}\n",
                row.variant,
                row.precision,
                mean(|a| a.largest),
                mean(|a| a.norm)
            );
        }
        out
    }

    fn times(&self) -> Table {
        let mut table = Table::new(&[
            ("variant", "", Align::Left),
            ("precision", "", Align::Left),
            ("forward", "ms", Align::Right),
            ("backward", "ms", Align::Right),
            ("step", "ms", Align::Right),
            ("÷ ours", "", Align::Right),
            ("95% interval", "", Align::Left),
            ("others", "cores", Align::Right),
            ("error", "", Align::Right),
            ("÷ tolerance", "", Align::Right),
        ]);
        let times = |m: &Medians| [m.forward_ms, m.backward_ms, m.step_ms].map(|t| Cell::number(t, 2));
        if let Some(ours) = &self.ours {
            let mut cells = vec![Cell::text("ours").strong(true), Cell::text(self.dtype.name())];
            cells.extend(times(ours));
            cells.extend([Cell::number(1.0, 3), Cell::text(""), Cell::maybe(self.ours_others, 2)]);
            table.row(cells);
        }
        for row in &self.rows {
            let mut cells = vec![Cell::text(row.variant), Cell::text(row.precision)];
            match &row.outcome {
                ComparisonOutcome::Timed { check, medians, ratio, others, .. } => {
                    cells.extend(times(medians));
                    if row.forward_only {
                        cells.truncate(3);
                        cells.extend([Cell::none(), Cell::none()]);
                    }
                    let interval = format!("{:.3} to {:.3}", ratio.interval.lower, ratio.interval.upper);
                    cells.extend([Cell::number(ratio.median, 3), Cell::text(interval), Cell::maybe(*others, 2)]);
                    cells.extend(error(check));
                }
                ComparisonOutcome::Mismatch { check } => {
                    cells.extend(std::iter::repeat_with(Cell::none).take(6));
                    cells.extend(error(check));
                }
                ComparisonOutcome::Failed { .. } => cells.extend(std::iter::repeat_with(Cell::none).take(8)),
            }
            table.row(cells);
        }
        table
    }
}

fn error(check: &Agreement) -> [Cell; 2] {
    [Cell::text(format!("{:.1e}", check.error)), Cell::text(format!("{:.2}", check.error / check.tolerance))]
}
