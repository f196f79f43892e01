//! The load by other processes while one contender ran.

use std::time::Instant;

/// Ticks a second in `/proc`, fixed by Linux's interface to user space.
const TICKS: f64 = 100.0;

/// Seconds of work of all processors since boot; `None` without `/proc`.
fn busy() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<f64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|f| f.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal
    let total: f64 = fields.iter().take(8).sum();
    Some((total - fields.get(3)? - fields.get(4)?) / TICKS)
}

/// Seconds of work of this process, over all threads.
pub fn own() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the name in brackets and may hold anything.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |n: usize| fields.get(n)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

/// Sums the work of all other processes over many turns of one contender.
///
/// `/proc` counts in hundredths of a second, which is too coarse for one turn and fine enough for the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Others {
    busy_s: f64,
    own_s: f64,
    wall_s: f64,
    known: bool,
}

impl Others {
    /// Runs one turn; `own` extracts from its result the seconds that its contender computed.
    pub fn during<T, E>(&mut self, turn: impl FnOnce() -> Result<T, E>, own: impl FnOnce(&T) -> Option<f64>) -> Result<T, E> {
        let (before, begin) = (busy(), Instant::now());
        let result = turn()?;
        let wall = begin.elapsed().as_secs_f64();
        if let (Some(before), Some(after), Some(own)) = (before, busy(), own(&result)) {
            self.busy_s += after - before;
            self.own_s += own;
            self.wall_s += wall;
            self.known = true;
        }
        Ok(result)
    }

    /// Processors that other processes kept busy on average: 0 on a quiet machine.
    pub fn processors(&self) -> Option<f64> {
        (self.known && self.wall_s > 0.0).then(|| ((self.busy_s - self.own_s) / self.wall_s).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_work_does_not_count() {
        let mut others = Others::default();
        assert_eq!(others.processors(), None);
        let claimed = others.during(|| Ok::<f64, ()>(1e9), |seconds| Some(*seconds)).unwrap();
        assert_eq!(claimed, 1e9);
        if busy().is_some() {
            assert_eq!(others.processors(), Some(0.0), "more own work than work in all");
        }
    }
}
