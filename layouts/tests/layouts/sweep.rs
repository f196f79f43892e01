//! The sweep on an invented device.

use crate::invented_device::*;
use layouts::Store;
use layouts::candidates::{Candidates, Shard};
use layouts::exact::SearchLimits;
use layouts::explain::{Layers, explain};
use layouts::measure::space::*;
use layouts::measure::sweep::{Finish, Sweeper, sweep};
use layouts::options::SweepOptions;
use layouts::problem::*;
use layouts::record::Outcome;
use layouts::selection::{Method, select};
use proptest::prelude::*;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Direction, Layout};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[test]
fn an_exhaustive_sweep_reaches_everything_and_races_nothing_that_matters() {
    let (mut device, clock) = device();
    let mut store = store();
    // All relayouts measured, so that the limits of racing are the true ones.
    let options = SweepOptions { relayouts: u64::MAX, ..SweepOptions::default() };
    let report = run(&mut device, &clock, &mut store, options, &NEVER);
    assert_eq!(report.finish, Finish::Exhausted);
    let total = report.total();
    assert!(total.adds_up() && total.not_reached == 0, "{total}");
    assert_eq!(total.enumerated, 6 * 2 * 4 + 2 * 2 * 4 + 6 * 2 * 2 * 4);
    for (part, name) in [
        (total.identical, "identical"),
        (total.raced, "raced"),
        (total.full, "full"),
        (total.mismatch, "mismatch"),
        (total.failed, "failed"),
    ] {
        assert!(part > 0, "no configuration was {name}: {total}");
    }
    // Racing dropped only what no optimal plan contains. Identical configurations have other times in the invented
    // truth, so the reference leaves them out.
    let mut reference = Store::in_memory();
    reference.begin(super::synthetic::session("1")).unwrap();
    let (spaces, _) = spaces();
    for record in exhaustive_without_racing().all() {
        let of = spaces.iter().find(|s| s.name == record.kernel);
        let n = of.and_then(|s| (0..s.count()).find(|n| s.config(*n) == record.config));
        let own = of.zip(n).is_none_or(|(s, n)| s.identity(n) == record.config.to_string());
        let known = store.get(&record.key, &record.config);
        if own && known.is_none_or(|k| !matches!(k.outcome, Outcome::Identical)) {
            reference.append(record.clone()).unwrap();
        }
    }
    let exact = |store: &Store| select(&program(), store, Method::Exact, SearchLimits::default()).unwrap().total_ms;
    assert!(exact(&store) <= exact(&reference));
}

#[test]
fn nothing_is_measured_twice() {
    let (mut first, clock) = device();
    let mut store = store();
    let options = SweepOptions { budget: Some(Duration::from_millis(400)), ..SweepOptions::default() };
    let before = run(&mut first, &clock, &mut store, options.clone(), &NEVER);
    assert_eq!(before.finish, Finish::Budget);
    assert!(before.total().adds_up() && before.total().not_reached > 0);
    let known: BTreeSet<_> = first.asked.keys().cloned().collect();
    let (mut second, clock) = device();
    let after = run(&mut second, &clock, &mut store, SweepOptions::default(), &NEVER);
    assert_eq!(after.finish, Finish::Exhausted);
    // Only the fresh samples of a finalist repeat a configuration.
    for (asked, _) in second.asked.iter().filter(|(asked, _)| known.contains(asked)) {
        assert_eq!(store.get(&asked.0, &asked.1).unwrap().round, 1);
    }
    let (mut third, clock) = device();
    let again = run(&mut third, &clock, &mut store, SweepOptions::default(), &NEVER);
    assert_eq!((again.timed, third.asked.len(), third.checked.len()), (0, 0, 0));
    assert_eq!(again.total(), after.total());
}

#[test]
fn when_the_time_is_up_twins_of_what_was_measured_are_filed_without_running() {
    let swept = |twins: u64| {
        let (mut device, clock) = device();
        let mut store = store();
        let budget = Some(Duration::from_millis(2000));
        let options = SweepOptions { budget, finalists: 0, finalist_share: 0.0, twin_share: 0.5, twins, ..SweepOptions::default() };
        let report = run(&mut device, &clock, &mut store, options, &NEVER);
        assert_eq!(report.finish, Finish::Budget);
        assert!(report.total().adds_up());
        (report.total(), device.asked.len(), store)
    };
    let ((without, asked, _), (with, asked_with, store)) = (swept(0), swept(1000));
    assert_eq!((asked, without.full, without.raced), (asked_with, with.full, with.raced), "twins cost no run");
    assert!(with.identical > without.identical, "{with}");
    let twins: Vec<_> = store.all().filter(|m| matches!(m.outcome, Outcome::Identical)).collect();
    assert_eq!(twins.len() as u64, with.identical);
    for twin in twins {
        let known = |m: &&layouts::Measurement| m.identity == twin.identity && !matches!(m.outcome, Outcome::Identical);
        assert!(store.of(&twin.key).any(|m| known(&m)), "its time is that of another configuration");
    }
    let ((few, _, _), kernels) = (swept(1), 3);
    assert!(few.identical <= without.identical + kernels);
}

