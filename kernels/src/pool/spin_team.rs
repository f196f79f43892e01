//! A team of spinning workers: they stay awake from one kernel to the next. Starting a kernel then takes a microsecond, where waking
//! sleeping workers takes ten to forty.
//!
//! A machine may have something else to do. A waiting worker spins for a bounded time only, and sleeps as soon as another thread wants its
//! core. No worker waits for a helper that has not begun: the leader does its part when it has done its own. A helper that the system keeps
//! from running for some milliseconds costs what it would have done, and not those milliseconds.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Looks at a number that others change before the core is offered to who else may need it.
const PREFETCH: u32 = 1 << 12;
/// How long a waiting thread yields its core before it sleeps. A yield that returns at once means that no other thread needs the core.
const AWAKE: Duration = Duration::from_millis(2);
/// An offer that takes as long was taken.
const TAKEN: Duration = Duration::from_micros(50);
/// How long no yield follows one that was taken: the thread that took the core keeps it for milliseconds, and a sleeping thread wakes
/// sooner.
const CROWDED: Duration = Duration::from_millis(50);

/// What one round asks of every worker, by its number; `None` sends the helpers home.
type DeviceWork = Option<*const (dyn Fn(usize) + Sync)>;

/// The last round in which somebody has begun with the part of one worker. On a line of its own: its worker looks at it all the time.
#[derive(Default)]
#[repr(align(128))]
struct Begun(AtomicU32);

