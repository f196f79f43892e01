//! Sets of units that are the same but for names: layers that repeat give the same kernels, and the work on one of them serves all.
//!
//! A class is made of the units with their containers numbered in the order of their first use, of what these containers are, and of
//! which of them somebody outside needs. The order of the containers' names counts too, because searches go through containers by name.
//! Indices, dims and connectors count by their names.

use crate::refusal::Reason;
use crate::unit_graph::{Members, UnitGraph};
use indexmap::IndexSet;
use sdfg::rename::NameKind;
use sdfg::{Container, Sdfg, State, Unit};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;

/// A unit without the names of its containers and of its streams of random numbers.
struct Shape {
    /// Equal for units that are the same but for these names.
    number: usize,
    /// The names in the order of their first use; streams with a mark in front that no container has.
    names: Vec<String>,
}

const STREAM: char = '~';

/// A set of units by its class, and the names that stand in it, in the order in which the class has them.
pub(super) struct Class {
    key: Vec<usize>,
    names: Vec<String>,
}

/// What was found out about the first set of a class.
struct Found {
    names: Vec<String>,
    verdict: Result<(), Reason>,
}

/// The classes of the sets that were looked at in one state.
pub(super) struct Classes {
    shapes: Vec<OnceCell<Option<Shape>>>,
    /// Texts of units without names.
    texts: RefCell<IndexSet<String>>,
    found: RefCell<HashMap<Vec<usize>, Found>>,
}

impl Classes {
    pub fn of_units(units: usize) -> Self {
        Classes { shapes: (0..units).map(|_| OnceCell::new()).collect(), texts: RefCell::default(), found: RefCell::default() }
    }

    /// The verdict on the first set of a class, in the words of this one; `None` if it is the first, or the words cannot be found.
    pub fn known(&self, class: &Class) -> Option<Result<(), Reason>> {
        let all = self.found.borrow();
        let Found { names, verdict } = all.get(&class.key)?;
        let Err(reason) = verdict else { return Some(Ok(())) };
        let names: HashMap<&str, &str> = names.iter().map(String::as_str).zip(class.names.iter().map(String::as_str)).collect();
        reason.renamed(&|name| names.get(name).map(ToString::to_string)).map(Err)
    }

    pub fn learn(&self, class: Class, verdict: &Result<(), Reason>) {
        let Class { key, names } = class;
        self.found.borrow_mut().entry(key).or_insert_with(|| Found { names, verdict: verdict.clone() });
    }

    /// The class of a set of units of a state; `None` if one of them is neither a scope nor a contraction, or uses a part of a container.
    pub fn class(&self, program: &Sdfg, state: &State, units: &UnitGraph, members: &Members) -> Option<Class> {
        let mut key = Vec::new();
        let mut used: IndexSet<&str> = IndexSet::new();
        for member in members {
            let shape = self.shapes[*member].get_or_init(|| self.shape(program, state, units, *member)).as_ref()?;
            key.push(shape.number);
            key.extend(shape.names.iter().map(|name| used.insert_full(name).0));
        }
        let mut ordered: Vec<usize> = (0..used.len()).collect();
        ordered.sort_by_key(|n| used.get_index(*n));
        key.append(&mut ordered);
        for data in &used {
            // A container inside a unit is nobody else's.
            let outside = |n: usize| 1 + usize::from(units.leaves(n)) + 2 * usize::from(units.reader_outside(n, members).is_some());
            key.push(units.number(data).map_or(0, outside));
        }
        let made = members.iter().map(|m| units.all[*m].name.clone());
        Some(Class { names: made.chain(used.iter().map(ToString::to_string)).collect(), key })
    }

    fn shape(&self, program: &Sdfg, state: &State, units: &UnitGraph, unit: usize) -> Option<Shape> {
        let node = units.all[unit].node;
        let whole = state.operation(node).map(Unit::Operation).or_else(|| state.scope(node).map(Unit::Scope))?;
        let mut names: IndexSet<String> = IndexSet::new();
        let renamed = whole.renamed(&mut |kind, name| match kind {
            NameKind::Container => names.insert_full(name.to_string()).0.to_string(),
            NameKind::Stream => names.insert_full(format!("{STREAM}{name}")).0.to_string(),
            NameKind::Title => String::new(),
            _ => name.to_string(),
        })?;
        let mut text = format!("{renamed:?}");
        for data in names.iter().filter(|name| !name.starts_with(STREAM)) {
            let container = program.containers.get(data).filter(|c| c.view.is_none())?;
            text += &format!("\n{:?}", Container { name: String::new(), origin: None, replaces: None, ..container.clone() });
        }
        let number = self.texts.borrow_mut().insert_full(text).0;
        Some(Shape { number, names: names.into_iter().collect() })
    }
}
