//! Derived tolerances: they hold for honest f32 arithmetic and catch what is wrong.

use crate::build::*;
use ndarray::{ArrayD, IxDyn};
use sdfg::tolerance::{FUNCTION, Tolerance, bound, compare, gamma, program_tolerances, unit_tolerance};
use sdfg::*;

const U: f64 = 1.0 / 16_777_216.0;

#[test]
fn gamma_grows_with_length_and_ends_where_nothing_can_be_said() {
    assert_eq!(gamma(0, U), 0.0);
    assert_eq!(gamma(1 << 22, U), 0.25 / 0.75);
    assert_eq!(gamma(1 << 24, U), f64::INFINITY);
    assert_eq!(bound(Dtype::F32, 9, 2.0), 2.0 * (10.0 * U / (1.0 - 10.0 * U) + U));
    assert!(bound(Dtype::F64, 9, 2.0) < 1e-14);
}

/// Dot products of 1,000 terms summed one after another in f32: within the bound; one term left out: beyond it.
#[test]
fn honest_sums_pass_and_a_missing_term_does_not() {
    let (rows, terms) = (50, 1000);
    let (a, b) = (tensor(&[rows, terms], 8), tensor(&[rows, terms], 9));
    let dot = |skip: usize| {
        ArrayD::from_shape_fn(IxDyn(&[rows]), |r| {
            f64::from((0..terms).filter(|k| *k != skip).fold(0f32, |sum, k| sum + a[[r[0], k]] as f32 * b[[r[0], k]] as f32))
        })
    };
    let want = ArrayD::from_shape_fn(IxDyn(&[rows]), |r| (0..terms).map(|k| a[[r[0], k]] * b[[r[0], k]]).sum::<f64>());
    let tolerance = Tolerance { dtype: Dtype::F32, length: terms as u64, depth: 1, stored: U };
    let honest = compare(&dot(terms), &want, 0.0, &tolerance);
    assert!(honest.passes() && honest.max_error > 0.0, "{honest:?}");
    let wrong = compare(&dot(7), &want, 0.0, &tolerance);
    assert!(!wrong.passes(), "{wrong:?}");
}

/// Large tensors are compared in parts, on all cores: the first of the largest differences is named, and the largest value counts
/// wherever it is.
#[test]
fn large_tensors_are_compared_as_small_ones_are() {
    let tolerance = Tolerance { dtype: Dtype::F32, length: 1, depth: 1, stored: U };
    let mut want = ArrayD::zeros(IxDyn(&[2, 300, 400]));
    want[[1, 299, 399]] = 64.0;
    let mut got = want.clone();
    got[[0, 7, 5]] = 0.25;
    got[[0, 250, 3]] = -0.5;
    got[[1, 200, 1]] = 0.5;
    let found = compare(&got, &want, 0.0, &tolerance);
    assert_eq!((found.max_error, &found.at[..], found.tolerance), (0.5, &[0, 250, 3][..], tolerance.bound(64.0)));
    // The last axis need not be the one whose neighbours are near.
    let turned = |a: &ArrayD<f64>| a.clone().permuted_axes(IxDyn(&[2, 0, 1]));
    assert_eq!(compare(&turned(&got), &turned(&want), 0.0, &tolerance).at, [1, 1, 200]);
    got[[1, 0, 0]] = f64::NAN;
    assert_eq!(compare(&got, &want, 0.0, &tolerance).ratio, f64::INFINITY);
}

