//! Kernels of several layers: intermediate results of a tile with their halos.
//!
//! The scope says what one outer point needs: `u[i]`, `i=0:3`, stands for `u` at `2p+i-1`. Of a tile of `P` points the windows overlap:
//! they are one window of `2(P-1)+3` elements. So where everything that makes a local container depends on `2p+i` alone, index `i` walks
//! the window of the tile and `p` does not occur, and what reads the container at point `p` of the tile finds its window at `2p`. That is
//! memlet propagation over the tile.
//!
//! ```text
//! point p:   u[i] = f(x[2p+i-1])            y[p] += k[r]·u[r]
//! tile P:    u[i] = f(x[2P·tile+i-1])       y[p] += k[r]·u[2p+r]         i = 0 : 2(P-1)+3
//! ```
//!
//! What lies beyond the last point of a smaller last tile is computed and not used.

mod recompute;
pub mod rows;
mod space;
mod tuner;

pub use recompute::LayerFlop;
pub use space::LayerSpace;

use crate::loopnest::matmul_pattern::{factors, is_windowed};
use crate::loopnest::{Border, Element, ForLoop, MemorySpace, NestStatement, Tile, slope};
use crate::maps::flatten::{Flat, Flattened, IndexRange};
use sdfg::config::KernelConfig;
use sdfg::{Binary, Bindings, Combine, Expr, Scalar};
use std::collections::{BTreeMap, BTreeSet};

/// A dim of a local container that is a window: it moves by `stride` elements with an outer index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fold {
    pub data: String,
    pub dim: usize,
    pub outer: String,
    pub stride: i64,
    /// The index that walks the window where it is written.
    pub index: String,
}

/// Whether a configuration has layers hand over in tiles.
pub fn is_wanted(config: &KernelConfig) -> bool {
    config.knobs.get("form") == Some("layers") || rows::is_wanted(config)
}

/// The windows of a kernel of several layers. `None` if it is none: no product reads what another one is made of, or nothing reads windows.
pub fn layers(flattened: &Flattened) -> Option<Vec<Fold>> {
    let found = folds(flattened);
    let products: Vec<&Flat> = flattened.statements.iter().filter(|flat| is_product(flat, flattened)).collect();
    let local = |data: &str| flattened.tensors.get(data).is_some_and(|t| t.space == MemorySpace::Local);
    let hands = products.iter().any(|flat| flat.statement.reads.iter().any(|(_, e)| local(&e.data)));
    let everywhere = |name: &str| flattened.outer.iter().any(|r| r.index == name);
    let windowed = |flat: &&Flat| {
        let is_index = |name: &str| everywhere(name) || flat.inner.iter().any(|r| r.index == name);
        is_windowed(&flat.statement, &is_index)
    };
    let given = products.iter().any(windowed);
    (hands && products.len() > 1 && (given || !found.is_empty())).then_some(found)
}

/// Outer indices that windows move with, of intermediate results or of what is given.
pub fn tiled(flattened: &Flattened, folds: &[Fold]) -> BTreeSet<String> {
    let outers: BTreeSet<&String> = flattened.outer.iter().filter(|r| r.count > 1).map(|r| &r.index).collect();
    let subscripts = flattened.statements.iter().flat_map(|f| f.statement.reads.iter().map(move |(_, e)| (f, e)));
    let together = |(flat, element): (&Flat, &Element)| -> Vec<String> {
        let is_index = |name: &String| outers.contains(name) || flat.inner.iter().any(|r| r.index == *name);
        let several = element.subscripts.iter().map(|e| e.symbols().into_iter().filter(is_index).collect::<Vec<String>>());
        several.filter(|names| names.len() > 1).flatten().filter(|name| outers.contains(name)).collect()
    };
    subscripts.flat_map(together).chain(folds.iter().map(|f| f.outer.clone())).collect()
}

/// The windows of local containers; empty where there are none.
fn folds(flattened: &Flattened) -> Vec<Fold> {
    let mut found: Vec<Fold> = Vec::new();
    let outers: Vec<&str> = flattened.outer.iter().filter(|r| r.count > 1).map(|r| r.index.as_str()).collect();
    let local = |data: &str| flattened.tensors.get(data).is_some_and(|t| t.space == MemorySpace::Local);
    for Flat { inner, statement, .. } in &flattened.statements {
        if !local(&statement.write.data) {
            continue;
        }
        for (dim, subscript) in statement.write.subscripts.iter().enumerate() {
            let Some(index) = subscript.as_sym().filter(|name| inner.iter().any(|r| r.index == *name)) else { continue };
            let with = outers.iter().filter_map(|outer| Some((*outer, stride(statement, outer, index, &found)?)));
            if let [(outer, stride)] = with.collect::<Vec<_>>()[..] {
                let (data, outer, index) = (statement.write.data.clone(), outer.to_string(), index.to_string());
                found.push(Fold { data, dim, outer, stride, index });
            }
        }
    }
    // What is read must be read as a window by all.
    let whole = |fold: &Fold| {
        let all = flattened.statements.iter().filter(|f| f.statement.write.data == fold.data);
        let subscripts = all.map(|f| f.statement.write.subscripts.get(fold.dim).and_then(Expr::as_sym) == Some(&fold.index));
        subscripts.into_iter().all(|same| same)
    };
    found.retain(whole);
    found
}

