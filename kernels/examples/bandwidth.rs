//! Bandwidth of generated kernels on tensors larger than the last-level cache, next to that of a copy and to the rate at
//! which dropout's random bits are made. Run in release mode; arguments name the cases.
//!
//! A kernel without random numbers is held against the copy, one with dropout against the slower of the copy and the random
//! bits: the bytes that it could move in the time that they take alone. Both run in the same rounds as the kernel, so that
//! what else the machine does slows all of them, and the ratios are medians over the rounds.

#[path = "../tests/kernels/common/mod.rs"]
mod cases;

use kernels::pool::Pool;
use kernels::runtime::dropout::{self, Keep};
use kernels::target::cpu;
use kernels::{AlignedBuffer, Executable, KernelSpec, RunContext, Toolchain};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Layout, philox};
use std::time::Instant;

type Failure = Box<dyn std::error::Error>;

const SIZES: [(&str, i64); 6] = [("b", 1), ("h", 16), ("j", 512), ("k", 512), ("i", 1024), ("u", 4096)];
const ROUNDS: usize = 9;
/// Tensors of a case are together this many times as large as the last-level cache.
const CACHES: usize = 4;

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Copies one half of a buffer into the other on all cores.
fn copy(pool: &Pool, buffer: &mut AlignedBuffer) {
    let half = buffer.len() / 2;
    let (share, start) = (half / pool.workers(), buffer.as_mut_ptr() as usize);
    pool.broadcast(|worker| {
        let from = (start as *mut u8).wrapping_add(worker * share);
        // SAFETY: each worker copies its own part of the first half into its part of the second.
        unsafe { std::ptr::copy_nonoverlapping(from, from.add(half), share) };
    });
}

/// Adds a buffer up on all cores: what reading alone takes, for kernels that write next to nothing.
fn read(pool: &Pool, buffer: &AlignedBuffer) {
    let words = buffer.len() / 8 / pool.workers();
    pool.broadcast(|worker| {
        // SAFETY: each worker reads its own part; any bits are a number.
        let part = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u64>().add(worker * words), words) };
        let mut sums = [0u64; 32];
        for words in part.as_chunks::<32>().0 {
            sums.iter_mut().zip(words).for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
        }
        std::hint::black_box(sums);
    });
}

/// Makes the random bits of this many elements on all cores, in rows that stay in the cache.
fn random_bits(pool: &Pool, elements: usize) {
    const ROW: usize = 512;
    let keep = Keep { step: 2, factor: 1.0, key: philox::key(1, "y"), threshold: 6554, unused: 0 };
    let (row, rows) = (dropout::row(), elements / pool.workers() / ROW);
    pool.broadcast(|worker| {
        let mut room = vec![0u16; dropout::room(ROW, 1)];
        for n in 0..rows {
            let first = ((worker * rows + n) * ROW) as i64;
            // SAFETY: room for a row of this many.
            let made = unsafe { row(&keep, first, 1, ROW as i64, room.as_mut_ptr(), &mut -1) };
            std::hint::black_box(made);
        }
    });
}

struct Rates {
    copy: f64,
    read: f64,
    plain: f64,
    dropout: f64,
    random: f64,
    plain_share: f64,
    dropout_share: f64,
}

