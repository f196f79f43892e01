//! A recipe from sweep to report on another device than this machine's cores, with the shim in place of a GPU; and the message without a
//! GPU.

use crate::command::{json, memlet, recipe, text};
use serde_json::Value;
use std::path::Path;

/// Optimizes a recipe on the shim and checks the results; returns the folder of the run and the names of the timed plans.
fn optimized(name: &str, sizes: &[&str], more: &[&str]) -> (tempfile::TempDir, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let recipe = recipe(name);
    let mut arguments = vec!["optimize", recipe.as_str(), "--device", "shim", "--budget", "0s", "--timing", "0s", "--out", &out, "--json"];
    arguments.extend(sizes.iter().flat_map(|size| ["--set", size]));
    arguments.extend(more);
    let found = json(&memlet(&arguments));
    assert!(found["verified"].as_array().is_some_and(|v| v.iter().any(|v| v["against"].as_str().is_some_and(|a| a.contains("oracle")))));
    assert!(found["verified"].as_array().is_some_and(|v| v.iter().all(|v| v["worst"].as_f64().is_some_and(|w| w <= 1.0))), "{found}");
    let plan: Value = serde_json::from_slice(&std::fs::read(folder.path().join("plan.json")).expect("a plan")).expect("JSON");
    assert_eq!(plan["target"], "shim");
    assert!(plan["device"].as_str().is_some_and(|d| d.contains("for tests")), "{}", plan["device"]);
    let kernels = std::fs::read_dir(folder.path().join("kernels")).expect("kernels");
    assert!(kernels.flatten().all(|k| k.path().extension().is_some_and(|e| e == "cu")));
    let page = std::fs::read_to_string(folder.path().join("report.html")).expect("a report");
    assert!(page.contains("for tests"));
    let timed = found["timed"].as_array().into_iter().flatten().filter_map(|t| t["plan"].as_str().map(String::from));
    (folder, timed.collect())
}

#[test]
fn softmax_from_recipe_to_report() {
    let (folder, _) = optimized("softmax.yaml", &["h=2", "b=2", "j=5"], &[]);
    let path = |name: &str| folder.path().join(name).display().to_string();
    // Solving from the records alone repeats the choice, and the certificate is confirmed.
    let solved = json(&memlet(&["solve", &path("records.jsonl"), "--json"]));
    assert!(solved.as_array().is_some_and(|s| !s.is_empty()));
    // The plan runs on the device that it was made for, and on no other.
    let ran = json(&memlet(&["run", &path("plan.json"), "--timing", "0s", "--accuracy", "--check", "--json"]));
    assert!(ran["checked"].as_array().is_some_and(|c| c.len() > 1 && c.iter().all(|c| c["ratio"].as_f64().is_some_and(|r| r <= 1.0))));
    assert!(ran["step_ms"].as_f64().is_some_and(|ms| ms > 0.0));
    let code = text(&memlet(&["explain", &path("plan.json"), "y", "--code"]));
    assert!(code.contains("(memlet_kernel, THREADS"), "{code}");
    let other = memlet(&["run", &path("plan.json"), "--device", "cpu"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&other.stderr).contains("made for shim"), "{other:?}");
    // Times of another device cannot be added to these records.
    let mixed = memlet(&["sweep", &recipe("softmax.yaml"), "--out", &folder.path().display().to_string(), "--budget", "0s"]);
    assert_eq!(mixed.status.code(), Some(2), "{mixed:?}");
}

