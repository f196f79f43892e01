//! `memlet train` as a user runs it: from a recipe to parameters, killed and gone on.

use crate::command::{memlet, path, recipe, refused, text};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const RECIPE: &str = "model: small
dims: {b: 8, i: 6, u: 16, o: 3}
inputs:
  x: {dims: [b, i], grad: false}
  label: {dims: [b], dtype: i32, grad: false, range: \"[0, size(o))\"}
  lr: {dims: [], grad: false}
parameters:
  w1: {dims: [i, u], initial: normal(0.5)}
  c1: {dims: [u], initial: 0}
  w2: {dims: [u, o], initial: normal(0.3)}
steps:
  - \"h[b,u] = dropout(relu(x[b,i] * w1[i,u] + c1[u]), rate: 0.2)\"
  - \"score[b,o] = h[b,u] * w2[u,o]\"
  - \"loss[] = mean(cross_entropy(score, label, over: o), over: b)\"
  - \"right[] = mean(where(argmax(score, over: o) == label, 1, 0), over: b)\"
train: {loss: loss}
update: \"adam(rate: lr)\"
";

/// Writes the recipe and 50 samples whose label is where the larger of two sums lies.
fn prepare(folder: &Path) {
    std::fs::write(folder.join("small.yaml"), RECIPE).expect("a recipe");
    let x: Vec<f32> = sdfg::random::tensor(2, "x", 50 * 6).into_iter().map(|v| v as f32).collect();
    let class = |row: &[f32]| match row[0] + row[1] - row[2] {
        s if s < -0.7 => 0u8,
        s if s < 0.7 => 1,
        _ => 2,
    };
    let label: Vec<u8> = x.chunks(6).map(class).collect();
    let mut file = ndarray_npy::NpzWriter::new(std::fs::File::create(folder.join("data.npz")).expect("a file"));
    file.add_array("x", &ndarray::Array2::from_shape_vec((50, 6), x).expect("a matrix")).expect("samples");
    file.finish().expect("an archive");
    // A file of one tensor is called as the tensor is.
    ndarray_npy::write_npy(folder.join("label.npy"), &ndarray::Array1::from(label)).expect("labels");
}

/// The arguments of a run in a folder.
fn run(folder: &Path, steps: &str, checkpoints: &str, more: &[&str]) -> Vec<String> {
    ["train", &path(folder, "small.yaml"), "--out", &path(folder, "plan"), "--budget", "2s", "--steps", steps]
        .into_iter()
        .chain(["--data", &path(folder, "data.npz"), &path(folder, "label.npy"), "--shuffle"])
        .chain(["--set-input", "lr=cosine(0.01, warmup: 10, end: 0.001)", "--checkpoint", &path(folder, checkpoints), "--every", "150"])
        .chain(more.iter().copied())
        .map(String::from)
        .collect()
}

fn trained(folder: &Path, steps: &str, checkpoints: &str, more: &[&str]) -> std::process::Output {
    let words = run(folder, steps, checkpoints, more);
    memlet(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

const STEPS: &str = "3000";

#[test]
fn a_killed_run_goes_on_and_ends_as_one_that_was_not_killed() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    prepare(folder);
    // The first run makes the plan.
    let whole = trained(folder, STEPS, "whole", &["--log", &path(folder, "whole.csv"), "--json"]);
    let errors = String::from_utf8_lossy(&whole.stderr).into_owned();
    assert!(errors.contains("there is no plan of this recipe") && errors.contains("50 samples, shuffled, 8 a step along `b`"), "{errors}");
    let lines: Vec<Value> = text(&whole).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((lines.len(), &lines[0]["step"], &lines[2999]["step"]), (3001, &1.into(), &3000.into()));
    let mean =
        |lines: &[Value], key: &str| lines.iter().map(|line| line[key].as_f64().expect("a number")).sum::<f64>() / lines.len() as f64;
    assert!(mean(&lines[2900..3000], "loss") < 0.5 * mean(&lines[..100], "loss"));
    assert!(mean(&lines[2900..3000], "right") > 0.85 && lines[4]["lr"] == 0.005, "{}", lines[4]);
    assert!(lines[3000]["samples_per_second"].as_f64().is_some_and(|rate| rate > 1.0));
    let picture = std::fs::read_to_string(folder.join("whole.svg")).expect("a picture");
    assert!(picture.contains("mean of the last 20") && picture.contains("step 3000"), "{picture}");

    // Killed as soon as it has left something to go on from.
    let mut child = Command::new(env!("CARGO_BIN_EXE_memlet"))
        .args(run(folder, STEPS, "parts", &["--log", &path(folder, "parts.csv")]))
        .env("MEMLET_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("memlet starts");
    let (since, first) = (Instant::now(), folder.join("parts/step-000300.safetensors"));
    while !first.exists() {
        assert!(since.elapsed() < Duration::from_secs(120) && child.try_wait().expect("a process").is_none(), "there is no checkpoint");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().expect("a kill");
    child.wait().expect("an end");
    assert!(!folder.join("parts/step-003000.safetensors").exists(), "it was done before it was killed");
    let rest = trained(folder, STEPS, "parts", &["--log", &path(folder, "parts.csv")]);
    let errors = String::from_utf8_lossy(&rest.stderr).into_owned();
    assert!(errors.contains("going on after step") && errors.contains("of an earlier command"), "{errors}");
    assert!(text(&rest).contains("checkpoint:") && text(&rest).contains("a step takes"), "{}", text(&rest));
    let bytes = |name: &str| std::fs::read(folder.join(name)).expect("a checkpoint");
    assert!(bytes("parts/step-003000.safetensors") == bytes("whole/step-003000.safetensors"), "the runs end differently");
    // Logs have the same lines but for the time.
    let log = |name: &str| -> Vec<String> {
        let text = std::fs::read_to_string(folder.join(name)).expect("a log");
        text.lines().map(|line| line.rsplit_once(',').expect("columns").0.to_string()).collect()
    };
    assert_eq!(log("whole.csv")[0], "step,loss,right,lr");
    assert!(log("whole.csv") == log("parts.csv"), "the logs differ");
    // No half-written file is left.
    let left = std::fs::read_dir(folder.join("parts")).expect("a folder").flatten().map(|e| e.file_name().into_string().expect("a name"));
    assert!(left.into_iter().all(|name| !name.ends_with(".part")));
    let done = trained(folder, STEPS, "parts", &[]);
    assert!(String::from_utf8_lossy(&done.stderr).contains("all 3000 steps are done; a larger --steps goes on"));
    text(&done);

    // The length of the schedule is part of the run.
    refused(
        &trained(folder, "3001", "parts", &[]),
        "it was made with other set inputs, lr=cosine(0.01, warmup: 10, end: 0.001, over: 3000)",
    );
    refused(&trained(folder, STEPS, "parts", &["--seed", "2"]), "it was made with --seed 1; give that, or begin a run of its own");
    refused(&trained(folder, STEPS, "other", &["--resume", &path(folder, "data.npz")]), "this is no whole checkpoint");
    refused(&trained(folder, STEPS, "other", &["--set-input", "lr=fast"]), "`fast` is no value of an input: write a number, or cosine(");
    // A plan stands for its recipe, whose sizes it fixes.
    let plan = ["train", &path(folder, "plan"), "--steps", "1", "--data", &path(folder, "data.npz"), "--set", "b=4"];
    refused(&memlet(&plan), "the sizes and types of a plan are fixed");
    refused(&memlet(&plan[..6]), "the input `label` [b] has no data");
    refused(
        &memlet(&["train", &recipe("softmax.yaml"), "--steps", "1", "--out", &path(folder, "none"), "--budget", "0s"]),
        "the recipe has no loss to train by",
    );
}
