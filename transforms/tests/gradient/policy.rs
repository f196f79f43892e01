//! What is saved and what is recomputed.

use crate::builder::Builder;
use crate::difference::{RUN, random_tensor, random_tensors, recompute};
use crate::layers::encoder;
use crate::structure::{backward, upstream};
use sdfg::interpret::interpret;
use sdfg::{Op, Role, Scalar, Sdfg};
use std::collections::BTreeMap;
use transforms::differentiate::differentiate;
use transforms::recompute::{RecomputePolicy, Saved};

fn decide(forward: &Sdfg) -> (Sdfg, BTreeMap<String, Saved>) {
    let (program, decisions) = recompute(&differentiate(forward, &upstream("y")).unwrap());
    (program, decisions.into_iter().map(|s| (s.container.clone(), s)).collect())
}

#[test]
fn the_encoder_layer_recomputes_the_preactivation_and_the_masks() {
    for gelu in [false, true] {
        let (program, decisions) = decide(&encoder(gelu).program);
        let recomputed: Vec<_> =
            decisions.values().filter(|s| s.policy == RecomputePolicy::Recomputed).map(|s| s.container.as_str()).collect();
        // Where the activation itself tells where its mask keeps, the mask is not drawn again.
        let masks = ["mask of a", "mask of alpha", "mask of att.drop", "mask of f.drop", "s"];
        assert_eq!(recomputed, masks[usize::from(!gelu)..]);
        let reads = |name: &str| -> Vec<String> {
            let found = backward(&program).into_iter().find(|o| o.name == name);
            found.map(|o| o.inputs.iter().map(|i| i.data.clone()).collect()).unwrap_or_default()
        };
        if gelu {
            assert_eq!(reads("s.again"), ["s.dot", "b1"]);
        } else {
            // The dropped-out activation tells where the rectifier was open, and is there for the gradient of its weight.
            assert!(reads("s.again").is_empty() && reads("d_s").contains(&"a".to_string()), "{:?}", reads("d_s"));
            assert!(backward(&program).iter().flat_map(|o| &o.inputs).all(|i| i.data != "s.dot"));
        }
        let saved: Vec<_> = decisions.values().filter(|s| s.policy == RecomputePolicy::Saved).map(|s| s.container.as_str()).collect();
        assert_eq!(
            saved,
            ["a", "alpha", "alpha.softmax", "gamma", "kk", "n1", "n1.mean", "n1.rstd", "qq", "res1", "res2", "vv", "y.mean", "y.rstd"]
        );
        let state = program.state_named("backward").unwrap();
        assert!(program.state(state).unwrap().access("s", None).is_none());
        // u·b·j elements of 8 bytes.
        assert_eq!((decisions["s"].bytes, decisions["mask of f.drop"].bytes), (5 * 2 * 3 * 8, 4 * 2 * 3));
    }
}

/// relu(x·w + c), dropped out or not, times `v`; `also` reads the activation before its dropout.
fn rectified(dropout: bool, also: bool) -> Builder {
    let mut builder = Builder::new();
    builder.input("x", "ui");
    builder.parameter("w", "uj");
    builder.parameter("c", "j");
    builder.parameter("v", "jp");
    builder.contraction(("dot", "ij"), ("x", "ui"), ("w", "uj"), 1.0);
    builder.add(("s", "ij"), ("dot", "ij"), ("c", "j"));
    builder.relu(("r", "ij"), "s");
    let mut hidden = "r";
    if dropout {
        builder.dropout(("a", "ij"), "r", 0.5);
        hidden = "a";
    }
    builder.contraction(("out", "ip"), (hidden, "ij"), ("v", "jp"), 1.0);
    if also {
        builder.parameter("q", "jp");
        builder.contraction(("more", "ip"), ("r", "ij"), ("q", "jp"), 1.0);
        builder.add(("y", "ip"), ("out", "ip"), ("more", "ip"));
    } else {
        builder.pointwise("tanh", ("y", "ip"), &[("out", "ip")], Scalar::unary(sdfg::Unary::Tanh, Scalar::input("out")));
    }
    builder
}

fn asked_by(program: &Sdfg, name: &str) -> Vec<String> {
    backward(program).into_iter().find(|o| o.name == name).map(|o| o.inputs.iter().map(|i| i.data.clone()).collect()).unwrap()
}

#[test]
fn a_rectifier_is_asked_through_what_is_stored() {
    let told = |forward: &Sdfg| asked_by(&decide(forward).0, "d_s");
    assert!(told(&rectified(false, false).program).contains(&"r".to_string()));
    assert!(told(&rectified(true, false).program).contains(&"a".to_string()));
    // Where dropout drops, a gradient still comes through the other reader: only the activation itself tells.
    let (program, decisions) = decide(&rectified(true, true).program);
    assert!(asked_by(&program, "d_s").contains(&"r".to_string()));
    assert!(decisions["s"].why.contains("`r`, which is in memory anyway"), "{}", decisions["s"]);
}

