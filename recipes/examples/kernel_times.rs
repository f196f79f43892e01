//! Times every kernel of a program with all its tensors in one order of dims.
//!
//! `cargo run --release -p recipes --example kernel_times RECIPE VARIANT DIMS [COUNT [NAME]]` times the COUNT most promising
//! knobs of each kernel (default 6) with DIMS from outer to inner, e.g. `b,h,j,k,u,i,p`, and prints the fastest three.
//! Medians of warm runs in milliseconds; nothing is stored. NAME keeps kernels whose name contains it, =NAME the kernel of that name.

use kernels::Toolchain;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use layouts::measure::space::{Bench, KernelSpace, TimingResult};
use recipes::pipeline::measure::device_bench::DeviceBench;
use recipes::pipeline::measure::dim_order::follows;
use recipes::pipeline::measure::swept_kernel::swept_kernels;
use recipes::pipeline::variants::programs::programs;
use std::path::Path;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [recipe, wanted, dims, rest @ ..] = arguments.as_slice() else { return Err("RECIPE VARIANT DIMS [COUNT [NAME]]".into()) };
    let count: usize = rest.first().map_or(Ok(6), |c| c.parse())?;
    let order: Vec<String> = dims.split(',').map(String::from).collect();
    let programs = programs(&recipes::load::load(Path::new(recipe), &[])?, false)?;
    let variant = programs.variants.iter().find(|v| v.key.to_string() == *wanted).ok_or("no such variant")?;
    let (pool, device) = (Pool::new(0)?, Cores { toolchain: Toolchain::system()? });
    let kernels = swept_kernels(&variant.program, &device)?;
    let mut bench = DeviceBench::new(&variant.program, &kernels, &device, &pool);
    let mut total = 0.0;
    for kernel in kernels
        .iter()
        .filter(|k| rest.get(1).is_none_or(|name| name.strip_prefix("=").map_or(k.name().contains(name.as_str()), |n| k.name() == n)))
    {
        let layouts: u64 = kernel.tensors().iter().map(|t| t.layouts.len() as u64).product();
        let knobs = kernel.count() / layouts.max(1);
        let digit = |t: &layouts::measure::space::TensorSpace| t.layouts.iter().position(|l| follows(l, &order)).unwrap_or(0) as u64;
        let base = kernel.tensors().iter().fold(0u64, |n, t| n * t.layouts.len() as u64 + digit(t)) * knobs;
        let mut numbers: Vec<(f64, u64)> = (base..base + knobs).map(|n| (kernel.predicted_cost(n), n)).collect();
        numbers.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (mut seen, mut found) = (Vec::new(), Vec::new());
        for (_, n) in numbers {
            let identity = kernel.identity(n);
            if seen.contains(&identity) || seen.len() >= count {
                continue;
            }
            seen.push(identity);
            let config = kernel.config(n);
            match bench.time(kernel.name(), &config, Duration::from_secs(10)) {
                Ok(TimingResult::Samples(mut samples)) => {
                    samples.sort_by(f64::total_cmp);
                    found.push((samples[samples.len() / 2], config.knobs.to_string()));
                }
                Ok(TimingResult::ExceededAfter(ms)) => println!("{:<16} more than {ms:.0} ms  {}", kernel.name(), config.knobs),
                Err(fault) => println!("{:<16} {fault}  {}", kernel.name(), config.knobs),
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        total += found.first().map_or(0.0, |f| f.0);
        for (ms, knobs) in found.iter().take(if std::env::var("ALL").is_ok() { 99 } else { 3 }) {
            println!("{:<16} {ms:>9.3} ms  {knobs}", kernel.name());
        }
    }
    println!("fastest in all: {total:.2} ms");
    Ok(())
}
