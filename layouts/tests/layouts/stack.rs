//! A stack against the same layers written out one after the other.

use super::synthetic::{Random, measured, session};
use layouts::exact::Limits;
use layouts::problem::{Access, Kernel, Program, Tensor, relayout_config};
use layouts::relayout::RelayoutCosts;
use layouts::selection::{Method, select};
use layouts::{Model, Store, stack};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Layout, Pass};

/// A layer with a residual edge and a way back, and `count` of them as one program over the same measurements.
fn layers(seed: u64, count: usize) -> (Program, Program, Store) {
    let mut random = Random(seed);
    let mut store = Store::in_memory();
    store.begin(session("0")).unwrap();
    let layouts: Vec<Layout> = Layout::permutations(&["a", "b", "c"].map(String::from)).into_iter().step_by(2).collect();
    for from in &layouts {
        for to in layouts.iter().filter(|to| *to != from) {
            let mut record = measured("relayout", relayout_config(from, to), 1.0 + random.below(5) as f64);
            record.key = "r".into();
            store.append(record).unwrap();
        }
    }
    let read = |d: &str| (d.to_string(), Access::Read);
    let write = |d: &str| (d.to_string(), Access::Write);
    let kernels = [
        ("f", Pass::Forward, vec![read("x"), write("t")]),
        ("g", Pass::Forward, vec![read("t"), read("x"), write("y")]),
        ("h", Pass::Backward, vec![read("d_y"), read("t"), write("d_x")]),
    ];
    for (name, _, tensors) in &kernels {
        for n in 0..8 {
            let layouts = tensors.iter().map(|(t, _)| (t.clone(), random.pick(&layouts).clone())).collect();
            let config = KernelConfig { layouts, knobs: Knobs::default().with("v", n) };
            store.append(measured(name, config, 1.0 + random.below(12) as f64)).unwrap();
        }
        // Every layout is known to every kernel.
        for layout in &layouts {
            let layouts = tensors.iter().map(|(t, _)| (t.clone(), layout.clone())).collect();
            store.append(measured(name, KernelConfig { layouts, ..KernelConfig::default() }, 14.0)).unwrap();
        }
    }
    let tensor = |data: &str, original: &str| Tensor {
        data: data.into(),
        natural: layouts[0].clone(),
        bytes: 1,
        relayout_key: "r".into(),
        original: original.into(),
    };
    let layer = Program {
        tensors: ["x", "t", "y", "d_y", "d_x"].map(|d| tensor(d, "")).to_vec(),
        kernels: kernels.iter().map(|(name, pass, tensors)| Kernel::new(name, name, *pass, tensors.clone())).collect(),
        ..Program::default()
    };
    // Written out: each layer with its own containers, tied to those of the next one where they are the same.
    let mut stack = Program::default();
    for l in 0..count {
        stack.tensors.extend(["x", "t", "y", "d_y", "d_x"].map(|d| tensor(&format!("{d}{l}"), d)));
        for (name, pass, tensors) in &kernels {
            let tensors = tensors.iter().map(|(d, access)| (format!("{d}{l}"), *access)).collect();
            stack.kernels.push(Kernel::new(&format!("{name}{l}"), name, *pass, tensors));
        }
        if l > 0 {
            stack.ties.push((format!("y{}", l - 1), format!("x{l}")));
            stack.ties.push((format!("d_y{}", l - 1), format!("d_x{l}")));
        }
    }
    for data in ["x0".to_string(), "d_x0".into(), format!("y{}", count - 1), format!("d_y{}", count - 1)] {
        stack.boundary.insert(data, layouts[0].clone());
    }
    (layer, stack, store)
}

#[test]
fn a_stack_costs_what_its_layers_cost_written_out() {
    for seed in 0..25 {
        let count = 1 + seed as usize % 4;
        let (layer, written_out, store) = layers(seed, count);
        let model = Model::new(&layer, &store, &RelayoutCosts::new(&layer, &store)).unwrap();
        let joins = [("y".to_string(), "x".to_string()), ("d_y".to_string(), "d_x".to_string())];
        let stacked = stack::solve(&model, &joins, count, Limits::default()).unwrap();
        let expected = select(&written_out, &store, Method::Exact, Limits::default()).unwrap();
        assert!(expected.proven);
        assert_eq!(stacked.total as f64 / 1e9, expected.total_ms, "seed {seed}, {count} layers");
        assert_eq!(stacked.bound, stacked.total);
        assert_eq!(stacked.layers.len(), count);
        let total: i64 = stacked.layers.iter().map(|held| model.total(held)).sum();
        assert_eq!(total, stacked.total);
    }
}
