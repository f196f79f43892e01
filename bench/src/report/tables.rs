//! The report's tables, for the page and for the terminal alike.

use crate::model::{
    Bound, CompositionPart, CompositionRow, FusionRefusal, KernelComparison, MovementRow, OperatorRow, ProductRow, Report, ReportedPolicy,
    Time, quotient,
};
use crate::protocol::Timing;
use crate::table::{Align, Cell, Table};
use crate::unit::{Bytes, Flop, Milliseconds, Quantity, prefixed, significant};
use Align::{Left, Right};
use sdfg::Direction;

fn bytes(value: Bytes) -> Cell {
    Cell::text(value.to_string()).sorted_by(value.0 as f64)
}

fn flop(value: Flop) -> Cell {
    Cell::text(value.to_string()).sorted_by(value.0 as f64)
}

fn pass(pass: Direction) -> Cell {
    Cell::text(match pass {
        Direction::Forward => "forward",
        Direction::Backward => "backward",
    })
}

/// Predicted times carry a `p`, as the note below every table explains.
fn time(value: Option<Time>) -> Cell {
    value.map_or_else(Cell::none, |t| {
        let ms = t.value().0;
        let cell = Cell::text(significant(ms)).sorted_by(ms);
        if t.is_measured() { cell } else { cell.with_suffix(" p") }
    })
}

fn percent(part: f64, whole: f64) -> Cell {
    Cell::maybe(quotient(100.0 * part, whole), 1)
}

fn factor(value: Option<f64>) -> Cell {
    Cell::maybe(value, 2)
}

/// Table III, for operators or for kernels. The larger of % of peak and MUE is strong: it names the limit.
pub fn operators(rows: &[OperatorRow], holding: &str) -> Table {
    let mut table = Table::new(&[
        ("name", "", Left),
        ("pass", "", Left),
        ("class", "", Left),
        ("flop", "", Right),
        ("input", "el.", Right),
        ("output", "el.", Right),
        ("bytes", "", Right),
        ("flop/byte", "", Right),
        ("unfused", "ms", Right),
        ("ours", "ms", Right),
        ("speedup", "×", Right),
        ("peak", "%", Right),
        ("MUE", "%", Right),
        ("Q/D", "", Right),
        ("B/B̂", "", Right),
        ("bound by", "", Left),
        (holding, "", Left),
    ]);
    for row in rows {
        let bound = row.bound();
        let elements = |n: u64| Cell::text(prefixed(n, "").trim_end()).sorted_by(n as f64);
        let held = if row.holds.is_empty() { row.kernel.clone().unwrap_or_default() } else { row.holds.join(", ") };
        table.row(vec![
            Cell::text(&row.name),
            pass(row.pass),
            Cell::text(row.class.to_string()),
            flop(row.flop),
            elements(row.input_elements),
            elements(row.output_elements),
            bytes(row.bytes),
            row.flop_per_byte().map_or_else(Cell::none, |f| Cell::text(significant(f)).sorted_by(f)),
            time(row.unfused),
            time(row.ours),
            factor(row.speedup()),
            Cell::maybe(row.percent_of_peak, 1).strong(bound == Some(Bound::Compute)),
            Cell::maybe(row.mue.map(|m| m.percent()), 1).strong(matches!(bound, Some(Bound::Memory | Bound::Caches))),
            factor(row.mue.map(|m| m.io)),
            factor(row.mue.map(|m| m.bandwidth)),
            match bound {
                Some(Bound::Memory) => Cell::text("memory"),
                Some(Bound::Caches) => Cell::text("caches"),
                Some(Bound::Compute) => Cell::text("compute"),
                None => Cell::none(),
            },
            Cell::text(held),
        ]);
    }
    table
}

