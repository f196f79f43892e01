//! The whole way of a recipe on another device than this machine's cores: with the shim in place of a GPU, and what is said
//! without a GPU.

#[allow(dead_code)]
mod command;

use command::{json, memlet, recipe};
use kernels::device::cpu::Pool;
use kernels::device::shim::ShimDevice;
use kernels::device::{Device, Forms, Memory, Work};
use kernels::{Executable, KernelError, KernelSpec, Space};
use layouts::Store;
use layouts::candidates::Shard;
use layouts::record::Outcome;
use recipes::pipeline::PipelineError;
use recipes::pipeline::ledger::Ledger;
use recipes::pipeline::sweep::{Extent, Sweeping, sweep_program};
use sdfg::config::KernelConfig;
use sdfg::{Container, Layout};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Optimizes a recipe on the shim and checks what comes of it; the folder of the run stays.
fn optimized(name: &str, sizes: &[&str], more: &[&str]) -> tempfile::TempDir {
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
    folder
}

#[test]
fn softmax_from_recipe_to_report() {
    let folder = optimized("softmax.yaml", &["h=2", "b=2", "j=5"], &[]);
    let path = |name: &str| folder.path().join(name).display().to_string();
    // The choice is made again from the records alone, and confirmed.
    let solved = json(&memlet(&["solve", &path("records.jsonl"), "--json"]));
    assert!(solved.as_array().is_some_and(|s| !s.is_empty()));
    // The plan runs where it was made for, and nowhere else.
    let ran = json(&memlet(&["run", &path("plan.json"), "--timing", "0s", "--accuracy", "--json"]));
    assert!(ran["step_ms"].as_f64().is_some_and(|ms| ms > 0.0));
    let other = memlet(&["run", &path("plan.json"), "--device", "cpu"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&other.stderr).contains("made for shim"), "{other:?}");
    // Times of another device do not mix with these.
    let mixed = memlet(&["sweep", &recipe("softmax.yaml"), "--out", &folder.path().display().to_string(), "--budget", "0s"]);
    assert_eq!(mixed.status.code(), Some(2), "{mixed:?}");
}

/// Contractions as cuBLASLt is told to do them, in bf16 with weights held in f32.
#[test]
fn a_network_in_bf16_from_recipe_to_report() {
    let folder = optimized("mlp.yaml", &["b=3", "i=4", "u=5"], &["--dtype", "bf16"]);
    let records = std::fs::read_to_string(folder.path().join("records.jsonl")).expect("records");
    assert!(records.contains("\"algorithm\":"), "contractions have the knobs of the library");
    // Products with epilogues are a program of their own among those that compete.
    assert!(records.contains("\"variant\":\"composed\"") || records.contains("\"composed\""), "epilogues were measured");
    let report: Value = serde_json::from_slice(&std::fs::read(folder.path().join("report.json")).expect("a report")).expect("JSON");
    let products = report["products"].as_array().expect("products");
    assert!(
        products.iter().any(|p| p["kernel"] == "hidden.dot") && products.iter().all(|p| p["measured"].as_u64() > Some(0)),
        "{products:?}"
    );
    let page = std::fs::read_to_string(folder.path().join("report.html")).expect("a report");
    assert!(page.contains("Matrix products"));
}

/// The same in f16, as storage and as factors.
#[test]
fn a_network_in_f16_from_recipe_to_report() {
    let folder = optimized("mlp.yaml", &["b=3", "i=4", "u=5"], &["--dtype", "f16"]);
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
    // Parts are gone, and what they measured is in the records: twice nothing is measured.
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("a folder").flatten().map(|f| f.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("part-")), "{left:?}");
    let sessions = std::fs::read_to_string(folder.path().join("records.jsonl")).expect("records");
    assert!(sessions.lines().filter(|line| line.contains("for tests")).count() >= 6, "each device begins its own sessions");
}