#[test]
fn what_is_selected_where_it_is_positive_is_not_dropped_again() {
    let drawn = |forward: &Sdfg| {
        let (program, decisions) = decide(forward);
        let codes = backward(&program).into_iter().filter_map(|o| if let Op::Elementwise { code, .. } = o.op { Some(code) } else { None });
        let (mut keep, mut kept) = (0, 0);
        for code in codes {
            code.walk(&mut |s| match s {
                Scalar::Keep { .. } => keep += 1,
                Scalar::Kept { .. } => kept += 1,
                _ => {}
            });
        }
        (keep, kept, decisions.contains_key("mask of a"))
    };
    assert_eq!(drawn(&rectified(true, false).program), (0, 1, false));
    // What comes through the other reader must not be scaled, so the mask tells the two apart.
    assert_eq!(drawn(&rectified(true, true).program), (1, 0, true));
}

/// With a sum of gradients, of which one is not dropped out, the dropped-out activation tells too little.
#[test]
fn a_dropped_out_activation_does_not_tell_for_its_other_readers() {
    let mut builder = Builder::new();
    builder.input("x", "ij");
    builder.parameter("v", "jp");
    builder.pointwise("tanh", ("s", "ij"), &[("x", "ij")], Scalar::unary(sdfg::Unary::Tanh, Scalar::input("x")));
    builder.relu(("r", "ij"), "s");
    builder.dropout(("a", "ij"), "r", 0.5);
    builder.contraction(("out", "ip"), ("a", "ij"), ("v", "jp"), 1.0);
    builder.pointwise("tanh", ("t", "ij"), &[("r", "ij")], Scalar::unary(sdfg::Unary::Tanh, Scalar::input("r")));
    builder.contraction(("more", "ip"), ("t", "ij"), ("v", "jp"), 1.0);
    builder.add(("y", "ip"), ("out", "ip"), ("more", "ip"));
    let (program, _) = decide(&builder.program);
    assert!(!asked_by(&program, "d_s").contains(&"a".to_string()), "{:?}", asked_by(&program, "d_s"));
}

#[test]
fn a_rectifier_asked_through_its_result_has_the_same_gradient() {
    for (dropout, also) in [(false, false), (true, false), (true, true)] {
        let forward = rectified(dropout, also).program;
        let saved = differentiate(&forward, &upstream("y")).unwrap();
        let (told, _) = recompute(&saved);
        for seed in 0..20 {
            let mut given = random_tensors(&forward, seed);
            given.insert("d_y".into(), random_tensor(&forward, seed, "y"));
            let (one, other) = (interpret(&saved, &given, &RUN).unwrap(), interpret(&told, &given, &RUN).unwrap());
            for container in saved.containers.values().filter(|c| c.role == Role::Gradient) {
                assert_eq!(one[&container.name], other[&container.name], "{}", container.name);
            }
        }
    }
}

#[test]
fn recomputation_is_exact() {
    for gelu in [false, true] {
        let forward = encoder(gelu).program;
        let saved = differentiate(&forward, &upstream("y")).unwrap();
        let (recomputed, _) = recompute(&saved);
        let mut given = random_tensors(&forward, 41);
        given.insert("d_y".into(), random_tensor(&forward, 41, "y"));
        let (one, other) = (interpret(&saved, &given, &RUN).unwrap(), interpret(&recomputed, &given, &RUN).unwrap());
        for container in saved.containers.values().filter(|c| c.role == Role::Gradient) {
            assert_eq!(one[&container.name], other[&container.name], "{}", container.name);
        }
    }
}

/// `t = (x·w + c) + z`, which a normalization reads in two backward operations: reading `z` in each costs more than `t`.
#[test]
fn what_would_move_more_is_saved() {
    let mut builder = Builder::new();
    builder.input("x", "ui");
    builder.parameter("w", "uj");
    builder.input("z", "ij");
    builder.parameter("gamma", "j");
    builder.contraction(("dot", "ij"), ("x", "ui"), ("w", "uj"), 1.0);
    builder.add(("t", "ij"), ("dot", "ij"), ("z", "ij"));
    builder.norm(("y", "ij"), "t", "j", Some("gamma"), None);
    let (_, decisions) = decide(&builder.program);
    // Two readers of 2 sources of 12 elements, against two reads and one write of t.
    assert_eq!(decisions["t"].policy, RecomputePolicy::Saved);
    assert!(decisions["t"].why.ends_with("would move 384 bytes instead of 288"), "{}", decisions["t"]);
}

#[test]
fn a_chain_is_recomputed_as_a_whole_and_once_per_reader() {
    let mut builder = Builder::new();
    builder.input("x", "ui");
    builder.parameter("w", "uj");
    builder.parameter("c", "j");
    builder.contraction(("dot", "ij"), ("x", "ui"), ("w", "uj"), 1.0);
    builder.add(("s", "ij"), ("dot", "ij"), ("c", "j"));
    builder.pointwise("tanh", ("t", "ij"), &[("s", "ij")], Scalar::unary(sdfg::Unary::Tanh, Scalar::input("s")));
    builder.gelu(("y", "ij"), "t");
    let forward = builder.program;
    let (program, decisions) = decide(&forward);
    assert_eq!((decisions["s"].policy, decisions["t"].policy), (RecomputePolicy::Recomputed, RecomputePolicy::Recomputed));
    let names: Vec<_> = backward(&program).into_iter().map(|o| o.name).collect();
    assert_eq!(names[..5], ["s.again", "t.again", "d_t", "s.again.2", "d_s"]);
}
