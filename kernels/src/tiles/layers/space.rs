//! Every configuration of a kernel of several layers: layouts of its tensors × tiles that overlap, or steps that keep rows × the index
//! along which vectors run.

use super::{Fold, extent, is_product, layers, rows, tiled, tuner};
use crate::config_space::{ConfigSpace, TensorChoice};
use crate::error::KernelError;
use crate::images;
use crate::kernel::{KernelSpec, unsupported};
use crate::loopnest::MemorySpace;
use crate::maps::flatten::{Flattened, IndexRange, statements};
use crate::mixed_radix::{MixedRadix, layouts as all_layouts};
use crate::processor::cores;
use crate::tiles::lower;
use sdfg::Expr;
use sdfg::config::{KernelConfig, Knobs};
use std::collections::{BTreeMap, BTreeSet};

/// Tiles of a kernel that are tried: the best by prediction, and the best of those that the paper's tuner tries.
const TILES: usize = 24;
const TUNED: usize = 8;
/// Bytes of a tile's intermediate results that stay in a core's second-level cache.
const NEAR: f64 = 384.0 * 1024.0;

/// Strips of a form that keeps rows, by their number for each worker: more of them share the work better and make more rows twice.
const STRIPS: [i64; 3] = [1, 2, 4];
/// Flop that take as long as moving an element that is kept: it is read from and written to a cache.
const MOVED: f64 = 4.0;

/// Tiles, with what they are predicted to cost.
#[derive(Clone)]
struct Tiling {
    knob: String,
    /// The outer index of strips and the rows of one, where tiles are steps that keep rows.
    strip: Option<(String, i64)>,
    cost: f64,
    /// Whether the paper's tuner tries it.
    tuned: bool,
}

pub struct LayerSpace {
    spec: KernelSpec,
    tensors: Vec<TensorChoice>,
    bytes: Vec<f64>,
    tilings: Vec<Tiling>,
    /// Indices of channels and of places, as the knob `vector` lists them.
    vectors: Vec<String>,
    channels: BTreeSet<String>,
}

impl LayerSpace {
    /// # Errors
    /// Scopes without windows or products, or that cannot be generated.
    pub fn new(spec: &KernelSpec) -> Result<Self, KernelError> {
        lower::on_cores(spec)?;
        let flattened = statements(spec, true)?;
        let found = layers(&flattened).ok_or_else(|| unsupported(spec, "it has no layers that hand windows over"))?;
        let (mut tensors, mut bytes) = (Vec::new(), Vec::new());
        for argument in spec.arguments() {
            bytes.push(argument.dtype.bytes(spec.shape(&argument.data)?.iter().product::<usize>() as u64) as f64);
            let layouts = images::layouts(spec, &argument.data);
            tensors.push(TensorChoice { data: argument.data, layouts });
        }
        let (channels, places) = sides(&flattened, &found);
        let dim_of = |index: &String| -> Option<String> {
            let sdfg::Unit::Scope(scope) = &spec.unit else { return None };
            scope.computations().iter().flat_map(|(around, _)| around.iter()).find(|i| i.name == *index).map(|i| i.dim.clone())
        };
        let vectors: Vec<String> =
            [channels.clone(), places].map(|list| list.join(",")).into_iter().filter(|list| !list.is_empty()).collect();
        let mut tilings = tilings(&flattened, &found, None);
        // Strips are cut along the outermost dim; those that cannot be lowered in one configuration cannot be in any.
        if let Some(index) = rows::indices(&flattened, &found).first() {
            let strips = self::tilings(&flattened, &found, Some(index));
            let lowered = |t: &Tiling, vector: &String| {
                let knobs = t.knobs().with("vector", vector.clone());
                crate::tiles::lower(spec, &KernelConfig { knobs, ..KernelConfig::default() })
            };
            if strips.first().is_some_and(|t| vectors.iter().all(|vector| lowered(t, vector).is_ok())) {
                tilings.extend(strips);
            }
        }
        if tilings.is_empty() {
            return Err(unsupported(spec, "no tile of its intermediate results fits a worker's memory"));
        }
        let channels = channels.iter().filter_map(dim_of).collect();
        let space = LayerSpace { spec: spec.clone(), tensors, bytes, tilings, vectors, channels };
        // What can be lowered in one configuration can be in all.
        crate::tiles::lower(spec, &space.config(0))?;
        Ok(space)
    }
}

