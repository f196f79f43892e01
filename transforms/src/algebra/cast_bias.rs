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

use crate::pass::{Context, Pass, Rewritten, Stopped, refused_at};
use sdfg::{Binary, Container, Direction, Expr, Op, Operand, Operation, Role, Scalar, Sdfg, Unit};

/// Casts every bias of a forward contraction to the type in which the sum is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct CastBias;

impl Pass for CastBias {
    fn name(&self) -> &'static str {
        "cast bias"
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let mut result = program.clone();
        let mut casts = Vec::new();
        let mut sums = Vec::new();
        for (id, state) in program.states() {
            let operations: Vec<Operation> =
                state.units().into_iter().filter_map(|(_, unit)| if let Unit::Operation(o) = unit { Some(o) } else { None }).collect();
            let product = |o: &Operand| {
                operations.iter().any(|p| matches!(p.op, Op::Contraction { .. }) && p.outputs.iter().any(|out| out.data == o.data))
            };
            let bias = |operation: &Operation| bias(program, operation, &product);
            sums.extend(operations.iter().filter(|o| added(o, &product).is_some()).cloned());
            if operations.iter().all(|o| bias(o).is_none()) {
                continue;
            }
            result.map_operations(id, |result, mut operation| {
                let mut all = Vec::new();
                if let Some((at, from, to)) = bias(&operation) {
                    let name = format!("{}.{}", from.name, to.dtype);
                    if !result.containers.contains_key(&name) {
                        result.add_container(Container { name: name.clone(), dtype: to.dtype, role: Role::Transient, ..from.clone() });
                        all.push(cast(from, &name));
                        casts.push(format!("`{}`", from.name));
                    }
                    operation.inputs[at].data = name;
                }
                all.push(operation);
                all
            })?;
        }
        if casts.is_empty() {
            let why = "its bias is no parameter of forward that is wider than the sum";
            let refused = sums.iter().map(|o| (o, why.to_string()));
            return Err(refused_at(self.name(), program, refused, "nothing is added to a contraction"));
        }
        Ok(Rewritten::program(format!("cast the biases {}", casts.join(", ")), result))
    }
}

/// The position of what an operation adds to the result of a contraction.
fn added(operation: &Operation, product: &dyn Fn(&Operand) -> bool) -> Option<usize> {
    let Op::Elementwise { code: Scalar::Binary(Binary::Add, x, y), .. } = &operation.op else { return None };
    let connectors = [x, y].map(|s| if let Scalar::Input(name) = &**s { Some(name) } else { None });
    let plain = operation.inputs.len() == 2 && operation.inputs.iter().all(|i| connectors.contains(&Some(&i.connector)));
    operation.inputs.iter().position(|i| !product(i)).filter(|_| plain && operation.inputs.iter().any(product))
}

/// The bias of a forward contraction that is wider than the sum: its position among the inputs, its container and that of the sum.
fn bias<'a>(program: &'a Sdfg, operation: &Operation, product: &dyn Fn(&Operand) -> bool) -> Option<(usize, &'a Container, &'a Container)> {
    let [sum] = operation.outputs.as_slice() else { return None };
    let at = added(operation, product)?;
    let (from, to) = (program.containers.get(&operation.inputs[at].data)?, program.containers.get(&sum.data)?);
    let narrower = to.dtype != from.dtype && to.dtype.accumulator() == from.dtype;
    (operation.pass == Direction::Forward && from.role == Role::Parameter && narrower).then_some((at, from, to))
}

fn cast(from: &Container, to: &str) -> Operation {
    let subscripts: Vec<Expr> = from.dims.iter().map(|d| Expr::sym(d.as_str())).collect();
    let operand = |connector: &str, data: &str| Operand {
        connector: connector.into(),
        data: data.into(),
        subscripts: subscripts.clone(),
        fill: None,
    };
    Operation {
        name: to.into(),
        op: Op::Elementwise { label: "cast".into(), code: Scalar::input("x") },
        indices: from.dims.iter().map(|d| (d.clone(), d.clone())).collect(),
        inputs: vec![operand("x", &from.name)],
        outputs: vec![operand("out", to)],
        pass: Direction::Forward,
        origin: from.origin.clone(),
    }
}
