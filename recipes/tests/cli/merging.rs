//! Records of a sweep in parts: merged, kept apart, and refused.

use crate::command::{json, memlet, path, refused, text};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const RECIPE: &str = "model: small\ndims: {i: 4, j: 8}\ninputs:\n  x: [i, j]\nsteps:\n  - y[i,j] = exp(x[i,j])\ntrain: {upstream: y}\n";

/// Sweeps the recipe as a whole or in part, into a folder of its own.
fn swept(folder: &Path, part: &str) -> String {
    let (recipe, out) = (path(folder, "small.yaml"), path(folder, &part.replace('/', "-of-")));
    std::fs::write(&recipe, RECIPE).expect("a recipe");
    text(&memlet(&["sweep", &recipe, "--exhaustive", "--threads", "1", "--shard", part, "--out", &out]));
    out
}

/// Key and configuration of every measurement, and the sessions.
fn read(records: &str) -> (BTreeSet<String>, Vec<Value>) {
    let lines: Vec<Value> =
        std::fs::read_to_string(records).expect("records").lines().map(|l| serde_json::from_str(l).expect("JSON")).collect();
    let (sessions, measurements): (Vec<Value>, Vec<Value>) = lines.into_iter().partition(|l| l["line"] == "session");
    (measurements.iter().map(|m| format!("{} {}", m["key"], m["config"])).collect(), sessions)
}

#[test]
fn parts_merge_into_one_sweep_with_the_provenance_of_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second, whole] = ["1/2", "2/2", "1/1"].map(|part| swept(folder.path(), part));
    let merged = path(folder.path(), "merged");
    let told = json(&memlet(&["merge", &first, &path(Path::new(&second), "records.jsonl"), "--out", &merged, "--json"]));
    let records = path(Path::new(&merged), "records.jsonl");
    let (found, sessions) = read(&records);
    let each = [&first, &second, &whole].map(|out| read(&path(Path::new(out), "records.jsonl")));
    let both: BTreeSet<String> = each[0].0.union(&each[1].0).cloned().collect();
    assert_eq!(found, both);
    assert!(each[2].0.is_subset(&found), "{:?}", each[2].0.difference(&found));
    assert_eq!(sessions.len(), each[0].1.len() + each[1].1.len());
    assert!(sessions.iter().all(|s| s["host"].as_str().is_some_and(|h| s["session"].as_str().is_some_and(|n| n.ends_with(h)))));
    let host = &told[0]["hosts"][0];
    assert_eq!((&host["host"], &host["hardware"]), (&sessions[0]["host"], &sessions[0]["hardware"]));
    assert_eq!(told[0]["measurements"].as_u64(), Some(found.len() as u64));
    // The order of the files, and what the folder has already, make no difference.
    let before = std::fs::read(&records).expect("records");
    let said = text(&memlet(&["merge", &second, &first, "--out", &merged]));
    assert!(said.contains("measurements on") && std::fs::read(&records).expect("records") == before, "{said}");
    assert!(json(&memlet(&["solve", &records, "--json"])).as_array().is_some_and(|s| !s.is_empty()));
}

#[test]
fn times_of_two_processors_are_refused_or_kept_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let own = swept(folder.path(), "1/2");
    let (records, other) = (path(Path::new(&own), "records.jsonl"), path(folder.path(), "other.jsonl"));
    let lines = std::fs::read_to_string(&records).expect("records");
    let device = read(&records).1[0]["device"].to_string();
    std::fs::write(&other, lines.replace(&format!("\"device\":{device}"), "\"device\":\"another processor\"")).expect("written");
    let merged = path(folder.path(), "merged");
    let merge = ["merge", &records, &other, "--out", &merged];
    refused(&memlet(&merge), "another processor");
    assert!(!Path::new(&merged).exists());
    let apart = json(&memlet(&[&merge[..], &["--apart", "--json"]].concat()));
    let kinds = apart.as_array().expect("kinds");
    assert_eq!(kinds.len(), 2, "{apart}");
    for kind in kinds {
        let (_, sessions) = read(kind["records"].as_str().expect("a file"));
        assert!(sessions.iter().all(|s| s["device"] == kind["device"]));
    }
    refused(&memlet(&["merge", &path(folder.path(), "small.yaml"), "--out", &merged]), "no records of measurements");
    refused(&memlet(&["merge", &path(folder.path(), "nothing"), "--out", &merged]), "nothing");
}
