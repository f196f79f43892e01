//! The device's memory bandwidth, measured in the same run as the kernels that are compared with it.

use crate::pipeline::PipelineError;
use bench::Machine;
use bench::mue::CopyBandwidth;
use bench::unit::Measured;
use kernels::device::Device;
use kernels::pool::Pool;
use std::sync::Barrier;
use std::time::Instant;

/// The copied array is this many times the last-level cache, within bounds.
const CACHES: u64 = 4;
const LEAST: u64 = 64 << 20;
const MOST: u64 = 512 << 20;
const ROUNDS: usize = 7;

/// The device's own measurement, or that of this machine's cores.
///
/// # Errors
/// A device that failed.
pub fn copy(pool: &Pool, device: &dyn Device) -> Result<Option<CopyBandwidth>, PipelineError> {
    Ok(match device.copy_bandwidth()? {
        Some(rate) => Some(CopyBandwidth { gigabytes_per_second: Measured(rate), non_temporal: false }),
        None => cores(pool),
    })
}

/// Bytes read plus bytes written per second when all workers copy arrays that fit no cache; the fastest of a few rounds, since a ceiling
/// is the best attainable rate. `None` on a machine without enough memory.
///
/// On x86-64 the copy uses non-temporal stores: the target is not read before it is overwritten, so no copy moves fewer bytes.
fn cores(pool: &Pool) -> Option<CopyBandwidth> {
    let cache = Machine::here().caches.last().map_or(0, |c| c.bytes_each.0 * c.count);
    let bytes = (CACHES * cache).clamp(LEAST, MOST) as usize;
    let words = bytes / size_of::<Word>() / pool.workers().max(1);
    let together = Barrier::new(pool.workers());
    // Each worker has arrays of its own, touched by itself first, so that they lie in its memory.
    let workers = pool.broadcast(|_| {
        let (source, mut target) = (vec![Word::filled(1); words], vec![Word::filled(2); words]);
        let round = |_| {
            together.wait();
            let start = Instant::now();
            stream(&source, &mut target);
            start.elapsed().as_secs_f64()
        };
        let seconds: Vec<f64> = (0..ROUNDS).map(round).collect();
        (seconds, source == target)
    });
    if words == 0 || workers.iter().any(|(_, equal)| !equal) {
        return None;
    }
    // A round lasts until the last worker is done.
    let last = |n: usize| workers.iter().filter_map(|(seconds, _)| seconds.get(n)).copied().fold(0.0, f64::max);
    let seconds = (0..ROUNDS).map(last).filter(|s| *s > 0.0).fold(f64::INFINITY, f64::min);
    let rate = (2 * words * size_of::<Word>() * workers.len()) as f64 / seconds / 1e9;
    Some(CopyBandwidth { gigabytes_per_second: Measured(rate), non_temporal: cfg!(target_arch = "x86_64") })
}

/// A cache line.
#[derive(Clone, Copy, PartialEq)]
#[repr(align(64))]
struct Word([u128; 4]);

impl Word {
    fn filled(value: u128) -> Word {
        Word([value; 4])
    }
}

#[cfg(target_arch = "x86_64")]
fn stream(source: &[Word], target: &mut [Word]) {
    use std::arch::x86_64::{__m128i, _mm_load_si128, _mm_sfence, _mm_stream_si128};
    for (from, to) in source.iter().zip(target) {
        let (from, to) = (from.0.as_ptr().cast::<__m128i>(), to.0.as_mut_ptr().cast::<__m128i>());
        for n in 0..4 {
            // SAFETY: both are cache lines of four aligned vectors; every x86-64 has SSE2.
            unsafe { _mm_stream_si128(to.add(n), _mm_load_si128(from.add(n))) };
        }
    }
    // SAFETY: a fence has no operands.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(source: &[Word], target: &mut [Word]) {
    target.copy_from_slice(source);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_arrives() {
        let source: Vec<Word> = (0..37).map(Word::filled).collect();
        let mut target = vec![Word::filled(99); 37];
        stream(&source, &mut target);
        assert!(source == target);
    }
}
