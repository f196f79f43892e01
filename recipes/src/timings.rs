//! Where a command's time goes: wall-clock and processor seconds of each phase, and what was counted.
//!
//! [`start`] opens the account on the calling thread, the *main* one. From then on every second of that thread belongs to the innermost
//! phase that is open ([`during`]), so that the phases add up to the whole. The processor seconds of a phase are those of all threads and
//! of all compilers that ended in it. Where other threads work in phases of their own while the main thread waits for them, as when several
//! programs are rewritten beside one another, the wall-clock seconds of the wait are divided by their times.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde::Serialize;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What a command is at, in the order in which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandPhase {
    /// Reading and resolving the recipe.
    Load,
    Differentiate,
    /// Passes that rewrite operators or share and stack them, and the expansion of operators into maps.
    Rewrite,
    Fuse,
    /// Fusing contractions with their neighbours.
    Compose,
    /// Interpreting programs and kernels at small sizes, and comparing results with that.
    Check,
    /// Building spaces of configurations, ranking them, and deciding what to measure next.
    Enumerate,
    /// Generating code, and running the compiler on it.
    Compile,
    Measure,
    /// Choosing one configuration for the whole from what was measured, with its proof.
    Select,
    /// Timing whole plans beside one another.
    Race,
    Report,
    Other,
}

impl CommandPhase {
    pub const ALL: [CommandPhase; 13] = [
        CommandPhase::Load,
        CommandPhase::Differentiate,
        CommandPhase::Rewrite,
        CommandPhase::Fuse,
        CommandPhase::Compose,
        CommandPhase::Check,
        CommandPhase::Enumerate,
        CommandPhase::Compile,
        CommandPhase::Measure,
        CommandPhase::Select,
        CommandPhase::Race,
        CommandPhase::Report,
        CommandPhase::Other,
    ];

    pub fn name(self) -> &'static str {
        match self {
            CommandPhase::Load => "load",
            CommandPhase::Differentiate => "differentiate",
            CommandPhase::Rewrite => "rewrite",
            CommandPhase::Fuse => "fuse",
            CommandPhase::Compose => "compose",
            CommandPhase::Check => "check",
            CommandPhase::Enumerate => "enumerate",
            CommandPhase::Compile => "compile",
            CommandPhase::Measure => "measure",
            CommandPhase::Select => "select",
            CommandPhase::Race => "race",
            CommandPhase::Report => "report",
            CommandPhase::Other => "other",
        }
    }
}

/// The time of one phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PhaseRow {
    pub phase: CommandPhase,
    pub wall_s: f64,
    /// Of all threads and compilers.
    pub cpu_s: f64,
}

/// What was made and measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Nodes of the unfused program's graph.
    pub nodes: usize,
    /// Programs, and their kernels.
    pub programs: usize,
    pub kernels: usize,
    /// Configurations with a result in the records.
    pub configurations: usize,
    /// Texts that were compiled, and runs of the compiler, which may take several texts.
    pub compiled: u64,
    pub compiler_runs: u64,
    /// Configurations that ran on the device, with fresh samples.
    pub measurements: usize,
}

/// The account of a command.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timings {
    pub wall_s: f64,
    pub cpu_s: f64,
    pub phases: Vec<PhaseRow>,
    #[serde(flatten)]
    pub counts: Counts,
}

/// Seconds by phase: of the main thread, of all threads and compilers, and of the other threads alone.
#[derive(Clone, Copy)]
struct Spent {
    wall: [f64; 13],
    cpu: [f64; 13],
    beside: [f64; 13],
}

static SPENT: Mutex<Option<Spent>> = Mutex::new(None);
/// Microseconds of the processor that threads other than the main one have given to phases of their own.
static BESIDE: AtomicU64 = AtomicU64::new(0);
/// Whether the main thread rewrites programs, or waits for threads that do: their phases are its own then.
static REWRITES: AtomicBool = AtomicBool::new(false);

/// The open phases of a thread, and when its time was last given to one.
struct Open {
    main: bool,
    phases: Vec<CommandPhase>,
    wall: Instant,
    cpu: f64,
}

thread_local! {
    static OPEN: RefCell<Option<Open>> = const { RefCell::new(None) };
}

fn used(by: UsageWho) -> f64 {
    getrusage(by).map_or(0.0, |usage| (usage.user_time().num_microseconds() + usage.system_time().num_microseconds()) as f64 / 1e6)
}

/// Processor seconds that count for the thread: for the main one those of the process and its children that no other thread has claimed.
fn processor(main: bool) -> f64 {
    match main {
        true => used(UsageWho::RUSAGE_SELF) + used(UsageWho::RUSAGE_CHILDREN) - BESIDE.load(Ordering::Relaxed) as f64 / 1e6,
        false => used(UsageWho::RUSAGE_THREAD),
    }
}

impl Open {
    fn new(main: bool) -> Self {
        Open { main, phases: vec![], wall: Instant::now(), cpu: processor(main) }
    }

