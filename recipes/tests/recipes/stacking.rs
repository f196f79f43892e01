//! Stacked and gemm-fused contractions compute the same as separate ones, on the shipped recipes at small sizes.

use kernels::device::Forms;
use kernels::target::cuda::cublaslt::FusedContraction;
use recipes::load::{Recipe, load, load_str};
use recipes::pipeline::oracle::small_sizes::with_small_sizes;
use recipes::pipeline::oracle::tensors::{random_inputs, results};
use recipes::pipeline::variants::programs::{Programs, programs_on};
use recipes::pipeline::variants::table::VariantId;
use sdfg::interpret::{Run, interpret};
use std::path::Path;

/// Names of the variants of a recipe on cores and how many contractions each has.
fn variants(recipe: &str) -> Vec<String> {
    let programs = checked(recipe, None).variants;
    let other = programs.into_iter().filter(|v| !v.key.is(VariantId::Stitched));
    other.map(|v| format!("{} {}", v.key, contractions(&v.program))).collect()
}

/// The programs of a recipe, each variant checked against its operators.
fn checked(recipe: &str, epilogues: Option<Forms>) -> Programs {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe);
    checked_recipe(&load(&path, &[]).expect("a shipped recipe loads"), epilogues)
}

fn checked_recipe(recipe: &Recipe, epilogues: Option<Forms>) -> Programs {
    let programs = programs_on(recipe, false, epilogues).expect("a recipe has programs");
    let run = Run { seed: 3, step: 1, dropout: true };
    let reference = with_small_sizes(&programs.operators);
    let tensors = random_inputs(&reference, 3).expect("tensors");
    let want = interpret(&reference, &tensors, &run).expect("the operators run");
    for variant in &programs.variants {
        let program = with_small_sizes(&variant.program);
        assert_eq!(sdfg::validate::validate(&program), vec![], "{}", variant.key);
        let got = interpret(&program, &tensors, &run).unwrap_or_else(|e| panic!("{}: {e}", variant.key));
        for container in results(&reference) {
            let (want, got) = (&want[&container.name], &got[&container.name]);
            let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            // Sums of a few hundred terms in f64, in another order.
            assert!(
                want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale),
                "{}: `{}`",
                variant.key,
                container.name
            );
        }
    }
    programs
}

fn contractions(program: &sdfg::Sdfg) -> usize {
    program.units().iter().filter(|(_, _, unit)| matches!(unit, sdfg::Unit::Operation(_))).count()
}

#[test]
fn self_attention_stacks_three_or_two_projections() {
    assert_eq!(variants("mha.yaml"), ["fused 18", "stacked wq+wk+wv 12", "stacked wq+wk 15", "stacked wk+wv 15", "gemm-fused 5"]);
}

#[test]
fn cross_attention_stacks_keys_and_values() {
    assert_eq!(variants("mha-cross.yaml"), ["fused 18", "stacked wk+wv 15", "gemm-fused 6"]);
}

#[test]
fn an_encoder_layer_stacks_its_projections() {
    assert_eq!(
        variants("bert-large-encoder.yaml"),
        ["fused 24", "stacked wq+wk+wv 18", "stacked wq+wk 21", "stacked wk+wv 21", "gemm-fused 7"]
    );
}

/// Two layers of attention, one after the other.
pub fn two_layers() -> Recipe {
    let mut text = "model: two\ndims: {b: 2, j: 8, k: j, p: 4, i: 8}\ninputs:\n  x0: [i, b, j]\nparameters:\n".to_string();
    for n in 0..2 {
        text += &format!("  wq{n}: [p, i]\n  wk{n}: [p, i]\n  wv{n}: [p, i]\n  wo{n}: [p, i]\n");
    }
    text += "steps:\n";
    for n in 0..2 {
        let next = n + 1;
        text += &format!("  - q{n}[p,b,j] = wq{n}[p,i] * x{n}[i,b,j]\n  - k{n}[p,b,k] = wk{n}[p,i] * x{n}[i,b,k]\n");
        text += &format!("  - v{n}[p,b,k] = wv{n}[p,i] * x{n}[i,b,k]\n  - s{n}[b,j,k] = k{n}[p,b,k] * q{n}[p,b,j]\n");
        text += &format!("  - \"a{n}[b,j,k] = softmax(s{n}, over: k)\"\n  - c{n}[p,b,j] = v{n}[p,b,k] * a{n}[b,j,k]\n");
        text += &format!("  - x{next}[i,b,j] = wo{n}[p,i] * c{n}[p,b,j]\n");
    }
    text += "train: {upstream: x2}\n";
    load_str("two.yaml", &text, &[]).unwrap_or_else(|e| panic!("{e}"))
}

/// Layers are stacked alike, so that the number of programs does not grow with the number of layers.
#[test]
fn layers_are_stacked_alike() {
    let recipe = two_layers();
    let programs = checked_recipe(&recipe, None);
    let found: Vec<String> = programs.variants.iter().map(|v| format!("{} {}", v.key, contractions(&v.program))).collect();
    let stacks = ["fused 36", "stacked wq0+wk0+wv0+wq1+wk1+wv1 24", "stacked wq0+wk0+wq1+wk1 30", "stacked wk0+wv0+wk1+wv1 30"];
    assert_eq!(found[..4], stacks);
}

/// Gates of the same input. Backward, a gate within another's argument has a gradient that depends on the other's, so the two are never
/// parts of one stack. Nor does one kernel write one part of a stack and another kernel read it.
#[test]
fn gates_are_stacked_where_none_is_made_of_another() {
    let found = variants("gru.yaml");
    assert!(found.iter().any(|v| v.starts_with("stacked wz+wr+wn ")) && found.iter().any(|v| v.starts_with("stacked uz+ur ")), "{found:?}");
}

/// On a GPU attention's rows may be renormalized in backward from the inputs of softmax: then its results are not stored.
#[test]
fn on_a_gpu_rows_are_renormalized_from_their_statistics() {
    for recipe in ["mha.yaml", "bert-large-encoder.yaml"] {
        let programs = checked(recipe, Some(FusedContraction::has));
        let named = |name: &str| programs.variants.iter().find(|v| v.key.to_string() == name).unwrap_or_else(|| panic!("{recipe}: {name}"));
        let (base, again) = (named("stacked wq+wk+wv"), named("row statistics, stacked wq+wk+wv"));
        let stored = |program: &sdfg::Sdfg, data: &str| program.containers.get(data).is_some_and(|c| c.storage == sdfg::Storage::Heap);
        assert!(stored(&base.program, "alpha.softmax") && !stored(&again.program, "alpha.softmax"), "{recipe}");
        assert!(stored(&again.program, "alpha.softmax.max") && stored(&again.program, "alpha.softmax.sum"), "{recipe}");
        // The matrix is written one time fewer, and two numbers of each row are written and read.
        let matrix = base.program.bytes("alpha.softmax").expect("a size");
        let rows = ["max", "sum"].map(|s| again.program.bytes(&format!("alpha.softmax.{s}")).expect("a size"));
        let moved = |program| transforms::moved_bytes(program);
        assert_eq!(moved(&base.program) + 2 * rows.iter().sum::<u64>(), moved(&again.program) + matrix, "{recipe}");
        assert_eq!(contractions(&base.program), contractions(&again.program), "{recipe}");
    }
    assert!(checked("mlp.yaml", Some(FusedContraction::has)).variants.iter().all(|v| v.key.id != VariantId::RowStatistics));
}
