//! Layers that hand over on chip: what is found, that the results are those of closed formulas and of the layers alone, and refusals.

use crate::builder::{Builder, kernels, results};
use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Role, Sdfg};
use transforms::{CrossLayerReuse, DriverOptions, Percent, PipelineOutcome, Reason, run_pipeline};

fn fused(built: &Builder, pass: CrossLayerReuse) -> PipelineOutcome {
    let outcome = run_pipeline(&built.program, &[&pass], &DriverOptions::default()).expect("a pass");
    assert_eq!(sdfg::validate::validate(&outcome.program), vec![], "{}", sdfg::text::print(&outcome.program));
    outcome
}

/// One kernel comes of it, which computes what the layers compute.
fn is_one_kernel(built: &Builder) -> PipelineOutcome {
    // Of pictures as small as these nearly everything is border.
    let outcome = fused(built, CrossLayerReuse { recompute: Percent(1_000_000), ..CrossLayerReuse::default() });
    assert_eq!(outcome.program.units().len(), 1, "{:?}", outcome.refusals.iter().map(ToString::to_string).collect::<Vec<_>>());
    let (want, got) = (results(&built.program), results(&outcome.program));
    for output in built.program.containers.values().filter(|c| c.role == Role::Output) {
        let (want, got) = (&want[&output.name], &got[&output.name]);
        assert!(want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e-11 * w.abs().max(1.0)), "{}: {want} became {got}", output.name);
    }
    outcome
}

const SIZES: &[(&str, i64)] = &[("n", 2), ("c", 3), ("h", 7), ("w", 6), ("o", 4), ("f", 2), ("p", 7), ("q", 6), ("r", 3), ("s", 3)];

/// 1×1, then `window` with these subscripts; bias and rectifier after each.
fn straight(sizes: &[(&str, i64)], rows: &str, columns: &str) -> Builder {
    Builder::new(&["x[n,c,h,w]", "k[o,c]", "b[o]", "l[f,o,r,s]", "d[f]"], &["t[n,o,h,w]", "u[n,o,h,w]", "z[n,f,p,q]"], &["y[n,f,p,q]"])
        .upper(SIZES)
        .upper(sizes)
        .contraction("one", &["n", "o", "h", "w", "c"], "t[n,o,h,w]", "k[o,c]", "x[n,c,h,w]")
        .map("act", &["n", "o", "h", "w"], "u[n,o,h,w]", "max(a + b, 0.0)", &["t[n,o,h,w]", "b[o]"])
        .contraction("two", &["n", "f", "p", "q", "o", "r", "s"], "z[n,f,p,q]", "l[f,o,r,s]", &format!("u[n,o,{rows},{columns} else 0]"))
        .map("end", &["n", "f", "p", "q"], "y[n,f,p,q]", "max(a + b, 0.0)", &["z[n,f,p,q]", "d[f]"])
}

#[test]
fn a_layer_and_the_next_one_are_one_kernel() {
    let outcome = is_one_kernel(&straight(&[], "p+r-1", "q+s-1"));
    let [step] = &outcome.steps[..] else { panic!("{:?}", outcome.steps) };
    assert!(step.summary.contains("(straight, 1 level)") && step.summary.contains("halo 2 along p of `u`"), "{}", step.summary);
    assert!(step.bytes_after < step.bytes_before);
    let text = kernels(&outcome.program);
    assert!(text.contains("u[o, h_in, w_in] = where("), "{text}");
}

#[test]
fn strides_asymmetric_borders_and_prime_sizes_are_windows() {
    is_one_kernel(&straight(&[("p", 4), ("q", 3)], "2*p+r-1", "2*q+s-1"));
    is_one_kernel(&straight(&[("p", 5), ("q", 8), ("r", 3), ("s", 1)], "p+r", "q+s-1"));
    is_one_kernel(&straight(&[("h", 13), ("w", 11), ("p", 13), ("q", 11), ("r", 5), ("s", 5)], "p+r-2", "q+s-2"));
    is_one_kernel(&straight(&[("h", 9), ("p", 5), ("r", 3)], "p+2*r", "q+s-1"));
    // A picture smaller than the kernel.
    is_one_kernel(&straight(&[("h", 2), ("w", 2), ("p", 2), ("q", 2), ("r", 5), ("s", 5)], "p+r-2", "q+s-2"));
}

