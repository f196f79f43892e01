//! Plans of the arena: never two living transients in one place, never smaller than what lives at once.

use crate::build::*;
use proptest::prelude::*;
use sdfg::lifetime::{ALIGNMENT, Interval, intervals, plan};
use sdfg::*;

fn interval(data: &str, bytes: u64, first: usize, last: usize) -> Interval {
    Interval { data: data.into(), bytes, first, last }
}

#[test]
fn a_chain_needs_two_places() {
    let lives = [interval("a", 640, 0, 1), interval("b", 640, 1, 2), interval("c", 640, 2, 3), interval("d", 640, 3, 4)];
    let plan = plan(&lives);
    assert_eq!((plan.peak_bytes, plan.lower_bound), (1280, 1280));
    assert_eq!(plan.offsets["a"], plan.offsets["c"]);
}

#[test]
fn a_small_one_fits_into_a_gap() {
    let lives = [interval("wide", 640, 0, 0), interval("low", 128, 1, 1), interval("high", 320, 0, 1)];
    let plan = plan(&lives);
    assert_eq!((plan.offsets["wide"], plan.offsets["high"], plan.offsets["low"]), (0, 640, 0));
}

/// x → t → u → y, where u is reached through a view: inputs, outputs and locals are not planned.
#[test]
fn intervals_run_from_the_writer_to_the_last_reader() {
    use Role::{Input, Output, Transient};
    let mut p = program(&[("i", 8)], &[("x", &["i"], Input), ("t", &["i"], Transient), ("u", &["i"], Transient), ("y", &["i"], Output)]);
    let mut view = Container::new("u.view", &["i"], Dtype::F32, Transient);
    view.view = Some(View { of: "u".into(), offsets: vec![Expr::Int(0)] });
    p.add_container(view);
    for (n, (from, to)) in [("x", "t"), ("t", "u"), ("x", "y"), ("u.view", "y")].into_iter().enumerate() {
        let op = Op::Elementwise { label: "copy".into(), code: input("v") };
        let op = operation(op, &["i"], &[("v", from, &["i"])], &[("out", to, &["i"])]);
        let next = if n == 0 { state(&p) } else { p.add_state(format!("s{n}")) };
        p.insert_operation(next, &Operation { name: format!("copy{n}"), ..op }).unwrap();
    }
    assert_eq!(intervals(&p).unwrap(), [interval("t", 32, 0, 1), interval("u", 32, 1, 3)]);
}

proptest! {
    #[test]
    fn plans_are_sound(lives in prop::collection::vec((0u64..5000, 0usize..20, 0usize..8), 0..40)) {
        let lives: Vec<Interval> = lives.iter().enumerate().map(|(n, (bytes, first, more))| interval(&format!("t{n}"), *bytes, *first, first + more)).collect();
        let plan = plan(&lives);
        prop_assert!(plan.peak_bytes >= plan.lower_bound);
        for (n, a) in lives.iter().enumerate() {
            let start = plan.offsets[&a.data];
            prop_assert_eq!(start % ALIGNMENT, 0);
            prop_assert!(start + a.bytes <= plan.peak_bytes);
            for b in lives.iter().skip(n + 1).filter(|b| a.meets(b)) {
                let other = plan.offsets[&b.data];
                prop_assert!(start + a.bytes <= other || other + b.bytes <= start, "{} and {} overlap", a.data, b.data);
            }
        }
    }
}
