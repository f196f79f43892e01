//! Validation: for each kind of error a program that has it and the sentence that says so; none for valid programs.

mod expanded;

use expanded::expanded;
use proptest::prelude::*;
use sdfg::text::parse;
use sdfg::validate::{Kind, validate};
use sdfg::{Container, Dtype, Role, Sdfg, random};

/// A valid program of one map: y = -x row by row, with a maximum on chip.
const GOOD: &str = "\
program p {
  sizes h=4, k=3
  dims h, k
  input x[h, k] f32
  transient top[] f32 register
  output y[h, k] f32
  output z[h] f32
  state s0 forward {
    n0 = access x
    n1 = access y
    n9 = access z
    n2 = map rows [h=0:h]
      n3 in n2 = map reduce [k=0:k reduction]
        n4 in n3 = tasklet max { out = x } from \"p.yaml\":3:5
      n5 in n2 = exit n3
      n6 in n2 = access top
      n10 in n2 = map apply [k=0:k]
        n11 in n10 = tasklet neg { out = -x + top }
      n12 in n2 = exit n10
    n7 = exit n2
    n8 = library z forward [h, k] (x[h, k]) -> (out[h]) reduce sum sum code x scale 1.0
    e0 = n0 -> n2:IN_x moves x[0:h, 0:k]
    e1 = n2:OUT_x -> n3:IN_x moves x[h, 0:k]
    e2 = n3:OUT_x -> n4:x moves x[h, k]
    e3 = n4:out -> n5:IN_top moves top[] wcr max
    e4 = n5:OUT_top -> n6 moves top[] volume k wcr max
    e5 = n6 -> n10:IN_top moves top[] volume k
    e6 = n2:OUT_x -> n10:IN_x moves x[h, 0:k]
    e7 = n10:OUT_x -> n11:x moves x[h, k]
    e8 = n10:OUT_top -> n11:top moves top[]
    e9 = n11:out -> n12:IN_y moves y[h, k]
    e10 = n12:OUT_y -> n7:IN_y moves y[h, 0:k]
    e11 = n7:OUT_y -> n1 moves y[0:h, 0:k]
    e12 = n1 -> n8:x moves y[0:h, 0:k]
    e13 = n8:out -> n9 moves z[0:h]
  }
}
";

fn errors(text: &str) -> Vec<(Kind, String)> {
    validate(&parse(text).unwrap()).into_iter().map(|d| (d.kind, d.to_string())).collect()
}

/// What validation says of the good program with one part replaced.
fn after(old: &str, new: &str) -> Vec<(Kind, String)> {
    assert!(GOOD.contains(old), "{old}");
    errors(&GOOD.replacen(old, new, 1))
}

#[track_caller]
fn says(old: &str, new: &str, kind: Kind, sentence: &str) {
    let found = after(old, new);
    assert!(found.iter().any(|(k, text)| *k == kind && text == sentence), "expected {kind:?}\n{sentence}\nfound\n{found:#?}");
}

#[test]
fn the_good_program_is_valid_at_any_size() {
    assert_eq!(errors(GOOD), []);
    assert_eq!(after("k=3", "k=0"), []);
    assert_eq!(after("h=4", "h=0"), []);
}

