//! Random programs with invented times: whole numbers of milliseconds, so that sums are exact and can be compared.

use layouts::measure::space::relayout_config;
use layouts::problem::{Access, Kernel, SelectionProblem, Tensor};
use layouts::record::{Measurement, Outcome, Session};
use layouts::store::Store;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Direction, Layout};
use std::collections::{BTreeMap, BTreeSet};

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

pub fn session(name: &str) -> Session {
    Session { session: name.into(), format: 1, device: "synthetic".into(), threads: 2, ..Session::default() }
}

pub fn measured(kernel: &str, config: KernelConfig, ms: f64) -> Measurement {
    let identity = config.to_string();
    let outcome = Outcome::Measured { samples: vec![ms] };
    Measurement {
        session: String::new(),
        kernel: kernel.into(),
        key: kernel.into(),
        config,
        identity,
        mark: String::new(),
        lender: None,
        round: 0,
        check: Some(0.5),
        outcome,
    }
}

/// A chain with residual edges, a backward pass, ties and a boundary; only some combinations are measured, and only some
/// relayouts, which obey no triangle inequality.
pub fn program(seed: u64) -> (SelectionProblem, Store) {
    let mut random = Random(seed);
    let mut store = Store::in_memory();
    store.begin(session("0")).unwrap();
    let mut program = SelectionProblem::default();
    let kernels = 2 + random.below(3);
    let layouts = |dims: &[&str]| Layout::permutations(&dims.iter().map(|d| d.to_string()).collect::<Vec<_>>());
    let mut all: BTreeMap<String, Vec<Layout>> = BTreeMap::new();
    let mut tensor = |program: &mut SelectionProblem, store: &mut Store, random: &mut Random, name: String| {
        let of: Vec<Layout> =
            if random.below(3) == 0 { layouts(&["a", "b", "c"]).into_iter().step_by(2).collect() } else { layouts(&["a", "b"]) };
        for from in &of {
            for to in of.iter().filter(|to| *to != from) {
                if random.below(4) > 0 {
                    let mut record = measured(&format!("relayout:{name}"), relayout_config(from, to), 1.0 + random.below(9) as f64);
                    record.key = format!("r:{name}");
                    store.append(record).unwrap();
                }
            }
        }
        let relayout_key = format!("r:{name}");
        let (data, meaning) = (name.clone(), name.clone());
        program.tensors.push(Tensor { data, natural: of[0].clone(), bytes: 1, relayout_key, meaning, ..Tensor::default() });
        all.insert(name.clone(), of);
        name
    };
    let mut available = vec![tensor(&mut program, &mut store, &mut random, "x".into())];
    for n in 0..kernels {
        let mut tensors: Vec<(String, Access)> = vec![(available.last().unwrap().clone(), Access::Read)];
        if random.below(2) == 0 {
            let other = random.pick(&available).clone();
            if tensors.iter().all(|(t, _)| *t != other) {
                tensors.push((other, Access::Read));
            }
        }
        if random.below(3) == 0 {
            tensors.push((tensor(&mut program, &mut store, &mut random, format!("w{n}")), Access::Read));
        }
        let out = tensor(&mut program, &mut store, &mut random, format!("t{n}"));
        tensors.push((out.clone(), Access::Write));
        available.push(out);
        let name = format!("k{n}");
        let pass = if n + 1 < kernels || random.below(2) == 0 { Direction::Forward } else { Direction::Backward };
        program.kernels.push(Kernel::new(&name, &name, pass, tensors));
    }
    for kernel in &program.kernels {
        for _ in 0..1 + random.below(7) {
            let layouts = kernel.tensors.iter().map(|(t, _)| (t.clone(), random.pick(&all[t]).clone())).collect();
            let knobs = Knobs::default().with("v", random.below(2));
            store.append(measured(&kernel.name, KernelConfig { layouts, knobs }, 1.0 + random.below(20) as f64)).unwrap();
        }
    }
    let dims = |program: &SelectionProblem, t: &str| program.tensor(t).unwrap().natural.pieces.len();
    let names: Vec<String> = program.tensors.iter().map(|t| t.data.clone()).collect();
    for _ in 0..random.below(3) {
        let (a, b) = (random.pick(&names).clone(), random.pick(&names).clone());
        if a != b && dims(&program, &a) == dims(&program, &b) {
            program.ties.push((a, b));
        }
    }
    if random.below(2) == 0 {
        let layout = random.pick(&all["x"]).clone();
        program.boundary.insert("x".into(), layout);
    }
    (program, store)
}

