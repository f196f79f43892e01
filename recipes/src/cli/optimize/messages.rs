//! Messages between the tables: fusions that pay, the accuracy of predictions, the cost of memory.

use super::race::RaceResult;
use super::summary::TimedPlan;
use crate::cli::{cells, table};
use bench::Load;
use bench::model::{CompositionRow, Coverage};
use bench::table::Table;
use bench::unit::significant;
use layouts::Selection;
use layouts::record::CacheState;

/// Each fusion of contractions with the best alternative, or with the one that replaced it.
pub fn weighed(rows: &[CompositionRow]) -> Table {
    let columns = ["composition", "holds", "composed ms", "against", "instead ms", "taken"];
    let mut found = table(&columns).words(&["holds", "against", "taken"]);
    let ms = |ms: Option<f64>| ms.map_or_else(|| "not measured".to_string(), significant);
    let mut seen: Vec<&str> = Vec::new();
    for row in rows {
        let others = rows.iter().filter(|r| r.subject == row.subject);
        let gain = |r: &CompositionRow| r.with_ms().zip(r.instead_ms()).map_or(f64::NEG_INFINITY, |(with, instead)| with - instead);
        let best = others.max_by(|a, b| a.changed.cmp(&b.changed).then(gain(a).total_cmp(&gain(b)))).unwrap_or(row);
        if seen.contains(&row.subject.as_str()) {
            continue;
        }
        seen.push(&row.subject);
        let chosen = if best.changed { best.change.clone() } else { "composed".to_string() };
        let chosen = if best.holds.is_empty() && !best.changed { "apart".to_string() } else { chosen };
        let compared = best.with_ms().and(best.instead_ms()).is_some();
        let chosen = if compared { chosen } else { format!("{chosen}, not compared") };
        found.row(cells(vec![
            row.subject.clone(),
            row.holds.join(", "),
            ms(best.with_ms()),
            best.change.clone(),
            ms(best.instead_ms()),
            chosen,
        ]));
    }
    found
}

/// Percent by which a total measured with warm caches must be off before cold ones are suggested.
const FAR: f64 = 2.0;

/// Kernels that are listed to explain a difference of totals.
const BLAMED: usize = 3;

/// Compares predictions by sums of kernel times with measured plans: their order, the difference of totals, and the kernels that cause
/// it. Kernels are timed alone and repeatedly; in a plan a kernel runs on caches that its neighbours have left.
///
/// On a busy machine other processes may cause the differences, and no conclusion is drawn.
pub fn agreement(contested: &RaceResult, choice: &Selection, cache: CacheState, sweep: Option<Load>) -> String {
    let busy = disturbed(sweep, contested.load());
    let (candidates, timed) = contested.competing();
    let measured: Vec<f64> = timed.iter().map(|t| layouts::record::median(&t.step.samples).unwrap_or(f64::NAN)).collect();
    let order = |times: &dyn Fn(usize) -> f64| {
        let mut places: Vec<usize> = (0..candidates.len()).filter(|n| !timed[*n].earlier).collect();
        places.sort_by(|a, b| times(*a).total_cmp(&times(*b)));
        places
    };
    let (expected, found) = (order(&|n| candidates[n].predicted_ms), order(&|n| measured[n]));
    let (Some(best), Some(first)) = (found.first().copied(), expected.first().copied()) else { return String::new() };
    let mut text = String::new();
    let off = 100.0 * (measured[first] / candidates[first].predicted_ms - 1.0);
    let samples = &timed[first].step.samples;
    let extreme = |pick: fn(f64, f64) -> f64| samples.iter().copied().reduce(pick).unwrap_or(f64::NAN);
    let predicted = candidates[first].predicted_ms;
    if !(extreme(f64::min)..=extreme(f64::max)).contains(&predicted) {
        let why = if let Some(busy) = &busy {
            format!("{busy}; nothing is to be concluded from that")
        } else if off > 0.0 {
            let empties = cfg!(target_arch = "x86_64");
            let hint = if empties && cache == CacheState::Warm && off > FAR {
                "; --cold times them as a step finds them that does not fit the caches"
            } else {
                ""
            };
            format!("kernels were timed alone, with {cache} caches{hint}")
        } else {
            "the machine was slower while kernels were timed".into()
        };
        text += &format!("predicted and measured total differ by {off:+.1}%, more than the spread: {why}\n");
        // The first candidate is the choice; a kernel is launched once in a step.
        let alone = |name: &str| choice.kernels.iter().find(|k| k.kernel == name).map(|k| k.ms);
        let launches = timed[0].launches.iter();
        let mut apart: Vec<(f64, &str, f64, f64)> = launches
            .filter_map(|(name, _, samples)| {
                let (alone, within) = (alone(name)?, layouts::record::median(samples)?);
                Some((within - alone, name.as_str(), alone, within))
            })
            .collect();
        apart.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()).then(a.1.cmp(b.1)));
        for (_, name, alone, within) in apart.into_iter().take(if first == 0 && busy.is_none() { BLAMED } else { 0 }) {
            text += &format!("  {name}: {} ms alone, {} ms in the plan\n", significant(alone), significant(within));
        }
    }
    if best != first {
        let gain = 100.0 * (1.0 - measured[best] / measured[first]);
        text +=
            &format!("timed as wholes the order changes: {} is {gain:.1}% faster than {}\n", candidates[best].name, candidates[first].name);
    }
    text
}

