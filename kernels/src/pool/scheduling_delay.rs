//! How long threads wait for a core on which others run: what disturbs a time that is measured.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The number of every worker, and where the system tells of its waits.
#[derive(Default)]
pub struct SchedulingDelay(Mutex<Vec<(usize, PathBuf)>>);

impl SchedulingDelay {
    /// Counts this thread among the workers, under a number.
    pub fn enter(&self, worker: usize) {
        if let Ok(thread) = fs::read_link("/proc/thread-self") {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push((worker, PathBuf::from("/proc").join(thread).join("schedstat")));
        }
    }

    /// How long all workers and this thread have waited so far. A worker in whose place this thread works is left out: it only waits for
    /// this thread, on the same core.
    pub fn waited(&self, replaced: Option<usize>) -> Option<Duration> {
        let workers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = PathBuf::from("/proc/thread-self/schedstat");
        let each = workers
            .iter()
            .filter(|(worker, _)| Some(*worker) != replaced)
            .map(|(_, file)| file)
            .chain([&own])
            .map(|file| waited(&fs::read_to_string(file).ok()?));
        each.sum::<Option<u64>>().map(Duration::from_nanos)
    }
}

/// Nanoseconds in the queue, the second number of `schedstat`.
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_number_is_the_wait() {
        assert_eq!((waited("1200 34 5\n"), waited(""), waited("1")), (Some(34), None, None));
    }

    /// More threads than cores wait for one another.
    #[cfg(target_os = "linux")]
    #[test]
    fn threads_that_share_a_core_wait() {
        let Some(before) = SchedulingDelay::default().waited(None) else { return };
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let queue = SchedulingDelay::default();
        std::thread::scope(|scope| {
            for worker in 0..4 * cores {
                let queue = &queue;
                scope.spawn(move || {
                    queue.enter(worker);
                    let began = std::time::Instant::now();
                    while began.elapsed() < Duration::from_millis(100) {
                        std::hint::spin_loop();
                    }
                    // The system no longer counts the waits of ended threads.
                    assert!(queue.waited(None).is_none_or(|waited| waited >= before));
                });
            }
        });
    }
}
