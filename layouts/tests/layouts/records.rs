//! The choice from records of a real sweep: an encoder layer with its backward pass, on two cores.

use layouts::certificate::Certificate;
use layouts::exact::Limits;
use layouts::relayout::RelayoutCosts;
use layouts::selection::{exactly, optimum};
use layouts::verify::{swept, verify};
use layouts::{Method, Model, Program, Store, select};
use std::path::{Path, PathBuf};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench/records/2026-11-21-xeon-2core");

fn chosen(store: &Store) -> (Program, Certificate) {
    let [(_, program)] = Program::of_records(store).try_into().unwrap_or_else(|all: Vec<_>| panic!("{} programs", all.len()));
    let costs = RelayoutCosts::new(&program, store);
    let model = Model::new(&program, store, &costs).unwrap();
    let best = optimum(&model, Limits::default(), &mut |_| true);
    let estimated = exactly(&model, &costs, &best).unmeasured().count();
    let certificate = Certificate::new(&program, store, &model, &best.into(), estimated);
    (program, certificate)
}

/// What is chosen and what it costs, as a person reads it.
fn told(program: &Program, certificate: &Certificate) -> String {
    let choice = &certificate.choices[0];
    let value = serde_json::json!({
        "program": program.called(&choice.variants),
        "total_ps": certificate.total_ps,
        "bound_ps": certificate.bound_ps,
        "choice": choice,
    });
    serde_json::to_string_pretty(&value).unwrap() + "\n"
}

#[test]
fn the_choice_from_a_real_sweep_is_the_same_on_every_machine_byte_for_byte() {
    let records = Path::new(FOLDER).join("sweep-bert-base-encoder.jsonl");
    let store = Store::read(&records).unwrap();
    let (program, certificate) = chosen(&store);
    let found = told(&program, &certificate);
    let expected = std::fs::read_to_string(Path::new(FOLDER).join("choice-bert-base-encoder.json")).unwrap_or_default();
    if found != expected {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("choice-bert-base-encoder.json");
        std::fs::write(&path, &found).unwrap();
        panic!("another choice than the one that is kept; see {}", path.display());
    }
    // The order of measurements makes no difference.
    let text = std::fs::read_to_string(&records).unwrap();
    let (sessions, mut measurements): (Vec<&str>, Vec<&str>) = text.lines().partition(|l| l.contains("\"line\":\"session\""));
    measurements.reverse();
    let folder = tempfile::tempdir().unwrap();
    let turned = folder.path().join("records.jsonl");
    std::fs::write(&turned, [sessions, measurements].concat().join("\n") + "\n").unwrap();
    let (_, again) = chosen(&Store::read(&turned).unwrap());
    assert_eq!(again.text().unwrap(), certificate.text().unwrap());
}

#[test]
fn the_choice_from_a_real_sweep_is_proven_and_confirmed() {
    let store = Store::read(&Path::new(FOLDER).join("sweep-bert-base-encoder.jsonl")).unwrap();
    let (program, certificate) = chosen(&store);
    assert_eq!(certificate.bound_ps, certificate.total_ps, "gap 0");
    assert_eq!(swept(&certificate, &store), Ok(()));
    assert_eq!(verify(&certificate, &store).map(|c| c.bound_ps), Ok(certificate.total_ps));
    // Kernels of several programs together are never worse than any of the programs.
    assert!(program.alternatives.len() > 1, "{:?}", program.alternatives.keys());
    let mut wholes = Vec::new();
    for session in store.sessions() {
        wholes.push(select(session.program.as_ref().unwrap(), &store, Method::Exact, Limits::default()).unwrap().total_ms);
    }
    assert!(wholes.len() > 4 && wholes.iter().all(|ms| certificate.total_ps as f64 / 1e9 <= *ms), "{wholes:?}");
    // Nor are the paper's path and its variants better.
    for method in Method::ALL {
        assert!(select(&program, &store, method, Limits::default()).unwrap().total_ms >= certificate.total_ps as f64 / 1e9);
    }
}
