//! The few numbers that come first: the results, and their distance from the limits.

use crate::model::{ContenderTimes, Report, quotient};
use crate::table::Cell;
use crate::unit::{Milliseconds, significant};

pub struct Headline {
    pub value: String,
    pub label: String,
    /// The basis of the number.
    pub basis: String,
}

pub fn headlines(report: &Report) -> Vec<Headline> {
    [step(report), rival(report), bytes(report), gap(report), coverage(report)].into_iter().flatten().collect()
}

fn ours(report: &Report) -> Option<&ContenderTimes> {
    report.contenders.iter().find(|c| c.ours)
}

fn step(report: &Report) -> Option<Headline> {
    let ours = ours(report)?;
    let summary = ours.step.as_ref()?.summary().ok()?;
    Some(Headline {
        value: Milliseconds(summary.median).to_string(),
        label: "training step, forward and backward".into(),
        basis: format!("measured median of {} runs, spread {:.1}%", summary.count, 100.0 * summary.spread()),
    })
}

/// The speed relative to the fastest baseline that is not the plan itself. Other contenders are nearly as fast, so a comparison with them
/// says little.
fn rival(report: &Report) -> Option<Headline> {
    let own = ours(report)?;
    let mine = own.step.as_ref()?;
    let others = report.contenders.iter().filter(|c| c.baseline && !c.ours).filter_map(|c| {
        let step = c.step.as_ref()?;
        Some((c, step, step.median().ok()?.0.0))
    });
    let (rival, step, _) = others.min_by(|a, b| a.2.total_cmp(&b.2))?;
    let ratio = mine.speedup_over(step).ok()?;
    let (lower, upper) = (ratio.interval.lower, ratio.interval.upper);
    let sure = if lower <= 1.0 && upper >= 1.0 { ": no difference beyond the spread" } else { "" };
    let itself = if own.baseline { ". The plan is the unfused program: nothing that was fused is faster here" } else { "" };
    Some(Headline {
        value: format!("{}×", significant(ratio.median)),
        label: format!("as fast as {}", rival.name),
        basis: format!("measured; 95% interval {} to {}{sure}{itself}", significant(lower), significant(upper)),
    })
}

/// The bytes of the programs that were timed. The table of movement has every other definition of the baseline.
fn bytes(report: &Report) -> Option<Headline> {
    let (first, last) = (report.waterfall.first()?, report.waterfall.last()?);
    let (before, after) = (first.bytes?, last.bytes?);
    let reduction = 100.0 - 100.0 * quotient(after.value().0 as f64, before.value().0 as f64)?;
    Some(Headline {
        value: format!("{:.1}%", reduction.abs()),
        label: if reduction < 0.0 { "more bytes moved" } else { "fewer bytes moved" }.into(),
        basis: format!("{}, {} → {}; {} against {}", after.origin(), before.value(), after.value(), last.name, first.name),
    })
}

fn gap(report: &Report) -> Option<Headline> {
    let rows = report.selection.iter().filter_map(|s| Some((s, s.gap()?)));
    let (row, gap) = rows.min_by(|a, b| a.0.total.value().0.total_cmp(&b.0.total.value().0))?;
    Some(Headline {
        value: format!("{gap:.1}%"),
        label: "above the sum of per-kernel minima".into(),
        basis: format!("{}, {} against {}", row.total.origin(), row.total.value(), row.lower_bound.value()),
    })
}

