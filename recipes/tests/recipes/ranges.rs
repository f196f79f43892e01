//! Ranges that a recipe declares: drawn values lie within, and given values are checked.

use ndarray::{ArrayD, IxDyn};
use recipes::load::load_str;
use recipes::pipeline::oracle::overflow::overflow_message;
use recipes::pipeline::oracle::tensors::{random_inputs, read, write};
use recipes::pipeline::variants::programs::programs;
use sdfg::Sdfg;

type Failure = Box<dyn std::error::Error>;

/// A recipe with these inputs, a parameter, and sizes n = 300, c = 10.
fn recipe(inputs: &str) -> String {
    format!(
        "model: m\ndims: {{n: 300, c: 10}}\ninputs:\n{inputs}parameters:\n  w: {{dims: [c, n], range: [0.25, 0.5]}}\nsteps:\n  - \
         \"y[n] = sum(where(a[n] == c, log(x[n,c]) + w[c,n], 0), over: c)\"\n"
    )
}

const LABELS: &str = "  a: {dims: [n], dtype: i32, range: \"[0, size(c))\"}\n";

fn program(inputs: &str) -> Sdfg {
    load_str("m.yaml", &recipe(inputs), &[]).unwrap_or_else(|e| panic!("{e}")).program
}

#[test]
fn drawn_values_lie_in_their_range() -> Result<(), Failure> {
    for (range, dtype, low, high, open) in [
        ("[0, 1]", "f32", 0.0, 1.0, [false, false]),
        ("\"(0, 1)\"", "bf16", 0.0, 1.0, [true, true]),
        ("[-1 / size(c), 1 / size(c)]", "f32", -0.1, 0.1, [false, false]),
        ("\"(0, inf)\"", "f32", 0.0, f64::INFINITY, [true, true]),
        ("[-.inf, -3]", "f16", f64::NEG_INFINITY, -3.0, [false, false]),
        ("\"[1e-3, 2e-3)\"", "f16", 1e-3, 2e-3, [false, true]),
    ] {
        let program = program(&format!("  x: {{dims: [n, c], dtype: {dtype}, range: {range}}}\n{LABELS}"));
        let tensors = random_inputs(&program, 1)?;
        let x = &tensors["x"];
        let nearest = |v: f64| program.containers["x"].dtype.rounded(v);
        let within =
            |v: &f64| (*v > low || (!open[0] && *v >= nearest(low).min(low))) && (*v < high || (!open[1] && *v <= nearest(high).max(high)));
        assert!(x.iter().all(within), "{range} of {dtype}: {:?}", x.iter().find(|v| !within(v)));
        let distinct = x.iter().map(|v| v.to_bits()).collect::<std::collections::BTreeSet<_>>().len();
        assert!(distinct > 50, "{range} of {dtype}: {distinct} values");
        assert!(tensors["w"].iter().all(|v| (0.25..=0.5).contains(v)), "a weight with a range is not scaled");
        let count = |label: f64| tensors["a"].iter().filter(|v| **v == label).count();
        assert!((0..10).all(|label| count(f64::from(label)) > 10), "{:?}", tensors["a"]);
    }
    // Its programs, and those at smaller sizes, have ranges by their own sizes.
    let of = programs(&load_str("m.yaml", &recipe(&format!("  x: [n, c]\n{LABELS}")), &[("c".into(), 3)])?, false)?;
    for program in of.variants.iter().map(|v| &v.program).chain([&of.unfused, &of.operators]) {
        assert!(random_inputs(program, 1)?["a"].iter().all(|v| [0.0, 1.0, 2.0].contains(v)));
    }
    Ok(())
}

#[test]
fn given_values_are_checked() -> Result<(), Failure> {
    let (folder, program) = (tempfile::tempdir()?, program(&format!("  x: {{dims: [n, c], range: [0, 1]}}\n{LABELS}")));
    let good = random_inputs(&program, 3)?;
    let says = |data: &str, place: &[usize], value: f64| -> Result<String, Failure> {
        let (path, mut given) = (folder.path().join("in.safetensors"), good.clone());
        given.get_mut(data).ok_or("a tensor")?[IxDyn(place)] = value;
        write(&path, &given, &program)?;
        Ok(read(&path, &program).map(|_| String::new()).unwrap_or_else(|e| e.to_string()))
    };
    let refused = says("a", &[3], 77.0)?;
    assert!(refused.ends_with("`a` at [3] is 77, but the recipe says that its values are in [0, 10)"), "{refused}");
    assert!(says("a", &[0], -1.0)?.contains("`a` at [0] is -1"));
    assert!(says("a", &[299], 10.0)?.contains("`a` at [299] is 10"));
    assert!(says("x", &[2, 5], 1.5)?.ends_with("`x` at [2, 5] is 1.5, but the recipe says that its values are in [0, 1]"));
    assert!(says("x", &[2, 5], f64::NAN)?.contains("`x` at [2, 5] is NaN"));
    for (data, place, value) in [("a", &[3][..], 9.0), ("x", &[0, 0], 0.0), ("x", &[0, 1], 1.0)] {
        assert_eq!(says(data, place, value)?, "");
    }
    Ok(())
}

