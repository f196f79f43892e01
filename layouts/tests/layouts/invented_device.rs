//! A device that is invented: kernels with times that follow from their configuration, and a clock that goes on by them.

use layouts::Store;
use layouts::measure::space::*;
use layouts::measure::sweep::{SweepReport, Sweeper, sweep};
use layouts::options::SweepOptions;
use layouts::problem::*;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Direction, Layout};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub struct Space {
    pub name: String,
    pub pass: Direction,
    pub tensors: Vec<TensorSpace>,
    pub knobs: u64,
}

impl KernelSpace for Space {
    fn name(&self) -> &str {
        &self.name
    }
    fn key(&self) -> &str {
        &self.name
    }
    fn pass(&self) -> Direction {
        self.pass
    }
    fn tensors(&self) -> &[TensorSpace] {
        &self.tensors
    }
    fn count(&self) -> u64 {
        self.knobs * self.tensors.iter().map(|t| t.layouts.len() as u64).product::<u64>()
    }
    fn config(&self, n: u64) -> KernelConfig {
        let (mut rest, mut layouts) = (n / self.knobs, BTreeMap::new());
        for tensor in self.tensors.iter().rev() {
            let radix = tensor.layouts.len() as u64;
            layouts.insert(tensor.data.clone(), tensor.layouts[(rest % radix) as usize].clone());
            rest /= radix;
        }
        KernelConfig { layouts, knobs: Knobs::default().with("v", n % self.knobs) }
    }
    fn identity(&self, n: u64) -> String {
        // The last two knobs make the same code.
        let config = self.config(n - u64::from(n % self.knobs == self.knobs - 1 && self.knobs > 1));
        config.to_string()
    }
    fn mark(&self, n: u64) -> String {
        // Kernels called `alike` and something differ in names alone.
        if self.name.starts_with("alike") { self.identity(n) } else { String::new() }
    }
    fn predicted_cost(&self, n: u64) -> f64 {
        (n % 7) as f64
    }
    fn matches_rule_of_thumb(&self, _: &KernelConfig) -> bool {
        false
    }
    fn lower_bound_ms(&self, n: u64) -> f64 {
        truth(&self.name, &self.config(n)) / 8.0
    }
}

/// Invented times: 1 to 33 ms, depending on nothing but the configuration; a hundredth of that for what is called `small`.
pub fn truth(kernel: &str, config: &KernelConfig) -> f64 {
    let kernel = if kernel.starts_with("alike") { "alike" } else { kernel };
    let text = format!("{kernel} {config}");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let ms = 1.0 + (super::synthetic::Random(hash).below(64) as f64) / 2.0;
    if kernel == "small" { ms / 100.0 } else { ms }
}

