//! What the backward state is made of.

use crate::builder::{Builder, operand};
use crate::difference::RUN;
use crate::layers::{encoder, mha};
use sdfg::interpret::interpret;
use sdfg::{Combine, Direction, Op, Operation, Role, Scalar, Sdfg, Unit};
use transforms::differentiate::{DifferentiateError, Options, differentiate};

pub fn backward(program: &Sdfg) -> Vec<Operation> {
    let state = program.state_named("backward").unwrap();
    let units = program.units().into_iter().filter(|(s, _, _)| *s == state);
    units.map(|(_, _, u)| if let Unit::Operation(o) = u { o } else { panic!("{} is no operation", u.name()) }).collect()
}

pub fn upstream(name: &str) -> Options {
    Options { upstream: vec![name.into()], ..Options::default() }
}

fn loss(name: &str) -> Options {
    Options { loss: Some(name.into()), ..Options::default() }
}

#[test]
fn the_encoder_layer_has_the_operators_of_the_paper() {
    let program = differentiate(&encoder(false).program, &upstream("y")).unwrap();
    let operations = backward(&program);
    assert!(operations.iter().all(|o| o.pass == Direction::Backward && o.outputs[0].data == o.name));
    let count = |label: &str| operations.iter().filter(|o| o.label() == label).count();
    // Two for each of the eight contractions; six biases; two normalizations; one sum for n1 and one for x.
    let expected = [
        ("contraction", 16),
        ("bias dW", 6),
        ("dropout dX", 4),
        ("relu dX", 1),
        ("softmax dX", 1),
        ("norm dX", 2),
        ("norm dW", 2),
        ("residual", 2),
    ];
    for (label, expected) in expected {
        assert_eq!(count(label), expected, "{label}");
    }
    assert_eq!(operations.len(), 34);
    let names: Vec<_> = operations.iter().map(|o| o.name.as_str()).collect();
    for name in ["d_wq", "d_bq", "d_x", "d_n1", "d_g1", "d_alpha.softmax", "d_beta"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let x_sum = operations.iter().find(|o| o.name == "d_x").unwrap();
    assert_eq!(x_sum.inputs.len(), 4, "three projections and the residual connection");
    let gradients: Vec<_> = program.containers.values().filter(|c| c.role == Role::Gradient).map(|c| c.name.as_str()).collect();
    assert_eq!(gradients.len(), 17);
    let upstream = &program.containers["d_y"];
    assert!(upstream.role == Role::Input && !upstream.grad);
}

#[test]
fn a_bias_passes_its_gradient_on_without_a_copy() {
    let program = differentiate(&mha().program, &upstream("y")).unwrap();
    let operations = backward(&program);
    assert!(!program.containers.contains_key("d_y.dot"));
    let d_wo = operations.iter().find(|o| o.name == "d_wo").unwrap();
    assert_eq!(d_wo.inputs[1].data, "d_y");
}

#[test]
fn only_paths_to_wanted_tensors_are_differentiated() {
    let options = Options { wanted: Some(vec!["bo".into()]), ..upstream("y") };
    let program = differentiate(&mha().program, &options).unwrap();
    let operations = backward(&program);
    assert_eq!(operations.iter().map(|o| (o.name.as_str(), o.label())).collect::<Vec<_>>(), [("d_bo", "bias dW")]);
}

#[test]
fn the_gradient_of_a_loss_is_folded_away() {
    let mut builder = Builder::new();
    builder.input("x", "bj");
    builder.input("z", "bj");
    builder.parameter("c", "");
    let (x, z) = (Scalar::input("x"), Scalar::input("z"));
    builder.reduce(("error", ""), Combine::Sum, &[("x", "bj"), ("z", "bj")], (x.clone() - z.clone()) * (x - z), 0.5);
    builder.add(("loss", ""), ("error", ""), ("c", ""));
    let program = differentiate(&builder.program, &loss("loss")).unwrap();
    assert!(!program.containers.contains_key("d_loss"));
    let operations = backward(&program);
    assert!(operations.iter().all(|o| matches!(o.op, Op::Elementwise { .. })), "{operations:?}");
    let (x, z) = (ndarray::arr2(&[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), ndarray::arr2(&[[1.5, 2.0, 2.0], [8.0, 5.0, 0.0]]));
    let given = [("x", x.clone().into_dyn()), ("z", z.clone().into_dyn()), ("c", ndarray::arr0(3.0).into_dyn())];
    let results = interpret(&program, &given.map(|(n, t)| (n.to_string(), t)).into(), &RUN).unwrap();
    assert_eq!(results["d_x"], (&x - &z).into_dyn());
    assert_eq!(results["d_z"], (&z - &x).into_dyn());
    assert_eq!(results["d_c"], ndarray::arr0(1.0).into_dyn());
}

#[test]
fn a_loss_may_come_out_of_a_contraction_or_a_softmax() {
    let mut builder = Builder::new();
    builder.input("x", "bj");
    builder.parameter("w", "bj");
    builder.contraction(("dot", ""), ("x", "bj"), ("w", "bj"), 2.0);
    builder.softmax(("loss", ""), "dot", "");
    let program = differentiate(&builder.program, &loss("loss")).unwrap();
    let names: Vec<_> = backward(&program).iter().map(|o| o.name.clone()).collect();
    assert_eq!(names[..2], ["d_loss", "d_dot"]);
    let program = differentiate(&builder.program, &loss("dot")).unwrap();
    let (x, w) = (ndarray::arr2(&[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), ndarray::arr2(&[[1.0, 0.0, -1.0], [2.0, 5.0, 0.5]]));
    let given = [("x".to_string(), x.clone().into_dyn()), ("w".to_string(), w.clone().into_dyn())];
    let results = interpret(&program, &given.into(), &RUN).unwrap();
    assert_eq!(results["d_x"], (2.0 * w).into_dyn());
    assert_eq!(results["d_w"], (2.0 * x).into_dyn());
}

#[test]
fn wanted_gradients_exist_even_where_they_are_trivial() {
    let mut builder = Builder::new();
    builder.input("x", "b");
    builder.parameter("lonely", "j");
    let op = Op::Elementwise { label: "residual".into(), code: Scalar::input("left") + Scalar::input("right") };
    builder.operation("y", op, vec![operand("left", "x", "b"), operand("right", "x", "b")], vec![operand("out", "y", "b")]);
    let program = differentiate(&builder.program, &upstream("y")).unwrap();
    let given = [
        ("x".to_string(), ndarray::arr1(&[1.0, 2.0]).into_dyn()),
        ("lonely".to_string(), ndarray::arr1(&[1.0, 2.0, 3.0]).into_dyn()),
        ("d_y".to_string(), ndarray::arr1(&[3.0, 5.0]).into_dyn()),
    ];
    let results = interpret(&program, &given.into(), &RUN).unwrap();
    assert_eq!(results["d_x"], ndarray::arr1(&[6.0, 10.0]).into_dyn());
    assert_eq!(results["d_lonely"], ndarray::arr1(&[0.0; 3]).into_dyn());
}

/// `y` is made of `h`, and both are handed on: what comes in by `h` is added to what comes by way of `y`.
#[test]
fn gradients_that_come_in_by_several_outputs_add_up() {
    let mut builder = Builder::new();
    builder.input("x", "b");
    builder.parameter("w", "b");
    builder.pointwise("map", ("h", "b"), &[("x", "b"), ("w", "b")], Scalar::input("x") * Scalar::input("w"));
    builder.pointwise("map", ("y", "b"), &[("h", "b"), ("x", "b")], Scalar::input("h") * Scalar::input("h") + Scalar::input("x"));
    let both = Options { upstream: vec!["h".into(), "y".into(), "h".into()], ..Options::default() };
    let program = differentiate(&builder.program, &both).unwrap();
    let given = [
        ("x".to_string(), ndarray::arr1(&[1.0, 2.0]).into_dyn()),
        ("w".to_string(), ndarray::arr1(&[3.0, -1.0]).into_dyn()),
        ("d_h".to_string(), ndarray::arr1(&[10.0, 0.5]).into_dyn()),
        ("d_y".to_string(), ndarray::arr1(&[1.0, -2.0]).into_dyn()),
    ];
    let results = interpret(&program, &given.into(), &RUN).unwrap();
    // The whole gradient by h is d_h + 2 h d_y: 10 + 6 and 0.5 + 8.
    assert_eq!(results["d_w"], ndarray::arr1(&[16.0, 17.0]).into_dyn());
    assert_eq!(results["d_x"], ndarray::arr1(&[3.0 * 16.0 + 1.0, -8.5 - 2.0]).into_dyn());
}

#[test]
fn wrong_requests_are_refused_with_what_to_do() {
    let program = mha().program;
    let refused = |options: Options| differentiate(&program, &options).unwrap_err();
    assert!(matches!(refused(Options::default()), DifferentiateError::Seed { outputs, .. } if outputs == "`y`"));
    assert!(matches!(refused(upstream("nothing")), DifferentiateError::Unknown { .. }));
    assert!(matches!(refused(upstream("x")), DifferentiateError::NotComputed { .. }));
    assert!(matches!(refused(loss("y")), DifferentiateError::NotScalar { dims, .. } if dims == "i, b, j"));
    let wanted = Options { wanted: Some(vec!["w".into()]), ..upstream("y") };
    assert!(matches!(refused(wanted), DifferentiateError::Unknown { name, .. } if name == "w"));
    let once = differentiate(&program, &upstream("y")).unwrap();
    assert!(matches!(differentiate(&once, &upstream("y")), Err(DifferentiateError::States { count: 2, .. })));
    let mut taken = mha();
    taken.input("d_x", "ibj");
    assert!(matches!(differentiate(&taken.program, &upstream("y")), Err(DifferentiateError::NameTaken { .. })));
    let mut statistic = Builder::new();
    statistic.input("x", "bi");
    statistic.norm(("n", "bi"), "x", "i", None, None);
    statistic.pointwise("copy", ("y", "b"), &[("n.mean", "b")], Scalar::input("n.mean"));
    assert!(matches!(differentiate(&statistic.program, &upstream("y")), Err(DifferentiateError::Statistic { .. })));
}
