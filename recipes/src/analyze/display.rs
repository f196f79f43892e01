//! An analysis as tables for a terminal.

use super::{Analysis, DefinitionRow, KernelRow, OperatorEntry, PaperKernel, RefusedPair};
use bench::model::FusionRefusal;
use bench::report::tables;
use bench::table::{Align, Cell, Table};
use bench::unit::{Bytes, Flop};
use sdfg::Direction;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use transforms::recompute::{RecomputePolicy, Saved};

/// Units in which the larger operators of a program have readable numbers; for programs as large as the paper's, its units.
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
        let largest = |of: fn(&OperatorEntry) -> u64| analysis.operators.iter().map(of).max().unwrap_or(0) as f64;
        let (flop, elements) = (largest(|o| o.flop), largest(|o| o.input_elements.max(o.output_elements)));
        Scale { flop: Scale::unit(&Scale::FLOP, flop), elements: Scale::unit(&Scale::ELEMENTS, elements) }
    }

    /// The largest unit of which the largest value is at least a tenth.
    fn unit<const N: usize>(units: &[(&'static str, f64, usize); N], largest: f64) -> (&'static str, f64, usize) {
        units.iter().copied().find(|(_, unit, _)| largest >= unit / 10.0).unwrap_or(units[N - 1])
    }

    /// The meaning of the units; empty where they are 1.
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

/// Optional details of the text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    /// Every pair of kernels that stayed separate, also pairs that share no data, with their places in the recipe.
    pub refusals: bool,
    /// Bytes under every definition of the unfused program.
    pub definitions: bool,
}

/// The definition of the unfused program that serves as baseline: `memlet optimize` times it as unfused.
pub const BASELINE: &str = "one operator per kernel, scaling within its contraction, masks stored in neither";

/// A summary, then operators, totals, kernels, movement, and kernels that stayed separate.
pub fn text(analysis: &Analysis, shown: Shown, colour: bool) -> String {
    let mut out = String::new();
    let about = if analysis.about.is_empty() { String::new() } else { format!(": {}", analysis.about) };
    let _ = writeln!(out, "{}{about}\n", analysis.program);
    out += &summary(analysis, colour);
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
    let title = "Bytes moved in a step";
    match shown.definitions {
        true => section(
            &format!("{title}, under each definition of the unfused program"),
            movement(&analysis.movement.iter().collect::<Vec<_>>()),
        ),
        false => {
            let own: Vec<&DefinitionRow> = analysis.movement.iter().filter(|row| row.definition.starts_with(BASELINE)).collect();
            section(&format!("{title}; --definitions: under each definition of the unfused program"), movement(&own));
        }
    }
    let backward = |program: &str| format!("What backward of the {program} program reads, and what it computes again");
    if analysis.compositions.is_empty() || analysis.fused_saved != analysis.composed_saved {
        section(&backward("fused"), saved(&analysis.fused_saved));
        if !analysis.compositions.is_empty() {
            section(&backward("composed"), saved(&analysis.composed_saved));
        }
    } else {
        section("What backward of either program, fused or composed, reads, and what it computes again", saved(&analysis.fused_saved));
    }
    let more = if shown.refusals { "" } else { "; --refusals: each by itself" };
    section(
        &format!("Neighbours of contractions that were not composed{more}"),
        refused(&analysis.composition_refusals, true, shown.refusals),
    );
    let title = if shown.refusals { "Pairs that were not fused" } else { "Neighbours that were neither fused nor composed" };
    section(&format!("{title}{more}"), refused(&analysis.refusals, shown.refusals, shown.refusals));
    out
}

/// The summary: kernels and bytes of each program, against one baseline.
fn summary(analysis: &Analysis, colour: bool) -> String {
    let flop: u64 = analysis.operators.iter().map(|o| o.flop).sum();
    let step =
        if analysis.operators.iter().any(|o| o.pass == Direction::Backward) { "a step, forward and backward" } else { "the forward pass" };
    let mut out = format!("{} operators; {step}, computes {}.\n\n", analysis.operators.len(), Flop(flop));
    let Some(row) = analysis.movement.iter().find(|row| row.definition.starts_with(BASELINE) && row.composed_bytes.is_some()) else {
        return out;
    };
    let right = Align::Right;
    let mut table =
        Table::new(&[("program", "", Align::Left), ("kernels", "", right), ("bytes moved", "", right), ("of the unfused", "%", right)]);
    let mut add = |program: &str, kernels: usize, bytes: u64| {
        let share = (row.unfused_bytes > 0).then(|| 100.0 * bytes as f64 / row.unfused_bytes as f64);
        let cells = [Cell::number(kernels as f64, 0), Cell::text(Bytes(bytes).to_string()), Cell::maybe(share, 1)];
        table.row([Cell::text(program)].into_iter().chain(cells).collect());
    };
    add("unfused", analysis.unfused_kernels, row.unfused_bytes);
    add("fused", analysis.kernels.len(), row.fused_bytes);
    if let Some(bytes) = row.composed_bytes.filter(|_| !analysis.compositions.is_empty()) {
        add("composed: contractions with their neighbours", analysis.composed_kernels, bytes);
    }
    let _ = writeln!(out, "{}", table.text(colour));
    let _ = writeln!(out, "Unfused is {BASELINE}. Nothing was run: `memlet optimize` times these programs and others.\n");
    out
}

fn operators(rows: &[OperatorEntry], scale: Scale) -> Table {
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

/// Kernels with their operators; the column of covered kernels of the paper is left out if no kernel covers any.
fn kernels(rows: &[KernelRow], scale: Scale) -> Table {
    let first = [("kernel", "", Align::Left), ("class", "", Align::Left)];
    let last = [("covers", "", Align::Left), ("operators", "", Align::Left)];
    let last = if rows.iter().any(|row| !row.covers.is_empty()) { &last[..] } else { &last[1..] };
    let mut table = Table::new(&[&first[..], &scale.columns()[..], last].concat());
    for row in rows {
        let mut cells = vec![Cell::text(&row.name), Cell::text(row.class.to_string())];
        cells.extend(scale.volumes(row.flop, row.input_elements, row.output_elements, row.bytes, row.flop_per_byte));
        let covers: Vec<&str> = row.covers.iter().map(|c| c.name()).collect();
        let own = [Cell::text(covers.join(" ")), Cell::text(row.operators.join(", "))];
        cells.extend(own.into_iter().skip(2 - last.len()));
        table.row(cells);
    }
    table
}

/// Each kernel of the paper that occurs in the program, and our kernel that holds it.
fn found(analysis: &Analysis) -> Table {
    let mut table = Table::new(&[("paper", "", Align::Left), ("ours", "", Align::Left), ("operators", "", Align::Left)]);
    let mut kernels: HashMap<&String, Vec<&str>> = HashMap::new();
    for kernel in &analysis.kernels {
        kernel.operators.iter().for_each(|operator| kernels.entry(operator).or_default().push(&kernel.name));
    }
    for occurrence in &analysis.occurrences {
        let holders: BTreeSet<&str> = occurrence.operators.iter().filter_map(|o| kernels.get(o)).flatten().copied().collect();
        let holders: Vec<&str> = holders.into_iter().collect();
        let ours = if let [only] = holders.as_slice() { only.to_string() } else { format!("apart: {}", holders.join(", ")) };
        let operators: Vec<&str> = occurrence.operators.iter().map(String::as_str).collect();
        table.row(vec![Cell::text(occurrence.kernel.name()), Cell::text(ours), Cell::text(operators.join(", "))]);
    }
    let present: BTreeSet<PaperKernel> = analysis.occurrences.iter().map(|o| o.kernel).collect();
    let absent: Vec<&str> = PaperKernel::ALL.into_iter().filter(|k| !present.contains(k)).map(PaperKernel::name).collect();
    if !present.is_empty() && !absent.is_empty() {
        table.row(vec![Cell::text(absent.join(", ")), Cell::text("no such place in this program")]);
    }
    table
}

fn movement(rows: &[&DefinitionRow]) -> Table {
    let right = Align::Right;
    let mut table = Table::new(&[
        ("definition", "", Align::Left),
        ("unfused", "bytes", right),
        ("fused", "bytes", right),
        ("reduction", "%", right),
        ("composed", "bytes", right),
        ("reduction", "%", right),
    ]);
    for row in rows {
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
        let policy = if row.policy == RecomputePolicy::Saved { "saved" } else { "computed again" };
        let bytes = Cell::text(Bytes(row.bytes).to_string()).sorted_by(row.bytes as f64);
        table.row(vec![Cell::text(&row.container), bytes, Cell::text(policy), Cell::text(&row.why)]);
    }
    table
}

/// Refusals of pairs that share data, or of all pairs; each pair with its place, or grouped by kind of reason.
fn refused(rows: &[RefusedPair], all: bool, each: bool) -> Table {
    let reason = |r: &RefusedPair| match &r.origin {
        Some(origin) if each => format!("{} ({origin})", r.reason),
        _ => r.reason.clone(),
    };
    let row = |r: &RefusedPair| FusionRefusal { first: r.first.clone(), second: r.second.clone(), reason: reason(r), kind: r.kind.clone() };
    let rows: Vec<FusionRefusal> = rows.iter().filter(|r| all || r.neighbours).map(row).collect();
    if each { tables::each_refusal(&rows) } else { tables::refusals(&rows) }
}
