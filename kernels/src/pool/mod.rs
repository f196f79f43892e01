//! Persistent workers, one for each core, and the working memory that kernels share.

mod scheduling_delay;
mod scratch;
mod shared_cache;
mod spin_team;
mod static_partition;

use crate::error::KernelError;
use core_affinity::CoreId;
use scheduling_delay::SchedulingDelay;
use scratch::PoolMemory;
pub use scratch::{Scratch, Working};
use shared_cache::SharedCacheProbe;
use spin_team::SpinTeam;
pub use static_partition::StaticPartition;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::thread::ThreadId;
use std::time::Duration;

/// Persistent worker threads.
pub struct Pool {
    threads: rayon::ThreadPool,
    /// The core of worker 0, if each has one of its own.
    first: Option<CoreId>,
    crew: Arc<SpinTeam>,
    held: Mutex<Holding>,
    scratch: Mutex<PoolMemory>,
    nearness: SharedCacheProbe,
    queue: Arc<SchedulingDelay>,
    dispatches: AtomicU64,
}

/// Who holds the workers, and whether they wait for it.
#[derive(Default)]
struct Holding {
    by: Option<ThreadId>,
    serving: bool,
}

/// Workers that are kept awake until this is dropped.
pub struct AwakeWorkers<'a> {
    pool: Option<&'a Pool>,
    cores: Option<Cores>,
    /// It is the thread that took it which works with them.
    here: PhantomData<*const ()>,
}

impl Pool {
    /// `workers` threads; 0 means one for each core. If they are as many as the cores, each stays on one of its own: on a machine
    /// that does other things too, the system may wake two on the same.
    ///
    /// # Errors
    /// The system refuses the threads.
    pub fn new(workers: usize) -> Result<Self, KernelError> {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let all = cores.len() > 1 && (workers == 0 || workers == cores.len());
        let first = cores.first().copied().filter(|_| all);
        crate::target::cpu::gemm_library::count_cores();
        let queue = Arc::new(SchedulingDelay::default());
        let seen = queue.clone();
        let threads = rayon::ThreadPoolBuilder::new()
            .num_threads(workers)
            .start_handler(move |n| {
                seen.enter(n);
                if let Some(core) = cores.get(n).filter(|_| all) {
                    core_affinity::set_for_current(*core);
                }
            })
            .thread_name(|n| format!("memlet-{n}"))
            .build()
            .map_err(|e| KernelError::Workers(e.to_string()))?;
        let crew = Arc::new(SpinTeam::new(threads.current_num_threads() - 1));
        Ok(Pool {
            threads,
            first,
            crew,
            held: Mutex::default(),
            scratch: Mutex::default(),
            nearness: SharedCacheProbe::default(),
            queue,
            dispatches: AtomicU64::new(0),
        })
    }

    pub fn workers(&self) -> usize {
        self.threads.current_num_threads()
    }

    /// How long the workers and this thread were ready to run so far and waited for a core, because others ran there; `None` where the
    /// system does not tell.
    pub fn queued(&self) -> Option<Duration> {
        // The thread that holds the workers works in the place of the first.
        let holds = self.holding().by == Some(std::thread::current().id());
        self.queue.waited(holds.then_some(0))
    }

