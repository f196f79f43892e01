//! `bench/gpu.sh` on the shim: the script itself, without a GPU and without peers.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

#[test]
fn one_command_leaves_records_and_a_report() {
    let there = |program: &str| Command::new(program).arg("--version").output().is_ok();
    if !(there("bash") && there("gzip")) {
        println!("skipped: bash or gzip not found, install both to run bench/gpu.sh");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let smi = folder.path().join("nvidia-smi");
    std::fs::write(&smi, "#!/bin/sh\necho 'Test GPU'\n").expect("a stand-in");
    std::fs::set_permissions(&smi, std::fs::Permissions::from_mode(0o755)).expect("a stand-in that runs");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let started = |out: &Path, stages: &str, seconds: &str| {
        Command::new("bash")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../bench/gpu.sh"))
            .arg(env!("CARGO_BIN_EXE_memlet"))
            .envs([("PATH", path.as_str()), ("DEVICE", "shim"), ("STAGES", stages), ("PYTHON", "false"), ("SECONDS_ALL", seconds)])
            .envs([("SIZES", "--set h=2 --set b=2 --set j=2"), ("DTYPE", "f32"), ("SECONDS_LAYER", "0"), ("TIMING", "0s")])
            .env("MEMLET_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels"))
            .env("RECORDS", out)
            .output()
            .expect("the script starts")
    };
    let out = folder.path().join("records");
    let output = started(&out, "machine recipe:softmax checks", "470");
    let log = std::fs::read_to_string(out.join("log.txt")).unwrap_or_default();
    assert!(output.status.success(), "{log}{}", String::from_utf8_lossy(&output.stderr));
    assert!(log.contains("done in"), "{log}");
    for file in ["records.jsonl.gz", "plan.json.gz", "report.json.gz", "certificate.json", "times.json", "kernels.txt"] {
        assert!(std::fs::metadata(out.join("softmax").join(file)).is_ok_and(|m| m.len() > 0), "{file} is missing: {log}");
    }
    assert!(std::fs::read_to_string(out.join("machine.txt")).is_ok_and(|text| text.contains("Test GPU")), "{log}");
    let kernels = std::fs::read(out.join("softmax/kernels.json")).expect("kernels");
    let kernels: serde_json::Value = serde_json::from_slice(&kernels).expect("JSON");
    let checked = kernels["checked"].as_array().expect("comparisons");
    assert!(!checked.is_empty() && checked.iter().all(|c| c["ratio"].as_f64().is_some_and(|r| r <= 1.0)), "{kernels}");

    // Without time left no stage begins, and the script reports it.
    let late = folder.path().join("late");
    let output = started(&late, "recipe:softmax checks peers", "0");
    assert_eq!(output.status.code(), Some(124));
    let log = std::fs::read_to_string(late.join("log.txt")).expect("a log");
    assert!(log.contains("softmax ended with code 124") && log.contains("done in"), "{log}");
    let peers = std::fs::read_to_string(late.join("peers.jsonl")).expect("peers");
    assert!(peers.lines().count() == 4 && peers.lines().all(|line| line.contains("no time was left")), "{peers}");
}
