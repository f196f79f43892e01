//! The attainable rate of multiply-adds by this machine's vector units, to which shares of peak refer.

use crate::instruction_set::InstructionSet;
use crate::pool::Pool;
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

/// Independent multiply-adds in flight: at least latency times units, and no more than registers.
const CHAINS: usize = if cfg!(target_arch = "aarch64") { 24 } else { 12 };
/// Passes over the chains in one round: some milliseconds.
const PASSES: u64 = 2_000_000;
const ROUNDS: usize = 7;

/// Runs this many passes over the chains, and returns the sum of the results, so that the compiler cannot remove them.
type Pass = fn(u64) -> f32;

/// Gflop/s in f32 with all workers at once, the fastest of a few rounds; `None` where no kernel is written for this processor's vectors.
/// Workers stay on separate cores: two threads on one core would halve the peak.
pub fn peak(pool: &Pool) -> Option<f64> {
    let (pass, lanes) = widest()?;
    let together = Barrier::new(pool.workers());
    let worker = |_| {
        let round = |_| {
            together.wait();
            let begin = Instant::now();
            black_box(pass(PASSES));
            begin.elapsed().as_secs_f64()
        };
        (0..ROUNDS).map(round).collect::<Vec<f64>>()
    };
    let rounds: Vec<Vec<f64>> = pool.broadcast(worker);
    let flop = (2 * lanes * CHAINS) as f64 * PASSES as f64 * rounds.len() as f64;
    // A round lasts until the last thread is done.
    let last = |n: usize| rounds.iter().filter_map(|r| r.get(n)).copied().fold(0.0, f64::max);
    (0..ROUNDS).map(last).filter(|s| *s > 0.0).map(|s| flop / s / 1e9).reduce(f64::max)
}

/// The widest multiply-add of this processor, and its lanes.
#[cfg(target_arch = "x86_64")]
fn widest() -> Option<(Pass, usize)> {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f")]
    fn wide(passes: u64) -> f32 {
        let (factor, term) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(1.0)));
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..passes {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, factor, term);
            }
        }
        sums.iter().map(|s| _mm512_reduce_add_ps(*s)).sum()
    }

    #[target_feature(enable = "avx,fma")]
    fn half(passes: u64) -> f32 {
        let (factor, term) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(1.0)));
        let mut sums = [_mm256_setzero_ps(); CHAINS];
        for _ in 0..passes {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, factor, term);
            }
        }
        sums.iter().map(|s| _mm256_cvtss_f32(*s)).sum()
    }

    if InstructionSet::native() == InstructionSet::Avx512 {
        // SAFETY: the processor has it.
        Some((|passes| unsafe { wide(passes) }, 16))
    } else if is_x86_feature_detected!("fma") && is_x86_feature_detected!("avx") {
        // SAFETY: as above.
        Some((|passes| unsafe { half(passes) }, 8))
    } else {
        None
    }
}

/// The widest multiply-add of this processor, and its lanes.
#[cfg(target_arch = "aarch64")]
fn widest() -> Option<(Pass, usize)> {
    use std::arch::aarch64::*;

    fn neon(passes: u64) -> f32 {
        // SAFETY: every 64-bit Arm has NEON.
        unsafe {
            let (factor, term) = (vdupq_n_f32(black_box(0.5)), vdupq_n_f32(black_box(1.0)));
            let mut sums = [vdupq_n_f32(0.0); CHAINS];
            for _ in 0..passes {
                for sum in &mut sums {
                    *sum = vfmaq_f32(term, *sum, factor);
                }
            }
            sums.iter().map(|s| vaddvq_f32(*s)).sum()
        }
    }
    Some((neon, 4))
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn widest() -> Option<(Pass, usize)> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_chain_is_computed() {
        // s ← s/2 + 1 from 0: after n passes every lane of every chain is 2 − 2^(1 − n).
        let Some((pass, lanes)) = widest() else { return };
        let sum = pass(3);
        let counted = sum / 1.75 / CHAINS as f32;
        assert!(counted == lanes as f32 || counted == 1.0, "{counted} of {lanes} lanes");
    }
}