#[test]
fn names() {
    says(
        "dims h, k",
        "dims h, k, i=2*m",
        Kind::Name,
        "p: the size of dim `i` uses the symbol `m`, which nothing binds; give it a value in `sizes`",
    );
    says("x[h, k] f32", "x[h, q] f32", Kind::Name, "p (x): the dim `q` is not declared; add it to the dims of the program");
    says(
        "x[h, k] f32",
        "x[h, h] f32",
        Kind::Name,
        "p (x): the dim `h` occurs twice; declare a second dim of the same size for one of them",
    );
    says("access x", "access w", Kind::Name, "p, s0, n0: the container `w` is not declared; declare it in the program");
    says(
        "n4:x moves x[h, k]",
        "n4:x moves w[h, k]",
        Kind::Name,
        "p, s0, e2 (w): the memlet moves `w`, which is not declared; declare it in the program\n  from: p.yaml:3:5",
    );
    says(
        "n4:x moves x[h, k]",
        "n4:x moves x[h, j]",
        Kind::Name,
        "p, s0, e2 (x): the memlet uses `j`, which nothing binds here; bind it in `sizes` or in a map around it\n  from: p.yaml:3:5",
    );
    says(
        "rows [h=0:h]",
        "rows [h=0:m]",
        Kind::Name,
        "p, s0, n2: the range of the index `h` uses `m`, which nothing binds; bind it in `sizes` or in a map around it",
    );
    says(
        "out = -x + top",
        "out = -x + top + [j]",
        Kind::Name,
        "p, s0, n11: the code of `neg` uses `j`, which nothing binds; bind it in `sizes` or in a map around it",
    );
    says("map rows", "map z", Kind::Name, "p, s0, n8: s0, n2 is also called `z`; give each unit a name of its own");
    says(
        "forward [h, k]",
        "forward [h, k=q]",
        Kind::Name,
        "p, s0, n8: the index `k` of `z` runs along the dim `q`, which is not declared; add it to the dims",
    );
    says(
        "  }\n}\n",
        "  }\n  s0 -> s0 if i < 3\n}\n",
        Kind::Name,
        "p: the transition s0 -> s0 uses the symbol `i`, which nothing binds; give it a value in `sizes`",
    );
}

#[test]
fn sizes() {
    says("h=4", "h=-4", Kind::Size, "p: dim `h` has the negative size -4; make it 0 or more");
    says(
        "h=4, k=3",
        "h=4, k=4611686018427387904",
        Kind::Size,
        "p (x): the number of elements is too large: `x` does not fit in 64 bits; use smaller sizes",
    );
    says("dims h, k", "dims h, k, i=k/(k-3)", Kind::Size, "p: dim `i` has no size: `k/(k-3)` divides by zero");
}

#[test]
fn views() {
    let view = |text: &str| format!("transient v[h, k] f32 view of {text}\n  output y[h, k] f32");
    let says = |text: &str, sentence: &str| says("output y[h, k] f32", &view(text), Kind::View, sentence);
    says("w[0, 0]", "p (v): it views `w`, which is not declared; declare it or drop the view");
    says("x[0]", "p (v): it has 2 dims and 1 offsets, but `x` has 2 dims; give all of them");
    says("x[1, 0]", "p (v): 4 elements from 1 on leave `x`, which has 4; move or shrink the view");
    says("v[0, 0]", "p (v): it is a view of itself, through one or more views; let one of them be stored");
    assert_eq!(after("output y[h, k] f32", &view("x[0, 0]")), []);
}

#[test]
fn scopes() {
    says("n11 in n10 =", "n11 in n0 =", Kind::Scope, "p, s0, n11: it stands in n0, which is no map entry; name the entry that holds it");
    says("n12 in n2 = exit n10", "n12 in n2 = access y", Kind::Scope, "p, s0, n10: map `apply` has 0 exits; give it exactly one");
    says(
        "n12 in n2 = exit n10",
        "n12 = exit n10",
        Kind::Scope,
        "p, s0, n12: the exit does not stand in the scope of its entry n10; move it there",
    );
    says("n7 = exit n2", "n7 = exit n0", Kind::Scope, "p, s0, n7: it closes n0, which is no map entry; name the entry that it closes");
    says(
        "n2 = map rows",
        "n2 in n10 = map rows",
        Kind::Scope,
        "p, s0, n2: the scopes around it form a ring; let the outermost stand in no scope",
    );
    says(
        "e1 = n2:OUT_x",
        "e1 = n0",
        Kind::Scope,
        "p, s0, e1 (x): it runs from n0 to n3 across the border of a scope; lead it through the map's entry or exit",
    );
}