/// The nearest bf16 to 0.1 is larger, and is what a file of bf16 holds for it.
#[test]
fn a_bound_is_rounded_as_values_are() -> Result<(), Failure> {
    let text = "model: m\ndims: {n: 2}\ndtype: bf16\ninputs: {x: {dims: [n], range: [-0.1, 0.1]}}\nsteps: [\"y[n] = x[n]\"]\n";
    let (folder, program) = (tempfile::tempdir()?, load_str("m.yaml", text, &[])?.program);
    let path = folder.path().join("in.npz");
    let given = [("x".to_string(), ArrayD::from_shape_vec(IxDyn(&[2]), vec![0.1, -0.10009765625])?)].into();
    write(&path, &given, &program)?;
    assert_eq!(read(&path, &program)?["x"].as_slice(), Some(&[0.10009765625, -0.10009765625][..]));
    Ok(())
}

/// The label of a cross entropy is one of its classes, also without a declared range.
#[test]
fn the_label_of_a_cross_entropy_is_a_class() -> Result<(), Failure> {
    let text = "model: m\ndims: {n: 4, c: 10}\ninputs: {x: [n, c], label: {dims: [n], dtype: i64}}\nsteps:\n  - \
                \"y[n] = cross_entropy(x, label, over: c)\"\n";
    let (folder, program) = (tempfile::tempdir()?, load_str("m.yaml", text, &[])?.program);
    let (path, mut given) = (folder.path().join("in.npz"), random_inputs(&program, 1)?);
    given.insert("label".into(), ArrayD::from_shape_vec(IxDyn(&[4]), vec![0.0, 9.0, 77.0, 1.0])?);
    write(&path, &given, &program)?;
    let refused = read(&path, &program).expect_err("no class").to_string();
    assert!(refused.ends_with("`label` at [2] is 77, but the recipe says that its values are in [0, 10)"), "{refused}");
    Ok(())
}

#[test]
fn ranges_that_fail() {
    let says = |range: &str, dtype: &str| {
        let text = recipe(&format!("  x: {{dims: [n, c], dtype: {dtype}, range: {range}}}\n{LABELS}"));
        load_str("t.yaml", &text, &[]).map(|_| String::new()).unwrap_or_else(|e| e.to_string())
    };
    let form = "the range of `x` must be [low, high], or a text such as \"[0, size(c))\" or \"(0, inf)\"";
    for range in ["[0]", "[0, 1, 2]", "5", "\"0, 1\"", "\"[0 1]\"", "\"\"", "{low: 0}", "null"] {
        assert!(says(range, "f32").contains(form), "{range}: {}", says(range, "f32"));
    }
    for (range, dtype, says_so) in [
        ("[1, 0]", "f32", "the range of `x` is [1, 0] under these sizes, and no value of f32 lies in it"),
        ("\"(1, 1]\"", "f32", "the range of `x` is (1, 1] under these sizes, and no value of f32 lies in it"),
        ("[0.25, 0.75]", "i32", "the range of `x` is [0.25, 0.75] under these sizes, and no value of i32 lies in it"),
        ("[0, siz(c)]", "f32", "unknown operator `siz`"),
        ("[0, 1e400]", "f32", "the number `1e400` is too large"),
        ("[a, 1]", "f32", "unknown tensor `a`"),
    ] {
        assert!(says(range, dtype).contains(says_so), "{range}: {}", says(range, dtype));
    }
}

