//! An analysis as tables for a terminal.

use super::{Analysis, Kernel, Operator, PaperKernel, Refused};
use bench::model::FusionRefusal;
use bench::report::tables;
use bench::table::{Align, Cell, Table};
use bench::unit::Bytes;
use std::collections::BTreeSet;
use std::fmt::Write;
use transforms::recompute::{Policy, Saved};

const GIBI: f64 = (1u64 << 30) as f64;

/// Operators, totals, movement and kernels; with `refusals`, also the pairs of kernels that share no data, and where each
/// comes from.
pub fn text(analysis: &Analysis, refusals: bool, colour: bool) -> String {
    let mut out = String::new();
    let about = if analysis.about.is_empty() { String::new() } else { format!(": {}", analysis.about) };
    let _ = writeln!(out, "{}{about}\n", analysis.program);
    let mut section = |title: &str, table: Table| {
        if !table.rows.is_empty() {
            let _ = writeln!(out, "{title}\n\n{}", table.text(colour));
        }
    };
    section("Operators, one kernel each, masks stored (Gi = 2³⁰, M = 10⁶)", operators(&analysis.operators));
    section("Totals by class", totals(analysis));
    section("Kernels after fusion, masks computed again", kernels(&analysis.kernels));
    section("Compositions: contractions with their neighbours, rows computed again from their statistics", kernels(&analysis.compositions));
    section("Fused kernels of \"Data Movement Is All You Need\"", found(analysis));
    section("Bytes moved in a step, under each definition of the unfused program", movement(analysis));
    section("What backward of the composed program reads, and what it computes again", saved(&analysis.saved));
    section("Neighbours of contractions that were not composed", refused(&analysis.composition_refusals, true, refusals));
    section(
        if refusals { "Pairs that were not fused" } else { "Neighbours that were not fused" },
        refused(&analysis.refusals, refusals, refusals),
    );
    out
}

fn volumes(flop: u64, input: u64, output: u64, bytes: u64, ratio: f64) -> Vec<Cell> {
    let millions = |n: u64| Cell::number(n as f64 / 1e6, 2);
    vec![
        Cell::number(flop as f64 / GIBI, 4),
        millions(input),
        millions(output),
        Cell::text(Bytes(bytes).to_string()).sorted_by(bytes as f64),
        Cell::number(ratio, 2),
    ]
}

const VOLUMES: [(&str, &str, Align); 5] = [
    ("flop", "Gi", Align::Right),
    ("input", "M el.", Align::Right),
    ("output", "M el.", Align::Right),
    ("bytes", "", Align::Right),
    ("flop/byte", "", Align::Right),
];

fn operators(rows: &[Operator]) -> Table {
    let first = [("operator", "", Align::Left), ("name", "", Align::Left), ("class", "", Align::Left)];
    let mut table = Table::new(&[&first[..], &VOLUMES[..]].concat());
    for row in rows {
        let mut cells = vec![Cell::text(&row.label), Cell::text(&row.name), Cell::text(row.class.to_string())];
        cells.extend(volumes(row.flop, row.input_elements, row.output_elements, row.bytes, row.flop_per_byte));
        table.row(cells);
    }
    table
}

fn totals(analysis: &Analysis) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("class", "", Align::Left),
        ("flop", "Gi", right),
        ("share", "%", right),
        ("bytes", "", right),
        ("share", "%", right),
    ]);
    let totals = analysis.totals;
    let classes = [("contraction", totals.contraction), ("normalization", totals.normalization), ("elementwise", totals.elementwise)];
    let flop: f64 = classes.iter().map(|(_, t)| t.flop as f64).sum();
    let bytes: f64 = classes.iter().map(|(_, t)| t.bytes as f64).sum();
    let share = |part: u64, whole: f64| Cell::maybe((whole > 0.0).then(|| 100.0 * part as f64 / whole), 2);
    for (name, total) in classes {
        table.row(vec![
            Cell::text(name),
            Cell::number(total.flop as f64 / GIBI, 3),
            share(total.flop, flop),
            Cell::text(Bytes(total.bytes).to_string()),
            share(total.bytes, bytes),
        ]);
    }
    table
}

