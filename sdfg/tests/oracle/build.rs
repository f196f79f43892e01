//! Small programs and tensors, written down briefly.

use indexmap::IndexMap;
use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::Tensors;
use sdfg::*;

pub fn program(dims: &[(&str, i64)], containers: &[(&str, &[&str], Role)]) -> Sdfg {
    let mut program = Sdfg::new("test");
    for (dim, size) in dims {
        program.dims.insert(dim.to_string(), Expr::Int(*size));
    }
    for (name, dims, role) in containers {
        program.add_container(Container::new(*name, dims, Dtype::F32, *role));
    }
    program.add_state("forward");
    program
}

pub fn operation(op: Op, indices: &[&str], inputs: &[(&str, &str, &[&str])], outputs: &[(&str, &str, &[&str])]) -> Operation {
    let operands = |list: &[(&str, &str, &[&str])]| list.iter().map(|(c, d, i)| Operand::new(c, d, i)).collect();
    Operation {
        name: "op".into(),
        op,
        indices: indices.iter().map(|i| (i.to_string(), i.to_string())).collect::<IndexMap<_, _>>(),
        inputs: operands(inputs),
        outputs: operands(outputs),
        pass: Direction::Forward,
        origin: None,
    }
}

pub fn index(name: &str, program: &Sdfg, kind: IndexKind) -> Index {
    Index::over(name, name, program.size_of(name), kind)
}

pub fn at(data: &str, subscripts: &[&str]) -> Memlet {
    Memlet::at(data, subscripts.iter().map(|s| s.parse().unwrap()))
}

pub fn tasklet(name: &str, code: &[(&str, Scalar)], reads: &[(&str, Memlet)], writes: &[(&str, Memlet)]) -> Item {
    let own = |list: &[(&str, Memlet)]| list.iter().map(|(c, m)| (c.to_string(), m.clone())).collect();
    Item::Tasklet(Computation {
        tasklet: Tasklet {
            name: name.into(),
            code: code.iter().map(|(c, s)| (c.to_string(), s.clone())).collect(),
            operator: "op".into(),
            origin: None,
        },
        reads: own(reads),
        writes: own(writes),
    })
}

pub fn input(name: &str) -> Scalar {
    Scalar::input(name)
}

/// Numbers without structure, between −2 and 2.
pub fn tensor(shape: &[usize], seed: u64) -> ArrayD<f64> {
    let mut at = 0u64;
    ArrayD::from_shape_simple_fn(IxDyn(shape), || {
        at += 1;
        f64::from(philox::lane([seed as u32, 1], 0, at)) / 16384.0 - 2.0
    })
}

pub fn values(shape: &[usize], values: &[f64]) -> ArrayD<f64> {
    ArrayD::from_shape_vec(IxDyn(shape), values.to_vec()).unwrap()
}

pub fn tensors(list: &[(&str, ArrayD<f64>)]) -> Tensors {
    list.iter().map(|(n, t)| (n.to_string(), t.clone())).collect()
}

pub fn state(program: &Sdfg) -> StateId {
    program.states().next().unwrap().0
}
