//! ONNX models, made here, as recipes: their results beside those of plain loops, and what is refused.

use crate::command::{json, memlet, path, refused, text};
use crate::onnx::{FLOAT, INT64, floats, int, ints, model, node, text_attribute, value, wholes};
use ndarray::{Array, ArrayD, IxDyn};
use prost::Message;
use recipes::import::proto::{AttributeProto, GraphProto, ModelProto, StringStringEntryProto, TensorProto};
use recipes::pipeline::oracle::tensors::write_as;
use safetensors::SafeTensors;
use sdfg::Dtype;
use sdfg::interpret::Tensors;
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

fn drawn(name: &str, shape: &[usize]) -> ArrayD<f64> {
    let values = sdfg::random::tensor(3, name, shape.iter().product()).into_iter().map(|v| f64::from(v as f32)).collect();
    Array::from_shape_vec(IxDyn(shape), values).expect("a tensor")
}

fn weight(name: &str, shape: &[usize]) -> TensorProto {
    let dims: Vec<i64> = shape.iter().map(|s| *s as i64).collect();
    floats(name, &dims, &drawn(name, shape).iter().map(|v| *v as f32).collect::<Vec<_>>())
}

/// The text of the recipe, and the only output of the model for these inputs.
fn imported(model: &ModelProto, sizes: &[&str], inputs: &[(&str, Dtype, ArrayD<f64>)]) -> Result<(String, ArrayD<f64>), Failure> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let file = path(folder, "model.onnx");
    std::fs::write(&file, model.encode_to_vec())?;
    let sets: Vec<&str> = sizes.iter().flat_map(|size| ["--set", size]).collect();
    let out = path(folder, "out");
    let said = json(&memlet(&[&["import", &file, "--out", &out, "--json"], sets.as_slice()].concat()));
    let given = path(folder, "given.safetensors");
    let named = |name: &str| said["inputs"][name].as_str().unwrap_or(name).to_string();
    let tensors: Tensors = inputs.iter().map(|(name, _, tensor)| (named(name), tensor.clone())).collect();
    let dtype = |name: &str| inputs.iter().find(|(own, ..)| named(own) == *name).map_or(Dtype::F32, |(_, dtype, _)| *dtype);
    write_as(Path::new(&given), &tensors, &dtype)?;
    let (recipe, weights, found) =
        (path(folder, "out/recipe.yaml"), path(folder, "out/weights.safetensors"), path(folder, "f.safetensors"));
    text(&memlet(&["interpret", &recipe, "--dtype", "f64", "--weights", &weights, "--inputs", &given, "--outputs", &found]));
    let read = |file: &str| -> Result<ArrayD<f64>, Failure> {
        let bytes = std::fs::read(file)?;
        let tensors = SafeTensors::deserialize(&bytes)?;
        let (_, view) = tensors.tensors().pop().ok_or("no output")?;
        let values = view.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("8 bytes"))).collect();
        Ok(Array::from_shape_vec(IxDyn(view.shape()), values)?)
    };
    let result = read(&found)?;
    // The model itself stands in a recipe's place, and brings its parameters.
    text(&memlet(&[&["interpret", &file, "--dtype", "f64", "--inputs", &given, "--outputs", &found], sets.as_slice()].concat()));
    assert_eq!(read(&found)?, result);
    Ok((std::fs::read_to_string(recipe)?, result))
}

fn assert_close(found: &ArrayD<f64>, wanted: &ArrayD<f64>) {
    assert_eq!(found.shape(), wanted.shape());
    let most = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(most <= 1e-12, "{most}");
}

