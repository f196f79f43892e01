//! Programs that do not fit into memory: the others go on without them.

use crate::command::{memlet, path, recipe, refused, text};
use recipes::load::load;
use recipes::pipeline::choose::plan::Plan;
use recipes::pipeline::measure::memory_limit::needed;
use recipes::pipeline::variants::programs::programs;
use std::path::Path;

#[test]
fn a_composed_program_is_measured_without_those_that_do_not_fit() {
    let sizes: Vec<(String, i64)> = [("b", 2), ("h", 2), ("j", 96), ("p", 3), ("i", 5)].map(|(dim, size)| (dim.to_string(), size)).into();
    let mha = recipe("mha.yaml");
    let all = programs(&load(Path::new(&mha), &sizes).expect("a recipe"), false).expect("programs");
    let needs = |name: &str| {
        let variant = all.variants.iter().find(|v| v.key.to_string() == name).expect("a program");
        needed(&variant.program).expect("sizes").0
    };
    let (composed, separate) = (needs("gemm-fused"), needs("fused"));
    assert!(composed < separate && composed < needed(&all.unfused).expect("sizes").0);

    let folder = tempfile::tempdir().expect("a folder");
    let out = path(folder.path(), "out");
    let set: Vec<String> = sizes.iter().map(|(dim, size)| format!("{dim}={size}")).collect();
    let optimize = |memory: &str| {
        let mut arguments = vec!["optimize", mha.as_str(), "--budget", "0s", "--timing", "0s", "--out", &out, "--memory", memory];
        arguments.extend(set.iter().flat_map(|size| ["--set", size]));
        memlet(&arguments)
    };
    let told = text(&optimize(&composed.to_string()));
    for left in ["fused", "unfused", "stacked wq+wk+wv"] {
        assert!(told.contains(&format!("{left} is left out: it would need ")), "{left}: {told}");
    }
    assert!(told.contains("at full size"), "{told}");
    let plan = Plan::read(&folder.path().join("out/plan.json")).expect("a plan");
    assert!(plan.baselines.is_empty());
    let page = std::fs::read_to_string(folder.path().join("out/report.html")).expect("a report");
    assert!(page.contains("gemm-fused"));
    text(&memlet(&["run", &path(folder.path(), "out/plan.json"), "--timing", "0s", "--baselines"]));

    refused(&optimize(&(composed - 1).to_string()), "would need least");
    refused(&optimize("much"), "write 8GB or 512MB");
}