#[test]
fn the_smallest_budget_still_leaves_a_choice_for_every_kernel() {
    let (mut device, clock) = device();
    let mut store = store();
    let options = SweepOptions { budget: Some(Duration::ZERO), ..SweepOptions::default() };
    let report = run(&mut device, &clock, &mut store, options, &NEVER);
    assert_eq!((report.finish, report.total().full), (Finish::Budget, 3));
    for method in [Method::Exact, Method::Sssp, Method::Uniform, Method::Natural] {
        let choice = select(&program(), &store, method, SearchLimits::default()).unwrap();
        assert!(choice.relayouts.is_empty());
        assert!(choice.configuration.layouts["x"] == Layout::of(&["a", "b", "c"]));
    }
}

#[test]
fn an_interrupt_ends_the_sweep_after_the_measurement_in_hand() {
    static FLAG: AtomicBool = AtomicBool::new(false);
    let (mut device, clock) = device();
    device.interrupt_after = Some((20, &FLAG));
    let mut store = store();
    let report = run(&mut device, &clock, &mut store, SweepOptions::default(), &FLAG);
    assert_eq!((report.finish, report.timed), (Finish::Interrupted, 20));
    assert!(report.total().adds_up());
}

#[test]
fn confirming_a_choice_ends_with_fresh_samples_and_measured_relayouts() {
    let (mut device, clock) = device();
    let mut store = store();
    let options = SweepOptions { finalists: 0, relayouts: 1, ..SweepOptions::default() };
    run(&mut device, &clock, &mut store, options.clone(), &NEVER);
    let program = program();
    for _ in 0..50 {
        let choice = select(&program, &store, Method::Exact, SearchLimits::default()).unwrap();
        let mut quiet = |_: &layouts::Progress| {};
        let mut sweeper = Sweeper {
            bench: &mut device,
            clock: &clock,
            store: &mut store,
            options: options.clone(),
            interrupt: &NEVER,
            progress: &mut quiet,
            timed: 0,
        };
        let (kernels, relayouts) = layouts::solve::selection::ingredients(std::slice::from_ref(&choice));
        if sweeper.confirm(&program, kernels, relayouts).unwrap() == 0 {
            assert_eq!(choice.unmeasured().count(), 0);
            for (name, config) in &choice.configuration.kernels {
                let record = store.get(name, config).unwrap();
                let record = if record.ms().is_some() { record } else { store.twin(name, &record.identity).unwrap() };
                assert_eq!(record.round, 1);
            }
            return;
        }
    }
    panic!("confirming does not come to an end");
}

#[test]
fn what_differs_in_names_alone_is_timed_once() {
    let (mut device, clock) = device();
    let mut store = store();
    let tensors = || vec![tensor("x", &["a", "b", "c"], Access::Read), tensor("t", &["a", "b"], Access::Write)];
    let space = |name: &str| Space { name: name.into(), pass: Direction::Forward, tensors: tensors(), knobs: 4 };
    let spaces = [space("alike one"), space("alike two")];
    let each: Vec<&dyn KernelSpace> = spaces.iter().map(|s| s as &dyn KernelSpace).collect();
    let mut progress = |p: &layouts::Progress| assert!(p.tally.adds_up());
    let options = SweepOptions::default();
    let mut sweeper =
        Sweeper { bench: &mut device, clock: &clock, store: &mut store, options, interrupt: &NEVER, progress: &mut progress, timed: 0 };
    let report = sweep(&mut sweeper, &each, &[]).unwrap();
    assert!(report.total().adds_up() && report.total().not_reached == 0);
    let mut lent = 0;
    for record in store.all().filter(|m| m.lender.is_some() && m.round == 0) {
        let (Some(lender), Some(ms)) = (&record.lender, record.ms()) else { continue };
        assert_eq!(ms, truth(lender, &record.config), "the lender's time");
        assert!(!device.asked.contains_key(&(record.kernel.clone(), record.config.clone())), "borrowed and timed");
        lent += 1;
    }
    assert!(lent > 0);
    // What was given up for one may be wanted by the other, and of equally fast ones each may take another for its finals.
    let runs = |kernel: &str, config: &KernelConfig| device.asked.get(&(kernel.to_string(), config.clone())).copied().unwrap_or(0);
    let given_up = |config: &KernelConfig| store.all().any(|m| m.config == *config && matches!(m.outcome, Outcome::Raced { .. }));
    let configs = (0..spaces[0].count()).map(|n| spaces[0].config(n));
    let both = configs.filter(|c| !given_up(c) && runs("alike one", c) > 0 && runs("alike two", c) > 0).count();
    assert!(both <= SweepOptions::default().finalists, "{both} were timed for both");
    // What is sure of one is sure of the other: fresh samples are shared too.
    assert!(store.all().any(|m| m.lender.is_some() && m.round == 1));
}

