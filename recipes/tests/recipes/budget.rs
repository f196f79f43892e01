//! The measured programs where the time does not suffice for all.

use kernels::Toolchain;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use layouts::{Finish, Store};
use recipes::pipeline::choose::sweep_all::{SweptPrograms, choose, sweep_all};
use recipes::pipeline::measure::budget_ledger::BudgetLedger;
use recipes::pipeline::measure::measurement_budget::MeasurementBudget;
use recipes::pipeline::measure::sweep::{MeasurementSetup, SweepContext, SweepEvent};
use recipes::pipeline::variants::programs::programs;
use recipes::pipeline::variants::rewrite_options::RewriteOptions;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

/// A sweep of a small perceptron, in which every kernel is timed at least once; the budget decides on more.
fn swept(budget: MeasurementBudget) -> Result<(SweptPrograms, Store), Failure> {
    let folder = tempfile::tempdir()?;
    let sizes = [("b", 20), ("i", 30), ("u", 40)].map(|(dim, size)| (dim.to_string(), size));
    let recipe = recipes::load::load_str("mlp.yaml", include_str!("../../mlp.yaml"), &sizes)?;
    let mut programs = programs(&recipe, false)?;
    let (mut store, pool) = (Store::open(&folder.path().join("records.jsonl"))?, Pool::new(1)?);
    let device = Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..Toolchain::system()? } };
    let mut ledger = BudgetLedger::open(folder.path());
    let (setup, mut silent) = (
        MeasurementSetup { pool: &pool, device: &device, store: &mut store, ledger: &mut ledger, interrupt: &AtomicBool::new(false) },
        |_: SweepEvent| (),
    );
    let mut with = SweepContext { budget, ..SweepContext::unbounded(setup, &mut silent) };
    let sweeps = sweep_all(&recipe, &mut programs, Some(Duration::ZERO), &mut with)?;
    assert_eq!(programs.variants.len(), sweeps.variants.len());
    Ok((sweeps, store))
}

#[test]
fn programs_that_the_time_does_not_reach_for_are_neither_made_nor_measured() -> Result<(), Failure> {
    let (all, everything) = swept(MeasurementBudget::default())?;
    assert!(all.variants.len() > 1 && all.left_out.is_empty(), "{:?}", all.left_out);
    // The time is up before the start: there is a plan and its baseline nonetheless.
    let (first, least) = swept(MeasurementBudget::until(Some(Instant::now())))?;
    let names: Vec<&str> = first.variants.iter().map(|s| s.name.as_str()).collect();
    assert_eq!((names, first.finish), (vec!["fused"], Finish::Budget));
    let said = first.left_out.join("\n");
    assert!(said.contains("gemm-fused is left out: --budget is used up") && said.contains("A longer --budget measures them"), "{said}");
    assert!(least.all().count() < everything.all().count());
    let (choices, left_out) = choose(&first, &least)?;
    assert!(choices.len() == 1 && left_out.is_empty() && first.unfused.is_some());
    // Each of its kernels was timed, and no kernel of another program.
    let keys: std::collections::BTreeSet<&str> =
        first.variants.iter().chain(&first.unfused).flat_map(|s| &s.problem.kernels).map(|k| k.key.as_str()).collect();
    assert!(least.all().all(|m| keys.contains(m.key.as_str()) || m.kernel.starts_with("relayout:")));
    Ok(())
}

/// Of a long recipe the first program may take the whole budget: others would be made in vain, since none of them would be measured.
#[test]
fn only_the_first_program_is_made_once_the_time_for_measuring_is_up() -> Result<(), Failure> {
    let recipe = recipes::load::load_str("mlp.yaml", include_str!("../../mlp.yaml"), &[])?;
    let all = programs(&recipe, false)?;
    let names = |programs: &recipes::pipeline::variants::programs::Programs| -> Vec<String> {
        programs.variants.iter().map(|variant| variant.key.to_string()).collect()
    };
    assert!(names(&all).contains(&"gemm-fused".to_string()) && all.unmade.is_empty(), "{:?}", names(&all));
    let ended = Some(Instant::now());
    let first = programs(&recipe, RewriteOptions { ends: ended, until: ended, ..RewriteOptions::default() })?;
    assert_eq!((names(&first), &first.unfused), (vec!["fused".to_string()], &all.unfused));
    assert_eq!(first.variants[0].program, all.variants[0].program);
    for made in names(&all).iter().filter(|name| *name != "fused") {
        assert!(first.unmade.iter().any(|named| made.starts_with(named)), "{made} is not named: {:?}", first.unmade);
    }
    Ok(())
}
