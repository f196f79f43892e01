//! The folders of the pipeline depend on each other in one direction, through their facades, and their files form no cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// From the lowest floor, which uses no other, to the highest, which no other uses.
const FLOORS: [&str; 7] = ["oracle", "run", "variants", "check", "measure", "choose", "report"];

/// The most files that use a folder other than their own.
const IMPORTS: usize = 30;

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    found.sort();
    found
}

/// The code of a file: neither its comments nor its tests.
fn code(file: &Path) -> String {
    let text = std::fs::read_to_string(file).expect("a source file");
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The names that follow a prefix wherever it stands in a text.
fn names_after<'a>(text: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    let name = |rest: &'a str| rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default();
    text.match_indices(prefix).map(move |(at, _)| name(&text[at + prefix.len()..]))
}

/// By file, as `folder/name`, its code.
fn pipeline() -> BTreeMap<(usize, String), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/pipeline");
    let mut found = BTreeMap::new();
    for (floor, folder) in FLOORS.iter().enumerate() {
        for file in files(&root.join(folder)) {
            let name = file.file_stem().and_then(|stem| stem.to_str()).expect("a name").to_string();
            found.insert((floor, name), code(&file));
        }
    }
    found
}

#[test]
fn folders_use_one_another_one_way_and_seldom() {
    let mut arrows = BTreeSet::new();
    for ((floor, file), code) in &pipeline() {
        for used in names_after(code, "crate::pipeline::") {
            let Some(other) = FLOORS.iter().position(|f| *f == used).filter(|other| other != floor) else { continue };
            assert!(other < *floor, "{}/{file}.rs uses `{used}`, which is above it", FLOORS[*floor]);
            arrows.insert((*floor, file.clone(), other));
        }
    }
    assert!(arrows.len() > 10, "nothing was found: {arrows:?}");
    assert!(arrows.len() <= IMPORTS, "{} imports between folders: {arrows:?}", arrows.len());
}

#[test]
fn every_folder_is_a_floor() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/pipeline");
    let folders: Vec<String> =
        files(&root).iter().filter(|p| p.is_dir()).map(|p| p.file_name().unwrap().to_string_lossy().into()).collect();
    assert_eq!(folders.iter().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(FLOORS));
}

#[test]
fn files_of_a_folder_go_in_no_circle() {
    let all = pipeline();
    for (floor, folder) in FLOORS.iter().enumerate() {
        let files: BTreeMap<&str, &String> =
            all.iter().filter(|((f, name), _)| *f == floor && name != "mod").map(|((_, n), c)| (n.as_str(), c)).collect();
        let uses = |file: &str| names_after(files[file], "super::").filter(|name| files.contains_key(name)).collect::<BTreeSet<_>>();
        for start in files.keys() {
            let mut reached = BTreeSet::new();
            let mut left: Vec<&str> = uses(start).into_iter().collect();
            while let Some(file) = left.pop() {
                assert_ne!(file, *start, "{folder}/{start}.rs reaches itself");
                if reached.insert(file) {
                    left.extend(uses(file));
                }
            }
        }
    }
}