#[test]
fn cycles() {
    says(
        "e0 = n0 -> n2:IN_x",
        "e14 = n1 -> n2:IN_y moves y[0:h, 0:k] e0 = n0 -> n2:IN_x",
        Kind::Cycle,
        "p, s0, n0: the edges of the top level of the state form a cycle; write to a second container instead of one that is read",
    );
    says(
        "e3 = n4:out -> n5:IN_top",
        "e3 = n6 -> n3:IN_top",
        Kind::Cycle,
        "p, s0, n2: the edges of the scope of n2 form a cycle; write to a second container instead of one that is read",
    );
}

#[test]
fn connectors() {
    says("out = -x + top", "out = -x + w", Kind::Connector, "p, s0, n11: the input `w` of `neg` has no edge; connect it or drop it");
    says("out = -x + top", "out = -x", Kind::Connector, "p, s0, e8 (top): `neg` has no input `top`; remove the edge or use one of: x");
    says(
        "out = -x + top",
        "out = -x + top; also = x",
        Kind::Connector,
        "p, s0, n11: the output `also` of `neg` has no edge; connect it or drop it",
    );
    says(
        "out = -x + top",
        "out = -x + top; out = x",
        Kind::Connector,
        "p, s0, n11: `neg` computes one of its outputs twice; keep one expression for each",
    );
    says("n11:top moves top[]", "n11:x moves top[]", Kind::Connector, "p, s0, n11: the input `x` of `neg` has 2 edges; keep one");
    says("n10:OUT_x", "n10:OUT_w", Kind::Connector, "p, s0, e7 (x): n10 hands on `w` but nothing brings it there; connect `IN_w`");
    says(
        "(x[h, k]) -> (out[h])",
        "(x[h, k]) -> (dx[h])",
        Kind::Connector,
        "p, s0, n8: `z` lacks the operand `out`, which its operator needs; add it",
    );
    says(
        "(x[h, k]) -> (out[h])",
        "(x[h, k]) -> (dx[h])",
        Kind::Connector,
        "p, s0, n8: `z` has the operand `dx`, which its operator does not know; remove it",
    );
    says(
        "code x scale",
        "code x*w scale",
        Kind::Connector,
        "p, s0, n8: the code of `z` reads `w`, which is no operand of it; add the operand",
    );
    says(
        "reduce sum sum code x scale 1.0",
        "softmax over [j]",
        Kind::Name,
        "p, s0, n8: `z` runs over `j`, which is no index of it; use one of its indices",
    );
    says(
        "(x[h, k]) ->",
        "(x[h, j]) ->",
        Kind::Name,
        "p, s0, n8: a subscript of `z` uses `j`, which is neither an index of it nor a symbol; add the index",
    );
}

#[test]
fn ranks_and_bounds() {
    says(
        "n4:x moves x[h, k]",
        "n4:x moves x[h]",
        Kind::Rank,
        "p, s0, e2 (x): the memlet subscripts 1 dims, but `x` has 2; give one range for each\n  from: p.yaml:3:5",
    );
    says("(out[h])", "(out[h, k])", Kind::Rank, "p, s0, e13 (z): `z` subscripts `out` by 2 indices, but `z` has 1 dims; give one for each");
    let out = "p, s0, e2 (x): elements -1 to 1 of dim `k` are touched, which has 3; shrink the range or give a fill\n  from: p.yaml:3:5";
    says("n4:x moves x[h, k]", "n4:x moves x[h, k-1]", Kind::Bounds, out);
    assert_eq!(after("n4:x moves x[h, k]", "n4:x moves x[h, k-1] fill 0.0"), []);
    assert_eq!(after("n4:x moves x[h, k]", "n4:x moves x[h, 2-k]"), []);
    says(
        "(x[h, k]) ->",
        "(x[k, h]) ->",
        Kind::Bounds,
        "p, s0, e12 (y): elements 0 to 3 of dim `k` are touched, which has 3; shrink the range or give a fill",
    );
    says("[k=0:k reduction]", "[k=0:k:0 reduction]", Kind::Bounds, "p, s0, n3: the index `k` has the step 0; make it 1 or more");
}

