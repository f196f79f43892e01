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
    let mut added: Vec<Container> =
        containers.values().filter(own).filter(|c| !program.containers.contains_key(&c.name)).map(all).collect();
    // What is held for one time has a place for each of them again.
    added.extend(nested.states().filter_map(|(_, state)| program.containers.get(&state.data)).map(all));
    let operations = operations.into_iter().map(|operation| over_time(operation, repeat, &containers)).collect();
    Some((added, operations))
}

fn over_time(operation: Operation, repeat: &Loop, containers: &IndexMap<String, Container>) -> Operation {
    let seen = |operand: Operand| seen(operand, repeat, containers);
    let index = [(repeat.index.clone(), repeat.dim.clone())];
    Operation {
        indices: index.into_iter().chain(operation.indices).collect(),
        inputs: operation.inputs.into_iter().map(seen).collect(),
        outputs: operation.outputs.into_iter().map(seen).collect(),
        ..operation
    }
}

/// What an operand of the body reads or writes of the outer containers.
fn seen(operand: Operand, repeat: &Loop, containers: &IndexMap<String, Container>) -> Operand {
    let own = Expr::sym(repeat.index.as_str());
    let Operand { connector, data, mut subscripts, fill } = operand;
    for subscript in &mut subscripts {
        if let Expr::Element(data, at) = subscript {
            let named = Operand { connector: String::new(), data: data.clone(), subscripts: at.clone(), fill: None };
            let named = seen(named, repeat, containers);
            *subscript = Expr::Element(named.data, named.subscripts);
        }
    }
    let Some(slice) = repeat.slices.get(&data) else {
        let is_state = repeat.slices.values().any(|slice| slice.is_state() && slice.data == data);
        if is_state || containers.get(&data).is_some_and(|c| c.role == Role::Transient) {
            subscripts.insert(0, own.clone());
        }
        return Operand { connector, data, subscripts, fill };
    };
    if let Some((axis, at)) = &slice.at {
        subscripts.insert(*axis, at.clone());
    } else if slice.is_state() {
        subscripts.insert(0, if repeat.reversed { own + Expr::Int(1) } else { own - Expr::Int(1) });
    }
    Operand { connector, data: slice.data.clone(), subscripts, fill: fill.or(slice.fill) }
}