/// The result in a few lines.
pub fn summary(contested: &RaceResult, coverage: &Coverage) -> String {
    let own = &contested.timed[contested.taken];
    let ms = layouts::record::median(&own.step.samples).map_or_else(String::new, significant);
    let mut lines = vec![format!("\nresult: {} takes {ms} ms a step", own.name)];
    lines.extend(contested.beside());
    lines.extend(Some(own.done_once).filter(|once| !once.is_nothing()).map(|once| once.to_string()));
    lines.push(coverage.relative());
    lines.join("\n        ")
}

/// The message about times taken on a busy machine; `None` on a quiet one.
fn disturbed(sweep: Option<Load>, race: Option<Load>) -> Option<String> {
    let part = |what: &str, load: Option<Load>| load.map(|load| format!("{load} while {what} were timed"));
    let busy = [sweep, race].into_iter().flatten().any(|load| load.busy());
    let parts: Vec<String> = [part("kernels", sweep), part("plans", race)].into_iter().flatten().collect();
    busy.then(|| format!("the machine was busy: {}", parts.join(", ")))
}

/// Why the plan that was taken is not the fastest.
pub fn why_not_the_fastest(taken: &TimedPlan, fastest: &TimedPlan) -> String {
    let longer = 100.0 * (taken.step_ms / fastest.step_ms - 1.0);
    let megabytes = |plan: &TimedPlan| significant(plan.peak_bytes as f64 / 1e6);
    let gain = if taken.dispatches < fastest.dispatches {
        format!("it makes {} dispatches instead of {}", taken.dispatches, fastest.dispatches)
    } else {
        format!("it needs {} MB instead of {} MB", megabytes(taken), megabytes(fastest))
    };
    format!("{} is taken: {gain} and takes {longer:.1}% more time than {}; --memory-slack decides", taken.plan, fastest.plan)
}

/// The plan that would be taken for its memory, and the option that takes it.
pub fn lean(lean: &TimedPlan, taken: &TimedPlan, fastest: &TimedPlan) -> String {
    let slack = 100.0 * (lean.step_ms / fastest.step_ms - 1.0);
    format!(
        "{} needs {} MB instead of {} MB and {slack:.1}% more time than the fastest: --memory-slack {:.0}% takes it",
        lean.plan,
        significant(lean.peak_bytes as f64 / 1e6),
        significant(taken.peak_bytes as f64 / 1e6),
        slack.ceil(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_is_reported_as_noise() {
        let load = |others| Some(Load { others, cores: 2, seconds: 1.0 });
        assert_eq!(disturbed(load(0.01), load(0.0)), None);
        assert_eq!(disturbed(None, None), None);
        let said = disturbed(load(1.3), load(0.02)).unwrap_or_default();
        assert!(
            said.contains("others used 1.3 of 2 cores while kernels were timed") && said.contains("0.0 of 2 cores while plans"),
            "{said}"
        );
    }
}
