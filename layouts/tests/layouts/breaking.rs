//! Sweeps on devices that break.

use crate::invented_device::{Watch, spaces, store, truth};
use layouts::measure::space::{Bench, Check, Fault, KernelSpace, TimingResult};
use layouts::record::Outcome;
use layouts::{Finish, SweepOptions, Sweeper, sweep};
use sdfg::config::KernelConfig;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// All that one kernel runs breaks the device.
struct Fragile;

impl Bench for Fragile {
    fn check(&mut self, kernel: &str, _: &KernelConfig) -> Result<Check, Fault> {
        if kernel == "two" { Err(Fault::Crash("an illegal address".into())) } else { Ok(Check { ratio: 0.25 }) }
    }
    fn time(&mut self, kernel: &str, config: &KernelConfig, _: Duration) -> Result<TimingResult, Fault> {
        Ok(TimingResult::Samples(vec![truth(kernel, config); 3]))
    }
}

#[test]
fn a_kernel_that_breaks_the_device_again_and_again_is_left_alone() {
    let (spaces, relayouts) = spaces();
    let spaces: Vec<&dyn KernelSpace> = spaces.iter().map(|s| s as &dyn KernelSpace).collect();
    let (mut store, mut bench, now) = (store(), Fragile, Rc::new(Cell::new(0.0)));
    let mut begun = 0;
    // Every time the device breaks, the process begins again with what was kept.
    let report = loop {
        begun += 1;
        let (clock, interrupt, mut progress) = (Watch(now.clone()), AtomicBool::new(false), |_: &layouts::Progress| {});
        let (options, progress, interrupt) = (SweepOptions::default(), &mut progress, &interrupt);
        let mut sweeper = Sweeper { bench: &mut bench, clock: &clock, store: &mut store, options, interrupt, progress, timed: 0 };
        match sweep(&mut sweeper, &spaces, &relayouts) {
            Ok(report) => break report,
            Err(error) => assert!(begun < 10, "{error}"),
        }
    };
    assert_eq!(begun, 4);
    assert_eq!(report.finish, Finish::Exhausted);
    let failed = |m: &&layouts::Measurement| matches!(&m.outcome, Outcome::Failed { reason } if reason.contains("an illegal address"));
    assert_eq!(store.of("two").filter(failed).count(), 3);
    assert!(store.of("one").chain(store.of("back")).any(|m| matches!(m.outcome, Outcome::Measured { .. })));
}
