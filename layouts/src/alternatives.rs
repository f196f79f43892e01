//! Several programs that compute the same, as one program with alternatives: the choice of program and of layouts is one
//! decision.
//!
//! What programs have in common they share: kernels of equal name, key and containers; containers of equal description,
//! boundary and ties. Where they have different things of one name, each variant gets its own, called `name@variant`.

use crate::problem::{Kernel, Program, Tensor};
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};

/// All that a container is, besides its name.
fn facts<'a>(program: &'a Program, tensor: &'a Tensor) -> (&'a Tensor, Option<&'a sdfg::Layout>, BTreeSet<&'a str>) {
    let partner = |(a, b): &'a (String, String)| match (*a == tensor.data, *b == tensor.data) {
        (true, _) => Some(b.as_str()),
        (_, true) => Some(a.as_str()),
        _ => None,
    };
    (tensor, program.boundary.get(&tensor.data), program.ties.iter().filter_map(partner).collect())
}

impl Program {
    /// One program of which one variant runs. A single variant stays as it is.
    pub fn among(group: &str, variants: &[(String, Program)]) -> Program {
        if let [(_, only)] = variants {
            return only.clone();
        }
        let mut all = Program::default();
        all.alternatives.insert(group.to_string(), variants.iter().map(|(name, _)| name.clone()).collect());
        // A container is shared if it is the same in every variant that has it.
        let shared = |data: &str| {
            let mut known = variants.iter().filter_map(|(_, p)| Some(facts(p, p.tensor(data)?)));
            let first = known.next();
            known.all(|other| Some(&other) == first.as_ref())
        };
        for (name, program) in variants {
            let called = |data: &String| if shared(data) { data.clone() } else { format!("{data}@{name}") };
            for tensor in &program.tensors {
                let data = called(&tensor.data);
                if all.tensor(&data).is_none() {
                    let original = if data == tensor.data { String::new() } else { tensor.data.clone() };
                    all.tensors.push(Tensor { data, original, ..tensor.clone() });
                }
            }
            all.boundary.extend(program.boundary.iter().map(|(data, layout)| (called(data), layout.clone())));
            for (a, b) in &program.ties {
                let tie = (called(a), called(b));
                if !all.ties.contains(&tie) {
                    all.ties.push(tie);
                }
            }
            // Each kernel behind the one before it, so that the order stays that of execution.
            let mut next = 0;
            for kernel in &program.kernels {
                let tensors = kernel.tensors.iter().map(|(data, access)| (called(data), *access)).collect::<Vec<_>>();
                let same = |k: &Kernel| k.plain() == kernel.name && k.key == kernel.key && k.pass == kernel.pass && k.tensors == tensors;
                if let Some(at) = all.kernels.iter().position(same) {
                    all.kernels[at].only.entry(group.to_string()).or_default().insert(name.clone());
                    next = next.max(at + 1);
                    continue;
                }
                let taken = all.kernels.iter().any(|k| k.name == kernel.name);
                let own = if taken { format!("{}@{name}", kernel.name) } else { kernel.name.clone() };
                let original = if taken { kernel.name.clone() } else { String::new() };
                let only = BTreeMap::from([(group.to_string(), BTreeSet::from([name.clone()]))]);
                let kernel = Kernel { name: own, key: kernel.key.clone(), pass: kernel.pass, tensors, only, original };
                all.kernels.insert(next, kernel);
                next += 1;
            }
        }
        // What every variant runs always runs.
        for kernel in &mut all.kernels {
            kernel.only.retain(|_, names| names.len() < variants.len());
        }
        all
    }

    /// Every program that this one stands for, in a form in which the order in which things are told makes no difference.
    pub fn each(&self) -> Vec<Program> {
        let mut combinations: Vec<BTreeMap<&str, &str>> = vec![BTreeMap::new()];
        for (group, variants) in &self.alternatives {
            let with = |known: BTreeMap<_, _>| {
                variants.iter().map(move |v| known.clone().into_iter().chain([(group.as_str(), v.as_str())]).collect())
            };
            combinations = combinations.into_iter().flat_map(with).collect();
        }
        combinations.iter().map(|variants| self.under(variants)).collect()
    }

    /// What runs under these variants, by its names there.
    fn under(&self, variants: &BTreeMap<&str, &str>) -> Program {
        let plain = |data: &String| self.tensor(data).map_or(data.clone(), |t| t.plain().to_string());
        let runs = |k: &&Kernel| k.only.iter().all(|(group, names)| variants.get(group.as_str()).is_some_and(|v| names.contains(*v)));
        let kernels: Vec<&Kernel> = self.kernels.iter().filter(runs).collect();
        let touched: BTreeSet<&String> = kernels.iter().flat_map(|k| k.tensors.iter().map(|(data, _)| data)).collect();
        let kernel = |k: &&Kernel| {
            let tensors = k.tensors.iter().map(|(data, access)| (plain(data), *access)).collect();
            Kernel::new(k.plain(), &k.key, k.pass, tensors)
        };
        let tensor = |t: &Tensor| Tensor { data: t.plain().to_string(), original: String::new(), ..t.clone() };
        let mut one = Program {
            kernels: kernels.iter().map(kernel).collect(),
            tensors: self.tensors.iter().filter(|t| touched.contains(&t.data)).map(tensor).collect(),
            boundary: self.boundary.iter().filter(|(d, _)| touched.contains(d)).map(|(d, l)| (plain(d), l.clone())).collect(),
            ties: self.ties.iter().filter(|(a, b)| touched.contains(a) && touched.contains(b)).map(|(a, b)| (plain(a), plain(b))).collect(),
            alternatives: BTreeMap::new(),
        };
        one.kernels.sort_by(|a, b| a.name.cmp(&b.name));
        one.tensors.sort_by(|a, b| a.data.cmp(&b.data));
        one.ties.sort();
        one
    }

    /// The programs whose choice the records of a store are for: variants of one recipe as one, others each on its own.
    /// Of a variant that was swept several times the last program counts.
    pub fn of_records(store: &Store) -> Vec<(String, Program)> {
        let mut groups: Vec<(String, Vec<(String, Program)>)> = Vec::new();
        let mut alone: Vec<Program> = Vec::new();
        for session in store.sessions() {
            let Some(program) = &session.program else { continue };
            let Some(variant) = &session.variant else {
                if !alone.contains(program) {
                    alone.push(program.clone());
                }
                continue;
            };
            let sizes: Vec<String> = session.sizes.iter().map(|(dim, n)| format!("{dim}={n}")).collect();
            let group = format!("{} {}", variant.of, sizes.join(" "));
            let at = groups.iter().position(|(name, _)| *name == group).unwrap_or_else(|| {
                groups.push((group, Vec::new()));
                groups.len() - 1
            });
            let variants = &mut groups[at].1;
            match variants.iter_mut().find(|(name, _)| *name == variant.name) {
                Some((_, known)) => known.clone_from(program),
                None => variants.push((variant.name.clone(), program.clone())),
            }
        }
        let single = alone.len() == 1 && groups.is_empty();
        let named = |(n, program): (usize, Program)| (if single { "program".into() } else { format!("program {}", n + 1) }, program);
        let merged = groups.into_iter().map(|(name, variants)| (name, Program::among(GROUP, &variants)));
        merged.chain(alone.into_iter().enumerate().map(named)).collect()
    }
}

/// The group of alternatives that whole programs are.
pub const GROUP: &str = "program";
