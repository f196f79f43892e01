//! The time that a command has for measuring, and which of a recipe's programs that time can pay for.
//!
//! A program is of use only when each of its kernels has a time, and compiling a kernel takes far longer than timing it. So the cost of a
//! new kernel is learned from the programs that were swept already. A program whose new kernels would exceed the remaining time is
//! neither made nor swept.

use crate::pipeline::PipelineError;
use crate::pipeline::parallel::in_order;
use bench::unit::significant;
use kernels::{KernelClass, KernelSpecs};
use layouts::Store;
use rayon::prelude::*;
use sdfg::{Sdfg, Unit};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The time left for measuring, and the cost of new kernels.
#[derive(Clone, Debug, Default)]
pub struct MeasurementBudget {
    until: Option<Instant>,
    /// Kept for the last programs.
    reserved: Duration,
    /// Seconds that the first times of `kernels` kernels took.
    seconds: f64,
    kernels: usize,
    /// Fingerprints of kernels that have times or are about to get them. Kernels that differ only in names share a fingerprint.
    known: BTreeSet<String>,
}

/// The kernels of a program by content hash, each with its fingerprint.
pub struct MarkedKernels(Vec<(String, String)>);

impl MarkedKernels {
    /// # Errors
    /// A program with a unit that is no kernel.
    pub fn of(program: &Sdfg) -> Result<Self, PipelineError> {
        let specs = KernelSpecs::of(program);
        let marked = |unit: &Unit| {
            let spec = specs.spec(unit)?;
            let key = spec.key();
            let mark = KernelClass::of(&spec).map_or_else(|| key.clone(), |family| family.fingerprint(""));
            Ok::<_, PipelineError>((key, mark))
        };
        Ok(MarkedKernels(in_order(program.units().par_iter().map(|(_, _, unit)| marked(unit)))?))
    }
}

impl MeasurementBudget {
    /// A budget that ends at an instant, or never.
    pub fn until(until: Option<Instant>) -> Self {
        MeasurementBudget { until, ..MeasurementBudget::default() }
    }

    pub fn end(&self) -> Option<Instant> {
        self.until
    }

    /// The time left without the reserve; `None` for a budget without end.
    pub fn left(&self) -> Option<Duration> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now()).saturating_sub(self.reserved);
        self.until.map(left)
    }

    /// A share of a budget, as far as time is left.
    pub fn share(&self, share: Option<Duration>) -> Option<Duration> {
        [share, self.left()].into_iter().flatten().min()
    }

    /// Fingerprints of a program's kernels that have no time yet; kernels that differ only in names share one.
    ///
    /// # Errors
    /// A program with a unit that is no kernel.
    pub fn new_kernels(&self, program: &Sdfg, store: &Store) -> Result<BTreeSet<String>, PipelineError> {
        Ok(self.new_among(&MarkedKernels::of(program)?, store))
    }

    /// The same of kernels that are marked already.
    pub fn new_among(&self, MarkedKernels(kernels): &MarkedKernels, store: &Store) -> BTreeSet<String> {
        let measured = |key: &str| store.of(key).any(|m| store.ms(m).is_some());
        let is_new = |(key, mark): &&(String, String)| !measured(key) && !self.known.contains(mark);
        kernels.iter().filter(is_new).map(|(_, mark)| mark.clone()).collect()
    }

    /// Marks kernels as known, whether or not their cost was learned.
    pub fn know(&mut self, new: BTreeSet<String>) {
        self.known.extend(new);
    }

    /// Learns that the first times of `kernels` new kernels took `time`.
    pub fn learn(&mut self, kernels: usize, time: Duration) {
        self.kernels += kernels;
        self.seconds += time.as_secs_f64();
    }

    /// The learned cost of first times for `kernels` new kernels; zero if nothing was learned.
    pub fn cost(&self, kernels: usize) -> Duration {
        Duration::try_from_secs_f64(self.seconds / self.kernels.max(1) as f64 * kernels as f64).unwrap_or_default()
    }

    /// Reserves the cost of `kernels` new kernels.
    pub fn reserve(&mut self, kernels: usize) {
        self.reserved = self.cost(kernels);
    }

    /// Why the remaining time does not suffice for `kernels` new kernels; `None` if it does.
    pub fn too_dear(&self, kernels: usize) -> Option<String> {
        let (left, cost) = (self.left()?, self.cost(kernels));
        let seconds = |time: Duration| significant(time.as_secs_f64());
        let there = if left.is_zero() { "--budget is used up".to_string() } else { format!("of --budget {} s are left", seconds(left)) };
        let wanted = format!("its {kernels} new kernels would take about {} s to make and measure once", seconds(cost));
        (kernels > 0 && (cost > left || left.is_zero())).then(|| format!("{there}, and {wanted}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_beyond_the_budget_are_not_begun() {
        let second = Duration::from_secs(1);
        let mut time = MeasurementBudget::until(Instant::now().checked_add(100 * second));
        assert!(time.too_dear(1_000_000).is_none(), "nothing is known yet");
        time.learn(10, 20 * second);
        assert_eq!(time.cost(5), 10 * second);
        assert!(time.too_dear(40).is_none());
        assert!(time.too_dear(60).is_some_and(|why| why.contains("60 new kernels would take about 120 s")));
        time.reserve(20);
        assert!(time.too_dear(40).is_some() && time.too_dear(20).is_none());
        assert!(time.share(Some(second)) == Some(second) && time.share(None) > Some(50 * second));
        // Known kernels cost nothing, even when the time is up.
        let mut over = MeasurementBudget::until(Some(Instant::now()));
        over.learn(1, second);
        assert!(over.too_dear(0).is_none() && over.too_dear(1).is_some());
        assert!(MeasurementBudget::default().too_dear(1_000_000).is_none());
    }
}
