//! Recipes stored in bf16: which tensors are in bf16, and the commands on such a recipe from the sweep to the files.

use crate::command::{json, memlet, refused, text};
use recipes::load::{Overrides, Recipe, load_str};
use recipes::pipeline::check::accuracy::{accuracy, oracle};
use recipes::pipeline::oracle::small_sizes::with_small_sizes;
use recipes::pipeline::oracle::tensors::{random_inputs, read, results};
use recipes::pipeline::variants::programs::programs;
use recipes::pipeline::variants::variant::Variant;
use safetensors::{Dtype as Stored, SafeTensors};
use sdfg::interpret::{Run, interpret};
use sdfg::{Dtype, Role, Storage};
use std::path::Path;

const MLP: &str = include_str!("../../mlp.yaml");
const ENCODER: &str = include_str!("../../bert-base-encoder.yaml");

fn stored_as(text: &str, dtype: Dtype) -> Recipe {
    load_str("test.yaml", text, Overrides { dtype: Some(dtype), ..Overrides::default() }).unwrap()
}

#[test]
fn the_recipe_and_the_command_line_say_the_same() {
    let written = ENCODER.replace("dtype: f32", "dtype: bf16");
    assert_ne!(written, ENCODER);
    // A recipe keeps its own text.
    let meaning = |recipe: Recipe| Recipe { text: String::new(), ..recipe };
    assert_eq!(meaning(load_str("test.yaml", &written, &[]).unwrap()), meaning(stored_as(ENCODER, Dtype::Bf16)));
    assert_eq!(load_str("test.yaml", ENCODER, &[]).unwrap(), stored_as(ENCODER, Dtype::F32));
}

#[test]
fn activations_are_narrow_and_sums_are_not() {
    let program = programs(&stored_as(ENCODER, Dtype::Bf16), false).unwrap().operators;
    let of = |name: &str| program.containers[name].dtype;
    for name in ["x", "qq", "alpha", "gamma", "attn", "ff1", "ff1.dot", "d_x", "d_qq", "d_beta.bf16", "d_ff1", "wq.bf16", "norm1.bf16"] {
        assert_eq!(of(name), Dtype::Bf16, "{name}");
    }
    for name in
        ["wq", "bq", "g1", "d_wq", "d_bq", "d_g1", "res1", "norm1", "norm1.mean", "norm1.rstd", "y", "d_y", "d_res1", "qq.dot", "beta"]
    {
        assert_eq!(of(name), Dtype::F32, "{name}");
    }
    // Operands of contractions are bf16, forward and backward.
    for (_, _, unit) in program.units() {
        if let sdfg::Unit::Operation(operation) = unit
            && matches!(operation.op, sdfg::Op::Contraction { .. })
        {
            assert!(operation.inputs.iter().all(|i| of(&i.data) == Dtype::Bf16), "{}", operation.name);
        }
    }
    // A tensor's own type is kept, and cast where a contraction reads it.
    let own = ENCODER.replace("  wo: [i, h, p]", "  wo: {dims: [i, h, p], dtype: bf16}");
    let program = stored_as(&own, Dtype::Bf16).program;
    assert!(program.containers["wo"].dtype == Dtype::Bf16 && !program.containers.contains_key("wo.bf16"));
    let program = stored_as(&own, Dtype::F32).program;
    assert_eq!((program.containers["wo"].dtype, program.containers["wo.f32"].dtype), (Dtype::Bf16, Dtype::F32));
}

#[test]
fn a_narrow_recipe_stores_weights_and_residuals_as_well() {
    let overrides = Overrides { dtype: Some(Dtype::Bf16), narrow: true, ..Overrides::default() };
    let recipe = load_str("test.yaml", ENCODER, &overrides).unwrap();
    let made = programs(&recipe, false).unwrap();
    let of = |name: &str| made.operators.containers[name].dtype;
    for name in ["wq", "w1", "d_wq", "res1", "norm1", "y", "d_y", "d_res1", "qq.dot", "beta", "d_beta"] {
        assert_eq!(of(name), Dtype::Bf16, "{name}");
    }
    for name in ["bq", "b1", "g1", "d_bq", "d_b1", "d_g1", "norm1.mean", "norm1.rstd"] {
        assert_eq!(of(name), Dtype::F32, "{name}");
    }
    assert!(made.operators.containers.keys().all(|name| !name.ends_with(".bf16")), "nothing is left to cast");
    // It still computes the same as the f32 recipe.
    let plain = programs(&stored_as(ENCODER, Dtype::F32), false).unwrap();
    let run = Run { seed: 3, step: 1, dropout: true };
    let given = random_inputs(&with_small_sizes(&made.operators), 3).unwrap();
    let want = interpret(&with_small_sizes(&plain.operators), &given, &run).unwrap();
    let got = interpret(&with_small_sizes(&made.variants[0].program), &given, &run).unwrap();
    for container in results(&with_small_sizes(&made.operators)) {
        let (want, got) = (&want[&container.name], &got[&container.name]);
        let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        assert!(want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale), "{}", container.name);
    }
}

