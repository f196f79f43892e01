//! In which element type the tensors of a recipe are stored.
//!
//! `dtype` is the type of inputs, of results and of what lies between them. Where it is narrower than what it is summed
//! in (bf16 and f16 are summed in f32), these are stored in the wider type, unless they say otherwise themselves:
//! parameters, which are master weights; what a reduction writes; what a normalization reads and writes, its statistics
//! among it; what a softmax reads; and sums of products that are complete with one more term, a bias. So a stream of
//! residuals from one normalization to the next is never rounded to the narrow type, an exponential does not magnify a
//! rounding, and what a projection makes is rounded once. A recipe that is read as narrow ([`Overrides`](super::Overrides)) keeps
//! of these only what a reduction writes, the statistics of normalizations, and parameters that no contraction multiplies.
//!
//! A contraction multiplies operands of the recipe's type. One that is stored in another floating type is cast first, once
//! for all that read it, into `<name>.<dtype>`: a narrow copy of a weight is made in every step.

use super::header::{DeclaredTensor, Header};
use indexmap::IndexMap;
use sdfg::library::SHIFT;
use sdfg::{Binary, Container, Direction, Expr, Op, Operand, Operation, Role, Scalar};

/// Gives what the steps write its type, and contractions operands of the recipe's.
pub fn settle(header: &mut Header, containers: &mut Vec<Container>, operations: &mut Vec<Operation>) {
    if header.narrow {
        narrow(header, operations);
    }
    let wide = |operation: &Operation| match operation.op {
        Op::Reduce { ref label, .. } if label == SHIFT && !header.narrow => [&operation.inputs[..], &operation.outputs].concat(),
        Op::Reduce { .. } => operation.outputs.clone(),
        Op::Normalize { .. } if header.narrow => operation.outputs.iter().filter(|o| o.connector != "out").cloned().collect(),
        _ if header.narrow => vec![],
        Op::Softmax { .. } => operation.inputs.clone(),
        Op::Contraction { .. } if is_biased(operation, operations) => operation.outputs.clone(),
        Op::Normalize { .. } => operation.input("x").into_iter().chain(&operation.outputs).cloned().collect(),
        _ => vec![],
    };
    for operand in operations.iter().flat_map(wide) {
        for container in containers.iter_mut().filter(|c| c.name == operand.data) {
            container.dtype = container.dtype.accumulator();
        }
    }
    let stored: IndexMap<String, Container> =
        declared_containers(header).chain(containers.iter().cloned()).map(|c| (c.name.clone(), c)).collect();
    let mut settled: Vec<Operation> = Vec::new();
    for mut operation in std::mem::take(operations) {
        if matches!(operation.op, Op::Contraction { .. }) {
            let (pass, origin) = (operation.pass, operation.origin.clone());
            for input in &mut operation.inputs {
                let Some(from) = stored.get(&input.data).filter(|c| c.dtype != header.dtype && c.dtype.is_floating()) else { continue };
                let name = format!("{}.{}", from.name, header.dtype);
                if containers.iter().all(|c| c.name != name) {
                    let dims: Vec<&str> = from.dims.iter().map(String::as_str).collect();
                    let mut made = Container::new(&name, &dims, header.dtype, Role::Transient);
                    made.origin = from.origin.clone().or(origin.clone());
                    settled.push(cast(from, &made, pass));
                    containers.push(made);
                }
                input.data = name;
            }
        }
        settled.push(operation);
    }
    *operations = settled;
}

/// Stores the weights that contractions multiply as the recipe's `dtype` says. Biases and scales stay what they are: they are few, and
/// their gradients are long sums.
fn narrow(header: &mut Header, operations: &[Operation]) {
    let contractions = operations.iter().filter(|o| matches!(o.op, Op::Contraction { .. }));
    for input in contractions.flat_map(|o| &o.inputs) {
        let wide = header.dtype.accumulator();
        match header.tensors.get_mut(&input.data) {
            Some(weight) if weight.role == Role::Parameter && weight.dtype == wide => weight.dtype = header.dtype,
            _ => {}
        }
    }
}

/// Whether all that is done with a contraction's sum is to add something, for another contraction or as a result.
fn is_biased(contraction: &Operation, operations: &[Operation]) -> bool {
    let readers = |data: &str| -> Vec<&Operation> { operations.iter().filter(|o| o.inputs.iter().any(|i| i.data == data)).collect() };
    let [out] = contraction.outputs.as_slice() else { return false };
    let [add] = readers(&out.data)[..] else { return false };
    let (Op::Elementwise { code: Scalar::Binary(Binary::Add, ..), .. }, [sum]) = (&add.op, add.outputs.as_slice()) else { return false };
    let next = readers(&sum.data);
    next.is_empty() || next.iter().any(|o| matches!(o.op, Op::Contraction { .. }))
}

/// The inputs and parameters.
fn declared_containers(header: &Header) -> impl Iterator<Item = Container> + '_ {
    let given = |(_, t): &(&String, &DeclaredTensor)| t.role != Role::Transient;
    header.tensors.iter().filter(given).map(|(name, tensor)| {
        let dims: Vec<&str> = tensor.dims.iter().map(String::as_str).collect();
        Container::new(name, &dims, tensor.dtype, tensor.role)
    })
}

/// `to = from`, element for element.
fn cast(from: &Container, to: &Container, pass: Direction) -> Operation {
    let subscripts: Vec<Expr> = from.dims.iter().map(|d| Expr::sym(d.as_str())).collect();
    let operand = |connector: &str, data: &str| Operand {
        connector: connector.into(),
        data: data.into(),
        subscripts: subscripts.clone(),
        fill: None,
    };
    Operation {
        name: to.name.clone(),
        op: Op::Elementwise { label: "cast".into(), code: Scalar::input("x") },
        indices: from.dims.iter().map(|d| (d.clone(), d.clone())).collect(),
        inputs: vec![operand("x", &from.name)],
        outputs: vec![operand("out", &to.name)],
        pass,
        origin: to.origin.clone(),
    }
}
