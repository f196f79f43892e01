//! The text form: exact round trips, readable print-outs, located errors, and no panic on anything.

mod expanded;

use expanded::expanded;
use proptest::prelude::*;
use sdfg::library::Op;
use sdfg::scalar::{Binary, Scalar, Unary};
use sdfg::text::{parse, parse_scalar, print, print_operation, print_scalar, print_scope};
use sdfg::{Expr, NodeId, Sdfg, Unit, random};

/// Everything that the types can say, in one program; handles have holes, and it is not a valid program.
const EVERYTHING: &str = r#"program "two words" about "a \"quoted\" sentence" tf32 {
  sizes h=2, k=-9223372036854775808
  dims h, k, j=k*(h+(-1))/2, "odd dim"=min(h, k)%3
  input x[h, k] f32 from "a folder/softmax.yaml":6:3
  input mask[h] bit nograd
  parameter w[] bf16
  gradient d_w[] f64
  output y[h, k] f16 lifetime persistent
  transient a[] i64 register
  transient b[] i32 shared lifetime program
  transient c[] i16 local
  transient d[] u8 grad view of x[0, k-1]
  state s0 forward {
    n0 = access x
    n2 = map rows [h=0:h, k=0:k reduction, t=j:2*j:2 over j sequential]
      n3 in n2 = tasklet rows { out = exp(x - 1.0)*keep(a.b, h*k+k, 0.1)/kept(a.b, 0.1); "odd one" = where([k] <= [h], -inf, -(2.0)) } of y from "f":1:2
      n5 in n2 = map inner []
        n9 in n5 = tasklet empty {  }
      n6 in n2 = exit n5
    n4 = exit n2
    n11 = library y.max forward [h, k=j] (x[h, k+1], y[max(0, k-1)]) -> (out[h]) reduce max online_softmax code x scale 1.0 from "f":3:4
    n12 = library c backward [] () -> () contraction scale 1.0/[h*k]
    n13 = library e backward [] () -> () elementwise "two words" code -x/-(-x) == nan
    e1 = n0 -> n2:IN_x moves x[0:h, 0:k:2]
    e3 = n2:OUT_x -> n3:x moves x[h, k] volume 7 wcr max dynamic fill -inf
  }
  state s2 "" {
  }
  s0 -> s2 if h < 4 set h = h+1, k = 0
  s2 -> s0
}
"#;

#[test]
fn everything_is_expressible_and_prints_as_it_was_written() {
    let program = parse(EVERYTHING).unwrap();
    assert_eq!(print(&program), EVERYTHING);
    let state = program.states().next().unwrap().1;
    assert!(state.node(NodeId(1)).is_none() && state.node(NodeId(13)).is_some());
}

#[test]
fn every_operator_survives() {
    for op in [
        Op::Softmax { over: vec!["k".into()] },
        Op::SoftmaxGrad { over: vec![] },
        Op::Normalize { over: vec!["i".into(), "two words".into()], eps: 1e-5 },
        Op::NormalizeGradX { over: vec!["i".into()] },
        Op::NormalizeGradW,
    ] {
        let mut program = Sdfg::new("p");
        let state = program.add_state("forward");
        let operation = sdfg::Operation {
            name: "o".into(),
            op,
            indices: Default::default(),
            inputs: vec![],
            outputs: vec![],
            pass: sdfg::Direction::Backward,
            origin: None,
        };
        program.insert_operation(state, &operation).unwrap();
        assert_eq!(parse(&print(&program)).unwrap(), program);
    }
}

#[test]
fn nested_programs_survive() {
    let text = "\
program outer {
  state s0 forward {
    n0 = nested inner [h=2*h, k=k]
      program inner {
        state s0 forward {
        }
      }
  }
}
";
    assert_eq!(print(&parse(text).unwrap()), text);
}

#[test]
fn handles_survive_holes_left_by_a_removal() {
    let mut program = random::program(3);
    let (id, node) = program.units().first().map(|(s, n, _)| (*s, *n)).unwrap();
    let state = program.state_mut(id).unwrap();
    state.remove_unit(node);
    let edge = state.edges().map(|(e, ..)| e).nth(1).unwrap();
    state.remove_edge(edge);
    let read = parse(&print(&program)).unwrap();
    assert_eq!(read, program);
    assert!(read.state(id).unwrap().node(node).is_none());
}

