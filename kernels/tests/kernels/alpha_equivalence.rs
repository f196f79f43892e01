//! Kernels that differ in names alone have equal fingerprints.

use crate::common;
use kernels::{KernelClass, KernelSpec};
use sdfg::{Container, Direction, Dtype, Expr, Op, Operand, Operation, Role, Scalar, Sdfg, Unit};
use std::collections::BTreeMap;

/// `out = a · b`, each written `name[dims as declared|indices]`; the dims j and k have one length.
fn product(out: &str, a: &str, b: &str, scale: f64) -> KernelSpec {
    let mut program = Sdfg::new("classes");
    for (dim, size) in [("b", 8), ("j", 96), ("k", 96), ("h", 4), ("p", 16), ("i", 64)] {
        program.dims.insert(dim.to_string(), Expr::Int(size));
    }
    let (mut indices, mut operands) = (indexmap::IndexMap::new(), Vec::new());
    for (connector, text) in [("a", a), ("b", b), ("out", out)] {
        let (name, rest) = text.trim_end_matches(']').split_once('[').unwrap();
        let (dims, subscripts) = rest.split_once('|').unwrap_or((rest, rest));
        let each = |text: &str| text.split(',').map(String::from).collect::<Vec<String>>();
        let (dims, subscripts) = (each(dims), each(subscripts));
        let dims: Vec<&str> = dims.iter().map(String::as_str).collect();
        let subscripts: Vec<&str> = subscripts.iter().map(String::as_str).collect();
        indices.extend(subscripts.iter().map(|n| (n.to_string(), n.to_string())));
        program.add_container(Container::new(name, &dims, Dtype::F32, if connector == "out" { Role::Output } else { Role::Input }));
        operands.push(Operand::new(connector, name, &subscripts));
    }
    let outputs = operands.split_off(2);
    let op = Op::Contraction { scale: Scalar::Const(scale) };
    let operation =
        Operation { name: format!("{out} made"), op, indices, inputs: operands, outputs, pass: Direction::Forward, origin: None };
    KernelSpec::new(&program, &Unit::Operation(operation)).unwrap()
}

/// Marks of a thousand configurations, spread over the space, with their numbers.
fn fingerprints(spec: &KernelSpec) -> BTreeMap<String, u64> {
    let (space, class) = (kernels::space(spec).unwrap(), KernelClass::of(spec).unwrap());
    let step = (space.count() / 997).max(1);
    (0..space.count()).step_by(step as usize).map(|n| (class.fingerprint(&space.identity(n)), n)).collect()
}

fn queries() -> KernelSpec {
    product("qq[p,h,b,j]", "wq[p,h,i]", "x[i,b,j]", 1.0)
}

#[test]
fn queries_and_keys_are_one_class() {
    let queries = queries();
    let values = product("vv[p,h,b,j]", "wv[p,h,i]", "x[i,b,j]", 1.0);
    assert_ne!(queries.key(), values.key());
    assert_eq!(fingerprints(&queries), fingerprints(&values), "the same fingerprints, for configurations of the same numbers");
    // Keys run along their own dim, over the same tensor; where that tensor's innermost dim is meant, knobs may say so otherwise.
    let keys = product("kk[p,h,b,k]", "wk[p,h,i]", "x[i,b,j|i,b,k]", 1.0);
    let (all, its) = (fingerprints(&queries), fingerprints(&keys));
    let shared = all.iter().filter(|(fingerprint, n)| its.get(*fingerprint) == Some(n)).count();
    assert!(shared * 2 > all.len(), "{shared} of {} fingerprints", all.len());
}

#[test]
fn other_computations_share_no_fingerprint() {
    let mine = fingerprints(&queries());
    let others = [
        ("another scale", product("qq[p,h,b,j]", "wq[p,h,i]", "x[i,b,j]", 0.5)),
        ("another contraction", product("y[i,b,j]", "wq[p,h,i]", "qq[p,h,b,j]", 1.0)),
        ("another order of the operands' dims", product("qq[p,h,b,j]", "wq[h,p,i]", "x[i,b,j]", 1.0)),
    ];
    for (what, other) in others {
        assert!(fingerprints(&other).keys().all(|fingerprint| !mine.contains_key(fingerprint)), "{what}");
    }
    let small = queries().with_sizes(&Default::default()).unwrap();
    let smaller = KernelSpec { dims: small.dims.iter().map(|(d, n)| (d.clone(), if d == "b" { 4 } else { *n })).collect(), ..small };
    assert!(fingerprints(&smaller).keys().all(|fingerprint| !mine.contains_key(fingerprint)), "other sizes");
}

/// What a fused scope holds is compared, not how it is called.
#[test]
fn scopes_differ_by_what_they_compute() {
    let sizes: common::Sizes = &[("b", 3), ("h", 2), ("j", 19), ("k", 37), ("i", 21), ("u", 70)];
    let fingerprint = |case: &common::Case| {
        let spec = KernelSpec::new(&case.program, &case.unit).unwrap();
        let space = kernels::space(&spec).unwrap();
        KernelClass::of(&spec).unwrap().fingerprint(&space.identity(0))
    };
    let case = common::softmax_dropout(sizes);
    let renamed = |text: &str| text.replace("softmax", "another");
    let Unit::Scope(scope) = &case.unit else { panic!("a scope") };
    let other = serde_json::from_str(&renamed(&serde_json::to_string(scope).unwrap())).unwrap();
    let mut program = case.program.clone();
    for container in case.program.containers.values() {
        program.add_container(Container { name: renamed(&container.name), ..container.clone() });
    }
    let renamed = common::Case { program, unit: Unit::Scope(other) };
    assert_eq!(fingerprint(&case), fingerprint(&renamed));
    assert_ne!(fingerprint(&case), fingerprint(&common::layernorm(sizes)));
    // Words and numbers that say what is computed are no names, whatever containers are called.
    let text = serde_json::to_string(scope).unwrap();
    for (from, to) in [("\"max\"", "\"min\""), ("exp(", "log("), ("0.1)", "0.2)"), ("x - t.max", "t.max - x")] {
        let other = text.replace(from, to);
        assert_ne!(other, text, "the scope holds {from}");
        let other = common::Case { program: case.program.clone(), unit: Unit::Scope(serde_json::from_str(&other).unwrap()) };
        assert_ne!(fingerprint(&case), fingerprint(&other), "{from} and {to}");
    }
}

/// Connectors of an operator say what an operand is for: its order among the inputs is no name.
#[test]
fn operands_in_other_places_are_another_kernel() {
    let mine = KernelClass::of(&queries()).unwrap().fingerprint("");
    let mut other = queries();
    let Unit::Operation(operation) = &mut other.unit else { panic!("an operation") };
    let [a, b] = &mut operation.inputs[..] else { panic!("two operands") };
    std::mem::swap(&mut a.connector, &mut b.connector);
    assert_ne!(mine, KernelClass::of(&other).unwrap().fingerprint(""));
}

/// Names of containers and indices may be words that mean something elsewhere.
#[test]
fn containers_may_have_any_names() {
    let odd = product("max[p,h,b,j]", "order[p,h,i]", "vector[i,b,j]", 1.0);
    assert_eq!(fingerprints(&queries()), fingerprints(&odd));
}
