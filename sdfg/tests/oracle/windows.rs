//! Operands whose subscripts are windows: what lies outside the container reads the declared fill.

use crate::build::*;
use indexmap::IndexMap;
use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::{Run, interpret};
use sdfg::*;

const RUN: Run = Run { seed: 7, step: 3, dropout: true };

/// An operand subscripted by expressions.
fn operand(connector: &str, data: &str, subscripts: &[&str], fill: Option<f64>) -> Operand {
    Operand {
        connector: connector.into(),
        data: data.into(),
        subscripts: subscripts.iter().map(|s| s.parse().unwrap()).collect(),
        fill: fill.map(Fill),
    }
}

fn windowed(op: Op, indices: &[&str], inputs: Vec<Operand>, outputs: Vec<Operand>) -> Operation {
    let indices: IndexMap<String, String> = indices.iter().map(|i| (i.to_string(), i.to_string())).collect();
    Operation { name: "op".into(), op, indices, inputs, outputs, pass: Direction::Forward, origin: None }
}

/// A convolution of stride 2 with one row of zeros around the picture.
fn strided() -> Sdfg {
    use Role::{Input, Output};
    let mut p = program(
        &[("c", 2), ("h", 5), ("w", 6), ("o", 3), ("r", 3), ("s", 2), ("p", 3), ("q", 3)],
        &[("x", &["c", "h", "w"], Input), ("k", &["o", "c", "r", "s"], Input), ("y", &["o", "p", "q"], Output)],
    );
    let op = windowed(
        Op::Contraction { scale: Scalar::Const(1.0) },
        &["o", "p", "q", "c", "r", "s"],
        vec![operand("a", "k", &["o", "c", "r", "s"], None), operand("b", "x", &["c", "2*p + r - 1", "2*q + s - 1"], Some(0.0))],
        vec![operand("out", "y", &["o", "p", "q"], None)],
    );
    let only = p.states().next().unwrap().0;
    p.insert_operation(only, &op).unwrap();
    p
}

#[test]
fn a_contraction_over_windows_is_a_convolution() {
    let p = strided();
    assert_eq!(validate::validate(&p), []);
    let (x, k) = (tensor(&[2, 5, 6], 1), tensor(&[3, 2, 3, 2], 2));
    let got = interpret(&p, &[("x".to_string(), x.clone()), ("k".to_string(), k.clone())].into(), &RUN).unwrap();
    let read = |c: usize, h: i64, w: i64| match (usize::try_from(h), usize::try_from(w)) {
        (Ok(h), Ok(w)) if h < 5 && w < 6 => x[[c, h, w]],
        _ => 0.0,
    };
    let want = ArrayD::from_shape_fn(IxDyn(&[3, 3, 3]), |at| {
        let mut sum = 0.0;
        for c in 0..2 {
            for r in 0..3 {
                for s in 0..2 {
                    sum += k[[at[0], c, r, s]] * read(c, 2 * at[1] as i64 + r as i64 - 1, 2 * at[2] as i64 + s as i64 - 1);
                }
            }
        }
        sum
    });
    for (got, want) in got["y"].iter().zip(&want) {
        assert!((got - want).abs() < 1e-12, "{got} is not {want}");
    }
}

#[test]
fn an_operand_outside_its_container_needs_a_fill() {
    let mut p = strided();
    let only = p.states().next().unwrap().0;
    p.map_operations(only, |_, mut op| {
        op.inputs.iter_mut().for_each(|operand| operand.fill = None);
        vec![op]
    })
    .unwrap();
    let found = validate::validate(&p).first().map(ToString::to_string).unwrap_or_default();
    assert!(found.contains("give a fill"), "{found}");
}

#[test]
fn fills_are_printed_and_read() {
    let p = strided();
    let text = text::print(&p);
    assert!(text.contains("b[c, 2*p+r-1, 2*q+s-1 else 0.0]"), "{text}");
    assert_eq!(text::parse(&text).unwrap(), p);
    assert_eq!(json::from_json(&json::to_json(&p)).unwrap(), p);
}

#[test]
fn what_lies_outside_is_not_moved() {
    let p = strided();
    let moved = &sdfg::movement::movement(&p).unwrap()[0];
    let elements = |data: &str| moved.reads.iter().find(|t| t.data == data).unwrap().elements;
    // All of the picture: rows −1 to 5, columns −1 to 4, of which five and five lie inside.
    assert_eq!((elements("x"), elements("k")), (2 * 5 * 5, 36));
}

#[test]
fn a_maximum_over_windows_leaves_out_what_lies_outside() {
    use Role::{Input, Output};
    let mut p = program(&[("h", 5), ("r", 3), ("p", 3)], &[("x", &["h"], Input), ("y", &["p"], Output)]);
    let op = Op::Reduce { label: "maxpool".into(), combine: Combine::Max, code: input("x"), scale: Scalar::Const(1.0) };
    let op = windowed(
        op,
        &["p", "r"],
        vec![operand("x", "x", &["2*p + r - 1"], Some(f64::NEG_INFINITY))],
        vec![operand("out", "y", &["p"], None)],
    );
    let only = p.states().next().unwrap().0;
    p.insert_operation(only, &op).unwrap();
    assert_eq!(validate::validate(&p), []);
    let text = text::print(&p);
    assert!(text.contains("else -inf]"), "{text}");
    assert_eq!(text::parse(&text).unwrap(), p);
    let got = interpret(&p, &[("x".to_string(), values(&[5], &[-3.0, -4.0, -1.0, -2.0, -5.0]))].into(), &RUN).unwrap();
    assert_eq!(got["y"], values(&[3], &[-3.0, -1.0, -2.0]));
}
