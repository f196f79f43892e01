//! A rough prediction of how long a call takes. It orders a sweep and picks defaults; it never decides against a
//! measurement.

use crate::contraction::Types;
use crate::contraction::{GemmNest, StridedLoop};
use crate::target::cpu::gemm_library::library::Threads;

/// Flop a second that one core reaches in f32 on large matrices; f64 half of it. Only ratios matter.
const CORE_FLOP: f64 = 1e11;
/// Bytes a second that one core packs or rewrites.
pub const CORE_BYTES: f64 = 1e10;
/// Seconds to set up one product, and to wake and join the cores for one.
const SETUP: f64 = 1e-7;
const JOIN: f64 = 5e-6;
/// Work below which the libraries stay on one core, in multiplications.
const SERIAL: f64 = 48.0 * 48.0 * 256.0;

/// Seconds of `flop` operations at the peak of all cores, summed in elements of `width` bytes.
pub fn least(flop: f64, cores: usize, width: usize) -> f64 {
    flop * (width as f64 / 4.0) / CORE_FLOP / cores.max(1) as f64
}

/// Predicted seconds of `call` on `cores` cores.
pub fn seconds(call: &GemmNest, threads: Threads, cores: usize, types: Types) -> f64 {
    let call = call.clone().normal();
    let extent = |l: &StridedLoop| l.extent as f64;
    let (m, n, k) = (extent(&call.m), extent(&call.n), extent(&call.k));
    let (items, steps) = (call.items() as f64, call.steps() as f64);
    let [a, b, out] = types.widths().map(|bytes| bytes as f64);
    let width = types.accumulator_width() as f64;
    // Edges of register tiles (about 32 rows by 12 columns of f32) and the start of each sum are lost.
    let edges = (1.0 + 24.0 / m) * (1.0 + 6.0 / n) * (1.0 + 16.0 / k);
    let compute = 2.0 * m * n * k * edges * (width / 4.0) / CORE_FLOP;
    let strided = |x: &StridedLoop, y: &StridedLoop, t: usize| [x, y].iter().all(|l| l.extent > 1 && l.strides[t] != 1);
    let mut bytes_moved = 0.0;
    // Rows that are not neighbours are turned while packing: measured at about 3 ns for each f32.
    if call.m.extent > 1 && call.m.strides[0] != 1 {
        bytes_moved += 7.0 * m * k * a;
    }
    if strided(&call.k, &call.n, 1) {
        bytes_moved += 4.0 * k * n * b;
    }
    if strided(&call.m, &call.n, 2) {
        bytes_moved += 8.0 * m * n * out;
    }
    // Every further product of a sum reads and writes the output again.
    bytes_moved += 2.0 * m * n * width * (steps - 1.0).max(0.0) / steps.max(1.0);
    let product = compute + bytes_moved / CORE_BYTES + SETUP;
    let item = product * steps;
    let cores = cores.max(1) as f64;
    match threads {
        Threads::Batch => (items / cores).ceil() * item,
        Threads::Inside if m * n * k < SERIAL || cores == 1.0 => items * item,
        Threads::Inside => items * (item / cores * 1.03 + JOIN * steps),
    }
}
