//! An analysis as tables for a terminal.

use super::{Analysis, Kernel, Operator, PaperKernel, Refused};
use bench::model::FusionRefusal;
use bench::report::tables;
use bench::table::{Align, Cell, Table};
use bench::unit::Bytes;
use std::collections::BTreeSet;
use std::fmt::Write;
use transforms::recompute::{Policy, Saved};

/// Units in which the larger operators of a program are numbers that a person reads: the paper's where it is as large.
#[derive(Clone, Copy)]
struct Scale {
    flop: (&'static str, f64, usize),
    elements: (&'static str, f64, usize),
}

impl Scale {
    const FLOP: [(&'static str, f64, usize); 4] =
        [("Gi", (1u64 << 30) as f64, 4), ("Mi", (1u64 << 20) as f64, 4), ("Ki", 1024.0, 3), ("", 1.0, 0)];
    const ELEMENTS: [(&'static str, f64, usize); 3] = [("M el.", 1e6, 2), ("k el.", 1e3, 2), ("el.", 1.0, 0)];

    fn of(analysis: &Analysis) -> Self {
        let largest = |of: fn(&Operator) -> u64| analysis.operators.iter().map(of).max().unwrap_or(0) as f64;
        let (flop, elements) = (largest(|o| o.flop), largest(|o| o.input_elements.max(o.output_elements)));
        Scale { flop: Scale::unit(&Scale::FLOP, flop), elements: Scale::unit(&Scale::ELEMENTS, elements) }
    }

    /// The largest unit of which there is a tenth.
    fn unit<const N: usize>(units: &[(&'static str, f64, usize); N], largest: f64) -> (&'static str, f64, usize) {
        units.iter().copied().find(|(_, unit, _)| largest >= unit / 10.0).unwrap_or(units[N - 1])
    }

    /// What the units stand for; nothing where they are 1.
    fn legend(&self) -> String {
        let flop = match self.flop.0 {
            "Gi" => "Gi = 2³⁰",
            "Mi" => "Mi = 2²⁰",
            "Ki" => "Ki = 2¹⁰",
            _ => "",
        };
        let elements = match self.elements.0 {
            "M el." => "M = 10⁶",
            "k el." => "k = 10³",
            _ => "",
        };
        let both: Vec<&str> = [flop, elements].into_iter().filter(|s| !s.is_empty()).collect();
        if both.is_empty() { String::new() } else { format!(" ({})", both.join(", ")) }
    }

    fn columns(&self) -> [(&'static str, &'static str, Align); 5] {
        let right = Align::Right;
        let (flop, elements) = (self.flop.0, self.elements.0);
        [("flop", flop, right), ("input", elements, right), ("output", elements, right), ("bytes", "", right), ("flop/byte", "", right)]
    }

    fn volumes(&self, flop: u64, input: u64, output: u64, bytes: u64, ratio: f64) -> Vec<Cell> {
        let elements = |n: u64| Cell::number(n as f64 / self.elements.1, self.elements.2);
        vec![
            Cell::number(flop as f64 / self.flop.1, self.flop.2),
            elements(input),
            elements(output),
            Cell::text(Bytes(bytes).to_string()).sorted_by(bytes as f64),
            Cell::number(ratio, 2),
        ]
    }
}

/// Operators, totals, movement and kernels; with `refusals`, also the pairs of kernels that share no data, and where each
/// comes from.
pub fn text(analysis: &Analysis, refusals: bool, colour: bool) -> String {
    let mut out = String::new();
    let about = if analysis.about.is_empty() { String::new() } else { format!(": {}", analysis.about) };
    let _ = writeln!(out, "{}{about}\n", analysis.program);
    let scale = Scale::of(analysis);
    let mut section = |title: &str, table: Table| {
        if !table.rows.is_empty() {
            let _ = writeln!(out, "{title}\n\n{}", table.text(colour));
        }
    };
    section(&format!("Operators, one kernel each, masks stored{}", scale.legend()), operators(&analysis.operators, scale));
    section("Totals by class", totals(analysis, scale));
    section("Kernels after fusion, masks computed again", kernels(&analysis.kernels, scale));
    section(
        "Compositions: contractions with their neighbours, rows computed again from their statistics",
        kernels(&analysis.compositions, scale),
    );
    section("Fused kernels of \"Data Movement Is All You Need\"", found(analysis));
    section("Bytes moved in a step, under each definition of the unfused program", movement(analysis));
    section("What backward of the fused program reads, and what it computes again", saved(&analysis.fused_saved));
    if !analysis.compositions.is_empty() {
        section("What backward of the composed program reads, and what it computes again", saved(&analysis.composed_saved));
    }
    section("Neighbours of contractions that were not composed", refused(&analysis.composition_refusals, true, refusals));
    section(
        if refusals { "Pairs that were not fused" } else { "Neighbours that were not fused" },
        refused(&analysis.refusals, refusals, refusals),
    );
    out
}

fn operators(rows: &[Operator], scale: Scale) -> Table {
    let first = [("operator", "", Align::Left), ("name", "", Align::Left), ("class", "", Align::Left)];
    let mut table = Table::new(&[&first[..], &scale.columns()[..]].concat());
    for row in rows {
        let mut cells = vec![Cell::text(&row.label), Cell::text(&row.name), Cell::text(row.class.to_string())];
        cells.extend(scale.volumes(row.flop, row.input_elements, row.output_elements, row.bytes, row.flop_per_byte));
        table.row(cells);
    }
    table
}

fn totals(analysis: &Analysis, scale: Scale) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("class", "", Align::Left),
        ("flop", scale.flop.0, right),
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
            Cell::number(total.flop as f64 / scale.flop.1, scale.flop.2.min(3)),
            share(total.flop, flop),
            Cell::text(Bytes(total.bytes).to_string()),
            share(total.bytes, bytes),
        ]);
    }
    table
}

fn kernels(rows: &[Kernel], scale: Scale) -> Table {
    let first = [("kernel", "", Align::Left), ("class", "", Align::Left)];
    let last = [("covers", "", Align::Left), ("operators", "", Align::Left)];
    let mut table = Table::new(&[&first[..], &scale.columns()[..], &last[..]].concat());
    for row in rows {
        let mut cells = vec![Cell::text(&row.name), Cell::text(row.class.to_string())];
        cells.extend(scale.volumes(row.flop, row.input_elements, row.output_elements, row.bytes, row.flop_per_byte));
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