/// Kernels of the plan, and the kernels of the unfused program that together compute the same. Every kernel of both is in one row, so
/// that the rows add up.
pub fn comparison(rows: &[KernelComparison]) -> Table {
    let mut table = Table::new(&[
        ("kernels of the plan", "", Left),
        ("unfused", "ms", Right),
        ("ours", "ms", Right),
        ("speedup", "×", Right),
        ("compute the same as these unfused kernels", "", Left),
    ]);
    let names = |names: &[String], none: &str| if names.is_empty() { none.to_string() } else { names.join(" + ") };
    for row in rows {
        table.row(vec![
            Cell::text(names(&row.kernels, "no kernel")),
            time(row.unfused),
            time(row.ours),
            factor(row.speedup()),
            Cell::text(names(&row.operators, "nothing")),
        ]);
    }
    if !rows.is_empty() {
        let before = KernelComparison::total(rows, |row| &row.operators, |row| row.unfused);
        let after = KernelComparison::total(rows, |row| &row.kernels, |row| row.ours);
        let ms = |ms: Option<f64>| ms.map_or_else(Cell::none, |ms| Cell::text(significant(ms)).sorted_by(ms).strong(true));
        let speedup = before.zip(after).and_then(|(before, after)| quotient(before, after));
        table.total = Some(vec![Cell::text("all").strong(true), ms(before), ms(after), factor(speedup).strong(true), Cell::default()]);
    }
    table
}

/// The tensors that add up to Q of each kernel.
pub fn tensors(rows: &[OperatorRow]) -> Table {
    let mut table = Table::new(&[("kernel", "", Left), ("Q", "", Right), ("tensors", "", Left)]);
    for row in rows.iter().filter(|r| !r.moves.is_empty()) {
        let list: Vec<String> = row.moves.iter().map(|t| format!("{} {}", t.tensor, t.bytes)).collect();
        table.row(vec![Cell::text(&row.name), bytes(row.moves.iter().map(|t| t.bytes).sum()), Cell::text(list.join(", "))]);
    }
    table
}

pub fn waterfall(report: &Report) -> Table {
    let mut table = Table::new(&[
        ("stage", "", Left),
        ("launches", "", Right),
        ("bytes", "", Right),
        ("time", "ms", Right),
        ("bytes of the first", "%", Right),
        ("time of the first", "%", Right),
        ("what changed", "", Left),
    ]);
    let first_bytes = report.waterfall.iter().find_map(|s| s.bytes).map_or(0.0, |b| b.value().0 as f64);
    let times = || report.waterfall.iter().filter_map(|s| s.time);
    let first_time = |like: Quantity<Milliseconds>| times().find(|t| t.is_measured() == like.is_measured()).map_or(0.0, |t| t.value().0);
    for step in &report.waterfall {
        table.row(vec![
            Cell::text(&step.name),
            Cell::maybe(step.launches.map(|l| l as f64), 0),
            step.bytes.map_or_else(Cell::none, |b| bytes(b.value()).with_suffix(if b.is_measured() { "" } else { " p" })),
            time(step.time),
            step.bytes.map_or_else(Cell::none, |b| percent(b.value().0 as f64, first_bytes)),
            step.time.map_or_else(Cell::none, |t| percent(t.value().0, first_time(t))),
            Cell::text(&step.note),
        ]);
    }
    table
}

/// Table I.
pub fn classes(report: &Report) -> Table {
    let mut table = Table::new(&[
        ("class", "", Left),
        ("flop", "", Right),
        ("flop", "%", Right),
        ("unfused time", "%", Right),
        ("our time", "%", Right),
        ("unfused", "ms", Right),
        ("ours", "ms", Right),
        ("speedup", "×", Right),
    ]);
    let total: Flop = report.classes.iter().map(|c| c.flop).sum();
    let sum =
        |pick: fn(&crate::model::ClassShare) -> Option<Time>| -> f64 { report.classes.iter().filter_map(pick).map(|t| t.value().0).sum() };
    let (before, after) = (sum(|c| c.unfused), sum(|c| c.ours));
    for share in &report.classes {
        let part = |t: Option<Time>, whole| t.map_or_else(Cell::none, |t| percent(t.value().0, whole));
        table.row(vec![
            Cell::text(share.class.to_string()),
            flop(share.flop),
            percent(share.flop.0 as f64, total.0 as f64),
            part(share.unfused, before),
            part(share.ours, after),
            time(share.unfused),
            time(share.ours),
            // A kernel of the plan may hold operators of other classes, so only the sums over all classes are comparable.
            Cell::default(),
        ]);
    }
    let all = |pick: fn(&crate::model::ClassShare) -> Option<Time>, sum: f64| {
        let known = !report.classes.is_empty() && report.classes.iter().all(|c| pick(c).is_some());
        if known { Cell::text(significant(sum)).sorted_by(sum) } else { Cell::none() }
    };
    if !report.classes.is_empty() {
        let (before, after) = (all(|c| c.unfused, before), all(|c| c.ours, after));
        let speedup = before.sort.zip(after.sort).and_then(|(before, after)| quotient(before, after));
        let empty = Cell::default;
        table.total = Some(vec![Cell::text("all").strong(true), flop(total), empty(), empty(), empty(), before, after, factor(speedup)]);
    }
    table
}

