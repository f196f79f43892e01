//! Slopes that forward saves for backward.

use crate::builder::{Builder, operand};
use crate::difference::same_gradients;
use crate::layers::encoder;
use crate::structure::{backward, upstream};
use sdfg::{Direction, Dtype, Op, Operation, Role, Scalar, Sdfg, Unary, Unit};
use transforms::differentiate::differentiate;
use transforms::recompute::{RecomputePolicy, Saved};
use transforms::{DriverOptions, PipelineOutcome, Recompute, SaveLocalDerivative, run_pipeline};

fn slopes(forward: &Sdfg, output: &str) -> PipelineOutcome {
    run_pipeline(&differentiate(forward, &upstream(output)).unwrap(), &[&SaveLocalDerivative], &DriverOptions::default()).unwrap()
}

fn sloped(forward: &Sdfg) -> (Sdfg, Vec<String>) {
    let PipelineOutcome { program, facts, .. } = slopes(forward, "y");
    (program, facts.saved.into_iter().map(|s| s.container).collect())
}

fn operation(program: &Sdfg, name: &str) -> Operation {
    let found = program.units().into_iter().find_map(|(_, _, unit)| match unit {
        Unit::Operation(o) if o.name == name => Some(o),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("there is no `{name}`"))
}

fn reads(program: &Sdfg, name: &str) -> Vec<String> {
    operation(program, name).inputs.into_iter().map(|i| i.data).collect()
}

/// tanh(x·w + c), which only its own gradient needs; a product of it with `v` follows.
fn bent(dropout: bool) -> Builder {
    let mut builder = Builder::new();
    builder.input("x", "ui");
    builder.parameter("w", "uj");
    builder.parameter("c", "j");
    builder.parameter("v", "jp");
    builder.declare("y", "ip", Role::Output);
    builder.contraction(("dot", "ij"), ("x", "ui"), ("w", "uj"), 1.0);
    builder.add(("s", "ij"), ("dot", "ij"), ("c", "j"));
    builder.pointwise("tanh", ("r", "ij"), &[("s", "ij")], Scalar::unary(Unary::Tanh, Scalar::input("s")));
    let hidden = if dropout { "a" } else { "r" };
    if dropout {
        builder.dropout(("a", "ij"), "r", 0.5);
    }
    builder.contraction(("y", "ip"), (hidden, "ij"), ("v", "jp"), 1.0);
    builder
}

#[test]
fn the_encoder_layer_saves_the_slope_of_its_gelu_and_its_mask() {
    let (program, saved) = sloped(&encoder(true).program);
    assert_eq!(saved, ["s.slope"]);
    assert_eq!(reads(&program, "s.slope"), ["s"]);
    assert_eq!(operation(&program, "s.slope").pass, Direction::Forward);
    assert_eq!(reads(&program, "d_s"), ["d_a", "s.slope"]);
    // What dropped the gradient out is in the slope: neither the operation nor its result is left.
    assert!(backward(&program).iter().all(|o| o.name != "d_r") && !program.containers.contains_key("d_r"));
    let Op::Elementwise { code, .. } = operation(&program, "s.slope").op else { panic!("it is element-wise") };
    let mut masks = 0;
    code.walk(&mut |s| masks += usize::from(matches!(s, Scalar::Keep { stream, .. } if stream == "a")));
    assert_eq!(masks, 1, "{code:?}");
}

#[test]
fn the_sloped_program_has_the_same_gradients() {
    for forward in [encoder(true).program, bent(true).program] {
        let saved = differentiate(&forward, &upstream("y")).unwrap();
        let (program, found) = sloped(&forward);
        assert_eq!(found, ["s.slope"]);
        same_gradients(&forward, &saved, &program, 10);
    }
}

/// The slope of tanh is a function of its result, which the gradient of `v` needs in any case.
#[test]
fn a_result_in_memory_needs_no_slope_beside_it() {
    let (program, found) = sloped(&bent(false).program);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(reads(&program, "d_s"), ["d_r", "r"]);
}

/// With the slope decided, what it is made of is neither saved nor computed again.
#[test]
fn a_slope_takes_the_place_of_its_argument() {
    let outcome = slopes(&bent(true).program, "y");
    assert_eq!(outcome.facts.products, ["dot"]);
    let PipelineOutcome { program, facts, .. } = outcome.then(&[&Recompute::default()], &DriverOptions::default()).unwrap();
    let decisions: Vec<Saved> = facts.saved;
    assert_eq!(decisions[0].policy, RecomputePolicy::Saved);
    assert!(decisions.iter().all(|d| !["s", "dot"].contains(&d.container.as_str())), "{decisions:?}");
    assert!(backward(&program).iter().flat_map(|o| &o.inputs).all(|i| i.data != "s" && i.data != "dot"));
}

#[test]
fn a_rectifier_asks_for_signs_and_has_no_slope() {
    assert!(sloped(&encoder(false).program).1.is_empty());
}

/// Where its argument is in memory anyway, a slope would be one tensor more.
#[test]
fn what_is_in_memory_anyway_is_read() {
    let mut read = bent(false);
    read.contraction(("more", "ip"), ("s", "ij"), ("v", "jp"), 1.0);
    read.declare("z", "ip", Role::Output);
    read.add(("z", "ip"), ("y", "ip"), ("more", "ip"));
    let PipelineOutcome { program, facts, .. } = slopes(&read.program, "z");
    let saved = facts.saved;
    assert!(saved.is_empty(), "{saved:?}");
    assert!(reads(&program, "d_s.r").contains(&"s".to_string()), "{:?}", reads(&program, "d_s.r"));
    let mut handed_back = bent(false);
    handed_back.program.containers["s"].role = Role::Output;
    assert!(sloped(&handed_back.program).1.is_empty());
    // What follows from inputs alone costs nothing to compute again.
    let mut plain = Builder::new();
    plain.input("x", "ij");
    plain.parameter("v", "jp");
    plain.declare("y", "ip", Role::Output);
    plain.operation(
        "s",
        Op::Elementwise { label: "copy".into(), code: Scalar::input("x") },
        vec![operand("x", "x", "ij")],
        vec![operand("out", "s", "ij")],
    );
    plain.pointwise("tanh", ("r", "ij"), &[("s", "ij")], Scalar::unary(Unary::Tanh, Scalar::input("s")));
    plain.contraction(("y", "ip"), ("r", "ij"), ("v", "jp"), 1.0);
    assert!(sloped(&plain.program).1.is_empty());
}

/// `tanh(s) u`: backward computes the activation again for the gradient of `u`, from what `s` follows from; and `u` as a slope would be
/// a copy.
#[test]
fn what_backward_computes_again_is_no_slope() {
    let mut gated = bent(false);
    gated.parameter("q", "uj");
    gated.contraction(("u", "ij"), ("x", "ui"), ("q", "uj"), 1.0);
    gated.pointwise("gate", ("t", "ij"), &[("r", "ij"), ("u", "ij")], Scalar::input("r") * Scalar::input("u"));
    gated.declare("z", "ip", Role::Output);
    gated.contraction(("z", "ip"), ("t", "ij"), ("v", "jp"), 1.0);
    let saved = slopes(&gated.program, "z").facts.saved;
    assert!(saved.is_empty(), "{saved:?}");
}

#[test]
fn slopes_are_not_kept_in_half_precision() {
    let mut half = bent(true).program;
    half.containers["s"].dtype = Dtype::F16;
    assert!(sloped(&half).1.is_empty());
}