#[test]
fn a_perceptron_is_two_products() -> Result<(), Failure> {
    let nodes = vec![
        node("Gemm", &["x", "/l1/w", "/l1/b"], &["/l1/Gemm_output_0"], vec![int("transB", 1)]),
        node("Relu", &["/l1/Gemm_output_0"], &["h"], vec![]),
        node("MatMul", &["h", "w2"], &["score"], vec![]),
    ];
    let weights = vec![weight("/l1/w", &[5, 3]), weight("/l1/b", &[5]), weight("w2", &[5, 2])];
    let model = model(nodes, weights, vec![value("x", FLOAT, &["batch", "3"])], vec![value("score", FLOAT, &["batch", "2"])]);
    let (recipe, found) = imported(&model, &["batch=4"], &[("x", Dtype::F32, drawn("x", &[4, 3]))])?;
    let (x, w, b, v) = (drawn("x", &[4, 3]), drawn("/l1/w", &[5, 3]), drawn("/l1/b", &[5]), drawn("w2", &[5, 2]));
    let wanted = Array::from_shape_fn((4, 2), |(n, o)| {
        let hidden = |u: usize| (b[u] + (0..3).map(|i| w[[u, i]] * x[[n, i]]).sum::<f64>()).max(0.0);
        (0..5).map(|u| hidden(u) * v[[u, o]]).sum::<f64>()
    });
    assert_close(&found, &wanted.into_dyn());
    for line in [
        "  batch: 4",
        "  x: [batch, i3]",
        "  # Gemm node_/l1/Gemm_output_0",
        "  - \"l1_Gemm[batch,i5] = x[batch,i3] * l1_w[i5,i3] + l1_b[i5]\"",
        "  - \"score[batch,i2] = h[batch,i5] * w2[i5,i2]\"",
    ] {
        assert!(recipe.contains(line), "{line}\n{recipe}");
    }
    Ok(())
}

#[test]
fn a_small_network_reshapes_by_computed_shapes_and_copies_nothing() -> Result<(), Failure> {
    let nodes = vec![
        node("Conv", &["image", "k", "b"], &["c"], vec![ints("pads", &[1, 1, 1, 1]), ints("strides", &[2, 1])]),
        node("Relu", &["c"], &["r"], vec![]),
        node("MaxPool", &["r"], &["p"], vec![ints("kernel_shape", &[2, 2]), ints("strides", &[1, 2])]),
        // The first size of the shape, and −1.
        node("Shape", &["p"], &["shape"], vec![]),
        node("Gather", &["shape", "zero"], &["first"], vec![]),
        node("Unsqueeze", &["first", "axis"], &["front"], vec![]),
        node("Concat", &["front", "rest"], &["wanted"], vec![int("axis", 0)]),
        node("Reshape", &["p", "wanted"], &["flat"], vec![]),
        node("Transpose", &["flat"], &["turned"], vec![ints("perm", &[1, 0])]),
        node("MatMul", &["v", "turned"], &["score"], vec![]),
    ];
    let weights = vec![
        weight("k", &[4, 2, 3, 3]),
        weight("b", &[4]),
        weight("v", &[3, 4 * 2 * 3]),
        wholes("zero", &[], &[0]),
        wholes("axis", &[1], &[0]),
        wholes("rest", &[1], &[-1]),
    ];
    let model = model(nodes, weights, vec![value("image", FLOAT, &["2", "2", "6", "6"])], vec![value("score", FLOAT, &["3", "2"])]);
    let (recipe, found) = imported(&model, &[], &[("image", Dtype::F32, drawn("image", &[2, 2, 6, 6]))])?;
    let (x, k, b, v) = (drawn("image", &[2, 2, 6, 6]), drawn("k", &[4, 2, 3, 3]), drawn("b", &[4]), drawn("v", &[3, 24]));
    let conv = |n: usize, o: usize, p: usize, q: usize| {
        let mut sum = b[o];
        for (c, r, s) in (0..18).map(|t| (t / 9, t / 3 % 3, t % 3)) {
            let (h, w) = ((2 * p + r) as i64 - 1, (q + s) as i64 - 1);
            if (0..6).contains(&h) && (0..6).contains(&w) {
                sum += k[[o, c, r, s]] * x[[n, c, h as usize, w as usize]];
            }
        }
        sum.max(0.0)
    };
    let pooled =
        |n: usize, o: usize, p: usize, q: usize| (0..4).map(|t| conv(n, o, p + t / 2, 2 * q + t % 2)).fold(f64::NEG_INFINITY, f64::max);
    let wanted = Array::from_shape_fn((3, 2), |(u, n)| (0..24).map(|f| v[[u, f]] * pooled(n, f / 6, f / 3 % 2, f % 3)).sum::<f64>());
    assert_close(&found, &wanted.into_dyn());
    assert_eq!(recipe.matches("  - \"").count(), 4, "{recipe}");
    assert!(recipe.contains("image[i2,j2,2*k3+i3-1,i6+j3-1 else 0]"), "{recipe}");
    Ok(())
}