impl LayerSpace {
    /// The tiles of a configuration.
    fn tiling(&self, config: &KernelConfig) -> Option<&Tiling> {
        let (form, strip) = (config.knobs.get("form"), config.knobs.get("strip"));
        let same = |t: &&Tiling| {
            let knobs = t.knobs();
            knobs.get("form") == form && knobs.get("strip") == strip && t.knob == config.knobs.get("tile").unwrap_or_default()
        };
        self.tilings.iter().find(same)
    }
}

/// Channels that products make, and places along which windows move: from inner to outer.
fn sides(flattened: &Flattened, folds: &[Fold]) -> (Vec<String>, Vec<String>) {
    let walks: BTreeSet<String> = folds.iter().map(|f| f.index.clone()).chain(tiled(flattened, folds)).collect();
    let (mut channels, mut places): (Vec<String>, Vec<String>) = (vec![], vec![]);
    for flat in flattened.statements.iter().filter(|f| is_product(f, flattened)) {
        let own = flat.statement.write.subscripts.iter().filter_map(Expr::as_sym);
        for index in own.chain(flattened.outer.iter().map(|r| r.index.as_str())) {
            let inner = flat.inner.iter().any(|r| r.index == index);
            let list = if walks.contains(index) { &mut places } else { &mut channels };
            // Of places the last dim, which is the innermost of plain images.
            let last = |f: &Fold| folds.iter().all(|o| o.data != f.data || o.dim <= f.dim);
            let of_fold = folds.iter().filter(|f| f.index == index || f.outer == index).any(last);
            let of_outer = folds.is_empty() && flattened.outer.last().is_some_and(|r| r.index == index);
            let wanted = if walks.contains(index) { of_fold || of_outer } else { inner };
            if wanted && !list.iter().any(|i| i == index) {
                list.push(index.to_string());
            }
        }
    }
    (channels, places)
}

/// Tiles with the least predicted cost: flop that are computed again, cores without a tile, and results that leave the cache. With `strips`
/// they are steps along that index.
fn tilings(flattened: &Flattened, folds: &[Fold], strips: Option<&str>) -> Vec<Tiling> {
    let mut all: Vec<BTreeMap<String, i64>> = vec![BTreeMap::new()];
    let tiled = tiled(flattened, folds);
    for range in flattened.outer.iter().filter(|r| r.count > 1 && tiled.contains(&r.index)) {
        let mut sizes: Vec<i64> = (1..=range.count).map(|n| (range.count + n - 1) / n).collect();
        sizes.dedup();
        let with = |tile: &BTreeMap<String, i64>, size: i64| {
            let mut more = tile.clone();
            more.insert(range.index.clone(), size);
            more
        };
        all = all.iter().flat_map(|tile| sizes.iter().map(|size| with(tile, *size)).collect::<Vec<_>>()).collect();
    }
    let walks = |tile: &BTreeMap<String, i64>| match strips {
        None => vec![None],
        Some(index) => lengths(flattened, tile, index).into_iter().map(|rows| Some((index.to_string(), rows))).collect(),
    };
    let mut found: Vec<Tiling> = all
        .iter()
        .flat_map(|tile| walks(tile).into_iter().filter_map(|strip| tiling(flattened, folds, tile, strip)).collect::<Vec<_>>())
        .collect();
    found.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    let (first, rest) = found.split_at(TILES.min(found.len()));
    let room = TUNED.saturating_sub(first.iter().filter(|t| t.tuned).count());
    let tuned: Vec<Tiling> = rest.iter().filter(|t| t.tuned).take(room).cloned().collect();
    found.truncate(TILES);
    found.extend(tuned);
    found
}

