//! The report of every plan that can win: stacked, gemm-fused, and the unfused program itself. Comparable kernels are compared, and sums
//! are those of the launches.

use bench::model::{KernelComparison, Report};
use kernels::Toolchain;
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use layouts::record::median;
use layouts::{Method, Store};
use recipes::load::{Overrides, load};
use recipes::pipeline::choose::sweep_all::{baselines, choose, sweep_all};
use recipes::pipeline::measure::budget_ledger::BudgetLedger;
use recipes::pipeline::measure::sweep::{MeasurementSetup, SweepContext, SweepEvent};
use recipes::pipeline::oracle::tensors::random_inputs;
use recipes::pipeline::report::{Finished, build};
use recipes::pipeline::run::race_plans::{LEAST, RaceLength, Timed, time_plans};
use recipes::pipeline::variants::programs::programs;
use sdfg::interpret::Run;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

type Failure = Box<dyn std::error::Error>;

/// Milliseconds of all kernels, as they ran.
fn launched(timed: &Timed) -> f64 {
    timed.launches.iter().filter_map(|(_, _, samples)| median(samples)).sum()
}

fn near(a: Option<f64>, b: f64) -> bool {
    a.is_some_and(|a| (a - b).abs() <= 1e-9 * b)
}

#[test]
fn rows_add_up_whichever_plan_wins() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let sizes = [("b", 2), ("j", 6), ("h", 2), ("p", 4), ("i", 8)].map(|(dim, size)| (dim.to_string(), size)).to_vec();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml");
    let recipe = load(&path, Overrides { sizes, ..Overrides::default() })?;
    let mut programs = programs(&recipe, false)?;
    let (mut store, pool) = (Store::open(&folder.path().join("records.jsonl"))?, Pool::new(1)?);
    let mut ledger = BudgetLedger::open(folder.path());
    let toolchain = Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..Toolchain::system()? };
    let device: Arc<dyn Device> = Arc::new(Cores { toolchain });
    let (setup, mut silent) = (
        MeasurementSetup { pool: &pool, device: &*device, store: &mut store, ledger: &mut ledger, interrupt: &AtomicBool::new(false) },
        |_: SweepEvent| (),
    );
    let mut with = SweepContext::unbounded(setup, &mut silent);
    let sweeps = sweep_all(&recipe, &mut programs, Some(Duration::ZERO), &mut with)?;
    let (choices, _) = choose(&sweeps, &store)?;
    let exact =
        |swept: &recipes::pipeline::measure::sweep::SweptProgram| Ok::<_, Failure>(swept.candidate(&swept.select(&store, Method::Exact)?));
    let mut candidates = sweeps.variants.iter().map(exact).collect::<Result<Vec<_>, _>>()?;
    let contenders = candidates.len();
    candidates.extend(baselines(&sweeps, &store)?.0);
    assert_eq!(candidates.len(), contenders + 2);
    let (given, run) = (random_inputs(&programs.operators, 1)?, Run { seed: 1, step: 0, dropout: true });
    let are_baselines: Vec<bool> = (0..candidates.len()).map(|n| n >= contenders).collect();
    let length = RaceLength { limit: Duration::ZERO, least: LEAST, baselines: &are_baselines };
    let timed = time_plans(&candidates, length, &given, &run, &pool, &device)?;
    let analysis = recipes::analyze::analyze(&recipe, false)?;
    let report = |winner: usize| -> Result<Report, Failure> {
        let (analysis, programs, sweeps, store) = (&analysis, &programs, &sweeps, &store);
        let (choices, candidates, timed, pool, device) = (&choices, &candidates, &timed, &pool, &*device);
        Ok(build(&Finished {
            analysis,
            programs,
            sweeps,
            store,
            choices,
            candidates,
            contenders,
            timed,
            winner,
            certainty: None,
            pool,
            device,
            load: [("kernels", None), ("plans", None)],
        })?)
    };
    let baseline = launched(&timed[timed.len() - 1]);
    let mut stacked = 0;
    for (n, candidate) in candidates.iter().enumerate() {
        let found = report(n)?;
        bench::check::check(&found)?;
        let rows = &found.comparison;
        assert!(near(KernelComparison::total(rows, |r| &r.kernels, |r| r.ours), launched(&timed[n])), "{}: {rows:?}", candidate.name);
        assert!(near(KernelComparison::total(rows, |r| &r.operators, |r| r.unfused), baseline), "{}: {rows:?}", candidate.name);
        // A stack of n contractions is compared with n contractions at least.
        for row in rows {
            let count = |name: &String| name.rsplit_once(".stack").and_then(|(_, count)| count.parse::<usize>().ok());
            let members: usize = row.kernels.iter().filter_map(count).sum();
            stacked += members;
            assert!(row.operators.len() >= members, "{}: {row:?}", candidate.name);
        }
        // No unfused kernel is compared with two kernels.
        let of_kernels: f64 = found.kernels.iter().filter_map(|k| k.unfused).map(|t| t.value().0).sum();
        assert!(of_kernels <= baseline * (1.0 + 1e-9), "{}: {of_kernels} of {baseline} ms", candidate.name);
    }
    assert!(stacked >= 12, "stacks of two and of three, forward and backward: {stacked}");
    // The unfused program in its best uniform layout, if it is the fastest: it gains nothing over itself.
    let own = report(candidates.len() - 1)?;
    assert!(own.contenders.iter().any(|c| c.ours && c.baseline) && own.refusals.is_empty() && !own.policy.is_empty());
    assert!(
        own.comparison.iter().all(|row| row.speedup().is_none_or(|s| s == 1.0) && row.kernels == row.operators),
        "{:?}",
        own.comparison
    );
    Ok(())
}
