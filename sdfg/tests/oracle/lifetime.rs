//! Plans of the arena: never two living buffers in one place, never smaller than what lives at once; and orders of kernels.

use crate::build::*;
use proptest::prelude::*;
use sdfg::lifetime::{ALIGNMENT, Buffer, Handover, LiveInterval, Schedule, ScheduleStep, intervals, plan};
use sdfg::*;
use std::collections::BTreeMap;

fn interval(data: &str, bytes: u64, first: usize, last: usize) -> LiveInterval {
    LiveInterval { data: data.into(), bytes, first, last }
}

fn handover(from: &str, to: &str) -> Handover {
    Handover { from: from.into(), to: to.into() }
}

#[test]
fn a_chain_needs_two_places() {
    let lives = [interval("a", 640, 0, 1), interval("b", 640, 1, 2), interval("c", 640, 2, 3), interval("d", 640, 3, 4)];
    let plan = plan(&lives, &[]);
    assert_eq!((plan.peak_bytes, plan.lower_bound), (1280, 1280));
    assert_eq!(plan.offsets["a"], plan.offsets["c"]);
}

#[test]
fn a_chain_in_place_needs_one() {
    let lives = [interval("a", 640, 0, 1), interval("b", 640, 1, 2), interval("c", 640, 2, 3)];
    let wanted = [handover("b", "c"), handover("a", "b")];
    let plan = plan(&lives, &wanted);
    assert_eq!((plan.peak_bytes, plan.lower_bound, plan.handovers.len()), (640, 640, 2));
}

/// Another size, a life that goes on, and a place that was taken already.
#[test]
fn what_cannot_be_handed_over_is_not() {
    let lives = [interval("a", 640, 0, 2), interval("b", 640, 1, 2), interval("small", 64, 2, 3), interval("c", 640, 2, 3)];
    let plan = plan(&lives, &[handover("a", "b"), handover("a", "small"), handover("a", "c"), handover("b", "c")]);
    assert_eq!(plan.handovers, [handover("a", "c")]);
    assert_ne!(plan.offsets["a"], plan.offsets["b"]);
}

#[test]
fn a_small_one_fits_into_a_gap() {
    let lives = [interval("wide", 640, 0, 0), interval("low", 128, 1, 1), interval("high", 320, 0, 1)];
    let plan = plan(&lives, &[]);
    assert_eq!((plan.peak_bytes, plan.lower_bound), (960, 960));
    assert_ne!(plan.offsets["low"], plan.offsets["high"]);
}

/// x → t → u → y, where u is reached through a view: inputs, outputs and locals are no transients. A result lives to the end.
#[test]
fn intervals_run_from_the_writer_to_the_last_reader() {
    use Role::{Input, Output, Transient};
    let mut p = program(&[("i", 8)], &[("x", &["i"], Input), ("t", &["i"], Transient), ("u", &["i"], Transient), ("y", &["i"], Output)]);
    p.add_container(Container::new("early", &["i"], Dtype::F32, Output));
    let mut view = Container::new("u.view", &["i"], Dtype::F32, Transient);
    view.view = Some(View { of: "u".into(), offsets: vec![Expr::Int(0)] });
    p.add_container(view);
    for (n, (from, to)) in [("x", "t"), ("t", "u"), ("x", "early"), ("u.view", "y")].into_iter().enumerate() {
        let op = Op::Elementwise { label: "copy".into(), code: input("v") };
        let op = operation(op, &["i"], &[("v", from, &["i"])], &[("out", to, &["i"])]);
        let next = if n == 0 { state(&p) } else { p.add_state(format!("s{n}")) };
        p.insert_operation(next, &Operation { name: format!("copy{n}"), ..op }).unwrap();
    }
    assert_eq!(intervals(&p).unwrap(), [interval("t", 32, 0, 1), interval("u", 32, 1, 3)]);
    let all = Schedule::of(&p).unwrap().intervals();
    assert_eq!(all[2..], [interval("early", 32, 2, 3), interval("y", 32, 3, 3)]);
}

/// Steps over buffers of the given bytes, each (reads, writes).
fn schedule(bytes: &[u64], steps: &[(&[usize], &[usize])]) -> Schedule {
    let buffers = bytes.iter().enumerate().map(|(n, b)| Buffer { name: format!("b{n}"), bytes: *b, kept: false });
    let steps = steps.iter().enumerate().map(|(n, (reads, writes))| ScheduleStep {
        name: format!("k{n}"),
        reads: reads.to_vec(),
        writes: writes.to_vec(),
        ..ScheduleStep::default()
    });
    Schedule { buffers: buffers.collect(), steps: steps.collect() }
}

/// A large buffer that the first kernel leaves is read away before the next large one is made.
#[test]
fn what_frees_most_runs_first() {
    let own = schedule(&[6400, 6400, 64, 64], &[(&[], &[0]), (&[], &[1]), (&[0], &[2]), (&[1], &[3]), (&[2, 3], &[])]);
    assert_eq!(own.order(), [0, 2, 1, 3, 4]);
    let peak = |s: &Schedule| plan(&s.intervals(), &s.handovers()).peak_bytes;
    assert_eq!((peak(&own), peak(&own.reordered(&own.order()))), (12864, 6528));
}