/// Stacking sees through the casts, and every program still computes the same as the f32 recipe.
#[test]
fn casts_change_no_meaning_and_hide_no_stacking() {
    let (wide, narrow) = (stored_as(ENCODER, Dtype::F32), stored_as(ENCODER, Dtype::Bf16));
    let made = programs(&narrow, false).unwrap();
    let plain = programs(&wide, false).unwrap();
    // The worthwhile stackings of gemm-fused programs may differ: casts move bytes.
    let apart = |variants: &[Variant]| -> Vec<String> {
        variants.iter().filter(|v| v.compositions.is_empty()).map(|v| v.key.to_string()).collect()
    };
    assert_eq!(apart(&made.variants), apart(&plain.variants));
    // On chip factors keep the type that contractions multiply, sums are f32.
    let composed = made.variants.iter().find(|v| !v.compositions.is_empty()).unwrap();
    let on_chip = |name: &str| composed.program.containers.get(name).filter(|c| c.storage != Storage::Heap).map(|c| c.dtype);
    assert_eq!((on_chip("alpha"), on_chip("beta"), on_chip("qq.dot")), (Some(Dtype::Bf16), Some(Dtype::F32), Some(Dtype::F32)));
    let run = Run { seed: 3, step: 1, dropout: true };
    let given = random_inputs(&with_small_sizes(&made.operators), 3).unwrap();
    assert!(given["x"].iter().all(|v| Dtype::Bf16.rounded(*v) == *v) && given["wq"].iter().any(|v| Dtype::Bf16.rounded(*v) != *v));
    let want = interpret(&with_small_sizes(&plain.operators), &given, &run).unwrap();
    for variant in &made.variants {
        let program = with_small_sizes(&variant.program);
        assert_eq!(sdfg::validate::validate(&program), vec![], "{}", variant.key);
        let got = interpret(&program, &given, &run).unwrap();
        for container in results(&with_small_sizes(&made.operators)) {
            let (want, got) = (&want[&container.name], &got[&container.name]);
            let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            // Sums of a few hundred terms in f64, in another order.
            let close = want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale);
            assert!(close, "{}: `{}`", variant.key, container.name);
        }
    }
}

/// Optimized, run on tensors from a file and compared with the oracle: the plan holds a sweep checked kernel by kernel.
#[test]
fn a_plan_reads_and_writes_narrow_tensors_and_says_how_accurate_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let recipe = path("mlp.yaml");
    std::fs::write(&recipe, MLP).expect("a recipe");
    let sizes = ["--set", "b=24", "--set", "i=40", "--set", "u=56"];
    let mut optimize = vec!["optimize", &recipe, "--dtype", "bf16", "--budget", "0s", "--timing", "1s"];
    let out = path("out");
    optimize.extend(["--out", &out]);
    optimize.extend(sizes);
    text(&memlet(&optimize));
    let plan = path("out/plan.json");

    // The program's own inputs, through the oracle and back as a file: f32, which every type here fits into.
    let overrides: Vec<(String, i64)> = [("b", 24), ("i", 40), ("u", 56)].map(|(d, n)| (d.to_string(), n)).into();
    let narrow = load_str("mlp.yaml", MLP, Overrides { dtype: Some(Dtype::Bf16), ..Overrides::from(&overrides) }).unwrap();
    let operators = programs(&narrow, false).unwrap().operators;
    let given = random_inputs(&operators, 7).unwrap();
    for inputs in ["given.safetensors", "given.npz"] {
        let (inputs, outputs) = (path(inputs), path("results.safetensors"));
        recipes::pipeline::oracle::tensors::write(Path::new(&inputs), &given, &operators).unwrap();
        assert_eq!(read(Path::new(&inputs), &operators).unwrap(), given, "{inputs}");
        let arguments = [
            "run",
            &plan,
            "--inputs",
            &inputs,
            "--outputs",
            &outputs,
            "--no-dropout",
            "--timing",
            "100ms",
            "--accuracy",
            "--check",
            "--json",
        ];
        let arguments: Vec<&str> = arguments.iter().map(|a| if *a == "100ms" { "0.1s" } else { a }).collect();
        let printed = json(&memlet(&arguments));
        let checked = printed["checked"].as_array().expect("comparisons");
        assert!(!checked.is_empty() && checked.iter().all(|c| c["ratio"].as_f64().is_some_and(|r| r <= 1.0)), "{checked:?}");
        let bytes = std::fs::read(&outputs).expect("results");
        let file = SafeTensors::deserialize(&bytes).expect("safetensors");
        for container in results(&operators) {
            let stored = file.tensor(&container.name).expect("a result").dtype();
            let want = if container.dtype == Dtype::Bf16 { Stored::BF16 } else { Stored::F32 };
            assert_eq!(stored, want, "{}", container.name);
        }
        assert!(results(&operators).iter().any(|c| c.dtype == Dtype::Bf16 && c.role == Role::Gradient), "d_x is narrow");
        let errors = printed["accuracy"].as_array().expect("errors");
        assert_eq!(errors.len(), results(&operators).len());
        for error in errors {
            let norm = error["norm"].as_f64().expect("a number");
            assert!(norm < 0.02, "{error}");
        }
        // The results are really narrow: f32 would be a thousand times more accurate.
        assert!(errors.iter().any(|e| e["norm"].as_f64().is_some_and(|n| n > 1e-4)));
    }
    // The figures agree with the files.
    let truth = oracle(&narrow, &given, &Run { seed: 1, step: 0, dropout: false }).unwrap();
    assert!(accuracy(&truth, &truth).iter().all(|a| a.norm == 0.0));
}

#[test]
fn unsupported_types_are_refused() {
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/mlp.yaml");
    refused(&memlet(&["optimize", recipe, "--dtype", "i32"]), "no floating type; write f64, f32, bf16 or f16");
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().display().to_string();
    refused(&memlet(&["optimize", recipe, "--dtype", "f16", "--out", &out]), "`hidden.dot` multiplies f16, which is for GPUs");
    // Integers are multiplied nowhere.
    let counted = folder.path().join("counted.yaml");
    std::fs::write(&counted, MLP.replace("  x: [i, b]", "  x: {dims: [i, b], dtype: i32, grad: false}")).expect("a recipe");
    refused(&memlet(&["optimize", &counted.display().to_string(), "--out", &out]), "matrix products exist for");
}
