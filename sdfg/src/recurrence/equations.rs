//! From a loop back to equations: each slice becomes an operand over all times.

use crate::data::{Container, Role};
use crate::graph::Sdfg;
use crate::node::{Loop, Nested, Operand, Operation};
use crate::scope::Unit;
use crate::symbol::Expr;
use indexmap::IndexMap;

/// The operations of a loop over all times, in the order of the body, and the containers that only the body had. `None` if the body holds
/// more than operators and loops of them.
pub fn equations(program: &Sdfg, nested: &Nested) -> Option<(Vec<Container>, Vec<Operation>)> {
    let repeat = nested.repeat.as_ref()?;
    let inside = &nested.program;
    let mut containers: IndexMap<String, Container> = inside.containers.clone();
    let mut operations = Vec::new();
    for (_, _, unit) in inside.units() {
        match unit {
            Unit::Operation(operation) => operations.push(operation),
            Unit::Nested(inner) => {
                let (more, found) = equations(inside, &inner)?;
                containers.extend(more.into_iter().map(|c| (c.name.clone(), c)));
                operations.extend(found);
            }
            Unit::Scope(_) => return None,
        }
    }
    let all = |container: &Container| Container {
        dims: [repeat.dim.clone()].into_iter().chain(container.dims.iter().cloned()).collect(),
        ..container.clone()
    };
    let own = |c: &&Container| c.role == Role::Transient;
    let added = containers.values().filter(own).filter(|c| !program.containers.contains_key(&c.name)).map(all).collect();
    let operations = operations.into_iter().map(|operation| over_time(operation, repeat, &containers)).collect();
    Some((added, operations))
}

fn over_time(operation: Operation, repeat: &Loop, containers: &IndexMap<String, Container>) -> Operation {
    let own = Expr::sym(repeat.index.as_str());
    let seen = |operand: Operand| {
        let Operand { connector, data, mut subscripts, fill } = operand;
        let Some(slice) = repeat.slices.get(&data) else {
            if containers.get(&data).is_some_and(|c| c.role == Role::Transient) {
                subscripts.insert(0, own.clone());
            }
            return Operand { connector, data, subscripts, fill };
        };
        if let Some((axis, at)) = &slice.at {
            subscripts.insert(*axis, at.clone());
        }
        Operand { connector, data: slice.data.clone(), subscripts, fill: fill.or(slice.fill) }
    };
    let index = [(repeat.index.clone(), repeat.dim.clone())];
    Operation {
        indices: index.into_iter().chain(operation.indices).collect(),
        inputs: operation.inputs.into_iter().map(seen).collect(),
        outputs: operation.outputs.into_iter().map(seen).collect(),
        ..operation
    }
}