/// Nothing is gained, so nothing is moved.
#[test]
fn an_order_that_needs_no_more_stays() {
    let own = schedule(&[64, 64, 64], &[(&[], &[0]), (&[], &[1]), (&[0], &[2]), (&[0, 1, 2], &[])]);
    assert_eq!(own.order(), [0, 1, 2, 3]);
}

#[test]
fn a_place_is_handed_over_by_its_last_reader_alone() {
    let mut own = schedule(&[640, 640, 640], &[(&[], &[0]), (&[0], &[1]), (&[0, 1], &[2])]);
    own.steps[1].in_place = vec![(0, 1)];
    own.steps[2].in_place = vec![(0, 2), (1, 2)];
    assert_eq!(own.handovers(), [handover("b0", "b2")]);
    own.buffers[0].kept = true;
    assert_eq!(own.handovers(), [handover("b1", "b2")], "a result is not overwritten");
}

/// All orders of so many steps.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    let mut found = vec![vec![]];
    for step in 0..n {
        found = found.iter().flat_map(|p: &Vec<usize>| (0..=p.len()).map(|at| [&p[..at], &[step], &p[at..]].concat())).collect();
    }
    found
}

proptest! {
    #[test]
    fn plans_are_sound(
        lives in prop::collection::vec((0u64..5000, 0usize..20, 0usize..8), 0..40),
        wanted in prop::collection::vec((0usize..40, 0usize..40), 0..60),
    ) {
        let name = |n: usize| format!("t{n}");
        let live = |(n, (bytes, first, more)): (usize, &(u64, usize, usize))| interval(&name(n), bytes / 1000 * 64, *first, first + more);
        let lives: Vec<LiveInterval> = lives.iter().enumerate().map(live).collect();
        let wanted: Vec<Handover> = wanted.iter().map(|(a, b)| handover(&name(*a), &name(*b))).collect();
        let found = plan(&lives, &wanted);
        prop_assert!(found.peak_bytes >= found.lower_bound);
        prop_assert!(found.lower_bound <= plan(&lives, &[]).lower_bound, "handing over never needs more");
        let by_name: BTreeMap<&str, &LiveInterval> = lives.iter().map(|i| (i.data.as_str(), i)).collect();
        for h in &found.handovers {
            let (from, to) = (by_name[h.from.as_str()], by_name[h.to.as_str()]);
            prop_assert_eq!((from.last, from.bytes), (to.first, to.bytes));
            prop_assert_eq!(found.offsets[&h.from], found.offsets[&h.to]);
        }
        for (n, a) in lives.iter().enumerate() {
            let start = found.offsets[&a.data];
            prop_assert_eq!(start % ALIGNMENT, 0);
            prop_assert!(start + a.bytes <= found.peak_bytes);
            for b in lives.iter().skip(n + 1).filter(|b| a.meets(b)) {
                let other = found.offsets[&b.data];
                let handed = found.handovers.iter().any(|h| (h.from == a.data && h.to == b.data) || (h.from == b.data && h.to == a.data));
                prop_assert!(handed || start + a.bytes <= other || other + b.bytes <= start, "{} and {} overlap", a.data, b.data);
            }
        }
    }

    /// Against every order there is: dependences are kept, and no legal order needs less.
    #[test]
    fn orders_are_the_best_there_are(
        bytes in prop::collection::vec(1u64..9, 6),
        steps in prop::collection::vec((prop::collection::vec(0usize..6, 0..3), prop::collection::vec(0usize..6, 0..2), 0usize..2), 1..6),
        kept in 0usize..6,
    ) {
        let bytes: Vec<u64> = bytes.iter().map(|b| b * ALIGNMENT).collect();
        let steps: Vec<(&[usize], &[usize])> = steps.iter().map(|(r, w, _)| (r.as_slice(), w.as_slice())).collect();
        let mut own = schedule(&bytes, &steps);
        own.buffers[kept].kept = true;
        let n = own.steps.len();
        for step in &mut own.steps[n / 2..] {
            step.stage = 1;
        }
        let legal = |order: &[usize]| {
            let place = |s: usize| order.iter().position(|o| *o == s);
            (0..n).all(|b| (0..b).all(|a| {
                let (x, y) = (&own.steps[a], &own.steps[b]);
                let meet = |w: &[usize], other: &ScheduleStep| w.iter().any(|w| other.reads.contains(w) || other.writes.contains(w));
                let apart = x.stage == y.stage && !meet(&x.writes, y) && !meet(&y.writes, x);
                apart || place(a) < place(b)
            }))
        };
        let need = |order: &[usize]| plan(&own.reordered(order).intervals(), &[]).lower_bound;
        let found = own.order();
        prop_assert!(legal(&found));
        let least = permutations(n).iter().filter(|o| legal(o)).map(|o| need(o)).min();
        prop_assert_eq!(Some(need(&found)), least);
    }
}
