//! The containers that a unit of a program reads and writes.

use indexmap::IndexSet;
use sdfg::Unit;

/// Names of all containers that a unit reads and writes, in order of first appearance.
pub(crate) fn touched(unit: &Unit) -> (Vec<String>, Vec<String>) {
    match unit {
        Unit::Scope(scope) => (scope.reads().into_keys().collect(), scope.writes().into_keys().collect()),
        Unit::Operation(operation) => {
            (operation.inputs.iter().map(|o| o.data.clone()).collect(), operation.outputs.iter().map(|o| o.data.clone()).collect())
        }
        Unit::Nested(nested) if nested.repeat.is_some() => {
            let (given, made) = nested.boundary();
            (given.into_iter().collect(), made.into_iter().collect())
        }
        Unit::Nested(nested) => {
            let units = nested.program.units();
            let all: Vec<(Vec<String>, Vec<String>)> = units.iter().map(|(_, _, unit)| touched(unit)).collect();
            let once = |names: Vec<String>| names.into_iter().collect::<IndexSet<_>>().into_iter().collect();
            (once(all.iter().flat_map(|(r, _)| r.clone()).collect()), once(all.iter().flat_map(|(_, w)| w.clone()).collect()))
        }
    }
}
