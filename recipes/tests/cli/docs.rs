//! Checks that everything the pages name exists: links, files of the repository, commands, options, and the output of the walk.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folders of the repository that pages name files of.
const FOLDERS: [&str; 9] = ["sdfg/", "transforms/", "kernels/", "layouts/", "bench/", "recipes/", "docs/", "findings/", ".ci/"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the repository")
}

/// All pages, by their path in the repository.
fn pages() -> BTreeMap<String, String> {
    let mut pages = BTreeMap::new();
    for folder in ["", "docs", "docs/results", "bench/records", "recipes"] {
        for entry in std::fs::read_dir(root().join(folder)).expect("a folder of pages").flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|end| end == "md") {
                let name = path.strip_prefix(root()).expect("a page of the repository").display().to_string();
                pages.insert(name, std::fs::read_to_string(&path).expect("a page"));
            }
        }
    }
    assert!(pages.len() > 10, "{:?}", pages.keys());
    pages
}

/// Code on a page: blocks, line by line, and spans, which may continue on the next line.
fn code(page: &str) -> Vec<String> {
    let (mut found, mut prose, mut block) = (Vec::new(), String::new(), false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            block = !block;
        } else if block {
            found.push(line.to_string());
        } else {
            prose += line;
            prose += if line.trim().is_empty() { "\n" } else { " " };
        }
    }
    let spans = prose.lines().flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    found.extend(spans.map(String::from));
    found
}

/// Headings as links name them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim().to_lowercase());
    headings.map(|h| h.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>().replace(' ', "-")).collect()
}

