//! Recipes stored in bf16: which tensors are, and the commands on one from the sweep to the files.

use recipes::load::{Recipe, load_str, load_str_as};
use recipes::pipeline::programs::{programs, shrunken};
use recipes::pipeline::tensors::{drawn, results};
use sdfg::Dtype;
use sdfg::interpret::{Run, interpret};
use std::process::{Command, Output};

const ENCODER: &str = include_str!("../bert-base-encoder.yaml");

fn stored_as(text: &str, dtype: Dtype) -> Recipe {
    load_str_as("test.yaml", text, &[], Some(dtype)).unwrap()
}

#[test]
fn the_recipe_and_the_command_line_say_the_same() {
    let written = ENCODER.replace("dtype: f32", "dtype: bf16");
    assert_ne!(written, ENCODER);
    assert_eq!(load_str("test.yaml", &written, &[]).unwrap(), stored_as(ENCODER, Dtype::Bf16));
    assert_eq!(load_str("test.yaml", ENCODER, &[]).unwrap(), stored_as(ENCODER, Dtype::F32));
}

#[test]
fn activations_are_narrow_and_what_sums_up_is_not() {
    let program = programs(&stored_as(ENCODER, Dtype::Bf16), false).unwrap().operators;
    let of = |name: &str| program.containers[name].dtype;
    for name in ["x", "qq", "beta", "alpha", "gamma", "attn", "ff1", "d_x", "d_qq", "d_beta", "d_ff1", "wq.bf16", "norm1.bf16"] {
        assert_eq!(of(name), Dtype::Bf16, "{name}");
    }
    for name in ["wq", "bq", "g1", "d_wq", "d_bq", "d_g1", "res1", "norm1", "norm1.mean", "norm1.rstd", "y", "d_y", "d_res1"] {
        assert_eq!(of(name), Dtype::F32, "{name}");
    }
    // What contractions multiply is bf16, forward and backward.
    for (_, _, unit) in program.units() {
        if let sdfg::Unit::Operation(operation) = unit
            && matches!(operation.op, sdfg::Op::Contraction { .. })
        {
            assert!(operation.inputs.iter().all(|i| of(&i.data) == Dtype::Bf16), "{}", operation.name);
        }
    }
    // A type of its own is kept, and cast where it is multiplied.
    let own = ENCODER.replace("  wo: [p, h, i]", "  wo: {dims: [p, h, i], dtype: bf16}");
    let program = stored_as(&own, Dtype::Bf16).program;
    assert!(program.containers["wo"].dtype == Dtype::Bf16 && !program.containers.contains_key("wo.bf16"));
    let program = stored_as(&own, Dtype::F32).program;
    assert_eq!((program.containers["wo"].dtype, program.containers["wo.f32"].dtype), (Dtype::Bf16, Dtype::F32));
}

/// Stacking sees through the casts, and every program still means what the f32 recipe means.
#[test]
fn casts_change_no_meaning_and_hide_no_stacking() {
    let (wide, narrow) = (stored_as(ENCODER, Dtype::F32), stored_as(ENCODER, Dtype::Bf16));
    let made = programs(&narrow, false).unwrap();
    let plain = programs(&wide, false).unwrap();
    let names = |variants: &[recipes::pipeline::programs::Variant]| variants.iter().map(|v| v.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&made.variants), names(&plain.variants));
    let run = Run { seed: 3, step: 1, dropout: true };
    let given = drawn(&shrunken(&made.operators), 3).unwrap();
    assert!(given["x"].iter().all(|v| Dtype::Bf16.rounded(*v) == *v) && given["wq"].iter().any(|v| Dtype::Bf16.rounded(*v) != *v));
    let want = interpret(&shrunken(&plain.operators), &given, &run).unwrap();
    for variant in &made.variants {
        let program = shrunken(&variant.program);
        assert_eq!(sdfg::validate::validate(&program), vec![], "{}", variant.name);
        let got = interpret(&program, &given, &run).unwrap();
        for container in results(&shrunken(&made.operators)) {
            let (want, got) = (&want[&container.name], &got[&container.name]);
            let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            // Sums of a few hundred terms in f64, in another order.
            let close = want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale);
            assert!(close, "{}: `{}`", variant.name, container.name);
        }
    }
}

fn memlet(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memlet")).args(arguments).output().expect("the command starts")
}

#[test]
fn what_cannot_be_stored_or_multiplied_is_refused() {
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/mlp.yaml");
    let refused = memlet(&["optimize", recipe, "--dtype", "i32"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no floating type; write f64, f32, bf16 or f16"));
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    let refused = memlet(&["optimize", recipe, "--dtype", "f16", "--out", &out]);
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("matrix products exist for"));
}
