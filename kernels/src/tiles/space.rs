//! Every configuration of a tile kernel: layouts of its tensors × sizes of tiles × depth × vector index × place of reductions, and
//! for a product alone which of its sides are columns.

use crate::config_space::{ConfigSpace, TensorChoice};
use crate::error::KernelError;
use crate::images;
use crate::kernel::KernelSpec;
use crate::loopnest::matmul_pattern::{Factors, factors, is_product};
use crate::loopnest::{self, BankedRows, NestStatement};
use crate::maps::flatten::{Flat, Flattened, IndexRange, statements};
use crate::mixed_radix::{MixedRadix, layouts};
use crate::processor::pairs;
use crate::tiles::small_sides::{has_few_rows, is_thin};
use crate::tiles::winograd_forms::{FORMS, is_square};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Dtype, Layout};
use std::collections::BTreeSet;

/// Output channels, and places, of a tile that multiplies windows: those expected to be best first.
pub const CHANNELS: [i64; 4] = [64, 256, 32, 1024];
pub const PLACES: [i64; 5] = [224, 448, 112, 896, 3584];

/// The tiles that a target tries, those expected to be best first, and their limits.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    /// Iterations of a tile along its shorter and its longer side: the longer side streams past the shorter one.
    pub short: &'static [i64],
    pub long: &'static [i64],
    /// Steps of the depth that are loaded into near memory at once.
    pub depths: &'static [i64],
    /// The usual iterations of either side, from which others are thought to be worse.
    pub usual: [f64; 2],
    /// Most elements that are local to a tile: more of them do not fit near memory.
    pub local: i64,
    /// Tiles that are cut to fit have a multiple of this number of iterations.
    pub unit: i64,
    /// How rows lie in shared memory, where tiles are there.
    pub banks: Option<BankedRows>,
    /// Processors that tiles are divided among.
    pub processors: i64,
}

impl Tiles {
    /// Whether tiles are in the shared memory of a GPU's blocks: rows have gaps there, and factors are multiplied where they lie. The cores
    /// pack factors, may widen those of bf16, and may take as columns the side along which results are not neighbours.
    pub fn is_gpu(&self) -> bool {
        self.banks.is_some()
    }
}

/// Tiles along the last index are whole panels of columns on every processor.
const PANEL: i64 = 32;

/// An outer index, and how products use it.
pub(super) struct Outer {
    pub range: IndexRange,
    pub dim: String,
    /// The dim of the largest result that it walks, which has another name where the result is part of a joined tensor.
    pub written: String,
    pub side: Side,
}

impl Outer {
    /// Whether it walks a dim of a container.
    pub fn walks(&self, dim: &str) -> bool {
        self.dim == dim || self.written == dim
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// In one factor of the first product that has it and in its result.
    Left,
    /// In the other factor and in the result.
    Right,
    /// In no product, or in all three tensors: walked one by one.
    Point,
}

/// All layouts of the tensors and all knobs of one tile kernel.
pub struct TileSpace {
    pub(super) spec: KernelSpec,
    pub(super) tiles: Tiles,
    pub(super) tensors: Vec<TensorChoice>,
    /// Bytes of each tensor.
    pub(super) bytes: Vec<f64>,
    pub(super) outer: Vec<Outer>,
    /// Index → dim of everything walked.
    dims: Vec<(String, String)>,
    /// Positions in `tensors` of the results, largest first.
    pub(super) written: Vec<usize>,
    pub(super) products: Vec<NestStatement>,
    reduces: &'static [&'static str],
    /// The outer indices that a product sums over: they are walked in order unless sums are private.
    summed: BTreeSet<String>,
    /// Whether factors of bf16 are multiplied as pairs: the choice expected to be faster first.
    pairs: &'static [bool],
    flop: f64,
    /// Elements that are local to one outer point.
    pub(super) local: i64,
    /// Whether it is a product and nothing else.
    single: bool,
    /// Whether factors are read where they lie, as windows are.
    direct: bool,
    /// Whether thin ones are read so, too, in a program without windows: the choice expected to be faster first.
    unpacked: &'static [bool],
    /// Whether a matrix is multiplied by few rows.
    pub(super) has_few_rows: bool,
    /// Results of a tile of Winograd's form along each dim, of every form that is tried; 0 is the sum of products itself.
    pub(super) forms: &'static [i64],
}

