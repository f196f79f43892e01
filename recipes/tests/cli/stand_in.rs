//! `--device cuda` on libraries that stand in for CUDA's: all calls to a GPU, and its possible answers, without a GPU.

use crate::command::{json, path, recipe};
use bench::unit::Bytes;
use kernels::target::shim::stand_in::StandIn;
use recipes::load::load;
use recipes::pipeline::measure::memory_limit::MemoryLimit;
use recipes::pipeline::variants::programs::programs;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::LazyLock;

/// Bytes that the device takes for itself: workspaces of products in four streams, the buffer that empties caches, and random numbers.
const TAKEN: u64 = (4 << 25) + (128 << 10) + 24;
const TINY: [&str; 6] = ["--set", "b=2", "--set", "j=4", "--set", "h=2"];

/// Runs `memlet` with the stand-in as CUDA; the environment sets its deviations from a whole GPU.
fn memlet(arguments: &[&str], faults: &[(&str, &str)]) -> Output {
    static MADE: LazyLock<StandIn> = LazyLock::new(|| StandIn::make(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("it is compiled"));
    Command::new(env!("CARGO_BIN_EXE_memlet"))
        .args(arguments)
        .envs(MADE.environment())
        .envs(faults.iter().copied())
        .output()
        .expect("memlet starts")
}

/// A short sweep of softmax, and the rest of `optimize`.
fn optimize(out: &Path, device: &str, faults: &[(&str, &str)]) -> Output {
    let (out, recipe) = (out.display().to_string(), recipe("softmax.yaml"));
    let what = ["optimize", &recipe, "--device", device, "--budget", "1s", "--timing", "0s", "--json", "--out", &out];
    memlet(&[&what[..], &TINY].concat(), faults)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The number of measured configurations in the records.
fn measured(out: &Path) -> usize {
    let records = std::fs::read_to_string(out.join("records.jsonl")).unwrap_or_default();
    records.lines().filter(|line| line.contains("\"outcome\":\"measured\"")).count()
}

#[test]
fn missing_gpu_features_are_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    for (fault, code, words) in [
        (("MEMLET_STAND_IN_VERSION", "12080"), 4, "runs CUDA 12.8 at most, and CUDA 13.0 is needed"),
        (("MEMLET_STAND_IN_MEMORY", "40000"), 1, "could not be had on Stand-in GPU"),
        (("MEMLET_STAND_IN_MEMORY", &(TAKEN + 40).to_string()), 2, "the GPU has 40 B of free memory"),
        (("MEMLET_STAND_IN_FAULT", "cuInit 0 100"), 4, "CUDA_ERROR_NO_DEVICE"),
        (("MEMLET_STAND_IN_GPUS", "0"), 4, "the driver knows no device"),
    ] {
        let output = optimize(folder.path(), "cuda", &[fault]);
        assert_eq!(output.status.code(), Some(code), "{fault:?}: {}", said(&output));
        assert!(said(&output).contains(words), "{fault:?}: {}", said(&output));
    }
    // A missing GPU among several is reported at once, not after the others have spent their time.
    let out = folder.path().join("several");
    let output = optimize(&out, "cuda:0,1", &[]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("there are 1 GPUs, but number 1 was asked for") && !out.exists(), "{}", said(&output));
}

/// Programs that do not fit into the GPU's memory are left out, and the others are measured.
#[test]
fn programs_that_do_not_fit_into_the_gpus_memory_are_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let sizes = [("b", 2), ("j", 64), ("h", 2)].map(|(dim, size)| (dim.to_string(), size));
    let all = programs(&load(Path::new(&recipe("softmax.yaml")), &sizes).expect("a recipe"), false).expect("programs");
    let needs = |program| MemoryLimit::Device(Bytes(0)).needed(program).expect("sizes").0;
    let (fused, unfused) = (needs(&all.variants[0].program), needs(&all.unfused));
    assert!(fused < unfused, "{fused} {unfused}");
    let out = folder.path().display().to_string();
    let what = ["sweep", &recipe("softmax.yaml"), "--device", "cuda", "--budget", "0s", "--set", "j=64", "--out", &out];
    let sweep = |memory: u64| memlet(&[&what[..], &TINY[..2], &TINY[4..]].concat(), &[("MEMLET_STAND_IN_MEMORY", &memory.to_string())]);
    let output = sweep(TAKEN + unfused - 1);
    assert!(output.status.success(), "{}", said(&output));
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &said(&output);
    assert!(told.contains("unfused is left out: it would need") && told.contains("of the device's memory and may have"), "{told}");
    let output = sweep(TAKEN + fused - 1);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("use smaller sizes"), "{}", said(&output));
}

/// The device is lost in the middle of a sweep. With two devices the sweep goes on, and its results are right.
#[test]
fn no_measurement_is_lost_with_the_device() {
    let folder = tempfile::tempdir().expect("a folder");
    // One configuration takes at most about 30 timings, and the first ones of all kernels together more than 40.
    let output = optimize(folder.path(), "cuda", &[("MEMLET_STAND_IN_FAULT", "cuEventElapsedTime_v2 40 46")]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("the GPU can no longer be used") && text.contains("what was measured is kept"), "{text}");
    let before = measured(folder.path());
    assert!(before > 0, "{text}");
    // The loss of one of two devices is reported when it happens.
    let lost = folder.path().join("lost");
    let output = optimize(&lost, "cuda:0,1", &[("MEMLET_STAND_IN_GPUS", "2"), ("MEMLET_STAND_IN_FAULT", "cuEventElapsedTime_v2 40 46")]);
    assert!(!output.status.success() && said(&output).contains(" is lost: "), "{}", said(&output));
    assert!(measured(&lost) > 0, "{}", said(&output));
    let output = optimize(folder.path(), "cuda:0,1", &[("MEMLET_STAND_IN_GPUS", "2")]);
    assert!(output.status.success() && measured(folder.path()) >= before, "{}", said(&output));
    assert!(said(&output).contains("against the oracle"), "{}", said(&output));
    let plan = path(folder.path(), "plan.json");
    let run: Value = json(&memlet(&["run", &plan, "--check", "--timing", "0s", "--json"], &[]));
    let checked = run["checked"].as_array().expect("comparisons");
    assert!(!checked.is_empty() && checked.iter().all(|c| c["ratio"].as_f64().is_some_and(|r| r <= 1.0)), "{run}");
    // Elsewhere algorithms have other numbers, which a warning reports; on the same machine there is no warning.
    let again = || said(&memlet(&["run", &plan, "--timing", "0s"], &[]));
    assert!(!again().contains("this plan was chosen"), "{}", again());
    let text = std::fs::read_to_string(&plan).expect("a plan");
    std::fs::write(&plan, text.replace("cuBLASLt ", "cuBLASLt 1")).expect("written");
    assert!(again().contains("algorithms may bear other numbers; choose again"), "{}", again());
}

/// A launch breaks the context: the command restarts without that kernel, and at most as often as allowed.
#[test]
fn a_kernel_that_breaks_the_context_is_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = optimize(folder.path(), "cuda", &[("MEMLET_STAND_IN_FAULT", "cuLaunchKernel 0 719"), ("MEMLET_BEGUN_BEFORE", "98")]);
    let text = said(&output);
    assert_eq!(text.matches("beginning again without that kernel; what was measured is kept").count(), 2, "{text}");
    assert!(!output.status.success(), "{text}");
    let records = std::fs::read_to_string(folder.path().join("records.jsonl")).expect("records");
    assert_eq!(records.lines().filter(|line| line.contains("a kernel broke the GPU's context")).count(), 3, "{records}");
}
