//! A plan of fusion beside measurements: what the model said that each pattern saves, and what it saved.

use crate::stats::rank_correlation;
use crate::table::{Align, Cell, Table};
use crate::unit::{Bytes, Milliseconds, Quantity, significant};
use serde::{Deserialize, Serialize};

type Time = Quantity<Milliseconds>;

/// The stitched program of a recipe: its plan, and how the model ranks patterns and programs beside measured times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StitchedProgram {
    /// Where the scores come from.
    pub scores: String,
    /// Candidate patterns of which the plan was chosen, and whether no plan of these scores more.
    pub candidates: u64,
    pub proven: bool,
    pub patterns: Vec<StitchedPattern>,
    pub programs: Vec<RankedProgram>,
}

/// A pattern that became a kernel; or a loop, with all patterns of its body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StitchedPattern {
    pub kernel: String,
    pub units: Vec<String>,
    /// Bytes that no longer go to memory, and launches fewer, in a step.
    pub saved_bytes: Bytes,
    pub saved_launches: u64,
    /// What it saves by the scores of the plan: the model's, or its times where it has run before.
    pub score: Time,
    /// What the model says that it saves, if that is not the score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Time>,
    /// The sum of its units' fastest times, and the kernel's; each was measured alone, its dispatch included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub separate: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stitched: Option<Time>,
}

/// A program by the model and as measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankedProgram {
    pub name: String,
    /// M(V) + φ of all kernels.
    pub model: Time,
    /// The best selection's sum of kernel times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernels: Option<Time>,
    /// The best whole step that was timed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Time>,
}

fn ms(time: Time) -> f64 {
    time.value().0
}

impl StitchedPattern {
    /// Milliseconds that it saves as measured; less than 0 where it takes longer than its units.
    pub fn saved_ms(&self) -> Option<f64> {
        Some(ms(self.separate?) - ms(self.stitched?))
    }
}

impl StitchedProgram {
    /// Spearman's rank correlation of what the model says that patterns save with what they save as measured, and over how many patterns.
    pub fn pattern_ranks(&self) -> Option<(f64, usize)> {
        let pairs: Vec<(f64, f64)> = self.patterns.iter().filter_map(|p| Some((ms(p.model.unwrap_or(p.score)), p.saved_ms()?))).collect();
        Some((rank_correlation(&pairs)?, pairs.len()))
    }

    /// The same of the model's times of programs and the times of their kernels; or of whole steps.
    pub fn program_ranks(&self, of: fn(&RankedProgram) -> Option<Time>) -> Option<(f64, usize)> {
        let pairs: Vec<(f64, f64)> = self.programs.iter().filter_map(|p| Some((ms(p.model), ms(of(p)?)))).collect();
        Some((rank_correlation(&pairs)?, pairs.len()))
    }