/// The dims of a container that a kernel writes by the indices that walk them.
fn walked_by(spec: &KernelSpec, data: &str) -> Vec<(String, String)> {
    let sdfg::Unit::Scope(scope) = &spec.unit else { return Vec::new() };
    let Some(container) = spec.containers.get(data) else { return Vec::new() };
    let mut found = Vec::new();
    for (_, computation) in scope.computations() {
        for (_, memlet) in computation.writes.iter().filter(|(_, m)| spec.root(&m.data) == data) {
            for (range, dim) in memlet.subset.iter().zip(&container.dims) {
                if let sdfg::Range::At(at) = range {
                    found.extend(at.symbols().into_iter().map(|index| (index, dim.clone())));
                }
            }
        }
    }
    found
}

impl TileSpace {
    /// # Errors
    /// Scopes without a matrix product, or that cannot be generated.
    pub fn of(spec: &KernelSpec, tiles: Tiles) -> Result<Self, KernelError> {
        // What can be lowered at all can be lowered point by point, however large a point is.
        let lowered = |knobs: Knobs| crate::tiles::lower(spec, &KernelConfig { knobs, ..KernelConfig::default() });
        let mut point = lowered(Knobs::default().with("tile", ""))?;
        // Of a program that convolves images products read factors where they lie, if all of the kernel's can.
        let flattened = statements(spec, true)?;
        let rank = |e: &loopnest::Element| e.subscripts.len();
        let of_images = || point.groups.iter().flat_map(|g| &g.statements).any(|s| s.reads.iter().any(|(_, e)| rank(e) > 3));
        let has_few_rows = spec.images && has_few_rows(&flattened);
        if spec.images && !tiles.is_gpu() && (has_few_rows || of_images()) {
            let all = lowered(Knobs::default().with("tile", "").with("form", "direct"))?;
            if all.groups.iter().all(|g| !g.is_gemm || all.is_direct(g)) {
                point = all;
            }
        }
        let direct = point.gemm.is_some_and(|plan| plan.direct);
        if direct && tiles.is_gpu() {
            return Err(crate::kernel::unsupported(spec, "tiles on GPUs multiply no windows"));
        }
        let may_lie = !direct && !tiles.is_gpu() && !spec.images && is_thin(&flattened);
        let Flattened { outer, statements, tensors: seen, .. } = flattened;
        let (mut tensors, mut bytes, mut written) = (Vec::new(), Vec::new(), Vec::new());
        for argument in spec.arguments() {
            bytes.push(argument.dtype.bytes(spec.shape(&argument.data)?.iter().product::<usize>() as u64) as f64);
            if argument.access == crate::kernel::ArgumentAccess::Write {
                written.push((spec.shape(&argument.data)?.iter().product::<usize>(), tensors.len()));
            }
            let layouts = if direct || (spec.images && !tiles.is_gpu()) {
                images::layouts(spec, &argument.data)
            } else {
                Layout::permutations(&argument.dims)
            };
            tensors.push(TensorChoice { data: argument.data, layouts });
        }
        written.sort_by_key(|(elements, _)| std::cmp::Reverse(*elements));
        let everywhere: Vec<&str> = outer.iter().map(|r| r.index.as_str()).collect();
        let is_local = |data: &str| seen.get(data).is_some_and(|t| t.space == loopnest::MemorySpace::Local);
        let product = |flat: &&Flat| {
            let is_index = |name: &str| everywhere.contains(&name) || flat.inner.iter().any(|r| r.index == name);
            is_product(&flat.statement, &is_index, &seen, &everywhere, direct)
        };
        let found: Vec<&Flat> = statements.iter().filter(product).collect();
        let forms = if direct && spec.winograd && found.iter().any(|flat| is_square(flat)) { &FORMS[..] } else { &FORMS[..1] };
        let flop = found.iter().map(|f| 2.0 * f.inner.iter().chain(&outer).map(|r| r.count as f64).product::<f64>()).sum();
        let elements = |t: &loopnest::NestTensor| t.shape.iter().product::<i64>();
        let local = match tiles.banks {
            None => seen.values().filter(|t| t.space == loopnest::MemorySpace::Local).map(elements).sum(),
            // Shared memory holds stored containers, once for all that reuse the same memory.
            Some(banks) => {
                let apart = |t: &loopnest::NestTensor| match t.shape.iter().filter(|n| **n > 1).collect::<Vec<_>>()[..] {
                    [row] => banks.row(*row),
                    _ => elements(t),
                };
                let stored = |(data, t): &(&String, &loopnest::NestTensor)| {
                    t.stored && !matches!(t.space, loopnest::MemorySpace::Heap { .. }) && !point.reuses.contains_key(*data)
                };
                point.tensors.iter().filter(stored).map(|(_, t)| apart(t)).sum()
            }
        };
        let products: Vec<NestStatement> = found.iter().map(|f| f.statement.clone()).collect();
        let mut dims = Vec::new();
        if let sdfg::Unit::Scope(scope) = &spec.unit {
            for (around, _) in scope.computations() {
                for index in around.iter().filter(|i| !dims.iter().any(|(n, _)| *n == i.name)).collect::<Vec<_>>() {
                    dims.push((index.name.clone(), index.dim.clone()));
                }
            }
        }
        let result = written.first().map(|(_, n)| tensors[*n].data.clone()).unwrap_or_default();
        let walked = walked_by(spec, &result);
        let mut summed = BTreeSet::new();
        for target in products.iter().map(|s| &s.write).filter(|target| !is_local(&target.data)) {
            let named = |index: &str| target.subscripts.iter().any(|e| e.symbols().contains(index));
            summed.extend(outer.iter().filter(|r| r.count > 1 && !named(&r.index)).map(|r| r.index.clone()));
        }
        // A product that adds up tiles has no depth of its own in small ones.
        let unpacked = match may_lie && summed.is_empty() {
            true => match lowered(Knobs::default().with("tile", "").with("form", "direct")) {
                Ok(all) if all.groups.iter().all(|g| !g.is_gemm || all.is_direct(g)) => &[true, false][..],
                _ => &[false],
            },
            false => &[false],
        };
        let bf16 = |s: &NestStatement| s.reads.iter().all(|(_, e)| seen.get(&e.data).is_some_and(|t| t.dtype == Dtype::Bf16));
        let pairs: &[bool] = match pairs().filter(|_| !tiles.is_gpu() && products.iter().any(bf16)) {
            None => &[true],
            Some(true) => &[true, false],
            Some(false) => &[false, true],
        };
        let reduces: &[&str] = if summed.is_empty() { &["sequential"] } else { &["sequential", "private"] };
        let dim_of = |among: &[(String, String)], index: &str| among.iter().find(|(i, _)| i == index).map(|(_, d)| d.clone());
        let outer = outer
            .iter()
            .map(|range| {
                let dim = dim_of(&dims, &range.index).unwrap_or_default();
                let written = dim_of(&walked, &range.index).unwrap_or_else(|| dim.clone());
                Outer { side: side(&products, &range.index, &is_local), dim, written, range: range.clone() }
            })
            .collect();
        let single = statements.len() == 1 && written.len() == 1;
        Ok(TileSpace {
            spec: spec.clone(),
            tiles,
            single,
            direct,
            unpacked,
            has_few_rows,
            forms,
            tensors,
            bytes,
            outer,
            dims,
            written: written.into_iter().map(|(_, n)| n).collect(),
            products,
            reduces,
            summed,
            pairs,
            flop,
            local,
        })
    }