fn kernels(rows: &[Kernel]) -> Table {
    let first = [("kernel", "", Align::Left), ("class", "", Align::Left)];
    let last = [("covers", "", Align::Left), ("operators", "", Align::Left)];
    let mut table = Table::new(&[&first[..], &VOLUMES[..], &last[..]].concat());
    for row in rows {
        let mut cells = vec![Cell::text(&row.name), Cell::text(row.class.to_string())];
        cells.extend(volumes(row.flop, row.input_elements, row.output_elements, row.bytes, row.flop_per_byte));
        let covers: Vec<&str> = row.covers.iter().map(|c| c.name()).collect();
        cells.extend([Cell::text(covers.join(" ")), Cell::text(row.operators.join(", "))]);
        table.row(cells);
    }
    table
}

/// Each kernel of the paper that the program has a place for, and ours that holds it.
fn found(analysis: &Analysis) -> Table {
    let mut table = Table::new(&[("paper", "", Align::Left), ("ours", "", Align::Left), ("operators", "", Align::Left)]);
    for occurrence in &analysis.occurrences {
        let holders: BTreeSet<&str> = analysis
            .kernels
            .iter()
            .filter(|k| k.operators.iter().any(|o| occurrence.operators.contains(o)))
            .map(|k| k.name.as_str())
            .collect();
        let holders: Vec<&str> = holders.into_iter().collect();
        let ours = if let [only] = holders.as_slice() { only.to_string() } else { format!("apart: {}", holders.join(", ")) };
        let operators: Vec<&str> = occurrence.operators.iter().map(String::as_str).collect();
        table.row(vec![Cell::text(occurrence.kernel.name()), Cell::text(ours), Cell::text(operators.join(", "))]);
    }
    let present: BTreeSet<PaperKernel> = analysis.occurrences.iter().map(|o| o.kernel).collect();
    for kernel in PaperKernel::ALL.into_iter().filter(|k| !present.is_empty() && !present.contains(k)) {
        table.row(vec![Cell::text(kernel.name()), Cell::text("no such place in this program")]);
    }
    table
}

fn movement(analysis: &Analysis) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("definition", "", Align::Left),
        ("unfused", "bytes", right),
        ("fused", "bytes", right),
        ("reduction", "%", right),
        ("composed", "bytes", right),
        ("reduction", "%", right),
    ]);
    for row in &analysis.movement {
        table.row(vec![
            Cell::text(&row.definition),
            Cell::number(row.unfused_bytes as f64, 0),
            Cell::number(row.fused_bytes as f64, 0),
            Cell::number(100.0 * row.reduction, 2),
            Cell::maybe(row.composed_bytes.map(|b| b as f64), 0),
            Cell::maybe(row.composed_reduction.map(|r| 100.0 * r), 2),
        ]);
    }
    table
}

fn saved(rows: &[Saved]) -> Table {
    let mut table =
        Table::new(&[("container", "", Align::Left), ("bytes", "", Align::Right), ("policy", "", Align::Left), ("why", "", Align::Left)]);
    for row in rows {
        let policy = if row.policy == Policy::Saved { "saved" } else { "computed again" };
        let bytes = Cell::text(Bytes(row.bytes).to_string()).sorted_by(row.bytes as f64);
        table.row(vec![Cell::text(&row.container), bytes, Cell::text(policy), Cell::text(&row.why)]);
    }
    table
}

fn refused(rows: &[Refused], all: bool, places: bool) -> Table {
    let shown = rows.iter().filter(|r| all || r.neighbours);
    let reason = |r: &Refused| match &r.origin {
        Some(origin) if places => format!("{} ({origin})", r.reason),
        _ => r.reason.clone(),
    };
    let rows: Vec<FusionRefusal> =
        shown.map(|r| FusionRefusal { first: r.first.clone(), second: r.second.clone(), reason: reason(r) }).collect();
    tables::refusals(&rows)
}
