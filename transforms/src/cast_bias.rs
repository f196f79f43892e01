//! Biases cast to the element type of the sums that they are added to.
//!
//! ```text
//! y = dot + c                      c.bf16 = c
//! (y in bf16, c in f32)      →     y = dot + c.bf16
//! ```
//!
//! *Legal when* always: a cast changes no meaning. The bias is rounded once more, as the weight beside it was.
//! *Moves less because* a library that adds a bias to a product takes it in the type of the result alone; without one, this moves
//! a little more.
//! *Not handled*: biases of sums that are no product's, or that are scaled in the same step.

use sdfg::{Binary, BuildError, Container, Expr, Op, Operand, Operation, Pass, Role, Scalar, Sdfg, State, Unit};

/// A program of operators with every bias of a forward contraction cast to what the sum is stored in.
///
/// # Errors
/// Operations that do not fit the program.
pub fn narrowed(program: &Sdfg) -> Result<Sdfg, BuildError> {
    let mut result = program.clone();
    for (id, state) in program.states() {
        let operations: Vec<Operation> =
            state.units().into_iter().filter_map(|(_, unit)| if let Unit::Operation(o) = unit { Some(o) } else { None }).collect();
        let bias = |operation: &Operation| -> Option<(usize, &Container, &Container)> {
            let (Op::Elementwise { code: Scalar::Binary(Binary::Add, x, y), .. }, [sum]) = (&operation.op, operation.outputs.as_slice())
            else {
                return None;
            };
            let connectors = [x, y].map(|s| if let Scalar::Input(name) = &**s { Some(name) } else { None });
            let product = |o: &Operand| {
                operations.iter().any(|p| matches!(p.op, Op::Contraction { .. }) && p.outputs.iter().any(|out| out.data == o.data))
            };
            let plain = operation.inputs.len() == 2 && operation.inputs.iter().all(|i| connectors.contains(&Some(&i.connector)));
            let at = operation.inputs.iter().position(|i| !product(i)).filter(|_| plain && operation.inputs.iter().any(product))?;
            let (from, to) = (program.containers.get(&operation.inputs[at].data)?, program.containers.get(&sum.data)?);
            let narrower = to.dtype != from.dtype && to.dtype.accumulator() == from.dtype;
            (operation.pass == Pass::Forward && from.role == Role::Parameter && narrower).then_some((at, from, to))
        };
        if operations.iter().all(|o| bias(o).is_none()) {
            continue;
        }
        if let Some(state) = result.state_mut(id) {
            *state = State::new(state.name.clone());
        }
        for operation in &operations {
            let mut operation = operation.clone();
            if let Some((at, from, to)) = bias(&operation) {
                let name = format!("{}.{}", from.name, to.dtype);
                if !result.containers.contains_key(&name) {
                    result.add_container(Container { name: name.clone(), dtype: to.dtype, role: Role::Transient, ..from.clone() });
                    result.insert_operation(id, &cast(from, &name))?;
                }
                operation.inputs[at].data = name;
            }
            result.insert_operation(id, &operation)?;
        }
    }
    Ok(result)
}

fn cast(from: &Container, to: &str) -> Operation {
    let subscripts: Vec<Expr> = from.dims.iter().map(|d| Expr::sym(d.as_str())).collect();
    let operand = |connector: &str, data: &str| Operand { connector: connector.into(), data: data.into(), subscripts: subscripts.clone() };
    Operation {
        name: to.into(),
        op: Op::Elementwise { label: "cast".into(), code: Scalar::input("x") },
        indices: from.dims.iter().map(|d| (d.clone(), d.clone())).collect(),
        inputs: vec![operand("x", &from.name)],
        outputs: vec![operand("out", to)],
        pass: Pass::Forward,
        origin: from.origin.clone(),
    }
}