impl Begun {
    /// The right to do that part in this round; one thread gets it.
    fn claim(&self, round: u32) -> bool {
        self.0.compare_exchange(round.wrapping_sub(1), round, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Until when the cores count as wanted by others, in microseconds since `began`.
struct Crowd {
    began: Instant,
    until: AtomicU64,
}

impl Crowd {
    fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    fn is_there(&self) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        until > 0 && self.now() < until
    }

    /// Looks until that is so, or until it is time to sleep: false.
    fn looked(&self, until: impl Fn() -> bool) -> bool {
        let crowded = self.is_there();
        for _ in 0..PREFETCH {
            if until() {
                return true;
            }
            spin_loop();
        }
        let began = Instant::now();
        let mut before = began;
        while !crowded && before - began < AWAKE {
            std::thread::yield_now();
            let now = Instant::now();
            let taken = now - before > TAKEN;
            if taken {
                self.until.store(self.now() + CROWDED.as_micros() as u64, Ordering::Relaxed);
            }
            if until() {
                return true;
            }
            if taken {
                return false;
            }
            before = now;
        }
        false
    }
}

/// Threads that sleep until something is so.
#[derive(Default)]
struct Sleepers {
    count: AtomicU32,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Sleepers {
    /// Looks whether that is so for a while, then sleeps until it is.
    fn wait(&self, crowd: &Crowd, until: impl Fn() -> bool) {
        if crowd.looked(&until) {
            return;
        }
        self.count.fetch_add(1, Ordering::SeqCst);
        // Either this thread sees the change, or the thread that made it sees that this one sleeps.
        fence(Ordering::SeqCst);
        let mut held = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !until() {
            held = self.woken.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        drop(held);
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes all waiting threads to look again. Where none sleeps, that takes no lock.
    fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.woken.notify_all();
        }
    }
}

/// What a leader and its helpers share.
pub struct SpinTeam {
    /// Written by the leader while no part of a round is open, read by the workers that have claimed one.
    work: UnsafeCell<DeviceWork>,
    round: AtomicU32,
    /// Of each helper.
    begun: Vec<Begun>,
    /// Helpers' parts of this round that are not done.
    left: AtomicU32,
    /// Helpers sleep until a round begins, the leader until it is done.
    helpers: Sleepers,
    leader: Sleepers,
    crowd: Crowd,
    /// Whether a round is under way.
    leading: AtomicBool,
    /// What a helper's work panicked with.
    panicked: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` changes hands with `begun` and `left`, as said there; what it points to may be called by several threads.
unsafe impl Send for SpinTeam {}
// SAFETY: as above.
unsafe impl Sync for SpinTeam {}

impl SpinTeam {
    /// A leader and this number of helpers.
    pub fn new(helpers: usize) -> Self {
        SpinTeam {
            work: UnsafeCell::new(None),
            round: AtomicU32::new(0),
            begun: (0..helpers).map(|_| Begun::default()).collect(),
            left: AtomicU32::new(0),
            helpers: Sleepers::default(),
            leader: Sleepers::default(),
            crowd: Crowd { began: Instant::now(), until: AtomicU64::new(0) },
            leading: AtomicBool::new(false),
            panicked: Mutex::new(None),
        }
    }

    /// The round after which helpers who are called now begin.
    pub fn round(&self) -> u32 {
        self.round.load(Ordering::Relaxed)
    }

    /// A helper's side, as worker 1 or one of the next: works in all rounds after `seen` until it is sent home.
    pub fn serve(&self, worker: usize, mut seen: u32) {
        loop {
            self.helpers.wait(&self.crowd, || self.round.load(Ordering::Acquire) != seen);
            // A late helper finds the newest round: its parts of earlier rounds are done.
            seen = self.round.load(Ordering::Acquire);
            if self.begun[worker - 1].claim(seen) && !self.part(worker) {
                return;
            }
        }
    }

    /// Does the part of a helper, which this thread has claimed; false if helpers are sent home.
    fn part(&self, worker: usize) -> bool {
        // SAFETY: the leader wrote it before it began the round, and leaves it until this part is done.
        let work = unsafe { *self.work.get() };
        if let Some(work) = work {
            // SAFETY: the leader keeps what it points to until this part is done.
            let done = catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(worker) }));
            if let Err(why) = done {
                *self.panicked.lock().unwrap_or_else(|e| e.into_inner()) = Some(why);
            }
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.leader.wake();
        }
        work.is_some()
    }

    /// The leader's side: one round, itself as worker 0.
    fn lead(&self, work: DeviceWork) {
        assert!(!self.leading.swap(true, Ordering::Relaxed), "what workers are given cannot ask for all workers");
        // SAFETY: all parts of the last round are done, and a worker reads the round only after it has claimed a part of this one.
        unsafe { *self.work.get() = work };
        self.left.store(self.begun.len() as u32, Ordering::Relaxed);
        let round = self.round.fetch_add(1, Ordering::Release).wrapping_add(1);
        self.helpers.wake();
        // SAFETY: given by `run`, which holds what it points to.
        let mine = work.map(|work| catch_unwind(AssertUnwindSafe(|| unsafe { (*work)(0) })));
        if work.is_some() {
            for (n, begun) in self.begun.iter().enumerate() {
                if begun.claim(round) {
                    self.part(n + 1);
                }
            }
        }
        self.leader.wait(&self.crowd, || self.left.load(Ordering::Acquire) == 0);
        self.leading.store(false, Ordering::Relaxed);
        let theirs = self.panicked.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(why) = theirs.or(mine.and_then(Result::err)) {
            resume_unwind(why);
        }
    }

    /// Has the part of every worker done, the caller as worker 0 and mostly each by its own thread, and waits for all. There is one leader
    /// at a time. Parts may wait for one another: no worker does a second part before its own has ended.
    pub fn run(&self, work: &(dyn Fn(usize) + Sync)) {
        // SAFETY: only the lifetime changes, and `lead` returns when no worker uses it any more.
        let work = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(work) };
        self.lead(Some(work));
    }

    /// Sends the helpers home.
    pub fn dismiss(&self) {
        self.lead(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// The leader does not wait for helpers that never come.
    #[test]
    fn the_leader_does_what_nobody_has_begun() {
        let crew = SpinTeam::new(3);
        let done = AtomicUsize::new(0);
        for _ in 0..3 {
            crew.run(&|worker| {
                done.fetch_add(1 << (8 * worker), Ordering::Relaxed);
            });
        }
        assert_eq!(done.into_inner(), 0x0303_0303);
    }

    /// Helpers that slept are woken, those that come late leave done parts alone, and all go home.
    #[test]
    fn helpers_sleep_between_rounds() {
        let crew = SpinTeam::new(2);
        let parts = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for worker in 1..=2 {
                let (crew, seen) = (&crew, crew.round());
                scope.spawn(move || crew.serve(worker, seen));
            }
            for round in 0..200 {
                if round % 50 == 0 {
                    let waited = Instant::now();
                    while crew.helpers.count.load(Ordering::Relaxed) < 2 && waited.elapsed() < Duration::from_secs(10) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    assert_eq!(crew.helpers.count.load(Ordering::Relaxed), 2, "who waits for long sleeps");
                }
                crew.run(&|_| {
                    parts.fetch_add(1, Ordering::Relaxed);
                });
            }
            crew.dismiss();
        });
        assert_eq!(parts.into_inner(), 600);
    }
}
