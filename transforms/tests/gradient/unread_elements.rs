//! What no reader takes is not computed.

use crate::every_pass::verified;
use sdfg::{Container, Direction, Dtype, Expr, Fill, Op, Operand, Operation, Role, Scalar, Sdfg, Unit};
use transforms::Pass;
use transforms::algebra::unread_elements::UnreadElements;

fn operand(connector: &str, data: &str, subscripts: &[&str], fill: Option<f64>) -> Operand {
    let subscripts = subscripts.iter().map(|s| s.parse().expect("a subscript")).collect();
    Operand { connector: connector.into(), data: data.into(), subscripts, fill: fill.map(Fill) }
}

fn operation(name: &str, op: Op, indices: &[&str], inputs: Vec<Operand>, out: &[&str]) -> Operation {
    Operation {
        name: name.into(),
        op,
        indices: indices.iter().map(|i| (i.to_string(), i.to_string())).collect(),
        inputs,
        outputs: vec![operand("out", name, out, None)],
        pass: Direction::Forward,
        origin: None,
    }
}

/// `s = a·b` and `t[c,h] = s + h·x[c,h-1]`, of which products `y[o,p] = Σ k[o,c] · t[c,place]` read places: `h` of 13, `p` as many as
/// said.
fn chain(reads: &[&str], fill: Option<f64>, places: i64) -> Sdfg {
    let mut program = Sdfg::new("chain");
    for (dim, size) in [("c", 3), ("o", 2), ("h", 13), ("e", 4), ("p", places)] {
        program.dims.insert(dim.into(), Expr::sym(dim.to_uppercase()));
        program.sizes.insert(dim.to_uppercase(), size);
    }
    let mut add = |name: &str, dims: &[&str], role: Role| {
        program.add_container(Container { grad: role != Role::Output, ..Container::new(name, dims, Dtype::F64, role) });
    };
    let given: [(&str, &[&str]); 4] = [("a", &["c", "e"]), ("b", &["e", "h"]), ("x", &["c", "h"]), ("k", &["o", "c"])];
    given.iter().for_each(|(name, dims)| add(name, dims, Role::Input));
    add("s", &["c", "h"], Role::Transient);
    add("t", &["c", "h"], Role::Transient);
    let names: Vec<String> = (0..reads.len()).map(|n| format!("y{n}")).collect();
    names.iter().for_each(|name| add(name, &["o", "p"], Role::Output));
    let factors = vec![operand("a", "a", &["c", "e"], None), operand("b", "b", &["e", "h"], None)];
    let product = || Op::Contraction { scale: Scalar::Const(1.0) };
    let code = Scalar::input("s") + Scalar::Index(Expr::sym("h")) * Scalar::input("x");
    let terms = vec![operand("s", "s", &["c", "h"], None), operand("x", "x", &["c", "h - 1"], Some(0.5))];
    let mut operations = vec![
        operation("s", product(), &["c", "h", "e"], factors, &["c", "h"]),
        operation("t", Op::Elementwise { label: "sum".into(), code }, &["c", "h"], terms, &["c", "h"]),
    ];
    for (name, place) in names.iter().zip(reads) {
        let factors = vec![operand("a", "k", &["o", "c"], None), operand("b", "t", &["c", place], fill)];
        operations.push(operation(name, product(), &["o", "p", "c"], factors, &["o", "p"]));
    }
    let state = program.add_state("main");
    operations.iter().for_each(|operation| _ = program.insert_operation(state, operation).expect("an operation"));
    program
}

/// Every other place is read, and one place alone.
pub fn models() -> [Sdfg; 2] {
    [chain(&["2*p + 1"], None, 6), chain(&["4"], None, 2)]
}