/// Where the time of the command went.
pub fn phases(report: &Report) -> Table {
    let mut table = Table::new(&[("phase", "", Left), ("wall clock", "s", Right), ("processor", "s", Right)]);
    for row in &report.phases {
        table.row(vec![Cell::text(&row.phase), Cell::text(format!("{:.2}", row.wall_s)), Cell::text(format!("{:.2}", row.cpu_s))]);
    }
    table
}

/// Table II.
pub fn algebraic(report: &Report) -> Table {
    let columns = [
        ("can be stacked", "", Left),
        ("variant", "", Left),
        ("forward", "ms", Right),
        ("backward", "ms", Right),
        ("in the plan", "", Left),
    ];
    // Programs may have nothing to stack.
    let from = usize::from(report.algebraic.iter().all(|row| row.site.is_empty()));
    let mut table = Table::new(&columns[from..]);
    for row in &report.algebraic {
        let cells = [
            Cell::text(&row.site),
            Cell::text(&row.variant).strong(row.chosen),
            time(row.forward),
            time(row.backward),
            Cell::text(if row.chosen { "yes" } else { "" }),
        ];
        table.row(cells.into_iter().skip(from).collect());
    }
    table
}

/// Each fusion of contractions and its alternative: sums of the best times of kernels that only one of both programs runs.
pub fn compositions(rows: &[CompositionRow]) -> Table {
    let mut table = Table::new(&[
        ("composition", "", Left),
        ("holds", "", Left),
        ("against", "", Left),
        ("composed", "ms", Right),
        ("instead", "ms", Right),
        ("composed ÷ instead", "×", Right),
        ("in the mixed program", "", Left),
        ("kernels", "", Left),
        ("kernels instead", "", Left),
    ]);
    let ms = |value: Option<f64>| value.map_or_else(|| Cell::text("not measured"), |ms| Cell::text(significant(ms)).sorted_by(ms));
    let names = |parts: &[CompositionPart]| {
        let name = |p: &CompositionPart| p.time.map_or_else(|| p.kernel.clone(), |t| format!("{} {}", p.kernel, significant(t.value().0)));
        parts.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    for row in rows {
        let (with, instead) = (row.with_ms(), row.instead_ms());
        // Another of several changes to one kernel may have been made.
        let made = rows.iter().find(|r| r.changed && r.subject == row.subject);
        let decision = match (made, row.holds.is_empty()) {
            (Some(made), _) => format!("no: {}", made.change),
            (None, false) => "yes".to_string(),
            (None, true) => "not stacked".to_string(),
        };
        let faster = with.zip(instead).map(|(with, instead)| with <= instead);
        let note = if row.note.is_empty() { decision } else { format!("{decision}; {}", row.note) };
        table.row(vec![
            Cell::text(&row.subject),
            Cell::text(row.holds.join(", ")),
            Cell::text(&row.change),
            ms(with).strong(faster == Some(true)),
            ms(instead).strong(faster == Some(false)),
            factor(with.zip(instead).and_then(|(with, instead)| quotient(with, instead))),
            Cell::text(note),
            Cell::text(names(&row.with)),
            Cell::text(names(&row.instead)),
        ]);
    }
    table
}

/// The cost of the library's own choice of algorithms, and the gain by tensor cores (Fig. 4).
pub fn products(rows: &[ProductRow]) -> Table {
    let mut table = Table::new(&[
        ("contraction", "", Left),
        ("measured", "", Right),
        ("descriptions", "", Right),
        ("best", "ms", Right),
        ("library's choice", "ms", Right),
        ("loss", "%", Right),
        ("largest loss", "%", Right),
        ("plain units", "ms", Right),
        ("plain ÷ best", "×", Right),
    ]);
    let count = |n: u64| Cell::text(n.to_string()).sorted_by(n as f64);
    for row in rows {
        table.row(vec![
            Cell::text(&row.kernel),
            count(row.measured),
            count(row.descriptions),
            time(Some(row.best)).strong(true),
            time(row.first),
            Cell::maybe(row.loss().map(|loss| 100.0 * loss), 2),
            Cell::maybe(row.worst.map(|worst| 100.0 * (worst - 1.0)), 2),
            time(row.plain),
            factor(row.gain()),
        ]);
    }
    table
}

/// Tables IV and V.
pub fn totals(report: &Report) -> Table {
    let mut table = Table::new(&[
        ("contender", "", Left),
        ("forward", "ms", Right),
        ("backward", "ms", Right),
        ("step", "ms", Right),
        ("95% interval", "ms", Right),
        ("spread", "%", Right),
        ("runs", "", Right),
        ("cache", "", Left),
        ("theirs ÷ ours", "×", Right),
        ("lower end", "×", Right),
        ("peak", "MB", Right),
    ]);
    let ours = report.contenders.iter().find(|c| c.ours).and_then(|c| c.step.as_ref());
    for contender in &report.contenders {
        let median = |timing: &Option<Timing>| match timing.as_ref().and_then(|t| t.median().ok()) {
            Some(ms) => Cell::text(significant(ms.0.0)).sorted_by(ms.0.0),
            None => Cell::none(),
        };
        let summary = contender.step.as_ref().and_then(|t| t.summary().ok());
        let ratio = if contender.ours { None } else { ours.zip(contender.step.as_ref()).and_then(|(o, t)| o.speedup_over(t).ok()) };
        table.row(vec![
            Cell::text(&contender.name).strong(contender.ours),
            median(&contender.forward),
            median(&contender.backward),
            median(&contender.step).strong(contender.ours),
            summary.map_or_else(Cell::none, |s| {
                Cell::text(format!("{} – {}", significant(s.interval.lower), significant(s.interval.upper))).sorted_by(s.interval.lower)
            }),
            Cell::maybe(summary.map(|s| 100.0 * s.spread()), 1),
            Cell::maybe(summary.map(|s| s.count as f64), 0),
            contender.step.as_ref().map_or_else(Cell::none, |t| Cell::text(t.cache.to_string())),
            factor(ratio.map(|r| r.median)),
            factor(ratio.map(|r| r.interval.lower)),
            contender.peak.map_or_else(Cell::none, |peak| Cell::text(significant(peak.0 as f64 / 1e6)).sorted_by(peak.0 as f64)),
        ]);
    }
    table
}

pub fn movement(report: &Report) -> Table {
    let mut table = Table::new(&[
        ("definition of the unfused baseline", "", Left),
        ("unfused", "", Right),
        ("fused", "", Right),
        ("reduction", "%", Right),
        ("composed", "", Right),
        ("reduction", "%", Right),
    ]);
    // Definitions with the same counts share a row.
    let figures = |row: &MovementRow| (row.unfused, row.fused, row.composed);
    for (n, row) in report.movement.iter().enumerate() {
        if report.movement[..n].iter().any(|known| figures(known) == figures(row)) {
            continue;
        }
        let others = report.movement[n + 1..].iter().filter(|other| figures(other) == figures(row)).count();
        let alike = match others {
            0 => String::new(),
            1 => " (and by one more definition)".to_string(),
            others => format!(" (and by {others} more definitions)"),
        };
        let to = |to: Option<Bytes>| [to.map_or_else(Cell::none, bytes), Cell::maybe(to.and_then(|to| row.reduction(to)), 2)];
        let mut cells = vec![Cell::text(format!("{}{alike}", row.definition)).strong(n == 0), bytes(row.unfused)];
        cells.extend([Some(row.fused), row.composed].into_iter().flat_map(to));
        table.row(cells);
    }
    table
}

pub fn selection(report: &Report) -> Table {
    let mut table = Table::new(&[
        ("method", "", Left),
        ("total", "ms", Right),
        ("sum of minima", "ms", Right),
        ("gap", "%", Right),
        ("least of all that was measured", "", Left),
    ]);
    for row in &report.selection {
        table.row(vec![
            Cell::text(&row.method),
            time(Some(row.total)),
            time(Some(row.lower_bound)),
            Cell::maybe(row.gap(), 2),
            Cell::text(if row.proven { "proven" } else { "not proven" }),
        ]);
    }
    table
}

pub fn coverage(report: &Report) -> Table {
    let mut table = Table::new(&[("configurations", "", Left), ("count", "", Right), ("share", "%", Right)]);
    if let Some(c) = report.coverage {
        let rows = [
            ("enumerated", c.enumerated),
            ("identical to another", c.identical),
            ("bounded out", c.bounded_out),
            ("raced and dropped", c.raced),
            ("measured in full", c.full),
            ("wrong or failed", c.unfit),
            ("not reached", c.not_reached),
        ];
        for (name, count) in rows {
            table.row(vec![Cell::text(name), Cell::count(count), percent(count as f64, c.enumerated as f64)]);
        }
    }
    table
}

/// One row for each kernel: the results of the sweep.
pub fn sweeps(report: &Report) -> Table {
    let mut table = Table::new(&[
        ("kernel", "", Left),
        ("measured", "", Right),
        ("best", "ms", Right),
        ("chosen", "ms", Right),
        ("worst", "ms", Right),
        ("worst ÷ best", "×", Right),
        ("best by the rules", "ms", Right),
        ("chosen configuration", "", Left),
    ]);
    for sweep in &report.sweeps {
        let ms = |c: Option<&crate::model::SweptConfiguration>| time(c.map(|c| c.median.into()));
        let rule = sweep.configurations.iter().filter(|c| c.intuitive).min_by(|a, b| a.median.0.0.total_cmp(&b.median.0.0));
        let range = sweep.worst().zip(sweep.best()).and_then(|(w, b)| quotient(w.median.0.0, b.median.0.0));
        table.row(vec![
            Cell::text(&sweep.kernel),
            Cell::number(sweep.configurations.len() as f64, 0),
            ms(sweep.best()),
            ms(sweep.chosen()),
            ms(sweep.worst()),
            factor(range),
            ms(rule),
            Cell::text(sweep.chosen().map(|c| c.label.clone()).unwrap_or_default()),
        ]);
    }
    table
}

pub fn policy(report: &Report) -> Table {
    let mut table = Table::new(&[("tensor", "", Left), ("in the backward pass", "", Left), ("bytes", "", Right), ("reason", "", Left)]);
    for row in &report.policy {
        let policy = match row.policy {
            ReportedPolicy::Saved => "saved",
            ReportedPolicy::Recomputed => "recomputed",
        };
        table.row(vec![Cell::text(&row.tensor), Cell::text(policy), bytes(row.bytes), Cell::text(&row.reason)]);
    }
    table
}

/// Pairs that are named where many stay separate for one reason.
const NAMED: usize = 8;

/// Pairs that were not fused, with one row and a count for each kind of reason; the most frequent kind first.
pub fn refusals(refusals: &[FusionRefusal]) -> Table {
    let mut groups: Vec<(&str, Vec<&FusionRefusal>)> = Vec::new();
    for refusal in refusals {
        let kind = if refusal.kind.is_empty() { &refusal.reason } else { &refusal.kind };
        match groups.iter_mut().find(|(known, _)| known == kind) {
            Some((_, group)) => group.push(refusal),
            None => groups.push((kind, vec![refusal])),
        }
    }
    groups.sort_by_key(|(_, group)| std::cmp::Reverse(group.len()));
    let mut table = Table::new(&[("pairs", "", Right), ("why they stay apart", "", Left), ("which", "", Left)]);
    for (kind, group) in groups {
        let same = group.iter().all(|r| r.reason == group[0].reason);
        let why = if same { &group[0].reason } else { kind };
        let mut pairs: Vec<String> = group.iter().take(NAMED).map(|r| format!("{} – {}", r.first, r.second)).collect();
        pairs.extend((group.len() > NAMED).then(|| format!("{} more", group.len() - NAMED)));
        table.row(vec![Cell::number(group.len() as f64, 0), Cell::text(why), Cell::text(pairs.join(", "))]);
    }
    table
}

/// Every pair in a row of its own, with its full reason.
pub fn each_refusal(refusals: &[FusionRefusal]) -> Table {
    let mut table = Table::new(&[("first", "", Left), ("second", "", Left), ("why they stay apart", "", Left)]);
    for row in refusals {
        table.row(vec![Cell::text(&row.first), Cell::text(&row.second), Cell::text(&row.reason)]);
    }
    table
}