/// By how many steps of `index` the values of a statement move with `outer`, if they depend on both in that way alone.
fn stride(statement: &NestStatement, outer: &str, index: &str, folds: &[Fold]) -> Option<i64> {
    let mut strides: BTreeSet<Option<i64>> = BTreeSet::new();
    let ratio = |e: &Expr, more: i64| -> Option<i64> {
        let by = |name: &str| slope(e, name)?.as_int();
        let (of_outer, of_index) = (by(outer)? + more, by(index)?);
        (of_index > 0 && of_outer > 0 && of_outer % of_index == 0).then(|| of_outer / of_index)
    };
    let mentions = |e: &Expr| e.symbols().iter().any(|s| s == outer || s == index);
    for (_, element) in &statement.reads {
        for (dim, subscript) in element.subscripts.iter().enumerate() {
            let folded = folds.iter().find(|f| f.data == element.data && f.dim == dim && f.outer == outer);
            let more = folded.map_or(0, |fold| fold.stride);
            if mentions(subscript) {
                strides.insert(ratio(subscript, more));
            }
        }
    }
    statement.code.walk(&mut |s| {
        if let Scalar::Index(e) | Scalar::Keep { element: e, .. } = s
            && mentions(e)
        {
            strides.insert(ratio(e, 0));
        }
    });
    match strides.into_iter().collect::<Vec<_>>()[..] {
        [Some(stride)] => Some(stride),
        _ => None,
    }
}

/// Elements of a window of a tile of so many points, given those of one point's.
pub fn extent(fold: &Fold, points: i64, of_point: i64) -> i64 {
    fold.stride * (points - 1) + of_point
}

/// Whether a statement is a sum of products that micro-kernels make of factors where they lie, in memory or in a tile.
pub fn is_product(flat: &Flat, flattened: &Flattened) -> bool {
    let Flat { inner, statement, .. } = flat;
    let Some(found) = factors(&statement.code).filter(|_| statement.combine == Some(Combine::Sum)) else { return false };
    let read = |connector: &str| statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e);
    let (Some(a), Some(b)) = (read(&found.a), read(&found.b)) else { return false };
    let everywhere: Vec<&str> = flattened.outer.iter().map(|r| r.index.as_str()).collect();
    let is_index = |name: &str| everywhere.contains(&name) || inner.iter().any(|r| r.index == name);
    let mut varies = !found.scale.inputs().is_empty();
    found.scale.walk(&mut |s| {
        if let Scalar::Index(e) = s {
            varies |= e.symbols().iter().any(|i| is_index(i));
        }
    });
    let dtype = |e: &Element| flattened.tensors.get(&e.data).map(|t| t.dtype.to_string());
    let alike = dtype(a) == dtype(b) && dtype(b) == dtype(&statement.write) && matches!(dtype(a).as_deref(), Some("f32" | "f64"));
    let affine = |e: &Element| e.subscripts.iter().all(|s| s.symbols().iter().all(|i| !is_index(i) || slope(s, i).is_some()));
    let plain = statement.write.subscripts.iter().all(|e| e.as_sym().is_some());
    let indices = |e: &Element| -> BTreeSet<String> {
        e.subscripts.iter().flat_map(Expr::symbols).filter(|s| inner.iter().any(|r| r.index == *s)).collect()
    };
    let (in_a, in_b, out) = (indices(a), indices(b), indices(&statement.write));
    let summed = in_a.intersection(&in_b).any(|i| !out.contains(i));
    let summed_alone = in_a.symmetric_difference(&in_b).any(|i| !out.contains(i));
    !varies && alike && affine(a) && affine(b) && plain && summed && !summed_alone && !out.is_empty()
}

