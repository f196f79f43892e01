//! A program with a kernel without a correct configuration cannot be chosen; the others can.

use kernels::Toolchain;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use layouts::{SelectError, Store};
use recipes::pipeline::PipelineError;
use recipes::pipeline::choose::sweep_all::{baselines, choose, sweep_all};
use recipes::pipeline::measure::budget_ledger::BudgetLedger;
use recipes::pipeline::measure::sweep::{MeasurementSetup, SweepContext, SweepEvent};
use recipes::pipeline::variants::programs::programs;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

#[test]
fn wrong_kernels_are_left_out_and_the_others_stay() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let sizes = [("b", 20), ("i", 30), ("u", 40)].map(|(dim, size)| (dim.to_string(), size));
    let recipe = recipes::load::load_str("mlp.yaml", include_str!("../../mlp.yaml"), &sizes)?;
    let mut programs = programs(&recipe, false)?;
    let path = folder.path().join("records.jsonl");
    let (mut store, pool, mut ledger) = (Store::open(&path)?, Pool::new(1)?, BudgetLedger::open(folder.path()));
    let device = Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..Toolchain::system()? } };
    let (setup, mut silent) = (
        MeasurementSetup { pool: &pool, device: &device, store: &mut store, ledger: &mut ledger, interrupt: &AtomicBool::new(false) },
        |_: SweepEvent| (),
    );
    let mut with = SweepContext::unbounded(setup, &mut silent);
    let sweeps = sweep_all(&recipe, &mut programs, Some(Duration::ZERO), &mut with)?;
    let (all, left_out) = choose(&sweeps, &store)?;
    assert!(left_out.is_empty() && all.len() == sweeps.variants.len(), "{left_out:?}");

    // The records without the measurements of some kernels.
    let text = std::fs::read_to_string(&path)?;
    let without = |keys: &[String]| -> Result<Store, Failure> {
        let kept = text.lines().filter(|line| !line.contains("\"samples\"") || !keys.iter().any(|key| line.contains(key.as_str())));
        let file = folder.path().join(format!("without{}.jsonl", keys.len()));
        std::fs::write(&file, kept.map(|line| line.to_string() + "\n").collect::<String>())?;
        Ok(Store::read(&file)?)
    };
    let keys = |name: &str| -> Vec<String> {
        let of = sweeps.variants.iter().filter(|s| s.name == name).flat_map(|s| &s.problem.kernels);
        of.map(|k| k.key.clone()).collect()
    };
    let composed: Vec<String> = keys("gemm-fused").into_iter().filter(|key| !keys("fused").contains(key)).take(1).collect();
    let (some, left_out) = choose(&sweeps, &without(&composed)?)?;
    let names: Vec<&str> = some.iter().map(|c| sweeps.variants[c.swept].name.as_str()).collect();
    assert!(names.contains(&"fused") && !names.contains(&"gemm-fused"), "{names:?}");
    assert!(left_out.iter().any(|why| why.starts_with("gemm-fused is left out: the kernel `hidden`")), "{left_out:?}");

    // The same holds for the baselines.
    let (all, left_out) = baselines(&sweeps, &store)?;
    assert!(all.len() == 2 && left_out.is_none(), "{left_out:?}");
    let unfused = sweeps.unfused.as_ref().ok_or("an unfused program")?;
    let miss: Vec<String> = unfused.problem.kernels.iter().filter(|k| k.name == "miss").map(|k| k.key.clone()).collect();
    let (none, left_out) = baselines(&sweeps, &without(&miss)?)?;
    assert!(none.is_empty() && left_out.is_some_and(|why| why.starts_with("unfused is left out: the kernel `miss`")));

    let every: Vec<String> = sweeps.variants.iter().flat_map(|s| &s.problem.kernels).map(|k| k.key.clone()).collect();
    let none = choose(&sweeps, &without(&every)?).err();
    assert!(matches!(none, Some(PipelineError::Select(SelectError::Unmeasured { .. }))), "nothing is left");
    Ok(())
}