/// Rows of strips along an index, of which all workers together get the same number each: at least two steps.
fn lengths(flattened: &Flattened, tile: &BTreeMap<String, i64>, index: &str) -> Vec<i64> {
    let size = |index: &str| tile.get(index).copied().unwrap_or(1);
    let tiles = |r: &IndexRange| (r.count + size(&r.index) - 1) / size(&r.index);
    let beside: i64 = flattened.outer.iter().filter(|r| r.index != index).map(tiles).product();
    let steps = flattened.outer.iter().find(|r| r.index == index).map_or(1, tiles);
    let of_workers = STRIPS.iter().map(|n| (n * cores() as i64 + beside - 1) / beside);
    let mut found: Vec<i64> =
        of_workers.map(|strips| (steps + strips - 1) / strips).filter(|each| *each > 1).map(|n| n * size(index)).collect();
    found.dedup();
    found
}

impl Tiling {
    fn knobs(&self) -> Knobs {
        let knobs = Knobs::default().with("tile", self.knob.clone());
        match &self.strip {
            None => knobs.with("form", "layers"),
            Some((index, rows)) => knobs.with("form", "rows").with("strip", format!("{index}:{rows}")),
        }
    }
}

fn tiling(flattened: &Flattened, folds: &[Fold], tile: &BTreeMap<String, i64>, strip: Option<(String, i64)>) -> Option<Tiling> {
    let size = |index: &str| tile.get(index).copied().unwrap_or(1);
    let tiles_of = |r: &IndexRange| (r.count + size(&r.index) - 1) / size(&r.index);
    let in_steps = |index: &str| strip.as_ref().is_some_and(|(of, _)| of == index);
    // Tiles that begin anew: all of them, or the first ones of strips.
    let begun = |r: &IndexRange| match strip.as_ref().filter(|_| in_steps(&r.index)) {
        Some((_, rows)) => (r.count + rows - 1) / rows,
        None => tiles_of(r),
    };
    let tiles: i64 = flattened.outer.iter().map(tiles_of).product();
    let (mut work, mut least) = (0.0, 0.0);
    for flat in &flattened.statements {
        let (mut points, mut alone) = (1.0, 1.0);
        let mine: Vec<&Fold> = folds.iter().filter(|f| f.data == flat.statement.write.data).collect();
        for range in flat.inner.iter().filter(|r| !mine.iter().any(|f| f.index == r.index)) {
            points *= range.count as f64;
            alone *= range.count as f64;
        }
        for range in &flattened.outer {
            let fold = mine.iter().find_map(|f| Some((f, flat.inner.iter().find(|r| r.index == f.index && f.outer == range.index)?.count)));
            let (all, once) = match fold {
                None => (tiles_of(range) * size(&range.index), range.count),
                Some((f, window)) => {
                    let shared = if in_steps(&range.index) { (window - f.stride).max(0) } else { 0 };
                    let made = tiles_of(range) * (extent(f, size(&range.index), window) - shared) + begun(range) * shared;
                    (made, f.stride * range.count)
                }
            };
            points *= all as f64;
            alone *= once as f64;
        }
        let flop = if is_product(flat, flattened) { 2.0 } else { 4.0 };
        work += flop * points;
        least += flop * alone;
    }
    // Sums that element-wise work follows stay in registers: what a product reads lies in the tile's memory, and so does what is reduced
    // otherwise, such as by the maximum of windows.
    let factor = |data: &String| {
        let reductions = flattened.statements.iter().filter(|f| f.statement.combine.is_some() || is_product(f, flattened));
        reductions.flat_map(|f| &f.statement.reads).any(|(_, e)| e.data == *data)
    };
    let (mut elements, mut held) = (0, 0);
    for (data, tensor) in flattened.tensors.iter().filter(|(_, t)| t.space == MemorySpace::Local) {
        let of = |(dim, count): (usize, &i64)| {
            let fold = folds.iter().find(|f| f.data == *data && f.dim == dim);
            fold.map_or(*count, |f| extent(f, size(&f.outer), *count))
        };
        let own: i64 = tensor.shape.iter().enumerate().map(of).product();
        let folded = |index: &str| folds.iter().any(|f| f.data == *data && f.outer == index);
        let all = own * flattened.outer.iter().filter(|r| !folded(&r.index)).map(|r| size(&r.index)).product::<i64>();
        elements += all;
        held += if factor(data) { all } else { 0 };
        // Rows that steps take over from one another.
        let kept = folds.iter().find(|f| f.data == *data && in_steps(&f.outer)).filter(|_| factor(data));
        if let Some((f, of_point)) = kept.and_then(|f| Some((f, tensor.shape.get(f.dim)?))) {
            let rows = extent(f, size(&f.outer), *of_point);
            work += MOVED * ((of_point - f.stride).max(0) * (all / rows.max(1)) * tiles) as f64;
        }
    }
    if elements > lower::SCRATCH {
        return None;
    }
    let near = (held as f64 * 4.0 / NEAR).max(1.0).log2();
    let workers = cores() as f64;
    let points = flattened.outer.iter().map(begun).product::<i64>() as f64;
    let idle = (points / workers).ceil() * workers / points;
    // Rows that are cut have borders of their own, and numbers of points that are known at run time alone.
    let cut = flattened.outer.iter().rev().find(|r| tile.contains_key(&r.index)).is_some_and(|r| size(&r.index) < r.count);
    let calls_of_rows = if cut { 1.05 } else { 1.0 };
    // A tile costs a call and the start of its micro-kernels.
    let calls = 1.0 + 4000.0 * tiles as f64 / work.max(1.0);
    let text: Vec<String> = tile.iter().filter(|(_, n)| **n > 1).map(|(index, n)| format!("{index}:{n}")).collect();
    let extent = |index: &String| flattened.outer.iter().find(|r| r.index == *index).map_or(1, |r| r.count);
    let tuned = tile.iter().all(|(index, n)| tuner::sizes(extent(index)).contains(n)) && tuner::fits(held as f64 * 4.0, NEAR);
    // The paper's tuner knows of tiles that overlap alone.
    let tuned = tuned && strip.is_none();
    let cost = work / least.max(1.0) * idle * calls * calls_of_rows * (1.0 + 0.1 * near);
    Some(Tiling { knob: text.join(","), strip, tuned, cost })
}

