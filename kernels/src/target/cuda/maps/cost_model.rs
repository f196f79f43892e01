//! The cost model of CUDA map kernels: bytes moved, unused parts of sectors included, times the threads that idle. It is evaluated for very
//! many configurations, so everything that depends on names is looked up once a kernel ([`KernelFacts`]).

use crate::config_space::{ConfigSpace as _, TensorChoice};
use crate::kernel::{ArgumentAccess, KernelArgument, KernelSpec};
use crate::loopnest::{Element, LoopGroup, LoopNest, MemorySpace};
use crate::maps::MapSpace;
use crate::maps::space::ORDERS;
use crate::target::cuda::emit;
use crate::target::cuda::maps::{CudaSpace, Picked, SUMMING};
use sdfg::Layout;
use std::collections::{BTreeMap, BTreeSet};

/// Threads of a multiprocessor that keep the memory busy.
const ENOUGH: f64 = 1024.0;
/// Registers of a multiprocessor.
const REGISTERS: f64 = 65536.0;
/// Most values of a row that a thread holds in registers; of a longer row it holds none.
const MOST: f64 = 64.0;
/// Slowdown of a kernel that adds to partial results in memory at every point.
const SCATTERED: f64 = 2.0;
/// Slowdown where lanes are not neighbours in the dropout mask: each draws a block of random bits that decides about eight elements and
/// uses one of them. The second is that of rows that draw together, or of a team that keeps the block for its next seven points.
const DRAWN_APART: f64 = 2.0;
const DRAWN_TOGETHER: f64 = 1.1;
/// Bytes of a sector, the smallest access to the memory of a GPU.
const SECTOR: f64 = 32.0;

/// What a thread holds if vectors run along an index.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldRows {
    /// Containers that one group writes and another reads: a thread keeps its part of a row in registers, if there is room.
    handed: f64,
    /// Partial results over all points, kept in registers likewise.
    summed: f64,
    /// Those of `handed` that are local, and not in memory as well.
    local: f64,
    /// Most iterations of a group.
    inner: f64,
    /// The dim of each argument that the index runs along: views may name it otherwise.
    along: BTreeMap<String, String>,
}

impl HeldRows {
    pub(crate) fn of(spec: &KernelSpec, nest: &LoopNest, vector: &str) -> Self {
        let along = |group: &LoopGroup, element: &Element| {
            group.loops.last().is_some_and(|last| element.subscripts.iter().any(|s| s.symbols().contains(&last.index)))
        };
        let uses = |data: &str| {
            let touches = |g: &&LoopGroup| {
                let all = g.statements.iter().flat_map(|s| s.reads.iter().map(|(_, e)| e).chain([&s.write]));
                all.filter(|e| e.data == *data).any(|e| along(g, e))
            };
            nest.groups.iter().filter(touches).count()
        };
        let mut rows = HeldRows::default();
        for (data, tensor) in &nest.tensors {
            match tensor.space {
                MemorySpace::Private { .. } => rows.summed += f64::from(uses(data) > 0),
                MemorySpace::Heap { .. } => rows.handed += f64::from(uses(data) > 1),
                _ => rows.local += f64::from(uses(data) > 1),
            }
        }
        rows.handed += rows.local;
        rows.inner = nest.groups.iter().map(|g| g.loops.iter().map(|l| l.count as f64).product()).fold(1.0, f64::max);
        let statements = || nest.groups.iter().flat_map(|g| &g.statements);
        for element in statements().flat_map(|s| s.reads.iter().map(|(_, e)| e).chain([&s.write])) {
            let Some(MemorySpace::Heap { root, .. }) = nest.tensors.get(&element.data).map(|t| &t.space) else { continue };
            let subscript = element.subscripts.iter().position(|s| s.symbols().contains(vector));
            // A view has the dims of what it views, under names of its own.
            let dim = subscript.and_then(|n| spec.containers.get(root)?.dims.get(n));
            rows.along.extend(dim.map(|dim| (root.clone(), dim.clone())));
        }
        rows
    }
}

/// Everything that the cost model needs to know about a kernel, by the positions of [`Picks`](crate::maps::space::Picks).
pub(crate) struct KernelFacts {
    vectors: Vec<Vector>,
    /// By order, layout of the tensor that induces it, and place of reductions.
    orders: [Vec<Vec<Order>>; ORDERS],
    induced: [Option<usize>; ORDERS],
    tensors: Vec<NestTensor>,
}

/// An index that vectors may run along.
struct Vector {
    rows: Option<HeldRows>,
    dim: String,
    size: f64,
    /// Whether it is an index of the points, by place of reductions.
    blocked: Vec<bool>,
    /// How each tensor is laid out along it.
    along: Vec<Lying>,
}

struct Lying {
    /// Whether the tensor has its dim.
    has: bool,
    /// By layout: whether neighbours along the index are neighbours in memory, and whether they are strided.
    inner: Vec<bool>,
    crossed: Vec<bool>,
}