    /// How well the model ranks, in a sentence.
    pub fn ranks(&self) -> String {
        let part = |what: &str, found: Option<(f64, usize)>| found.map(|(rho, n)| format!("{rho:.2} over {n} {what}"));
        let parts = [
            part("patterns", self.pattern_ranks()),
            part("programs by their kernels", self.program_ranks(|p| p.kernels)),
            part("programs as whole steps", self.program_ranks(|p| p.step)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => "too little was measured to compare the model's ranking with it".into(),
            false => format!("rank correlation (Spearman) of the model with measurements: {}", parts.join(", ")),
        }
    }

    /// What was planned, in a sentence.
    pub fn plan(&self) -> String {
        let StitchedProgram { scores, candidates, proven, patterns, .. } = self;
        let proof = if *proven { "proven: no plan of these scores more" } else { "not proven" };
        let kernels = if patterns.len() == 1 { "kernel" } else { "kernels" };
        format!("{} {kernels} stitched, chosen of {candidates} candidate patterns by {scores}; {proof}", patterns.len())
    }

    /// Every pattern with its score and what it saved.
    pub fn patterns_table(&self) -> Table {
        let (left, right) = (Align::Left, Align::Right);
        let mut table = Table::new(&[
            ("stitched kernel", "", left),
            ("of", "", left),
            ("bytes saved", "", right),
            ("launches saved", "", right),
            ("score", "µs", right),
            ("separate", "µs", right),
            ("stitched", "µs", right),
            ("saved", "µs", right),
        ]);
        let us = |ms: Option<f64>| ms.map_or_else(|| Cell::text("not measured"), |ms| Cell::text(significant(1e3 * ms)).sorted_by(ms));
        for row in &self.patterns {
            let saved = row.saved_ms();
            table.row(vec![
                Cell::text(&row.kernel),
                Cell::text(row.units.join(" + ")),
                Cell::text(row.saved_bytes.to_string()).sorted_by(row.saved_bytes.0 as f64),
                Cell::text(row.saved_launches.to_string()).sorted_by(row.saved_launches as f64),
                us(Some(ms(row.score))),
                us(row.separate.map(ms)),
                us(row.stitched.map(ms)),
                us(saved).strong(saved.is_some_and(|ms| ms > 0.0)),
            ]);
        }
        table
    }

    /// Every program by the model and as measured.
    pub fn programs_table(&self) -> Table {
        let (left, right) = (Align::Left, Align::Right);
        let mut table = Table::new(&[("program", "", left), ("model", "ms", right), ("kernels", "ms", right), ("step", "ms", right)]);
        let cell = |time: Option<Time>| time.map_or_else(Cell::none, |time| Cell::text(significant(ms(time))).sorted_by(ms(time)));
        for row in &self.programs {
            table.row(vec![Cell::text(&row.name), cell(Some(row.model)), cell(row.kernels), cell(row.step)]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(score: f64, separate: f64, stitched: Option<f64>) -> StitchedPattern {
        let measured = |ms| Quantity::Measured(Milliseconds(ms));
        StitchedPattern {
            kernel: "k".into(),
            units: vec!["a".into(), "b".into()],
            saved_bytes: Bytes(8),
            saved_launches: 1,
            score: Quantity::Predicted(Milliseconds(score)),
            model: None,
            separate: Some(measured(separate)),
            stitched: stitched.map(measured),
        }
    }

    /// Scores 1, 2, 3, 4 and savings 0.1, 0.5, 0.3, 0.9: ranks 1, 2, 3, 4 and 1, 3, 2, 4, so 1 − 6·2/(4·15) = 0.8. One without a time is
    /// left out, and one that takes longer than its units has a rank all the same.
    #[test]
    fn ranks_are_of_patterns_with_times() {
        let patterns =
            vec![pattern(1.0, 1.0, Some(0.9)), pattern(2.0, 1.0, Some(0.5)), pattern(3.0, 1.0, Some(0.7)), pattern(4.0, 1.0, Some(0.1))];
        let mut found = StitchedProgram { scores: "s".into(), candidates: 9, proven: true, patterns: patterns.clone(), programs: vec![] };
        assert_eq!(found.pattern_ranks().map(|(rho, n)| ((rho * 1e9).round() / 1e9, n)), Some((0.8, 4)));
        // A score that is a time says nothing of the model.
        found.patterns[0] = StitchedPattern { model: Some(pattern(1.0, 1.0, None).score), ..pattern(9.0, 1.0, Some(0.9)) };
        assert_eq!(found.pattern_ranks().map(|(rho, n)| ((rho * 1e9).round() / 1e9, n)), Some((0.8, 4)));
        found.patterns.push(pattern(9.0, 1.0, None));
        assert_eq!(found.pattern_ranks().map(|(_, n)| n), Some(4));
        found.patterns.push(pattern(0.5, 1.0, Some(2.0)));
        // Now −1 is the least saving with the least score: 1 − 6·2/(5·24).
        assert_eq!(found.pattern_ranks().map(|(rho, n)| ((rho * 1e9).round() / 1e9, n)), Some((0.9, 5)));
        assert!(found.ranks().contains("0.90 over 5 patterns"), "{}", found.ranks());
    }
}