/// In the recipe's order of dims one operand has no constant stride: sums of several products would be rounded in between, so that the
/// plain plan, too, has another order. The gradient by `z`, a product without rows, joins no group.
#[test]
fn a_layout_that_the_library_cannot_express() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, out) = (folder.path().join("m.yaml"), folder.path().join("out").display().to_string());
    let recipe = "model: m\ndims: {n: 5, o: 6, i: 3, j: 4}\ndtype: bf16\ninputs:\n  x: [i, n, j]\n  z: [n, o, j]\nparameters:\n  \
                  w: [o, i, j]\n  v: [n, j]\nsteps:\n  - a[n,o] = w[o,i,j] * x[i,n,j]\n  - c[n,o] = z[n,o,j] * v[n,j]\n  - \
                  y[n,o] = a[n,o] * c[n,o]\ntrain: {upstream: y}\n";
    std::fs::write(&path, recipe).expect("a recipe");
    let path = path.display().to_string();
    let found = json(&memlet(&["optimize", &path, "--device", "shim", "--budget", "0s", "--timing", "0s", "--out", &out, "--json"]));
    let verified = found["verified"].as_array().into_iter().flatten();
    let against: Vec<&str> = verified.filter_map(|v| v["against"].as_str()).collect();
    assert!(against.iter().any(|a| a.contains("plainest")), "{against:?}");
}

/// Contractions by cuBLASLt, in bf16 with weights held in f32.
#[test]
fn a_network_in_bf16_from_recipe_to_report() {
    let (folder, timed) = optimized("mlp.yaml", &["b=3", "i=4", "u=5"], &["--dtype", "bf16"]);
    let records = std::fs::read_to_string(folder.path().join("records.jsonl")).expect("records");
    assert!(records.contains("\"algorithm\":"), "contractions have the knobs of the library");
    // Independent gradients run concurrently in a candidate of its own.
    assert!(timed.iter().any(|name| name.ends_with("streams")), "{timed:?}");
    // Products with epilogues are a program of their own among the contenders.
    assert!(records.contains("\"gemm-fused\""), "epilogues were measured");
    let report: Value = serde_json::from_slice(&std::fs::read(folder.path().join("report.json")).expect("a report")).expect("JSON");
    let products = report["products"].as_array().expect("products");
    assert!(
        products.iter().any(|p| p["kernel"] == "hidden.dot") && products.iter().all(|p| p["measured"].as_u64() > Some(0)),
        "{products:?}"
    );
    let page = std::fs::read_to_string(folder.path().join("report.html")).expect("a report");
    assert!(page.contains("Matrix products"));
}

/// The same in f16, for storage and for operands.
#[test]
fn a_network_in_f16_from_recipe_to_report() {
    let (folder, _) = optimized("mlp.yaml", &["b=3", "i=4", "u=5"], &["--dtype", "f16"]);
    let plan = std::fs::read_to_string(folder.path().join("plan.json")).expect("a plan");
    assert!(plan.contains("w1.f16") && !plan.contains("bf16"), "weights are cast");
}

#[test]
fn several_devices_share_a_sweep() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let recipe = recipe("softmax.yaml");
    let sizes = ["--set", "h=2", "--set", "b=2", "--set", "j=2"];
    let mut arguments = vec!["sweep", recipe.as_str(), "--device", "shim:0,1", "--budget", "0s", "--out", &out, "--json"];
    arguments.extend(sizes);
    let first = json(&memlet(&arguments));
    assert!(first["stored"].as_u64().is_some_and(|n| n > 0));
    // The parts are removed, and their measurements are in the records, each once.
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").flatten().map(|f| f.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("part-")), "{left:?}");
    let sessions = std::fs::read_to_string(folder.path().join("records.jsonl")).expect("records");
    assert!(sessions.lines().filter(|line| line.contains("for tests")).count() >= 6, "each device begins its own sessions");
}

#[test]
fn without_a_gpu_the_missing_library_is_named() {
    // With a driver, this test does not apply.
    if kernels::target::cuda::Driver::find().is_ok() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run").display().to_string();
    for command in ["sweep", "optimize"] {
        let output = memlet(&[command, &recipe("softmax.yaml"), "--device", "cuda", "--out", &out]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{text}");
        let named = ["libcuda.so.1", "libnvrtc.so", "libcublasLt.so"].iter().any(|library| text.contains(library));
        assert!(named && text.contains("install"), "{text}");
        assert!(!Path::new(&out).exists(), "nothing is written");
    }
    let wrong = memlet(&["sweep", &recipe("softmax.yaml"), "--device", "gpu"]);
    assert_eq!(wrong.status.code(), Some(2));
}
