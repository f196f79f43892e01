//! From a scope with matrix products and a configuration to a loop nest over tiles.
//!
//! Outer indices are cut into tiles. Within a tile every statement runs over the whole tile before the next one starts:
//! products as matrix products, everything else as loops. A local container, of which the scope has one for each outer
//! point, thus becomes one for each tile, in the scratch memory of the worker. What a product adds up over outer indices
//! is either accumulated in place, those indices walked in order by one worker, or kept once for each worker. Sums that
//! memory holds in bf16 are made in f32 scratch memory and rounded once, when they are whole.

use crate::error::KernelError;
use crate::kernel::{KernelSpec, unsupported};
use crate::loopnest::matmul_pattern::{is_product, is_windowed};
use crate::loopnest::streaming::{is_streamed, localized};
use crate::loopnest::{Element, ForLoop, GemmPlan, LoopGroup, LoopNest, MemorySpace, NestStatement, NestTensor, Strip, Tag, Tile};
use crate::maps::flatten::{Flat, Flattened, IndexRange, reductions, statements};
use crate::maps::lower::{ROW_LANES, after, hold};
use crate::processor::PanelBlock;
use crate::tiles::buffer_reuse;
use crate::tiles::factor;
use crate::tiles::layers::{self, Fold};
use crate::tiles::product_order::products_before_their_readers;
use indexmap::IndexMap;
use sdfg::config::KernelConfig;
use sdfg::{Dtype, Expr, Layout, Scalar};
use std::collections::{BTreeMap, BTreeSet};

/// Fewer would leave parts of the depth without a pair of steps.
const LEAST_DEPTH: i64 = 16;
/// Most steps of the depth that are packed at once, where the configuration says nothing.
const DEPTH: i64 = 384;
/// Iterations of the last outer index within a tile, where the configuration says nothing.
const TILE: i64 = 64;
/// Most elements of a worker's scratch tile in all; beyond that the configuration is refused.
pub const SCRATCH: i64 = 6 << 20;

/// # Errors
/// Element types that cores do not multiply.
pub fn on_cores(spec: &KernelSpec) -> Result<(), KernelError> {
    match spec.arguments().into_iter().find(|a| a.dtype == Dtype::F16) {
        Some(half) => Err(unsupported(spec, format!("on cores tiles hold f64, f32 and bf16, and `{}` is {}", half.data, half.dtype))),
        None => Ok(()),
    }
}