#[test]
fn heads_are_subscripts() -> Result<(), Failure> {
    // [batch, place, head · width] → [batch, head, place, width] → scores → back.
    let nodes = vec![
        node("Reshape", &["x", "parted"], &["x4"], vec![]),
        node("Transpose", &["x4"], &["q"], vec![ints("perm", &[0, 2, 1, 3])]),
        node("Transpose", &["x4"], &["kt"], vec![ints("perm", &[0, 2, 3, 1])]),
        node("MatMul", &["q", "kt"], &["scores"], vec![]),
        node("Softmax", &["scores"], &["weights"], vec![]),
        node("MatMul", &["weights", "q"], &["mixed"], vec![]),
        node("Transpose", &["mixed"], &["turned"], vec![ints("perm", &[0, 2, 1, 3])]),
        node("Reshape", &["turned", "joined"], &["y3"], vec![]),
        node("Slice", &["y3", "from", "to", "along", "by"], &["part"], vec![]),
        node("MatMul", &["part", "w"], &["y"], vec![]),
    ];
    let weights = vec![
        wholes("parted", &[4], &[0, 0, 2, 3]),
        wholes("joined", &[3], &[0, 0, 6]),
        wholes("from", &[1], &[-1]),
        wholes("to", &[1], &[-100]),
        wholes("along", &[1], &[1]),
        wholes("by", &[1], &[-2]),
        weight("w", &[6, 5]),
    ];
    let model = model(nodes, weights, vec![value("x", FLOAT, &["2", "4", "6"])], vec![value("y", FLOAT, &["2", "2", "5"])]);
    let (recipe, found) = imported(&model, &[], &[("x", Dtype::F32, drawn("x", &[2, 4, 6]))])?;
    let (x, w) = (drawn("x", &[2, 4, 6]), drawn("w", &[6, 5]));
    let mixed = |b: usize, j: usize, h: usize, d: usize| {
        let score = |k: usize| (0..3).map(|e| x[[b, j, 3 * h + e]] * x[[b, k, 3 * h + e]]).sum::<f64>();
        let most = (0..4).map(score).fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = (0..4).map(|k| (score(k) - most).exp()).collect();
        (0..4).map(|k| weights[k] / weights.iter().sum::<f64>() * x[[b, k, 3 * h + d]]).sum::<f64>()
    };
    let wanted = Array::from_shape_fn((2, 2, 5), |(b, t, o)| (0..6).map(|f| mixed(b, 3 - 2 * t, f / 3, f % 3) * w[[f, o]]).sum::<f64>());
    assert_close(&found, &wanted.into_dyn());
    assert_eq!(recipe.matches("  - \"").count(), 4, "{recipe}");
    Ok(())
}

/// Four places, whose waves are exact.
#[test]
fn a_spectrum_is_a_product_with_waves() -> Result<(), Failure> {
    let nodes = vec![node("DFT", &["x", "length", "along"], &["y"], vec![int("onesided", 1)])];
    let weights = vec![wholes("length", &[], &[4]), wholes("along", &[], &[1])];
    let model = model(nodes, weights, vec![value("x", FLOAT, &["2", "3", "1"])], vec![value("y", FLOAT, &["2", "3", "2"])]);
    let (_, found) = imported(&model, &[], &[("x", Dtype::F32, drawn("x", &[2, 3, 1]))])?;
    let x = drawn("x", &[2, 3, 1]);
    let wave = |k: usize, n: usize, c: usize| [[1.0, 0.0, -1.0, 0.0], [0.0, -1.0, 0.0, 1.0]][c][k * n % 4];
    let wanted = Array::from_shape_fn((2, 3, 2), |(m, k, c)| (0..3).map(|n| wave(k, n, c) * x[[m, n, 0]]).sum::<f64>());
    assert_close(&found, &wanted.into_dyn());
    Ok(())
}

