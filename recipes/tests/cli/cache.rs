//! The folder of compiled kernels, listed and cleared.

use crate::command::{json, text};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

fn cache(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlet"));
    command.arg("cache").args(arguments).env("MEMLET_CACHE_DIR", folder).output().expect("memlet starts")
}

#[test]
fn kernels_are_listed_and_deleted_and_other_files_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let (old, new) = ("0a".repeat(32), "0b".repeat(32));
    for name in [format!("{old}.so"), format!("{new}.so"), format!("{new}.c"), "notes.so".to_string()] {
        std::fs::write(file(&name), [0u8; 100]).expect("a file");
    }
    let before = SystemTime::now() - Duration::from_secs(10 * 24 * 3600);
    std::fs::File::options().write(true).open(file(&format!("{old}.so"))).and_then(|f| f.set_modified(before)).expect("a time");

    let listed = json(&cache(folder.path(), &["--json"]));
    assert_eq!((listed["bytes"].as_u64(), listed["deleted"].as_bool()), (Some(300), Some(false)));
    assert_eq!((listed["kinds"][0]["files"].as_u64(), listed["kinds"][0]["bytes"].as_u64()), (Some(2), Some(200)));
    assert!(text(&cache(folder.path(), &[])).contains("kernels for cores"));

    assert_eq!(json(&cache(folder.path(), &["--clear", "--older", "9", "--json"]))["bytes"], 100);
    assert!(!file(&format!("{old}.so")).exists() && file(&format!("{new}.so")).exists());
    assert!(text(&cache(folder.path(), &["--clear"])).contains("deleted from"));
    assert!(!file(&format!("{new}.so")).exists() && !file(&format!("{new}.c")).exists() && file("notes.so").exists());
}

#[test]
fn a_folder_that_is_not_there_is_empty() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(json(&cache(&folder.path().join("none"), &["--json"]))["bytes"], 0);
}
