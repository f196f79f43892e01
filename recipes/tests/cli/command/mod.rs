//! The binary as a user runs it, and what it prints.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `memlet`; its compiled kernels stay with the tests.
pub fn memlet(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memlet"))
        .args(arguments)
        .env("MEMLET_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels"))
        .output()
        .expect("memlet starts")
}

/// The output of a command that succeeded.
pub fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

pub fn json(output: &Output) -> Value {
    serde_json::from_str(&text(output)).expect("JSON")
}

/// Checks that a command failed with this reason.
pub fn refused(output: &Output, why: &str) {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains(why), "{error}");
}

pub fn path(folder: &Path, name: &str) -> String {
    folder.join(name).display().to_string()
}

/// The path of a shipped recipe.
pub fn recipe(name: &str) -> String {
    path(Path::new(env!("CARGO_MANIFEST_DIR")), name)
}

/// Records in which every measurement has another time, in milliseconds.
pub fn with_times(records: &str, time: impl Fn(&Value) -> f64) -> String {
    let changed = |line: &str| {
        let mut line: Value = serde_json::from_str(line).expect("a record");
        if line["outcome"] == "measured" {
            line["samples"] = vec![time(&line)].into();
        }
        line.to_string() + "\n"
    };
    records.lines().map(changed).collect()
}