pub struct Device {
    pub now: Rc<Cell<f64>>,
    pub asked: BTreeMap<(String, KernelConfig), u32>,
    pub checked: BTreeSet<(String, KernelConfig)>,
    pub interrupt_after: Option<(u32, &'static AtomicBool)>,
}

pub struct Watch(pub Rc<Cell<f64>>);

impl Clock for Watch {
    fn elapsed(&self) -> Duration {
        Duration::from_secs_f64(self.0.get())
    }
}

impl Bench for Device {
    fn check(&mut self, kernel: &str, config: &KernelConfig) -> Result<Check, Fault> {
        self.checked.insert((kernel.to_string(), config.clone()));
        match truth(&format!("check {kernel}"), config) as u64 {
            31 if config.knobs.get("v") != Some("0") => Ok(Check { ratio: 3.0 }),
            30 if config.knobs.get("v") != Some("0") => Err(Fault::Configuration("does not compile".into())),
            _ => Ok(Check { ratio: 0.25 }),
        }
    }
    fn time(&mut self, kernel: &str, config: &KernelConfig, give_up: Duration) -> Result<TimingResult, Fault> {
        assert!(self.checked.contains(&(kernel.to_string(), config.clone())), "timed before it was checked");
        *self.asked.entry((kernel.to_string(), config.clone())).or_default() += 1;
        if let Some((left, flag)) = &mut self.interrupt_after {
            *left -= 1;
            flag.store(*left == 0, std::sync::atomic::Ordering::Relaxed);
        }
        let ms = truth(kernel, config);
        self.now.set(self.now.get() + ms.min(give_up.as_secs_f64() * 1e3) / 1e3);
        Ok(if ms > give_up.as_secs_f64() * 1e3 { TimingResult::ExceededAfter(ms) } else { TimingResult::Samples(vec![ms; 3]) })
    }
}

pub fn device() -> (Device, Watch) {
    let now = Rc::new(Cell::new(0.0));
    let device = Device { now: now.clone(), asked: BTreeMap::new(), checked: BTreeSet::new(), interrupt_after: None };
    (device, Watch(now))
}

pub fn tensor(data: &str, dims: &[&str], access: Access) -> TensorSpace {
    let dims: Vec<String> = dims.iter().map(|d| d.to_string()).collect();
    TensorSpace { data: data.into(), access, layouts: Layout::permutations(&dims), bytes: 64 }
}

pub fn spaces() -> (Vec<Space>, Vec<RelayoutSpace>) {
    let space = |name: &str, pass, tensors: Vec<TensorSpace>| Space { name: name.into(), pass, tensors, knobs: 4 };
    let (x, t, y) = (["a", "b", "c"], ["a", "b"], ["b", "c"]);
    let spaces = vec![
        space("one", Direction::Forward, vec![tensor("x", &x, Access::Read), tensor("t", &t, Access::Write)]),
        space("two", Direction::Forward, vec![tensor("t", &t, Access::Read), tensor("y", &y, Access::Write)]),
        space(
            "back",
            Direction::Backward,
            vec![tensor("x", &x, Access::Read), tensor("y", &y, Access::Read), tensor("g", &t, Access::Write)],
        ),
    ];
    let relayouts = [("x", &x[..]), ("t", &t), ("y", &y), ("g", &t)]
        .map(|(data, dims)| RelayoutSpace::new(data, &format!("r:{data}"), tensor(data, dims, Access::Read).layouts, 64));
    (spaces, relayouts.into())
}

pub fn run(device: &mut Device, clock: &Watch, store: &mut Store, options: SweepOptions, interrupt: &AtomicBool) -> SweepReport {
    let (spaces, relayouts) = spaces();
    let spaces: Vec<&dyn KernelSpace> = spaces.iter().map(|s| s as &dyn KernelSpace).collect();
    let mut progress = |p: &layouts::Progress| assert!(p.tally.adds_up());
    let mut sweeper = Sweeper { bench: device, clock, store, options, interrupt, progress: &mut progress, timed: 0 };
    sweep(&mut sweeper, &spaces, &relayouts).unwrap()
}

pub fn program() -> SelectionProblem {
    let (spaces, relayouts) = spaces();
    let spaces: Vec<&dyn KernelSpace> = spaces.iter().map(|s| s as &dyn KernelSpace).collect();
    SelectionProblem::of(&spaces, &relayouts, BTreeMap::new(), Vec::new())
}

pub fn store() -> Store {
    let mut store = Store::in_memory();
    store.begin(super::synthetic::session("1")).unwrap();
    store
}

pub static NEVER: AtomicBool = AtomicBool::new(false);

/// Everything timed to the end: the truth that racing must not change.
pub fn exhaustive_without_racing() -> Store {
    let mut store = store();
    let (spaces, relayouts) = spaces();
    let (mut device, _) = device();
    for space in &spaces {
        for n in 0..space.count() {
            let config = space.config(n);
            if device.check(&space.name, &config).is_ok_and(|c| c.passed()) {
                let ms = truth(&space.name, &space.config(n));
                store.append(super::synthetic::measured(&space.name, config, ms)).unwrap();
            }
        }
    }
    for relayout in &relayouts {
        for n in 0..relayout.count() {
            let config = relayout.config(n);
            let mut record = super::synthetic::measured(relayout.name(), config.clone(), truth(relayout.name(), &config));
            record.key = relayout.key().into();
            store.append(record).unwrap();
        }
    }
    store
}