#[test]
fn conflicts() {
    let sentence = "p, s0, e3 (top): all iterations of `k` write the same element; subscript by it or give the write a combine (wcr)\n  from: p.yaml:3:5";
    says("top[] wcr max", "top[]", Kind::Conflict, sentence);
    says(
        "n12:IN_y moves y[h, k]",
        "n12:IN_y moves y[0, k]",
        Kind::Conflict,
        "p, s0, e9 (y): all iterations of `h` write the same element; subscript by it or give the write a combine (wcr)",
    );
    assert_eq!(after("rows [h=0:h]", "rows [t=0:2 over h, h=2*t:2*t+2]"), [], "a tile's index is mentioned through its range");
}

#[test]
fn dataflow() {
    says(
        "input x[h, k] f32",
        "transient x[h, k] f32",
        Kind::Dataflow,
        "p, s0, n2: `rows` reads `x`, which nothing has written before; write it first or make it an input",
    );
    says(
        "output y[h, k] f32",
        "input y[h, k] f32",
        Kind::Dataflow,
        "p, s0, n2: `rows` writes `y`, which is given from outside; write to a container of another role",
    );
    says(
        "n9 moves z[0:h]",
        "n9 moves y[0:h, 0:k]",
        Kind::Dataflow,
        "p, s0, n8: `z` writes `y`, which s0, n2 writes too; write to two containers and add them up",
    );
    says(
        "n4:x moves x[h, k]",
        "n4:x moves top[]",
        Kind::Dataflow,
        "p, s0, n2: `rows` reads `top`, which lives on chip and is not written before within it; write it first",
    );
}

#[test]
fn boundaries() {
    let with = |node: &str| GOOD.replacen("n0 = access x", &format!("n0 = access x\n n20 = {node}"), 1);
    let inner = "program q { dims h, k input x[h, k] f32 state s0 a { } }";
    assert_eq!(errors(&with(&format!("nested q [h=h, k=k] {inner} e20 = n0 -> n20:x moves x[0:h, 0:k]"))), []);
    assert_eq!(
        errors(&with(&format!("nested q [h=h] {inner}"))),
        [(Kind::Name, "p/q: the size of dim `k` uses the symbol `k`, which nothing binds; give it a value in `sizes`".to_string())]
    );
    let lacking = "program q { state s0 a { } }";
    assert_eq!(
        errors(&with(&format!("nested q [] {lacking} e20 = n0 -> n20:x moves x[0:h, 0:k]"))),
        [(
            Kind::Boundary,
            "p, s0, e20 (x): `x` is not declared with equally many dims inside and outside of `q`; declare it alike in both".to_string()
        )]
    );
}

#[test]
fn a_container_registered_under_another_name_is_found() {
    let mut program = Sdfg::new("p");
    program.containers.insert("x".into(), Container::new("y", &[], Dtype::F32, Role::Input));
    let found: Vec<String> = validate(&program).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["p (x): the container is registered as `x` but named `y`; use one name"]);
}

#[test]
fn all_errors_are_reported_at_once() {
    let text = GOOD.replace("h=4", "h=-4").replace("top[] wcr max\n    e4", "top[]\n    e4").replace("access z", "access w");
    let kinds: Vec<Kind> = errors(&text).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [Kind::Size, Kind::Name, Kind::Conflict]);
}

proptest! {
    #[test]
    fn random_programs_are_valid_before_and_after_expansion(seed in any::<u64>()) {
        let program = random::program(seed);
        prop_assert_eq!(validate(&program), vec![]);
        prop_assert_eq!(validate(&expanded(program)), vec![]);
    }
}
