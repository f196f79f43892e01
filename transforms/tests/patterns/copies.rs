//! Joined, cut and padded tensors: what is written in place, what is read where it lies, and refusals.

use crate::builder::{Builder, results};
use sdfg::{Expr, Role, Sdfg, Unit};
use transforms::{DriverOptions, RemoveCopies, run_pipeline};

/// A program without copies, with the same results; and the reasons why some are left.
fn without(built: &Builder) -> (Sdfg, Vec<String>) {
    let outcome = run_pipeline(&built.program, &[&RemoveCopies], &DriverOptions::default()).expect("a pass");
    assert_eq!(sdfg::validate::validate(&outcome.program), vec![], "{}", sdfg::text::print(&outcome.program));
    assert!(outcome.steps.iter().all(|step| step.bytes_after <= step.bytes_before), "{:?}", outcome.steps);
    let (want, got) = (results(&built.program), results(&outcome.program));
    for output in built.program.containers.values().filter(|c| c.role == Role::Output) {
        let (want, got) = (&want[&output.name], &got[&output.name]);
        // Sums over plain indices may be taken in another order than those over slices.
        assert!(want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e-13 * w.abs().max(1.0)), "{}: {want} became {got}", output.name);
    }
    (outcome.program, outcome.refusals.iter().map(|r| r.reason.to_string()).collect())
}

/// Every operation with what it writes and reads, in execution order.
fn moves(program: &Sdfg) -> String {
    let mut text = String::new();
    for (_, _, unit) in program.units() {
        let Unit::Operation(operation) = unit else { continue };
        let operands = operation.outputs.iter().chain(&operation.inputs).map(|o| o.memlet().to_string().replace(" volume 1", ""));
        text += &format!("{}\n", operands.collect::<Vec<_>>().join(" <- ").replacen(" <- ", " = ", 1).replace(" <- ", ", "));
    }
    text
}

const SIZES: &[(&str, i64)] = &[("c", 3), ("o", 2), ("f", 4), ("g", 1), ("h", 5)];

/// `one`, `two` and `three` with `o`, `f` and `g` channels.
fn layers(joined: &[(&str, &str)], transients: &[&str], outputs: &[&str]) -> Builder {
    let all = [&["s[o,h]", "one[o,h]", "two[f,h]", "three[g,h]"], transients].concat();
    let mut built = Builder::new(&["x[c,h]", "k[o,c]", "l[f,c]", "m[g,c]"], &all, outputs).upper(SIZES);
    for (dim, size) in joined {
        built.program.dims.insert(dim.to_string(), size.parse().expect("a size"));
    }
    built
        .contraction("dot", &["o", "h", "c"], "s[o,h]", "k[o,c]", "x[c,h]")
        .pointwise("one", &["o", "h"], "one[o,h]", "max(a, 0.0)", &["s[o,h]"])
        .contraction("two", &["f", "h", "c"], "two[f,h]", "l[f,c]", "x[c,h]")
        .contraction("three", &["g", "h", "c"], "three[g,h]", "m[g,c]", "x[c,h]")
}

const THREE: &str = "where([e] < [O], a, where([e] < [O] + [F], b, c))";
const PARTS: &[&str] = &["one[e,h else 0]", "two[e-O,h else 0]", "three[e-O-F,h else 0]"];

#[test]
fn layers_write_their_parts_of_a_joined_tensor() {
    let built = layers(&[("e", "O+F+G")], &[], &["y[e,h]"]).pointwise("y", &["e", "h"], "y[e,h]", THREE, PARTS);
    let (program, _) = without(&built);
    let expected = "s[o, h] = k[o, c], x[c, h]\n\
                    y[f+O, h] = l[f, c], x[c, h]\n\
                    y[g+(O+F), h] = m[g, c], x[c, h]\n\
                    y[o, h] = s[o, h]\n";
    assert_eq!(moves(&program), expected);
    assert!(!program.containers.contains_key("one"));
}

/// The joined tensor of another one: parts of parts.
#[test]
fn joins_of_joins_are_one() {
    let built = layers(&[("d", "O+F"), ("e", "D+G")], &["both[d,h]"], &["y[e,h]"]);
    let mut built = built.pointwise("both", &["d", "h"], "both[d,h]", "where([d] < [O], a, b)", &["one[d,h else 0]", "two[d-O,h else 0]"]);
    built.program.dims.insert("e".into(), "O+F+G".parse().expect("a size"));
    let both = ["both[e,h else 0]", "three[e-O-F,h else 0]"];
    let built = built.pointwise("y", &["e", "h"], "y[e,h]", "where([e] < [O]+[F], a, b)", &both);
    let (program, _) = without(&built);
    assert!(moves(&program).contains("y[f+O, h] = l[f, c], x[c, h]\n"), "{}", moves(&program));
    assert!(!program.containers.contains_key("both"));
}