#[test]
fn errors_say_where_and_what() {
    let called: Vec<&str> = sdfg::Unary::ALL.iter().map(|op| op.row().name).filter(|name| *name != "-").collect();
    let called = called.join(", ");
    for (text, message) in [
        ("", "1:1: expected `program`, but found the end of the text"),
        ("program p {\n  input x[h, f32\n}", "3:1: expected `,` or `]`, but found `}`"),
        (
            "program p {\n  input x[h] f31\n}",
            "2:14: expected an element type (`f64`, `f32`, `bf16`, `f16`, `i64`, `i32`, `i16`, `u8`, `bit`), but found `f31`",
        ),
        (
            "program p {\n  input x[] f32\n  input x[] f32\n}",
            "3:13: expected another name, because `x` is already declared, but found `f32`",
        ),
        (
            "program p { state s0 a { e0 = n0 -> n1 moves x[] } }",
            "1:50: expected handles that agree: e0 ends at n0, which is not there; declare it or correct the handle, but found `}`",
        ),
        (
            "program p { state s0 a { n0 = tasklet t { out = exo(x) } } }",
            &format!("1:49: expected a function ({called}, max, min, pow, where, keep, kept), but found `exo`"),
        ),
        ("program p { sizes h=99999999999999999999 }", "1:21: expected an integer of at most 64 bits, but found `99999999999999999999`"),
        ("program p { \"open }", "1:13: expected a closing quote on the same line, but found an open one"),
    ] {
        assert_eq!(parse(text).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn deep_and_long_texts_are_refused_instead_of_overflowing_the_stack() {
    for open in ["(", "-(", "exp(", "where("] {
        let error = parse_scalar(&open.repeat(100_000)).unwrap_err();
        assert!(error.expected.contains("nesting"), "{error}");
    }
    assert!(parse_scalar(&"1.0+".repeat(100_000)).is_err());
    assert!(parse_scalar(&format!("[{}1]", "1+".repeat(100_000))).is_err());
    assert!(parse_scalar(&format!("[{}", "(".repeat(100_000))).is_err());
    assert!(parse(&"program p { state s0 a { n0 = nested n [] ".repeat(10_000)).is_err());
    assert!(parse("program p { state s4000000000 a { } }").is_err());
}

#[test]
fn operations_print_as_equations() {
    let program = parse(
        "program p {
           dims p, h, i, b, j, k
           parameter wq[p, h, i] f32
           input x[i, b, j] f32
           output qq[p, h, b, j] f32
           output m[h] f32
           state s0 forward {
             n0 = access wq  n1 = access x  n2 = access qq  n5 = access m
             n3 = library qq.dot forward [p, h, b, j, i] (a[p, h, i], b[i, b, j]) -> (out[p, h, b, j]) contraction scale 1.0/sqrt([p])
             n4 = library m forward [p, h, b, j] (x[p, h, b, j]) -> (out[h]) reduce mean sum code x*x scale 0.5
             e0 = n0 -> n3:a moves wq[0:p, 0:h, 0:i]
             e1 = n1 -> n3:b moves x[0:i, 0:b, 0:j]
             e2 = n3:out -> n2 moves qq[0:p, 0:h, 0:b, 0:j]
             e3 = n2 -> n4:x moves qq[0:p, 0:h, 0:b, 0:j]
             e4 = n4:out -> n5 moves m[0:h]
           }
         }",
    )
    .unwrap();
    let shown: Vec<String> = program
        .units()
        .iter()
        .filter_map(|(_, _, unit)| if let Unit::Operation(o) = unit { Some(print_operation(o)) } else { None })
        .collect();
    assert_eq!(
        shown,
        [
            "qq[p,h,b,j] = contraction (1.0/sqrt([p])) * wq[p,h,i] * x[i,b,j]",
            "m[h] = mean (0.5) * sum(qq[p,h,b,j]*qq[p,h,b,j], over: p,b,j)",
        ]
    );
}

#[test]
fn scopes_print_as_statements() {
    let program = parse(
        "program p {
           dims h, k
           input x[h, k] f32
           transient t.max[] f32 register
           output y[h, k] f32
           state s0 forward {
             n0 = map rows [h=0:h]
             n1 in n0 = map rows [k=0:k reduction]
             n2 in n1 = tasklet max { out = x }
             n3 in n0 = exit n1
             n4 in n0 = access t.max
             n5 in n0 = map rows [k=0:k]
             n6 in n5 = tasklet exp { out = exp(x - max) }
             n7 in n0 = exit n5
             n8 = exit n0
             e0 = n1:OUT_x -> n2:x moves x[h, k-1] fill -inf
             e1 = n2:out -> n3:IN_t.max moves t.max[] wcr max
             e2 = n3:OUT_t.max -> n4 moves t.max[]
             e3 = n4 -> n5:IN_t.max moves t.max[]
             e4 = n5:OUT_x -> n6:x moves x[h, k]
             e5 = n5:OUT_t.max -> n6:max moves t.max[]
             e6 = n6:out -> n7:IN_y moves y[h, k]
           }
         }",
    )
    .unwrap();
    let scope = program.states().next().unwrap().1.scope(NodeId(0)).unwrap();
    assert_eq!(
        print_scope(&scope),
        "map h=0:h {\n  map k=0:k reduction { t.max[] max= x[h, k-1 else -inf] }\n  map k=0:k { y[h, k] = exp(x[h, k] - t.max[]) }\n}\n"
    );
}

fn expr() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![any::<i64>().prop_map(Expr::Int), "[a-z_][a-z0-9_.]{0,4}".prop_map(Expr::Sym)];
    leaf.prop_recursive(4, 24, 2, |inner| {
        (0..7usize, inner.clone(), inner).prop_map(|(kind, a, b)| {
            let make: fn(Box<Expr>, Box<Expr>) -> Expr =
                [Expr::Add, Expr::Sub, Expr::Mul, Expr::FloorDiv, Expr::Mod, Expr::Min, Expr::Max][kind];
            make(Box::new(a), Box::new(b))
        })
    })
}

