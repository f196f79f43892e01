//! The surroundings of a run: readers of its output, the cache of its code, and other writers to its folder.

use crate::command::{json, memlet, path, recipe, refused, text};
use layouts::Store;
use std::fs::File;
use std::process::{Command, Stdio};

const SMALL: [&str; 8] = ["--set", "b=3", "--set", "i=5", "--set", "u=7", "--budget", "0s"];

fn sweep(recipe: &str, out: &str) -> Vec<String> {
    ["sweep", recipe, "--out", out].into_iter().chain(SMALL).map(String::from).collect()
}

/// A reader may close the pipe, as `head` does, without ending the command; a full disk is reported.
#[test]
fn a_closed_pipe_ends_no_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = path(folder.path(), "out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlet"));
    command.args(["optimize", &recipe("mlp.yaml"), "--out", &out, "--timing", "0s"]).args(SMALL);
    command.env("MEMLET_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("memlet starts");
    drop(child.stdout.take());
    assert!(child.wait().expect("an end").success());
    assert!(std::path::Path::new(&out).join("report.html").exists(), "work went on to its end");

    let Ok(full) = File::options().write(true).open("/dev/full") else { return };
    let output = Command::new(env!("CARGO_BIN_EXE_memlet")).arg("devices").stdout(full).output().expect("memlet starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("what was to be printed is not all there"), "{error}");
}

/// A cache that cannot be written is no fault of kernels: the same command continues once it can be written.
#[test]
fn a_cache_that_cannot_be_written_is_no_fault_of_kernels() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mlp, out) = (recipe("mlp.yaml"), path(folder.path(), "out"));
    let arguments = sweep(&mlp, &out);
    let mut command = Command::new(env!("CARGO_BIN_EXE_memlet"));
    let output = command.args(&arguments).env("MEMLET_CACHE_DIR", "/dev/null/cache").output().expect("memlet starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("see MEMLET_CACHE_DIR"), "{error}");
    let again = memlet(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    let records = std::fs::read_to_string(path(folder.path(), "out/records.jsonl")).expect("records");
    assert!(records.contains("\"measured\"") && !records.contains("\"failed\""));
}

/// Two runs would write into each other's lines.
#[test]
fn a_folder_is_written_by_one_run_at_a_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mlp, out) = (recipe("mlp.yaml"), path(folder.path(), "out"));
    std::fs::create_dir(&out).expect("a folder");
    let held = Store::open(&folder.path().join("out/records.jsonl")).expect("records");
    let arguments = sweep(&mlp, &out);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    refused(&memlet(&arguments), "another run writes to it");
    drop(held);
    assert!(memlet(&arguments).status.success());
}

/// Records may be kept elsewhere, and the certificate names the place. Other files in the folder of plans are not deleted.
#[test]
fn records_are_found_where_they_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mlp, out, records) = (recipe("mlp.yaml"), path(folder.path(), "out"), path(folder.path(), "kept.jsonl"));
    std::fs::create_dir_all(path(folder.path(), "out/plans")).expect("a folder");
    let (notes, old) = (path(folder.path(), "out/plans/notes.txt"), path(folder.path(), "out/plans/old.json"));
    [&notes, &old].iter().for_each(|file| std::fs::write(file, "{}").expect("a file"));
    let all = ["optimize", &mlp, "--out", &out, "--records", &records, "--timing", "0s"].into_iter().chain(SMALL);
    text(&memlet(&all.collect::<Vec<_>>()));
    assert_eq!([&notes, &old].map(|file| std::path::Path::new(file).exists()), [true, false]);
    assert!(text(&memlet(&["explain", &path(folder.path(), "out/plan.json"), "hidden"])).contains("hidden"));
    assert!(text(&memlet(&["verify-selection", &path(folder.path(), "out/certificate.json")])).contains("confirmed"));
    // Resampling stops at the time limit, and reports the number of resamplings.
    let solved = json(&memlet(&["solve", &records, "--resamples", "100000000", "--time", "0s", "--json"]));
    assert!(solved.as_array().is_some_and(|all| all.iter().all(|one| one["robustness"]["resamples"] == 1)), "{solved}");
}

/// The code of an earlier plan in the folder is deleted, and no file of the user.
#[test]
fn kernels_of_an_earlier_plan_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = path(folder.path(), "out");
    let optimized = |name: &str| {
        let recipe = path(folder.path(), &format!("{name}.yaml"));
        let steps = format!("model: {name}\ndims: {{n: 50}}\ninputs: {{x: [n]}}\nsteps:\n  - \"{name}[n] = exp(x[n])\"\n");
        std::fs::write(&recipe, steps).expect("a recipe");
        text(&memlet(&["optimize", &recipe, "--out", &out, "--budget", "0s", "--timing", "0s"]));
    };
    optimized("first");
    std::fs::write(path(folder.path(), "out/kernels/mine.c"), "").expect("a file");
    optimized("second");
    let mut found: Vec<_> =
        std::fs::read_dir(path(folder.path(), "out/kernels")).expect("a folder").flatten().map(|f| f.file_name()).collect();
    found.sort();
    assert_eq!(found, ["mine.c", "second.c"]);
}