/// Lowers a scope.
///
/// Knobs: `tile` (`j:128,u:512`: iterations of a tile by outer index; absent ones are walked one by one), `depth` (steps
/// packed at once), `arithmetic` (`f32`: factors of bf16 are widened, not multiplied as pairs), `columns` (`across`: results
/// are neighbours along rows of a product, not along its columns), `vector` (indices, the first of which that a group has is
/// its innermost), `first` (the outer index whose tiles are walked outermost), `reduce` (`sequential` or `private`), `form` (`direct`:
/// products read their factors where they lie; `layers`: tiles of several layers overlap; `rows`: steps of a strip keep rows;
/// `streaming`: see [`crate::loopnest::streaming`]), `strip` (`p:14`: output rows of a strip, of the form `rows`), `winograd` (`2`, `4`:
/// results along each dim of a tile of Winograd's form, which some convolutions have).
///
/// # Errors
/// Scopes without a matrix product; knobs that the scope does not have; scopes that cannot be generated.
pub fn lower(spec: &KernelSpec, config: &KernelConfig) -> Result<LoopNest, KernelError> {
    let knob_error = |key: &str, value: &str, allowed: &str| KernelError::Knob {
        kernel: spec.name.clone(),
        key: key.into(),
        value: value.into(),
        allowed: allowed.into(),
    };
    let mut flattened = statements(spec, true)?;
    factor::share(&mut flattened);
    let private = match config.knobs.get("reduce") {
        None | Some("sequential") => false,
        Some("private") => true,
        Some(other) => return Err(knob_error("reduce", other, "sequential, private")),
    };
    let depth = match config.knobs.get("depth") {
        None => DEPTH,
        Some(text) => {
            text.parse().ok().filter(|d| (LEAST_DEPTH..=65536).contains(d)).ok_or_else(|| knob_error("depth", text, "16 to 65536"))?
        }
    };
    let pairs = match config.knobs.get("arithmetic") {
        None => true,
        Some("f32") => false,
        Some(other) => return Err(knob_error("arithmetic", other, "f32, or nothing")),
    };
    let across = match config.knobs.get("columns") {
        None => false,
        Some("across") => true,
        Some(other) => return Err(knob_error("columns", other, "across, or nothing")),
    };
    if let Some(form) = config.knobs.get("form").filter(|form| !["direct", "layers", "rows", "streaming"].contains(form)) {
        return Err(knob_error("form", form, "direct, layers, rows or nothing; streaming on a GPU"));
    }
    if let Some(strip) = config.knobs.get("strip").filter(|_| !layers::rows::is_wanted(config)) {
        return Err(knob_error("strip", strip, "nothing, unless form is rows"));
    }
    if let Some(form) = config.knobs.get("winograd").filter(|form| !["2", "4"].contains(form) || !spec.winograd) {
        return Err(knob_error("winograd", form, "2 and 4, if the program allows it"));
    }
    let found = layers::layers(&flattened).filter(|_| layers::is_wanted(config));
    if layers::rows::is_wanted(config) && found.is_none() {
        return Err(unsupported(spec, "it has no layers that hand windows over, of which the form `rows` could keep any"));
    }
    let (sequential, direct) = mark(spec, config, &mut flattened, (private, found.is_some()))?;
    let (is_layers, folds) = (found.is_some(), found.unwrap_or_default());
    let sizes = sizes(&flattened.outer, config.knobs.get("tile"))
        .map_err(|value| knob_error("tile", &value, "index:iterations, separated by commas, for outer indices"))?;
    let of_tile: BTreeMap<String, i64> = flattened.outer.iter().zip(&sizes).map(|(r, size)| (r.index.clone(), *size)).collect();
    let strip = match layers::rows::wanted(spec, config, &flattened, &folds)? {
        Some((index, rows)) => layers::rows::strip(spec, &flattened, &folds, (&index, rows), of_tile.get(&index).copied().unwrap_or(1))?,
        None => None,
    };
    let without = layers::fold(&mut flattened, &folds, &of_tile);
    let Flattened { outer, mut statements, mut tensors, about } = flattened;

    let names = || outer.iter().chain(statements.iter().flat_map(|f| &f.inner)).map(|r| r.index.as_str());
    let vectors: Vec<String> = match config.knobs.get("vector") {
        Some(list) => list.split(',').filter(|n| !n.is_empty()).map(String::from).collect(),
        None => statements.iter().flat_map(|f| &f.inner).last().or(outer.last()).map(|r| r.index.clone()).into_iter().collect(),
    };

    if let Some(unknown) = vectors.iter().find(|v| !names().any(|n| n == **v)) {
        let all: BTreeSet<&str> = names().collect();
        return Err(knob_error("vector", unknown, &all.into_iter().collect::<Vec<_>>().join(", ")));
    }

    // Loops over tiles and over single points are outside; indices within a tile join the inner loops.
    let (mut shared, mut ordered, mut in_steps, mut tiles, mut within) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut with: BTreeMap<String, Expr> = BTreeMap::new();
    for (range, size) in outer.iter().zip(&sizes) {
        let in_order = sequential.contains(&range.index);
        let tag = if in_order { Tag::Sequential } else { Tag::Core };
        if *size < range.count {
            let steps = (range.count + size - 1) / size;
            let name = if *size == 1 { range.index.clone() } else { format!("{}.tile", range.index) };
            match strip.as_ref().filter(|strip| strip.steps == name) {
                None => {
                    let of_tiles = ForLoop { index: name.clone(), tag, count: steps, map: range.map.clone() };
                    if in_order { ordered.push(of_tiles) } else { shared.push(of_tiles) }
                }
                Some(_) if in_order => return Err(unsupported(spec, format!("`{}` is summed over, which keeps no rows", range.index))),
                Some(strip) => {
                    let strips = (steps + strip.each - 1) / strip.each;
                    shared.push(ForLoop { index: strip.strips.clone(), tag: Tag::Core, count: strips, map: range.map.clone() });
                    in_steps.push(ForLoop { index: name.clone(), tag: Tag::Step, count: steps, map: range.map.clone() });
                }
            }
            if *size > 1 {
                let start = Expr::sym(name.as_str()) * Expr::sym(Tile::symbol(&range.index));
                with.insert(range.index.clone(), start + Expr::sym(range.index.as_str()));
                tiles.push(Tile { index: range.index.clone(), outer: name, size: *size, count: range.count });
            }
        }
        if *size > 1 || range.count == 1 {
            within.push(IndexRange { count: *size, ..range.clone() });
        }
    }
    if let Some(first) = config.knobs.get("first") {
        if outer.iter().all(|range| range.index != first) {
            return Err(knob_error("first", first, &outer.iter().map(|r| r.index.as_str()).collect::<Vec<_>>().join(", ")));
        }
        // One that is within a single tile has no loop outside.
        if let Some(at) =
            shared.iter().position(|l: &ForLoop| [first.into(), format!("{first}.tile"), format!("{first}.strip")].contains(&l.index))
        {
            shared[..=at].rotate_right(1);
        }
    }
    if strip.is_some() && !ordered.is_empty() {
        return Err(unsupported(spec, "it adds up over outer indices, beside which it keeps no rows"));
    }
    shared.extend(ordered);
    shared.extend(in_steps);
    let narrow = |data: &str| tensors.get(data).is_some_and(|t| t.dtype == Dtype::Bf16);
    let narrow = statements.iter().filter(|f| f.is_gemm).flat_map(|f| &f.statement.reads).any(|(_, e)| narrow(&e.data));
    widen(&mut statements, &mut tensors, &within, &sequential, &folds);
    let strip = strip.map(|strip| layers::rows::in_tiles(strip, &statements));
    let mut borders = Vec::new();
    for (n, Flat { statement, .. }) in statements.iter_mut().enumerate() {
        if let Some(without) = without.get(&n) {
            layers::at_tile(statement, &shared, &tiles, without);
            borders.extend(layers::borders(statement, &folds, &spec.sizes));
        }
        place(statement, &tensors, &with);
    }
    let places: BTreeMap<String, Expr> = outer
        .iter()
        .zip(&sizes)
        .map(|(range, size)| (layers::within(&range.index), if *size > 1 { Expr::sym(range.index.as_str()) } else { Expr::Int(0) }))
        .collect();
    for (_, element) in statements.iter_mut().flat_map(|f| &mut f.statement.reads) {
        element.subscripts.iter_mut().for_each(|e| *e = e.substitute(&places));
    }
    let scratch: i64 = tensors.values().filter(|t| is_scratch(t)).map(|t| t.shape.iter().product::<i64>()).sum();
    if scratch > SCRATCH {
        return Err(unsupported(spec, format!("its tiles have {scratch} elements in all, more than {SCRATCH}; choose smaller ones")));
    }

    let order = if direct { products_before_their_readers(&statements, &tensors) } else { (0..statements.len()).collect() };
    let mut groups: Vec<LoopGroup> = Vec::new();
    for n in order {
        let Flat { inner, statement, is_gemm } = statements[n].clone();
        let to_loop = |r: &IndexRange| ForLoop { index: r.index.clone(), tag: Tag::Sequential, count: r.count, map: r.map.clone() };
        let last = statement.reads.iter().any(|(_, e)| tensors.get(&e.data).is_some_and(|t| t.space == MemorySpace::Kept));
        let in_window = |index: &String| without.get(&n).is_some_and(|without| without.contains(index));
        let mine = within.iter().filter(|r| (!last || !sequential.contains(&r.index)) && !in_window(&r.index));
        let mut loops: Vec<ForLoop> = mine.chain(&inner).map(to_loop).collect();
        let innermost = vectors.iter().find(|v| loops.iter().any(|l| l.index == **v));
        loops.sort_by_key(|l| innermost == Some(&l.index));
        if let Some(last) = loops.last_mut() {
            let of_rows = |strip: &Strip| strip.rows.iter().any(|rows| rows.index == last.index);
            if !is_gemm && strip.as_ref().is_some_and(of_rows) {
                return Err(unsupported(
                    spec,
                    format!("vectors of `{}` run along rows that it keeps; choose another `vector`", statement.write.data),
                ));
            }
            last.tag = Tag::Vector;
        }
        let earliest = groups.iter().enumerate().map(|(n, g)| after(n, g, &statement, &tensors).max(stage(n, g, &statement, is_gemm)));
        let earliest = earliest.max().unwrap_or(0);
        let same = |g: &LoopGroup| {
            !g.is_gemm
                && g.last == last
                && g.loops.len() == loops.len()
                && loops.iter().all(|l| g.loops.iter().any(|k| k.index == l.index && k.count == l.count))
        };
        match (earliest..groups.len()).find(|n| !is_gemm && same(&groups[*n])) {
            Some(n) => groups[n].statements.push(statement),
            None => groups.push(LoopGroup { loops, statements: vec![statement], is_gemm, last }),
        }
    }
    hold(&groups, &mut tensors);
    let gemm = Some(GemmPlan { block: PanelBlock::native(), depth, narrow, pairs, across, direct, layers: is_layers });
    let (name, lanes, reuses) = (spec.name.clone(), ROW_LANES, IndexMap::new());
    let nest = LoopNest { name, outer: shared, tiles, gemm, vectors, lanes, groups, tensors, reuses, borders, strip, about };
    let nest = if is_streamed(config) { localized(nest) } else { nest };
    Ok(LoopNest { reuses: buffer_reuse::reused(&nest), ..nest })
}