impl ConfigSpace for LayerSpace {
    fn tensors(&self) -> &[TensorChoice] {
        &self.tensors
    }

    fn count(&self) -> u64 {
        all_layouts(&self.tensors).saturating_mul((self.tilings.len() * self.vectors.len()) as u64)
    }

    fn config(&self, n: u64) -> KernelConfig {
        let mut digits = MixedRadix::of(n, self.count());
        let tile = &self.tilings[digits.below(self.tilings.len())];
        let vector = &self.vectors[digits.below(self.vectors.len())];
        KernelConfig { layouts: digits.layouts(&self.tensors), knobs: tile.knobs().with("vector", vector.clone()) }
    }

    fn identity(&self, n: u64) -> String {
        crate::config_space::identity(&self.spec, &self.tensors, &self.config(n))
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        let config = self.config(n);
        let of_tile = self.tiling(&config).map_or(f64::INFINITY, |t| t.cost);
        let mut layout_cost = 0.0;
        for (tensor, bytes) in self.tensors.iter().zip(&self.bytes) {
            let layout = config.layouts.get(&tensor.data).cloned().unwrap_or_default();
            let inner = layout.innermost().unwrap_or_default().to_string();
            layout_cost += bytes * if self.channels.contains(&inner) || !layout.is_plain() { 1.0 } else { 1.1 };
        }
        let all: f64 = self.bytes.iter().sum();
        let across = if config.knobs.get("vector") == self.vectors.first().map(String::as_str) { 1.0 } else { 1.2 };
        of_tile * (1.0 + 0.2 * (layout_cost / all.max(1.0) - 1.0)) * across
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        self.tiling(config).is_some_and(|t| t.tuned)
    }
}
