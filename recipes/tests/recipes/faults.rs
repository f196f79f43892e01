//! Devices that fail in the middle of a sweep: the message, the fate of the measurements, and how a sound device continues.

use crate::device_support::{Call, Fake, Planted};
use kernels::KernelError;
use kernels::device::Device;
use kernels::pool::Pool;
use layouts::Store;
use layouts::record::{CacheState, Outcome};
use recipes::pipeline::PipelineError;
use recipes::pipeline::measure::budget_ledger::BudgetLedger;
use recipes::pipeline::measure::sweep::{MeasurementSetup, SweepContext, SweepEvent, SweepExtent, sweep_program};
use sdfg::Sdfg;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Softmax at small sizes, forward and backward.
static SOFTMAX: LazyLock<Sdfg> = LazyLock::new(|| {
    let sizes = ["h", "b", "j"].map(|dim| (dim.to_string(), 2));
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("softmax.yaml");
    let recipe = recipes::load::load(&recipe, &sizes).expect("a recipe");
    recipes::pipeline::variants::programs::programs(&recipe, false).expect("programs").variants.remove(0).program
});

/// Sweeps softmax on a device as far as it goes; returns the error and the records.
fn swept(device: &dyn Device, folder: &Path, cache: CacheState) -> (Option<PipelineError>, Store) {
    let path = folder.join("records.jsonl");
    let mut store = Store::open(&path).expect("records");
    let (pool, mut ledger) = (Pool::new(1).expect("workers"), BudgetLedger::open(folder));
    let interrupt = AtomicBool::new(false);
    let setup = MeasurementSetup { pool: &pool, device, store: &mut store, ledger: &mut ledger, interrupt: &interrupt };
    let mut silent = |_: SweepEvent| ();
    let mut with = SweepContext { cache, ..SweepContext::unbounded(setup, &mut silent) };
    let outcome = sweep_program("fused", &SOFTMAX, Some(Duration::ZERO), SweepExtent::Whole, &mut with);
    (outcome.err(), Store::read(&path).expect("records"))
}

fn memory() -> KernelError {
    KernelError::GpuMemory { gpu: "a GPU".into(), bytes: 1 << 40, free: 1 << 30, total: 1 << 37 }
}

fn refused() -> KernelError {
    KernelError::Cuda { what: "launching `softmax`: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES".into() }
}

fn crash() -> KernelError {
    KernelError::Crash { what: "a kernel on the GPU: CUDA_ERROR_ILLEGAL_ADDRESS".into() }
}

fn lost() -> KernelError {
    KernelError::GpuLost { what: "cuStreamSynchronize: CUDA_ERROR_DEVICE_UNAVAILABLE".into() }
}

/// The effect of a failure on a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It ends; the same command repeats the call.
    Ends,
    /// It ends; the same command continues without that configuration.
    EndsWithout,
    /// It continues without those configurations.
    GoesOn,
}