struct Order {
    dims: Vec<String>,
    points: f64,
    /// Whether all indices of points either are in every partial result or in none: blocks then sum sections of the reduction.
    in_sections: bool,
    /// Dims of partial results that are not dims of the points.
    held: Vec<(String, f64)>,
}

struct NestTensor {
    elements: f64,
    /// Bytes of an element.
    size: f64,
    written: bool,
    /// The innermost dim of each layout.
    innermost: Vec<Option<String>>,
}

impl KernelFacts {
    /// Of a kernel with these arguments and their numbers of elements. `apart` are the dims of its partial results, `some` those dims that
    /// not every partial result has.
    pub fn new(
        maps: &MapSpace,
        arguments: &[(KernelArgument, f64)],
        [apart, some]: [&BTreeSet<String>; 2],
        mut rows: BTreeMap<String, HeldRows>,
    ) -> Self {
        let spec = maps.spec();
        let size = |dim: &str| spec.size(dim).unwrap_or(1) as f64;
        let choices = maps.tensors();
        let vector = |index: &String| {
            let (rows, dim) = (rows.remove(index), maps.dim(index));
            let lying = |choice: &TensorChoice| {
                let alias = rows.as_ref().and_then(|rows| rows.along.get(&choice.data)).map_or(dim, String::as_str);
                let has = |layout: &Layout, dim: &str| layout.pieces.iter().any(|p| p.dim == dim);
                let inner = choice.layouts.iter().map(|l| l.innermost() == Some(alias)).collect();
                let crossed = choice.layouts.iter().map(|l| l.innermost() != Some(dim) && has(l, dim)).collect();
                Lying { has: choice.layouts.iter().any(|l| has(l, alias)), inner, crossed }
            };
            let along = choices.iter().map(lying).collect();
            let blocked = maps.reduces().iter().map(|reduce| maps.blocked(index, reduce)).collect();
            Vector { rows, dim: dim.to_string(), size: size(dim), blocked, along }
        };
        let vectors = maps.vectors().iter().map(vector).collect();
        let order = |layout: &Layout, reduce: &str| {
            let dims: Vec<String> = maps.order(layout, reduce).into_iter().map(|(_, dim)| dim.clone()).collect();
            let mut several = dims.iter().filter(|dim| spec.size(dim).is_ok_and(|n| n > 1));
            let in_sections = several.all(|dim| !some.contains(dim));
            let held = apart.iter().filter(|d| !dims.contains(d)).map(|d| (d.clone(), size(d))).collect();
            Order { points: dims.iter().map(|dim| size(dim)).product(), in_sections, held, dims }
        };
        let each = |layout: &Layout| maps.reduces().iter().map(|reduce| order(layout, reduce)).collect();
        let induced = maps.induced();
        let orders = induced.map(|tensor| match tensor {
            Some(t) => choices[t].layouts.iter().map(each).collect(),
            None => vec![each(&Layout::default())],
        });
        let tensor = |((argument, elements), choice): (&(KernelArgument, f64), &TensorChoice)| NestTensor {
            elements: *elements,
            size: argument.dtype.bytes(1) as f64,
            written: argument.access == ArgumentAccess::Write,
            innermost: choice.layouts.iter().map(|l| l.innermost().map(String::from)).collect(),
        };
        let tensors = arguments.iter().zip(choices).map(tensor).collect();
        KernelFacts { vectors, orders, induced, tensors }
    }

    /// Whether vectors run along points.
    pub fn blocked(&self, vector: usize, reduce: usize) -> bool {
        self.vectors[vector].blocked[reduce]
    }

    /// Whether some result is strided along the vectors.
    pub fn crossed(&self, picked: &Picked) -> bool {
        let along = self.vectors[picked.maps.vector].along.iter().zip(&picked.maps.layouts);
        self.tensors.iter().zip(along).any(|(tensor, (lying, layout))| tensor.written && lying.crossed[*layout])
    }

    fn order(&self, picked: &Picked) -> &Order {
        let layout = self.induced[picked.maps.order].map_or(0, |t| picked.maps.layouts[t]);
        &self.orders[picked.maps.order][layout][picked.maps.reduce]
    }

    /// Points that teams work on; along the index of the vectors strips count, not iterations.
    pub fn points(&self, picked: &Picked) -> f64 {
        let points = self.order(picked).points;
        if !picked.blocked {
            return points;
        }
        let along = self.vectors[picked.maps.vector].size;
        points / along * (along / picked.lanes()).ceil()
    }
}

