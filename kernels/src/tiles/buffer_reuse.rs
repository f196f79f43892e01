//! Which locals of a tile share memory: what one group leaves behind is where a later one, or the same one, puts its results.
//! The fewer bytes a tile has, the nearer the cache in which it stays between groups.

use crate::loopnest::{LoopGroup, LoopNest, MemorySpace, NestStatement, NestTensor};
use indexmap::IndexMap;
use std::collections::BTreeSet;

/// Memory that several locals have one after another.
struct Slot {
    owner: String,
    elements: i64,
    /// The local that has it now, and the last group that reads it.
    held_by: String,
    until: usize,
}

/// For every local that takes over memory of another one: the first that had it.
pub fn reused(nest: &LoopNest) -> IndexMap<String, String> {
    let elements = |tensor: &NestTensor| tensor.shape.iter().product::<i64>();
    let locals = nest.tensors.iter().filter(|(_, t)| t.space == MemorySpace::Local && t.stored && !t.shape.is_empty());
    // What the next step finds must last.
    let locals = locals.filter(|(data, _)| !nest.keeps_rows(data));
    let mut born: Vec<(usize, usize, &str, i64)> = Vec::new();
    for (data, tensor) in locals {
        let uses = |g: &LoopGroup| g.statements.iter().any(|s| s.write.data == *data || s.reads.iter().any(|(_, e)| e.data == *data));
        let (Some(first), Some(last)) = (nest.groups.iter().position(uses), nest.groups.iter().rposition(uses)) else { continue };
        born.push((first, last, data, elements(tensor)));
    }
    born.sort_by_key(|(first, ..)| *first);
    let (mut slots, mut shared): (Vec<Slot>, IndexMap<String, String>) = (Vec::new(), IndexMap::new());
    for (first, last, data, elements) in born {
        let free = |slot: &Slot| slot.until < first || (slot.until == first && in_place(nest, &nest.groups[first], &slot.held_by, data));
        // What was used last is nearest.
        match slots.iter_mut().filter(|s| s.elements == elements && free(s)).max_by_key(|s| s.until) {
            Some(slot) => {
                shared.insert(data.to_string(), slot.owner.clone());
                (slot.held_by, slot.until) = (data.to_string(), last);
            }
            None => slots.push(Slot { owner: data.to_string(), elements, held_by: data.to_string(), until: last }),
        }
    }
    shared
}

/// Whether a group may write `new` over `old`: each of its iterations reads of `old` only the place that it then writes, and no
/// two iterations have the same place.
fn in_place(nest: &LoopNest, group: &LoopGroup, old: &str, new: &str) -> bool {
    let mut writers = group.statements.iter().filter(|s| s.write.data == new);
    let (Some(NestStatement { write, combine: None, .. }), None, false) = (writers.next(), writers.next(), group.is_gemm) else {
        return false;
    };
    let reads = || group.statements.iter().flat_map(|s| &s.reads).map(|(_, e)| e).filter(|e| e.data == old);
    let written = group.statements.iter().any(|s| s.write.data == old);
    let same = |data: &str| (nest.tensors.get(data).map(|t| t.shape.clone()), nest.vector_dim(data));
    let names: BTreeSet<&str> = write.subscripts.iter().filter_map(|e| e.as_sym()).collect();
    let apart = names.len() == write.subscripts.len() && group.loops.iter().all(|l| names.contains(l.index.as_str()));
    !written && apart && same(old) == same(new) && reads().all(|e| e.subscripts == write.subscripts && e.fill.is_none())
}
