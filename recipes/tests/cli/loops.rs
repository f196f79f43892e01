//! What commands say about loops over time: their kernels' times, their code, and rows that there are none of.

use crate::command::{json, memlet, path, refused, text};
use std::path::Path;

const RECIPE: &str = "# A loop that reads the rows that it has chosen.
model: chooser
dims: {t: 5, b: 3, o: 4, p: 8}
inputs: {x: {dims: [t, b, p], grad: false}}
parameters: {e: [o, p], w: [o, p]}
steps:
  - \"last[t,b] = word[t-1,b else 0]\"
  - \"y[t,b,p] = tanh(e[last[t,b],p] + x[t,b,p])\"
  - \"logit[t,b,o] = w[o,p] * y[t,b,p]\"
  - \"word[t,b] = argmax(logit, over: o)\"
outputs: [word]
";

#[test]
fn a_loop_shows_its_kernels_its_code_and_missing_rows() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loops");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (recipe, plan, file) = (path(&folder, "chooser.yaml"), path(&folder, "plan.json"), path(&folder, "given.safetensors"));
    std::fs::write(&recipe, RECIPE).expect("a recipe");
    text(&memlet(&["optimize", &recipe, "--budget", "1s", "--timing", "1s", "--threads", "2", "--out", &folder.display().to_string()]));
    let ran = json(&memlet(&["run", &plan, "--kernels", "--timing", "1s", "--threads", "2", "--json"]));
    let found = ran["kernels"].as_array().expect("kernels").iter().find(|k| k["body"].is_array()).expect("a loop");
    let body = found["body"].as_array().expect("its kernels");
    let name = found["name"].as_str().expect("its name");
    assert!(body.len() >= 3, "{found}");
    for member in body {
        assert_eq!(member["runs"], 5, "{member}");
        assert!(member["dispatches"].as_u64() >= Some(5) && member["ms"].as_f64() > Some(0.0), "{member}");
        let chip = |key: &str| member["on_chip"][key].as_u64();
        assert!(member["operators"].as_u64() >= Some(1) && chip("requested") >= chip("allocated"), "{member}");
    }
    let classes: Vec<&str> = body.iter().filter_map(|member| member["class"].as_str()).collect();
    assert!(classes.contains(&"contraction") && classes.contains(&"elementwise"), "{classes:?}");
    let shown = text(&memlet(&["run", &plan, "--kernels", "--timing", "1s", "--threads", "2"]));
    assert!(shown.contains("kernel of its body") && shown.contains("all runs ms"), "{shown}");
    let code = text(&memlet(&["explain", &plan, name, "--code"]));
    assert!(code.contains("a loop over `t`, 5 times, from the first one to the last"), "{code}");
    assert_eq!(code.matches("/* ---- ").count(), body.len(), "{code}");
    assert!(code.contains("for (int64_t"), "{code}");
    // An infinite weight makes a row of NaN, of which there is no largest element.
    let one = |values: &[f32], shape: &[usize]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        (shape.to_vec(), bytes)
    };
    let mut w = vec![0.5f32; 32];
    w[3] = f32::NAN;
    let tensors = [("x", one(&[0.25; 120], &[5, 3, 8])), ("e", one(&[0.5; 32], &[4, 8])), ("w", one(&w, &[4, 8]))];
    let views = tensors.iter().map(|(name, (shape, bytes))| {
        (*name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).expect("a tensor"))
    });
    std::fs::write(&file, safetensors::serialize(views, None).expect("tensors")).expect("a file");
    let out = path(&folder, "out.npz");
    let why = "is inf, which names no row of `e`; its rows are 0 to 3";
    refused(&memlet(&["run", &plan, "--inputs", &file, "--outputs", &out, "--timing", "1s"]), why);
}
