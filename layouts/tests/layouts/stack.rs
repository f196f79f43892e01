//! A stack against the same layers written out one after the other.

use super::synthetic::{Random, measured, session};
use layouts::certificate::Certificate;
use layouts::exact::{self, SearchLimits};
use layouts::explain::{Layers, explain};
use layouts::measure::space::relayout_config;
use layouts::problem::{Access, Kernel, SelectionProblem, Tensor};
use layouts::relayout::RelayoutCosts;
use layouts::selection::{Method, select};
use layouts::stack::Stacked;
use layouts::verify::{VerifyError, verify};
use layouts::{Model, SelectError, Store, stack};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Direction, Layout};

/// A layer with a residual edge and a way back, and `count` of them as one program over the same measurements.
fn layers(seed: u64, count: usize) -> (SelectionProblem, SelectionProblem, Store) {
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
        ("f", Direction::Forward, vec![read("x"), write("t")]),
        ("g", Direction::Forward, vec![read("t"), read("x"), write("y")]),
        ("h", Direction::Backward, vec![read("d_y"), read("t"), write("d_x")]),
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
        ..Tensor::default()
    };
    let layer = SelectionProblem {
        tensors: ["x", "t", "y", "d_y", "d_x"].map(|d| tensor(d, "")).to_vec(),
        kernels: kernels.iter().map(|(name, pass, tensors)| Kernel::new(name, name, *pass, tensors.clone())).collect(),
        ..SelectionProblem::default()
    };
    // Written out: each layer with its own containers, tied to those of the next one where they are the same.
    let mut stack = SelectionProblem::default();
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
        let joins = vec![("y".to_string(), "x".to_string()), ("d_y".to_string(), "d_x".to_string())];
        let stacked = stack::solve(&model, &joins, count, &[], SearchLimits::default(), &mut |_| true).unwrap();
        let expected = select(&written_out, &store, Method::Exact, SearchLimits::default()).unwrap();
        assert!(expected.proven);
        assert_eq!(stacked.total as f64 / 1e9, expected.total_ms, "seed {seed}, {count} layers");
        assert_eq!(stacked.bound, stacked.total);
        assert_eq!(stacked.layers.len(), count);
        let total: i64 = stacked.layers.iter().map(|held| model.total(held)).sum();
        assert_eq!(total, stacked.total);
        let certificate = Certificate::new(&layer, &store, &model, &stacked, 0);
        let confirmed = verify(&certificate, &store).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert_eq!((confirmed.total_ps, confirmed.bound_ps), (stacked.total, stacked.total), "seed {seed}");
    }
}

/// What is forbidden to all layers of a stack is forbidden in all of them written out.
#[test]
fn the_runner_up_of_a_stack_is_that_of_its_layers_written_out() {
    let joins = vec![("y".to_string(), "x".to_string()), ("d_y".to_string(), "d_x".to_string())];
    let mut dearer = 0;
    for seed in 0..12 {
        let count = 2 + seed as usize % 3;
        let (layer, written_out, store) = layers(seed, count);
        let modelled = |program: &SelectionProblem| Model::new(program, &store, &RelayoutCosts::new(program, &store)).unwrap();
        let of = Layers { count, joins: joins.clone() };
        let whole = exact::solve(&modelled(&written_out), SearchLimits::default());
        let best = stack::solve(&modelled(&layer), &joins, count, &[], SearchLimits::default(), &mut |_| true).unwrap();
        for (name, class) in &modelled(&layer).class_of {
            let found = explain(&layer, &store, name, &of, SearchLimits::default()).unwrap();
            assert_eq!((found.total_ms * 1e9).round() as i64, whole.total, "seed {seed}");
            let Some(second) = found.runner_up else {
                assert!(name != "t", "what lies inside a layer can be held otherwise");
                continue;
            };
            assert!(second.more_ms >= 0.0 && second.what != found.chosen, "seed {seed}: {second:?}");
            dearer += usize::from(second.more_ms > 0.0);
            if name == "t" {
                // The layout of most layers, the first among equals.
                let held = |n: usize| best.layers[n][*class];
                let usual =
                    (0..count).max_by_key(|n| ((0..count).filter(|m| best.layers[*m] == best.layers[*n]).count(), std::cmp::Reverse(*n)));
                let layout = &modelled(&layer).classes[*class].layouts[held(usual.unwrap()) as usize].clone();
                let all = (0..count).try_fold(modelled(&written_out), |m, l| m.without_layout(&format!("t{l}"), layout)).unwrap();
                assert_eq!((second.total_ms * 1e9).round() as i64, exact::solve(&all, SearchLimits::default()).total, "seed {seed}");
            }
        }
        for name in ["f", "g", "h"] {
            let found = explain(&layer, &store, name, &of, SearchLimits::default()).unwrap();
            assert!(found.proven && found.runner_up.is_some_and(|second| second.more_ms >= 0.0));
        }
    }
    assert!(dearer > 5, "{dearer}");
}