#[test]
fn refining_tries_both_sides_of_a_relayout_in_the_layout_that_spares_it() {
    let (mut device, clock) = device();
    let mut store = store();
    let (spaces, relayouts) = spaces();
    let of = |space: &Space, layouts: &[(&str, &[&str])]| KernelConfig {
        layouts: layouts.iter().map(|(data, dims)| (data.to_string(), Layout::of(dims))).collect(),
        knobs: space.config(0).knobs,
    };
    let (x, y): (&[&str], &[&str]) = (&["a", "b", "c"], &["b", "c"]);
    let (one, two) = (&spaces[0], &spaces[1]);
    let known = [(one, of(one, &[("x", x), ("t", &["a", "b"])])), (two, of(two, &[("t", &["b", "a"]), ("y", y)]))];
    for (space, config) in known {
        store.append(super::synthetic::measured(&space.name, config, 0.1)).unwrap();
    }
    let turn = &relayouts[1];
    for n in 0..turn.count() {
        let mut record = super::synthetic::measured(turn.name(), turn.config(n), 0.1);
        record.key = turn.key().into();
        store.append(record).unwrap();
    }
    let each: Vec<&dyn KernelSpace> = vec![one, two];
    let program = SelectionProblem::of(&each, &relayouts, BTreeMap::new(), Vec::new());
    let choice = select(&program, &store, Method::Exact, SearchLimits::default()).unwrap();
    assert_eq!(choice.relayouts.len(), 1, "what is known needs a relayout");
    let mut quiet = |_: &layouts::Progress| {};
    let options = SweepOptions::default();
    let mut sweeper =
        Sweeper { bench: &mut device, clock: &clock, store: &mut store, options, interrupt: &NEVER, progress: &mut quiet, timed: 0 };
    assert!(sweeper.refine(&each, &program, SearchLimits::default()).unwrap() > 0);
    for (space, config) in [(one, of(one, &[("x", x), ("t", &["b", "a"])])), (two, of(two, &[("t", &["a", "b"]), ("y", y)]))] {
        assert!(store.get(&space.name, &config).is_some(), "{} {config} was not tried", space.name);
    }
}

#[test]
fn refining_ends_with_every_knob_of_the_chosen_layouts_known() {
    let (mut device, clock) = device();
    let mut store = store();
    let budget = Some(Duration::from_millis(400));
    run(&mut device, &clock, &mut store, SweepOptions { budget, ..SweepOptions::default() }, &NEVER);
    let (spaces, _) = spaces();
    let spaces: Vec<&dyn KernelSpace> = spaces.iter().map(|s| s as &dyn KernelSpace).collect();
    let program = program();
    let before = select(&program, &store, Method::Exact, SearchLimits::default()).unwrap().total_ms;
    let mut quiet = |_: &layouts::Progress| {};
    let mut sweeper = Sweeper {
        bench: &mut device,
        clock: &clock,
        store: &mut store,
        options: SweepOptions::default(),
        interrupt: &NEVER,
        progress: &mut quiet,
        timed: 0,
    };
    assert!(sweeper.refine(&spaces, &program, SearchLimits::default()).unwrap() > 0);
    assert_eq!(sweeper.refine(&spaces, &program, SearchLimits::default()).unwrap(), 0);
    let choice = select(&program, &store, Method::Exact, SearchLimits::default()).unwrap();
    assert!(choice.total_ms <= before);
    for space in spaces {
        let config = &choice.configuration.kernels[space.name()];
        for v in 0..4 {
            let other = KernelConfig { layouts: config.layouts.clone(), knobs: Knobs::default().with("v", v) };
            // The last two are twins: one of them is enough.
            let known = |c: &KernelConfig| store.get(space.key(), c).is_some();
            assert!(known(&other) || v >= 2, "{} {other}", space.name());
        }
    }
}