fn scalar() -> impl Strategy<Value = Scalar> {
    let number = any::<f64>().prop_filter("a NaN equals nothing", |x| !x.is_nan());
    let leaf = prop_oneof![
        number.prop_map(Scalar::Const),
        Just(Scalar::Const(f64::NEG_INFINITY)),
        ".{0,5}".prop_map(Scalar::Input),
        prop_oneof![Just("inf"), Just("nan"), Just("min"), Just("keep"), Just("e5")].prop_map(Scalar::input),
        expr().prop_map(Scalar::Index),
        (".{0,5}", expr()).prop_map(|(stream, element)| Scalar::Keep { stream, element, rate: 0.1 }),
    ];
    use {Binary::*, Unary::*};
    let unary = prop::sample::select(vec![Neg, Exp, Log, Sqrt, Rsqrt, Tanh, Erf, Sigmoid, Abs, Sin, Cos, Floor]);
    let binary = prop::sample::select(vec![Add, Sub, Mul, Div, Max, Min, Pow, Lt, Le, Gt, Ge, Eq, Ne, And, Or]);
    leaf.prop_recursive(5, 32, 3, move |inner| {
        prop_oneof![
            (unary.clone(), inner.clone()).prop_map(|(op, a)| Scalar::Unary(op, Box::new(a))),
            (binary.clone(), inner.clone(), inner.clone()).prop_map(|(op, a, b)| Scalar::binary(op, a, b)),
            (inner.clone(), inner.clone(), inner).prop_map(|(c, a, b)| Scalar::select(c, a, b)),
        ]
    })
}

proptest! {
    #[test]
    fn scalar_code_survives(code in scalar()) {
        prop_assert_eq!(parse_scalar(&print_scalar(&code)).unwrap(), code);
    }

    #[test]
    fn random_programs_survive(seed in any::<u64>()) {
        let program = random::program(seed);
        prop_assert_eq!(parse(&print(&program)).unwrap(), program.clone());
        let program = expanded(program);
        prop_assert_eq!(parse(&print(&program)).unwrap(), program);
    }

    /// Changed text is read or refused, never a panic; what is read prints to something that reads back the same.
    #[test]
    fn changed_text_never_panics(edits in prop::collection::vec((any::<prop::sample::Index>(), 0..4usize, any::<char>()), 1..8)) {
        let mut text: Vec<char> = EVERYTHING.chars().collect();
        let signs: Vec<char> = "()[]{}=:;,-+*<0n".chars().collect();
        for (at, kind, c) in edits {
            if text.is_empty() {
                break;
            }
            let at = at.index(text.len());
            match kind {
                0 => _ = text.remove(at),
                1 => text.insert(at, c),
                2 => text[at] = signs[c as usize % signs.len()],
                _ => text.truncate(at),
            }
        }
        let text: String = text.into_iter().collect();
        match parse(&text) {
            Ok(program) => prop_assert_eq!(print(&parse(&print(&program)).unwrap()), print(&program)),
            Err(error) => prop_assert!(error.line >= 1 && error.column >= 1),
        }
    }
}

/// What the registry says of an operator's fields is what the operator holds: fields taken apart and put together again give it back, and
/// the text form has a word of its own for each.
#[test]
fn operators_are_their_fields() {
    let keywords: std::collections::BTreeSet<&str> = sdfg::library::DEFINITIONS.iter().map(|definition| definition.keyword).collect();
    assert_eq!(keywords.len(), sdfg::library::DEFINITIONS.len());
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..100 {
        for (_, _, unit) in random::program(seed).units() {
            let sdfg::Unit::Operation(operation) = unit else { continue };
            assert_eq!(operation.op.with_fields(|field| field), operation.op);
            assert_eq!(operation.op.fields().len(), operation.op.with(|o| o.definition().shape.len()));
            seen.insert(operation.op.keyword());
        }
    }
    assert!(seen.len() >= 5, "{seen:?}");
}