/// A program in which some kernels are composed with the ones behind them: `at` says which. What no other kernel reads
/// stays inside; what a composed kernel costs is drawn for each anew, once.
fn composed(program: &SelectionProblem, at: &BTreeSet<usize>, store: &mut Store, random: &mut Random) -> SelectionProblem {
    let mut found = SelectionProblem { kernels: Vec::new(), ..program.clone() };
    let mut n = 0;
    while n < program.kernels.len() {
        let (first, second) = (&program.kernels[n], program.kernels.get(n + 1));
        let Some(second) = second.filter(|second| at.contains(&n) && second.pass == first.pass) else {
            found.kernels.push(first.clone());
            n += 1;
            continue;
        };
        let made = &first.tensors.last().unwrap().0;
        let elsewhere = |k: &Kernel| k.name != first.name && k.name != second.name && k.tensors.iter().any(|(t, _)| t == made);
        let stored = program.boundary.contains_key(made) || program.kernels.iter().any(elsewhere);
        let mut tensors: Vec<(String, Access)> = Vec::new();
        for (data, access) in first.tensors.iter().chain(&second.tensors) {
            let inside = data == made && (!stored || *access == Access::Read);
            if !inside && tensors.iter().all(|(t, _)| t != data) {
                tensors.push((data.clone(), *access));
            }
        }
        let key = format!("{}+{}", first.name, second.name);
        if store.of(&key).next().is_none() {
            for _ in 0..1 + random.below(4) {
                let mut layout = |t: &String| {
                    let mut layout = program.tensor(t).unwrap().natural.clone();
                    let pieces = layout.pieces.len() as u64;
                    layout.pieces.rotate_left(random.below(pieces) as usize);
                    layout
                };
                let layouts = tensors.iter().map(|(t, _)| t.clone()).map(|t| (t.clone(), layout(&t))).collect();
                let config = KernelConfig { layouts, knobs: Knobs::default() };
                store.append(measured(&key, config, 1.0 + random.below(30) as f64)).unwrap();
            }
        }
        // It is called like the last kernel that it holds.
        found.kernels.push(Kernel::new(&second.name, &key, second.pass, tensors));
        n += 2;
    }
    let touched: BTreeSet<String> = found.kernels.iter().flat_map(|k| k.tensors.iter().map(|(t, _)| t.clone())).collect();
    found.tensors.retain(|t| touched.contains(&t.data));
    found.boundary.retain(|data, _| touched.contains(data));
    found.ties.retain(|(a, b)| touched.contains(a) && touched.contains(b));
    found
}

/// Several programs that compute the same: one with every kernel on its own, some with kernels composed in pairs that may
/// overlap from program to program.
pub fn programs(seed: u64) -> (Vec<(String, SelectionProblem)>, Store) {
    let (separate, mut store) = program(seed);
    let mut random = Random(seed ^ 0x517e);
    let count = separate.kernels.len() as u64;
    let mut programs = vec![("separate".to_string(), separate.clone())];
    for n in 0..1 + random.below(3) {
        let pairs = (0..1 + random.below(2)).map(|_| random.below(count.max(2) - 1) as usize).collect();
        programs.push((format!("composed {n}"), composed(&separate, &pairs, &mut store, &mut random)));
    }
    (programs, store)
}

/// A program; in every other case one with alternatives, and now and then a kernel that writes a part; in every fifth the
/// choice among several programs.
pub fn any(seed: u64) -> (SelectionProblem, Store) {
    if seed % 5 == 4 {
        let (programs, store) = programs(seed);
        return (SelectionProblem::among(&programs), store);
    }
    let (mut program, mut store) = program(seed);
    let mut random = Random(seed ^ 0x5eed);
    for kernel in &mut program.kernels {
        for (_, access) in kernel.tensors.iter_mut().filter(|(_, access)| *access == Access::Write) {
            if random.below(6) == 0 {
                *access = Access::Update;
            }
        }
    }
    for group in 0..seed % 2 * (1 + random.below(2)) {
        let name = format!("g{group}");
        let variants: Vec<String> = (0..2 + random.below(2)).map(|v| format!("v{v}")).collect();
        let only = |v: usize| (name.clone(), BTreeSet::from([variants[v].clone()]));
        // The kernel that there was, in one variant; in the others one or two that take its place.
        let at = random.below(program.kernels.len() as u64) as usize;
        let original = program.kernels[at].clone();
        program.kernels[at].only.extend([only(0)]);
        for v in 1..variants.len() {
            for part in 0..1 + random.below(2) {
                let mut kernel = original.clone();
                let own = format!("{}{name}{v}{part}", original.name);
                (kernel.name, kernel.key) = (own.clone(), own.clone());
                kernel.only.extend([only(v)]);
                if part == 1 && kernel.tensors.len() > 1 {
                    let dropped = random.below(kernel.tensors.len() as u64) as usize;
                    kernel.tensors.remove(dropped);
                }
                let of: Vec<_> = store.of(&original.key).map(|m| m.config.clone()).collect();
                for config in of {
                    let layouts = config.layouts.into_iter().filter(|(t, _)| kernel.tensors.iter().any(|(k, _)| k == t)).collect();
                    let record = measured(&own, KernelConfig { layouts, knobs: config.knobs }, 1.0 + random.below(20) as f64);
                    store.append(record).unwrap();
                }
                program.kernels.insert(at + 1, kernel);
            }
        }
        program.alternatives.insert(name, variants);
    }
    (program, store)
}
