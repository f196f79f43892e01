//! What is refused: records that cannot be, and certificates that are not as they were written.

use super::brute::brute_force;
use super::synthetic::{Random, any, measured, program, session};
use layouts::alternatives::GROUP;
use layouts::certificate::{Certificate, CertificateError};
use layouts::count::{Effort, rounded, within};
use layouts::exact::{self, SearchLimits};
use layouts::problem::{Access, Kernel, SelectionProblem, Tensor};
use layouts::record::RecipeVariant;
use layouts::relayout::RelayoutCosts;
use layouts::robust::robustness;
use layouts::selection::{Method, exactly, select};
use layouts::verify::{VerifyError, swept, verify};
use layouts::{Model, SelectError, Store};
use sdfg::config::KernelConfig;
use sdfg::{Direction, Layout};
use std::collections::BTreeMap;

fn model(program: &SelectionProblem, store: &Store) -> Result<Model, SelectError> {
    Model::new(program, store, &RelayoutCosts::new(program, store))
}

fn certificate(program: &SelectionProblem, store: &Store) -> Certificate {
    let costs = RelayoutCosts::new(program, store);
    let model = Model::new(program, store, &costs).unwrap();
    let optimum = exact::solve(&model, SearchLimits::default());
    let estimated = exactly(&model, &costs, &optimum).unmeasured().count();
    Certificate::new(program, store, &model, &optimum.into(), estimated)
}

#[test]
fn a_certificate_survives_its_file_and_nothing_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("certificate.json");
    let (program, store) = any(11);
    let written = certificate(&program, &store).about(vec!["records.jsonl".into()]);
    let text = written.text().unwrap();
    std::fs::write(&path, &text).unwrap();
    assert_eq!(Certificate::read(&path).unwrap(), written);
    for cut in (0..text.len() - 2).step_by(97) {
        std::fs::write(&path, &text[..cut]).unwrap();
        assert!(matches!(Certificate::read(&path), Err(CertificateError::Format { .. })), "cut at {cut}");
    }
    // Any digit changed is noticed.
    let mut random = Random(3);
    let digits: Vec<usize> = text.bytes().enumerate().filter(|(_, b)| b.is_ascii_digit()).map(|(n, _)| n).collect();
    for _ in 0..200 {
        let at = *random.pick(&digits);
        let mut bytes = text.clone().into_bytes();
        bytes[at] = if bytes[at] == b'9' { b'1' } else { bytes[at] + 1 };
        std::fs::write(&path, &bytes).unwrap();
        assert!(Certificate::read(&path).is_err(), "digit {at}");
    }
    std::fs::write(&path, text.replacen("\"format\":2", "\"format\":9", 1)).unwrap();
    assert!(matches!(Certificate::read(&path), Err(CertificateError::Version { found: 9, .. })));
}

/// Even with its checksum made anew, a certificate cannot claim what its records do not say.
#[test]
fn forged_claims_are_refused() {
    let (program, store) = program(5);
    let honest = certificate(&program, &store);
    assert!(verify(&honest, &store).is_ok());
    let lower = Certificate { total_ps: honest.total_ps - 1_000_000_000, ..honest.clone() };
    assert!(matches!(verify(&lower, &store), Err(VerifyError::Price { .. })));
    let mut unproven = honest.clone();
    unproven.steps[0].parts.clear();
    assert!(matches!(verify(&unproven, &store), Err(VerifyError::Misfit(_))));
    let mut other = store.resampled(1);
    other.begin(session("9")).unwrap();
    let kernel = &program.kernels[0];
    let config = store.of(&kernel.key).next().unwrap().config.clone();
    let mut faster = measured(&kernel.key, config, 0.25);
    faster.round = 9;
    other.append(faster).unwrap();
    assert_eq!(verify(&honest, &other), Err(VerifyError::OtherMeasurements));
    // A dearer choice is no optimum, whatever it says.
    for (data, layout) in &honest.choices[0].layouts {
        for kernel in honest.choices[0].kernels.values() {
            let Some(wanted) = kernel.layouts.get(data).filter(|l| *l != layout) else { continue };
            let mut forged = honest.clone();
            forged.choices[0].layouts.insert(data.clone(), wanted.clone());
            if let Err(VerifyError::Price { found, .. }) = verify(&forged, &store) {
                forged.total_ps = found as i64;
                forged.bound_ps = found as i64;
                assert!(found <= honest.total_ps.into() || verify(&forged, &store).is_err());
            }
        }
    }
}

