//! The exact choice against every choice there is.

use layouts::exact::Limits;
use layouts::problem::{Access, Program};
use layouts::relayout::RelayoutCosts;
use layouts::selection::{Method, Selection, select, select_top};
use layouts::store::Store;
use sdfg::Layout;
use std::collections::{BTreeMap, BTreeSet};

type Held = BTreeMap<String, Layout>;

/// Cost of a choice, worked out from the program and the records alone.
fn price(program: &Program, store: &Store, held: &Held) -> f64 {
    let costs = RelayoutCosts::new(program, store);
    let mut total = 0.0;
    for kernel in &program.kernels {
        let price = |record: &layouts::Measurement| {
            let mut ms = record.ms().unwrap();
            for (data, access) in &kernel.tensors {
                let (held, wanted) = (&held[data], &record.config.layouts[data]);
                ms += match access {
                    Access::Read => costs.cost(data, held, wanted).ms,
                    Access::Write => costs.cost(data, wanted, held).ms,
                    Access::Update => costs.cost(data, held, wanted).ms + costs.cost(data, wanted, held).ms,
                };
            }
            ms
        };
        total += store.of(&kernel.key).map(price).fold(f64::INFINITY, f64::min);
    }
    total
}

/// All ways to hold the containers, with their costs, cheapest first.
fn brute_force(program: &Program, store: &Store) -> Vec<f64> {
    // Classes by repeated merging: slow and simple.
    let mut classes: Vec<BTreeSet<String>> = program.tensors.iter().map(|t| BTreeSet::from([t.data.clone()])).collect();
    for (a, b) in &program.ties {
        let (with, mut without): (Vec<_>, Vec<_>) = classes.into_iter().partition(|c| c.contains(a) || c.contains(b));
        without.push(with.into_iter().flatten().collect());
        classes = without;
    }
    let mut assignments: Vec<Held> = vec![Held::new()];
    for class in classes {
        let mut domain: BTreeSet<Layout> = class.iter().take(1).map(|_| first_natural(program, &class)).collect();
        for kernel in &program.kernels {
            for record in store.of(&kernel.key) {
                domain.extend(record.config.layouts.iter().filter(|(t, _)| class.contains(*t)).map(|(_, l)| l.clone()));
            }
        }
        if let Some((_, fixed)) = program.boundary.iter().find(|(t, _)| class.contains(*t)) {
            domain = BTreeSet::from([fixed.clone()]);
        }
        let mut next = Vec::new();
        for held in &assignments {
            for layout in &domain {
                let mut held = held.clone();
                held.extend(class.iter().map(|t| (t.clone(), layout.clone())));
                next.push(held);
            }
        }
        assignments = next;
    }
    let mut prices: Vec<f64> = assignments.iter().map(|held| price(program, store, held)).collect();
    prices.sort_by(f64::total_cmp);
    prices
}

fn first_natural(program: &Program, class: &BTreeSet<String>) -> Layout {
    program.tensors.iter().find(|t| class.contains(&t.data)).unwrap().natural.clone()
}

/// What the selection says of itself is true: its parts add up to its total, and its configuration has that price.
fn consistent(program: &Program, store: &Store, selection: &Selection) {
    let parts: f64 = selection.kernels.iter().map(|k| k.ms + k.relayout_ms).sum();
    assert_eq!(parts, selection.total_ms);
    assert_eq!(selection.relayouts.iter().map(|r| r.ms).sum::<f64>(), selection.kernels.iter().map(|k| k.relayout_ms).sum::<f64>());
    assert!(selection.total_ms >= price(program, store, &selection.configuration.layouts));
    for (a, b) in &program.ties {
        assert_eq!(selection.configuration.layouts[a], selection.configuration.layouts[b]);
    }
    for (data, layout) in &program.boundary {
        assert_eq!(selection.configuration.layouts[data], *layout);
    }
    for kernel in &program.kernels {
        let config = &selection.configuration.kernels[&kernel.name];
        for (data, access) in &kernel.tensors {
            let (held, wanted) = (&selection.configuration.layouts[data], &config.layouts[data]);
            let planned = selection.relayouts.iter().filter(|r| r.kernel == kernel.name && r.relayout.data == *data);
            let (from, to) = if *access == Access::Read { (held, wanted) } else { (wanted, held) };
            let planned: Vec<_> = planned.map(|r| (&r.relayout.from, &r.relayout.to)).collect();
            assert_eq!(planned, if held == wanted { vec![] } else { vec![(from, to)] });
        }
    }
}

#[test]
fn the_exact_choice_is_the_cheapest_of_all_on_two_thousand_programs() {
    let mut with_relayouts = 0;
    for seed in 0..2000 {
        let (program, store) = super::synthetic::program(seed);
        let all = brute_force(&program, &store);
        // With room for tables, and without any: then it is branch and bound alone.
        for limits in [Limits::default(), Limits { table: 2, work: u64::MAX }] {
            let exact = select(&program, &store, Method::Exact, limits).unwrap();
            assert_eq!(exact.total_ms, all[0], "seed {seed}");
            assert!(exact.proven && exact.gap == 0.0);
            consistent(&program, &store, &exact);
            with_relayouts += usize::from(!exact.relayouts.is_empty());
        }
        for method in [Method::Sssp, Method::Uniform, Method::Natural] {
            let other = select(&program, &store, method, Limits::default()).unwrap();
            consistent(&program, &store, &other);
            assert!(other.total_ms >= all[0] && all[0] >= other.sum_of_minima_ms, "seed {seed}");
        }
        let top = select_top(&program, &store, 5, Limits::default()).unwrap();
        let totals: Vec<f64> = top.iter().map(|s| s.total_ms).collect();
        assert_eq!(totals, all[..all.len().min(5)], "seed {seed}");
    }
    assert!(with_relayouts > 100, "the programs must need relayouts to show anything: {with_relayouts}");
}

#[test]
fn a_search_cut_short_says_so_and_its_bound_holds() {
    let mut cut = 0;
    for seed in 0..300 {
        let (program, store) = super::synthetic::program(seed);
        let least = brute_force(&program, &store)[0];
        let choice = select(&program, &store, Method::Exact, Limits { table: 0, work: 0 }).unwrap();
        assert!(choice.bound_ms <= least && least <= choice.total_ms, "seed {seed}");
        assert!(!choice.proven || choice.total_ms == least);
        cut += usize::from(!choice.proven);
    }
    assert!(cut > 0);
}

#[test]
fn the_same_measurements_give_the_same_bytes_in_any_order() {
    for seed in 0..50 {
        let (program, store) = super::synthetic::program(seed);
        let mut backwards = Store::in_memory();
        backwards.begin(super::synthetic::session("0")).unwrap();
        let mut records: Vec<_> = store.all().cloned().collect();
        records.reverse();
        for record in records {
            backwards.append(record).unwrap();
        }
        for method in [Method::Exact, Method::Sssp, Method::Uniform, Method::Natural] {
            let bytes = |store: &Store| serde_json::to_string(&select(&program, store, method, Limits::default()).unwrap()).unwrap();
            assert_eq!(bytes(&store), bytes(&backwards));
        }
    }
}
