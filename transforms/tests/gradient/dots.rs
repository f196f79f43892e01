//! Sums of softmax gradients from results.

use crate::builder::Builder;
use crate::difference::same_gradients;
use crate::layers::{encoder, mha};
use crate::structure::upstream;
use sdfg::{Op, Operation, Role, Scalar, Sdfg, Unit};
use transforms::differentiate::differentiate;
use transforms::{DriverOptions, SoftmaxGradRowDot, run_pipeline};

/// The program with its row sums taken from results; `None` if the pass refuses.
fn dots(program: &Sdfg) -> Option<Sdfg> {
    let outcome = run_pipeline(program, &[&SoftmaxGradRowDot], &DriverOptions::default()).unwrap();
    (!outcome.steps.is_empty()).then_some(outcome.program)
}

fn sums(program: &Sdfg) -> Vec<Operation> {
    let operations = program.units().into_iter().filter_map(|(_, _, unit)| if let Unit::Operation(o) = unit { Some(o) } else { None });
    operations.filter(|o| matches!(&o.op, Op::Reduce { label, .. } if label == "softmax dX")).collect()
}

/// Attention over `v`, with a dropout or not, and what its rows are multiplied by in between.
fn rows(dropout: bool, doubled: bool, scale: f64) -> Builder {
    let mut builder = Builder::new();
    builder.input("s", "hbjk");
    builder.parameter("v", "phbk");
    builder.declare("y", "phbj", Role::Output);
    builder.softmax(("a", "hbjk"), "s", "k");
    let mut last = "a";
    if dropout {
        builder.dropout(("d", "hbjk"), last, 0.5);
        last = "d";
    }
    if doubled {
        builder.pointwise("square", ("q", "hbjk"), &[(last, "hbjk")], Scalar::input(last) * Scalar::input(last));
        last = "q";
    }
    builder.contraction(("y", "phbj"), ("v", "phbk"), (last, "hbjk"), scale);
    builder
}

#[test]
fn the_gradient_of_attention_takes_its_sum_from_the_result() {
    let program = dots(&differentiate(&mha().program, &upstream("y")).unwrap()).expect("a sum");
    let [sum] = &sums(&program)[..] else { panic!("one sum") };
    let reads: Vec<(&str, String)> = sum.inputs.iter().map(|i| (i.data.as_str(), i.index_names().unwrap().concat())).collect();
    assert_eq!(reads, [("d_gamma", "phbj".to_string()), ("gamma", "phbj".to_string())]);
    assert_eq!(sum.outputs[0].index_names().unwrap(), ["h", "b", "j"]);
}

#[test]
fn gradients_are_the_same() {
    let programs =
        [encoder(false).program, rows(false, false, 1.0).program, rows(true, false, 1.0).program, rows(true, false, 0.3).program];
    for forward in programs {
        let saved = differentiate(&forward, &upstream("y")).unwrap();
        let program = dots(&saved).expect("a sum");
        same_gradients(&forward, &saved, &program, 5);
    }
}

/// Where rows are squared in between, or another mask is drawn, the rule does not hold.
#[test]
fn other_rows_keep_their_sum() {
    let differentiated = |builder: Builder| differentiate(&builder.program, &upstream("y")).unwrap();
    assert!(dots(&differentiated(rows(true, true, 1.0))).is_none());
    assert!(dots(&differentiated(rows(false, true, 1.0))).is_none());
    // The gradient drops what forward does not.
    let mut program = differentiated(rows(true, false, 1.0));
    let (id, mut all) = (program.state_named("forward").unwrap(), Vec::new());
    for (state, _, unit) in program.units() {
        let Unit::Operation(mut o) = unit else { panic!("an operation") };
        if let (true, Op::Elementwise { code, .. }) = (state == id, &mut o.op) {
            *code = code.rewrite(&mut |s| match s {
                Scalar::Keep { element, rate, .. } => Scalar::Keep { stream: "other".into(), element, rate },
                s => s,
            });
        }
        all.push((state, o));
    }
    for (state, _) in program.clone().states() {
        *program.state_mut(state).unwrap() = sdfg::State::new(if state == id { "forward" } else { "backward" });
    }
    for (state, o) in &all {
        program.insert_operation(*state, o).unwrap();
    }
    assert!(dots(&program).is_none());
}
