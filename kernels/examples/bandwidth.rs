//! Bandwidth of generated kernels at BERT sizes next to that of a copy. Run in release mode.

#[path = "../tests/common/mod.rs"]
mod cases;

use kernels::device::cpu::Pool;
use kernels::{Buffer, Executable, KernelSpec, RunContext, Toolchain, maps};
use sdfg::Layout;
use sdfg::config::{KernelConfig, Knobs};
use std::time::Instant;

const SIZES: cases::Sizes = &[("b", 8), ("h", 16), ("j", 512), ("k", 512), ("i", 1024), ("u", 4096)];
const REPEATS: usize = 7;

fn seconds(mut run: impl FnMut()) -> f64 {
    run();
    let mut times: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[REPEATS / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (pool, toolchain) = (Pool::new(0)?, Toolchain::system()?);
    let bytes = 128 << 20;
    let (from, mut to) = (Buffer::new(bytes)?, Buffer::new(bytes)?);
    let share = bytes / pool.workers();
    let target = to.as_mut_ptr() as usize;
    let copy = seconds(|| {
        pool.broadcast(|worker| {
            // SAFETY: each worker copies its own part, within both buffers.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().add(worker * share), (target as *mut u8).add(worker * share), share) };
        });
    });
    let peak = 2.0 * bytes as f64 / copy / 1e9;
    println!("{:60} {peak:8.1} GB/s", "copy");
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for (name, make) in cases::CASES {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        let case = make(SIZES);
        let spec = KernelSpec::new(&case.program, &case.unit)?;
        let settings: &[(&str, &str, &str)] = match name {
            "softmax_dropout" | "causal_softmax" => &[("k", "", ""), ("j", "16", ""), ("j", "64", "")],
            "bias_relu_dropout" | "gelu" => &[("u", "", "")],
            "bias_gradient" => &[("i", "", "private"), ("i", "256", "inner"), ("j", "", "inner")],
            _ => &[("i", "", ""), ("j", "16", "")],
        };
        for (vector, lanes, reduce) in settings {
            let mut knobs = Knobs::default().with("vector", vector);
            for (key, value) in [("lanes", lanes), ("reduce", reduce)] {
                if !value.is_empty() {
                    knobs = knobs.with(key, value);
                }
            }
            let mut config = KernelConfig { knobs, ..KernelConfig::default() };
            let mut buffers = Vec::new();
            let mut moved = 0;
            for argument in spec.arguments() {
                let mut dims = argument.dims.clone();
                dims.sort_by_key(|d| d == vector);
                let layout = Layout::of(&dims);
                let container = &spec.containers[argument.data.as_str()];
                let mut buffer = Buffer::of(container, &spec.shape(&argument.data)?, &layout)?;
                for (n, value) in buffer.as_mut_slice().chunks_exact_mut(4).enumerate() {
                    value.copy_from_slice(&((n % 1000) as f32 / 500.0 - 1.0).to_ne_bytes());
                }
                moved += buffer.len();
                buffers.push(buffer);
                config.layouts.insert(argument.data.clone(), layout);
            }
            let kernel = maps::compile(&spec, &config, &toolchain)?;
            let pointers: Vec<*mut u8> = buffers.iter_mut().map(Buffer::as_mut_ptr).collect();
            let mut text = String::new();
            for dropout in [false, true] {
                let context = RunContext { seed: 1, step: 2, dropout, pool: &pool, deadline: None };
                // SAFETY: one buffer for each argument, in the configuration's layouts.
                let time = seconds(|| unsafe { kernel.run(&pointers, &context).map(drop).unwrap_or_else(|e| eprintln!("{e}")) });
                let rate = moved as f64 / time / 1e9;
                text += &format!("{rate:8.1} GB/s ({:3.0}%)", 100.0 * rate / peak);
            }
            println!("{:60} {text}", format!("{name} {}", config.knobs));
        }
    }
    Ok(())
}