fn tensor(shape: &[usize], value: impl Fn(&[usize]) -> f64) -> ArrayD<f64> {
    ArrayD::from_shape_fn(IxDyn(shape), |at| value(ndarray::Dimension::slice(&at)))
}

/// With an input of zeros and a bias of 1 the first layer is 1 inside the picture, and 0 outside, where the second layer reads its fill:
/// ones as weights count the points of the window inside.
#[test]
fn outside_the_picture_the_second_layer_reads_its_fill_and_no_bias() {
    let built = straight(&[], "p+r-1", "q+s-1");
    let outcome = fused(&built, CrossLayerReuse::default());
    let given: Tensors = [
        ("x".to_string(), tensor(&[2, 3, 7, 6], |_| 0.0)),
        ("k".to_string(), tensor(&[4, 3], |_| 1.0)),
        ("b".to_string(), tensor(&[4], |_| 1.0)),
        ("l".to_string(), tensor(&[2, 4, 3, 3], |_| 1.0)),
        ("d".to_string(), tensor(&[2], |_| 0.5)),
    ]
    .into();
    let got = interpret(&outcome.program, &given, &Run { seed: 1, step: 0, dropout: false }).expect("a run");
    let inside = |at: usize, size: usize| 3 - usize::from(at == 0) - usize::from(at + 1 == size);
    let want = tensor(&[2, 2, 7, 6], |at| 4.0 * (inside(at[2], 7) * inside(at[3], 6)) as f64 + 0.5);
    assert_eq!(got["y"], want);
}

/// SqueezeNet's fire module: a squeezed picture is read by a 1×1 and a 3×3 layer.
#[test]
fn a_layer_that_two_read_is_split() {
    let built = Builder::new(
        &["x[n,c,h,w]", "k[o,c]", "b[o]", "l[f,o,r,s]", "m[f,o]"],
        &["t[n,o,h,w]", "u[n,o,h,w]"],
        &["y[n,f,h,w]", "z[n,f,h,w]"],
    )
    .upper(SIZES)
    .contraction("squeeze", &["n", "o", "h", "w", "c"], "t[n,o,h,w]", "k[o,c]", "x[n,c,h,w]")
    .map("act", &["n", "o", "h", "w"], "u[n,o,h,w]", "max(a + b, 0.0)", &["t[n,o,h,w]", "b[o]"])
    .contraction("one", &["n", "f", "h", "w", "o"], "y[n,f,h,w]", "m[f,o]", "u[n,o,h,w]")
    .contraction("three", &["n", "f", "h", "w", "o", "r", "s"], "z[n,f,h,w]", "l[f,o,r,s]", "u[n,o,h+r-1,w+s-1 else 0]");
    let outcome = is_one_kernel(&built);
    assert!(outcome.steps[0].summary.contains("(split, 1 level)"), "{}", outcome.steps[0].summary);
}

