//! The JSON form: exact round trips through text, and errors that say what is wrong.

mod expanded;

use expanded::expanded;
use proptest::prelude::*;
use sdfg::json::{from_json, to_json};
use sdfg::text::parse;
use sdfg::{Sdfg, random};
use serde_json::{Value, json};

/// Through a JSON value and through JSON text.
fn survives(program: &Sdfg) {
    let value = to_json(program);
    let read: Value = serde_json::from_str(&value.to_string()).unwrap();
    assert_eq!(from_json(&read).unwrap(), *program);
    assert_eq!(serde_json::from_str::<Sdfg>(&serde_json::to_string(program).unwrap()).unwrap(), *program);
}

#[test]
fn infinities_holes_nesting_and_transitions_survive() {
    survives(
        &parse(
            "program p about \"all\" {
               sizes h=2
               dims h, j=2*h
               input x[h] f32 view of y[h/2] from \"f.yaml\":1:2
               state s1 forward {
                 n2 = map m [h=0:h:2 over j sequential]
                 n3 in n2 = tasklet t { out = where([h] < 1.0, -inf, x) }
                 n5 = nested inner [h=h+1] program q { state s0 a { } }
                 n7 in n2 = exit n2
                 e4 = n2:OUT_x -> n3:x moves x[h-1] volume 3 wcr online_softmax dynamic fill -inf
                 e9 = n3:out -> n7 moves x[0:h:2] fill 0.1
               }
               state s3 b { }
               s1 -> s3 if h <= 3 set h = h+1
               s3 -> s1
             }",
        )
        .unwrap(),
    );
}

#[test]
fn errors_say_what_is_wrong() {
    let good = to_json(&parse("program p { input x[] f32 state s0 a { n0 = access x n1 = access x e0 = n0 -> n1 moves x[] } }").unwrap());
    let broken = |pointer: &str, value: Value| {
        let mut bad = good.clone();
        *bad.pointer_mut(pointer).unwrap() = value;
        from_json(&bad).unwrap_err().to_string()
    };
    assert_eq!(
        broken("/version", json!(2)),
        "the program has version 2, but this Memlet reads version 1; write it again with the same Memlet"
    );
    assert!(broken("/name", json!(3)).contains("expected a string"));
    assert!(broken("/states/0/edges/0/to", json!(7)).contains("in state s0: e0 ends at n7, which is not there"));
    assert!(broken("/states/0/nodes/1/id", json!(0)).contains("n0 is given twice"));
    assert!(broken("/states/0/nodes/1/id", json!(4_000_000_000u32)).contains("n4000000000 is too large"));
    assert!(
        broken("/states/0/edges/0/memlet/volume", json!("1+"))
            .contains("expected an integer, a symbol or `(`, but found the end of the text")
    );
    assert!(from_json(&json!([])).is_err());
}

proptest! {
    #[test]
    fn random_programs_survive(seed in any::<u64>()) {
        let program = random::program(seed);
        survives(&program);
        survives(&expanded(program));
    }
}
