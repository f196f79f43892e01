//! The folders of the crate use one another one way: problem → measure → model → solve → certify.

use std::fs;
use std::path::Path;

const ORDER: [&str; 5] = ["problem", "measure", "model", "solve", "certify"];

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push((path.display().to_string(), fs::read_to_string(&path).expect("text")));
        }
    }
}

#[test]
fn no_folder_uses_a_later_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (place, name) in ORDER.iter().enumerate().skip(1) {
        let mut found = Vec::new();
        sources(&root.join(name), &mut found);
        assert!(!found.is_empty(), "{name}");
        for (file, text) in found {
            for later in &ORDER[place + 1..] {
                let uses = text.lines().find(|line| !line.trim_start().starts_with("//") && line.contains(&format!("crate::{later}::")));
                assert!(uses.is_none(), "{file} uses `{later}`: {uses:?}");
            }
        }
    }
}
