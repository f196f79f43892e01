//! The load of other processes on this machine while something is timed: times on a busy machine are not comparable with others.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::time::{Duration, Instant};

/// Ticks of `/proc` per second, fixed on Linux.
const TICKS: f64 = 100.0;
/// Shorter stretches have too few ticks to be accurate.
const LEAST: Duration = Duration::from_millis(80);
/// Part of the cores that other processes may use before a machine counts as busy: background work alone takes less.
const BUSY: f64 = 0.05;

/// Cores that other processes used during a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Processor seconds per second that were neither this process's nor idle, including time that a host took from a virtual machine.
    pub others: f64,
    pub cores: u64,
    /// The length of the stretch.
    pub seconds: f64,
}

impl Load {
    pub fn busy(&self) -> bool {
        self.others > BUSY * self.cores as f64
    }

    /// Both stretches together.
    pub fn and(self, other: Load) -> Load {
        let seconds = self.seconds + other.seconds;
        let others = (self.others * self.seconds + other.others * other.seconds) / seconds.max(f64::MIN_POSITIVE);
        Load { others, cores: self.cores, seconds }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "others used {:.1} of {} cores", self.others, self.cores)
    }
}

/// Measures the load of other processes from now on.
#[derive(Clone, Debug)]
pub struct Watch {
    began: Instant,
    /// Busy ticks of all processors, and ticks of this process with its children.
    ticks: Option<(u64, u64)>,
}

impl Watch {
    pub fn start() -> Self {
        Watch { began: Instant::now(), ticks: ticks() }
    }

    /// The load since the watch began; `None` where the system does not report it, or after too short a time.
    pub fn load(&self) -> Option<Load> {
        let seconds = self.began.elapsed();
        let ((all, own), (all_before, own_before)) = (ticks()?, self.ticks?);
        let others = all.saturating_sub(all_before).saturating_sub(own.saturating_sub(own_before)) as f64 / TICKS;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
        let seconds = (seconds >= LEAST).then_some(seconds.as_secs_f64())?;
        Some(Load { others: others / seconds, cores, seconds })
    }

    /// The same, after waiting until enough time has passed.
    pub fn settled(&self) -> Option<Load> {
        std::thread::sleep(LEAST.saturating_sub(self.began.elapsed()));
        self.load()
    }
}

/// Busy ticks of all processors, and those of this process and its ended children.
fn ticks() -> Option<(u64, u64)> {
    Some((busy(&fs::read_to_string("/proc/stat").ok()?)?, own(&fs::read_to_string("/proc/self/stat").ok()?)?))
}

/// user, nice, system, irq, softirq and steal of the first line of `/proc/stat`; guests are counted among users.
fn busy(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some([0, 1, 2, 5, 6, 7].iter().filter_map(|n| fields.get(*n)).sum())
}

/// utime, stime, cutime and cstime of `/proc/self/stat`, the 14th to 17th field; the name before them may hold anything.
fn own(stat: &str) -> Option<u64> {
    let (_, after) = stat.rsplit_once(')')?;
    let fields: Vec<u64> = after.split_whitespace().skip(11).take(4).filter_map(|field| field.parse().ok()).collect();
    (fields.len() == 4).then(|| fields.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        assert_eq!(busy("cpu  100 1 20 5000 7 3 4 5 0 0\ncpu0 1 2 3\n"), Some(133));
        assert_eq!(own("42 (a ) name) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16"), Some(11 + 12 + 13 + 14));
        assert_eq!((busy(""), own("")), (None, None));
    }

    #[test]
    fn a_machine_is_busy_by_its_cores() {
        let load = |others, cores| Load { others, cores, seconds: 1.0 };
        assert!(load(1.0, 2).busy() && !load(0.05, 2).busy() && !load(1.0, 64).busy());
        assert_eq!(load(1.94, 2).to_string(), "others used 1.9 of 2 cores");
        assert_eq!(load(1.0, 2).and(Load { seconds: 3.0, ..load(2.0, 2) }), Load { others: 1.75, cores: 2, seconds: 4.0 });
    }

    /// The work of this process itself is no load.
    #[cfg(target_os = "linux")]
    #[test]
    fn own_work_is_not_that_of_others() {
        let watch = Watch::start();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let load = watch.load().expect("Linux tells");
        assert!(load.others < load.cores as f64 + 0.2, "{load}");
        assert!(Watch::start().load().is_none(), "no time has gone by");
    }
}
