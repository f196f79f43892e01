//! Programs of DaCe 1.0.2 and 2.0.0b1 as recipes: stored files of our own programs (`bench/peers/dace_programs.py`), whose results are
//! those of NumPy in f64, a program of Memlet's that comes back, and what is refused.

use crate::command::{json, memlet, path, refused, text};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::BTreeMap;
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

const VERSIONS: [&str; 2] = ["1.0.2", "2.0.0b1"];

fn stored(name: &str) -> String {
    path(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dace"), name)
}

/// Tensors of f64 by name: shape and elements.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f64>)>;

fn read(file: &str) -> Result<Tensors, Failure> {
    let bytes = std::fs::read(file)?;
    let tensors = SafeTensors::deserialize(&bytes)?;
    let values = |data: &[u8]| data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("8 bytes"))).collect();
    Ok(tensors.tensors().into_iter().map(|(name, view)| (name, (view.shape().to_vec(), values(view.data())))).collect())
}

/// Imports a stored program of both versions, compares results with NumPy's, and hands back the recipes.
fn imported(name: &str, sizes: &[&str]) -> Result<Vec<String>, Failure> {
    let mut recipes = vec![];
    for version in VERSIONS {
        let folder = tempfile::tempdir()?;
        let folder = folder.path();
        let (file, out) = (stored(&format!("{name}-{version}.sdfg")), path(folder, "out"));
        let sets: Vec<&str> = sizes.iter().flat_map(|size| ["--set", size]).collect();
        let said = json(&memlet(&[&["import", &file, "--out", &out, "--json"], sets.as_slice()].concat()));
        let (recipe, found) = (path(folder, "out/recipe.yaml"), path(folder, "found.safetensors"));
        let given = stored(&format!("{name}.given.safetensors"));
        text(&memlet(&["interpret", &recipe, "--inputs", &given, "--outputs", &found]));
        let (found, wanted) = (read(&found)?, read(&stored(&format!("{name}.want.safetensors")))?);
        assert!(!wanted.is_empty());
        for (output, (shape, values)) in &wanted {
            let own = said["outputs"][output].as_str().ok_or("the output has no name")?;
            let (own_shape, got) = &found[own];
            assert_eq!(own_shape, shape, "{name} {version}");
            let most = got.iter().zip(values).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(most <= 1e-12, "{name} {version}: {output} differs by {most}");
        }
        recipes.push(std::fs::read_to_string(recipe)?);
    }
    Ok(recipes)
}

#[test]
fn softmax_and_attention_are_steps_that_a_person_reads() -> Result<(), Failure> {
    for recipe in imported("softmax", &["N=6", "M=4"])? {
        assert!(recipe.contains("over: m)\"") && recipe.contains("y[n,m] = e[n,m] / "), "{recipe}");
    }
    for recipe in imported("attention", &["N=6", "M=4", "B=2", "H=2", "D=3"])? {
        assert!(recipe.contains("over: "), "{recipe}");
    }
    Ok(())
}

#[test]
fn tasklets_with_branches_choose_each_element() -> Result<(), Failure> {
    for recipe in imported("branching", &["N=6"])? {
        assert!(recipe.contains("where(x[n] > 0.5, 1, where(x[n] < -0.5, -1, x[n] * x[n]))"), "{recipe}");
    }
    for recipe in imported("if_else", &["N=6"])? {
        assert!(recipe.contains("where("), "{recipe}");
    }
    Ok(())
}

#[test]
fn loops_are_sums_and_loops_over_time() -> Result<(), Failure> {
    for recipe in imported("recurrent", &["M=4", "K=3", "T=5", "B=2"])? {
        assert!(recipe.contains("[t-1,b,"), "{recipe}");
    }
    for recipe in imported("running_sum", &["N=6"])? {
        assert!(recipe.contains("-1 else 0]"), "{recipe}");
    }
    for recipe in imported("inner_loop", &["N=6", "M=4", "K=3"])? {
        assert!(recipe.contains("a[n,k] * b[k,m]"), "{recipe}");
    }
    Ok(())
}

#[test]
fn a_map_within_a_map_sums_as_far_as_the_outer_one_is() -> Result<(), Failure> {
    for recipe in imported("triangular", &["N=6"])? {
        assert!(recipe.contains("sum(where("), "{recipe}");
    }
    Ok(())
}

