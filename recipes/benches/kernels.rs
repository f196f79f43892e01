//! Every kernel of two shipped recipes in row-major layouts, including those fused around contractions: groups `kernel,
//! program/shape/layout/device`.
//!
//! `cargo bench -p bench --bench kernels -- [FILTER] [--measurement-time SECONDS]`. Each kernel is checked against the oracle before it is
//! timed.

use criterion::{BenchmarkId, Criterion, Throughput};
use kernels::Toolchain;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use layouts::measure::space::{Bench, KernelSpace, TimingResult};
use recipes::pipeline::measure::device_bench::DeviceBench;
use recipes::pipeline::measure::swept_kernel::swept_kernels;
use sdfg::Sdfg;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

fn recipe(criterion: &mut Criterion, file: &str, sizes: &[(&str, i64)]) -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes").join(file);
    let overrides: Vec<(String, i64)> = sizes.iter().map(|(dim, size)| (dim.to_string(), *size)).collect();
    let recipe = recipes::load::load(&path, &overrides)?;
    let programs = recipes::pipeline::variants::programs::programs(&recipe, false)?;
    let mut seen = BTreeSet::new();
    // Kernels that two programs share are timed once.
    let separate = programs.variants.first();
    for variant in separate.into_iter().chain(programs.variants.iter().filter(|v| !v.compositions.is_empty())) {
        kernels(criterion, &variant.key.to_string(), &variant.program, &mut seen)?;
    }
    Ok(())
}

fn kernels(criterion: &mut Criterion, of: &str, program: &Sdfg, seen: &mut BTreeSet<String>) -> Result<(), Box<dyn std::error::Error>> {
    let (pool, device) = (Pool::new(0)?, Cores { toolchain: Toolchain::system()? });
    let kernels = swept_kernels(program, &device)?;
    let mut bench = DeviceBench::new(program, &kernels, &device, &pool);
    // Criterion decides how many samples there are.
    bench.sample_ms = 0.0;
    let shape: Vec<String> = program.sizes.iter().map(|(symbol, value)| format!("{symbol}{value}")).collect();
    for kernel in kernels.iter().filter(|k| seen.insert(k.key().to_string())) {
        let config = kernel.config(0);
        if !bench.check(kernel.name(), &config)?.passed() {
            return Err(format!("`{}` is wrong in {config}; it is not timed", kernel.name()).into());
        }
        let bytes: u64 = kernel.tensors().iter().map(|t| t.bytes).sum();
        let mut group = criterion.benchmark_group(format!("{}, {of}/{}", kernel.name(), shape.join(",")));
        group.throughput(Throughput::Bytes(bytes));
        group.bench_function(BenchmarkId::new("natural", format!("cpu-{}", pool.workers())), |b| {
            b.iter_custom(|times| {
                bench.samples = times as usize;
                // The sweep's own clock stops at some hundred runs: their mean stands for the other runs.
                let ms = match bench.time(kernel.name(), &config, Duration::from_secs(60)) {
                    Ok(TimingResult::Samples(samples)) => samples.iter().sum::<f64>() / samples.len() as f64,
                    Ok(TimingResult::ExceededAfter(ms)) => ms,
                    Err(fault) => panic!("{}: {fault}", kernel.name()),
                };
                Duration::from_secs_f64(ms * times as f64 / 1e3)
            });
        });
        group.finish();
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Benches run in the folder of their crate, where Criterion would write otherwise.
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/criterion");
    let quick = Criterion::default()
        .output_directory(&results)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1));
    let mut criterion = quick.configure_from_args();
    recipe(&mut criterion, "mha.yaml", &[("b", 2), ("j", 128)])?;
    recipe(&mut criterion, "softmax.yaml", &[])?;
    criterion.final_summary();
    Ok(())
}
