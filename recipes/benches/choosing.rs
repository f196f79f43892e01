//! The overhead of a sweep: the first thousand configurations of the BERT-large layer for a GPU, on a bench that takes no time.
//!
//! `cargo bench -p recipes --bench choosing`. Stacked projections, b=8, j=512, bf16; times are made up from configurations.

use criterion::{Criterion, Throughput};
use kernels::target::cuda::cublaslt::FusedContraction;
use kernels::target::shim::ShimDevice;
use layouts::measure::space::{Bench, Check, Clock, Fault, KernelSpace, TimingResult};
use layouts::{Session, Store, SweepOptions, Sweeper, sweep};
use recipes::load::Overrides;
use recipes::pipeline::measure::sweep::build_problem;
use recipes::pipeline::variants::programs::programs_on;
use sdfg::config::KernelConfig;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CONFIGURATIONS: u64 = 1000;

/// Ends the sweep after a number of configurations.
struct Instantly<'a> {
    timed: u64,
    enough: &'a AtomicBool,
}

impl Bench for Instantly<'_> {
    fn check(&mut self, _: &str, _: &KernelConfig) -> Result<Check, Fault> {
        Ok(Check { ratio: 0.0 })
    }

    fn time(&mut self, _: &str, config: &KernelConfig, _: Duration) -> Result<TimingResult, Fault> {
        self.timed += 1;
        self.enough.fetch_or(self.timed >= CONFIGURATIONS, Ordering::Relaxed);
        let digest = config.to_string().bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        Ok(TimingResult::Samples(vec![0.02 + f64::from(digest % 256) / 2000.0; 3]))
    }
}

struct Watch(Instant);

impl Clock for Watch {
    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("bert-large-pytorch.yaml");
    let overrides = Overrides { dtype: Some(sdfg::Dtype::Bf16), narrow: true, ..Overrides::default() };
    let programs = programs_on(&recipes::load::load(&path, &overrides)?, false, Some(FusedContraction::has))?;
    let variant = programs.variants.iter().find(|v| v.key.to_string() == "stacked wq+wk+wv").ok_or("the recipe has no stacked program")?;
    // Its spaces are those of a GPU; nothing runs on it.
    let device = ShimDevice::new(std::env::temp_dir());
    let chosen = || -> Result<Duration, Box<dyn std::error::Error>> {
        // Spaces cache their results, so each run builds new ones.
        let problem = build_problem(&variant.program, &device)?;
        let spaces: Vec<&dyn KernelSpace> = problem.kernels.iter().map(|k| k as &dyn KernelSpace).collect();
        let mut store = Store::in_memory();
        store.begin(Session { session: "1".into(), format: 1, ..Session::default() })?;
        let (clock, interrupt) = (Watch(Instant::now()), AtomicBool::new(false));
        let mut bench = Instantly { timed: 0, enough: &interrupt };
        let options = SweepOptions { budget: Some(Duration::from_secs(3600)), costly: true, ..SweepOptions::default() };
        let (store, progress) = (&mut store, &mut |_: &layouts::Progress| {});
        let mut sweeper = Sweeper { bench: &mut bench, clock: &clock, store, options, interrupt: &interrupt, progress, timed: 0 };
        sweep(&mut sweeper, &spaces, &problem.relayouts)?;
        Ok(clock.elapsed())
    };
    chosen()?;
    let mut criterion = Criterion::default().configure_from_args().sample_size(10);
    let mut group = criterion.benchmark_group("choosing");
    group.throughput(Throughput::Elements(CONFIGURATIONS));
    group.bench_function("bert-large-pytorch, wq+wk+wv", |b| {
        b.iter_custom(|times| (0..times).map(|_| chosen().unwrap_or_else(|e| panic!("{e}"))).sum());
    });
    group.finish();
    criterion.final_summary();
    Ok(())
}
