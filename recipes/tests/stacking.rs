//! Stacked and composed contractions compute what separate ones do, on the shipped recipes at small sizes.

use recipes::load::load;
use recipes::pipeline::programs::programs;
use recipes::pipeline::shrunken::shrunken;
use recipes::pipeline::tensors::{drawn, results};
use sdfg::interpret::{Run, interpret};
use std::path::Path;

/// Names of the variants of a recipe and how many contractions each has, each checked against the operators it came from.
fn variants(recipe: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe);
    let recipe = load(&path, &[]).expect("a shipped recipe loads");
    let programs = programs(&recipe, false).expect("a shipped recipe has programs");
    let run = Run { seed: 3, step: 1, dropout: true };
    let reference = shrunken(&programs.operators);
    let tensors = drawn(&reference, 3).expect("tensors");
    let want = interpret(&reference, &tensors, &run).expect("the operators run");
    for variant in &programs.variants {
        let program = shrunken(&variant.program);
        assert_eq!(sdfg::validate::validate(&program), vec![], "{}", variant.name);
        let got = interpret(&program, &tensors, &run).unwrap_or_else(|e| panic!("{}: {e}", variant.name));
        for container in results(&reference) {
            let (want, got) = (&want[&container.name], &got[&container.name]);
            let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            // Sums of a few hundred terms in f64, in another order.
            assert!(
                want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale),
                "{}: `{}`",
                variant.name,
                container.name
            );
        }
    }
    programs.variants.into_iter().map(|v| format!("{} {}", v.name, contractions(&v.program))).collect()
}

fn contractions(program: &sdfg::Sdfg) -> usize {
    program.units().iter().filter(|(_, _, unit)| matches!(unit, sdfg::Unit::Operation(_))).count()
}

#[test]
fn self_attention_stacks_three_or_two_projections() {
    assert_eq!(variants("mha.yaml"), ["separate 18", "wq+wk+wv 12", "wq+wk 15", "wk+wv 15", "composed 5"]);
}

#[test]
fn cross_attention_stacks_keys_and_values() {
    assert_eq!(variants("mha-cross.yaml"), ["separate 18", "wk+wv 15", "composed 6"]);
}

#[test]
fn an_encoder_layer_stacks_its_projections() {
    assert_eq!(variants("bert-large-encoder.yaml"), ["separate 24", "wq+wk+wv 18", "wq+wk 21", "wk+wv 21", "composed 7"]);
}