#[test]
fn links_of_pages_lead_somewhere() {
    let pages = pages();
    let mut broken = Vec::new();
    for (name, page) in &pages {
        for link in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let path = root().join(Path::new(name).parent().expect("a folder")).join(file);
            let target = if file.is_empty() { Ok(page.clone()) } else { std::fs::read_to_string(&path) };
            let exists = if file.is_empty() { true } else { path.exists() };
            let anchored = anchor.is_empty() || target.is_ok_and(|target| anchors(&target).contains(anchor));
            if !(exists && anchored) {
                broken.push(format!("{name}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "links lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn files_that_pages_name_exist() {
    let mut missing = Vec::new();
    for (name, page) in pages() {
        for text in code(&page) {
            for word in text.split(|c: char| c.is_whitespace() || "()\"'=,;:".contains(c)) {
                // Placeholders are upper case, and a star stands for several files.
                let placeholder =
                    word.contains(['*', '<', '…']) || word.split(['/', '.']).any(|part| part.len() > 1 && is_placeholder(part));
                if FOLDERS.iter().any(|folder| word.starts_with(folder)) && !placeholder && !root().join(word).exists() {
                    missing.push(format!("{name}: {word}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "pages name files that do not exist:\n{}", missing.join("\n"));
}

fn is_placeholder(part: &str) -> bool {
    part != "README" && part != "CONTRIBUTING" && part.chars().all(|c| c.is_ascii_uppercase() || c == '-')
}

fn memlet(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_memlet")).args(arguments).output().expect("memlet starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The options of every command.
fn commands() -> BTreeMap<String, BTreeSet<String>> {
    let help = memlet(&["--help"]);
    let listed = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1).take_while(|line| !line.trim().is_empty());
    let names: Vec<&str> =
        listed.filter(|line| line.starts_with("  ") && !line.starts_with("   ")).filter_map(|l| l.split_whitespace().next()).collect();
    let options = |name: &str| {
        let help = memlet(&["help", name]);
        let words = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).filter(|word| word.starts_with("--"));
        words.map(String::from).collect()
    };
    names.into_iter().map(|name| (name.to_string(), options(name))).collect()
}

#[test]
fn commands_and_options_that_pages_name_exist() {
    let commands = commands();
    assert!(commands.contains_key("optimize"), "{:?}", commands.keys());
    let all: BTreeSet<&String> = commands.values().flatten().collect();
    let option = |word: &str| word.starts_with("--").then(|| word.split(['=', '`']).next().unwrap_or(word).to_string());
    let mut wrong = Vec::new();
    for (name, page) in pages() {
        for text in code(&page) {
            let line = text.split(" #").next().unwrap_or(&text).trim().replace("cargo run --release -p recipes -- ", "memlet ");
            let mut words = line.split_whitespace();
            match (words.next(), words.next()) {
                (Some("memlet"), Some(command)) if command.starts_with(|c: char| c.is_ascii_lowercase()) => match commands.get(command) {
                    None => wrong.push(format!("{name}: there is no command `memlet {command}`")),
                    Some(known) => wrong.extend(
                        words
                            .filter_map(option)
                            .filter(|o| !known.contains(o))
                            .map(|o| format!("{name}: `memlet {command}` has no option {o}")),
                    ),
                },
                (Some(first), _) if name == "docs/usage.md" => {
                    wrong.extend(option(first).filter(|o| !all.contains(o)).map(|o| format!("{name}: no command has an option {o}")))
                }
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "pages name what `memlet --help` does not:\n{}", wrong.join("\n"));
    let usage = std::fs::read_to_string(root().join("docs/usage.md")).expect("a page");
    let absent: Vec<&String> = commands.keys().filter(|c| *c != "help" && !usage.contains(&format!("`memlet {c}"))).collect();
    assert!(absent.is_empty(), "docs/usage.md does not name {absent:?}");
}

/// The table of variants in docs/selection.md is that of `memlet variants`; `MEMLET_BLESS=1` rewrites it.
#[test]
fn the_page_on_selection_has_the_table_of_variants() {
    let rows: Vec<Value> = serde_json::from_str(&memlet(&["variants", "--json"])).expect("JSON");
    let mut table = String::from("| variant | title | devices | passes | share, CPU / GPU |\n| --- | --- | --- | --- | --- |\n");
    for row in &rows {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_string();
        let passes: Vec<&str> = row["passes"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let share = |device: &str| format!("{:.0}", 100.0 * row["share"][device].as_f64().expect("a share"));
        let passes = passes.join(", ");
        table +=
            &format!("| `{}` | {} | {} | {passes} | {} / {} |\n", text("id"), text("title"), text("devices"), share("cpu"), share("gpu"));
    }
    let path = root().join("docs/selection.md");
    let page = std::fs::read_to_string(&path).expect("a page");
    let (head, rest) = page.split_once("docs:: -->\n").expect("the beginning of the table");
    let (found, tail) = rest.split_once("<!-- end variants -->").expect("the end of the table");
    if std::env::var_os("MEMLET_BLESS").is_some() {
        std::fs::write(&path, format!("{head}docs:: -->\n{table}<!-- end variants -->{tail}")).expect("a page");
    } else {
        assert!(found == table, "docs/selection.md is out of date; MEMLET_BLESS=1 writes its table of variants anew");
    }
}

/// The README fits two screens of 50 lines.
#[test]
fn the_readme_fits_two_screens() {
    let lines = pages()["README.md"].lines().count();
    assert!(lines <= 100, "README.md has {lines} lines");
}

/// The recipe of the walk in docs/architecture.md gives the program and the kernels that the page shows.
#[test]
fn the_walk_shows_real_output() {
    let page = &pages()["docs/architecture.md"];
    let blocks: Vec<(&str, &str)> = page.split("```").skip(1).step_by(2).filter_map(|block| block.split_once('\n')).collect();
    let recipe = blocks.iter().find(|(kind, text)| *kind == "yaml" && text.starts_with("model: scaled_softmax")).expect("a recipe").1;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("walk.yaml"), recipe).expect("a recipe");
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_memlet")).args(arguments).current_dir(folder.path()).output().expect("memlet starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let output = run(&["analyze", "walk.yaml"]) + &run(&["analyze", "walk.yaml", "--graph", "text"]);
    let known: BTreeSet<String> = output.lines().map(squeezed).collect();
    let shown = blocks.iter().filter(|(_, text)| text.starts_with("program  kernels") || text.starts_with("program scaled_softmax"));
    let lines: Vec<String> = shown.flat_map(|(_, text)| text.lines()).map(squeezed).filter(|l| !l.is_empty() && l != "...").collect();
    assert!(lines.len() > 12, "{lines:?}");
    let changed: Vec<&String> = lines.iter().filter(|line| !known.contains(*line)).collect();
    assert!(changed.is_empty(), "docs/architecture.md shows lines that `memlet analyze` does not print: {changed:#?}\nof\n{output}");
}

/// A line with single spaces, so that widths of columns do not matter.
fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