#[test]
fn an_explanation_names_the_runner_up_and_its_price() {
    let store = exhaustive_without_racing();
    let best = select(&program(), &store, Method::Exact, SearchLimits::default()).unwrap();
    for name in ["one", "two", "back", "x", "t", "y", "g"] {
        let explanation = explain(&program(), &store, name, &Layers::one(), SearchLimits::default()).unwrap();
        assert_eq!(explanation.total_ms, best.total_ms);
        let second = explanation.runner_up.unwrap();
        assert!(second.what != explanation.chosen && second.more_ms >= 0.0);
        assert_eq!(second.total_ms, best.total_ms + second.more_ms);
    }
    assert!(explain(&program(), &store, "nothing", &Layers::one(), SearchLimits::default()).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn counters_add_up_for_any_budget_and_shard(ms in 0u64..1500, of in 1u64..5, index in 0u64..5, finalists in 0usize..4) {
        let shard = Shard { index: index % of, of };
        let (mut device, clock) = device();
        let mut store = store();
        let options = SweepOptions { budget: Some(Duration::from_millis(ms)), shard, finalists, ..SweepOptions::default() };
        let report = run(&mut device, &clock, &mut store, options, &NEVER);
        let (spaces, _) = spaces();
        for space in &spaces {
            let tally = report.tallies[&space.name];
            prop_assert!(tally.adds_up());
            let share = (0..space.count()).filter(|n| n % of == shard.index);
            let configs: BTreeSet<KernelConfig> = share.map(|n| space.config(n)).collect();
            prop_assert_eq!(tally.enumerated, configs.len() as u64);
            // What was counted is what was kept, and it belongs to this shard.
            let kept: Vec<_> = store.of(&space.name).collect();
            prop_assert!(kept.iter().all(|m| configs.contains(&m.config)));
            prop_assert_eq!(tally.enumerated - tally.not_reached, kept.len() as u64);
        }
    }
}

/// Whoever makes code ahead makes that of the right configurations, nearly always; nothing is handed out by asking.
#[test]
fn what_is_said_to_come_comes() {
    let layouts = |dims: &[&str]| Layout::permutations(&dims.iter().map(|d| d.to_string()).collect::<Vec<_>>());
    let tensor = |data: &str| TensorSpace { data: data.into(), access: Access::Read, layouts: layouts(&["a", "b", "c"]), bytes: 1 };
    let space = Space { name: "k".into(), pass: Direction::Forward, tensors: vec![tensor("x"), tensor("y")], knobs: 5 };
    let mut candidates = Candidates::new(&space, Shard::WHOLE);
    let (mut seen, mut foretold) = (BTreeSet::new(), 0);
    loop {
        let soon = candidates.coming(4, &space);
        assert!(soon.iter().all(|n| !seen.contains(n)), "what came does not come again");
        let Some(n) = candidates.next(&space) else { break };
        foretold += u64::from(soon.contains(&n));
        seen.insert(n);
        if n % 17 == 0 {
            candidates.improved(n);
        }
    }
    assert_eq!(seen.len() as u64, space.count());
    assert!(foretold * 10 >= space.count() * 9, "{foretold} of {}", space.count());
}

/// A kernel of many gets one turn in a small budget: what would come next is not ranked before somebody asks for it.
#[test]
fn neighbours_of_the_best_are_ranked_when_they_are_wanted() {
    let tensor = |data: &str| TensorSpace {
        data: data.into(),
        access: Access::Read,
        layouts: Layout::permutations(&["a", "b", "c", "d", "e"].map(String::from)),
        bytes: 1,
    };
    let space = Counting(
        Space { name: "k".into(), pass: Direction::Forward, tensors: vec![tensor("x"), tensor("y")], knobs: 5 },
        AtomicU64::new(0),
    );
    let asked = || space.1.load(Ordering::Relaxed);
    let mut candidates = Candidates::new(&space, Shard::WHOLE);
    assert_eq!(candidates.next(&space), Some(0));
    candidates.improved(0);
    assert!(asked() <= 1, "{} were ranked", asked());
    assert!(candidates.next(&space).is_some() && asked() > 100, "{} were ranked", asked());
}

/// A space that counts for how many numbers it was asked for a prediction.
struct Counting(Space, AtomicU64);

impl KernelSpace for Counting {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn key(&self) -> &str {
        self.0.key()
    }

    fn pass(&self) -> Direction {
        self.0.pass()
    }

    fn tensors(&self) -> &[TensorSpace] {
        self.0.tensors()
    }

    fn count(&self) -> u64 {
        self.0.count()
    }

    fn radices(&self) -> Vec<u64> {
        self.0.radices()
    }

    fn config(&self, n: u64) -> KernelConfig {
        self.0.config(n)
    }

    fn identity(&self, n: u64) -> String {
        self.0.identity(n)
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.predicted_cost(n)
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        self.0.matches_rule_of_thumb(config)
    }
}

/// A space in which three of four numbers are nothing, what a library does not offer, and so many in a row are ranked together.
struct Partly(Space, u64);

impl KernelSpace for Partly {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn key(&self) -> &str {
        self.0.key()
    }

    fn pass(&self) -> Direction {
        self.0.pass()
    }

    fn tensors(&self) -> &[TensorSpace] {
        self.0.tensors()
    }

    fn count(&self) -> u64 {
        self.0.count()
    }

    fn config(&self, n: u64) -> KernelConfig {
        self.0.config(n)
    }

    fn identity(&self, n: u64) -> String {
        self.0.identity(n)
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        if n % 4 != 3 { f64::INFINITY } else { self.0.predicted_cost(n) }
    }

    fn predicted_costs(&self, numbers: &[u64]) -> Vec<f64> {
        // All of a grain, or of its neighbours' digits one.
        let whole = |grain: &[u64]| grain.len() == 1 || grain.len() as u64 == self.1;
        assert!(numbers.chunk_by(|a, b| a / self.1 == b / self.1).all(whole) || numbers.len() < 2048);
        numbers.iter().map(|n| self.predicted_cost(*n)).collect()
    }

    fn ranking_batch(&self) -> u64 {
        self.1
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        self.0.matches_rule_of_thumb(config)
    }
}

#[test]
fn what_promises_nothing_comes_last() {
    let layouts = Layout::permutations(&["a", "b", "c"].map(String::from));
    let tensor = |data: &str| TensorSpace { data: data.into(), access: Access::Read, layouts: layouts.clone(), bytes: 1 };
    for grain in [1, 4, 64, 1024] {
        let space = Space { name: "k".into(), pass: Direction::Forward, tensors: vec![tensor("x"), tensor("y")], knobs: 1024 };
        let space = Partly(space, grain);
        let mut candidates = Candidates::new(&space, Shard::WHOLE);
        let all: Vec<u64> = std::iter::from_fn(|| candidates.next(&space)).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len() as u64, space.count());
        assert_eq!(all.len() as u64, space.count(), "each comes once");
        assert!(all[..9_000].iter().all(|n| n % 4 == 3), "grains of {grain}");
    }
}

