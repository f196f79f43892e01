//! Kernels and layouts that are faster within the step than alone. The choices depend on times, so these tests run on their own.

#[path = "cli/command/mod.rs"]
#[allow(dead_code)]
mod command;

use command::{json, memlet, recipe, text, with_times};
use serde_json::Value;

/// Times that contradict the measurements, all within a few percent: the selected configurations are slow, and the step shows it.
#[test]
fn a_kernel_that_is_slow_in_the_step_is_exchanged() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mlp, file) = (recipe("mlp.yaml"), |name: &str| folder.path().join(name).display().to_string());
    let optimize = |out: &str, budget: &str| {
        // Sizes without panels: several configurations have the same layouts.
        let more = ["--set", "b=60", "--set", "i=250", "--set", "u=500", "--timing", "0s", "--json"];
        json(&memlet(&[&["optimize", mlp.as_str(), "--budget", budget, "--out", out], &more[..]].concat()))
    };
    let opposite = |record: &Value| 1.0 + 0.05 / (1.0 + record["samples"][0].as_f64().expect("a time"));
    // Plans that were decided by times within the step: on layouts, and on other knobs in the layouts of the fastest plan. On a slow
    // machine a few seconds measure few configurations of a kernel in the same layouts, so the budget rises each round. A budget counts
    // the time of earlier runs.
    let exchanged = (0..5).find_map(|round| {
        optimize(&file("measured"), &format!("{}s", 8 << round));
        let records = std::fs::read_to_string(file("measured/records.jsonl")).expect("records");
        let out = file(&format!("opposite{round}"));
        std::fs::create_dir(&out).expect("a folder");
        std::fs::write(format!("{out}/records.jsonl"), with_times(&records, opposite)).expect("records");
        let found = optimize(&out, "0s");
        let names = found["timed"].as_array().expect("plans").iter().filter_map(|t| t["plan"].as_str().map(String::from));
        let names: Vec<String> = names.filter(|n| n.ends_with("chosen again") || n.ends_with("in the step")).collect();
        (!names.is_empty()).then_some((out, names))
    });
    let (out, names) = exchanged.expect("other plans");
    for name in names {
        let words: Vec<&str> = name.split(|c: char| !c.is_ascii_alphanumeric() && c != '+').filter(|w| !w.is_empty()).collect();
        let path = format!("{out}/plans/{}.json", words.join("-"));
        let plan: Value = serde_json::from_slice(&std::fs::read(&path).expect("a plan")).expect("JSON");
        let exchanges = plan["chosen"]["exchanges"].as_array().expect("exchanges");
        assert!(!exchanges.is_empty());
        for exchange in exchanges {
            let kernel = exchange["kernel"].as_str().expect("a name");
            assert_ne!(plan["chosen"]["configuration"]["kernels"][kernel], exchange["chosen"], "{kernel}");
            let records = format!("{out}/records.jsonl");
            assert!(text(&memlet(&["explain", &path, kernel, "--records", &records])).contains("ms within the step instead of"));
        }
        // Where layouts were reselected, a kernel may become slower for the benefit of its neighbours.
        let faster = |e: &Value| e["taken_ms"].as_f64() < e["chosen_ms"].as_f64();
        assert!(name.contains("chosen again") || exchanges.iter().all(faster), "{exchanges:?}");
        let run = json(&memlet(&["run", &path, "--timing", "0s", "--check", "--json"]));
        let checked = run["checked"].as_array().expect("comparisons");
        assert!(!checked.is_empty() && checked.iter().all(|c| c["ratio"].as_f64().is_some_and(|r| r <= 1.0)), "{checked:?}");
    }
}