/// How many places of `t` and of `s` are computed, and why operations are left.
fn after(program: &Sdfg) -> ([i64; 2], String) {
    let outcome = verified(program, &[&UnreadElements as &dyn Pass]).unwrap_or_else(|error| panic!("{error}"));
    let program = outcome.program;
    assert_eq!(sdfg::validate::validate(&program), vec![]);
    let units: Vec<Unit> = program.units().into_iter().map(|(_, _, unit)| unit).collect();
    let places = ["t", "s"].map(|name| {
        let operation = units.iter().find_map(|unit| if let Unit::Operation(o) = unit { Some(o).filter(|o| o.name == name) } else { None });
        let dim = operation.and_then(|o| o.indices.get("h")).expect("an index");
        assert_eq!(program.containers[name].dims[1], *dim);
        program.size_of(dim).eval(&program.sizes).expect("a size")
    });
    (places, outcome.refusals.iter().map(|refusal| refusal.reason.to_string()).collect::<Vec<_>>().join("; "))
}

#[test]
fn every_other_place_is_computed_up_to_the_first_tensor() {
    let [strided, one] = models();
    assert_eq!(after(&strided).0, [6, 6]);
    assert_eq!(after(&one).0, [1, 1]);
}

#[test]
fn readers_share_places_at_a_common_distance() {
    // 1, 5, 9 and 3, 7, 11: every other place from 1 on.
    assert_eq!(after(&chain(&["4*p + 1", "4*p + 3"], None, 3)).0, [6, 6]);
    // Every third place from 0 on, of which −3, 15 and more lie outside.
    assert_eq!(after(&chain(&["3*p - 3", "3*p + 3"], Some(0.25), 7)).0, [5, 5]);
    // Every third place, and behind the fifth the fill.
    assert_eq!(after(&chain(&["3*p"], Some(0.25), 7)).0, [5, 5]);
    // A slice.
    assert_eq!(after(&chain(&["p + 7", "p + 7"], None, 4)).0, [4, 4]);
}

#[test]
fn what_is_read_stays() {
    let (places, why) = after(&chain(&["2*p", "p"], None, 6));
    assert_eq!(places, [13, 13]);
    assert!(why.contains("no half of a dim is unread"), "{why}");
    // More than half.
    assert_eq!(after(&chain(&["p + 1"], None, 7)).0, [13, 13]);
    // An output is whole.
    let mut output = chain(&["2*p"], None, 6);
    output.containers["t"].role = Role::Output;
    assert_eq!(after(&output).0, [13, 13]);
}

/// A softmax and a normalization along the other dim make each row from itself.
#[test]
fn rows_are_made_one_by_one() {
    for op in [Op::Softmax { over: vec!["c".into()] }, Op::Normalize { over: vec!["c".into()], eps: 1e-3 }] {
        let mut program = chain(&["2*p + 1"], None, 6);
        let mut outputs = vec![operand("out", "t", &["c", "h"], None)];
        if let Op::Normalize { .. } = op {
            for name in ["mean", "rstd"] {
                program.add_container(Container::new(name, &["h"], Dtype::F64, Role::Transient));
                outputs.push(operand(name, name, &["h"], None));
            }
        }
        let state = program.states().next().expect("a state").0;
        program
            .map_operations(state, |_, mut operation| {
                if operation.name == "t" {
                    operation.op = op.clone();
                    operation.inputs = vec![operand("x", "s", &["c", "h"], None)];
                    operation.outputs = outputs.clone();
                }
                vec![operation]
            })
            .expect("operations");
        assert_eq!(after(&program).0, [6, 6]);
        // A mean that is returned is one of every row.
        if let Some(mean) = program.containers.get_mut("mean") {
            mean.role = Role::Output;
            let (places, why) = after(&program);
            assert_eq!(places, [13, 13]);
            assert!(why.contains("`mean`, which is made with it, is used"), "{why}");
        }
    }
}

/// A softmax over the dim makes each element from all.
#[test]
fn what_is_made_of_its_neighbours_is_told() {
    let mut program = chain(&["2*p"], None, 6);
    let state = program.states().next().expect("a state").0;
    program
        .map_operations(state, |_, mut operation| {
            if operation.name == "t" {
                operation.op = Op::Softmax { over: vec!["h".into()] };
                operation.inputs = vec![operand("x", "s", &["c", "h"], None)];
            }
            vec![operation]
        })
        .expect("operations");
    let (places, why) = after(&program);
    assert_eq!(places, [13, 13]);
    assert!(why.contains("`t` makes elements from one another") && why.contains("unread along `h`"), "{why}");
}