#[test]
fn an_image_is_read_between_its_places() -> Result<(), Failure> {
    let nodes = vec![node("GridSample", &["x", "grid"], &["y"], vec![int("align_corners", 1), text_attribute("mode", "linear")])];
    let inputs = vec![value("x", FLOAT, &["1", "2", "3", "4"]), value("grid", FLOAT, &["1", "5", "2", "2"])];
    let model = model(nodes, vec![], inputs, vec![value("y", FLOAT, &["1", "2", "5", "2"])]);
    let (x, grid) = (drawn("x", &[1, 2, 3, 4]), drawn("grid", &[1, 5, 2, 2]));
    let (_, found) = imported(&model, &[], &[("x", Dtype::F32, x.clone()), ("grid", Dtype::F32, grid.clone())])?;
    let hat = |place: f64, at: usize| (1.0 - (place - at as f64).abs()).max(0.0);
    let wanted = Array::from_shape_fn((1, 2, 5, 2), |(_, c, p, q)| {
        let (w, h) = ((grid[[0, p, q, 0]] + 1.0) / 2.0 * 3.0, (grid[[0, p, q, 1]] + 1.0) / 2.0 * 2.0);
        (0..12).map(|n| hat(h, n / 4) * hat(w, n % 4) * x[[0, c, n / 4, n % 4]]).sum::<f64>()
    });
    assert!(grid.iter().any(|g| g.abs() > 1.0) && grid.iter().any(|g| g.abs() < 0.5), "some places lie outside, others within");
    assert_close(&found, &wanted.into_dyn());
    Ok(())
}

/// What lies beside the only place of an axis is padding, not that place again; and between kernels of one place lies nothing.
#[test]
fn a_window_reads_an_axis_of_one_place_once() -> Result<(), Failure> {
    // Images of one channel, 1×3, around which are two rows of zeros, and kernels of 2×2.
    let nodes = vec![node("Conv", &["x", "k"], &["y"], vec![ints("pads", &[1, 0, 1, 0])])];
    let inputs = vec![value("x", FLOAT, &["1", "1", "1", "3"])];
    let conv = model(nodes, vec![weight("k", &[1, 1, 2, 2])], inputs, vec![value("y", FLOAT, &["1", "1", "2", "2"])]);
    let (x, k) = (drawn("x", &[1, 1, 1, 3]), drawn("k", &[1, 1, 2, 2]));
    let (_, found) = imported(&conv, &[], &[("x", Dtype::F32, x.clone())])?;
    let row = |r: usize, q: usize| k[[0, 0, r, 0]] * x[[0, 0, 0, q]] + k[[0, 0, r, 1]] * x[[0, 0, 0, q + 1]];
    assert_close(&found, &Array::from_shape_fn((1, 1, 2, 2), |(_, _, p, q)| row(1 - p, q)).into_dyn());
    // The places of a row three apart, and its only kernel element at each; then a kernel of 3 with two places between its elements.
    for (stride, dilation, width, places) in [(3, 1, 1, 7), (1, 3, 3, 9)] {
        let attributes = vec![ints("strides", &[stride as i64]), ints("dilations", &[dilation as i64])];
        let nodes = vec![node("ConvTranspose", &["x", "k"], &["y"], attributes)];
        let (inputs, outputs) = (vec![value("x", FLOAT, &["1", "1", "3"])], vec![value("y", FLOAT, &["1", "2", &places.to_string()])]);
        let model = model(nodes, vec![weight("k", &[1, 2, width])], inputs, outputs);
        let (x, k) = (drawn("x", &[1, 1, 3]), drawn("k", &[1, 2, width]));
        let (_, found) = imported(&model, &[], &[("x", Dtype::F32, x.clone())])?;
        let mut wanted = ArrayD::zeros(IxDyn(&[1, 2, places]));
        for at in 0..6 * width {
            let (o, h, r) = (at % 2, at / 2 % 3, at / 6);
            wanted[[0, o, stride * h + dilation * r]] += x[[0, 0, h]] * k[[0, o, r]];
        }
        assert_close(&found, &wanted);
    }
    Ok(())
}

