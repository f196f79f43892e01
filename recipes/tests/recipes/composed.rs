//! Contractions fused with their neighbours compute the same as separate operators, forward and backward, and move fewer bytes: the
//! shipped recipes, built at their own sizes and interpreted at small ones.

use recipes::load::{Recipe, load, load_str};
use recipes::pipeline::oracle::operators::operators;
use recipes::pipeline::oracle::small_sizes::with_small_sizes;
use recipes::pipeline::oracle::tensors::{random_inputs, results};
use recipes::pipeline::variants::gemm_fusion::GemmFusion;
use recipes::pipeline::variants::variant::Variant;
use sdfg::interpret::{Run, interpret};
use sdfg::movement::movement;
use sdfg::{Sdfg, Storage, Unit};
use std::path::Path;
use transforms::{Accept, FusionKind};

fn shipped(name: &str) -> Recipe {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name), &[]).expect("a shipped recipe loads")
}

fn bytes(program: &Sdfg) -> u64 {
    movement(program).expect("sizes are bound").iter().map(|m| m.bytes()).sum()
}

/// The gemm-fused program of a recipe; its results must be those of the operators.
fn checked(recipe: &Recipe) -> Variant {
    checked_with(recipe, &[], &|_| true)
}

fn checked_with(recipe: &Recipe, weights: &[String], accept: Accept) -> Variant {
    let (operators, _) = operators(recipe).expect("operators");
    let variant = GemmFusion::generated(recipe, weights, false).and_then(|fusion| fusion.fused(accept)).expect("a composed program");
    for step in variant.steps.iter().filter(|step| ["composition", "fusion"].contains(&step.transform)) {
        assert!(step.bytes_after <= step.bytes_before, "`{}` moves {} -> {}", step.summary, step.bytes_before, step.bytes_after);
    }
    let (before, after) = (with_small_sizes(&operators), with_small_sizes(&variant.program));
    assert_eq!(sdfg::validate::validate(&after), vec![]);
    let run = Run { seed: 3, step: 1, dropout: true };
    let tensors = random_inputs(&before, 3).expect("tensors");
    let want = interpret(&before, &tensors, &run).expect("the operators run");
    let got = interpret(&after, &tensors, &run).expect("the composed program runs");
    for container in results(&before) {
        let (want, got) = (&want[&container.name], &got[&container.name]);
        let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        // Sums of a few hundred terms in f64, in another order.
        let close = want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale);
        assert!(close, "`{}` differs", container.name);
    }
    variant
}

/// Heap transients over all of these dims, which must not reach memory.
fn stored(program: &Sdfg, dims: &[&str]) -> Vec<String> {
    let touched = |name: &str| {
        program.units().iter().any(|(_, _, unit)| match unit {
            Unit::Scope(scope) => scope.reads().contains_key(name) || scope.writes().contains_key(name),
            Unit::Operation(o) => o.inputs.iter().chain(&o.outputs).any(|o| o.data == name),
            _ => false,
        })
    };
    let large = |c: &&sdfg::Container| c.storage == Storage::Heap && dims.iter().all(|d| c.dims.iter().any(|e| e == d));
    program.containers.values().filter(large).map(|c| c.name.clone()).filter(|n| touched(n)).collect()
}

/// Names of the fused kernels.
fn kernels(variant: &Variant) -> Vec<&str> {
    variant.compositions.iter().map(|c| c.name.as_str()).collect()
}

#[test]
fn an_encoder_layer_moves_sixty_percent_less_than_its_operators() {
    let recipe = shipped("bert-large-encoder.yaml");
    let variant = checked(&recipe);
    assert_eq!(stored(&variant.program, &["j", "k"]), Vec::<String>::new());
    assert_eq!(
        kernels(&variant),
        ["qq", "kk", "vv", "gamma", "norm1", "ff1", "y", "d_b1", "d_bo", "d_bq", "d_x"],
        "{:#?}",
        variant.steps.iter().map(|s| &s.summary).collect::<Vec<_>>()
    );
    // The dropout's result shows where the rectifier is open, and the gradient of a weight reads it anyway.
    assert!(!stored(&variant.program, &["u", "b", "j"]).contains(&"ff1.dot".to_string()));
    // Table III's operators, masks stored in neither.
    assert!(bytes(&variant.program) as f64 <= 0.4 * 4_395_941_888.0, "{}", bytes(&variant.program));
}