/// What is made of parameters alone, as the shift of a normalization, runs once: it stays apart, and the layers that read it become one
/// kernel.
#[test]
fn what_runs_once_stays_apart() {
    let mut built =
        Builder::new(&["x[n,c,h,w]", "k[o,c]", "g[o]", "b[o]", "l[f,o,r,s]"], &["shift[o]", "t[n,o,h,w]", "u[n,o,h,w]"], &["y[n,f,p,q]"])
            .upper(SIZES)
            .map("shift", &["o"], "shift[o]", "a * b", &["g[o]", "b[o]"])
            .contraction("one", &["n", "o", "h", "w", "c"], "t[n,o,h,w]", "k[o,c]", "x[n,c,h,w]")
            .map("act", &["n", "o", "h", "w"], "u[n,o,h,w]", "max(a + b, 0.0)", &["t[n,o,h,w]", "shift[o]"])
            .contraction("two", &["n", "f", "p", "q", "o", "r", "s"], "y[n,f,p,q]", "l[f,o,r,s]", "u[n,o,p+r-1,q+s-1 else 0]");
    for name in ["k", "g", "b", "l"] {
        built.program.containers.get_mut(name).expect(name).role = Role::Parameter;
    }
    let outcome = fused(&built, CrossLayerReuse { recompute: Percent(1_000_000), ..CrossLayerReuse::default() });
    let names: Vec<String> = outcome.program.units().into_iter().map(|(_, _, unit)| unit.name().to_string()).collect();
    assert_eq!(names, ["shift", "two"], "{:?}", outcome.refusals.iter().map(ToString::to_string).collect::<Vec<_>>());
    let (want, got) = (&results(&built.program)["y"], &results(&outcome.program)["y"]);
    assert!(want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e-11 * w.abs().max(1.0)));
}

/// Two layers are added up and read by a third: the residual block.
#[test]
fn layers_that_one_reads_are_merged() {
    let built = Builder::new(
        &["x[n,c,h,w]", "v[n,c,h,w]", "k[o,c]", "m[o,c]", "l[f,o,r,s]"],
        &["t[n,o,h,w]", "s1[n,o,h,w]", "u[n,o,h,w]"],
        &["z[n,f,h,w]"],
    )
    .upper(SIZES)
    .contraction("left", &["n", "o", "h", "w", "c"], "t[n,o,h,w]", "k[o,c]", "x[n,c,h,w]")
    .contraction("right", &["n", "o", "h", "w", "c"], "s1[n,o,h,w]", "m[o,c]", "v[n,c,h,w]")
    .map("add", &["n", "o", "h", "w"], "u[n,o,h,w]", "max(a + b, 0.0)", &["t[n,o,h,w]", "s1[n,o,h,w]"])
    .contraction("last", &["n", "f", "h", "w", "o", "r", "s"], "z[n,f,h,w]", "l[f,o,r,s]", "u[n,o,h+r-1,w+s-1 else 0]");
    let outcome = is_one_kernel(&built);
    assert!(outcome.steps[0].summary.contains("(merge, 1 level)"), "{}", outcome.steps[0].summary);
}

/// Three layers of windows in a row: windows of windows.
fn deep() -> Builder {
    Builder::new(&["x[c,h,w]", "k[o,c,r,s]", "l[f,o,r,s]", "m[g,f,r,s]"], &["t[o,h,w]", "u[f,p,q]"], &["z[g,p,q]"])
        .upper(SIZES)
        .upper(&[("h", 9), ("w", 10), ("p", 5), ("q", 5), ("g", 3)])
        .contraction("one", &["o", "h", "w", "c", "r", "s"], "t[o,h,w]", "k[o,c,r,s]", "x[c,h+r-1,w+s-1 else 0]")
        .contraction("two", &["f", "p", "q", "o", "r", "s"], "u[f,p,q]", "l[f,o,r,s]", "t[o,2*p+r-1,2*q+s-1 else 0]")
        .contraction("three", &["g", "p", "q", "f", "r", "s"], "z[g,p,q]", "m[g,f,r,s]", "u[f,p+r-1,q+s-1 else 0]")
}

#[test]
fn more_levels_than_one_are_windows_of_windows() {
    let generous = CrossLayerReuse { recompute: Percent(1_000_000), ..CrossLayerReuse::default() };
    let outcome = fused(&deep(), generous);
    assert_eq!(outcome.program.units().len(), 1, "{:?}", outcome.refusals);
    assert!(outcome.steps[0].summary.contains("2 levels"), "{}", outcome.steps[0].summary);
    let (want, got) = (results(&deep().program), results(&outcome.program));
    assert!(want["z"].iter().zip(&got["z"]).all(|(w, g)| (w - g).abs() <= 1e-11 * w.abs().max(1.0)));
    let paper = fused(&deep(), CrossLayerReuse { levels: 1, ..generous });
    assert_eq!(paper.program.units().len(), 2);
    assert!(paper.refusals.iter().any(|r| matches!(r.reason, Reason::Levels { levels: 2, limit: 1 })), "{:?}", paper.refusals);
}

