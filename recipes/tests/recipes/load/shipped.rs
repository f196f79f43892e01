//! The recipes shipped, whole and damaged.

use super::listing::listing;
use proptest::prelude::*;
use recipes::load::{Overrides, Recipe, Train, load, load_str};
use sdfg::{Class, Role, Unit};
use std::path::{Path, PathBuf};

pub const SHIPPED: [&str; 12] = [
    "mha",
    "mha-cross",
    "mha-general",
    "bert-large-encoder",
    "bert-large-pytorch",
    "bert-base-encoder",
    "gpt2-decoder",
    "llama-decoder",
    "gru",
    "classifier",
    "mlp",
    "softmax",
];

/// Convolutional networks: too large for tests that go through all programs of a recipe.
pub const NETWORKS: [&str; 9] = [
    "vgg-19",
    "googlenet",
    "inception-v3",
    "resnet-18",
    "resnet-50",
    "resnet-18-block",
    "squeezenet-1.0",
    "squeezenet-1.1",
    "mobilenet-v1",
];

/// Workloads of "FusionStitching", which `bench/stitching.sh` runs.
pub const WORKLOADS: [&str; 11] =
    ["bi-rnn", "dialog", "dyn-rnn", "figure-1", "logistic", "multi-interests", "nmt", "perceptron", "speech", "var-encoder", "word2vec"];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml"))
}

fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap()
}

fn shipped(name: &str, overrides: &[(&str, i64)]) -> Recipe {
    let overrides: Vec<(String, i64)> = overrides.iter().map(|(n, v)| (n.to_string(), *v)).collect();
    load(&path(name), &overrides).unwrap_or_else(|errors| panic!("{errors}"))
}

fn labels(recipe: &Recipe) -> Vec<String> {
    let label = |unit| if let Unit::Operation(operation) = unit { operation.label().to_string() } else { "scope".into() };
    recipe.program.units().into_iter().map(|(_, _, unit)| label(unit)).collect()
}

#[test]
fn every_recipe_loads_and_says_why_it_exists() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| entry.unwrap().path().file_name()?.to_str()?.strip_suffix(".yaml").map(str::to_string))
        .collect();
    found.sort();
    let mut expected = [&SHIPPED[..], &NETWORKS, &WORKLOADS].concat();
    expected.sort();
    assert_eq!(found, expected);
    for name in expected {
        let text = text(name);
        assert!(text.starts_with("# ") && text.contains("\n# Expect: "), "{name}");
        let recipe = shipped(name, &[]);
        assert_eq!(recipe.program.name, name.replace('-', "_"));
        assert!((recipe.train.is_some() || NETWORKS.contains(&name) || WORKLOADS.contains(&name)) && !recipe.program.about.is_empty());
        for container in recipe.program.containers.values() {
            assert!(container.origin.is_some(), "{name}: {}", container.name);
        }
    }
}

#[test]
fn attention_is_its_operators() {
    let recipe = shipped("mha", &[]);
    let expected = [
        "qq.dot[p,h,b,j] = contraction: 1 <- a=wq[p,h,i] b=x[i,b,j]",
        "qq[p,h,b,j] = bias: (a + b) <- a=qq.dot[p,h,b,j] b=bq[p,h]",
        "kk.dot[p,h,b,k] = contraction: 1 <- a=wk[p,h,i] b=x[i,b,k]",
        "kk[p,h,b,k] = bias: (a + b) <- a=kk.dot[p,h,b,k] b=bk[p,h]",
        "vv.dot[p,h,b,k] = contraction: 1 <- a=wv[p,h,i] b=x[i,b,k]",
        "vv[p,h,b,k] = bias: (a + b) <- a=vv.dot[p,h,b,k] b=bv[p,h]",
        "beta[h,b,j,k] = contraction: (1 / sqrt(#P)) <- a=kk[p,h,b,k] b=qq[p,h,b,j]",
        "alpha.softmax[h,b,j,k] = softmax: k <- x=beta[h,b,j,k]",
        "alpha[h,b,j,k] = dropout: (x * keep(alpha, ((h*B+b)*J+j)*J+k, 0.1)) <- x=alpha.softmax[h,b,j,k]",
        "gamma[p,h,b,j] = contraction: 1 <- a=vv[p,h,b,k] b=alpha[h,b,j,k]",
        "y.dot[i,b,j] = contraction: 1 <- a=wo[p,h,i] b=gamma[p,h,b,j]",
        "y[i,b,j] = bias: (a + b) <- a=y.dot[i,b,j] b=bo[i]",
    ];
    assert_eq!(listing(&recipe), expected);
    assert_eq!(recipe.train, Some(Train { upstream: vec!["y".into()], loss: None }));
    let role = |name: &str| recipe.program.containers.get(name).map(|c| c.role);
    assert_eq!(
        ["x", "wq", "qq.dot", "alpha", "y"].map(role),
        [Role::Input, Role::Parameter, Role::Transient, Role::Transient, Role::Output].map(Some)
    );
    let origin = recipe.program.containers["alpha.softmax"].origin.clone().unwrap();
    assert_eq!((origin.line, origin.column), (24, 6));
}