/// However many layers: the search is that of one.
#[test]
fn a_deep_stack_takes_few_searches_and_its_certificate_is_confirmed() {
    for seed in 0..12 {
        let (layer, _, store) = layers(seed, 1);
        let model = Model::new(&layer, &store, &RelayoutCosts::new(&layer, &store)).unwrap();
        let joins = vec![("y".to_string(), "x".to_string()), ("d_y".to_string(), "d_x".to_string())];
        let stacked = |count| stack::solve(&model, &joins, count, &[], SearchLimits::default(), &mut |_| true).unwrap();
        let (ten, deep) = (stacked(10), stacked(1000));
        assert!(deep.proven() && deep.searches < 200, "seed {seed}: {} searches", deep.searches);
        assert!(deep.total <= 100 * ten.total && deep.total >= 10 * ten.total);
        let certificate = Certificate::new(&layer, &store, &model, &deep, 0);
        assert_eq!(verify(&certificate, &store).map(|c| c.bound_ps), Ok(deep.total), "seed {seed}");
    }
}

/// A search without any room still bounds the stack, and its certificate says no more than that.
#[test]
fn a_stack_that_is_cut_short_has_a_bound_that_holds() {
    let mut cut = 0;
    for seed in 0..25 {
        let (layer, _, store) = layers(seed, 1);
        let model = Model::new(&layer, &store, &RelayoutCosts::new(&layer, &store)).unwrap();
        let joins = vec![("y".to_string(), "x".to_string()), ("d_y".to_string(), "d_x".to_string())];
        let within = |limits| stack::solve(&model, &joins, 6, &[], limits, &mut |_| true).unwrap();
        let (best, short) = (within(SearchLimits::default()), within(SearchLimits { table: 0, work: 0 }));
        // Watched and stopped at any look: what the watch was told holds, and so does what comes of it.
        for stop in [0, 1, 3, 9] {
            let (mut looks, mut told) = (0, Vec::new());
            let mut watch = |p: exact::SearchProgress| {
                told.push((p.total, p.bound));
                looks += 1;
                looks <= stop
            };
            let stopped = stack::solve(&model, &joins, 6, &[], SearchLimits { table: 2, ..SearchLimits::default() }, &mut watch).unwrap();
            assert!(stopped.bound <= best.total && best.total <= stopped.total, "seed {seed}");
            assert!(told.iter().all(|(total, bound)| *bound <= best.total && best.total <= *total), "seed {seed}: {told:?}");
        }
        assert!(short.bound <= best.total && best.total <= short.total, "seed {seed}");
        let certificate = Certificate::new(&layer, &store, &model, &short, 0);
        assert_eq!(verify(&certificate, &store).map(|c| c.bound_ps), Ok(short.bound), "seed {seed}");
        cut += usize::from(!short.proven());
    }
    assert!(cut > 0);
}

