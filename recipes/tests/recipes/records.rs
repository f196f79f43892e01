//! Reselection from the stored records, on any machine that runs the tests: `memlet solve` needs measurements, not the device.

use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use zip::ZipArchive;

fn memlet(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memlet")).args(arguments).output().expect("memlet starts")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The archives of `bench/records`, in the order of their names.
fn archives() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/records");
    let entries = std::fs::read_dir(folder).expect("records").flatten().map(|entry| entry.path());
    let mut archives: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "zip")).collect();
    archives.sort();
    archives
}

/// The bytes of one file of an archive.
fn read(archive: &mut ZipArchive<File>, name: &str) -> Vec<u8> {
    let mut file = archive.by_name(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("a file of the archive");
    bytes
}

#[test]
fn the_choice_is_repeated_from_records() {
    let (mut proven, mut certificates) = (0, 0);
    for path in archives() {
        let mut archive = ZipArchive::new(File::open(&path).expect("an archive")).expect("an archive");
        let mut folders: Vec<String> =
            archive.file_names().filter_map(|name| name.strip_suffix("/certificate.json").map(String::from)).collect();
        folders.sort();
        for folder in folders {
            let copy = tempfile::tempdir().expect("a folder");
            for name in ["certificate.json", "records.jsonl"] {
                std::fs::write(copy.path().join(name), read(&mut archive, &format!("{folder}/{name}"))).expect("a copy");
            }
            certificates += 1;
            proven += usize::from(chosen_again(&folder, copy.path()));
        }
    }
    assert!(certificates > 0, "no archive of bench/records holds a certificate");
    assert!(proven > 0, "none of {certificates} choices is proven");
}

/// Verifies the certificate in a folder, then solves from its records: the same total, and valid certificates. Returns whether the choice
/// is proven; where it is not, its bound holds.
fn chosen_again(record: &str, folder: &Path) -> bool {
    let path = |name: &str| folder.join(name).display().to_string();
    let verified = json(&memlet(&["verify-selection", &path("certificate.json"), "--json"]));
    let proven = verified["proven"].as_bool().expect("whether it is proven");
    assert!(verified["bound_ps"].as_f64() <= verified["total_ps"].as_f64(), "{record}");
    let total = verified["total_ps"].as_f64().expect("a total") / 1e9;

    let decisions = json(&memlet(&["solve", &path("records.jsonl"), "--certificate", &path("again.json"), "--resamples", "0", "--json"]));
    let totals: Vec<f64> = decisions.as_array().into_iter().flatten().filter_map(|d| d["selections"][0]["total_ms"].as_f64()).collect();
    assert!(totals.iter().any(|again| (again - total).abs() < 1e-9), "{total} ms is not among {totals:?} of {record}");

    let files = std::fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let again: Vec<PathBuf> = files.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("again"))).collect();
    assert_eq!(again.len(), totals.len(), "one certificate for each program of {record}");
    // Where kernels of several programs were chosen together, the choice and its proof are the same to the byte.
    let kept = std::fs::read(path("certificate.json")).expect("a certificate");
    let by_sites = serde_json::from_slice::<Value>(&kept).is_ok_and(|c| c["program"]["programs"].is_object());
    assert!(!by_sites || again.iter().any(|path| std::fs::read(path).is_ok_and(|bytes| bytes == kept)), "{record}");
    for certificate in again {
        assert_eq!(json(&memlet(&["verify-selection", &certificate.display().to_string(), "--json"]))["proven"], proven);
    }
    println!("{record}: {total} ms, chosen again");
    proven
}
