//! Libraries of products on the pool's threads.

#![cfg(target_os = "linux")]

use kernels::pool::Pool;
use kernels::target::cpu::gemm_library::{GemmCall, GemmFactor, GemmLibrary};
use std::time::{Duration, Instant};

/// Ticks that each worker of this process has computed so far.
fn ticks() -> Vec<u64> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").expect("/proc").flatten() {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = stat.rsplit_once(')') else { continue };
        if name.contains("(memlet-") {
            let field = |n: usize| rest.split_whitespace().nth(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
            found.push(field(11) + field(12));
        }
    }
    found
}

/// A worker that is kept on its core sees a single one, and a library that asks there how many there are would use one thread.
#[test]
fn every_library_works_on_all_threads() {
    /// Long enough for a worker to be woken before it is done.
    const SIZE: usize = 1536;
    const LIMIT: Duration = Duration::from_secs(20);
    let pool = Pool::new(0).expect("threads");
    if pool.workers() < 2 {
        return;
    }
    let (a, b, mut c) = (vec![1f32; SIZE * SIZE], vec![1f32; SIZE * SIZE], vec![0f32; SIZE * SIZE]);
    let c = c.as_mut_ptr() as usize;
    for library in GemmLibrary::ALL {
        let (before, begin) = (ticks(), Instant::now());
        let worked = || ticks().iter().zip(&before).filter(|(after, before)| **after > **before + 1).count();
        // In one visit: another could be to another worker. Whoever keeps a core busy besides makes it take longer; a library that
        // uses one thread never gets there.
        pool.threads().install(|| {
            while worked() < 2 && begin.elapsed() < LIMIT {
                let row = SIZE as isize;
                let (a, b, c) = ((a.as_ptr(), row, 1), (b.as_ptr(), row, 1), (c as *mut f32, row, 1));
                let product = GemmCall { m: SIZE, n: SIZE, k: SIZE, a, b, c, alpha: 1.0, accumulate: false, threads: pool.workers() };
                // SAFETY: three matrices of this size.
                unsafe { <f32 as GemmFactor<f32>>::implementation(library).run(&product) };
            }
        });
        let worked = worked();
        assert!(worked > 1, "{library:?} worked on {worked} of {} threads", pool.workers());
    }
}