impl CudaSpace {
    /// Bytes moved, unused parts of sectors included, times factors for idle threads and spilled registers.
    pub(in crate::target::cuda::maps) fn cost(&self, picked: &Picked) -> f64 {
        let facts = &self.facts;
        let (vector, order) = (&facts.vectors[picked.maps.vector], facts.order(picked));
        let (threads, rows, width) = (picked.threads as f64, picked.rows as f64, picked.width as f64);
        // Rows that are neighbours in a result leave together where they are turned.
        let next = order.dims.iter().rfind(|dim| **dim != vector.dim);
        let mut total = 0.0;
        for ((tensor, lying), layout) in facts.tensors.iter().zip(&vector.along).zip(&picked.maps.layouts) {
            let size = tensor.size;
            let turned = || tensor.written && picked.turned && next.is_some() && tensor.innermost[*layout].as_ref() == next;
            total += tensor.elements
                * match (lying.has, lying.inner[*layout]) {
                    // An access of less than 16 bytes keeps the memory less busy.
                    (true, true) => size * (1.0 + 0.1 * (16.0 / (width * size)).log2().abs()),
                    (true, false) if turned() => size * (1.2 + 0.1 * (SECTOR / (rows * size)).log2().max(0.0)),
                    (true, false) => (width * SECTOR).min(8.0 * SECTOR),
                    (false, _) => size,
                };
        }
        let (along, lanes) = (vector.size, picked.lanes());
        // Every block writes what it has summed, of one strip where it has one, and reads it again: every row of it, and of all strips,
        // where there are no sections.
        let blocks = picked.blocks.unwrap_or(SUMMING[0] * self.processors) as f64;
        if picked.summed {
            let parts = match (order.in_sections, picked.blocked) {
                (false, _) => blocks * rows,
                (true, true) => blocks * (lanes / along).min(1.0),
                (true, false) => blocks,
            };
            total += 2.0 * size_of::<f32>() as f64 * self.partial * parts;
        }
        let strips = (along / lanes).ceil();
        let idle = strips * lanes / along;
        let points = facts.points(picked);
        // Fewer threads than that leave the memory idle, unless each asks for more than 16 bytes at a time, two for a value.
        let running = if picked.summed || picked.blocks.is_some() { (points / rows).min(blocks) } else { points / rows };
        let values = if picked.blocked { width } else { strips * width };
        let asked = if values <= MOST { (values / 8.0).clamp(0.5, 4.0) } else { 1.0 };
        let few = (self.processors as f64 * ENOUGH / (running * threads * asked)).max(1.0).sqrt();
        // Rows longer than what registers hold are read again.
        let again = if picked.loops == "one" && !picked.blocked && strips * width <= MOST { 1.0 } else { 1.2 };
        // Partial results of one container that a thread has to hold at a point.
        let held = || order.held.iter().map(|(dim, size)| if *dim == vector.dim { values } else { *size }).product::<f64>();
        let scattered = if picked.summed && held() > MOST { SCATTERED } else { 1.0 };
        // Knobs that often make no difference: one of each kind is tried before another of the same.
        let seldom = [
            picked.loops != "one",
            !picked.blocked && picked.unroll != 4,
            !picked.blocked && picked.hold != "registers",
            picked.blocked && !picked.summed && threads / rows != emit::WARP as f64,
        ];
        let later = seldom.into_iter().filter(|l| *l).count() as f64;
        // What a thread begins with for its masks takes as long as a strip does: where it stays that is done once.
        let begins = if self.masks.is_empty() || picked.blocks.is_some() { 0.0 } else { 0.5 };
        let drawn = self.drawn(picked, vector, order);
        total * idle * again * few * scattered * drawn * self.spilled(picked, values) * (1.0 + 0.002 * (later + begins))
    }

    /// The slowdown by dropout masks.
    fn drawn(&self, picked: &Picked, vector: &Vector, order: &Order) -> f64 {
        let apart = |dim: &String| match order.dims.last() == Some(dim) && (picked.summed || picked.rows % 8 == 0) {
            _ if *dim == vector.dim => 1.0,
            true => DRAWN_TOGETHER,
            false => DRAWN_APART,
        };
        self.masks.iter().map(apart).fold(1.0, f64::max)
    }

    /// The slowdown of a kernel whose threads keep more rows, of `values` values each, than their registers hold.
    fn spilled(&self, picked: &Picked, values: f64) -> f64 {
        let Some(rows) = &self.facts.vectors[picked.maps.vector].rows else { return 1.0 };
        let (threads, width) = (picked.threads as f64, picked.width as f64);
        let held = picked.loops == "one" || !picked.blocked && picked.hold == "registers";
        let handed = if held && values <= MOST { rows.handed } else { 0.0 };
        let summed = if picked.summed && values <= MOST { rows.summed } else { 0.0 };
        // Where vectors run along points, a thread has whole rows of them.
        let rows = if picked.blocked { rows.inner * width * rows.local } else { values * (handed + summed) };
        // Prefetched rows of two containers with elements of two bytes; else loads of some strips in addition to the sums.
        let read = match (picked.ahead, summed > 0.0) {
            (true, _) => values,
            (false, true) => values / 2.0,
            (false, false) => 0.0,
        };
        // And some vectors, and places.
        let needed = rows + read + 4.0 * width + 24.0;
        let most = (emit::LEAN as f64 / threads).floor();
        let each = picked.blocks.map_or(1.0, |n| (n as f64 / self.processors as f64).floor().min(most).max(1.0));
        let room = (REGISTERS / (threads * each)).min(255.0);
        if needed > room { 1.3 + (needed - room) / room } else { 1.0 }
    }
}