/// The first group after those that a statement must wait for because one of them is a product: it has all of its results at
/// once, and takes all of its factors at once.
fn stage(n: usize, group: &LoopGroup, statement: &NestStatement, product: bool) -> usize {
    let hands_on = group.statements.iter().any(|s| statement.reads.iter().any(|(_, e)| e.data == s.write.data));
    if hands_on && (product || group.is_gemm) { n + 1 } else { 0 }
}

/// Whether a configuration has its products read factors where they lie.
pub fn is_direct(config: &KernelConfig) -> bool {
    config.knobs.get("form") == Some("direct")
}

/// Whether it has memory in a worker's tile.
fn is_scratch(tensor: &NestTensor) -> bool {
    matches!(tensor.space, MemorySpace::Local | MemorySpace::Kept)
}

/// The indices that must be walked in order, and whether products read their factors where they lie.
type Marks = (BTreeSet<String>, bool);

/// Finds the products and gives every other reduction a place of its own.
fn mark(
    spec: &KernelSpec,
    config: &KernelConfig,
    flattened: &mut Flattened,
    (private, is_layers): (bool, bool),
) -> Result<Marks, KernelError> {
    let of_layers: Vec<bool> = flattened.statements.iter().map(|flat| is_layers && layers::is_product(flat, flattened)).collect();
    let Flattened { outer, statements, tensors, .. } = flattened;
    let everywhere: Vec<&str> = outer.iter().map(|r| r.index.as_str()).collect();
    let is_local = |data: &str| tensors.get(data).is_some_and(|t| t.space == MemorySpace::Local);
    let double = tensors.values().any(|t| t.dtype == Dtype::F64);
    let multiplied = |dtype: Dtype| if double { dtype == Dtype::F64 } else { matches!(dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16) };
    let is_real = |data: &str| tensors.get(data).is_some_and(|t| multiplied(t.dtype));
    let asked = is_direct(config);
    let (mut any, mut direct) = (false, asked || is_layers);
    for (Flat { inner, statement, is_gemm }, of_layers) in statements.iter_mut().zip(of_layers) {
        let is_index = |name: &str| everywhere.contains(&name) || inner.iter().any(|r| r.index == name);
        let real = statement.reads.iter().map(|(_, e)| e).chain([&statement.write]).all(|e| is_real(&e.data));
        *is_gemm = if is_layers { of_layers } else { real && is_product(statement, &is_index, tensors, &everywhere, asked) };
        any |= *is_gemm;
        direct |= *is_gemm && is_windowed(statement, &is_index);
    }
    if !any {
        return Err(unsupported(spec, "it has no matrix product"));
    }
    let (mut stored, mut sequential) = (BTreeSet::new(), BTreeSet::new());
    let mut rounded: Vec<(String, BTreeSet<String>)> = Vec::new();
    for flat in statements.iter().filter(|f| f.is_gemm && !is_local(&f.statement.write.data)) {
        let target = &flat.statement.write;
        let named = |index: &str| target.subscripts.iter().any(|e| e.symbols().contains(index));
        let lacking: BTreeSet<String> = outer.iter().filter(|r| r.count > 1 && !named(&r.index)).map(|r| r.index.clone()).collect();
        let read = statements.iter().any(|f| f.statement.reads.iter().any(|(_, e)| e.data == target.data));
        let whole = tensors.get(&target.data).is_some_and(|t| t.dtype == t.dtype.accumulator());
        if !lacking.is_empty() {
            if !private {
                sequential.extend(lacking.iter().cloned());
                if whole {
                    stored.insert(target.data.clone());
                } else if !read {
                    rounded.push((target.data.clone(), lacking));
                }
            }
        } else if whole && !read && (direct || is_reachable(spec, config, flat)?) {
            stored.insert(target.data.clone());
        }
    }
    // One tile of sums is enough where the indices walked in order are the summed ones.
    for (data, _) in rounded.iter().filter(|(_, lacking)| *lacking == sequential) {
        keep(flattened, data);
    }
    reductions(spec, flattened, &|data| !stored.contains(data))?;
    Ok((sequential, direct))
}

