//! Choices made again from the records in this repository, on a machine that did not measure them: whatever they were measured on.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn memlet(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memlet")).args(arguments).output().expect("memlet starts")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Folders with a certificate, in the order of their names.
fn folders(of: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut entries: Vec<PathBuf> = std::fs::read_dir(of).expect("records").flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries.into_iter().filter(|path| path.is_dir()) {
        found.extend(path.join("certificate.json").exists().then(|| path.clone()));
        found.extend(folders(&path));
    }
    found
}

/// The records of a folder in a folder of their own, beside their certificate; `None` if they are packed and nothing here unpacks them.
fn unpacked(folder: &Path) -> Option<tempfile::TempDir> {
    let copy = tempfile::tempdir().expect("a folder");
    let to = copy.path().join("records.jsonl");
    std::fs::copy(folder.join("certificate.json"), copy.path().join("certificate.json")).expect("a certificate");
    if std::fs::copy(folder.join("records.jsonl"), &to).is_err() {
        let unpacked = Command::new("gzip").arg("-dc").arg(folder.join("records.jsonl.gz")).output().ok()?;
        assert!(unpacked.status.success(), "{} has no records", folder.display());
        std::fs::write(&to, unpacked.stdout).expect("records");
    }
    Some(copy)
}

#[test]
fn the_choice_is_made_again_from_records() {
    let all = folders(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/records"));
    assert!(!all.is_empty(), "some records are here");
    let mut any = false;
    for folder in all {
        let Some(copy) = unpacked(&folder) else {
            println!("skipped: gzip not found, install it to choose from {}", folder.display());
            continue;
        };
        let path = |name: &str| copy.path().join(name).display().to_string();
        // The certificate of the day holds.
        let held = json(&memlet(&["verify-selection", &path("certificate.json"), "--json"]));
        // Of a choice that could not be proven its bound holds.
        let proven = held["proven"].as_bool().expect("whether it is proven");
        assert!(held["bound_ps"].as_f64() <= held["total_ps"].as_f64(), "{}", folder.display());
        any |= proven;
        let total = held["total_ps"].as_f64().expect("a total") / 1e9;
        // The same choice costs the same today, and its own certificate holds too.
        let decisions =
            json(&memlet(&["solve", &path("records.jsonl"), "--certificate", &path("again.json"), "--resamples", "0", "--json"]));
        let totals: Vec<f64> = decisions.as_array().into_iter().flatten().filter_map(|d| d["selections"][0]["total_ms"].as_f64()).collect();
        assert!(totals.iter().any(|again| (again - total).abs() < 1e-9), "{total} ms is not among {totals:?} of {}", folder.display());
        let again = std::fs::read_dir(copy.path()).expect("a folder").flatten().map(|e| e.path());
        let again: Vec<PathBuf> = again.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("again"))).collect();
        assert_eq!(again.len(), totals.len());
        // Where kernels of several programs were chosen together, the choice and its proof are the same to the byte.
        let kept = std::fs::read(path("certificate.json")).expect("a certificate");
        let by_sites = serde_json::from_slice::<Value>(&kept).is_ok_and(|c| c["program"]["programs"].is_object());
        assert!(!by_sites || again.iter().any(|path| std::fs::read(path).is_ok_and(|bytes| bytes == kept)), "{}", folder.display());
        for certificate in again {
            assert_eq!(json(&memlet(&["verify-selection", &certificate.display().to_string(), "--json"]))["proven"], proven);
        }
        println!("{}: {total} ms, chosen again", folder.display());
    }
    assert!(any, "some choice is proven");
}
