//! The few numbers that come first: what was reached, and how far it is from what could be.

use crate::model::{ContenderTimes, Report, quotient};
use crate::unit::{Milliseconds, significant};

pub struct Headline {
    pub value: String,
    pub label: String,
    /// What the number rests on.
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

/// Against the fastest baseline. Plans that were not taken are nearly as fast; how near says little.
fn rival(report: &Report) -> Option<Headline> {
    let mine = ours(report)?.step.as_ref()?;
    let others = report.contenders.iter().filter(|c| c.baseline).filter_map(|c| {
        let step = c.step.as_ref()?;
        Some((c, step, step.median().ok()?.0.0))
    });
    let (rival, step, _) = others.min_by(|a, b| a.2.total_cmp(&b.2))?;
    let ratio = mine.speedup_over(step).ok()?;
    Some(Headline {
        value: format!("{}×", significant(ratio.median)),
        label: format!("as fast as {}", rival.name),
        basis: format!("measured; 95% interval {} to {}", significant(ratio.interval.lower), significant(ratio.interval.upper)),
    })
}

/// Of the programs that were timed. Every other definition of the baseline stands in the table of movement.
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
        basis: format!("{}, {} against {}{}", row.total.origin(), row.total.value(), row.lower_bound.value(), proof(row.proven)),
    })
}

fn proof(proven: bool) -> &'static str {
    if proven { "; proven optimal" } else { "" }
}

/// A share would say little: spaces are larger than any sweep.
fn coverage(report: &Report) -> Option<Headline> {
    let c = report.coverage.filter(|c| c.enumerated > 0)?;
    // What there is may be more than can be counted: then no difference says what became of some.
    let settled = [c.identical, c.bounded_out, c.raced, c.full, c.unfit].into_iter().fold(0, u64::saturating_add);
    Some(Headline {
        value: settled.to_string(),
        label: "configurations settled".into(),
        basis: format!("{:.2e} enumerated, {} measured in full", c.enumerated as f64, c.full),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Coverage;

    #[test]
    fn what_became_of_some_is_said_where_not_all_can_be_counted() {
        let coverage = |enumerated, not_reached| Coverage { enumerated, identical: 7, full: 3, not_reached, ..Coverage::default() };
        for (enumerated, not_reached) in [(110, 100), (u64::MAX, u64::MAX)] {
            let report = Report { coverage: Some(coverage(enumerated, not_reached)), ..Report::default() };
            assert_eq!(headlines(&report).last().map(|h| h.value.as_str()), Some("10"));
        }
    }
}
