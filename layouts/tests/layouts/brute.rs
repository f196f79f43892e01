//! Every choice there is, one after the other: slow and simple.

use layouts::problem::{Access, Kernel, SelectionProblem};
use layouts::relayout::RelayoutCosts;
use layouts::store::Store;
use sdfg::Layout;
use std::collections::{BTreeMap, BTreeSet};

type Held = BTreeMap<String, Layout>;

type Variants = BTreeMap<String, String>;

/// The kernels that run if these variants do.
pub fn running<'a>(program: &'a SelectionProblem, variants: &'a Variants) -> impl Iterator<Item = &'a Kernel> {
    program.kernels.iter().filter(|k| k.only.iter().all(|(group, names)| names.contains(&variants[group])))
}

/// Cost of a choice, worked out from the program and the records alone.
pub fn price(program: &SelectionProblem, store: &Store, held: &Held, variants: &Variants) -> f64 {
    let costs = RelayoutCosts::new(program, store);
    let plain = |data: &String| program.tensor(data).unwrap().plain().to_string();
    let mut total = 0.0;
    for kernel in running(program, variants) {
        let price = |record: &layouts::Measurement| {
            let mut ms = record.ms().unwrap();
            for (data, access) in &kernel.tensors {
                let (held, wanted) = (&held[data], &record.config.layouts[&plain(data)]);
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

/// The costs of all ways to choose variants and to hold the containers that they touch, cheapest first.
pub fn brute_force(program: &SelectionProblem, store: &Store) -> Vec<f64> {
    // Classes by repeated merging: slow and simple.
    let mut classes: Vec<BTreeSet<String>> = program.tensors.iter().map(|t| BTreeSet::from([t.data.clone()])).collect();
    for (a, b) in &program.ties {
        let (with, mut without): (Vec<_>, Vec<_>) = classes.into_iter().partition(|c| c.contains(a) || c.contains(b));
        without.push(with.into_iter().flatten().collect());
        classes = without;
    }
    let mut combinations: Vec<Variants> = vec![Variants::new()];
    for (group, names) in &program.alternatives {
        let with = |v: &Variants, name: &String| v.clone().into_iter().chain([(group.clone(), name.clone())]).collect();
        combinations = combinations.iter().flat_map(|v| names.iter().map(move |name| with(v, name))).collect();
    }
    let mut prices = Vec::new();
    for variants in combinations.into_iter().filter(|v| program.finds(v)) {
        let touched: BTreeSet<&String> = running(program, &variants).flat_map(|k| k.tensors.iter().map(|(t, _)| t)).collect();
        let mut assignments: Vec<Held> = vec![Held::new()];
        for class in classes.iter().filter(|c| c.iter().any(|t| touched.contains(t))) {
            let mut domain: BTreeSet<Layout> = BTreeSet::from([first_natural(program, class)]);
            for kernel in &program.kernels {
                for record in store.of(&kernel.key) {
                    for (data, _) in kernel.tensors.iter().filter(|(data, _)| class.contains(data)) {
                        domain.insert(record.config.layouts[program.tensor(data).unwrap().plain()].clone());
                    }
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
        prices.extend(assignments.iter().map(|held| price(program, store, held, &variants)));
    }
    prices.sort_by(f64::total_cmp);
    prices
}

fn first_natural(program: &SelectionProblem, class: &BTreeSet<String>) -> Layout {
    program.tensors.iter().find(|t| class.contains(&t.data)).unwrap().natural.clone()
}