/// Lets a product add up in scratch memory that lasts through the indices walked in order, and copies it out when it is whole.
/// A target that has another writer or subscripts other than plain indices stays as it is.
fn keep(flattened: &mut Flattened, data: &str) {
    let local = flattened.fresh_name(format!("{data}.sum"));
    let Flattened { statements, tensors, .. } = flattened;
    let mut writers = statements.iter().enumerate().filter(|(_, f)| f.statement.write.data == data).map(|(n, _)| n);
    let (Some(at), None) = (writers.next(), writers.next()) else { return };
    let (Some(tensor), heap) = (tensors.get(data).cloned(), statements[at].statement.write.clone()) else { return };
    if heap.subscripts.iter().any(|e| e.as_sym().is_none()) {
        return;
    }
    let kept = |e: &&Expr| statements[at].inner.iter().any(|r| e.as_sym() == Some(&r.index));
    let subscripts: Vec<Expr> = heap.subscripts.iter().filter(kept).cloned().collect();
    let shape = heap.subscripts.iter().zip(&tensor.shape).filter(|(e, _)| kept(e)).map(|(_, n)| *n).collect();
    let sum = Element { data: local, subscripts, fill: None };
    let inner = statements[at].inner.iter().filter(|r| heap.subscripts.contains(&Expr::sym(r.index.as_str()))).cloned().collect();
    let copy = NestStatement {
        name: format!("{data} done"),
        code: Scalar::input("value"),
        reads: vec![("value".into(), sum.clone())],
        write: heap,
        combine: None,
    };
    tensors.insert(sum.data.clone(), NestTensor { space: MemorySpace::Kept, dtype: tensor.dtype, shape, stored: true });
    statements[at].statement.write = sum;
    statements.insert(at + 1, Flat { inner, statement: copy, is_gemm: false });
}