    /// Gives the time since the last call to the innermost open phase.
    fn settle(&mut self) {
        let (wall, cpu) = (Instant::now(), processor(self.main));
        let (took, used) = (wall.duration_since(self.wall).as_secs_f64(), (cpu - self.cpu).max(0.0));
        (self.wall, self.cpu) = (wall, cpu);
        let Some(phase) = self.phases.last() else { return };
        let mut spent = SPENT.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(spent) = spent.as_mut() else { return };
        if self.main {
            spent.wall[*phase as usize] += took;
        } else if REWRITES.load(Ordering::Relaxed) {
            spent.beside[*phase as usize] += took;
        }
        spent.cpu[*phase as usize] += used;
        if !self.main {
            BESIDE.fetch_add((used * 1e6) as u64, Ordering::Relaxed);
        }
    }

    /// Tells the other threads which phase the main one is in.
    fn tell(&self) {
        if self.main {
            REWRITES.store(self.phases.last() == Some(&CommandPhase::Rewrite), Ordering::Relaxed);
        }
    }
}

/// Opens the account; the calling thread is the main one.
pub fn start() {
    *SPENT.lock().unwrap_or_else(PoisonError::into_inner) = Some(Spent { wall: [0.0; 13], cpu: [0.0; 13], beside: [0.0; 13] });
    OPEN.set(Some(Open { phases: vec![CommandPhase::Other], ..Open::new(true) }));
}

/// Does something in a phase. Costs a microsecond or two, and nothing that counts without an open account.
pub fn during<T>(phase: CommandPhase, work: impl FnOnce() -> T) -> T {
    let _open = enter(phase);
    work()
}

/// Opens a phase until the guard is dropped.
pub fn enter(phase: CommandPhase) -> InPhase {
    let kept = SPENT.lock().unwrap_or_else(PoisonError::into_inner).is_some();
    if kept {
        OPEN.with_borrow_mut(|open| {
            let open = open.get_or_insert_with(|| Open::new(false));
            open.settle();
            open.phases.push(phase);
            open.tell();
        });
    }
    InPhase { kept }
}

/// An open phase.
#[must_use]
pub struct InPhase {
    kept: bool,
}

impl Drop for InPhase {
    fn drop(&mut self) {
        if self.kept {
            OPEN.with_borrow_mut(|open| {
                if let Some(open) = open {
                    open.settle();
                    open.phases.pop();
                    open.tell();
                }
            });
        }
    }
}

/// The account so far, on the main thread; `None` without one.
pub fn so_far(counts: Counts) -> Option<Timings> {
    OPEN.with_borrow_mut(|open| open.as_mut().filter(|open| open.main).map(Open::settle))?;
    let spent = (*SPENT.lock().unwrap_or_else(PoisonError::into_inner))?;
    Some(Timings::of(spent, counts))
}

impl Timings {
    fn of(Spent { mut wall, cpu, beside }: Spent, counts: Counts) -> Timings {
        // The main thread waits for passes on other threads in `Rewrite`; elsewhere the phase is the one in which it waits.
        let (waited, others) = (wall[CommandPhase::Rewrite as usize], beside.iter().sum::<f64>());
        if others > 0.0 {
            let scale = (waited / others).min(1.0);
            wall[CommandPhase::Rewrite as usize] -= scale * others;
            wall.iter_mut().zip(beside).for_each(|(wall, beside)| *wall += scale * beside);
        }
        let row = |phase: CommandPhase| PhaseRow { phase, wall_s: wall[phase as usize].max(0.0), cpu_s: cpu[phase as usize] };
        Timings { wall_s: wall.iter().sum(), cpu_s: cpu.iter().sum(), phases: CommandPhase::ALL.map(row).to_vec(), counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn phases_add_up_and_the_innermost_one_counts() {
        let alone = ["--exact", "timings::tests::phases_of_a_process_of_its_own", "--ignored"];
        let ran = std::env::current_exe().and_then(|test| std::process::Command::new(test).args(alone).output());
        let said = ran.map(|ran| String::from_utf8_lossy(&ran.stdout).into_owned());
        assert!(said.as_ref().is_ok_and(|said| said.contains("1 passed")), "{said:?}");
    }

    #[test]
    #[ignore = "times of all threads of a process, where other tests have phases too: the test above runs it alone"]
    fn phases_of_a_process_of_its_own() {
        start();
        during(CommandPhase::Rewrite, || {
            std::thread::sleep(Duration::from_millis(20));
            during(CommandPhase::Fuse, || std::thread::sleep(Duration::from_millis(40)));
            let other = std::thread::spawn(|| during(CommandPhase::Compose, || std::thread::sleep(Duration::from_millis(60))));
            assert!(other.join().is_ok());
        });
        let found = so_far(Counts::default());
        let wall = |phase: CommandPhase| found.as_ref().map_or(0.0, |found| found.phases[phase as usize].wall_s);
        assert!(
            wall(CommandPhase::Fuse) >= 0.04 && wall(CommandPhase::Compose) >= 0.05 && wall(CommandPhase::Rewrite) >= 0.019,
            "{found:?}"
        );
        let (sum, whole) = (CommandPhase::ALL.map(wall).iter().sum::<f64>(), found.as_ref().map_or(0.0, |found| found.wall_s));
        assert!((sum - whole).abs() < 1e-9 && whole < 10.0 && found.is_some_and(|found| found.phases.len() == CommandPhase::ALL.len()));
    }
}
