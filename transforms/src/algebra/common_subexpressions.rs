//! Operations that compute what another one has computed.
//!
//! ```text
//! s = x + c                          s = x + c
//! t = x + c                    →     y = s · s
//! y = s · t
//! ```
//!
//! *Legal when* two operations of one state are the same but for the names of indices and results; every tensor that they read and write
//! has one writer; the later results are nothing that the program returns, no view, and nothing that a view shows. Dropouts of one stream
//! draw the same masks, so they are the same, too.
//! *Moves less because* the later operation, what it reads and what it writes are left out.
//! *Not handled*: operations of different states, since what backward computes again need not be kept from forward; operands in another
//! order; two results that the program both returns.
//! Source: common-subexpression elimination, Cocke, "Global Common Subexpression Elimination" (1970).

use crate::pass::{Context, Pass, Rewritten, Stopped, refused_at};
use sdfg::library::operator::Field;
use sdfg::rename::NameKind;
use sdfg::{Container, Op, Operand, Operation, Role, Sdfg, Unit};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Leaves out operations whose results are those of earlier ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct CommonSubexpressions;

impl Pass for CommonSubexpressions {
    fn name(&self) -> &'static str {
        "common subexpressions"
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let containers = Containers::of(program);
        // The results that others stand for.
        let mut replaced: HashMap<String, String> = HashMap::new();
        let mut removed: HashSet<String> = HashSet::new();
        let (mut found, mut refused) = (vec![], vec![]);
        for (_, state) in program.states() {
            let mut first_by_text: BTreeMap<String, Operation> = BTreeMap::new();
            for (_, unit) in state.units() {
                let Unit::Operation(operation) = unit else { continue };
                let text = text(&operation, &replaced);
                let Some(first) = first_by_text.get(&text) else {
                    first_by_text.insert(text, operation);
                    continue;
                };
                match containers.refusal(first, &operation) {
                    Some(why) => refused.push((operation, format!("it computes what `{}` does, but {why}", first.name))),
                    None => {
                        let pairs = operation.outputs.iter().zip(&first.outputs);
                        replaced.extend(pairs.map(|(later, earlier)| (later.data.clone(), earlier.data.clone())));
                        found.push(format!("`{}` is `{}`", operation.name, first.name));
                        removed.insert(operation.name);
                    }
                }
            }
        }
        if found.is_empty() {
            let refused = refused.iter().map(|(operation, why)| (operation, why.clone()));
            return Err(refused_at(self.name(), program, refused, "no two operations of a state compute the same"));
        }
        let mut result = program.clone();
        for (state, _) in program.states() {
            result.map_operations(state, |_, operation| {
                if removed.contains(&operation.name) {
                    return vec![];
                }
                vec![reading(operation, &replaced)]
            })?;
        }
        replaced.keys().for_each(|data| _ = result.containers.shift_remove(data));
        Ok(Rewritten::program(found.join(", "), result))
    }
}

/// An operation with the results that stand for others in their place. A formula that then reads one element under two connectors reads it
/// under the first.
fn reading(operation: Operation, replaced: &HashMap<String, String>) -> Operation {
    let origin = operation.origin.clone();
    let mut name = |kind: NameKind, name: &str| match kind {
        NameKind::Container => replaced.get(name).cloned().unwrap_or_else(|| name.to_string()),
        _ => name.to_string(),
    };
    let Some(Unit::Operation(mut renamed)) = Unit::Operation(operation.clone()).renamed(&mut name) else { return operation };
    renamed.origin = origin;
    let in_code = connectors_in_code(&renamed);
    let (mut kept, mut same): (Vec<Operand>, BTreeMap<String, String>) = (vec![], BTreeMap::new());
    for input in std::mem::take(&mut renamed.inputs) {
        let is_same = |k: &&Operand| (&k.data, &k.subscripts, k.fill) == (&input.data, &input.subscripts, input.fill);
        match kept.iter().filter(|k| in_code.contains(&k.connector)).find(is_same) {
            Some(first) if in_code.contains(&input.connector) => _ = same.insert(input.connector, first.connector.clone()),
            _ => kept.push(input),
        }
    }
    renamed.inputs = kept;
    renamed.op = with_connectors(&renamed, &same);
    renamed
}

