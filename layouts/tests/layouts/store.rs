//! Records files: killed writers, damage, merging.

use super::synthetic::{measured, session};
use layouts::measure::space::relayout_config;
use layouts::record::{Measurement, Outcome, Session};
use layouts::store::{Store, StoreError};
use proptest::prelude::*;
use sdfg::Layout;
use sdfg::config::{KernelConfig, Knobs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn config(n: u64) -> KernelConfig {
    KernelConfig { layouts: BTreeMap::from([("x".into(), Layout::of(&["a", "b"]))]), knobs: Knobs::default().with("v", n) }
}

fn written(path: &Path, records: &[Measurement]) {
    let mut store = Store::open(path).unwrap();
    store.begin(session("1")).unwrap();
    for record in records {
        store.append(record.clone()).unwrap();
    }
}

#[test]
fn a_file_cut_anywhere_loses_at_most_the_line_that_was_cut() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.jsonl");
    let records: Vec<Measurement> = (0..4).map(|n| measured("k", config(n), 0.1 * n as f64 + 1.0 / 3.0)).collect();
    written(&path, &records);
    let whole = std::fs::read(&path).unwrap();
    for cut in 0..=whole.len() {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let lines = whole[..cut].iter().filter(|b| **b == b'\n').count();
        assert_eq!(Store::read(&path).unwrap().all().count(), lines.saturating_sub(1));
        // A new session continues cleanly after the cut.
        let mut store = Store::open(&path).unwrap();
        store.begin(session("2")).unwrap();
        store.append(measured("k", config(9), 2.0)).unwrap();
        drop(store);
        let reread = Store::read(&path).unwrap();
        assert_eq!(reread.all().count(), lines.saturating_sub(1) + 1);
        for record in records.iter().take(lines.saturating_sub(1)) {
            assert_eq!(reread.get("k", &record.config).unwrap().outcome, record.outcome);
        }
    }
}

#[test]
fn damage_in_the_middle_is_an_error_that_names_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.jsonl");
    written(&path, &[measured("k", config(0), 1.0), measured("k", config(1), 2.0)]);
    let text = std::fs::read_to_string(&path).unwrap();
    for damage in ["{\"line\":", "[]", "{\"line\":\"measurement\"}", "\u{0}\u{0}"] {
        let mut lines: Vec<&str> = text.lines().collect();
        lines[1] = damage;
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        match Store::open(&path) {
            Err(error @ StoreError::Line { line: 2, .. }) => assert!(error.to_string().contains("records.jsonl:2:")),
            other => panic!("{other:?}"),
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), lines.join("\n") + "\n", "a damaged file is left as it is");
    }
    let orphan = text.lines().skip(1).collect::<Vec<_>>().join("\n") + "\n";
    std::fs::write(&path, orphan).unwrap();
    assert!(matches!(Store::read(&path), Err(StoreError::Line { line: 1, .. })));
}

/// Two that write would write into each other's lines; who only reads disturbs nobody.
#[test]
fn records_are_written_by_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.jsonl");
    let held = Store::open(&path).unwrap();
    assert!(matches!(Store::open(&path), Err(StoreError::Busy { .. })));
    assert!(Store::read(&path).is_ok());
    drop(held);
    assert!(Store::open(&path).is_ok());
}

/// A recipe or a plan is not to lose the line that could not be read.
#[test]
fn files_of_another_kind_are_no_damaged_records() {
    let folder = tempfile::tempdir().unwrap();
    for text in ["model: mlp\ninputs:\n", "{\n  \"format\": 3\n}\n"] {
        let path = folder.path().join("file");
        std::fs::write(&path, text).unwrap();
        assert!(matches!(Store::read(&path), Err(StoreError::Foreign { .. })), "{text}");
    }
}

#[test]
fn times_of_two_machines_do_not_mix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.jsonl");
    written(&path, &[measured("k", config(0), 1.0)]);
    let cold = Session { cache: layouts::record::CacheState::Cold, ..session("3") };
    assert!(matches!(Store::open(&path).unwrap().begin(cold), Err(StoreError::Machine { .. })));
    let mut store = Store::open(&path).unwrap();
    // Files from before caches were told apart are of warm ones.
    let text = std::fs::read_to_string(&path).unwrap();
    let old = text.replace(",\"cache\":\"warm\"", "");
    assert!(old != text);
    std::fs::write(&path, old).unwrap();
    assert_eq!(Store::read(&path).unwrap().cache(), layouts::record::CacheState::Warm);
    let other = Session { threads: 3, ..session("2") };
    assert!(matches!(store.begin(other), Err(StoreError::Machine { .. })));
}

#[test]
fn an_identical_configuration_has_the_time_of_its_twin_unless_that_was_wrong() {
    let mut store = Store::in_memory();
    store.begin(session("1")).unwrap();
    let first = measured("k", config(0), 1.5);
    let mut twin = measured("k", config(1), 0.0);
    (twin.identity, twin.outcome) = (first.identity.clone(), Outcome::Identical);
    store.append(twin.clone()).unwrap();
    assert_eq!(store.ms(&twin), None);
    store.append(first.clone()).unwrap();
    assert_eq!(store.ms(&twin), Some(1.5));
    store.append(Measurement { outcome: Outcome::Mismatch, ..first }).unwrap();
    assert_eq!(store.ms(&twin), None);
}