#[test]
fn rows_are_read_by_numbers_from_either_end() -> Result<(), Failure> {
    let nodes = vec![node("Gather", &["table", "ids"], &["rows"], vec![])];
    let (inputs, outputs) = (vec![value("ids", INT64, &["3"])], vec![value("rows", FLOAT, &["3", "2"])]);
    let model = model(nodes, vec![weight("table", &[4, 2])], inputs, outputs);
    let ids = Array::from_vec(vec![1.0, -1.0, 0.0]).into_dyn();
    let (recipe, found) = imported(&model, &[], &[("ids", Dtype::I64, ids)])?;
    let table = drawn("table", &[4, 2]);
    assert_close(&found, &Array::from_shape_fn((3, 2), |(n, i)| table[[[1, 3, 0][n], i]]).into_dyn());
    assert!(recipe.contains("ids: {dims: [i3], dtype: i64, range: \"[-4, 3]\"}"), "{recipe}");
    Ok(())
}

#[test]
fn a_recurrent_layer_is_a_loop_over_time() -> Result<(), Failure> {
    let attributes = || vec![int("hidden_size", 2), int("linear_before_reset", 1), text_attribute("direction", "reverse")];
    let nodes = vec![node("GRU", &["x", "w", "r", "b", "", "h0"], &["y", ""], attributes())];
    let weights = vec![weight("w", &[1, 6, 3]), weight("r", &[1, 6, 2]), weight("b", &[1, 12]), weight("h0", &[1, 4, 2])];
    let model = model(nodes, weights, vec![value("x", FLOAT, &["5", "4", "3"])], vec![value("y", FLOAT, &["5", "1", "4", "2"])]);
    let (recipe, found) = imported(&model, &[], &[("x", Dtype::F32, drawn("x", &[5, 4, 3]))])?;
    let (x, w, r) = (drawn("x", &[5, 4, 3]), drawn("w", &[1, 6, 3]), drawn("r", &[1, 6, 2]));
    let (b, h0) = (drawn("b", &[1, 12]), drawn("h0", &[1, 4, 2]));
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    let mut wanted = ArrayD::zeros(IxDyn(&[5, 1, 4, 2]));
    for n in 0..4 {
        let mut h = [h0[[0, n, 0]], h0[[0, n, 1]]];
        for t in (0..5).rev() {
            let of_input = |g: usize| b[[0, g]] + (0..3).map(|i| w[[0, g, i]] * x[[t, n, i]]).sum::<f64>();
            let of_state = |g: usize| b[[0, 6 + g]] + (0..2).map(|k| r[[0, g, k]] * h[k]).sum::<f64>();
            let next = [0, 1].map(|u| {
                let z = sigmoid(of_input(u) + of_state(u));
                let reset = sigmoid(of_input(2 + u) + of_state(2 + u));
                (1.0 - z) * (of_input(4 + u) + reset * of_state(4 + u)).tanh() + z * h[u]
            });
            h = next;
            (0..2).for_each(|u| wanted[[t, 0, n, u]] = h[u]);
        }
    }
    assert_close(&found, &wanted);
    assert!(recipe.contains("y_h[i5+1,"), "{recipe}");
    Ok(())
}

