//! Rules for the sources of the whole workspace: one meaning for each public type, files that a reader can hold in mind, and imports
//! without circles.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const CRATES: [&str; 6] = ["sdfg", "transforms", "kernels", "layouts", "bench", "recipes"];

/// Names that mean something only with the module before them: `differentiate::Options`.
const WITH_THEIR_MODULE: [&str; 2] = ["Error", "Options"];

/// Files may have this many lines at most, and lines of comments this many characters.
const LINES: usize = 600;
const COLUMNS: usize = 140;

/// Files of a crate that import one another because their types contain one another.
const RECURSIVE: [&[&str]; 6] = [
    &["sdfg::graph", "sdfg::library", "sdfg::memlet", "sdfg::node", "sdfg::propagate", "sdfg::scope", "sdfg::state"],
    &["sdfg::functions", "sdfg::library::calculus", "sdfg::scalar"],
    &["kernels::c_form", "kernels::executable"],
    &["kernels::emit::dialect", "kernels::emit::printer"],
    &["recipes::dace::read::integer", "recipes::dace::read::value"],
    &["recipes::load::applied", "recipes::load::value"],
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Rust files below a folder, in order.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut left = vec![folder.to_path_buf()];
    while let Some(folder) = left.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.expect("an entry").path()) {
            match path.extension() {
                _ if path.is_dir() => left.push(path),
                Some(extension) if extension == "rs" => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// The code of a file without its comments and its tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).map(|line| format!("{line}\n")).collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a source file")
}

fn word(text: &str) -> &str {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

#[test]
fn a_public_type_name_means_one_thing() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for name in CRATES {
        for file in rust_files(&root().join(name).join("src")) {
            for line in code(&read(&file)).lines() {
                let kinds = ["pub struct ", "pub enum ", "pub trait ", "pub type ", "pub union "];
                let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) else { continue };
                places.entry(word(rest).to_string()).or_default().insert(file.display().to_string());
            }
        }
    }
    assert!(places.len() > 500, "{} types were found", places.len());
    let several: Vec<_> = places.iter().filter(|(name, files)| files.len() > 1 && !WITH_THEIR_MODULE.contains(&name.as_str())).collect();
    assert!(several.is_empty(), "a public type name stands for one thing in the workspace; rename all but one of these: {several:#?}");
}

#[test]
fn files_and_comments_are_short() {
    for name in CRATES {
        for file in rust_files(&root().join(name)) {
            let text = read(&file);
            let count = text.lines().count();
            assert!(count <= LINES, "{} has {count} lines; split it by subject", file.display());
            for (number, line) in text.lines().enumerate() {
                // `rustfmt` breaks lines of code, and leaves comments as they are.
                let is_comment = line.trim_start().starts_with("//");
                assert!(!is_comment || line.chars().count() <= COLUMNS, "{}:{} is too long", file.display(), number + 1);
            }
        }
    }
}

/// By module path, as `kernels::emit::group`, the code of each file of a crate.
fn modules(name: &str) -> BTreeMap<String, String> {
    let src = root().join(name).join("src");
    let mut found = BTreeMap::new();
    for file in rust_files(&src) {
        let below = file.strip_prefix(&src).expect("a file of the crate").with_extension("");
        let mut path: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        if path.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
            path.pop();
        }
        if path.last().is_none_or(|last| last == "tests") {
            continue;
        }
        path.insert(0, name.to_string());
        found.insert(path.join("::"), code(&read(&file)));
    }
    found
}

/// Paths that a `use` tree names, braces taken apart: `a::{b, c::d}` is `a::b` and `a::c::d`.
fn paths(tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else { return vec![tree.split(" as ").next().unwrap_or_default().trim().to_string()] };
    let inside = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut parts, mut depth, mut from) = (vec![], 0, 0);
    for (at, c) in inside.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[from..]);
    let parts = parts.into_iter().filter(|part| !part.trim().is_empty());
    parts.flat_map(|part| paths(part.trim())).map(|rest| format!("{}{rest}", tree[..open].trim())).collect()
}

/// The module of the crate that a path names, seen from another: the longest beginning of it that is a file.
fn resolved(path: &str, from: &str, modules: &BTreeMap<String, String>) -> Option<String> {
    let mut base: Vec<&str> = from.split("::").collect();
    let mut parts = path.split("::").peekable();
    match parts.peek() {
        Some(&"crate") => {
            base.truncate(1);
            parts.next();
        }
        Some(&"self") => _ = parts.next(),
        Some(&"super") => {
            while parts.next_if_eq(&"super").is_some() {
                base.pop();
            }
        }
        _ => {}
    }
    let start = base.len();
    for part in parts {
        base.push(part);
        if !modules.contains_key(&base.join("::")) {
            base.pop();
            break;
        }
    }
    let is_local = path.starts_with("crate") || path.starts_with("super") || path.starts_with("self") || base.len() > start;
    (is_local && base.len() > 1).then(|| base.join("::"))
}

/// The trees of the `use` items of a file, each in one line.
fn uses(code: &str) -> Vec<String> {
    let mut found: Vec<String> = vec![];
    let mut is_open = false;
    for line in code.lines().map(str::trim) {
        let start = ["use ", "pub use ", "pub(crate) use ", "pub(super) use "].iter().find_map(|start| line.strip_prefix(start));
        match start {
            Some(tree) => found.push(tree.to_string()),
            None if is_open => found.last_mut().expect("an open item").push_str(line),
            None => continue,
        }
        is_open = !line.ends_with(';');
    }
    found.iter().map(|tree| tree.trim_end_matches(';').to_string()).collect()
}

/// Which files of a crate each file imports. A folder's `mod.rs` is its facade: what it takes from its own files does not count.
fn imports(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let modules = modules(name);
    let mut found = BTreeMap::new();
    for (from, code) in &modules {
        let named = uses(code).into_iter().flat_map(|tree| paths(&tree));
        let named = named.filter_map(|path| resolved(&path, from, &modules));
        let own = format!("{from}::");
        found.insert(from.clone(), named.filter(|to| to != from && !to.starts_with(&own)).collect::<BTreeSet<_>>());
    }
    found
}

/// Files that reach one another, by the first of each such set.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reached = |start: &String| {
        let (mut reached, mut left) = (BTreeSet::new(), vec![start]);
        while let Some(file) = left.pop() {
            for next in imports.get(file).into_iter().flatten() {
                if reached.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        reached
    };
    let all: BTreeMap<&String, BTreeSet<String>> = imports.keys().map(|file| (file, reached(file))).collect();
    let circle = |file: &String| all[file].iter().filter(|other| all.get(other).is_some_and(|o| o.contains(file))).cloned().collect();
    let found: BTreeSet<BTreeSet<String>> = imports.keys().map(circle).filter(|circle: &BTreeSet<String>| circle.len() > 1).collect();
    found.into_iter().collect()
}

#[test]
fn files_of_a_crate_import_in_no_circle() {
    let (mut arrows, mut unknown) = (0, vec![]);
    for name in CRATES {
        let imports = imports(name);
        arrows += imports.values().map(BTreeSet::len).sum::<usize>();
        let is_known = |circle: &BTreeSet<String>| RECURSIVE.iter().any(|known| circle.iter().all(|file| known.contains(&file.as_str())));
        unknown.extend(circles(&imports).into_iter().filter(|circle| !is_known(circle)));
    }
    assert!(unknown.is_empty(), "these files import one another; move what they share into a file of its own: {unknown:#?}");
    assert!(arrows > 1000, "only {arrows} imports were found");
}