/// Plans hold programs as JSON, tests as text.
#[test]
fn ranges_survive_writing_and_reading() -> Result<(), Failure> {
    let program = program(&format!("  x: {{dims: [n, c], range: \"(-1 / sqrt(size(c)), inf)\"}}\n{LABELS}"));
    let text = sdfg::text::print(&program);
    assert!(text.contains("a[n] i32 within [0.0, [C])"), "{text}");
    assert_eq!(sdfg::text::parse(&text)?, program);
    assert_eq!(serde_json::from_str::<Sdfg>(&serde_json::to_string(&program)?)?, program);
    Ok(())
}

/// A recipe whose masked branch exceeds f32: 0 · ∞ is NaN there, and in f64 it is 0.
const MASKED: &str = "model: m\ndims: {n: 40, i: 30}\ninputs:\n  x: [n, i]\nsteps:\n  - \"s[n,i] = exp(x[n,i] * 300)\"\n  - \"y[n,i] = \
                      where(x[n,i] < 0.1, s[n,i], 0)\"\ntrain: {upstream: y}\n";

#[test]
fn overflows_are_named_and_a_range_helps() -> Result<(), Failure> {
    let of = |text: &str| -> Result<Option<String>, Failure> {
        Ok(overflow_message(&programs(&load_str("m.yaml", text, &[])?, false)?.operators))
    };
    let says = of(MASKED)?.ok_or("an overflow")?;
    assert!(says.starts_with("overflows in f32 in step `s` (m.yaml:6:6): a value there is "), "{says}");
    assert!(says.contains("f32 ends at 3.403e38; give its inputs a `range` that holds what they are"), "{says}");
    assert_eq!(of(&MASKED.replace("x: [n, i]", "x: {dims: [n, i], range: [-1, 0.1]}"))?, None);
    let wide = of(&MASKED.replace("x: [n, i]", "x: {dims: [n, i], range: [-1, 9]}"))?.ok_or("an overflow")?;
    assert!(wide.contains("narrow the `range` of its inputs"), "{wide}");
    assert_eq!(of(&MASKED.replace("model: m", "model: m\ndtype: f64"))?, None);
    // Half of the usual values overflow, and no value of the next range.
    assert_eq!(of(&MASKED.replace("* 300", "* 50"))?, None);
    // A container of a narrower type, and an intermediate value.
    let half = of("model: m\ndims: {n: 9}\ndtype: f16\ninputs: {x: [n]}\nsteps: [\"y[n] = 1e5 * (x[n] + 3)\"]\n")?.ok_or("an overflow")?;
    assert!(half.starts_with("overflows in f16 in step `y` (m.yaml:5:10): ") && half.contains("f16 ends at 6.550e4"), "{half}");
    let inside = of("model: m\ndims: {n: 9}\ninputs: {x: [n]}\nsteps: [\"y[n] = log(exp(60 * (x[n] + 3)))\"]\n")?.ok_or("an overflow")?;
    assert!(inside.starts_with("overflows in f32 in step `y`"), "{inside}");
    let product =
        "model: m\ndims: {n: 9, k: 8, m: 7}\ninputs: {x: [n, k], w: [k, m]}\nsteps: [\"y[n,m] = 1e38 * ((x[n,k] + 9) * (w[k,m] + 9))\"]\n";
    assert!(of(product)?.ok_or("an overflow")?.starts_with("overflows in f32 in step `y"), "{:?}", of(product)?);
    Ok(())
}

/// A value too large for f32 becomes small by the logarithm, in f64 alone.
const THERE_AND_BACK: &str =
    "model: m\ndims: {n: 40, i: 30}\ninputs:\n  x: [n, i]\nsteps:\n  - \"s[n,i] = exp(x[n,i] * 300)\"\n  - \"y[n,i] = log(s[n,i])\"\n";

/// The same recipe with a range has a plan.
#[test]
fn a_range_gives_a_plan_to_a_recipe_without_one() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let optimized = |text: &str| -> Result<std::process::Output, Failure> {
        let recipe = folder.path().join("m.yaml");
        std::fs::write(&recipe, text)?;
        let out = folder.path().join("out");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_memlet"));
        command.arg("optimize").arg(&recipe).arg("--out").arg(&out).args(["--budget", "1s", "--timing", "200ms"]);
        Ok(command.output()?)
    };
    let refused = optimized(THERE_AND_BACK)?;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(3), "{text}");
    assert!(text.contains("overflows in f32 in step `s` ("), "{text}");
    let made = optimized(&THERE_AND_BACK.replace("x: [n, i]", "x: {dims: [n, i], range: [-0.25, 0.25]}"))?;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}