#[test]
fn without_a_gpu_the_missing_library_is_named() {
    // Where there is a driver, this test has nothing to say.
    if kernels::device::cuda::Driver::find().is_ok() {
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

/// A device that fails for good after it has compiled so many kernels.
struct Fragile {
    device: ShimDevice,
    left: AtomicUsize,
    error: fn() -> KernelError,
}

impl Device for Fragile {
    fn name(&self) -> Option<String> {
        self.device.name()
    }

    fn toolchain(&self) -> String {
        self.device.toolchain()
    }

    fn clock(&self) -> &'static str {
        self.device.clock()
    }

    fn extension(&self) -> &'static str {
        self.device.extension()
    }

    fn forms(&self) -> Option<Forms> {
        self.device.forms()
    }

    fn space(&self, spec: &KernelSpec) -> Result<Box<dyn Space>, KernelError> {
        self.device.space(spec)
    }

    fn compile(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Arc<dyn Executable>, KernelError> {
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
            Ok(_) => self.device.compile(spec, config),
            Err(_) => Err((self.error)()),
        }
    }

    fn relayout(&self, container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<Arc<dyn Executable>, KernelError> {
        self.device.relayout(container, shape, from, to)
    }

    fn memory(&self, bytes: usize) -> Result<Memory, KernelError> {
        self.device.memory(bytes)
    }

    fn time(&self, work: Work) -> Result<f64, KernelError> {
        self.device.time(work)
    }
}

/// Sweeps softmax on a device, as far as it goes; the error, and what the records hold afterwards.
fn swept(device: &dyn Device, folder: &Path) -> (Option<PipelineError>, Store) {
    let sizes = ["h", "b", "j"].map(|dim| (dim.to_string(), 2));
    let recipe = recipes::load::load(Path::new(&recipe("softmax.yaml")), &sizes).expect("a recipe");
    let program = recipes::pipeline::programs::programs(&recipe, false).expect("programs").variants.remove(0).program;
    let path = folder.join("records.jsonl");
    let mut store = Store::open(&path).expect("records");
    let (pool, mut ledger) = (Pool::new(1).expect("workers"), Ledger::open(folder));
    let mut with = Sweeping {
        pool: &pool,
        device,
        store: &mut store,
        interrupt: &AtomicBool::new(false),
        cache: layouts::record::Cache::Warm,
        shard: Shard::WHOLE,
        ledger: &mut ledger,
        progress: &mut |_, _| (),
    };
    let outcome = sweep_program("separate", &program, Some(Duration::ZERO), Extent::Whole, &mut with);
    (outcome.err(), Store::read(&path).expect("records"))
}

#[test]
fn a_device_that_is_lost_takes_no_measurement_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let shim = || ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/command/shim").into());
    let lost = || KernelError::GpuLost { what: "cuStreamSynchronize: no device".into() };
    // A kernel is compiled to be checked, and again to be timed: the second one gets as far as that.
    let fragile = Fragile { device: shim(), left: AtomicUsize::new(3), error: lost };
    let (error, store) = swept(&fragile, folder.path());
    let text = error.expect("the device is gone").to_string();
    assert!(text.contains("no device") && text.contains("nothing more can be measured"), "{text}");
    let (kept, timed) = (store.all().count(), store.all().filter(|m| m.ms().is_some()).count());
    assert_eq!((kept, timed), (1, 1), "what failed is not the configuration's fault");
    // A device that breaks under a configuration takes that configuration out; what it is asked next it has answered before.
    let crash = || KernelError::Crash { what: "an illegal address".into() };
    let (error, store) = swept(&Fragile { device: shim(), left: AtomicUsize::new(0), error: crash }, folder.path());
    assert!(error.is_some_and(|e| e.to_string().contains("an illegal address")));
    let failed: Vec<_> = store.all().filter(|m| matches!(m.outcome, Outcome::Failed { .. })).collect();
    assert_eq!((failed.len(), store.all().count()), (1, kept + 1));
    // A healthy device goes on from there, and leaves that one alone.
    let (error, after) = swept(&shim(), folder.path());
    assert!(error.is_none(), "{error:?}");
    assert!(after.all().count() > kept + 1);
    let again = after.get(&failed[0].key, &failed[0].config).map(|m| &m.outcome);
    assert_eq!(again, Some(&failed[0].outcome));
}
