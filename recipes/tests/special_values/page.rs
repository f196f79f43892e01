//! The tables of `docs/special-values.md`.

use super::{Case, Difference, Failure, Found, Kind, WAYS, reasons};
use indexmap::{IndexMap, IndexSet};
use std::fmt::Write;
use std::path::Path;

/// The end of the page's text; the tables after it are written by this test.
const MARK: &str = "<!-- Tables: written and checked by recipes/tests/special_values. -->\n";

/// A number with four digits.
fn short(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value == 0.0 || (1e-3..1e4).contains(&value.abs()) {
        let text = format!("{value:.4}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        return if text == "-0" { "0".into() } else { text.to_string() };
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "−∞" }.into();
    }
    format!("{value:.1e}")
}

/// The marks of all reasons why something at one place differs.
fn marks(differences: &[Difference], case: &Case, given: &str) -> String {
    let mut found: Vec<usize> = differences.iter().filter(|d| d.case == case.name && d.given == given).filter_map(reasons::of).collect();
    found.sort_unstable();
    found.dedup();
    let marks: Vec<String> = found.iter().map(|n| (n + 1).to_string()).collect();
    if marks.is_empty() { String::new() } else { format!(" [{}]", marks.join(",")) }
}

fn joined(values: &[f64]) -> String {
    values.iter().map(|v| short(*v)).collect::<Vec<_>>().join(" ")
}

/// One place of a table: the result, and the gradients.
fn place(case: &Case, found: &Found, n: usize, count: usize, given: &str, differences: &[Difference]) -> String {
    let part = |values: &[f64]| {
        let each = values.len() / count;
        joined(&values[n * each..(n + 1) * each])
    };
    let gradients: Vec<String> = found.gradients.values().map(|g| part(g)).collect();
    format!("{} ; {}{}", part(&found.forward), gradients.join(" , "), marks(differences, case, given))
}

fn given(case: &Case, n: usize) -> String {
    match case.kind {
        Kind::Rows => case.rows[n].clone(),
        _ => case.inputs.values().map(|texts| texts[n].as_str()).collect::<Vec<_>>().join(", "),
    }
}

fn table(kind: Kind, all: &[(&Case, Vec<Found>)], differences: &[Difference]) -> String {
    let cases: Vec<_> = all.iter().filter(|(case, _)| case.kind == kind).collect();
    let Some((first, _)) = cases.first() else { return String::new() };
    let places: Vec<String> = (0..first.count()).map(|n| given(first, n)).collect();
    let mut text = String::new();
    // Pairs and rows are many, so these are lines of the table, and functions are columns.
    if kind == Kind::Unary {
        let _ = writeln!(text, "| | {} |\n|{}", places.join(" | "), " --- |".repeat(places.len() + 1));
        for (case, found) in cases {
            let cells: Vec<String> =
                places.iter().enumerate().map(|(n, p)| place(case, &found[0], n, places.len(), p, differences)).collect();
            let _ = writeln!(text, "| `{}` | {} |", case.name, cells.join(" | "));
        }
    } else {
        let names: Vec<String> = cases.iter().map(|(case, _)| format!("`{}`", case.name)).collect();
        let _ = writeln!(text, "| | {} |\n|{}", names.join(" | "), " --- |".repeat(names.len() + 1));
        for (n, p) in places.iter().enumerate() {
            let cells: Vec<String> = cases.iter().map(|(case, found)| place(case, &found[0], n, places.len(), p, differences)).collect();
            let _ = writeln!(text, "| {p} | {} |", cells.join(" | "));
        }
    }
    text
}

/// Every difference, grouped by reason and by equal results.
fn listed(differences: &[Difference]) -> String {
    let mut text = String::new();
    for (number, reason) in reasons::ALL.iter().enumerate() {
        let _ = writeln!(text, "{}. {}\n", number + 1, reason.text);
        // For each place and its results, the ways of running that differ; then equal ones are joined.
        let mut places: IndexMap<[String; 3], IndexSet<&str>> = IndexMap::new();
        for d in differences.iter().filter(|d| reasons::of(d) == Some(number)) {
            let result = format!("{}: {} where {} has {}", d.what, short(d.got), d.peer, short(d.want));
            places.entry([d.case.clone(), result, d.given.clone()]).or_default().insert(WAYS[d.way]);
        }
        let mut lines: IndexMap<(String, String, String), Vec<String>> = IndexMap::new();
        for ([case, result, given], ways) in places {
            let ways =
                if ways.len() == WAYS.len() { String::new() } else { format!(" ({})", ways.into_iter().collect::<Vec<_>>().join("; ")) };
            lines.entry((case, result, ways)).or_default().push(given);
        }
        for ((case, result, ways), given) in lines {
            let _ = writeln!(text, "   - `{case}` of {}, {result}{ways}", given.join("; "));
        }
        text.push('\n');
    }
    text
}

/// Compares the page with the results, or writes it.
pub fn check(all: &[(&Case, Vec<Found>)], differences: &[Difference]) -> Result<(), Failure> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/special-values.md");
    let page = std::fs::read_to_string(&path)?;
    let (head, tables) = page.split_once(MARK).ok_or("the page has no place for its tables")?;
    let mut text = String::from("\n## One operand\n\n");
    text += &table(Kind::Unary, all, differences);
    text += "\n## Two operands\n\n";
    text += &table(Kind::Binary, all, differences);
    text += "\n## Rows\n\n";
    text += &table(Kind::Rows, all, differences);
    text += "\n## Differences\n\n";
    text += &listed(differences);
    let text = format!("{}\n", text.trim_end());
    if std::env::var_os("MEMLET_BLESS").is_some() {
        std::fs::write(&path, format!("{head}{MARK}{text}"))?;
    } else {
        assert!(tables == text, "the tables of {} are not what was found; MEMLET_BLESS=1 writes them anew", path.display());
    }
    Ok(())
}