#[test]
fn what_cannot_be_compared_never_passes() {
    let tolerance = Tolerance { dtype: Dtype::F32, length: 1, depth: 1, stored: U };
    let want = values(&[3], &[1.0, f64::INFINITY, 2.0]);
    let same = compare(&want, &want, 0.0, &tolerance);
    assert_eq!((same.ratio, same.max_error), (0.0, 0.0));
    let nan = compare(&values(&[3], &[1.0, f64::INFINITY, f64::NAN]), &want, 0.0, &tolerance);
    assert_eq!((nan.ratio, nan.at), (f64::INFINITY, vec![2]));
    let finite = compare(&values(&[3], &[1.0, 5.0, 2.0]), &want, 0.0, &tolerance);
    assert_eq!((finite.passes(), finite.at), (false, vec![1]));
    assert!(!compare(&values(&[2], &[1.0, 2.0]), &want, 0.0, &tolerance).passes());
    let zeros = values(&[1], &[0.0]);
    assert!(!compare(&values(&[1], &[1e-30]), &zeros, 0.0, &tolerance).passes());
    // Where the oracle divides zero by zero, so does a kernel; where it does so in most places, nothing would be compared.
    let none = values(&[4], &[1.0, f64::NAN, 3.0, 4.0]);
    assert_eq!(compare(&none, &none, 0.0, &tolerance).ratio, 0.0);
    let wrong = compare(&values(&[4], &[1.0, f64::NAN, 3.5, 4.0]), &none, 0.0, &tolerance);
    assert!(wrong.ratio > 1.0 && wrong.ratio.is_finite() && wrong.at == [2]);
    let number = compare(&values(&[4], &[1.0, 2.0, 3.0, 4.0]), &none, 0.0, &tolerance);
    assert_eq!((number.ratio, number.at), (f64::INFINITY, vec![1]));
    let mostly = values(&[3], &[1.0, f64::NAN, f64::NAN]);
    assert_eq!(compare(&mostly, &mostly, 0.0, &tolerance).ratio, f64::INFINITY);
}

#[test]
fn lengths_and_depths_come_from_the_scopes() {
    use Role::{Input, Output};
    let p = program(
        &[("m", 4), ("n", 5), ("k", 60)],
        &[("a", &["m", "k"], Input), ("b", &["k", "n"], Input), ("c", &["m", "n"], Output), ("s", &["m", "k"], Output)],
    );
    let product = operation(
        Op::Contraction { scale: Scalar::Const(1.0) },
        &["m", "n", "k"],
        &[("a", "a", &["m", "k"]), ("b", "b", &["k", "n"])],
        &[("out", "c", &["m", "n"])],
    );
    let found = unit_tolerance(&p, &Unit::Operation(product)).unwrap();
    assert_eq!(found["c"], Tolerance { dtype: Dtype::F32, length: 60, depth: 1, stored: U });
    let mk: &[&str] = &["m", "k"];
    let softmax = operation(Op::Softmax { over: vec!["k".into()] }, mk, &[("x", "a", mk)], &[("out", "s", mk)]);
    let found = unit_tolerance(&p, &Unit::Operation(softmax)).unwrap();
    // Two maxima (in numerator and denominator) and a sum; two differences and exponentials, and a quotient.
    assert_eq!((found["s"].length, found["s"].depth), (3 * 60, 2 * (1 + FUNCTION) + FUNCTION));
}

#[test]
fn a_program_adds_up_what_a_result_depends_on_and_nothing_else() {
    let (input, middle, output) = (Role::Input, Role::Transient, Role::Output);
    let mut p = program(
        &[("i", 4), ("k", 100), ("l", 30)],
        &[("x", &["i", "k"], input), ("w", &["i", "l"], input), ("s", &["i"], middle), ("t", &[], output), ("other", &["i"], output)],
    );
    let id = state(&p);
    let all = |p: &Sdfg, inner: &str| vec![index("i", p, IndexKind::Independent), index(inner, p, IndexKind::Reduction)];
    let sum = |name: &str, from: &str, subscripts: &[&str], to: &str, written: &[&str]| {
        let wcr = at(to, written).with_wcr(Some(Combine::Sum));
        tasklet(name, &[("out", input_of(from))], &[(from, at(from, subscripts))], &[("out", wcr)])
    };
    fn input_of(name: &str) -> Scalar {
        Scalar::input(name)
    }
    p.insert_scope(id, &Scope::new("s", all(&p, "k"), vec![sum("s", "x", &["i", "k"], "s", &["i"])])).unwrap();
    p.insert_scope(id, &Scope::new("other", all(&p, "l"), vec![sum("other", "w", &["i", "l"], "other", &["i"])])).unwrap();
    let rows = vec![index("i", &p, IndexKind::Reduction)];
    p.insert_scope(id, &Scope::new("t", rows, vec![sum("t", "s", &["i"], "t", &[])])).unwrap();
    let found = program_tolerances(&p).unwrap();
    assert_eq!(["s", "t", "other"].map(|name| found[name].length), [100, 104, 30]);
    assert!(found["t"].stored > found["s"].stored && !found.contains_key("x"));
}