/// Bytes per second of copy, kernel, kernel with dropout, and of the random bits; shares of what bounds the kernel.
fn race(pool: &Pool, kernel: &dyn Executable, buffers: &mut [AlignedBuffer], elements: usize) -> Result<Rates, Failure> {
    let moved: usize = buffers.iter().map(AlignedBuffer::len).sum();
    let pointers: Vec<*mut u8> = buffers.iter_mut().map(AlignedBuffer::as_mut_ptr).collect();
    let mut copied = AlignedBuffer::new(CACHES * last_level_cache())?;
    let run = |dropout: bool| {
        let context = RunContext { seed: 1, step: 2, dropout, pool, deadline: None, parameters: 0 };
        // SAFETY: one buffer for each argument, in the configuration's layouts.
        unsafe { kernel.run(&pointers, &context) }.map(drop)
    };
    let mut rounds: Vec<[f64; 5]> = Vec::new();
    for n in 0..=ROUNDS {
        let (mut plain, mut dropped) = (Ok(()), Ok(()));
        let times = [
            seconds(|| copy(pool, &mut copied)) / copied.len() as f64,
            seconds(|| plain = run(false)) / moved as f64,
            seconds(|| dropped = run(true)) / moved as f64,
            seconds(|| random_bits(pool, elements)) / moved as f64,
            seconds(|| read(pool, &copied)) / copied.len() as f64,
        ];
        plain.and(dropped)?;
        // The first round brings pages and clock up.
        if n > 0 {
            rounds.push(times);
        }
    }
    let of = |value: fn(&[f64; 5]) -> f64| median(rounds.iter().map(value).collect());
    Ok(Rates {
        copy: of(|t| 1.0 / t[0]),
        read: of(|t| 1.0 / t[4]),
        plain: of(|t| 1.0 / t[1]),
        dropout: of(|t| 1.0 / t[2]),
        random: of(|t| 1.0 / t[3]),
        plain_share: of(|t| t[0] / t[1]),
        dropout_share: of(|t| t[0].max(t[3]) / t[2]),
    })
}

fn last_level_cache() -> usize {
    kernels::caches::largest_cache()
}

fn main() -> Result<(), Failure> {
    let (pool, toolchain) = (Pool::new(0)?, Toolchain::system()?);
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    println!("{} workers, last-level cache {} MB, GB/s", pool.workers(), last_level_cache() / 1_000_000);
    println!("{:52}{:>8}{:>8}{:>9}{:>6}{:>9}{:>9}{:>6}", "kernel", "copy", "read", "plain", "", "random", "dropout", "");
    for (name, make) in cases::CASES {
        if !wanted.is_empty() && !wanted.iter().any(|w| w == name) {
            continue;
        }
        let one = make(&SIZES);
        let spec = KernelSpec::new(&one.program, &one.unit)?;
        let mut bytes = 0;
        for argument in spec.arguments() {
            bytes += 4 * spec.shape(&argument.data)?.iter().product::<usize>();
        }
        let mut sizes = SIZES;
        sizes[0].1 = (CACHES * last_level_cache()).div_ceil(bytes) as i64;
        let case = make(&sizes);
        let spec = KernelSpec::new(&case.program, &case.unit)?;
        let settings: &[(&str, &str, &str)] = match name {
            "softmax_dropout" | "causal_softmax" => &[("k", "", ""), ("j", "16", "")],
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
            let (mut buffers, mut elements) = (Vec::new(), 0);
            for argument in spec.arguments() {
                let mut dims = argument.dims.clone();
                dims.sort_by_key(|d| d == vector);
                let layout = Layout::of(&dims);
                let container = &spec.containers[argument.data.as_str()];
                let mut buffer = AlignedBuffer::of(container, &spec.shape(&argument.data)?, &layout)?;
                for (n, value) in buffer.as_mut_slice().chunks_exact_mut(4).enumerate() {
                    value.copy_from_slice(&((n % 1000) as f32 / 500.0 - 1.0).to_ne_bytes());
                }
                elements = elements.max(buffer.len() / 4);
                buffers.push(buffer);
                config.layouts.insert(argument.data.clone(), layout);
            }
            let kernel = cpu::maps::compile(&spec, &config, &toolchain)?;
            let r = race(&pool, &kernel, &mut buffers, elements)?;
            let (label, giga) = (format!("{name} {}", config.knobs), |rate: f64| rate / 1e9);
            print!("{label:52}{:8.1}{:8.1}{:9.1}{:5.0}%", giga(r.copy), giga(r.read), giga(r.plain), 100.0 * r.plain_share);
            if kernel.draws() {
                print!("{:9.1}{:9.1}{:5.0}%", giga(r.random), giga(r.dropout), 100.0 * r.dropout_share);
            }
            println!();
        }
    }
    Ok(())
}