/// A device that takes as long to make code as a compiler does, whatever the code does.
struct Compiler(Rc<Cell<f64>>);

impl Bench for Compiler {
    fn check(&mut self, _: &str, _: &KernelConfig) -> Result<Check, Fault> {
        self.0.set(self.0.get() + 0.01);
        Ok(Check { ratio: 0.25 })
    }
    fn time(&mut self, kernel: &str, config: &KernelConfig, _: Duration) -> Result<TimingResult, Fault> {
        Ok(TimingResult::Samples(vec![truth(kernel, config); 3]))
    }
}

/// Where a configuration costs the same for all kernels, large ones have more of them, in the half that is not spent for gain, too.
#[test]
fn costly_configurations_go_to_large_kernels() {
    let space = |name: &str| Space {
        name: name.into(),
        pass: Direction::Forward,
        tensors: vec![tensor("x", &["a", "b", "c"], Access::Read), tensor(name, &["a", "b"], Access::Write)],
        knobs: 200,
    };
    let spaces = [space("large"), space("small")];
    let spaces: Vec<&dyn KernelSpace> = spaces.iter().map(|s| s as &dyn KernelSpace).collect();
    let [even, costly] = [false, true].map(|costly| {
        let now = Rc::new(Cell::new(0.0));
        let (mut bench, clock, mut store) = (Compiler(now.clone()), Watch(now), store());
        let options = SweepOptions { budget: Some(Duration::from_secs(4)), finalists: 0, costly, ..SweepOptions::default() };
        let mut progress = |_: &layouts::Progress| {};
        let interrupt = AtomicBool::new(false);
        let (clock, interrupt, progress) = (&clock, &interrupt, &mut progress);
        let mut sweeper = Sweeper { bench: &mut bench, clock, store: &mut store, options, interrupt, progress, timed: 0 };
        sweep(&mut sweeper, &spaces, &[]).unwrap();
        ["large", "small"].map(|kernel| store.of(kernel).filter(|m| matches!(m.outcome, Outcome::Measured { .. })).count())
    });
    println!("large and small: {even:?} evenly, {costly:?} by size");
    // Evenly, and by the square root of a hundredth.
    assert!(even[1] * 5 > even[0] && costly[1] * 7 < costly[0], "{even:?} {costly:?}");
}