#[test]
fn forged_stacks_are_refused() {
    let (layer, _, store) = layers(7, 1);
    let model = Model::new(&layer, &store, &RelayoutCosts::new(&layer, &store)).unwrap();
    let joins = vec![("y".to_string(), "x".to_string()), ("d_y".to_string(), "d_x".to_string())];
    let stacked = stack::solve(&model, &joins, 5, &[], SearchLimits::default(), &mut |_| true).unwrap();
    let honest = Certificate::new(&layer, &store, &model, &stacked, 0);
    assert!(verify(&honest, &store).is_ok());
    let forged = |change: &dyn Fn(&mut Certificate)| {
        let mut certificate = honest.clone();
        change(&mut certificate);
        verify(&certificate, &store)
    };
    let misfit = |result| matches!(result, Err(VerifyError::Misfit(_)));
    let kernel = layer.kernels[0].name.clone();
    assert!(misfit(forged(&|c| c.states.truncate(1))), "a state is missing");
    assert!(misfit(forged(&|c| c.states[1] = c.states[0].clone())), "a state stands for another");
    assert!(misfit(forged(&|c| c.potentials.clear())));
    assert!(misfit(forged(&|c| c.potentials[0].truncate(1))));
    assert!(misfit(forged(&|c| c.layers[2].step = 99)));
    assert!(misfit(forged(&|c| c.layers[2].choice = 99)));
    assert!(misfit(forged(&|c| c.layers.clear())));
    assert!(misfit(forged(&|c| c.joins = vec![("y".into(), "nothing".into())])));
    assert!(misfit(forged(&|c| c.choices[0].kernels.clear())));
    assert!(misfit(forged(&|c| {
        c.choices[0].kernels.get_mut(&kernel).unwrap().knobs = Knobs::default().with("v", 77);
    })));
    // A layer that takes over what the one before did not hand on, or potentials that do not cancel.
    let other = model.classes[model.class_of["x"]]
        .layouts
        .iter()
        .find(|l| **l != honest.choices[honest.layers[2].choice].layouts["x"])
        .unwrap()
        .clone();
    assert!(misfit(forged(&|c| {
        c.choices.push(c.choices[c.layers[2].choice].clone());
        c.layers[2].choice = c.choices.len() - 1;
        c.choices.last_mut().unwrap().layouts.insert("x".into(), other.clone());
    })));
    assert!(misfit(forged(&|c| {
        let other = c.potentials[0].iter().map(|p| p + 1_000_000_000).collect();
        c.potentials.push(other);
        let (mut step, leaves) = (c.steps[c.layers[2].step].clone(), c.potentials.len() - 1);
        step.leaves = leaves;
        c.steps.push(step);
        c.layers[2].step = c.steps.len() - 1;
    })));
    // A layer less costs less than is claimed.
    assert!(forged(&|c| c.layers.truncate(4)).is_err());
    assert!(matches!(forged(&|c| c.steps.iter_mut().for_each(|s| s.target_ps -= 1)), Err(VerifyError::Bound { .. })));
    // Potentials may say anything: a dearer choice is not proven by any.
    let natural = model.natural();
    let total = 5 * model.total(&natural);
    assert!(total > stacked.total);
    let mut dear = Stacked { layers: vec![natural; 5], total, bound: total, ..stacked };
    dear.steps.iter_mut().for_each(|s| s.target = total);
    let dear = Certificate::new(&layer, &store, &model, &dear, 0);
    assert_eq!(dear.states.len(), dear.potentials[0].len());
    for state in 0..dear.states.len() {
        for more in [-3_000_000_000, 0, 5_000_000_000] {
            let mut dear = dear.clone();
            dear.potentials.iter_mut().for_each(|table| table[state] += more);
            assert!(verify(&dear, &store).is_err(), "state {state}, {more} ps");
        }
    }
}

#[test]
fn layers_are_joined_by_the_result_and_the_input_of_equal_layouts() {
    let (mut layer, _, store) = layers(3, 1);
    assert_eq!(stack::joins(&layer), Err(SelectError::NoJoin(0)));
    let natural = layer.tensors[0].natural.clone();
    for data in ["x", "y", "d_y", "d_x"] {
        layer.boundary.insert(data.into(), natural.clone());
    }
    let joins = vec![("y".to_string(), "x".to_string()), ("d_y".to_string(), "d_x".to_string())];
    assert_eq!(stack::joins(&layer), Ok(joins));
    let model = Model::new(&layer, &store, &RelayoutCosts::new(&layer, &store)).unwrap();
    let refused = |joins: &[(&str, &str)]| {
        let joins = joins.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        stack::solve(&model, &joins, 2, &[], SearchLimits::default(), &mut |_| true).unwrap_err()
    };
    assert!(matches!(refused(&[("y", "y")]), SelectError::Joined { .. }));
    assert!(matches!(refused(&[("y", "x"), ("t", "x")]), SelectError::Joined { .. }));
    assert!(matches!(refused(&[("y", "elsewhere")]), SelectError::UnknownTensor(_)));
}
