//! Loops that are longer than what the interpreter computes at once: the same values bit for bit, the same errors at the same points.

use crate::build::*;
use sdfg::interpret::{Run, interpret, interpret_within};
use sdfg::*;

const RUN: Run = Run { seed: 7, step: 3, dropout: true };
const LONG: usize = 300;

fn only(dims: &[(&str, i64)], containers: &[(&str, &[&str], Role)], map: &[&str], body: Item) -> Sdfg {
    let mut p = program(dims, containers);
    let map = map.iter().map(|name| index(name, &p, IndexKind::Independent)).collect();
    p.insert_scope(state(&p), &Scope::new("body", map, vec![body])).unwrap();
    p
}

#[test]
fn sums_are_added_up_in_the_order_of_the_points() {
    let sum = at("y", &["b"]).with_wcr(Some(Combine::Sum));
    // Along rows and along columns, which are a whole row apart.
    for subscripts in [["b", "i"], ["i", "b"]] {
        let square = tasklet("square", &[("out", input("x") * input("x"))], &[("x", at("x", &subscripts))], &[("out", sum.clone())]);
        let dims = [("b", 3), ("i", LONG as i64)];
        let p = only(&dims, &[("x", &subscripts, Role::Input), ("y", &["b"], Role::Output)], &["b", "i"], square);
        let shape = subscripts.map(|s| if s == "b" { 3 } else { LONG });
        let x = tensor(&shape, 5);
        let got = interpret(&p, &tensors(&[("x", x.clone())]), &RUN).unwrap();
        for b in 0..3 {
            let value = |i: usize| if subscripts[0] == "b" { x[[b, i]] } else { x[[i, b]] };
            assert_eq!(got["y"][[b]], (0..LONG).fold(0.0, |sum, i| sum + value(i) * value(i)));
        }
    }
}

#[test]
fn windows_choices_masks_and_indices_are_those_of_each_point() {
    let mut near = at("x", &["2*i-100"]);
    near.fill = Some(-0.5);
    let keep = Scalar::Keep { stream: "s".into(), element: "i+3".parse().unwrap(), rate: 0.25 };
    let code = Scalar::Select(
        Box::new(Scalar::binary(Binary::Lt, input("x"), Scalar::Const(0.0))),
        Box::new(Scalar::Index("i/7".parse().unwrap()) - input("x")),
        Box::new(keep.clone() * Scalar::unary(Unary::Exp, input("w"))),
    );
    let reads = [("x", near), ("w", at("w", &["(i*5)%300"]))];
    let body = tasklet("body", &[("out", code)], &reads, &[("out", at("y", &["299-i"]))]);
    let containers: [(&str, &[&str], Role); 3] = [("x", &["i"], Role::Input), ("w", &["i"], Role::Input), ("y", &["i"], Role::Output)];
    let p = only(&[("i", LONG as i64)], &containers, &["i"], body);
    let (x, w) = (tensor(&[LONG], 5), tensor(&[LONG], 6));
    let got = interpret(&p, &tensors(&[("x", x.clone()), ("w", w.clone())]), &RUN).unwrap();
    let key = philox::key(RUN.seed, "s");
    for i in 0..LONG {
        let value = (2 * i).checked_sub(100).filter(|at| *at < LONG).map_or(-0.5, |at| x[[at]]);
        let mask = philox::keep(key, RUN.step, i as u64 + 3, 0.25);
        let want = if value < 0.0 { (i / 7) as f64 - value } else { mask * w[[i * 5 % LONG]].exp() };
        assert_eq!(got["y"][[LONG - 1 - i]], want, "{i}");
    }
}

#[test]
fn the_first_point_outside_is_named() {
    let shift = tasklet("shift", &[("out", input("x"))], &[("x", at("x", &["i+50"]))], &[("out", at("y", &["i"]))]);
    let p = only(&[("i", LONG as i64)], &[("x", &["i"], Role::Input), ("y", &["i"], Role::Output)], &["i"], shift);
    let text = interpret(&p, &tensors(&[("x", tensor(&[LONG], 1))]), &RUN).unwrap_err().to_string();
    assert!(text.contains("(i=250)") && text.contains("x[i+50]"), "{text}");
}

/// Of values beyond a limit the first is reported: a value on the way, or a sum.
#[test]
fn the_first_value_beyond_a_limit_is_reported() {
    let containers: [(&str, &[&str], Role); 2] = [("x", &["i"], Role::Input), ("y", &["i"], Role::Output)];
    let code = Scalar::binary(Binary::Min, input("x") * Scalar::Const(10.0), Scalar::Const(1.0));
    let clipped = tasklet("clipped", &[("out", code)], &[("x", at("x", &["i"]))], &[("out", at("y", &["i"]))]);
    let p = only(&[("i", LONG as i64)], &containers, &["i"], clipped);
    let x = values(&[LONG], &(0..LONG).map(|i| i as f64).collect::<Vec<_>>());
    let given = tensors(&[("x", x)]);
    let (_, found) = interpret_within(&p, &given, &RUN, 2005.0).unwrap();
    assert_eq!(found.map(|f| f.value), Some(2010.0));

    let sum = at("y", &[]).with_wcr(Some(Combine::Sum));
    let total = tasklet("total", &[("out", input("x"))], &[("x", at("x", &["i"]))], &[("out", sum)]);
    let p = only(&[("i", LONG as i64)], &[("x", &["i"], Role::Input), ("y", &[], Role::Output)], &["i"], total);
    let (got, found) = interpret_within(&p, &given, &RUN, 10_000.0).unwrap();
    // 0 + 1 + … + 141 = 10011 is the first beyond.
    assert_eq!((found.map(|f| f.value), got["y"][[]]), (Some(10011.0), 44850.0));
}