/// Windows of tiles in the place of those of points: `sizes` are the iterations of a tile by outer index.
pub fn fold(flattened: &mut Flattened, folds: &[Fold], sizes: &BTreeMap<String, i64>) -> BTreeMap<usize, BTreeSet<String>> {
    let points = |fold: &Fold| sizes.get(&fold.outer).copied().unwrap_or(1);
    for fold in folds {
        if let Some(tensor) = flattened.tensors.get_mut(&fold.data) {
            tensor.shape[fold.dim] = extent(fold, points(fold), tensor.shape[fold.dim]);
        }
    }
    // By statement: the outer indices that it does not walk within a tile.
    let mut without: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    for (n, Flat { inner, statement, .. }) in flattened.statements.iter_mut().enumerate() {
        let mine: Vec<&Fold> = folds.iter().filter(|f| f.data == statement.write.data).collect();
        for fold in &mine {
            for range in inner.iter_mut().filter(|r| r.index == fold.index) {
                *range = IndexRange { count: extent(fold, points(fold), range.count), ..range.clone() };
            }
            without.entry(n).or_default().insert(fold.outer.clone());
        }
        // What walks the points of the tile finds each one's window.
        for (_, element) in &mut statement.reads {
            for fold in folds.iter().filter(|f| f.data == element.data && !mine.iter().any(|m| m.outer == f.outer)) {
                let at = element.subscripts[fold.dim].clone();
                element.subscripts[fold.dim] = Expr::Int(fold.stride) * Expr::sym(within(&fold.outer)) + at;
            }
        }
    }
    without
}

/// The symbol of a point's place in its tile, until tiles are walked.
pub fn within(index: &str) -> String {
    format!("{index}.within")
}

/// An index within a tile in the place of one, in statements that walk windows of tiles: they begin where the tile does.
pub fn at_tile(statement: &mut NestStatement, outer: &[ForLoop], tiles: &[Tile], without: &BTreeSet<String>) {
    let ragged = tiles.iter().any(Tile::is_ragged);
    let start = |tile: &Tile| Expr::sym(tile.outer.as_str()) * Expr::sym(Tile::symbol(&tile.index));
    let mut with: BTreeMap<String, Expr> =
        tiles.iter().filter(|t| without.contains(&t.index)).map(|t| (t.index.clone(), start(t))).collect();
    // One tile alone begins at 0.
    for index in without.iter().filter(|index| !tiles.iter().any(|t| t.index == **index) && !outer.iter().any(|l| l.index == **index)) {
        with.insert(index.clone(), Expr::Int(0));
    }
    for (_, element) in &mut statement.reads {
        let before = element.clone();
        element.subscripts.iter_mut().for_each(|e| *e = e.substitute(&with));
        if ragged && *element != before && element.fill.is_none() {
            element.fill = Some(0f64.to_bits());
        }
    }
    statement.code = Scalar::substitute(&statement.code, &with);
}

/// Takes the test for the picture out of a statement that writes windows: it computes all of them, and the borders that this returns are
/// filled afterwards. Empty, and the statement as it was, where it has another form.
pub fn borders(statement: &mut NestStatement, folds: &[Fold], sizes: &Bindings) -> Vec<Border> {
    let Scalar::Select(inside, code, outside) = &statement.code else { return vec![] };
    let Scalar::Const(fill) = **outside else { return vec![] };
    let mut tests: Vec<&Scalar> = vec![inside];
    let mut found: Vec<Border> = Vec::new();
    while let Some(test) = tests.pop() {
        let Scalar::Binary(op, a, b) = test else { return vec![] };
        let place = |e: &Expr| {
            let mine = folds.iter().filter(|f| f.data == statement.write.data);
            mine.into_iter().find(|f| e.symbols().contains(&f.index) && slope(e, &f.index) == Some(Expr::Int(1))).cloned()
        };
        match (op, a.as_ref(), b.as_ref()) {
            (Binary::And, a, b) => tests.extend([a, b]),
            (Binary::Ge, Scalar::Index(e), Scalar::Const(0.0)) if place(e).is_some() => {}
            (Binary::Lt, Scalar::Index(e), Scalar::Index(size)) => {
                let (Some(fold), Ok(size)) = (place(e), size.eval(sizes)) else { return vec![] };
                let start = e.substitute(&BTreeMap::from([(fold.index.clone(), Expr::Int(0))]));
                // Indices within a tile have become dims in front.
                let own = |e: &Expr| e.as_sym() == Some(&fold.index);
                let Some(dim) = statement.write.subscripts.iter().position(own) else { return vec![] };
                found.push(Border { data: fold.data, dim, index: fold.index, start, size, fill: fill.to_bits() });
            }
            _ => return vec![],
        }
    }
    statement.code = code.as_ref().clone();
    found
}