/// A call, its failure, the effect on the sweep, and a part of the message.
type Case = (Call, fn() -> KernelError, Effect, &'static str);

/// A sweep in which a call fails as soon as there is a measurement: the number of answered calls, and the result.
fn failing(call: Call, error: fn() -> KernelError) -> (usize, tempfile::TempDir, Option<PipelineError>, Store) {
    for answered in 1.. {
        let folder = tempfile::tempdir().expect("a folder");
        let (ended, store) = swept(&Fake::new(Some(Planted::after(answered, call, error))), folder.path(), CacheState::Warm);
        // The number of calls for a measurement depends on times.
        if store.all().any(|m| m.ms().is_some()) {
            return (answered, folder, ended, store);
        }
    }
    unreachable!("calls are counted on without end")
}

#[test]
fn no_failure_loses_a_measurement() {
    use Effect::{Ends, EndsWithout, GoesOn};
    let cases: [Case; 12] = [
        (Call::Compile, memory, Ends, "could not be had on a GPU"),
        (Call::Compile, refused, GoesOn, ""),
        (Call::Compile, crash, EndsWithout, "broke the GPU's context"),
        (Call::Compile, lost, Ends, "can no longer be used"),
        (Call::Memory, memory, Ends, "use smaller sizes"),
        (Call::Memory, lost, Ends, "can no longer be used"),
        (Call::Run, refused, GoesOn, ""),
        (Call::Run, crash, EndsWithout, "goes on without that kernel"),
        (Call::Run, lost, Ends, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
        (Call::Time, crash, EndsWithout, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        (Call::Time, lost, Ends, "nothing more can be measured"),
        (Call::Record, refused, GoesOn, ""),
    ];
    for (call, error, effect, says) in cases {
        let (answered, folder, ended, store) = failing(call, error);
        let name = format!("{call:?} after {answered}, {error:?}", error = error().to_string());
        // The command is restarted where that helps.
        assert_eq!(ended.as_ref().is_some_and(PipelineError::goes_on), effect == EndsWithout, "{name}");
        let text = ended.map(|e| e.to_string());
        assert_eq!(text.is_some(), effect != GoesOn, "{name}: {text:?}");
        assert!(text.as_ref().is_none_or(|text| text.contains(says)), "{name}: {text:?}");
        let kept: Vec<_> = store.all().filter(|m| m.ms().is_some()).cloned().collect();
        assert!(!kept.is_empty(), "{name}: what was measured before is in the records");
        let failed: Vec<_> = store.all().filter(|m| matches!(m.outcome, Outcome::Failed { .. })).cloned().collect();
        match effect {
            Ends => assert!(failed.is_empty(), "{name}: no configuration is at fault"),
            EndsWithout => assert_eq!(failed.len(), 1, "{name}"),
            GoesOn => assert!(!failed.is_empty(), "{name}"),
        }
        // A sound device continues from there: it keeps the measurements, and repeats no failed configuration.
        let (ended, after) = swept(&Fake::new(None), folder.path(), CacheState::Warm);
        assert!(ended.is_none(), "{name}: {ended:?}");
        assert!(kept.iter().all(|m| after.get(&m.key, &m.config).is_some_and(|n| n.ms().is_some())), "{name}");
        assert!(failed.iter().all(|m| after.get(&m.key, &m.config).map(|n| &n.outcome) == Some(&m.outcome)), "{name}");
        assert!(effect == GoesOn || after.all().count() > store.all().count(), "{name}");
    }
}

#[test]
fn cold_runs_are_single_and_find_nothing_in_the_caches() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = Fake::new(None);
    let (ended, store) = swept(&device, folder.path(), CacheState::Cold);
    if !cfg!(target_arch = "x86_64") {
        // On other architectures this machine's caches, which the shim uses, cannot be emptied.
        return assert!(ended.is_some_and(|e| e.to_string().contains("leave out --cold")));
    }
    assert!(ended.is_none(), "{ended:?}");
    assert_eq!(store.cache(), CacheState::Cold);
    let calls = device.calls.lock().expect("calls");
    let timed: Vec<usize> = (0..calls.len()).filter(|n| calls[*n] == Call::Time).collect();
    assert!(timed.len() > 3 && timed.iter().all(|n| calls[n - 1] == Call::Flush), "{calls:?}");
    assert!(!calls.contains(&Call::Record), "what runs several times finds its tensors in the caches");
    drop(calls);
    // Warm runs are recorded, and nothing is flushed; their times do not mix with cold ones.
    let folder = tempfile::tempdir().expect("a folder");
    let device = Fake::new(None);
    assert!(swept(&device, folder.path(), CacheState::Warm).0.is_none());
    assert!(device.called(Call::Record) > 0 && device.called(Call::Flush) == 0);
}

#[test]
fn missing_devices_have_an_exit_code_of_their_own() {
    let old = kernels::target::cuda::driver::new_enough((12, 4), (13, 0)).expect_err("older");
    let text = old.to_string();
    assert!(text.contains("CUDA 12.4 at most") && text.contains("install NVIDIA's driver"), "{text}");
    assert_eq!(PipelineError::from(old).exit_code(), 4);
    assert_eq!(PipelineError::from(KernelError::NoGpu { what: "none".into() }).exit_code(), 4);
    for failed in [memory(), refused(), crash(), lost()] {
        assert_eq!(PipelineError::from(failed).exit_code(), 1);
    }
}

/// Kernels are not at fault if a cache is full, or if the compiler is killed.
#[cfg(unix)]
#[test]
fn surroundings_are_no_fault_of_a_kernel() {
    use kernels::error::Blame;
    use std::os::unix::process::ExitStatusExt;
    let full = KernelError::Cache { path: "cache".into(), source: std::io::ErrorKind::StorageFull.into() };
    let stopped = KernelError::CompilerStopped { kernel: "softmax".into(), status: std::process::ExitStatus::from_raw(2) };
    assert_eq!([full.blame(), stopped.blame(), refused().blame()], [Blame::Device, Blame::Device, Blame::Configuration]);
}
