//! Workers that wait for the next kernel without going to sleep: from one kernel to the next it takes them a microsecond, where
//! waking and being woken takes ten to forty.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Looks at a number that others change before the core is offered to who else may need it.
const LOOKS: u32 = 1 << 12;

/// What one round asks of every worker, by its number; `None` sends the helpers home.
type Work = Option<*const (dyn Fn(usize) + Sync)>;

/// What a leader and its helpers share.
#[derive(Default)]
pub struct Crew {
    /// Written by the leader while no helper is in a round, read by helpers while `left` is not 0.
    work: UnsafeCell<Work>,
    round: AtomicUsize,
    /// Helpers that have not finished this round.
    left: AtomicUsize,
    /// Whether a round is under way.
    leading: AtomicBool,
    /// What a helper's work panicked with.
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` changes hands with `round` and `left`, as said there; what it points to may be called by several threads.
unsafe impl Send for Crew {}
// SAFETY: as above.
unsafe impl Sync for Crew {}

fn wait(until: impl Fn() -> bool) {
    let mut looks = 0;
    while !until() {
        if looks < LOOKS {
            looks += 1;
            spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

impl Crew {
    /// The round after which helpers who are called now begin.
    pub fn round(&self) -> usize {
        self.round.load(Ordering::Relaxed)
    }

    /// A helper's side: works in all rounds after `seen` until it is sent home.
    pub fn serve(&self, worker: usize, mut seen: usize) {
        loop {
            wait(|| self.round.load(Ordering::Acquire) != seen);
            seen = seen.wrapping_add(1);
            // SAFETY: the leader wrote it before it began the round, and leaves it until this helper has finished.
            let work = unsafe { *self.work.get() };
            if let Some(work) = work {
                // SAFETY: the leader keeps what it points to until this helper has finished.
                let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(worker) }));
                if let Err(why) = done {
                    *self.panicked.lock().unwrap_or_else(|e| e.into_inner()) = Some(why);
                }
            }
            self.left.fetch_sub(1, Ordering::Release);
            if work.is_none() {
                return;
            }
        }
    }

    /// The leader's side: one round with so many helpers, itself as worker 0.
    fn lead(&self, helpers: usize, work: Work) {
        assert!(!self.leading.swap(true, Ordering::Relaxed), "what workers are given cannot ask for all workers");
        // SAFETY: helpers are between two rounds, in which they do not look at it.
        unsafe { *self.work.get() = work };
        self.left.store(helpers, Ordering::Relaxed);
        self.round.fetch_add(1, Ordering::Release);
        // SAFETY: given by `run`, which holds what it points to.
        let mine = work.map(|work| catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(0) })));
        wait(|| self.left.load(Ordering::Acquire) == 0);
        self.leading.store(false, Ordering::Relaxed);
        let theirs = self.panicked.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(why) = theirs.or(mine.and_then(Result::err)) {
            resume_unwind(why);
        }
    }

    /// Has every worker do this, the caller as worker 0, and waits for all. There is one leader at a time, and so many helpers serve.
    pub fn run(&self, helpers: usize, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes, and `lead` returns when no helper uses it any more.
        let work = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(work) };
        self.lead(helpers, Some(work));
    }

    /// Sends the helpers home.
    pub fn dismiss(&self, helpers: usize) {
        self.lead(helpers, None);
    }
}