#[test]
fn attention_of_every_shape_stays_on_chip() {
    for name in ["mha.yaml", "mha-cross.yaml", "mha-general.yaml", "gpt2-decoder.yaml", "bert-base-encoder.yaml"] {
        let variant = checked(&shipped(name));
        assert_eq!(stored(&variant.program, &["j", "k"]), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn stacked_projections_compose_as_well() {
    let recipe = shipped("mha.yaml");
    let variant = checked_with(&recipe, &["wq".into(), "wk".into(), "wv".into()], &|_| true);
    assert_eq!(kernels(&variant).first(), Some(&"qq"), "one kernel makes queries, keys and values");
    // Backward would write three slices of one container.
    let reasons: Vec<String> = variant.refusals.iter().map(|r| r.to_string()).collect();
    assert!(reasons.iter().any(|r| r.contains("several computations write parts of `d_qq.stack3`")), "{reasons:#?}");
}

#[test]
fn unwanted_fusions_are_not_made() {
    let recipe = shipped("mha.yaml");
    let variant = checked_with(&recipe, &[], &|cluster| cluster.name != "qq");
    assert!(!kernels(&variant).contains(&"qq"));
    assert!(variant.refusals.iter().any(|r| r.reason.to_string() == "this program leaves the composed kernel `qq` out"));
    // Forward attention fused without backward attention: tensors that backward reads are then saved, not computed twice and stored.
    let forward = checked_with(&recipe, &[], &|cluster| cluster.site.state == sdfg::StateId(0));
    assert_eq!(kernels(&forward), ["qq", "kk", "vv", "alpha", "y"]);
    assert_eq!(forward.program.units().iter().filter(|(_, _, unit)| unit.name().contains("again")).count(), 0);
    let none = checked_with(&recipe, &[], &|_| false);
    assert!(none.compositions.is_empty());
}

#[test]
fn compositions_are_distinguished_by_kind() {
    let variant = checked(&shipped("bert-large-encoder.yaml"));
    let kinds = |name: &str| -> Vec<FusionKind> {
        let found = variant.compositions.iter().find(|c| c.name == name).expect("a composed kernel");
        found.kinds.iter().copied().collect()
    };
    assert_eq!(kinds("ff1"), [FusionKind::Epilogue], "bias, activation and dropout");
    assert_eq!(kinds("norm1"), [FusionKind::Epilogue, FusionKind::Rows], "normalization");
    assert_eq!(kinds("gamma"), FusionKind::ALL[..4], "attention");
    assert_eq!(kinds("d_bq"), FusionKind::ALL[..4], "attention backward");
}

/// Attention written out by hand under other names: unscaled scores, a softmax of maxima, exponentials and sums, values of
/// a width of their own, keys of another length.
const BY_HAND: &str = r#"
model: by_hand
dims: {n: 2, t: 96, s: 160, g: 3, e: 32, f: 16}
dtype: f32
inputs:
  query: [n, g, t, e]
  key: [n, g, s, e]
  value: [n, g, s, f]
steps:
  - score[n,g,t,s] = query[n,g,t,e] * key[n,g,s,e]
  - "top[n,g,t] = max(score[n,g,t,s], over: s)"
  - power[n,g,t,s] = exp(score[n,g,t,s] - top[n,g,t])
  - "total[n,g,t] = sum(power[n,g,t,s], over: s)"
  - weight[n,g,t,s] = power[n,g,t,s] / total[n,g,t]
  - mixed[n,g,t,f] = weight[n,g,t,s] * value[n,g,s,f]
train: {upstream: mixed}
"#;

#[test]
fn attention_by_hand_is_found_by_its_structure() {
    let recipe = load_str("by-hand.yaml", BY_HAND, &[]).expect("a recipe");
    let variant = checked(&recipe);
    assert_eq!(
        stored(&variant.program, &["t", "s"]),
        Vec::<String>::new(),
        "{:#?}",
        variant.refusals.iter().map(|r| r.to_string()).collect::<Vec<_>>()
    );
}

/// Recomputed scores may miss their own maximum, if only by rounding. Where a gradient flows through the maximum the scores are saved;
/// where it cancels, as above, they are not.
#[test]
fn scores_whose_maximum_counts_are_saved() {
    let changes = [
        ("weight[n,g,t,s] = power[n,g,t,s] / total[n,g,t]", "weight[n,g,t,s] = power[n,g,t,s] + 0 * total[n,g,t]"),
        ("weight[n,g,t,s] = power[n,g,t,s] / total[n,g,t]", "weight[n,g,t,s] = power[n,g,t,s] / total[n,g,t] + top[n,g,t]"),
        ("power[n,g,t,s] = exp(score[n,g,t,s] - top[n,g,t])", "power[n,g,t,s] = exp(score[n,g,t,s] - 0.5 * top[n,g,t])"),
    ];
    for (from, to) in changes {
        assert!(BY_HAND.contains(from));
        let recipe = load_str("by-hand.yaml", &BY_HAND.replace(from, to), &[]).expect("a recipe");
        let saved = stored(&checked(&recipe).program, &["t", "s"]);
        assert!(saved.iter().any(|s| s == "score"), "{to}: {saved:?}");
    }
}

/// Rows of 16,384 keys still fit: no tensor over queries and keys reaches memory.
#[test]
fn a_long_sequence_stays_on_chip() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml");
    let recipe = load(&path, &[("b".into(), 1), ("h".into(), 1), ("j".into(), 16_384)]).expect("a shipped recipe loads");
    let variant = GemmFusion::generated(&recipe, &[], false).and_then(|fusion| fusion.fused(&|_| true)).expect("a composed program");
    assert_eq!(stored(&variant.program, &["j", "k"]), Vec::<String>::new());
    let intervals = sdfg::lifetime::intervals(&variant.program).expect("sizes are bound");
    assert!(sdfg::lifetime::plan(&intervals, &[]).peak_bytes <= 64 << 20, "queries, keys, values, their gradients and rows are left");
}

/// A local derivative is saved in place of the product that it follows from, and not in addition.
#[test]
fn a_slope_is_saved_where_its_product_stays_on_chip() {
    let recipe = shipped("bert-base-encoder.yaml");
    let large = |variant: &Variant| stored(&variant.program, &["b", "j", "u"]);
    let whole = large(&checked(&recipe));
    assert!(whole.contains(&"ff1.bias.slope".into()) && !whole.contains(&"ff1.dot".into()), "{whole:?}");
    let apart = large(&checked_with(&recipe, &[], &|cluster| !cluster.contractions.contains(&"ff1.dot".to_string())));
    assert!(apart.contains(&"ff1.dot".into()) && !apart.contains(&"ff1.bias.slope".into()), "{apart:?}");
}