#[test]
fn parts_are_joined_and_chosen_from_either_branch() -> Result<(), Failure> {
    let branch = |operator: &str, name: &str| GraphProto {
        node: vec![node(operator, &["a"], &[name], vec![])],
        output: vec![value(name, FLOAT, &["2", "3"])],
        ..GraphProto::default()
    };
    let graph = |name: &str, g: GraphProto| AttributeProto { name: name.into(), g: Some(g), r#type: 5, ..AttributeProto::default() };
    let nodes = vec![
        node("Split", &["x", "parts"], &["a", "b"], vec![int("axis", 0)]),
        node("ReduceSum", &["b"], &["sum"], vec![int("keepdims", 0)]),
        node("Greater", &["sum", "zero"], &["is_positive"], vec![]),
        node("If", &["is_positive"], &["c"], vec![graph("then_branch", branch("Neg", "n")), graph("else_branch", branch("Exp", "e"))]),
        node("Concat", &["b", "c"], &["y"], vec![int("axis", -2)]),
    ];
    let weights = vec![wholes("parts", &[2], &[2, 3]), floats("zero", &[], &[0.0])];
    let model = model(nodes, weights, vec![value("x", FLOAT, &["5", "3"])], vec![value("y", FLOAT, &["5", "3"])]);
    let x = drawn("x", &[5, 3]);
    for sign in [1.0, -1.0] {
        let x = x.mapv(|v| sign * v);
        let (recipe, found) = imported(&model, &[], &[("x", Dtype::F32, x.clone())])?;
        let sum: f64 = (2..5).flat_map(|r| (0..3).map(move |c| (r, c))).map(|(r, c)| x[[r, c]]).sum();
        let f = |v: f64| if sum > 0.0 { -v } else { v.exp() };
        assert_close(&found, &Array::from_shape_fn((5, 3), |(r, c)| if r < 3 { x[[r + 2, c]] } else { f(x[[r - 3, c]]) }).into_dyn());
        assert!(recipe.contains("size("), "{recipe}");
    }
    Ok(())
}

/// Runs an import that is refused; what it says.
fn said(bytes: &[u8], why: &str) -> Result<String, Failure> {
    let folder = tempfile::tempdir()?;
    let file = path(folder.path(), "model.onnx");
    std::fs::write(&file, bytes)?;
    let out = path(folder.path(), "out");
    let output = memlet(&["import", &file, "--out", &out]);
    refused(&output, why);
    assert!(!Path::new(&out).exists(), "a refused model leaves no files");
    Ok(String::from_utf8(output.stderr)?)
}

#[test]
fn all_that_is_refused_is_named_at_once() -> Result<(), Failure> {
    let nodes = vec![
        node("StringNormalizer", &["x"], &["a"], vec![]),
        node("Relu", &["a"], &["b"], vec![]),
        node("Reshape", &["x", "shape"], &["c"], vec![]),
        node("Add", &["x", "wide"], &["d"], vec![]),
    ];
    let inputs = vec![value("x", FLOAT, &["2", "3"]), value("shape", INT64, &["2"])];
    let outputs = vec![value("b", FLOAT, &["2", "3"]), value("c", FLOAT, &["3", "2"]), value("d", FLOAT, &["2", "3"])];
    let model = model(nodes, vec![weight("wide", &[7])], inputs, outputs);
    let all = said(&model.encode_to_vec(), "node `node_a` (StringNormalizer): the operator is not supported")?;
    for why in [
        "node `node_c` (Reshape): the value of `shape` must be known at import, and it is an input",
        "node `node_d` (Add): sizes 7 and 3 do not fit each other",
        "docs/import.md lists what is supported",
    ] {
        assert!(all.contains(why), "{why}\n{all}");
    }
    assert!(!all.contains("node_b"), "what follows a refused node is not blamed: {all}");
    Ok(())
}

#[test]
fn open_sizes_are_asked_for() -> Result<(), Failure> {
    let nodes = vec![node("Relu", &["x"], &["y"], vec![])];
    let sized = |sizes: &[&str]| model(nodes.clone(), vec![], vec![value("x", FLOAT, sizes)], vec![value("y", FLOAT, sizes)]);
    said(&sized(&["batch", "3"]).encode_to_vec(), "the input `x` leaves its size `batch` open; give it, as --set batch=8")?;
    let folder = tempfile::tempdir()?;
    let file = path(folder.path(), "model.onnx");
    std::fs::write(&file, sized(&["batch", "2*batch"]).encode_to_vec())?;
    let out = path(folder.path(), "out");
    refused(&memlet(&["import", &file, "--out", &out, "--set", "batch=2", "--set", "bach=3"]), "no size `bach` to --set; it has `batch`");
    text(&memlet(&["import", &file, "--out", &out, "--set", "batch=2"]));
    assert!(std::fs::read_to_string(path(folder.path(), "out/recipe.yaml"))?.contains("x: [batch, i4]"));
    text(&memlet(&["analyze", &file, "--set", "batch=2"]));
    Ok(())
}

#[test]
fn files_that_are_cut_off_or_wrong_are_refused() -> Result<(), Failure> {
    let nodes = vec![node("Conv", &["x", "k"], &["y"], vec![ints("pads", &[1, 1])])];
    let whole =
        model(nodes, vec![weight("k", &[2, 2, 3])], vec![value("x", FLOAT, &["1", "2", "8"])], vec![value("y", FLOAT, &["1", "2", "8"])]);
    let bytes = whole.encode_to_vec();
    let import = |bytes: &[u8]| {
        let model = ModelProto::decode(bytes).map_err(|e| e.to_string())?;
        recipes::import::import_model(&model, "m.onnx", Path::new(""), &[]).map(|i| i.recipe).map_err(|e| e.to_string())
    };
    import(&bytes)?;
    for end in 0..bytes.len() {
        // No panic; what still says all that is needed may be read.
        let _ = import(&bytes[..end]);
    }
    for (place, flipped) in (0..bytes.len()).flat_map(|place| [1u8, 8, 0x40, 0x80].map(|bit| (place, bit))) {
        let mut other = bytes.clone();
        other[place] ^= flipped;
        let _ = import(&other);
    }
    said(&bytes[..bytes.len() / 2], "is no ONNX model, or it is cut off")?;
    said(b"model: m\n", "model.onnx: it ")?;
    let changed = |change: &dyn Fn(&mut ModelProto)| {
        let mut model = whole.clone();
        change(&mut model);
        model.encode_to_vec()
    };
    let tensor = |change: fn(&mut TensorProto)| changed(&|m| change(&mut m.graph.as_mut().expect("a graph").initializer[0]));
    said(&tensor(|t| t.float_data.truncate(5)), "the tensor `k`: its shape [2, 2, 3] has 12 elements, and the file has 5 for it")?;
    said(&tensor(|t| t.data_type = 8), "the tensor `k`: it is of type STRING")?;
    said(&tensor(|t| t.dims = vec![-2, 2, 3]), "the tensor `k`: it has a negative size")?;
    said(&tensor(|t| t.dims = vec![1 << 40, 1 << 40, 3]), "its sizes do not fit any memory")?;
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    let external = |location: &str| {
        changed(&|m| {
            let tensor = &mut m.graph.as_mut().expect("a graph").initializer[0];
            (tensor.data_location, tensor.float_data) = (1, vec![]);
            tensor.external_data = vec![entry("location", location)];
        })
    };
    said(&external("weights.bin"), "keep the file beside the model")?;
    said(&external("../weights.bin"), "which is not beside the model")?;
    said(&changed(&|m| m.opset_import[0].version = 99), "its operator set is 99, and 7 to 28 are read")?;
    Ok(())
}

/// Operands of all ranks, too few and too many of them, and attributes that do not fit: each node is written or refused.
#[test]
fn no_operator_panics_on_operands_that_do_not_fit() {
    let shapes: [&[&str]; 5] = [&[], &["3"], &["2", "3"], &["1", "2", "3"], &["1", "2", "4", "3"]];
    let attributes: [Vec<AttributeProto>; 4] = [
        vec![],
        vec![int("axis", 3), ints("perm", &[0, 1]), ints("axes", &[0, 0, 5]), ints("kernel_shape", &[2, 2]), int("num_scan_inputs", 1)],
        vec![int("group", 2), ints("pads", &[1, 1]), ints("strides", &[0, 2]), ints("axes", &[3, 3]), int("transA", 1), int("transB", 1)],
        vec![int("axis", -1), int("q_num_heads", 2), int("kv_num_heads", 2), int("num_heads", 2), int("layout", 1), int("batch_dims", 1)],
    ];
    let mut panicked = vec![];
    for operator in recipes::import::operator_names() {
        for (first, second) in (0..25).map(|n| (shapes[n / 5], shapes[n % 5])) {
            for (count, attributes, second_is_known) in
                (0..5).flat_map(|n| attributes.iter().flat_map(move |a| [(n, a, false), (n, a, true)]))
            {
                let names = ["a", "b", "c", "d"];
                let sized = |(n, name): (usize, &&str)| value(name, FLOAT, if n == 0 { first } else { second });
                let inputs: Vec<_> = names[..count].iter().enumerate().map(sized).collect();
                let (mut given, mut weights) = (inputs, vec![]);
                if second_is_known && count > 1 {
                    given.truncate(1);
                    weights.extend(names[1..count].iter().map(|name| wholes(name, &[2], &[1, -7])));
                }
                let nodes = vec![node(operator, &names[..count], &["y", "z"], attributes.clone())];
                let model = model(nodes, weights, given, vec![value("y", FLOAT, &["1"])]);
                let import = || recipes::import::import_model(&model, "m.onnx", Path::new(""), &[]).map(|i| i.recipe.len());
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| import().is_ok())).is_err() {
                    panicked.push(format!("{operator} of {count} operands {first:?} {second:?}, {}", attributes.len()));
                }
            }
        }
    }
    assert!(panicked.is_empty(), "{} panicked, first {:?}", panicked.len(), panicked.first());
}

