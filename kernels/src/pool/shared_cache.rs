//! Whether cores share a cache, measured by the round trip of a cache line from one to another.
//!
//! The processors of a virtual machine move. For some minutes two of them share a third cache, and what one writes the other reads
//! at 75 GB/s; for others they do not, and it is 26 GB/s (Zen 4). What workers hand to one another goes another way then.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer holds.
const HOLDS: Duration = Duration::from_millis(100);
/// Round trips that are timed together, and how often: the fastest counts, since whatever else happens makes them slower.
const TRIPS: u32 = 8;
const TIMES: u32 = 4;
/// A round trip within one cache takes 50 to 70 ns on a Zen 4, one beyond it 250 to 340.
const NEAR: Duration = Duration::from_nanos(130);
/// How long workers wait for one another before they give up, as where the system has something else for one of them to do.
const PATIENCE: Duration = Duration::from_micros(200);

/// The last answer.
#[derive(Default)]
pub struct SharedCacheProbe(Mutex<Option<(Instant, bool)>>);

impl SharedCacheProbe {
    /// The last answer, or what `ask` finds if it is too old.
    pub fn get(&self, ask: impl FnOnce() -> bool) -> bool {
        let last = *self.last();
        match last {
            Some((when, near)) if when.elapsed() < HOLDS => near,
            _ => {
                // The caller may wait for workers that another caller of this function keeps: no lock is held during the measurement.
                let near = ask();
                *self.last() = Some((Instant::now(), near));
                near
            }
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<(Instant, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line that goes back and forth. Even numbers are worker 0's turn, odd ones that of its partner. Each partner has one of its own:
/// who waits looks at it all the time, which would slow others down.
#[derive(Default)]
#[repr(align(128))]
struct Turn(AtomicUsize);

/// No turn comes after this one.
const OVER: usize = usize::MAX;

impl Turn {
    /// Waits for this turn and takes it; `false` if it is too late for that.
    fn take(&self, turn: usize, till: Instant) -> bool {
        let mut looks = 0_u32;
        loop {
            let now = self.0.load(Ordering::Acquire);
            if now == turn {
                self.0.store(turn + 1, Ordering::Release);
                return true;
            }
            looks += 1;
            if now == OVER || (looks.is_multiple_of(256) && Instant::now() > till) {
                self.0.store(OVER, Ordering::Relaxed);
                return false;
            }
            spin_loop();
        }
    }
}

/// Whether a line comes back to worker 0 from each of the others as fast as within one cache. `broadcast` has every worker do
/// something.
pub fn exchange(workers: usize, broadcast: impl FnOnce(&(dyn Fn(usize) + Sync))) -> bool {
    let turns: Vec<Turn> = (1..workers).map(|_| Turn::default()).collect();
    let near = AtomicBool::new(false);
    // One more trip before those that are timed: until then the partner may not be there.
    let trips = (1 + TIMES * TRIPS) as usize;
    broadcast(&|worker| {
        let till = Instant::now() + PATIENCE;
        if worker > 0 {
            let _ = (0..trips).all(|n| turns[worker - 1].take(2 * n + 1, till));
        } else {
            near.store(turns.iter().all(|turn| is_near(turn, till)), Ordering::Relaxed);
            turns.iter().for_each(|turn| turn.0.store(OVER, Ordering::Relaxed));
        }
    });
    near.into_inner()
}

/// Worker 0's side, with the partner who has this line.
fn is_near(turn: &Turn, till: Instant) -> bool {
    let mut next = (0..).step_by(2).map(|n| turn.take(n, till));
    let mut fastest = Duration::MAX;
    let mut there = next.next() == Some(true);
    for _ in 0..TIMES {
        let start = Instant::now();
        there = there && next.by_ref().take(TRIPS as usize).all(|there| there);
        fastest = fastest.min(start.elapsed());
    }
    there && fastest / TRIPS < NEAR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_ends_whoever_comes() {
        let start = Instant::now();
        let everyone = |work: &(dyn Fn(usize) + Sync)| std::thread::scope(|scope| (0..3).for_each(|n| drop(scope.spawn(move || work(n)))));
        exchange(3, everyone);
        // Worker 0 waits for no other worker for ever, nor does any for worker 0.
        assert!(!exchange(3, |work| work(0)));
        assert!(!exchange(3, |work| work(2)));
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn an_answer_holds_for_a_while() {
        let nearness = SharedCacheProbe::default();
        assert!(nearness.get(|| true));
        assert!(nearness.get(|| unreachable!("asked just now")));
        *nearness.last() = Instant::now().checked_sub(2 * HOLDS).map(|when| (when, true));
        assert!(!nearness.get(|| false));
    }
}