/// Softmax and its gradient, written by `export` and read again: results are those of the formulas.
#[test]
fn a_program_of_memlet_comes_back_equal() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let recipe = crate::command::recipe("softmax.yaml");
    let file = path(folder, "softmax.sdfg");
    let small = ["--set", "b=2", "--set", "h=2", "--set", "j=3"];
    text(&memlet(&[&["export", &recipe, "--no-dropout", "--dtype", "f64", "--out", &file], small.as_slice()].concat()));
    let written: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    let sizes = written["memlet"]["sizes"].as_object().ok_or("sizes")?;
    let sets: Vec<String> = sizes.iter().flat_map(|(name, value)| ["--set".to_string(), format!("{name}={value}")]).collect();
    let sets: Vec<&str> = sets.iter().map(String::as_str).collect();
    let out = path(folder, "out");
    let said = json(&memlet(&[&["import", &file, "--out", &out, "--json"], sets.as_slice()].concat()));
    let name = |section: &str, key: &str| said[section][key].as_str().map(str::to_string).ok_or(format!("{section} {key} in {said}"));
    let (rows, columns) = (2 * 2 * 3, 3);
    let x: Vec<f64> = (0..rows * columns).map(|n| (n as f64 * 1.7).sin() * 20.0).collect();
    let d_y: Vec<f64> = (0..rows * columns).map(|n| (n as f64 * 0.9).cos()).collect();
    let bytes = |values: &[f64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let (x_bytes, d_y_bytes) = (bytes(&x), bytes(&d_y));
    let shape = vec![2, 2, 3, 3];
    let given = BTreeMap::from([
        (name("inputs", "t_x")?, TensorView::new(Dtype::F64, shape.clone(), &x_bytes)?),
        (name("inputs", "d_y")?, TensorView::new(Dtype::F64, shape.clone(), &d_y_bytes)?),
    ]);
    let (inputs, found) = (path(folder, "given.safetensors"), path(folder, "found.safetensors"));
    safetensors::serialize_to_file(given, None, Path::new(&inputs))?;
    text(&memlet(&["interpret", &path(folder, "out/recipe.yaml"), "--inputs", &inputs, "--outputs", &found]));
    let found = read(&found)?;
    let (y, d_x) = (&found[&name("outputs", "t_y")?], &found[&name("outputs", "d_x")?]);
    assert_eq!((&y.0, &d_x.0), (&shape, &shape));
    for row in 0..rows {
        let own = row * columns..(row + 1) * columns;
        let e: Vec<f64> = x[own.clone()].iter().map(|v| (0.125 * v).exp()).collect();
        let p: Vec<f64> = e.iter().map(|v| v / e.iter().sum::<f64>()).collect();
        let dot: f64 = p.iter().zip(&d_y[own.clone()]).map(|(a, b)| a * b).sum();
        for (n, at) in own.enumerate() {
            assert!((y.1[at] - p[n]).abs() <= 1e-12, "y at {at}: {} is not {}", y.1[at], p[n]);
            let wanted = 0.125 * p[n] * (d_y[at] - dot);
            assert!((d_x.1[at] - wanted).abs() <= 1e-12, "d_x at {at}: {} is not {wanted}", d_x.1[at]);
        }
    }
    Ok(())
}

#[test]
fn what_is_not_read_is_named_all_at_once() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let file = path(folder, "p.sdfg");
    let source = std::fs::read_to_string(stored("softmax-2.0.0b1.sdfg"))?;
    let changed = source.replace("exp(__in1)", "gamma(__in1)").replace("(__in1 - __in2)", "zeta(__in1, __in2)");
    std::fs::write(&file, changed)?;
    let out = path(folder, "out");
    let answer = memlet(&["import", &file, "--out", &out, "--set", "N=6", "--set", "M=4"]);
    refused(&answer, "the function `zeta` of 2 operands is not read");
    assert!(!Path::new(&out).exists());
    refused(&memlet(&["import", &file, "--out", &out, "--set", "N=6"]), "leaves its size `M` open; give it, as --set M=8");
    std::fs::write(&file, source.replace("standard.nodes.reduce.Reduce", "lapack.nodes.potrf.Potrf"))?;
    let answer = memlet(&["import", &file, "--out", &out, "--set", "N=6", "--set", "M=4"]);
    refused(&answer, "the library node Potrf is not read");
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert_eq!(said.matches("Potrf is not read").count(), 2, "both are named: {said}");
    std::fs::write(&file, "{\"type\": \"SDFG\", \"nodes\": 3}")?;
    refused(&memlet(&["import", &file, "--out", &out]), "it writes none of its arguments");
    std::fs::write(&file, "not JSON")?;
    refused(&memlet(&["import", &file, "--out", &out]), "it is no JSON");
    Ok(())
}
