//! What the model of fusion needs to know of cores: the time of a dispatch, and of moving bytes, by volume. Measured once for a machine and
//! a number of workers, and stored.

use crate::pipeline::PipelineError;
use kernels::Toolchain;
use kernels::pool::Pool;
use layouts::packing::score::{Curve, ScoreModel};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Times of each volume; the median counts.
const REPEATS: usize = 15;

/// Copies are repeated until a sample lasts this long, since clocks tick.
const SAMPLE: Duration = Duration::from_micros(50);

/// The largest volume, as a power of two: 256 MiB fit no cache.
const LARGEST: u32 = 28;

/// Bytes that a core's part of a kernel can hand on within: its second-level cache.
const ON_CHIP: u64 = 256 << 10;

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(0.0)
}

/// Seconds of one call, the median of several samples.
fn seconds(mut call: impl FnMut()) -> f64 {
    let begin = Instant::now();
    call();
    let once = begin.elapsed().max(Duration::from_nanos(20));
    let calls = (SAMPLE.as_secs_f64() / once.as_secs_f64()).ceil().clamp(1.0, 10_000.0) as u32;
    let sample = |_| {
        let begin = Instant::now();
        (0..calls).for_each(|_| call());
        begin.elapsed().as_secs_f64() / f64::from(calls)
    };
    median((0..REPEATS).map(sample).collect())
}

/// Measures a pool of workers: a dispatch of nothing, and copies of 1 KiB to 256 MiB, read plus written, each worker its share. A copy
/// finds its bytes where the copy before left them, as a kernel finds what the kernel before wrote.
pub fn measure(pool: &Pool) -> ScoreModel {
    let held = pool.hold();
    let launch = seconds(|| drop(pool.broadcast(|_| ())));
    let mut points = Vec::new();
    for log in (10..=LARGEST).step_by(1) {
        let volume = 1u64 << log;
        let share = (volume as usize / 2 / pool.workers()).max(1);
        let buffers: Vec<Mutex<(Vec<u8>, Vec<u8>)>> = (0..pool.workers()).map(|_| Mutex::new((vec![1; share], vec![0; share]))).collect();
        let copy = || {
            pool.broadcast(|worker| {
                if let Ok(mut pair) = buffers[worker].lock() {
                    let (from, to) = &mut *pair;
                    to.copy_from_slice(std::hint::black_box(from));
                    std::hint::black_box(&mut *to);
                }
            });
        };
        let time = (seconds(copy) - launch).max(1e-12);
        points.push((volume, (time * 1e12).round() as i64));
    }
    drop(held);
    ScoreModel { curve: Curve::measured(points), launch_ps: (launch * 1e12).round() as i64, on_chip: ON_CHIP }
}

/// Where the measurement of this machine is stored.
fn file(workers: usize) -> PathBuf {
    let machine = bench::Machine::here().line();
    let key = blake3::hash(machine.as_bytes()).to_hex()[..16].to_string();
    Toolchain::cache().join(format!("launch-and-copy-{key}-{workers}.json"))
}

/// The stored measurement of this machine; `None` if there is none yet, or it cannot be read.
pub fn stored(workers: usize) -> Option<ScoreModel> {
    let text = std::fs::read_to_string(file(workers)).ok()?;
    serde_json::from_str(&text).ok()
}

/// Stores a measurement of this machine: the file.
///
/// # Errors
/// A file that cannot be written.
pub fn store(workers: usize, model: &ScoreModel) -> Result<PathBuf, PipelineError> {
    let file = file(workers);
    let fault = |why: String| PipelineError::Plan { file: file.display().to_string(), why };
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder).map_err(|e| fault(e.to_string()))?;
    }
    let text = serde_json::to_string_pretty(model).map_err(|e| fault(e.to_string()))?;
    std::fs::write(&file, text + "\n").map_err(|e| fault(e.to_string()))?;
    Ok(file)
}