/// Windows of a part are windows of the joined tensor, as long as they stay within the part's channels.
#[test]
fn other_readers_read_the_slice() {
    let built = layers(&[("e", "O+F+G")], &["w[f,h]"], &["y[e,h]", "z[f]"])
        .pointwise("y", &["e", "h"], "y[e,h]", THREE, PARTS)
        .pointwise("w", &["f", "h"], "w[f,h]", "a + 1.0", &["two[f,h-1 else 0]"])
        .contraction("z", &["f", "h"], "z[f]", "w[f,h]", "w[f,h]");
    let (program, _) = without(&built);
    assert!(moves(&program).contains("w[f, h] = y[f+O, h-1] fill 0.0\n"), "{}", moves(&program));
    let built = layers(&[("e", "O+F+G")], &["w[f,h]"], &["y[e,h]", "z[f]"])
        .pointwise("y", &["e", "h"], "y[e,h]", THREE, PARTS)
        .pointwise("w", &["f", "h"], "w[f,h]", "a + 1.0", &["two[f+1,h else 0]"])
        .contraction("z", &["f", "h"], "z[f]", "w[f,h]", "w[f,h]");
    let (program, refused) = without(&built);
    assert!(moves(&program).contains("w[f, h] = two[f+1, h] fill 0.0\n"), "{}", moves(&program));
    assert!(refused.iter().any(|r| r.contains("computed and no copy")) || program.containers.contains_key("two"), "{refused:?}");
}

/// `y` joins a layer and one that is computed from it: the first cannot be a part, or its reader would wait for its own result.
#[test]
fn what_makes_another_part_keeps_a_container() {
    let built = Builder::new(&["x[c,h]", "k[o,c]", "l[f,o]"], &["one[o,h]", "two[f,h]"], &["y[e,h]"]).upper(SIZES);
    let mut built = built;
    built.program.dims.insert("e".into(), "O+F".parse().expect("a size"));
    built.program.containers["y"].dims = vec!["e".into(), "h".into()];
    let built = built
        .contraction("one", &["o", "h", "c"], "one[o,h]", "k[o,c]", "x[c,h]")
        .contraction("two", &["f", "h", "o"], "two[f,h]", "l[f,o]", "one[o,h]")
        .pointwise("y", &["e", "h"], "y[e,h]", "where([e] < [O], a, b)", &["one[e,h else 0]", "two[e-O,h else 0]"]);
    let (program, _) = without(&built);
    assert_eq!(moves(&program), "one[o, h] = k[o, c], x[c, h]\ny[e, h] = one[e, h]\ny[f+O, h] = l[f, o], one[o, h]\n");
}

#[test]
fn sizes_that_do_not_add_up_for_all_values_are_refused() {
    let built = layers(&[("e", "7")], &[], &["y[e,h]"]).pointwise("y", &["e", "h"], "y[e,h]", THREE, PARTS);
    let (_, refused) = without(&built);
    assert!(refused.iter().any(|r| r.contains("make `e` the sum of its parts' sizes in dims")), "{refused:?}");
    let outputs = layers(&[("e", "O+F+G")], &[], &["y[e,h]"]).pointwise("y", &["e", "h"], "y[e,h]", THREE, PARTS);
    let mut outputs = outputs;
    for part in ["one", "two", "three"] {
        outputs.program.containers[part].role = Role::Output;
    }
    let (program, refused) = without(&outputs);
    assert_eq!(program.units().len(), outputs.program.units().len());
    assert!(refused.iter().any(|r| r.contains("`one` is no intermediate result")), "{refused:?}");
}

#[test]
fn slices_and_padded_tensors_are_read_where_they_lie() {
    let mut built = Builder::new(&["x[c,h]", "k[o,c,r]"], &["t[c,p]", "u[c,q]"], &["y[o,p]"]).upper(SIZES).upper(&[("r", 3)]);
    built.program.dims.insert("p".into(), Expr::Int(2));
    built.program.dims.insert("q".into(), Expr::Int(4));
    let built = built
        .pointwise("t", &["c", "p"], "t[c,p]", "a", &["x[c,2*p+1]"])
        .pointwise("u", &["c", "q"], "u[c,q]", "a", &["t[c,q-1 else 0]"])
        .contraction("y", &["o", "p", "c", "r"], "y[o,p]", "k[o,c,r]", "u[c,p+r]");
    let (program, refused) = without(&built);
    // `u` reads `t` beside it, where `x` goes on: that copy stays, and the padded one goes.
    assert_eq!(moves(&program), "t[c, p] = x[c, 2*p+1]\ny[o, p] = k[o, c, r], t[c, p+r-1] fill 0.0\n", "{refused:?}");
    assert!(refused.iter().any(|r| r.contains("reads a fill beside `t`, where `x` goes on")), "{refused:?}");
}