    /// The same with layouts in panels of `width` columns as well.
    pub fn in_panels(self, width: usize) -> Self {
        if self.direct || self.spec.images {
            return self;
        }
        let tensors = self.tensors.into_iter().map(|t| crate::split_blocked_dims::with_panels(&self.spec, t, width)).collect();
        TileSpace { tensors, ..self }
    }

    /// Whether products read their factors where they lie.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Multiplications and additions of the products.
    pub fn flop(&self) -> f64 {
        self.flop
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> f64 {
        self.bytes.iter().sum()
    }

    pub(super) fn layout(&self, config: &KernelConfig, data: &str) -> Layout {
        config.layouts.get(data).cloned().unwrap_or_default()
    }

    /// The indices along which tensors are contiguous: first those of a layout, then of results, then of operands.
    pub(super) fn vectors(&self, config: &KernelConfig, first: &Layout) -> Vec<String> {
        let others = (0..self.tensors.len()).filter(|n| !self.written.contains(n));
        let layouts = self.written.iter().copied().chain(others).map(|n| self.layout(config, &self.tensors[n].data));
        let mut found: Vec<String> = Vec::new();
        for dim in [first.clone()].into_iter().chain(layouts).filter_map(|l| l.innermost().map(String::from)) {
            let walks = |index: &str| self.outer.iter().any(|o| o.range.index == index && o.walks(&dim));
            let new = self.dims.iter().filter(|(i, d)| (*d == dim || walks(i)) && !found.contains(i)).map(|(i, _)| i.clone());
            found.extend(new.collect::<Vec<_>>());
        }
        found
    }

    /// Sizes of tiles of one side, filled from the innermost dim of a layout outwards.
    fn fill(&self, side: Side, mut room: i64, layout: &Layout, into: &mut Vec<(String, i64)>) {
        let mut indices: Vec<&Outer> = self.outer.iter().filter(|o| o.side == side).collect();
        indices.sort_by_key(|o| std::cmp::Reverse(layout.pieces.iter().position(|p| o.walks(&p.dim))));
        for (n, outer) in indices.into_iter().enumerate() {
            let count = outer.range.count;
            let size = match room {
                room if room >= count => count,
                room if n == 0 => {
                    // Tiles of equal size, made of whole panels.
                    let tiles = (count + room - 1) / room;
                    ((count + tiles - 1) / tiles + PANEL - 1) / PANEL * PANEL
                }
                // The number of tiles that comes nearest, of equal size: the remainder would be a tile of few rows.
                room => divided(count, (2 * count + room) / (2 * room)),
            };
            let size = size.clamp(1, count);
            if size > 1 {
                into.push((outer.range.index.clone(), size));
            }
            room = if size == count { (room / count).max(1) } else { 1 };
        }
    }

    /// Knobs for tiles of these iterations on either side, under the layouts of a configuration, along the result of this number.
    pub fn walk(&self, config: &KernelConfig, [left, right]: [i64; 2], depth: i64, along: usize) -> Knobs {
        let target = self.written.get(along.min(self.written.len().saturating_sub(1))).map(|n| self.tensors[*n].data.clone());
        let layout = self.layout(config, &target.unwrap_or_default());
        let mut sizes = Vec::new();
        self.fill(Side::Left, left, &layout, &mut sizes);
        self.fill(Side::Right, right, &layout, &mut sizes);
        self.fit(&mut sizes);
        let tile: Vec<String> = sizes.iter().map(|(index, size)| format!("{index}:{size}")).collect();
        let mut knobs = Knobs::default().with("tile", tile.join(",")).with("depth", depth);
        let vectors = self.vectors(config, &layout);
        if !vectors.is_empty() {
            knobs = knobs.with("vector", vectors.join(","));
        }
        knobs
    }

    fn is_written(&self, data: &str) -> bool {
        self.written.iter().any(|n| self.tensors[*n].data == data)
    }

    /// Whether a dim is summed over: nothing that is written has it.
    fn sums(&self, dim: &str) -> bool {
        let has = |n: &usize| self.tensors[*n].layouts.first().is_some_and(|l| l.pieces.iter().any(|p| p.dim == dim));
        !self.written.iter().any(has)
    }

    /// The share by which tiles take longer than if processors had equal parts of the work: they wait for the last tile. Indices that are
    /// summed over are walked in order.
    fn idle(&self, tile: &str) -> f64 {
        let apart = self.outer.iter().map(|o| &o.range).filter(|r| !self.summed.contains(&r.index));
        let points: f64 = apart.map(|r| (r.count as f64 / size(tile, &r.index) as f64).ceil()).product();
        let processors = self.tiles.processors as f64;
        // A GPU's processors have several blocks at a time, of which the last ones run alone in part.
        if self.tiles.is_gpu() {
            return (processors / points.max(1.0) - 1.0).max(0.0);
        }
        (points / processors).ceil().max(1.0) * processors / points.max(1.0) - 1.0
    }

    /// Bytes that memory could move while a GPU multiplies, and while blocks pass their locals from one group to the next: a hundred
    /// operations a byte, and a seventh of what shared memory moves.
    fn within(&self) -> f64 {
        let points: f64 = self.outer.iter().map(|o| o.range.count as f64).product();
        self.flop / 100.0 + points * (self.local * size_of::<f32>() as i64) as f64 * 5.0 / 7.0
    }

    /// Whether lanes of some group run along an index that is tiled: a tile has few of its iterations, and all of what it sums over comes
    /// one after the other.
    fn runs_across(&self, vectors: &str) -> bool {
        let outer = |index: &str| self.outer.iter().find(|o| o.range.index == index);
        let tiled = |index: &str| outer(index).is_some_and(|o| o.side != Side::Point);
        let before: BTreeSet<&str> = vectors.split(',').take_while(|index| !tiled(index)).collect();
        let listed = vectors.split(',').any(tiled);
        listed && self.dims.iter().any(|(index, _)| outer(index).is_none() && !before.contains(index.as_str()))
    }

    /// How much longer tiles take than they would, of what is left over in the last one, and of blocks that have a processor to
    /// themselves: no unit computes while they wait.
    fn waits(&self, tile: &str) -> f64 {
        let whole = |o: &Outer| {
            let (count, size) = (o.range.count as f64, size(tile, &o.range.index) as f64);
            (count / size).ceil() * size / count
        };
        let points: i64 = self.outer.iter().map(|o| size(tile, &o.range.index)).product();
        let beside = (self.tiles.local as f64 / (points * self.local).max(1) as f64).floor().clamp(1.0, 4.0);
        self.outer.iter().map(whole).product::<f64>() * (1.0 + 1.0 / beside)
    }

    /// Bytes that blocks of threads bring from memory for each byte of a tensor: every tile of what it does not depend on brings it
    /// again, and what lies along an index that is walked point by point comes one value at a time, a sector each.
    fn brought(&self, config: &KernelConfig, layout: &Layout, multiplied: bool, vector: &str) -> f64 {
        const SECTOR: f64 = 16.0;
        // What others have brought lies in the second-level cache.
        const AGAIN: f64 = 0.3;
        let has = |dim: &str| layout.pieces.iter().any(|p| p.dim == dim);
        let tile = config.knobs.get("tile").unwrap_or_default();
        let tiles = |o: &Outer| (o.range.count as f64 / size(tile, &o.range.index) as f64).ceil();
        let again: f64 = self.outer.iter().filter(|o| !has(&o.dim)).map(tiles).product();
        let inner = layout.innermost().unwrap_or_default();
        let point = |dim: &str| self.outer.iter().any(|o| o.dim == dim && o.side == Side::Point);
        let near = layout.pieces.len() < 2 || if multiplied { !point(inner) } else { inner == vector };
        (1.0 + AGAIN * (again - 1.0)) * if near { 1.0 } else { SECTOR }
    }

    /// Predicted bytes, weighted by how badly each tensor is walked, and by how far tiles are from the usual size; on a GPU with what is
    /// done meanwhile, in bytes of the same time.
    pub fn cost(&self, config: &KernelConfig) -> f64 {
        if self.direct {
            return self.cost_of_windows(config);
        }
        let vector = config.knobs.get("vector").unwrap_or_default().split(',').next().unwrap_or_default();
        let vector_dim = self.dims.iter().find(|(i, _)| i == vector).map_or("", |(_, d)| d.as_str());
        let root = |data: &str| self.spec.root(data).to_string();
        let across = config.knobs.get("columns").is_some();
        let mut total = 0.0;
        for (tensor, bytes) in self.tensors.iter().zip(&self.bytes) {
            let layout = self.layout(config, &tensor.data);
            let inner = layout.innermost().unwrap_or_default();
            let in_products: Vec<&NestStatement> = self
                .products
                .iter()
                .filter(|s| root(&s.write.data) == tensor.data || s.reads.iter().any(|(_, e)| root(&e.data) == tensor.data))
                .collect();
            let has = |dim: &str| layout.pieces.iter().any(|p| p.dim == dim);
            let weight = if across {
                match (self.is_written(&tensor.data), has(vector_dim), self.sums(inner)) {
                    // Rows that lie along the depth are read where they are; results and what becomes columns are turned. Results
                    // of BERT-base's first linear layer, the largest tensor there, cost a fifth of the speed that way.
                    (false, true, true) => 1.0,
                    (true, ..) | (false, false, true) => 3.0,
                    _ => 1.5,
                }
            } else if self.tiles.is_gpu() {
                self.brought(config, &layout, !in_products.is_empty(), vector_dim)
            } else if inner == vector_dim || layout.pieces.len() < 2 {
                1.0
            } else if !in_products.is_empty() {
                // Packing turns what lies the other way.
                if has(vector_dim) { 3.0 } else { 1.5 }
            } else {
                8.0
            };
            // Indices of one side that are neighbours in memory are one long row or column.
            let outer_dims: Vec<usize> = self
                .outer
                .iter()
                .filter(|o| o.side != Side::Point)
                .filter_map(|o| layout.pieces.iter().position(|p| p.dim == o.dim))
                .collect();
            let apart = outer_dims.iter().max().zip(outer_dims.iter().min()).map_or(0, |(high, low)| (high - low + 1) - outer_dims.len());
            let later = if layout.is_plain() { 1.0 } else { crate::split_blocked_dims::LATER };
            total += bytes * (weight + 0.3 * apart as f64) * later;
        }
        let knob = |name: &str| config.knobs.get(name).unwrap_or_default();
        let size = |side: Side| -> f64 {
            let of = |part: &str| part.split_once(':').map(|(i, n)| (i.to_string(), n.parse::<f64>().unwrap_or(1.0)));
            let mine =
                knob("tile").split(',').filter_map(of).filter(|(i, _)| self.outer.iter().any(|o| o.side == side && o.range.index == *i));
            mine.map(|(_, n)| n).product()
        };
        let (left, right) = (size(Side::Left), size(Side::Right));
        let (short, long) = if left < right { (left, right) } else { (right, left) };
        let [usual_short, usual_long] = self.tiles.usual;
        let far = (short.max(1.0) / usual_short).log2().abs() * 0.03 + (long.max(1.0) / usual_long).log2().abs() * 0.02;
        let depth = if knob("depth").parse() == Ok(self.tiles.depths[0]) { 0.0 } else { 0.02 };
        let reduce = if knob("reduce") == "private" { 0.3 } else { self.idle(knob("tile")) };
        // The arithmetic that is expected to be slower comes after all tiles, but before layouts that are walked badly.
        let slower = if self.pairs.first() == Some(&(knob("arithmetic") != "f32")) { 0.0 } else { 0.5 };
        // So are packed factors where packing takes longer than multiplying.
        let slower = slower + if self.unpacked.first() == Some(&(knob("form") == "direct")) { 0.0 } else { 0.5 };
        if self.tiles.is_gpu() {
            let across = if self.runs_across(knob("vector")) { ACROSS } else { 1.0 };
            total = (total + self.within() * across) * self.waits(knob("tile"));
        }
        total * (1.0 + far + depth + reduce + slower)
    }
}

/// Slowdown on a GPU of the statements within tiles where lanes run along few iterations.
const ACROSS: f64 = 4.0;

/// Iterations of an index in a tile, by the knob `tile`.
pub(super) fn size(tile: &str, index: &str) -> i64 {
    let of = |part: &str| part.split_once(':').filter(|(i, _)| *i == index).and_then(|(_, n)| n.parse::<i64>().ok());
    tile.split(',').find_map(of).unwrap_or(1).max(1)
}

/// The size of tiles that are as equal as can be, given their number, at least one.
pub(super) fn divided(count: i64, tiles: i64) -> i64 {
    (count + tiles.max(1) - 1) / tiles.max(1)
}

/// How the first product that has an outer index uses it.
fn side(products: &[NestStatement], index: &str, is_local: &dyn Fn(&str) -> bool) -> Side {
    for statement in products {
        let Some(Factors { a, b, .. }) = factors(&statement.code) else { continue };
        let has = |element: &loopnest::Element| is_local(&element.data) || element.subscripts.iter().any(|e| e.symbols().contains(index));
        let read = |connector: &str| statement.reads.iter().find(|(c, _)| *c == connector).is_some_and(|(_, e)| has(e));
        match (read(&a), read(&b)) {
            (true, false) => return Side::Left,
            (false, true) => return Side::Right,
            _ => {}
        }
    }
    Side::Point
}

impl ConfigSpace for TileSpace {
    fn tensors(&self) -> &[TensorChoice] {
        &self.tensors
    }