/// The connectors that the formulas of an operation name.
fn connectors_in_code(operation: &Operation) -> BTreeSet<String> {
    operation
        .op
        .fields()
        .into_iter()
        .filter_map(|(_, field)| if let Field::Code(code) = field { Some(code.inputs()) } else { None })
        .flatten()
        .collect()
}

/// The operator with other connectors in its formulas.
fn with_connectors(operation: &Operation, names: &BTreeMap<String, String>) -> Op {
    operation.op.with_fields(|field| match field {
        Field::Code(code) => Field::Code(code.rename_inputs(names)),
        other => other,
    })
}

/// What an operation computes, as a text that does not depend on its name and those of its indices, connectors and results. Labels stay:
/// other passes read some of them.
fn text(operation: &Operation, replaced: &HashMap<String, String>) -> String {
    let mut indices: HashMap<String, String> = HashMap::new();
    let mut name = |kind: NameKind, name: &str| match kind {
        NameKind::Index => {
            let next = format!("i{}", indices.len());
            indices.entry(name.to_string()).or_insert(next).clone()
        }
        NameKind::Container => match operation.outputs.iter().position(|out| out.data == name) {
            Some(n) => format!("result {n}"),
            None => replaced.get(name).cloned().unwrap_or_else(|| name.to_string()),
        },
        _ => name.to_string(),
    };
    let Some(Unit::Operation(mut renamed)) = Unit::Operation(operation.clone()).renamed(&mut name) else { return String::new() };
    renamed.name.clear();
    // Connectors of a formula have any names.
    let named = |(n, input): (usize, &Operand)| (input.connector.clone(), format!("operand {n}"));
    let names: BTreeMap<String, String> = operation.inputs.iter().enumerate().map(named).collect();
    let in_code = connectors_in_code(&renamed);
    renamed.op = with_connectors(&renamed, &names);
    for input in renamed.inputs.iter_mut().filter(|input| in_code.contains(&input.connector)) {
        input.connector = names[&input.connector].clone();
    }
    format!("{renamed:?}")
}

/// All containers that an operation names, those in its subscripts included.
fn containers_of(operation: &Operation) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut name = |kind: NameKind, name: &str| {
        if kind == NameKind::Container {
            found.insert(name.to_string());
        }
        name.to_string()
    };
    Unit::Operation(operation.clone()).renamed(&mut name);
    found
}

/// The containers of a program, and how often each is written.
struct Containers<'a> {
    program: &'a Sdfg,
    writes: HashMap<String, usize>,
    viewed: HashSet<&'a str>,
}

impl<'a> Containers<'a> {
    fn of(program: &'a Sdfg) -> Self {
        let mut writes: HashMap<String, usize> = HashMap::new();
        for (_, state) in program.states() {
            for (node, _) in state.units() {
                state.boundary(node).1.into_iter().for_each(|memlet| *writes.entry(memlet.data.clone()).or_default() += 1);
            }
        }
        let viewed = program.containers.values().filter_map(|c| Some(c.view.as_ref()?.of.as_str())).collect();
        Containers { program, writes, viewed }
    }

    /// Why the results of the first operation cannot stand for those of the later one.
    fn refusal(&self, first: &Operation, later: &Operation) -> Option<String> {
        let find = |data: &str| self.program.containers.get(data);
        let writes = |data: &str| self.writes.get(data).copied().unwrap_or_default();
        if let Some(data) = containers_of(first).union(&containers_of(later)).find(|data| writes(data) > 1) {
            return Some(format!("`{data}` is written {} times", writes(data)));
        }
        for (later, first) in later.outputs.iter().zip(&first.outputs) {
            let (Some(own), Some(other)) = (find(&later.data), find(&first.data)) else { return Some("a result is not declared".into()) };
            let is_shown = |c: &Container| c.view.is_some() || self.viewed.contains(c.name.as_str());
            if own.role != Role::Transient {
                return Some(format!("the program returns `{}`", own.name));
            }
            if is_shown(own) || is_shown(other) {
                return Some("a view shows a result".into());
            }
            if own.dims != other.dims || own.dtype != other.dtype || own.storage != other.storage {
                return Some(format!("`{}` has another shape or element type than `{}`", own.name, other.name));
            }
        }
        None
    }
}
