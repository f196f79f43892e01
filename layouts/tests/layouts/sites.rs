//! Programs that differ in places: every combination of what they have there is a choice.

use super::brute::{brute_force, running};
use super::synthetic::{program, programs, session};
use layouts::alternatives::GROUP;
use layouts::certificate::Certificate;
use layouts::exact::{self, SearchLimits};
use layouts::problem::Variants;
use layouts::problem::{Access, Kernel, SelectionProblem, Tensor};
use layouts::relayout::RelayoutCosts;
use layouts::selection::exactly;
use layouts::verify::{VerifyError, swept, verify};
use layouts::{Method, Model, Store, select};
use std::collections::{BTreeMap, BTreeSet};

fn combinations(program: &SelectionProblem) -> Vec<Variants> {
    let with = |found: Vec<Variants>, (group, names): (&String, &Vec<String>)| {
        let each =
            |v: &Variants| names.iter().map(|n| v.clone().into_iter().chain([(group.clone(), n.clone())]).collect()).collect::<Vec<_>>();
        found.iter().flat_map(each).collect()
    };
    let all = program.alternatives.iter().fold(vec![Variants::new()], with);
    all.into_iter().filter(|variants| program.finds(variants)).collect()
}

fn least(program: &SelectionProblem, store: &Store) -> f64 {
    select(program, store, Method::Exact, SearchLimits::default()).unwrap().total_ms
}

/// What runs can run: in this order every container is written, once, before it is read, and no name means two things.
fn runs(program: &SelectionProblem, variants: &Variants) {
    let given = |data: &String| program.kernels.iter().all(|k| k.tensors.iter().all(|(d, a)| d != data || *a == Access::Read));
    let mut written: BTreeSet<&String> = BTreeSet::new();
    let mut names: BTreeSet<&str> = BTreeSet::new();
    let mut meant: BTreeMap<&str, &String> = BTreeMap::new();
    for kernel in running(program, variants) {
        assert!(names.insert(kernel.plain()), "two kernels `{}`", kernel.plain());
        for (data, access) in &kernel.tensors {
            assert_eq!(*meant.entry(program.tensor(data).unwrap().plain()).or_insert(data), data);
            assert!(*access != Access::Read || given(data) || written.contains(data), "`{}` reads `{data}` too early", kernel.name);
        }
        for (data, _) in kernel.tensors.iter().filter(|(_, access)| *access != Access::Read) {
            assert!(written.insert(data), "`{data}` is written twice");
        }
    }
    let all: BTreeSet<&String> = program.boundary.keys().filter(|data| !given(data)).collect();
    assert!(all.is_subset(&written));
}

#[test]
fn every_combination_of_what_sites_have_is_a_program() {
    let (mut sites, mut gained) = (0, 0);
    for seed in 0..400 {
        let (programs, store) = programs(seed);
        let among = SelectionProblem::among(&programs);
        combinations(&among).iter().for_each(|variants| runs(&among, variants));
        // What was put together is among them, whole.
        for (name, program) in &programs {
            if programs.len() > 1 {
                assert_eq!(vec![among.under(&among.programs[name])], program.each(), "seed {seed}");
            }
        }
        let wholes = programs.iter().map(|(_, p)| least(p, &store)).fold(f64::INFINITY, f64::min);
        let chosen = least(&among, &store);
        assert!(chosen <= wholes, "seed {seed}");
        assert_eq!(chosen, brute_force(&among, &store)[0], "seed {seed}");
        sites += usize::from(among.alternatives.len() > 1);
        gained += usize::from(chosen < wholes);
    }
    assert!(sites > 20 && gained > 5, "the programs must show something: {sites}, {gained}");
}

