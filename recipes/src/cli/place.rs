//! Finds the holder of names without a layout or configuration of their own: parts of tensors, operators and tensors inside kernels.

use sdfg::{Sdfg, Storage, Unit};
use serde::Serialize;

/// The holder of a name that has no layout or configuration of its own.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NamePlace {
    /// A tensor that is a slice of another one.
    PartOf(String),
    /// An operator, or a tensor that never reaches memory.
    Inside(String),
}

impl NamePlace {
    pub fn holder(&self) -> &String {
        let (NamePlace::PartOf(name) | NamePlace::Inside(name)) = self;
        name
    }
}

/// The holder of a name; `None` for a kernel or tensor of its own, and for an unknown name.
pub fn place(program: &Sdfg, name: &str) -> Option<NamePlace> {
    let units = program.units();
    if units.iter().any(|(_, _, unit)| unit.name() == name) {
        return None;
    }
    let container = program.containers.get(name);
    if let Some(view) = container.and_then(|c| c.view.as_ref()) {
        return Some(NamePlace::PartOf(view.of.clone()));
    }
    if container.is_some_and(|c| c.storage == Storage::Heap) {
        return None;
    }
    let holds = |unit: &Unit| match unit {
        Unit::Scope(scope) => scope.operators().iter().any(|o| o == name) || scope.writes().contains_key(name),
        Unit::Nested(nested) => nested.program.units().iter().any(|(_, _, inner)| inner.name() == name),
        Unit::Operation(_) => false,
    };
    units.iter().find(|(_, _, unit)| holds(unit)).map(|(_, _, unit)| NamePlace::Inside(unit.name().to_string()))
}
