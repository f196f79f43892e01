//! The analysis as the command gives it.

use crate::load::shipped::SHIPPED;
use recipes::cli::RecipeArgs;
use recipes::cli::analyze::{Analyze, Graph};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn command(recipe: &str) -> Analyze {
    let recipe = RecipeArgs {
        recipe: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(recipe),
        sizes: vec![],
        dtype: None,
        no_dropout: false,
        narrow: false,
    };
    Analyze {
        recipe,
        json: false,
        verify_each: false,
        graph: None,
        memory: false,
        stitch: false,
        candidates: Default::default(),
        refusals: false,
        definitions: false,
    }
}

fn output(command: &Analyze) -> String {
    let mut out = Vec::new();
    command.run(&mut out).expect("the analysis");
    String::from_utf8(out).expect("text")
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn json_has_the_documented_keys() {
    let text = output(&Analyze { json: true, ..command("bert-large-encoder.yaml") });
    let all: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        keys(&all),
        BTreeSet::from(["composition_refusals", "compositions", "kernels", "movement", "operators", "refusals", "totals"])
    );
    let counts = ["class", "flop", "flop_per_byte", "input_elements", "name", "output_elements"];
    assert_eq!(keys(&all["operators"][0]), BTreeSet::from(counts));
    assert_eq!(keys(&all["totals"]), BTreeSet::from(["contraction", "elementwise", "normalization"]));
    assert_eq!(keys(&all["totals"]["contraction"]), BTreeSet::from(["flop"]));
    let movement = ["composed_bytes", "composed_reduction", "definition", "fused_bytes", "reduction", "unfused_bytes"];
    assert_eq!(keys(&all["movement"][0]), BTreeSet::from(movement));
    let kernel: BTreeSet<&str> = counts.into_iter().chain(["covers", "operators"]).collect();
    assert_eq!(keys(&all["kernels"][0]), kernel);
    assert_eq!(keys(&all["compositions"][0]), kernel);
    let flop: u64 = all["operators"].as_array().expect("a list").iter().map(|o| o["flop"].as_u64().expect("a count")).sum();
    let totals: u64 =
        ["contraction", "normalization", "elementwise"].iter().map(|c| all["totals"][c]["flop"].as_u64().expect("a count")).sum();
    assert_eq!(flop, totals);
}

/// The peak of both programs with the tensors that are alive there; results are kept to the end, and sizes add up.
#[test]
fn memory_names_the_tensors_alive_at_the_peak() {
    let memory = Analyze { memory: true, ..command("mha.yaml") };
    let text = output(&memory);
    for line in ["fused: peak ", "gemm-fused: peak ", "inputs and parameters", "in the place of"] {
        assert!(text.contains(line), "no `{line}` in {text}");
    }
    let all: Value = serde_json::from_str(&output(&Analyze { json: true, ..memory })).expect("JSON");
    let programs = all.as_array().expect("a list");
    assert_eq!(programs.iter().map(|p| p["program"].as_str()).collect::<Vec<_>>(), [Some("fused"), Some("gemm-fused")]);
    for program in programs {
        let number = |value: &Value| value.as_u64().expect("a number");
        let given: u64 = program["given"].as_array().expect("a list").iter().map(|g| number(&g[1])).sum();
        assert_eq!(number(&program["given_bytes"]), given);
        let lives = program["lives"].as_array().expect("a list");
        let kept: u64 = lives.iter().filter(|l| l["kept"] == true).map(|l| number(&l["bytes"])).sum();
        // y, and gradients of all inputs but the upstream gradient, which is as large as y.
        assert_eq!(kept, given);
        assert!(number(&program["peak_bytes"]) >= given + kept);
        let end = program["kernels"].as_array().expect("a list").len() as u64 - 1;
        assert!(lives.iter().all(|l| number(&l["first"]) <= number(&l["last"]) && number(&l["last"]) <= end));
    }
}

/// The policy (saved or recomputed) is printed for both programs; masks are recomputed in either.
#[test]
fn the_policy_of_backward_is_printed() {
    let text = output(&command("mha.yaml"));
    let title = |program: &str| format!("What backward of the {program} program reads, and what it computes again");
    let (_, rest) = text.split_once(&title("fused")).expect("a table of the fused program");
    let (fused, composed) = rest.split_once(&title("composed")).expect("a table of the composed program");
    let policy = |table: &str, data: &str| {
        let row = table.lines().find(|line| line.starts_with(&format!("{data} "))).expect("a row");
        row.contains("computed again")
    };
    assert!(policy(fused, "mask of alpha") && !policy(fused, "alpha.softmax"));
    assert!(policy(composed, "mask of alpha") && policy(composed, "alpha.softmax"));
}

/// One operator per kernel against fused: less than 70% of the bytes remain, contractions included.
#[test]
fn fusion_of_the_encoder_layer_saves_three_tenths() {
    let text = output(&Analyze { json: true, ..command("bert-large-encoder.yaml") });
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let rows = all["movement"].as_array().expect("a list");
    let row = rows
        .iter()
        .find(|r| r["definition"] == "one operator per kernel throughout, masks stored in neither, contractions included")
        .expect("the definition");
    let (unfused, fused) = (row["unfused_bytes"].as_u64().expect("bytes"), row["fused_bytes"].as_u64().expect("bytes"));
    assert!(fused * 10 <= unfused * 7, "{fused} of {unfused} bytes");
    assert_eq!(row["reduction"].as_f64(), Some(1.0 - fused as f64 / unfused as f64));
}

