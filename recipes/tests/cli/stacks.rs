//! A stack of layers from records of one layer, and records of runs with cold caches.

use crate::command::{json, memlet, path, refused, text};
use serde_json::Value;

const RECIPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/softmax.yaml");

#[test]
fn a_stack_is_chosen_from_cold_records_of_one_layer() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let sizes = ["--set", "h=2", "--set", "b=2", "--set", "j=8"];
    let sweep = [&["sweep", RECIPE, "--budget", "1s", "--out", &out], sizes.as_slice()].concat();
    text(&memlet(&[sweep.as_slice(), &["--cold"]].concat()));
    // The same folder cannot hold warm times too.
    refused(&memlet(&sweep), "cold caches");

    let records = path(folder.path(), "records.jsonl");
    let lines = std::fs::read_to_string(&records).expect("records");
    assert!(lines.lines().next().is_some_and(|session| session.contains("\"cache\":\"cold\"")));
    assert!(text(&memlet(&["solve", &records, "--resamples", "0"])).contains("cold caches"));

    let solve = ["solve", &records, "--layers", "5"];
    let all = json(&memlet(&[solve.as_slice(), &["--json"]].concat()));
    // The fastest program varies from run to run; records are explained by the fastest one.
    let total = |d: &Value| d["total_ms"].as_f64().unwrap_or(f64::INFINITY);
    let stack = all.as_array().expect("programs").iter().min_by(|a, b| total(a).total_cmp(&total(b))).expect("the recipe");
    let is_unfused = stack["name"].as_str().expect("a name").contains("unfused");
    assert_eq!(stack["joins"][0], serde_json::json!(["y", "x"]));
    assert_eq!((&stack["proven"], &stack["cache"]), (&Value::Bool(true), &Value::from("cold")));
    assert!(stack["total_ms"].as_f64() <= stack["alone_ms"].as_f64());
    let layers: usize = stack["choices"].as_array().expect("choices").iter().map(|c| c["layers"].as_array().map_or(0, Vec::len)).sum();
    assert_eq!(layers, 5);
    assert!(text(&memlet(&solve)).contains("5 layers; y is x of the next"));
    let certificates: Vec<String> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .filter_map(|entry| entry.ok()?.path().to_str().map(String::from))
        .filter(|name| name.contains("certificate") && name.contains("unfused") == is_unfused)
        .collect();
    assert_eq!(certificates.len(), 1, "{certificates:?}");
    let confirmed = json(&memlet(&["verify-selection", &certificates[0], "--json"]));
    assert_eq!(confirmed["proven"], true);
    let total = stack["total_ms"].as_f64().expect("a time");
    assert_eq!((total * 1e9).round() as i64, confirmed["total_ps"].as_i64().expect("a time"));
    // The runner-up of a tensor and of a kernel, from the certificate and from the records.
    for name in ["y", stack["choices"][0]["selection"]["kernels"][0]["kernel"].as_str().expect("a name")] {
        let certified = json(&memlet(&["explain", &certificates[0], name, "--json"]));
        assert_eq!((certified["choice"]["total_ms"].as_f64(), &certified["choice"]["proven"]), (Some(total), &Value::Bool(true)));
        assert!(certified["choice"]["runner_up"]["more_ms"].as_f64().is_none_or(|ms| ms >= 0.0));
        let recorded = json(&memlet(&["explain", &records, name, "--layers", "5", "--json"]));
        assert_eq!(recorded, certified);
    }
    refused(&memlet(&["explain", &certificates[0], "nothing"]), "there are: ");
    // Stopped at once: the result so far, and its largest distance from the best.
    let stopped = json(&memlet(&[solve.as_slice(), &["--time", "0s", "--json"]].concat()));
    let stopped = stopped.as_array().expect("programs").iter().find(|d| d["name"] == stack["name"]).expect("the recipe");
    assert!(stopped["bound_ms"].as_f64().expect("a bound") <= total && total <= stopped["total_ms"].as_f64().expect("a time"));
    refused(&memlet(&[solve.as_slice(), &["--join", "y=y"]].concat()), "tied to the other");
    refused(&memlet(&["solve", &records, "--layers", "0"]), "--layers");
}
