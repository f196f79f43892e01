//! From a scope and a configuration to a loop nest: which statements share loops, and in which order the loops run.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::{ForLoop, LoopGroup, LoopNest, MemorySpace, NestStatement, NestTensor, Tag};
use crate::maps::flatten::{Flat, Flattened, IndexRange, flatten};
use indexmap::IndexMap;
use sdfg::config::KernelConfig;

/// Lanes of a block where the configuration says nothing: a few cache lines, and a buffer of a row still fits the cache.
const LANES: i64 = 64;
/// Lanes of a block where nothing is kept per lane: long enough that the loop around it costs nothing.
pub const ROW_LANES: i64 = 4096;

/// Lowers a scope.
///
/// Knobs: `vector` (an index), `order` (outer indices from outer to inner), `lanes` (iterations of a block if `vector` is an
/// outer index), `reduce` (`inner` or `private`). Absent knobs: the last index, the scope's order, 64, `inner`.
///
/// # Errors
/// Knobs that the scope does not have, and scopes that cannot be generated.
pub fn lower(spec: &KernelSpec, config: &KernelConfig) -> Result<LoopNest, KernelError> {
    let knob_error = |key: &str, value: &str, allowed: &str| KernelError::Knob {
        kernel: spec.name.clone(),
        key: key.into(),
        value: value.into(),
        allowed: allowed.into(),
    };
    let inner_reductions = match config.knobs.get("reduce") {
        None | Some("inner") => true,
        Some("private") => false,
        Some(other) => return Err(knob_error("reduce", other, "inner, private")),
    };
    let Flattened { outer, statements, mut tensors, about } = flatten(spec, inner_reductions)?;
    let inner: Vec<&IndexRange> = statements.iter().flat_map(|f| &f.inner).collect();
    let names = || outer.iter().chain(inner.iter().copied()).map(|r| r.index.as_str());
    let vector = match config.knobs.get("vector") {
        Some(name) if names().any(|n| n == name) => Some(name.to_string()),
        Some(name) => return Err(knob_error("vector", name, &names().collect::<Vec<_>>().join(", "))),
        None => inner.last().copied().or(outer.last()).map(|r| r.index.clone()),
    };
    let lanes = match config.knobs.get("lanes") {
        None if inner.is_empty() => ROW_LANES,
        None => LANES,
        Some(text) => text.parse().ok().filter(|l| (1..=65536).contains(l)).ok_or_else(|| knob_error("lanes", text, "1 to 65536"))?,
    };
    let is_vector = |r: &IndexRange| vector.as_deref() == Some(r.index.as_str());
    let blocked = outer.iter().any(is_vector);
    let mut ordered = outer.clone();
    if let Some(order) = config.knobs.get("order") {
        let wanted: Vec<&str> = order.split(',').filter(|n| !n.is_empty()).collect();
        let place = |r: &IndexRange| wanted.iter().position(|w| *w == r.index);
        if wanted.len() != outer.len() || outer.iter().any(|r| place(r).is_none()) {
            let all: Vec<&str> = outer.iter().map(|r| r.index.as_str()).collect();
            return Err(knob_error("order", order, &format!("the permutations of {}", all.join(","))));
        }
        ordered.sort_by_key(place);
    }
    let to_loop = |r: &IndexRange, tag: Tag| ForLoop { index: r.index.clone(), tag, count: r.count, map: r.map.clone() };
    let block = outer.iter().find(|r| is_vector(r)).map(|r| to_loop(r, Tag::Vector));
    let outer = ordered.iter().map(|r| to_loop(r, if is_vector(r) { Tag::Block } else { Tag::Core })).collect();

    let mut groups: Vec<LoopGroup> = Vec::new();
    for Flat { inner, statement, .. } in statements {
        let mut loops: Vec<ForLoop> = inner.iter().map(|r| to_loop(r, Tag::Sequential)).collect();
        loops.sort_by_key(|l| vector.as_deref() == Some(l.index.as_str()));
        loops.extend(block.clone());
        if let Some(last) = loops.last_mut() {
            last.tag = Tag::Vector;
        }
        let earliest = groups.iter().enumerate().map(|(n, g)| after(n, g, &statement, &tensors)).max().unwrap_or(0);
        let same = |g: &LoopGroup| {
            g.loops.len() == loops.len() && loops.iter().all(|l| g.loops.iter().any(|k| k.index == l.index && k.count == l.count))
        };
        match (earliest..groups.len()).find(|n| same(&groups[*n])) {
            Some(n) => groups[n].statements.push(statement),
            None => groups.push(LoopGroup { loops, statements: vec![statement], is_gemm: false, last: false }),
        }
    }
    hold(&groups, &mut tensors);
    debug_assert!(!blocked || groups.iter().all(|g| !g.loops.is_empty()));
    Ok(LoopNest {
        name: spec.name.clone(),
        outer,
        tiles: vec![],
        gemm: None,
        vectors: vector.into_iter().collect(),
        lanes,
        groups,
        tensors,
        reuses: IndexMap::new(),
        borders: vec![],
        strip: None,
        about,
    })
}

/// The first group in which a statement may run, given that group `n` runs before it in the program.
pub fn after(n: usize, group: &LoopGroup, statement: &NestStatement, tensors: &IndexMap<String, NestTensor>) -> usize {
    let root = |data: &str| match tensors.get(data).map(|t| &t.space) {
        Some(MemorySpace::Heap { root, .. }) => root.clone(),
        _ => data.to_string(),
    };
    let mut first = 0;
    for before in &group.statements {
        let written = root(&before.write.data);
        for (_, read) in statement.reads.iter().filter(|(_, r)| root(&r.data) == written) {
            let pointwise = before.combine.is_none() && same_element(&before.write, read);
            first = first.max(if pointwise { n } else { n + 1 });
        }
        let target = root(&statement.write.data);
        for (_, read) in before.reads.iter().filter(|(_, r)| root(&r.data) == target) {
            first = first.max(if same_element(&statement.write, read) && statement.combine.is_none() { n } else { n + 1 });
        }
        if written == target {
            first = first.max(n + 1);
        }
    }
    first
}

fn same_element(a: &crate::loopnest::Element, b: &crate::loopnest::Element) -> bool {
    a.data == b.data && a.subscripts == b.subscripts
}

/// A local container needs memory if another group reads it, or if it is reduced.
pub fn hold(groups: &[LoopGroup], tensors: &mut IndexMap<String, NestTensor>) {
    for (data, tensor) in tensors.iter_mut().filter(|(_, t)| t.space == MemorySpace::Local) {
        let writer = groups.iter().position(|g| g.statements.iter().any(|s| s.write.data == *data));
        let reduced = groups.iter().flat_map(|g| &g.statements).any(|s| s.write.data == *data && s.combine.is_some());
        let far = groups
            .iter()
            .enumerate()
            .any(|(n, g)| Some(n) != writer && g.statements.iter().flat_map(|s| &s.reads).any(|(_, e)| e.data == *data));
        tensor.stored = reduced || far;
    }
}