#[test]
fn the_table_has_a_row_for_every_record_and_quotes_what_must_be() {
    let mut store = Store::in_memory();
    store.begin(session("1")).unwrap();
    store.append(measured("k", config(0), 1.5)).unwrap();
    let natural = Layout::of(&["a", "b"]);
    store.append(measured("relayout:x", relayout_config(&natural, &Layout::of(&["b", "a"])), 0.5)).unwrap();
    let failed = Outcome::Failed { reason: "he said \"no\", twice".into() };
    store.append(Measurement { outcome: failed, ..measured("k", config(1), 0.0) }).unwrap();
    let mut csv = Vec::new();
    store.csv(&mut csv).unwrap();
    let text = String::from_utf8(csv).unwrap();
    let rows: Vec<&str> = text.lines().collect();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[1], "k,k,\"x[a,b] v=0\",measured,0,1.5,,0.5,1.5,,,1");
    assert!(rows[2].contains("\"he said \"\"no\"\", twice\""));
}

#[test]
fn what_was_borrowed_is_drawn_again_together_with_what_lent_it() {
    let mut store = Store::in_memory();
    store.begin(session("1")).unwrap();
    let times = Outcome::Measured { samples: (1..=9).map(f64::from).collect() };
    let record = |kernel: &str, mark: &str, lender: Option<&str>| Measurement {
        mark: mark.into(),
        lender: lender.map(String::from),
        outcome: times.clone(),
        ..measured(kernel, config(0), 1.0)
    };
    for record in [record("q", "same", None), record("k", "same", Some("q")), record("alone", "other", None), record("old", "", None)] {
        store.append(record).unwrap();
    }
    let drawn = |seed: u64, kernel: &str| store.resampled(seed).get(kernel, &config(0)).unwrap().outcome.clone();
    for seed in 0..8 {
        assert_eq!(drawn(seed, "q"), drawn(seed, "k"));
    }
    for apart in ["alone", "old"] {
        assert!((0..8).any(|seed| drawn(seed, "q") != drawn(seed, apart)), "{apart}");
    }
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        prop::collection::vec(0.001f64..1e3, 1..4).prop_map(|samples| Outcome::Measured { samples }),
        (0.0f64..9.0).prop_map(|bound_ms| Outcome::Raced { bound_ms, reason: "slower".into() }),
        (0.0f64..9.0).prop_map(|bound_ms| Outcome::Bounded { bound_ms, reason: "slower".into() }),
        Just(Outcome::Identical),
        Just(Outcome::Mismatch),
        Just(Outcome::Failed { reason: "no".into() }),
    ]
}

fn record() -> impl Strategy<Value = Measurement> {
    (0u64..4, 0u64..3, 0u32..2, prop::option::of(0.0f64..2.0), outcome()).prop_map(|(n, identity, round, check, outcome)| Measurement {
        identity: identity.to_string(),
        mark: String::new(),
        lender: None,
        round,
        check,
        outcome,
        ..measured("k", config(n), 1.0)
    })
}

proptest! {
    #[test]
    fn shards_merge_into_the_same_contents_in_any_order(records in prop::collection::vec((record(), 0usize..3), 0..14)) {
        let folder = tempfile::tempdir().unwrap();
        let mut paths: Vec<PathBuf> = (0..3).map(|n| folder.path().join(format!("{n}.jsonl"))).collect();
        for (n, path) in paths.iter().enumerate() {
            let mut store = Store::open(path).unwrap();
            store.begin(session(&n.to_string())).unwrap();
            for (record, _) in records.iter().filter(|(_, shard)| *shard == n) {
                store.append(record.clone()).unwrap();
            }
        }
        let contents = |store: &Store| -> Vec<(Measurement, Option<u64>)> {
            store.all().map(|m| (m.clone(), store.ms(m).map(f64::to_bits))).collect()
        };
        let store = Store::merge(&paths).unwrap();
        let merged = contents(&store);
        let written = |store: &Store| {
            let mut bytes = Vec::new();
            store.write_to(&mut bytes).unwrap();
            bytes
        };
        let file = folder.path().join("merged.jsonl");
        std::fs::write(&file, written(&store)).unwrap();
        let again = Store::read(&file).unwrap();
        prop_assert_eq!(&contents(&again), &merged);
        prop_assert_eq!(again.sessions().count(), 3);
        // Merged once more with its parts, it is what it was.
        paths.push(file);
        prop_assert_eq!(written(&Store::merge(&paths).unwrap()), written(&store));
        for _ in 0..3 {
            paths.rotate_left(1);
            prop_assert_eq!(&contents(&Store::merge(&paths).unwrap()), &merged);
            paths.swap(0, 1);
            prop_assert_eq!(&contents(&Store::merge(&paths).unwrap()), &merged);
        }
        // A mismatch is never forgotten.
        for (record, _) in records.iter().filter(|(r, _)| r.outcome == Outcome::Mismatch) {
            prop_assert!(merged.iter().any(|(m, _)| m.config == record.config && m.outcome == Outcome::Mismatch));
        }
    }
}

#[test]
fn other_times_take_the_place_of_those_that_are_there() {
    let mut store = Store::in_memory();
    store.begin(session("1")).unwrap();
    for n in 0..3 {
        store.append(Measurement { identity: format!("{}", n / 2), ..measured("k", config(n), 1.0 + n as f64) }).unwrap();
    }
    let twin = Measurement { identity: "1".into(), outcome: Outcome::Identical, ..measured("k", config(3), 0.0) };
    let failed = Measurement { outcome: Outcome::Failed { reason: "no".into() }, ..measured("k", config(4), 0.0) };
    store.append(twin).unwrap();
    store.append(failed).unwrap();
    let other = store.with_times(|m, ms| if m.config == config(3) { 9.0 } else { 2.0 * ms });
    let times: Vec<Option<f64>> = (0..5).map(|n| other.ms(other.get("k", &config(n)).unwrap())).collect();
    assert_eq!(times, [Some(2.0), Some(4.0), Some(6.0), Some(9.0), None]);
    assert_eq!(store.ms(store.get("k", &config(3)).unwrap()), Some(3.0), "what was measured stays");
}