#[test]
fn a_choice_by_sites_is_certified_and_one_by_other_sites_is_not() {
    let mut several = 0;
    for seed in 0..200 {
        let (programs, mut store) = programs(seed);
        for (n, (_, program)) in programs.iter().enumerate() {
            store.begin(layouts::Session { program: Some(program.clone()), ..session(&format!("swept {n}")) }).unwrap();
        }
        let among = SelectionProblem::among(&programs);
        let costs = RelayoutCosts::new(&among, &store);
        let model = Model::new(&among, &store, &costs).unwrap();
        let optimum = exact::solve(&model, SearchLimits::default());
        let estimated = exactly(&model, &costs, &optimum).unmeasured().count();
        let certificate = Certificate::new(&among, &store, &model, &optimum.into(), estimated);
        assert_eq!(swept(&certificate, &store), Ok(()), "seed {seed}");
        let confirmed = verify(&certificate, &store).unwrap();
        assert_eq!((confirmed.total_ps, confirmed.bound_ps), (certificate.total_ps, certificate.total_ps), "seed {seed}");
        if among.alternatives.len() < 2 {
            continue;
        }
        several += 1;
        // A kernel that is said to run whatever its site does, and one that is said to belong to another site.
        let guarded = among.kernels.iter().position(|k| !k.only.is_empty()).unwrap();
        let mut forged = certificate.clone();
        forged.program.kernels[guarded].only.clear();
        assert!(swept(&forged, &store).is_err(), "seed {seed}");
        let own = among.kernels[guarded].only.keys().next().unwrap();
        let other = among.alternatives.keys().find(|group| *group != own).unwrap();
        let mut forged = certificate.clone();
        let runs = among.programs.values().filter(|v| among.kernels[guarded].only[own].contains(&v[own])).map(|v| v[other].clone());
        forged.program.kernels[guarded].only = BTreeMap::from([(other.clone(), runs.collect())]);
        assert!(swept(&forged, &store).is_err(), "seed {seed}");
        // A reader before its writer.
        let mut forged = certificate.clone();
        forged.program.kernels.reverse();
        assert!(matches!(swept(&forged, &store), Err(VerifyError::Misfit(_))), "seed {seed}");
    }
    assert!(several > 10, "{several}");
}

fn kernel(name: &str, reads: &[&str], writes: &[&str]) -> Kernel {
    let of = |data: &[&str], access: Access| data.iter().map(|d| (d.to_string(), access)).collect::<Vec<_>>();
    let key = format!("{name}:{}>{}", reads.join(","), writes.join(","));
    Kernel::new(name, &key, sdfg::Direction::Forward, [of(reads, Access::Read), of(writes, Access::Write)].concat())
}

/// A program of these kernels; what containers hold is what their names say.
fn of(kernels: &[Kernel]) -> SelectionProblem {
    let mut program = SelectionProblem { kernels: kernels.to_vec(), ..SelectionProblem::default() };
    for (data, _) in kernels.iter().flat_map(|k| &k.tensors) {
        if program.tensor(data).is_none() {
            program.tensors.push(Tensor { data: data.clone(), meaning: data.clone(), ..Tensor::default() });
        }
    }
    program
}

fn among(programs: &[&[Kernel]]) -> SelectionProblem {
    let named: Vec<(String, SelectionProblem)> = programs.iter().enumerate().map(|(n, kernels)| (format!("p{n}"), of(kernels))).collect();
    let found = SelectionProblem::among(&named);
    combinations(&found).iter().for_each(|variants| runs(&found, variants));
    found
}