    fn count(&self) -> u64 {
        if self.direct {
            let knobs = (CHANNELS.len() * PLACES.len() * self.reduces.len() * self.forms.len()) as u64;
            return layouts(&self.tensors).saturating_mul(knobs);
        }
        let Tiles { short, long, depths, .. } = self.tiles;
        let arithmetic = self.pairs.len() * self.unpacked.len();
        let knobs = (short.len() * long.len() * 2 * depths.len() * 2 * self.reduces.len() * arithmetic) as u64;
        layouts(&self.tensors).saturating_mul(knobs)
    }

    fn config(&self, n: u64) -> KernelConfig {
        let mut digits = MixedRadix::of(n, self.count());
        if self.direct {
            let (form, reduce) = (self.forms[digits.below(self.forms.len())], self.reduces[digits.below(self.reduces.len())]);
            let (channels, places) = (CHANNELS[digits.below(CHANNELS.len())], PLACES[digits.below(PLACES.len())]);
            let config = KernelConfig { layouts: digits.layouts(&self.tensors), knobs: Knobs::default() };
            let mut knobs = self.walk_windows(&config, channels, places, form);
            if self.reduces.len() > 1 {
                knobs = knobs.with("reduce", reduce);
            }
            return KernelConfig { knobs, ..config };
        }
        let Tiles { short, long, depths, .. } = self.tiles;
        let (depth, reduce) = (depths[digits.below(depths.len())], self.reduces[digits.below(self.reduces.len())]);
        let pairs = self.pairs[digits.below(self.pairs.len())];
        let unpacked = self.unpacked[digits.below(self.unpacked.len())];
        // The depth is how much is packed at once.
        let depth = if unpacked { depths[0] } else { depth };
        let (short, long, turned, along) =
            (short[digits.below(short.len())], long[digits.below(long.len())], digits.below(2) == 1, digits.below(2));
        let layouts = digits.layouts(&self.tensors);
        let config = KernelConfig { layouts, knobs: Knobs::default() };
        let mut knobs = self.walk(&config, if turned { [long, short] } else { [short, long] }, depth, along);
        if self.reduces.len() > 1 {
            knobs = knobs.with("reduce", reduce);
        }
        if !pairs {
            knobs = knobs.with("arithmetic", "f32");
        }
        if unpacked {
            knobs = knobs.with("form", "direct");
        }
        // There is no second result to lie along.
        if !self.tiles.is_gpu() && self.single && along == 1 {
            knobs = knobs.with("columns", "across");
        }
        KernelConfig { knobs, ..config }
    }

    fn identity(&self, n: u64) -> String {
        crate::config_space::identity(&self.spec, &self.tensors, &self.config(n))
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        self.cost(&self.config(n))
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        let inner: BTreeSet<String> = self
            .written
            .first()
            .map(|n| self.layout(config, &self.tensors[*n].data))
            .iter()
            .filter_map(|l| l.innermost().map(String::from))
            .collect();
        if self.direct {
            return true;
        }
        let first = config.knobs.get("vector").and_then(|v| v.split(',').next());
        let vector = first.and_then(|v| self.dims.iter().find(|(i, _)| i == v)).map(|(_, d)| d.clone());
        vector.is_none_or(|v| inner.contains(&v)) && config.knobs.get("depth").and_then(|d| d.parse().ok()) == Some(self.tiles.depths[0])
    }
}