#[test]
fn the_encoder_layer_has_the_operators_of_the_paper() {
    for (name, activation) in [("bert-large-encoder", "relu"), ("bert-base-encoder", "gelu")] {
        let recipe = shipped(name, &[]);
        let found = labels(&recipe);
        let count = |label: &str| found.iter().filter(|l| *l == label).count();
        let counts = ["contraction", "bias", "softmax", "dropout", "residual", "norm", activation].map(count);
        assert_eq!(counts, [8, 6, 1, 4, 2, 2, 1], "{name}");
        assert_eq!(found.len(), 24, "{name}: nothing else");
        let contractions =
            recipe.program.units().iter().filter(|(_, _, u)| matches!(u, Unit::Operation(o) if o.class() == Class::Contraction)).count();
        assert_eq!(contractions, 8);
    }
}

#[test]
fn overrides_reach_every_size_made_of_them() {
    let recipe = shipped("bert-large-encoder", &[("b", 96), ("j", 128)]);
    assert_eq!(recipe.program.shape_of("alpha"), Ok(vec![16, 96, 128, 128]));
    assert_eq!(shipped("bert-large-encoder", &[]).program.shape_of("alpha"), Ok(vec![16, 8, 512, 512]));
}

#[test]
fn without_dropout_nothing_is_left_of_it() {
    let with = shipped("bert-base-encoder", &[]);
    let overrides = Overrides { no_dropout: true, ..Overrides::default() };
    let without = load(&path("bert-base-encoder"), &overrides).unwrap();
    let kept: Vec<String> = labels(&with).into_iter().filter(|label| label != "dropout").collect();
    assert_eq!(labels(&without), kept);
    assert!(listing(&without).iter().all(|line| !line.contains("keep")));
    assert!(without.program.containers.contains_key("alpha") && !without.program.containers.contains_key("alpha.softmax"));
    let text = text("bert-base-encoder").replace("rate: 0.1", "rate: 0");
    let zero = load_str("zero.yaml", &text, &[]).unwrap();
    assert_eq!(listing(&zero), listing(&without), "a rate of 0 drops nothing");
}

#[test]
fn a_loss_is_a_scalar_output_and_a_target_wants_no_gradient() {
    let recipe = shipped("mlp", &[]);
    assert_eq!(recipe.train, Some(Train { upstream: vec![], loss: Some("loss".into()) }));
    assert!(recipe.program.containers["loss"].dims.is_empty());
    assert!(!recipe.program.containers["target"].grad && recipe.program.containers["x"].grad);
    assert_eq!(recipe.program.containers["y"].role, Role::Output);
}

/// Damage to a recipe: at a position, a few characters replaced by others.
fn damage() -> impl Strategy<Value = (usize, Vec<(f64, u8, String)>)> {
    let pieces = prop::sample::select(vec![
        "",
        "[",
        "]",
        "(",
        ")",
        ",",
        ":",
        ": ",
        "=",
        " ",
        "\n",
        "\n  - ",
        "-",
        "*",
        "/",
        "+",
        "0",
        "1e400",
        "-1",
        "9999999999999999999",
        "i",
        "k",
        "x",
        "y",
        "sum(",
        "over: i",
        "{",
        "}",
        "&a ",
        "*a",
        "|",
        ">",
        "\"",
        "'",
        "#",
        "\t",
        "é",
        "\u{a0}",
        "\0",
        "!!",
        "d_",
        "inf",
        "<=",
    ]);
    let change = (0.0..1.0f64, 0u8..6, pieces.prop_map(str::to_string));
    (0..SHIPPED.len(), prop::collection::vec(change, 1..5))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// A damaged recipe is a program or located errors, never a panic.
    #[test]
    fn damaged_recipes_never_panic((which, changes) in damage()) {
        let mut letters: Vec<char> = text(SHIPPED[which]).chars().collect();
        for (at, length, piece) in changes {
            let at = (at * letters.len() as f64) as usize;
            let end = (at + length as usize).min(letters.len());
            letters.splice(at..end, piece.chars());
        }
        let damaged: String = letters.into_iter().collect();
        let lines = damaged.lines().count() as u32;
        if let Err(errors) = load_str("damaged.yaml", &damaged, &[]) {
            prop_assert!(!errors.errors.is_empty());
            for error in &errors.errors {
                prop_assert!((1..=lines + 1).contains(&error.origin.line) && error.origin.column >= 1, "{error}");
            }
        }
    }
}