#[test]
fn compositions_that_do_not_touch_are_sites_of_their_own() {
    let (a, b, c, d) = (kernel("a", &["x"], &["s"]), kernel("b", &["s"], &["t"]), kernel("c", &["t"], &["u"]), kernel("d", &["u"], &["y"]));
    let (ab, cd) = (kernel("b", &["x"], &["t"]), kernel("d", &["t"], &["y"]));
    let found = among(&[&[a.clone(), b.clone(), c.clone(), d.clone()], &[ab.clone(), cd.clone()]]);
    assert_eq!(found.alternatives.keys().collect::<Vec<_>>(), ["site:a", "site:b", "site:c", "site:d"]);
    assert!(found.alternatives.values().all(|variants| variants == &["p0", "p1"]));
    assert_eq!(kernels(&found), [vec!["ab", "c", "d"], vec!["ab", "cd"], vec!["a", "b", "c", "d"], vec!["a", "b", "cd"]].map(named).into());
    let of = |wanted: [&str; 4]| found.alternatives.keys().cloned().zip(wanted.map(String::from)).collect::<Variants>();
    assert_eq!(found.called(&of(["p1", "p1", "p0", "p0"])), "p0, a as in p1, b as in p1");
    assert_eq!(found.called(&found.programs["p1"]), "p1");
    // What `b` reads is absent where only `ab` could make it.
    assert!(!found.finds(&of(["p1", "p0", "p0", "p0"])));
    // One that overlaps both is another value of both: none of its parts can run with it.
    let bc = kernel("c", &["s"], &["u"]);
    let found = among(&[&[a.clone(), b, c, d.clone()], &[ab, cd], &[a, bc, d]]);
    let more = [vec!["ab", "c", "d"], vec!["ab", "cd"], vec!["a", "b", "c", "d"], vec!["a", "b", "cd"], vec!["a", "bc", "d"]];
    assert_eq!(kernels(&found), more.map(named).into());
}

fn named(kernels: Vec<&str>) -> BTreeSet<String> {
    kernels.into_iter().map(String::from).collect()
}

/// The kernels of every choice in which none runs for nothing, by what is in their keys.
fn kernels(program: &SelectionProblem) -> BTreeSet<BTreeSet<String>> {
    let letters = |k: &Kernel| {
        let (reads, writes) = k.key.split_once(':').and_then(|(_, of)| of.split_once('>')).unwrap();
        // `x > s > t > u > y` are the steps `a` to `d`.
        let place = |data: &str| "xstuy".find(data).unwrap();
        "abcd"[place(reads)..place(writes)].to_string()
    };
    let sets = combinations(program).into_iter().map(|v| running(program, &v).map(letters).collect::<BTreeSet<_>>());
    sets.filter(|set| set.iter().map(String::len).sum::<usize>() == 4).collect()
}

/// Either composition alone can be run; both would wait for each other.
#[test]
fn compositions_that_would_wait_for_one_another_are_one_site() {
    let (a, b) = (kernel("a", &["x"], &["s"]), kernel("b", &["s"], &["t"]));
    let (c, d) = (kernel("c", &["z"], &["u"]), kernel("d", &["u"], &["v"]));
    // `a` with `d`, which needs `u`; `c` with `b`, which needs `s`.
    let (ad, cb) = (kernel("ad", &["x", "u"], &["s", "v"]), kernel("cb", &["z", "s"], &["u", "t"]));
    let separate = [a.clone(), b.clone(), c.clone(), d.clone()];
    let found = among(&[&separate, &[c.clone(), ad, b], &[a, cb, d]]);
    assert_eq!(found.alternatives.len(), 1);
}