/// The scope of a proof, whether there is one, and the robustness of the choice: the three are only stated together.
fn coverage(report: &Report) -> Option<Headline> {
    let c = report.coverage.filter(|c| c.enumerated > 0)?;
    let best = report.selection.iter().min_by(|a, b| a.total.value().0.total_cmp(&b.total.value().0));
    let proven = match best.map(|row| row.proven) {
        Some(true) => "; by times of kernels alone the choice is proven the least, relative to what was measured",
        Some(false) => "; by times of kernels alone the choice is not proven the least, not even relative to what was measured",
        None => "",
    };
    let sure = report.certainty.map(|c| format!("; {c}")).unwrap_or_default();
    Some(Headline {
        value: format!("{} of {}", Cell::count(c.full).text, Cell::count(c.enumerated).text),
        label: "configurations timed".into(),
        basis: format!("{} were ruled out without being timed in full{proven}{sure}", Cell::count(c.ruled_out()).text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Certainty, Coverage, SelectionRow};
    use crate::protocol::{Cache, Timing};
    use crate::unit::Quantity;

    /// "Proven" never stands alone: its scope and the robustness are stated with it.
    #[test]
    fn a_proof_states_its_scope() {
        let ms = |ms: f64| Quantity::Predicted(Milliseconds(ms));
        let coverage = Coverage { enumerated: 2_600_000_000_000_000, full: 58, not_reached: 2_599_999_999_999_942, ..Coverage::default() };
        let row = |proven| SelectionRow { method: "exact".into(), total: ms(1.0), lower_bound: ms(1.0), proven };
        let basis = |proven, certainty| {
            let report = Report { selection: vec![row(proven)], coverage: Some(coverage), certainty, ..Report::default() };
            assert!(gap(&report).is_some_and(|h| !h.basis.contains("proven")), "it stands where it is relative to something");
            headlines(&report).last().map(|h| format!("{} {}: {}", h.value, h.label, h.basis)).unwrap_or_default()
        };
        let certainty = Some(Certainty { redraws: 50, best: 0.84, worst_regret: 0.031 });
        let said = basis(true, certainty);
        for part in ["58 of 2.60e15 configurations timed", "proven the least, relative to what was measured", "84% of 50 draws", "3.1%"] {
            assert!(said.contains(part), "no `{part}` in {said}");
        }
        assert!(basis(false, certainty).contains("is not proven the least"));
    }

    /// A ratio within the spread is no difference, and a plan that is a baseline is compared with the other one.
    #[test]
    fn a_baseline_that_is_the_plan_is_not_compared_with_itself() {
        let contender = |name: &str, ours, baseline, ms: [f64; 3]| ContenderTimes {
            name: name.into(),
            ours,
            baseline,
            forward: None,
            backward: None,
            step: Some(Timing { name: name.into(), cache: Cache::Warm, samples: ms.to_vec() }),
            peak: None,
        };
        let report = |plan_is_baseline: bool| Report {
            contenders: vec![
                contender("fused", !plan_is_baseline, false, [2.0, 2.1, 2.2]),
                contender("unfused, uniform", plan_is_baseline, true, [1.9, 2.05, 2.3]),
                contender("unfused, PyTorch's", false, true, [4.0, 4.1, 4.2]),
            ],
            ..Report::default()
        };
        let headline = |plan_is_baseline| rival(&report(plan_is_baseline)).map(|h| (h.label, h.basis)).unwrap_or_default();
        let (label, basis) = headline(false);
        assert_eq!(label, "as fast as unfused, uniform");
        assert!(basis.contains("no difference beyond the spread"), "{basis}");
        let (label, basis) = headline(true);
        assert_eq!(label, "as fast as unfused, PyTorch's");
        assert!(basis.contains("The plan is the unfused program") && !basis.contains("no difference"), "{basis}");
    }

    #[test]
    fn partial_outcomes_are_shown_where_counts_saturate() {
        let coverage = |enumerated, not_reached| Coverage { enumerated, identical: 7, full: 3, not_reached, ..Coverage::default() };
        for (enumerated, not_reached) in [(110, 100), (u64::MAX, u64::MAX)] {
            let report = Report { coverage: Some(coverage(enumerated, not_reached)), ..Report::default() };
            let last = headlines(&report).pop().map(|h| (h.value, h.basis)).unwrap_or_default();
            assert!(last.0.starts_with("3 of ") && last.1.starts_with("7 were ruled out"), "{last:?}");
        }
    }
}
