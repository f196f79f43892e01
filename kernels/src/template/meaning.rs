//! From a loop nest to the template that it means, given what a target makes of each loop.

use super::grammar::{AttributeKind, DimAttribute, OperatorSchedule, ScheduleTemplate};
use super::operators::KernelOperators;
use crate::loopnest::{ForLoop, LoopGroup, LoopNest, MemorySpace, NestStatement};
use indexmap::IndexMap;

/// What a target makes of a nest.
pub(crate) trait LoopMeaning {
    /// Who walks an outer loop, in parts from outer to inner.
    fn outer(&self, each: &ForLoop) -> Vec<(AttributeKind, u64)>;

    /// Who walks a loop of a group for one of its statements.
    fn inner(&self, group: &LoopGroup, statement: &NestStatement, each: &ForLoop) -> Vec<(AttributeKind, u64)>;

    /// Whether the values of a container that is no argument are in memory that a template marks by `S`.
    fn is_on_chip(&self, data: &str) -> bool;

    /// Whether they are in memory of the device: written, but not on chip.
    fn is_in_memory(&self, _data: &str) -> bool {
        false
    }
}

/// A statement, its group, and all containers that hold what becomes of its operator's result.
struct Made<'a> {
    group: &'a LoopGroup,
    statement: &'a NestStatement,
    data: Vec<&'a str>,
}

/// The template of a nest. An operator has a schedule if its result is an argument of the kernel or held in memory; everything else is in
/// registers, and is computed where it is used. The attributes of a sum are those of its terms, wherever these are added up.
pub(crate) fn template(
    operators: &KernelOperators,
    nest: &LoopNest,
    meaning: &dyn LoopMeaning,
    [cta_num, cta_size]: [i64; 2],
) -> ScheduleTemplate {
    let mut made: IndexMap<&str, Made> = IndexMap::new();
    for group in &nest.groups {
        for statement in &group.statements {
            let data = statement.write.data.as_str();
            let entry = made.entry(operators.made_in(data)).or_insert_with(|| Made { group, statement, data: vec![] });
            entry.data.push(data);
            // Sums are copied to their place, or divided, once they are whole.
            if statement.combine.is_some() && entry.statement.combine.is_none() {
                (entry.group, entry.statement) = (group, statement);
            }
        }
    }
    let place = |operator: &str| operators.operators.iter().position(|o| o.operator == operator).unwrap_or(usize::MAX);
    made.sort_by(|a, _, b, _| (place(a), *a).cmp(&(place(b), *b)));
    // Partial results of workers come to be an argument.
    let space = |data: &str| nest.tensors.get(data).map(|t| &t.space);
    let is_argument = |data: &str| matches!(space(data), Some(MemorySpace::Heap { .. } | MemorySpace::Private { .. }));
    let mut schedules = Vec::new();
    for (operator, made) in &made {
        let on_chip = made.data.iter().any(|data| meaning.is_on_chip(data));
        if on_chip || made.data.iter().any(|data| is_argument(data) || meaning.is_in_memory(data)) {
            let attributes = attributes(operators, nest, meaning, operator, made);
            schedules.push(OperatorSchedule { operator: operator.to_string(), attributes, on_chip });
        }
    }
    ScheduleTemplate { schedules, cta_num: Some(cta_num.max(1) as u64), cta_size: Some(cta_size.max(1) as u64) }
}

/// How each dim of an operator is walked.
fn attributes(operators: &KernelOperators, nest: &LoopNest, meaning: &dyn LoopMeaning, operator: &str, made: &Made) -> Vec<DimAttribute> {
    let own = operators.get(operator).map_or(&[][..], |o| &o.dims);
    // Iterations of each dim, and its levels from outer to inner.
    type Walked = (u64, Vec<(AttributeKind, u64)>);
    let mut dims: IndexMap<&str, Walked> = own.iter().map(|(index, count)| (index.as_str(), (*count, vec![]))).collect();
    let mut walk = |each: &ForLoop, parts: Vec<(AttributeKind, u64)>| {
        let index = operators.walked_by(&each.index);
        let Some((index, count)) = operators.index(index).and_then(|(place, count)| Some((operators.named(place)?, count))) else { return };
        let (_, levels) = dims.entry(index).or_insert((count, vec![]));
        let mut parts = parts.into_iter().filter(|(_, steps)| *steps != 1);
        // Two loops of one kind are one walk; the parts of one loop were told apart on purpose.
        if let Some((kind, steps)) = parts.next() {
            match levels.last_mut().filter(|(last, _)| *last == kind) {
                Some((_, before)) => *before *= steps,
                None => levels.push((kind, steps)),
            }
        }
        levels.extend(parts);
    };
    nest.outer.iter().for_each(|each| walk(each, meaning.outer(each)));
    made.group.loops.iter().for_each(|each| walk(each, meaning.inner(made.group, made.statement, each)));
    dims.sort_by(|a, _, b, _| operators.index(a).cmp(&operators.index(b)));
    let attribute = |(count, levels): &(u64, Vec<(AttributeKind, u64)>)| match levels.is_empty() {
        true => DimAttribute::Whole(AttributeKind::Thread),
        false => DimAttribute::Levels(levels.clone()).canonical(*count),
    };
    dims.values().map(attribute).collect()
}