    /// Keeps the workers awake for what this thread runs until the guard is dropped, the thread as the first of them and on its core:
    /// for kernels that follow one another. Nothing else should need the cores in between. Where another thread holds them, or they
    /// are held already, nothing changes.
    pub fn hold(&self) -> AwakeWorkers<'_> {
        let mut held = self.holding();
        // A worker that holds the others would wait for itself.
        if self.workers() < 2 || held.by.is_some() || self.threads.current_thread_index().is_some() {
            return AwakeWorkers { pool: None, cores: None, here: PhantomData };
        }
        held.by = Some(std::thread::current().id());
        let cores = self.first.and_then(Cores::only);
        AwakeWorkers { pool: Some(self), cores, here: PhantomData }
    }

    fn holding(&self) -> MutexGuard<'_, Holding> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parallel regions that kernels have run on this pool so far: each one is a dispatch of work to all workers and a barrier at its end.
    pub fn dispatches(&self) -> u64 {
        self.dispatches.load(Ordering::Relaxed)
    }

    /// Counts dispatches whose work this thread has done by itself.
    pub fn count_alone(&self, dispatches: usize) {
        self.dispatches.fetch_add(dispatches as u64, Ordering::Relaxed);
    }

    /// Runs `work(worker)` once for every worker and waits; where a held worker does not come, another does its part. The work itself
    /// must not ask for all workers.
    pub fn broadcast<R: Send + Sync>(&self, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
        self.dispatches.fetch_add(1, Ordering::Relaxed);
        self.on_all(work)
    }

    fn on_all<R: Send + Sync>(&self, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
        // Handing it to another thread takes longer than many a kernel.
        if self.workers() == 1 {
            return vec![work(0)];
        }
        let mut held = self.holding();
        if held.by != Some(std::thread::current().id()) {
            drop(held);
            return self.threads.broadcast(|context| work(context.index()));
        }
        if !held.serving {
            held.serving = true;
            let (crew, seen) = (self.crew.clone(), self.crew.round());
            self.threads.spawn_broadcast(move |context| {
                // The first worker is the thread that holds the others.
                if context.index() > 0 {
                    crew.serve(context.index(), seen);
                }
            });
        }
        drop(held);
        let found: Vec<OnceLock<R>> = (0..self.workers()).map(|_| OnceLock::new()).collect();
        self.crew.run(&|worker| {
            let _ = found[worker].set(work(worker));
        });
        found.into_iter().filter_map(OnceLock::into_inner).collect()
    }

    /// Lets the workers of this thread leave its crew, so that they can do other things.
    fn dismiss(&self) {
        let mut held = self.holding();
        if held.by == Some(std::thread::current().id()) && std::mem::take(&mut held.serving) {
            drop(held);
            self.crew.dismiss();
        }
    }

    /// Working memory of at least this number of bytes, until it is dropped. All kernels have the same, and every worker has its own part
    /// of it where it had it before: what one kernel leaves in a core's caches is where the next one writes, and a step needs as much as
    /// its largest kernels. Holds anything at first.
    ///
    /// # Errors
    /// No memory.
    pub fn scratch(&self, working: Working) -> Result<Scratch<'_>, KernelError> {
        let mut held = match self.scratch.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The thread that has it may wait for the workers that this thread keeps.
            Err(TryLockError::WouldBlock) => {
                self.dismiss();
                self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        held.grow(working, self.workers())?;
        Ok(Scratch(held))
    }

    /// Whether the cores of all workers have a cache in common just now, as far as that could be told: it is asked again every now
    /// and then, which takes some microseconds. The workers must be free.
    pub fn is_near(&self) -> bool {
        self.nearness.get(|| self.workers() < 2 || shared_cache::exchange(self.workers(), |work| drop(self.on_all(work))))
    }

    /// The threads, for libraries that share work among them.
    pub fn threads(&self) -> &rayon::ThreadPool {
        self.dispatches.fetch_add(1, Ordering::Relaxed);
        self.dismiss();
        &self.threads
    }
}

impl Drop for AwakeWorkers<'_> {
    fn drop(&mut self) {
        let Some(pool) = self.pool else { return };
        pool.dismiss();
        pool.holding().by = None;
        if let Some(cores) = self.cores.take() {
            cores.restore();
        }
    }
}