/// Whether neighbours in the target's memory are neighbours along an index that only one factor has: then products write it
/// in whole vectors.
fn is_reachable(spec: &KernelSpec, config: &KernelConfig, flat: &Flat) -> Result<bool, KernelError> {
    let target = &flat.statement.write;
    let root = spec.root(&target.data);
    let Some(container) = spec.containers.get(root) else { return Ok(false) };
    let layout = config.layouts.get(root).cloned().unwrap_or_else(|| Layout::row_major(container));
    let inner = layout.innermost().and_then(|inner| container.dims.iter().position(|d| d == inner));
    let Some(subscript) = inner.and_then(|n| target.subscripts.get(n)) else { return Ok(false) };
    let holders = flat
        .statement
        .reads
        .iter()
        .filter(|(_, e)| e.subscripts.iter().any(|s| s.symbols().iter().any(|i| subscript.symbols().contains(i))));
    Ok(holders.count() == 1)
}

/// Iterations of a tile for each outer index, from the knob.
fn sizes(outer: &[IndexRange], knob: Option<&str>) -> Result<Vec<i64>, String> {
    let mut sizes = vec![1; outer.len()];
    if let (None, Some(last)) = (knob, outer.last()) {
        sizes[outer.len() - 1] = last.count.min(TILE);
    }
    for part in knob.into_iter().flat_map(|k| k.split(',')).filter(|p| !p.is_empty()) {
        let wrong = || part.to_string();
        let (index, size) = part.split_once(':').ok_or_else(wrong)?;
        let at = outer.iter().position(|r| r.index == index).ok_or_else(wrong)?;
        let size: i64 = size.parse().ok().filter(|s| *s > 0).ok_or_else(wrong)?;
        sizes[at] = size.min(outer[at].count);
    }
    Ok(sizes)
}

