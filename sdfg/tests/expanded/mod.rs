//! Programs with their operations replaced by what they expand to.

use sdfg::{Sdfg, Unit};

pub fn expanded(mut program: Sdfg) -> Sdfg {
    for (state, node, unit) in program.units() {
        if let Unit::Operation(operation) = unit {
            let expansion = operation.expand(&program).unwrap();
            program.state_mut(state).unwrap().remove_unit(node);
            expansion.containers.into_iter().for_each(|c| program.add_container(c));
            for scope in &expansion.scopes {
                program.insert_scope(state, scope).unwrap();
            }
        }
    }
    program
}