/// The cores that a thread may run on.
struct Cores(#[cfg(target_os = "linux")] nix::sched::CpuSet);

impl Cores {
    /// Keeps this thread on a core; gives those that it had before.
    #[cfg(target_os = "linux")]
    fn only(core: CoreId) -> Option<Self> {
        let before = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).ok()?;
        core_affinity::set_for_current(core).then_some(Cores(before))
    }

    #[cfg(target_os = "linux")]
    fn restore(self) {
        // A thread that stays on one core is as right and slower.
        let _ = nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &self.0);
    }

    /// Elsewhere a thread cannot be let go again.
    #[cfg(not(target_os = "linux"))]
    fn only(_: CoreId) -> Option<Self> {
        None
    }

    #[cfg(not(target_os = "linux"))]
    fn restore(self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn numbers(pool: &Pool) -> Vec<usize> {
        pool.broadcast(|worker| worker)
    }

    #[test]
    fn every_worker_works_once_held_or_not() {
        let pool = Pool::new(3).expect("threads");
        assert_eq!(numbers(&pool), [0, 1, 2]);
        let held = pool.hold();
        let rounds = AtomicUsize::new(0);
        for _ in 0..1000 {
            pool.broadcast(|_| rounds.fetch_add(1, Ordering::Relaxed));
        }
        assert_eq!(rounds.into_inner(), 3000);
        // A caller that asks for the threads, in between or inside a second guard, finds them free.
        for _ in 0..3 {
            let _inner = pool.hold();
            assert_eq!(pool.threads().broadcast(|context| context.index()), [0, 1, 2]);
            assert_eq!(numbers(&pool), [0, 1, 2]);
        }
        drop(held);
        assert_eq!(numbers(&pool), [0, 1, 2]);
    }

    #[test]
    fn parallel_regions_are_counted_and_probes_are_not() {
        for workers in [1, 2] {
            let pool = Pool::new(workers).expect("threads");
            let _held = pool.hold();
            (0..3).for_each(|_| drop(numbers(&pool)));
            pool.is_near();
            assert_eq!(pool.dispatches(), 3);
        }
    }

    #[test]
    fn a_single_worker_is_whoever_asks() {
        let pool = Pool::new(1).expect("threads");
        assert_eq!(pool.broadcast(|worker| (worker, std::thread::current().id())), [(0, std::thread::current().id())]);
    }

    #[test]
    fn another_thread_may_ask_while_workers_are_held() {
        let pool = Pool::new(2).expect("threads");
        std::thread::scope(|scope| {
            let held = pool.hold();
            assert_eq!(numbers(&pool), [0, 1]);
            let other = scope.spawn(|| numbers(&pool));
            assert_eq!(numbers(&pool), [0, 1]);
            drop(held);
            assert_eq!(other.join().expect("no panic"), [0, 1]);
        });
    }

    #[test]
    fn a_panic_reaches_the_caller_and_workers_go_on() {
        let pool = Pool::new(2).expect("threads");
        let _held = pool.hold();
        for who in 0..2 {
            let work = || pool.broadcast(|worker| assert_ne!(worker, who, "planted"));
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err());
            assert_eq!(numbers(&pool), [0, 1]);
        }
    }

    /// Work on the workers may not ask for all of them: it panics with that message where it would wait for ever.
    #[test]
    fn work_cannot_ask_for_all_workers() {
        let pool = Pool::new(2).expect("threads");
        let _held = pool.hold();
        let work = || pool.broadcast(|worker| if worker == 0 { numbers(&pool) } else { vec![] });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err());
        assert_eq!(numbers(&pool), [0, 1]);
    }

    /// Two threads run kernels on one pool: who has the working memory waits for workers that the other keeps.
    #[test]
    fn working_memory_and_workers_do_not_wait_for_each_other() {
        let pool = Pool::new(2).expect("threads");
        let kernel = || {
            let _scratch = pool.scratch(Working { own: 64, shared: 0 }).expect("memory");
            numbers(&pool);
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _held = pool.hold();
                        (0..3).for_each(|_| kernel());
                    }
                });
            }
        });
    }

    #[test]
    fn a_worker_holds_nobody() {
        let pool = Pool::new(2).expect("threads");
        let found = pool.threads().install(|| {
            let _held = pool.hold();
            pool.holding().by.is_none()
        });
        assert!(found);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_gets_its_cores_back() {
        let cores = || core_affinity::get_core_ids().map(|c| c.len());
        let (before, pool) = (cores(), Pool::new(0).expect("threads"));
        let held = pool.hold();
        assert_eq!(numbers(&pool).len(), pool.workers());
        drop(held);
        assert_eq!(cores(), before);
    }
}
