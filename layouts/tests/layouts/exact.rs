//! The exact choice against every choice there is.

use super::brute::{brute_force, price, running};
use layouts::certificate::Certificate;
use layouts::exact::{self, SearchLimits};
use layouts::problem::{Access, SelectionProblem};
use layouts::relayout::RelayoutCosts;
use layouts::selection::{Method, Selection, exactly, select, select_top};
use layouts::store::Store;
use layouts::verify::verify;
use layouts::{Model, Network};
use sdfg::Layout;
use std::collections::{BTreeMap, BTreeSet};

/// What the selection says of itself is true: its parts add up to its total, and its configuration has that price.
fn consistent(program: &SelectionProblem, store: &Store, selection: &Selection) {
    let parts: f64 = selection.kernels.iter().map(|k| k.ms + k.relayout_ms).sum();
    assert_eq!(parts, selection.total_ms);
    assert_eq!(selection.relayouts.iter().map(|r| r.ms).sum::<f64>(), selection.kernels.iter().map(|k| k.relayout_ms).sum::<f64>());
    let configuration = &selection.configuration;
    let touched: BTreeSet<&String> = running(program, &configuration.variants).flat_map(|k| k.tensors.iter().map(|(d, _)| d)).collect();
    // The selection speaks of names in the chosen program; a container of a program that does not run is not in it.
    let named = program.tensors.iter().filter(|t| program.alternatives.is_empty() || touched.contains(&t.data));
    let held: BTreeMap<String, Layout> = named.map(|t| (t.data.clone(), configuration.layouts[t.plain()].clone())).collect();
    assert!(selection.total_ms >= price(program, store, &held, &configuration.variants));
    let there = |data: &String| held.contains_key(data);
    for (a, b) in program.ties.iter().filter(|(a, b)| there(a) && there(b)) {
        assert_eq!(held[a], held[b]);
    }
    for (data, layout) in program.boundary.iter().filter(|(data, _)| there(data)) {
        assert_eq!(held[data], *layout);
    }
    for kernel in running(program, &selection.configuration.variants) {
        let config = &selection.configuration.kernels[kernel.plain()];
        for (data, access) in &kernel.tensors {
            let plain = program.tensor(data).unwrap().plain();
            let (held, wanted) = (&held[data], &config.layouts[plain]);
            let planned = selection.relayouts.iter().filter(|r| r.kernel == kernel.plain() && r.relayout.data == plain);
            let planned: Vec<_> = planned.map(|r| (&r.relayout.from, &r.relayout.to)).collect();
            let expected = match access {
                _ if held == wanted => vec![],
                Access::Read => vec![(held, wanted)],
                Access::Write => vec![(wanted, held)],
                Access::Update => vec![(held, wanted), (wanted, held)],
            };
            assert_eq!(planned, expected);
        }
    }
}

#[test]
fn the_exact_choice_is_the_cheapest_of_all() {
    let (mut with_relayouts, mut with_variants) = (0, 0);
    for seed in 0..500 {
        let (program, store) = super::synthetic::any(seed);
        let all = brute_force(&program, &store);
        // With room for tables, and without any: then it is branch and bound alone.
        for limits in [SearchLimits::default(), SearchLimits { table: 2, work: u64::MAX }] {
            let exact = select(&program, &store, Method::Exact, limits).unwrap();
            assert_eq!(exact.total_ms, all[0], "seed {seed}");
            assert!(exact.proven && exact.gap == 0.0);
            consistent(&program, &store, &exact);
            with_relayouts += usize::from(!exact.relayouts.is_empty());
            with_variants += usize::from(!exact.configuration.variants.is_empty());
        }
        for method in Method::ALL {
            let other = select(&program, &store, method, SearchLimits::default()).unwrap();
            consistent(&program, &store, &other);
            assert!(other.total_ms >= all[0] && all[0] >= other.sum_of_minima_ms, "seed {seed}");
        }
        let top = select_top(&program, &store, 5, SearchLimits::default()).unwrap();
        let totals: Vec<f64> = top.iter().map(|s| s.total_ms).collect();
        assert_eq!(totals, all[..all.len().min(5)], "seed {seed}");
    }
    assert!(with_relayouts > 100 && with_variants > 100, "the programs must show something: {with_relayouts}, {with_variants}");
}