/// Table III's operators in comparison with the gemm-fused program, masks stored in neither: six tenths fewer bytes.
#[test]
fn composition_of_the_encoder_layer_saves_six_tenths() {
    let text = output(&Analyze { json: true, ..command("bert-large-encoder.yaml") });
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let rows = all["movement"].as_array().expect("a list");
    let definition = |name: &str| rows.iter().find(|r| r["definition"] == name).expect("the definition");
    let row = definition("Table III's operators, masks stored in neither, contractions included");
    let (unfused, composed) = (row["unfused_bytes"].as_u64().expect("bytes"), row["composed_bytes"].as_u64().expect("bytes"));
    assert!(composed * 10 <= unfused * 4, "{composed} of {unfused} bytes");
    assert_eq!(row["composed_reduction"].as_f64(), Some(1.0 - composed as f64 / unfused as f64));
    assert!(definition("Table III's operators, masks stored in neither, contractions apart")["composed_bytes"].is_null());
    let gamma = all["compositions"].as_array().expect("a list").iter().find(|k| k["name"] == "gamma").expect("attention");
    assert_eq!(gamma["class"], "contraction");
    assert_eq!(gamma["operators"].as_array().map(Vec::len), Some(7));
}

#[test]
fn every_recipe_is_analysed() {
    for recipe in SHIPPED {
        let text = output(&command(&format!("{recipe}.yaml")));
        assert!(text.contains("Kernels after fusion"), "{recipe}: {text}");
    }
}

#[test]
fn sizes_can_be_set() {
    let json = |sizes: Vec<(String, i64)>| -> Value {
        let mut command = Analyze { json: true, ..command("mha.yaml") };
        command.recipe.sizes = sizes;
        serde_json::from_str(&output(&command)).expect("JSON")
    };
    let flop = |all: &Value| all["totals"]["elementwise"]["flop"].as_u64().expect("a count");
    // Element-wise work is linear in the batch.
    assert_eq!(flop(&json(vec![("b".into(), 16)])), 2 * flop(&json(vec![])));
}

#[test]
fn refusals_name_both_kernels_and_the_reason() {
    let text = output(&Analyze { refusals: true, ..command("mha.yaml") });
    let line = text.lines().find(|l| l.starts_with("qq ") && l.contains("`beta` would find its operand `qq` on chip")).expect("a refusal");
    assert!(line.contains("gamma") && line.contains("mha.yaml:"), "{line}");
}

/// Operators that one kernel holds have no refusal, each pair occurs once, and reasons of a kind are one row with a count.
#[test]
fn refusals_do_not_contradict_compositions() {
    for recipe in SHIPPED {
        let text = output(&Analyze { json: true, ..command(&format!("{recipe}.yaml")) });
        let all: Value = serde_json::from_str(&text).expect("JSON");
        let list = |key: &str| all[key].as_array().cloned().unwrap_or_default();
        let mut seen = BTreeSet::new();
        for refusal in list("refusals").iter().chain(&list("composition_refusals")) {
            let mut pair = [&refusal["first"], &refusal["second"]].map(|name| name.as_str().expect("a name").to_string());
            let holds = |kernel: &Value, name: &String| {
                kernel["name"] == **name || kernel["operators"].as_array().is_some_and(|all| all.iter().any(|o| o == name))
            };
            let together = list("compositions").iter().any(|kernel| pair.iter().all(|name| holds(kernel, name)));
            assert!(!together, "{recipe}: {refusal} is composed");
            pair.sort();
            assert!(seen.insert(pair), "{recipe}: {refusal} is told twice");
        }
    }
    // Beta, scaled and normalized, is in the kernel of gamma.
    let text = output(&command("mha.yaml"));
    let (_, stayed) = text.split_once("Neighbours of contractions that were not composed").expect("a table");
    assert!(!stayed.contains("beta –") && !stayed.contains("– beta"), "{stayed}");
    let rows: Vec<&str> = stayed.lines().filter(|line| line.contains("on chip that others need in memory")).collect();
    assert!(rows.len() == 1 && rows[0].trim_start().starts_with(|c: char| c.is_ascii_digit()), "{stayed}");
}

/// The summary comes first and names its one baseline; an option prints other definitions.
#[test]
fn a_summary_comes_first() {
    let text = output(&command("mha.yaml"));
    let places = ["program ", "unfused ", "fused ", "composed: ", "Unfused is one operator per kernel", "Operators, one kernel each"];
    let found: Vec<Option<usize>> = places.iter().map(|part| text.find(part)).collect();
    assert!(found.is_sorted() && found.iter().all(Option::is_some), "{found:?}: {text}");
    assert!(!text.contains("Table III's operators, masks stored in both"));
    let more = output(&Analyze { definitions: true, ..command("mha.yaml") });
    assert!(more.contains("Table III's operators, masks stored in both"));
}

#[test]
fn graphs_are_printed_alone() {
    let dot = output(&Analyze { graph: Some(Graph::Dot), ..command("softmax.yaml") });
    assert!(dot.starts_with("digraph"), "{dot}");
    let text = output(&Analyze { graph: Some(Graph::Text), ..command("softmax.yaml") });
    sdfg::text::parse(&text).expect("the text form");
}