/// Weights stacked in one container, against kernels that are composed where they are not.
#[test]
fn stacking_is_a_value_of_the_site_that_it_overlaps() {
    let (q, k) = (kernel("q", &["x", "wq"], &["qq"]), kernel("k", &["x", "wk"], &["kk"]));
    let (bias, norm, both) = (kernel("bias", &["qq"], &["qb"]), kernel("norm", &["qb", "kk"], &["n"]), kernel("tail", &["n"], &["y"]));
    let head = kernel("head", &["in"], &["x"]);
    let composed = kernel("bias", &["x", "wq"], &["qb"]);
    let stacked = [kernel("qk", &["x", "w"], &["qk"]), kernel("bias", &["qk"], &["qb"]), kernel("norm", &["qk", "qb"], &["n"])];
    let (tail, top) = (kernel("tail", &["n"], &["z", "y"]), kernel("top", &["z"], &["o"]));
    let found = among(&[
        &[head.clone(), q, k.clone(), bias, norm.clone(), both, kernel("top", &["y"], &["o"])],
        &[head.clone(), composed, k, norm, tail.clone(), top.clone()],
        &[&[head][..], &stacked, &[tail, top]].concat(),
    ]);
    // What the caller gives is another thing where weights are stacked, and what reads it runs only there.
    assert_eq!(found.alternatives["site:caller"], ["p0", "p2"]);
    assert_eq!(found.alternatives["site:bias"], ["p0", "p1", "p2"]);
    let (mut stackings, mut compositions) = (0, 0);
    for variants in combinations(&found) {
        let runs: BTreeSet<&str> = running(&found, &variants).map(|k| k.key.as_str()).collect();
        let is_stacked = variants["site:caller"] == "p2";
        assert!(!is_stacked || runs.iter().all(|k| !k.contains("wq") && !k.contains("wk")), "{runs:?}");
        assert!(!is_stacked || runs.is_superset(&BTreeSet::from(["head:in>x", "qk:x,w>qk", "bias:qk>qb", "norm:qk,qb>n"])), "{runs:?}");
        assert!(is_stacked || !runs.contains("qk:x,w>qk"), "{runs:?}");
        stackings += usize::from(is_stacked);
        compositions += usize::from(runs.contains("bias:x,wq>qb"));
    }
    assert!(stackings > 1 && compositions > 1, "{stackings}, {compositions}");
}

/// As where weights are stacked: what was one of two summands is their sum, under the same name.
#[test]
fn containers_that_hold_something_else_are_not_exchanged() {
    let top = kernel("top", &["d"], &["y"]);
    let separate = [kernel("a", &["x"], &["s"]), kernel("b", &["s", "x"], &["d"]), top.clone()];
    let other = [kernel("s", &["x"], &["d"]), kernel("sum", &["d", "x"], &["e"]), kernel("top", &["e"], &["y"])];
    let programs = |mark: &str| {
        let mut second = of(&other);
        second.tensors.iter_mut().filter(|t| t.data == "d").for_each(|t| t.meaning = mark.into());
        vec![("p0".to_string(), of(&separate)), ("p1".to_string(), second)]
    };
    let keys = |found: &SelectionProblem| -> BTreeSet<Vec<String>> {
        combinations(found).iter().map(|v| running(found, v).map(|k| k.key.clone()).collect()).collect()
    };
    let crossed = |found: &SelectionProblem| keys(found).iter().any(|all| all.contains(&"s:x>d".into()) && all.contains(&"top:d>y".into()));
    let found = SelectionProblem::among(&programs("d"));
    assert!(crossed(&found));
    let found = SelectionProblem::among(&programs("a summand of it"));
    combinations(&found).iter().for_each(|variants| runs(&found, variants));
    assert!(!crossed(&found) && found.tensor("d@p1").is_some());
    // Where it is not known of one container what it holds, programs are exchanged as wholes.
    let found = SelectionProblem::among(&programs(""));
    assert_eq!(found.alternatives, BTreeMap::from([(GROUP.to_string(), vec!["p0".to_string(), "p1".to_string()])]));
    assert_eq!(combinations(&found).len(), 2);
}

#[test]
fn what_a_kernel_keeps_inside_is_no_container_beside_it() {
    let apart = [kernel("a", &["x"], &["t"]), kernel("b", &["t"], &["y"])];
    let mut composed = kernel("b", &["x"], &["y"]);
    // `a` may run for nothing.
    assert_eq!(combinations(&among(&[&apart, &[composed.clone()]])).len(), 3);
    composed.names.insert("t".into(), "kept inside".into());
    assert_eq!(combinations(&among(&[&apart, &[composed]])).len(), 2);
}

#[test]
fn equal_programs_leave_no_choice() {
    let (program, store) = program(1);
    let found = SelectionProblem::among(&[("one".into(), program.clone()), ("two".into(), program.clone())]);
    assert!(found.alternatives.is_empty() && found.programs.len() == 2);
    assert_eq!(least(&found, &store), least(&program, &store));
}