/// Scratch memory is held for a whole tile: its indices become the first dims, but for those that kept sums add up.
/// Outer indices that windows move with are in the windows.
fn widen(
    statements: &mut [Flat],
    tensors: &mut IndexMap<String, NestTensor>,
    within: &[IndexRange],
    sequential: &BTreeSet<String>,
    folds: &[Fold],
) {
    let targets: BTreeSet<String> = statements.iter().filter(|f| f.is_gemm).map(|f| f.statement.write.data.clone()).collect();
    for (data, tensor) in tensors.iter_mut().filter(|(_, t)| is_scratch(t)) {
        let folded = |index: &str| folds.iter().any(|f| f.data == *data && f.outer == index);
        let own: Vec<&IndexRange> = within
            .iter()
            .filter(|r| tensor.space == MemorySpace::Local || !sequential.contains(&r.index))
            .filter(|r| !folded(&r.index))
            .collect();
        // A product writes to memory, even a single value.
        let single = own.is_empty() && tensor.shape.is_empty() && targets.contains(data);
        tensor.shape.splice(0..0, own.iter().map(|r| r.count).chain(single.then_some(1)));
        for Flat { statement, .. } in statements.iter_mut() {
            let elements = statement.reads.iter_mut().map(|(_, e)| e).chain([&mut statement.write]);
            for element in elements.filter(|e| e.data == *data) {
                let first = own.iter().map(|r| Expr::sym(r.index.as_str())).chain(single.then_some(Expr::Int(0)));
                element.subscripts.splice(0..0, first);
            }
        }
    }
}

/// Indices within a tile in the place of whole ones, except where scratch memory is meant.
fn place(statement: &mut NestStatement, tensors: &IndexMap<String, NestTensor>, with: &BTreeMap<String, Expr>) {
    let in_tile = |data: &str| tensors.get(data).is_some_and(is_scratch);
    let elements = statement.reads.iter_mut().map(|(_, e)| e).chain([&mut statement.write]);
    for element in elements.filter(|e| !in_tile(&e.data)) {
        let Element { subscripts, .. } = element;
        for subscript in subscripts {
            *subscript = subscript.substitute(with);
        }
    }
    statement.code = Scalar::substitute(&statement.code, with);
}