fn reasons(program: &Sdfg, pass: CrossLayerReuse) -> Vec<String> {
    let outcome = run_pipeline(program, &[&pass], &DriverOptions::default()).expect("a pass");
    outcome.refusals.iter().map(|r| r.reason.to_string()).collect()
}

#[test]
fn refusals_carry_numbers() {
    let built = straight(&[], "p+r-1", "q+s-1");
    let small = CrossLayerReuse { on_chip: 2500, recompute: Percent(5_000), ..CrossLayerReuse::default() };
    let found = reasons(&built.program, small);
    assert!(found.iter().any(|r| r.contains("% of the flop would be computed again") && r.contains("bytes would")), "{found:?}");
    let tiny = reasons(&built.program, CrossLayerReuse { on_chip: 8, ..CrossLayerReuse::default() });
    assert!(tiny.iter().any(|r| r.contains("more than the 8")), "{tiny:?}");
}

/// What a second reader needs must reach memory all the same.
/// Channels that every layer walks are no lanes in tiles of places: a 1×1 layer and a depthwise one behind it stay apart, a depthwise one
/// and a 1×1 layer behind that do not.
#[test]
fn depthwise_layers_come_first() {
    let behind = Builder::new(&["x[n,c,h,w]", "k[o,c]", "d[o,r,s]"], &["t[n,o,h,w]"], &["y[n,o,p,q]"])
        .upper(SIZES)
        .contraction("one", &["n", "o", "h", "w", "c"], "t[n,o,h,w]", "k[o,c]", "x[n,c,h,w]")
        .contraction("each", &["n", "o", "p", "q", "r", "s"], "y[n,o,p,q]", "d[o,r,s]", "t[n,o,p+r-1,q+s-1 else 0]");
    let told = reasons(&behind.program, CrossLayerReuse { recompute: Percent(1_000_000), ..CrossLayerReuse::default() });
    assert!(matches!(&told[..], [one] if one.contains("every layer walks `o`")), "{told:?}");
    let before = Builder::new(&["x[n,c,h,w]", "k[o,c]", "d[c,r,s]"], &["t[n,c,h,w]"], &["y[n,o,h,w]"])
        .upper(SIZES)
        .contraction("each", &["n", "c", "h", "w", "r", "s"], "t[n,c,h,w]", "d[c,r,s]", "x[n,c,h+r-1,w+s-1 else 0]")
        .contraction("one", &["n", "o", "h", "w", "c"], "y[n,o,h,w]", "k[o,c]", "t[n,c,h,w]");
    is_one_kernel(&before);
}

#[test]
fn an_intermediate_that_others_need_is_refused() {
    let mut built = straight(&[], "p+r-1", "q+s-1");
    if let Some(container) = built.program.containers.get_mut("u") {
        container.role = Role::Output;
    }
    let found = reasons(&built.program, CrossLayerReuse::default());
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn different_fills_of_one_picture_are_refused() {
    let built = Builder::new(&["x[c,h]", "k[o,c]", "l[f,o,r]", "m[f,o,r]"], &["t[o,h]"], &["y[f,h]", "z[f,h]"])
        .upper(SIZES)
        .contraction("one", &["o", "h", "c"], "t[o,h]", "k[o,c]", "x[c,h]")
        .contraction("two", &["f", "h", "o", "r"], "y[f,h]", "l[f,o,r]", "t[o,h+r-1 else 0]")
        .contraction("three", &["f", "h", "o", "r"], "z[f,h]", "m[f,o,r]", "t[o,h+r-1 else 1]");
    let found = reasons(&built.program, CrossLayerReuse::default());
    assert!(found.iter().any(|r| r.contains("different fills")), "{found:?}");
}