#[test]
fn choices_within_a_limit_are_counted_exactly() {
    for seed in 0..150 {
        let (program, store) = any(seed);
        let all = brute_force(&program, &store);
        let model = model(&program, &store).unwrap();
        for above in [0, 3, 8] {
            let limit = (all[0] as i64 + above) * 1_000_000_000;
            let expected = all.iter().filter(|ms| **ms <= all[0] + above as f64).count() as u128;
            let count = within(&model, limit, Effort::BRIEF, &|_, _| true);
            assert_eq!((count.least, count.most), (expected, Some(expected)), "seed {seed}, {above} ms above");
            for (all, one) in [(1, 1), (3000, 1000), (30_000, 10_000)] {
                let part = within(&model, limit, Effort { all, one, sets: usize::MAX }, &|_, _| true);
                let brackets = part.least <= expected && part.most.is_none_or(|most| most >= expected);
                assert!(
                    brackets && part.most.is_none() == (part.uncounted > 0),
                    "seed {seed}, {above} ms above, {all} additions: {part:?}"
                );
            }
            let few = within(&model, limit, Effort { sets: 1, ..Effort::BRIEF }, &|_, _| true);
            assert!(few.least <= expected && few.most.is_none_or(|most| most >= expected), "seed {seed}: {few:?}");
            assert_eq!(few.most.is_none(), few.uncounted > 0, "seed {seed}: {few:?}");
            let stopped = within(&model, limit, Effort::BRIEF, &|_, _| false);
            assert_eq!((stopped.least, stopped.most, stopped.uncounted), (0, None, count.combinations));
            for step in [1, 700_000_000, 3_000_000_000] {
                let between = rounded(&model, limit, step).unwrap();
                let brackets = between.least <= expected && between.most.unwrap() >= expected;
                assert!(brackets, "seed {seed}, {above} ms above, steps of {step} ps: {between:?}");
            }
        }
    }
}

#[test]
fn times_without_spread_make_a_sure_choice() {
    let (program, store) = any(8);
    let model = model(&program, &store).unwrap();
    let optimum = exact::solve(&model, SearchLimits::default());
    let sure = robustness(&program, &store, &model, &optimum, 10, SearchLimits::default(), &|_| true).unwrap();
    assert_eq!((sure.optimal, sure.worst_regret_ms, sure.proven), (1.0, 0.0, 10));
}

/// One kernel that reads `x`, with samples of two configurations that overlap.
#[test]
fn times_with_spread_do_not() {
    let layout = |dims: [&str; 2]| Layout::of(&dims);
    let mut store = Store::in_memory();
    store.begin(session("0")).unwrap();
    for (dims, samples) in [(["a", "b"], vec![1.0, 5.0, 3.0]), (["b", "a"], vec![2.0, 4.0, 3.5])] {
        let config = KernelConfig { layouts: BTreeMap::from([("x".into(), layout(dims))]), ..KernelConfig::default() };
        let mut record = measured("k", config, 1.0);
        record.outcome = layouts::Outcome::Measured { samples };
        store.append(record).unwrap();
    }
    let tensor = Tensor { data: "x".into(), natural: layout(["a", "b"]), bytes: 8, ..Tensor::default() };
    let kernels = vec![Kernel::new("k", "k", Direction::Forward, vec![("x".into(), Access::Read)])];
    let program = SelectionProblem { kernels, tensors: vec![tensor], ..SelectionProblem::default() };
    let model = model(&program, &store).unwrap();
    let optimum = exact::solve(&model, SearchLimits::default());
    let unsure = robustness(&program, &store, &model, &optimum, 200, SearchLimits::default(), &|_| true).unwrap();
    assert!(unsure.optimal > 0.3 && unsure.optimal < 0.9, "{unsure:?}");
    assert!(unsure.worst_regret_ms > 0.5 && unsure.worst_regret_ms <= 3.0, "{unsure:?}");
}

