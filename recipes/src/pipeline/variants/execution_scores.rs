//! Scores of patterns of fusion by execution: what a pattern's kernel saves of the times of its units, each run alone.
//!
//! *FusionStitching* (arXiv:1911.11576, section 4.3): f(P) = Σ K(op) + (N−1)·φ − K(P). The times here are of kernels with their dispatch,
//! so they hold the launches.

use std::collections::BTreeMap;

/// How much a model's score may count beside times, at least: a pattern that nobody has run may be unlike those that were.
const LEAST: f64 = 0.1;

/// A pattern that was run: its [`structure`](transforms::stitch::structure), and picoseconds of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunPattern {
    pub form: String,
    /// What the model says that it saves, and what of its saving comes from others' computing again what it does not write.
    pub model_ps: i64,
    pub more_ps: i64,
    /// The times of its units, each alone, less that of its kernel.
    pub saved_ps: i64,
}

/// What patterns save by the times of their kernels, and what that says of the model's scores of all others.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutionScores {
    /// By [`structure`](transforms::stitch::structure): picoseconds that one run of the pattern saves, negative where it loses.
    pub scores: BTreeMap<String, i64>,
    /// What the scores of patterns that were not run are multiplied by, from 0.1 to 1.
    pub trust: f64,
}

impl Default for ExecutionScores {
    fn default() -> Self {
        ExecutionScores { scores: BTreeMap::new(), trust: 1.0 }
    }
}

impl ExecutionScores {
    /// Adds patterns. Of equal ones the best counts.
    pub fn and(&self, run: impl IntoIterator<Item = RunPattern>) -> Self {
        let mut scores = self.scores.clone();
        let (mut believed, mut saved) = (0.0, 0.0);
        for pattern in run {
            let own = pattern.saved_ps - pattern.more_ps;
            believed += pattern.model_ps as f64;
            saved += own as f64;
            scores.entry(pattern.form).and_modify(|known| *known = own.max(*known)).or_insert(own);
        }
        let trust = if believed > 0.0 { (saved / believed).clamp(LEAST, 1.0) } else { self.trust };
        ExecutionScores { scores, trust: trust.min(self.trust) }
    }

    /// The score of one run of a pattern, of which the model says `by_model`.
    pub fn score(&self, form: &str, by_model: i64) -> i64 {
        self.scores.get(form).copied().unwrap_or_else(|| (by_model as f64 * self.trust).round() as i64)
    }

    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn run(form: &str, model_ps: i64, more_ps: i64, saved_ps: i64) -> RunPattern {
        RunPattern { form: form.into(), model_ps, more_ps, saved_ps }
    }

    #[test]
    fn patterns_that_ran_have_their_times_and_others_less_of_the_models() {
        let none = ExecutionScores::default();
        assert_eq!(none.score("a", 100), 100);
        let ran = none.and([run("a", 100, 0, 70), run("b", 60, 0, -10), run("a", 40, 30, 90)]);
        // The second `a` saved 90, of which 30 because others compute again what it does not write.
        assert_eq!((ran.score("a", 100), ran.score("b", 60)), (70, -10));
        assert_eq!(ran.trust, 120.0 / 200.0);
        assert_eq!(ran.score("c", 50), 30);
        // Trust never rises again, and never falls below a tenth.
        assert_eq!(ran.and([run("d", 10, 0, 1_000)]).trust, 0.6);
        assert_eq!(ran.and([run("d", 1_000, 0, -500)]).trust, 0.1);
    }
}