#[test]
fn external_data_are_read_beside_the_model() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let values = drawn("w", &[3]);
    let bytes: Vec<u8> = [0u8; 4].into_iter().chain(values.iter().flat_map(|v| (*v as f32).to_le_bytes())).collect();
    std::fs::write(folder.path().join("data.bin"), bytes)?;
    let entry = |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    let tensor = TensorProto {
        name: "w".into(),
        dims: vec![3],
        data_type: FLOAT,
        data_location: 1,
        external_data: vec![entry("location", "data.bin"), entry("offset", "4"), entry("length", "12")],
        ..TensorProto::default()
    };
    let nodes = vec![node("Mul", &["x", "w"], &["y"], vec![])];
    let model = model(nodes, vec![tensor], vec![value("x", FLOAT, &["3"])], vec![value("y", FLOAT, &["3"])]);
    let file = path(folder.path(), "model.onnx");
    std::fs::write(&file, model.encode_to_vec())?;
    text(&memlet(&["import", &file, "--out", &path(folder.path(), "out")]));
    let bytes = std::fs::read(folder.path().join("out/weights.safetensors"))?;
    let stored = SafeTensors::deserialize(&bytes)?;
    let wanted: Vec<u8> = values.iter().flat_map(|v| (*v as f32).to_le_bytes()).collect();
    assert_eq!(stored.tensor("w")?.data(), wanted);
    Ok(())
}

#[test]
fn the_page_lists_every_operator() {
    let page = include_str!("../../../docs/import.md");
    let names = text(&memlet(&["import", "--operators"]));
    let missing: Vec<&str> = names.lines().filter(|name| !page.contains(&format!("`{name}`"))).collect();
    assert!(missing.is_empty(), "docs/import.md lacks {missing:?}");
    let mentioned = page.split("<!-- operators -->").nth(1).unwrap_or_default().split('`').skip(1).step_by(2);
    let gone: Vec<&str> = mentioned.filter(|name| !names.lines().any(|own| own == *name)).collect();
    assert!(gone.is_empty(), "docs/import.md lists {gone:?}, which are not supported");
}