#[test]
fn programs_that_compute_the_same_are_one_decision() {
    for seed in 0..60 {
        // Two programs over one store: kernels and containers of equal names are now the same, now not.
        let (first, store) = program(seed);
        let mut second = first.clone();
        // One whose result nobody reads.
        let read = |data: &String| first.kernels.iter().any(|k| k.tensors.contains(&(data.clone(), Access::Read)));
        let unread: Vec<usize> =
            (0..first.kernels.len()).filter(|n| first.kernels[*n].tensors.last().is_some_and(|(d, _)| !read(d))).collect();
        second.kernels.remove(unread[seed as usize % unread.len()]);
        if seed % 3 == 0 {
            second.ties.clear();
        }
        if seed % 4 == 0 {
            second.boundary.clear();
        }
        let among = SelectionProblem::among(&[("one".into(), first.clone()), ("two".into(), second.clone())]);
        // Taken apart again, they are what was put together; and with another kernel in one of them they were never swept.
        assert_eq!(among.each(), [first.each(), second.each()].concat(), "seed {seed}");
        let mut records = store.resampled(0);
        for (n, program) in [&second, &first].into_iter().enumerate() {
            records.begin(layouts::Session { program: Some(program.clone()), ..session(&format!("swept {n}")) }).unwrap();
        }
        assert_eq!(swept(&certificate(&among, &store), &records), Ok(()), "seed {seed}");
        let mut forged = certificate(&among, &store);
        forged.program.kernels[0].key = "never swept".into();
        assert_eq!(swept(&forged, &records), Err(VerifyError::OtherProgram));
        let total = |program: &SelectionProblem| select(program, &store, Method::Exact, SearchLimits::default()).unwrap();
        let chosen = total(&among);
        let whole = total(&first).total_ms.min(total(&second).total_ms);
        assert!(chosen.total_ms <= whole && (among.alternatives.len() > 1 || chosen.total_ms == whole), "seed {seed}");
        assert!(verify(&certificate(&among, &store), &store).is_ok(), "seed {seed}");
        // Spelled out, it speaks of the names in its own program.
        let program = among.under(&chosen.configuration.variants);
        assert!(chosen.configuration.kernels.keys().all(|k| program.kernel(k).is_some()));
        assert!(chosen.configuration.layouts.keys().all(|d| program.tensor(d).is_some()));
    }
}

#[test]
fn a_variant_that_was_not_swept_is_left_out_by_name() {
    let (first, store) = program(3);
    let mut second = first.clone();
    second.kernels[0].key = "never swept".into();
    let among = SelectionProblem::among(&[("one".into(), first.clone()), ("two".into(), second.clone())]);
    let chosen = select(&among, &store, Method::Exact, SearchLimits::default()).unwrap();
    assert_eq!(chosen.configuration.variants[GROUP], "one");
    let certificate = certificate(&among, &store);
    assert_eq!(certificate.scope.left_out, [("two".to_string(), second.kernels[0].name.clone())]);
    assert_eq!(verify(&certificate, &store).map(|c| c.total_ps), Ok(certificate.total_ps));
    assert!(matches!(select(&second, &store, Method::Exact, SearchLimits::default()), Err(SelectError::Unmeasured { .. })));
}

#[test]
fn records_know_which_programs_are_alternatives() {
    let (program, _) = program(1);
    let mut store = Store::in_memory();
    for (n, (of, name)) in [("mlp", "separate"), ("mlp", "stacked"), ("mlp, unfused", "unfused")].iter().enumerate() {
        let variant = Some(RecipeVariant { of: of.to_string(), name: name.to_string() });
        let mut program = program.clone();
        program.kernels[0].key = name.to_string();
        store.begin(layouts::Session { program: Some(program), variant, ..session(&n.to_string()) }).unwrap();
    }
    let found = SelectionProblem::of_records(&store);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].1.alternatives[GROUP], ["separate", "stacked"]);
    assert!(found[1].1.alternatives.is_empty());
}

#[test]
fn records_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.jsonl");
    let mut store = Store::open(&path).unwrap();
    store.begin(session("0")).unwrap();
    store.append(measured("k", KernelConfig::default(), 1.25)).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    for wrong in ["-1.25", "null", "1e999", "NaN"] {
        std::fs::write(&path, text.replace("1.25", wrong)).unwrap();
        let error = Store::read(&path).unwrap_err().to_string();
        assert!(error.contains(":2:"), "{wrong}: {error}");
    }
    // Longer than exact arithmetic allows.
    let (program, mut store) = program(2);
    let key = program.kernels[0].key.clone();
    let config = store.of(&key).next().unwrap().config.clone();
    let mut endless = measured(&key, config, 1e12);
    endless.round = 9;
    store.append(endless).unwrap();
    assert!(matches!(model(&program, &store), Err(SelectError::Time { .. })));
}

#[test]
fn contradictory_ties_are_refused() {
    let (mut program, store) = program(2);
    let (a, b) = (program.tensors[0].clone(), program.tensors[1].data.clone());
    let natural = a.natural.clone();
    let mut turned = natural.clone();
    turned.pieces.reverse();
    program.tensors[1].natural = natural.clone();
    program.ties = vec![(a.data.clone(), b.clone())];
    program.boundary = BTreeMap::from([(a.data.clone(), natural), (b.clone(), turned)]);
    assert!(matches!(model(&program, &store), Err(SelectError::Boundary { .. })));
    program.tensors[1].natural = Layout::of(&["other"]);
    assert!(matches!(model(&program, &store), Err(SelectError::Tie { .. })));
}
