//! Activity analysis: which containers lie on a path from a wanted tensor to a seed, and how their gradients come together.

use super::error::DifferentiateError;
use super::options::Options;
use sdfg::{Container, Op, Operand, Operation, Role, Sdfg};
use std::collections::{BTreeMap, BTreeSet};

/// Containers that are read in parts which together are the whole, each part by one element-wise operation, such as the gates of a
/// recurrent layer: each reader writes its part of the gradient.
pub(super) fn parted(program: &Sdfg, operations: &[Operation], relevant: &BTreeSet<String>, wanted: &[String]) -> BTreeSet<String> {
    let mut readers: BTreeMap<&str, Vec<(&Operation, &Operand)>> = BTreeMap::new();
    for operation in operations.iter().filter(|o| o.outputs.iter().any(|o| relevant.contains(&o.data))) {
        operation.inputs.iter().for_each(|input| readers.entry(input.data.as_str()).or_default().push((operation, input)));
    }
    let is_parted = |data: &str, found: &[(&Operation, &Operand)]| -> Option<bool> {
        let container = program.containers.get(data).filter(|c| c.is_transient())?;
        let axis = found.first()?.1.subscripts.iter().position(|s| s.as_int().is_some())?;
        let mut places = BTreeSet::new();
        for (operation, operand) in found {
            places.insert(operand.subscripts.get(axis)?.as_int()?);
            let mut names = BTreeSet::new();
            for (subscript, dim) in operand.subscripts.iter().zip(&container.dims).enumerate().filter(|(n, _)| *n != axis).map(|(_, s)| s) {
                let index = subscript.as_sym()?;
                let whole = program.size_of(operation.indices.get(index)?) == program.size_of(dim);
                (whole && names.insert(index)).then_some(())?;
            }
            // Every index of the operation is one of the element's, so nothing is summed.
            let plain = operand.fill.is_none() && names.len() == operation.indices.len();
            (plain && matches!(operation.op, Op::Elementwise { .. })).then_some(())?;
        }
        let size = program.size_of(&container.dims[axis]).eval(&program.sizes).ok()?;
        Some(places.len() == found.len() && places == (0..size).collect())
    };
    let wanted: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let is_candidate = |data: &str| relevant.contains(data) && !wanted.contains(data);
    let all = readers.iter().filter(|(data, found)| is_candidate(data) && is_parted(data, found) == Some(true));
    all.map(|(data, _)| data.to_string()).collect()
}

/// Results of a group of operations that one of them, or one before it, reads at another time: their gradients are complete only with the
/// whole group.
pub(super) fn carried(group: &[Operation]) -> Vec<String> {
    let mut found = Vec::new();
    for (n, operation) in group.iter().enumerate() {
        for output in &operation.outputs {
            if group[..=n].iter().flat_map(|o| &o.inputs).any(|input| input.data == output.data) {
                found.push(output.data.clone());
            }
        }
    }
    found
}

/// The containers that are differentiated: the upstream ones or the loss.
pub(super) fn seeds<'a>(program: &'a Sdfg, options: &Options, operations: &[Operation]) -> Result<Vec<&'a Container>, DifferentiateError> {
    let names = match (&options.upstream[..], &options.loss) {
        (names @ [_, ..], None) => names,
        ([], Some(loss)) => std::slice::from_ref(loss),
        _ => {
            let outputs: Vec<_> = program.containers.values().filter(|c| c.role == Role::Output).map(|c| format!("`{}`", c.name)).collect();
            return Err(DifferentiateError::Seed { program: program.name.clone(), outputs: outputs.join(", ") });
        }
    };
    let mut seeds: Vec<&Container> = Vec::new();
    for name in names {
        let seed = known(program, name)?;
        if !operations.iter().flat_map(|o| &o.outputs).any(|o| o.data == *name) {
            return Err(DifferentiateError::NotComputed { name: name.clone(), at: seed.origin.clone() });
        }
        if options.loss.is_some() && !seed.dims.is_empty() {
            return Err(DifferentiateError::NotScalar { name: name.clone(), dims: seed.dims.join(", "), at: seed.origin.clone() });
        }
        if !seeds.iter().any(|known| known.name == *name) {
            seeds.push(seed);
        }
    }
    Ok(seeds)
}

pub(super) fn known<'a>(program: &'a Sdfg, name: &str) -> Result<&'a Container, DifferentiateError> {
    program.containers.get(name).ok_or_else(|| DifferentiateError::Unknown { program: program.name.clone(), name: name.to_string() })
}

/// Names of the containers whose gradients are handed back, in the program's order.
pub(super) fn wanted(program: &Sdfg, options: &Options, seeds: &[&Container]) -> Result<Vec<String>, DifferentiateError> {
    let by_default = |c: &&Container| c.grad && matches!(c.role, Role::Input | Role::Parameter) && c.dtype.roundoff() > 0.0;
    let mut names = match &options.wanted {
        None => program.containers.values().filter(by_default).map(|c| c.name.clone()).collect(),
        Some(names) => names.clone(),
    };
    for name in &names {
        let container = known(program, name)?;
        if container.dtype.roundoff() == 0.0 {
            let (dtype, at) = (container.dtype.to_string(), container.origin.clone());
            return Err(DifferentiateError::NotFloating { name: name.clone(), dtype, at });
        }
    }
    // A seed's own gradient is given, not computed.
    names.retain(|n| !seeds.iter().any(|seed| *n == seed.name));
    names.sort_by_key(|n| program.containers.get_index_of(n));
    names.dedup();
    Ok(names)
}

/// Containers on a path from a wanted tensor to a seed.
pub(super) fn relevant(
    program: &Sdfg,
    operations: &[Operation],
    seeds: &[&Container],
    wanted: &[String],
) -> Result<BTreeSet<String>, DifferentiateError> {
    // Operations of a loop read what later ones write: those are followed until nothing is new.
    let mut active: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let mut known = None;
    while known != Some(active.len()) {
        known = Some(active.len());
        for operation in operations {
            if !operation.stops_gradients() && operation.inputs.iter().any(|i| active.contains(i.data.as_str())) {
                active.extend(operation.outputs.iter().map(|o| o.data.as_str()));
            }
        }
    }
    let mut useful: BTreeSet<&str> = seeds.iter().map(|seed| seed.name.as_str()).collect();
    let mut known = None;
    while known != Some(useful.len()) {
        known = Some(useful.len());
        for operation in operations.iter().rev() {
            if operation.outputs.iter().any(|o| useful.contains(o.data.as_str())) {
                useful.extend(operation.inputs.iter().map(|i| i.data.as_str()));
            }
        }
    }
    for container in program.containers.values() {
        let Some(view) = &container.view else { continue };
        let (name, of) = (container.name.as_str(), view.of.as_str());
        if (active.contains(name) || active.contains(of)) && (useful.contains(name) || useful.contains(of)) {
            return Err(DifferentiateError::View { name: name.to_string(), at: container.origin.clone() });
        }
    }
    let relevant: BTreeSet<String> = active.intersection(&useful).map(|n| n.to_string()).collect();
    for operation in operations {
        if let Some(output) = operation.outputs.iter().find(|o| o.connector != "out" && relevant.contains(&o.data)) {
            let (name, at) = (output.data.clone(), operation.origin.clone());
            return Err(DifferentiateError::Statistic { name, operation: operation.name.clone(), at });
        }
    }
    Ok(relevant)
}