/// Every way of proving: tables, splits, and bounds alone.
#[test]
fn certificates_are_confirmed_and_worse_claims_are_not() {
    let mut splits = 0;
    for seed in 0..300 {
        let (program, store) = super::synthetic::any(seed);
        let costs = RelayoutCosts::new(&program, &store);
        let model = Model::new(&program, &store, &costs).unwrap();
        for limits in [SearchLimits::default(), SearchLimits { table: 2, work: u64::MAX }, SearchLimits { table: 2, work: 2000 }] {
            let optimum = exact::solve(&model, limits);
            let selection = exactly(&model, &costs, &optimum);
            let certificate = Certificate::new(&program, &store, &model, &optimum.clone().into(), selection.unmeasured().count());
            let confirmed = verify(&certificate, &store).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!((confirmed.total_ps, confirmed.bound_ps), (optimum.total, optimum.bound));
            splits += usize::from(certificate.steps[0].parts.len() > 1);
            // No proof shows more than the truth.
            let over = Certificate { bound_ps: certificate.total_ps + 1, ..certificate.clone() };
            assert!(verify(&over, &store).is_err());
            if !optimum.proven() {
                let proven = Certificate { bound_ps: certificate.total_ps, ..certificate.clone() };
                assert!(verify(&proven, &store).is_err() || optimum.total == exact::solve(&model, SearchLimits::default()).total);
            }
            // A dearer choice under the same proof, and a cheaper price of the same choice.
            let cheaper = Certificate { total_ps: certificate.total_ps - 1, ..certificate.clone() };
            assert!(verify(&cheaper, &store).is_err());
        }
    }
    assert!(splits > 20, "{splits}");
}

/// The network is the model: every assignment costs the same in both.
#[test]
fn a_network_prices_like_its_model() {
    for seed in 0..100 {
        let (program, store) = super::synthetic::any(seed);
        let model = Model::new(&program, &store, &RelayoutCosts::new(&program, &store)).unwrap();
        let network = Network::new(&model);
        for variants in model.combinations(64).unwrap() {
            let held = model.natural();
            let assignment = [held.as_slice(), &variants].concat();
            assert_eq!(network.total(&assignment), model.variant(&variants).total(&held), "seed {seed}");
        }
    }
}

#[test]
fn a_search_cut_short_says_so_and_its_bound_holds() {
    let mut cut = 0;
    for seed in 0..300 {
        let (program, store) = super::synthetic::any(seed);
        let least = brute_force(&program, &store)[0];
        let choice = select(&program, &store, Method::Exact, SearchLimits { table: 0, work: 0 }).unwrap();
        assert!(choice.bound_ms <= least && least <= choice.total_ms, "seed {seed}");
        assert!(!choice.proven || choice.total_ms == least);
        cut += usize::from(!choice.proven);
    }
    assert!(cut > 0);
}

#[test]
fn the_same_measurements_give_the_same_bytes_in_any_order() {
    for seed in 0..50 {
        let (program, store) = super::synthetic::any(seed);
        let mut backwards = Store::in_memory();
        backwards.begin(super::synthetic::session("0")).unwrap();
        let mut records: Vec<_> = store.all().cloned().collect();
        records.reverse();
        for record in records {
            backwards.append(record).unwrap();
        }
        for method in Method::ALL {
            let bytes = |store: &Store| serde_json::to_string(&select(&program, store, method, SearchLimits::default()).unwrap()).unwrap();
            assert_eq!(bytes(&store), bytes(&backwards));
        }
    }
}
