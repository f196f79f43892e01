//! Single flight: where one thread compiles a kernel, others that need the same kernel wait for it instead of compiling it again.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The keys of running compilations.
#[derive(Default)]
pub struct InFlight {
    keys: Mutex<BTreeSet<String>>,
    changed: Condvar,
}

/// The claim of one thread to a key. Dropping it wakes all waiting threads, whether the compilation succeeded or not.
pub struct InFlightGuard<'a> {
    underway: &'a InFlight,
    key: String,
}

impl InFlight {
    pub const fn new() -> Self {
        InFlight { keys: Mutex::new(BTreeSet::new()), changed: Condvar::new() }
    }

    fn keys(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread has claimed the key, and claims it; the result may exist by then. A thread that claims several keys
    /// claims them in their order, or two such threads would wait for each other.
    pub fn claim(&self, key: &str) -> InFlightGuard<'_> {
        let mut keys = self.keys();
        while keys.contains(key) {
            keys = self.changed.wait(keys).unwrap_or_else(PoisonError::into_inner);
        }
        keys.insert(key.to_string());
        InFlightGuard { underway: self, key: key.to_string() }
    }

    /// Whether some thread has claimed the key.
    pub fn has(&self, key: &str) -> bool {
        self.keys().contains(key)
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.underway.keys().remove(&self.key);
        self.underway.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_makes_and_all_others_find_it() {
        let (underway, made) = (InFlight::new(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let _claim = underway.claim("a");
                    if made.load(Ordering::Relaxed) == 0 {
                        // Long enough for the others to come.
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
        assert!(!underway.has("a"));
    }

    #[test]
    fn what_failed_is_given_up() {
        let underway = InFlight::new();
        let failed = std::thread::scope(|scope| {
            let maker = scope.spawn(|| {
                let _claim = underway.claim("a");
                panic!("the compiler is gone");
            });
            maker.join().is_err()
        });
        let _claim = underway.claim("a");
        assert!(failed && underway.has("a") && !underway.has("b"));
    }
}
